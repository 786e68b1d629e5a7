//! The verdict for programs: JSON with stable keys (docs/json.md lists them), JUnit XML for CI systems, and
//! workflow commands of GitHub Actions.
//!
//! Relative changes are fractions (0.05 is 5 %), null for new functions.

use std::fmt::Write as _;

use serde::Serialize;

use super::{fails, headline, judged, line_with_place, total, unseen};
use crate::escape::{escape_json, escape_line, escape_lines};
use crate::gate::detectable::POWER;
use crate::gate::interval::Interval;
use crate::gate::report;
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

// ---- The verdict as JUnit XML for CI systems.
//
// Valid by both schemas in use: junit-10.xsd of Jenkins' xUnit plugin and the stricter JUnit.xsd
// (windyroad). The latter requires a time stamp and a host; both are constant, so that the same recordings
// give the same bytes. Text from profiles is data: it cannot end an element, and characters that XML or a
// terminal forbids are escaped.

/// One test case for the total, and one for each function that failed or that cost moved to.
#[must_use]
pub fn junit(report: &Report, top: usize) -> String {
    let functions: Vec<_> = judged(report).collect();
    let failures =
        functions.iter().filter(|row| fails(report, row)).count() + usize::from(report.total_grown);
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n");
    let _ = writeln!(
        out,
        "  <testsuite id=\"0\" package=\"stackprof\" name=\"stackprof gate\" tests=\"{}\" failures=\"{failures}\" \
         errors=\"0\" time=\"0\" timestamp=\"1970-01-01T00:00:00\" hostname=\"localhost\">",
        functions.len() + 1
    );
    out.push_str("    <properties/>\n");
    let text_of_total = report.total_grown.then(|| format!("total: {}", total(report)));
    case(&mut out, report, "total", text_of_total.as_deref());
    for row in functions {
        let text = line_with_place(report, row);
        case(
            &mut out,
            report,
            &format!("function {}", row.name),
            fails(report, row).then_some(text.as_str()),
        );
    }
    let _ = writeln!(out, "    <system-out>{}</system-out>", escape_xml(&report::text(report, top)));
    out.push_str("    <system-err/>\n  </testsuite>\n</testsuites>\n");
    out
}

fn case(out: &mut String, report: &Report, name: &str, failure: Option<&str>) {
    let name = escape_xml(&escape_line(name));
    let _ = write!(out, "    <testcase classname=\"stackprof.gate\" name=\"{name}\" time=\"0\"");
    match failure {
        None => out.push_str("/>\n"),
        Some(text) => {
            let _ = writeln!(
                out,
                ">\n      <failure type=\"regression\" message=\"{}\">{}</failure>\n    </testcase>",
                escape_xml(&escape_line(text)),
                escape_xml(&headline(report))
            );
        }
    }
}

/// Escapes text for an element or attribute.
fn escape_xml(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in escape_lines(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&apos;"),
            _ => out.push(c),
        }
    }
    out
}

// ---- The verdict as workflow commands of GitHub Actions, with other text escaped.
//
// The runner reads commands from standard output: lines that begin with `::`, and in its older form `##[`
// anywhere in a line. Text from profiles must match neither.

/// Most annotations of one kind that GitHub shows for a step.
const SHOWN_MAX: usize = 10;

/// Annotations: the verdict, then each function that failed or that cost moved to.
#[must_use]
pub fn annotations(report: &Report) -> String {
    let kind = match report.verdict {
        Verdict::Pass => "notice",
        Verdict::Regression => "error",
    };
    let mut out = command(kind, "stackprof gate", &format!("{}. {}", headline(report), unseen(report)));
    for row in judged(report).take(SHOWN_MAX - 1) {
        let kind = if fails(report, row) { "error" } else { "notice" };
        let text = line_with_place(report, row);
        out += &command(kind, &format!("stackprof gate: {}", row.name), &text);
    }
    out
}

fn command(kind: &str, title: &str, text: &str) -> String {
    let title = escape_data(title).replace(':', "%3A").replace(',', "%2C");
    format!("::{kind} title={title}::{}\n", escape_data(text))
}

fn escape_data(text: &str) -> String {
    without_commands(&escape_line(text)).replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// Text for a log, with commands escaped.
#[must_use]
pub fn without_commands(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let start = line.trim_start();
        let (indent, rest) = line.split_at(line.len() - start.len());
        out.push_str(indent);
        match rest.strip_prefix("::") {
            Some(rest) => {
                out.push_str("\\u{3a}:");
                out.push_str(&rest.replace("##[", "#\\u{23}["));
            }
            None => out.push_str(&rest.replace("##[", "#\\u{23}[")),
        }
    }
    out
}

#[cfg(test)]
mod junit_tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn no_text_leaves_its_element() {
        let mut rng = Rng::new(31);
        let parts = [
            "]]>",
            "</failure>",
            "\"",
            "'",
            "&",
            "&lt;",
            "\0",
            "\u{1b}[31m",
            "\r\n",
            "\u{fffe}",
            "\u{202e}",
            "é",
            "<!--",
        ];
        for _ in 0..2000 {
            let text: String = (0..8).map(|_| parts[rng.below(parts.len())]).collect();
            let escaped = escape_xml(&text);
            assert!(
                !escaped.contains(['<', '>', '"', '\'', '\0', '\u{1b}', '\r', '\u{fffe}', '\u{202e}']),
                "{escaped:?}"
            );
            let back = escaped
                .replace("&lt;", "<")
                .replace("&gt;", ">")
                .replace("&quot;", "\"")
                .replace("&apos;", "'");
            assert_eq!(back.replace("&amp;", "&"), escape_lines(&text), "{escaped}");
        }
    }
}

#[cfg(test)]
mod github_tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn no_text_becomes_a_command_or_a_property() {
        let mut rng = Rng::new(5);
        let parts = [
            "::",
            "::error::",
            "##[",
            "#",
            "##[add-mask]",
            "\r",
            "\n",
            "%0A",
            "%",
            ",",
            ":",
            "title=",
            "\u{2028}",
            " ",
            "f",
        ];
        for _ in 0..4000 {
            let text: String = (0..6).map(|_| parts[rng.below(parts.len())]).collect();
            let line = command("error", &text, &text);
            assert_eq!(line.matches('\n').count(), 1, "{line:?}");
            assert!(
                line.ends_with('\n') && !line.contains(['\r', '\u{2028}']) && !line.contains("##["),
                "{line:?}"
            );
            let (head, data) = line["::error title=".len()..].split_once("::").expect("data");
            assert!(!head.contains([':', ',']), "{line:?}");
            let decoded =
                data.trim_end_matches('\n').replace("%0A", "\n").replace("%0D", "\r").replace("%25", "%");
            assert_eq!(decoded, without_commands(&escape_line(&text)).trim_end_matches('\n'), "{line:?}");
            let log = without_commands(&text);
            assert!(!log.contains("##["), "{log:?}");
            assert!(log.lines().all(|line| !line.trim_start().starts_with("::")), "{log:?}");
        }
    }

    #[test]
    fn escapes_match_the_runner() {
        assert_eq!(command("notice", "a:b,c%d", "e:f,g%0Ah"), "::notice title=a%3Ab%2Cc%25d::e:f,g%250Ah\n");
    }
}
