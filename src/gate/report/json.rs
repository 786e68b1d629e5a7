//! The verdict as JSON with stable keys; docs/json.md lists them.
//!
//! Relative changes are fractions (0.05 is 5 %), null for new functions.

use serde::Serialize;

use super::headline;
use crate::escape::escape_json;
use crate::gate::detectable::POWER;
use crate::gate::interval::Interval;
use crate::gate::verdict::{CallPath, Change, Nameless, Report, Strength, Verdict};

#[derive(Serialize)]
struct Document<'a> {
    version: &'static str,
    verdict: &'static str,
    headline: String,
    weak: bool,
    max_increase: f64,
    min_share: f64,
    alpha: f64,
    strict: bool,
    seed: u64,
    runs_base: usize,
    runs_new: usize,
    orders: Option<usize>,
    orders_exact: Option<bool>,
    unit: &'static str,
    total: Figures,
    total_slower: bool,
    total_visible: Option<f64>,
    visible_power: f64,
    total_where: Option<GrowthPath<'a>>,
    moved_why: Option<&'static str>,
    functions_too_small: usize,
    functions: Vec<FunctionRow<'a>>,
}

#[derive(Serialize)]
struct Figures {
    base: f64,
    new: f64,
    change: Option<f64>,
    change_low: Option<f64>,
    change_high: Option<f64>,
    p: Option<f64>,
}

#[derive(Serialize)]
struct FunctionRow<'a> {
    name: &'a str,
    state: &'static str,
    #[serde(rename = "self")]
    own: Figures,
    share_base: f64,
    share_new: f64,
    gained: f64,
    visible: Option<f64>,
    q: Option<f64>,
    #[serde(rename = "where")]
    place: Option<GrowthPath<'a>>,
}

#[derive(Serialize)]
struct GrowthPath<'a> {
    path: &'a [String],
    base: f64,
    new: f64,
    part: f64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    functions_new_build: Vec<NamelessFunction<'a>>,
}

#[derive(Serialize)]
struct NamelessFunction<'a> {
    name: &'a str,
    base: f64,
    new: f64,
}

/// The whole report: one JSON object and a newline.
#[must_use]
pub fn json(report: &Report) -> String {
    let (orders, orders_exact) = match report.strength {
        Strength::Tested { permutations, exact } => (Some(permutations), Some(exact)),
        Strength::Weak => (None, None),
    };
    let functions = report.functions.iter().map(|row| FunctionRow {
        name: &row.name,
        state: row.state.word(),
        own: Figures { p: row.p, ..figures(&row.cpu) },
        share_base: row.share_base,
        share_new: row.share_new,
        gained: row.gained,
        visible: row.min_detectable,
        q: row.q,
        place: row.place.as_ref().map(place),
    });
    let document = Document {
        version: env!("CARGO_PKG_VERSION"),
        verdict: match report.verdict {
            Verdict::Pass => "pass",
            Verdict::Regression => "regression",
        },
        headline: headline(report),
        weak: report.strength == Strength::Weak,
        max_increase: report.options.max_increase,
        min_share: report.options.min_share,
        alpha: report.options.alpha,
        strict: report.options.strict,
        seed: report.options.seed,
        runs_base: report.runs.0,
        runs_new: report.runs.1,
        orders,
        orders_exact,
        unit: report.unit.symbol(),
        total: figures(&report.total),
        total_slower: report.total_grown,
        total_visible: report.total_min_detectable.and_then(finite),
        visible_power: POWER,
        total_where: report.total_place.as_ref().map(place),
        moved_why: report.moved_why.map(|why| why.words()),
        functions_too_small: report.functions_too_small,
        functions: functions.collect(),
    };
    // Plain strings and finite numbers: serialization cannot fail.
    let mut text = serde_json::to_string_pretty(&document).unwrap_or_default();
    text.push('\n');
    escape_json(&text).into_owned()
}

fn figures(change: &Change) -> Figures {
    let end = |end: fn(Interval) -> f64| change.interval.map(end).and_then(finite);
    Figures {
        base: change.base,
        new: change.new,
        change: finite(change.relative),
        change_low: end(|interval| interval.low),
        change_high: end(|interval| interval.high),
        p: change.p,
    }
}

fn finite(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}

fn place(place: &CallPath) -> GrowthPath<'_> {
    let functions = place.functions.iter().map(|Nameless { name, base, new }| NamelessFunction {
        name,
        base: *base,
        new: *new,
    });
    GrowthPath {
        path: &place.path,
        base: place.base,
        new: place.new,
        part: place.part,
        functions_new_build: functions.collect(),
    }
}
