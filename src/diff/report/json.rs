//! The comparison as JSON with stable keys; docs/json.md lists them.
//!
//! Values are unscaled: `samples` always, `cpu_s` or null without a sampling rate, `share` of the profile.

use std::collections::BTreeMap;

use serde::Serialize;

use super::notes;
use crate::diff::compare::{Comparison, Measure, Pair, Side};
use crate::escape::escape_json;

#[derive(Serialize)]
struct Document<'a> {
    version: &'static str,
    compared_by: &'static str,
    why: &'a str,
    notes: Vec<String>,
    unit: &'a str,
    base: Profile<'a>,
    new: Profile<'a>,
    functions: Vec<FunctionRow<'a>>,
}

#[derive(Serialize)]
struct Profile<'a> {
    profile: &'a str,
    processes: &'a [String],
    samples: u64,
    samples_incomplete: u64,
    samples_lost: &'a BTreeMap<String, u64>,
    lost_share: f64,
    cpu_s: Option<f64>,
    duration_s: Option<f64>,
}

#[derive(Serialize)]
struct FunctionRow<'a> {
    name: &'a str,
    #[serde(rename = "self")]
    own: BothSides,
    total: BothSides,
}

#[derive(Serialize)]
struct BothSides {
    base: Figure,
    new: Figure,
    /// new − base in the measure.
    change: f64,
}

#[derive(Serialize)]
struct Figure {
    samples: u64,
    cpu_s: Option<f64>,
    share: f64,
}

/// All functions of the comparison: one JSON object and a newline.
#[must_use]
pub fn json(comparison: &Comparison) -> String {
    let both = |pair: Pair| BothSides {
        base: figure(&comparison.base, pair.base),
        new: figure(&comparison.new, pair.new),
        change: comparison.change(pair),
    };
    let functions = comparison.rows.iter().map(|row| FunctionRow {
        name: &row.name,
        own: both(row.own),
        total: both(row.total),
    });
    let document = Document {
        version: env!("CARGO_PKG_VERSION"),
        compared_by: match comparison.measure {
            Measure::Seconds => "cpu_s",
            Measure::Share => "share",
            Measure::Samples => "samples",
        },
        why: comparison.why,
        notes: notes(comparison),
        unit: &comparison.unit,
        base: profile(&comparison.base),
        new: profile(&comparison.new),
        functions: functions.collect(),
    };
    // Plain strings and finite numbers: serialization cannot fail.
    let mut text = serde_json::to_string_pretty(&document).unwrap_or_default();
    text.push('\n');
    escape_json(&text).into_owned()
}

fn profile(side: &Side) -> Profile<'_> {
    Profile {
        profile: &side.source,
        processes: &side.processes,
        samples: side.samples,
        samples_incomplete: side.incomplete,
        samples_lost: &side.lost.counts,
        lost_share: side.lost.part,
        cpu_s: side.period_s.map(|period| side.samples as f64 * period),
        duration_s: side.duration_s,
    }
}

fn figure(side: &Side, count: u64) -> Figure {
    Figure {
        samples: count,
        cpu_s: side.period_s.map(|period| count as f64 * period),
        share: side.share(count),
    }
}
