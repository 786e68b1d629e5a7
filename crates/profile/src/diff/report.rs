//! A comparison as text for the terminal, Markdown, JSON, or folded stacks with two counts.
//!
//! Input: a [`Comparison`]. Output: text. Only formats values.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write};

use serde::Serialize;

use super::compare::{Comparison, LOST_NOTED, Measure, Pair, Row, Side};
use super::stacks::Stacks;
use crate::escape::{escape_json, escape_line};
use crate::trie::NodeId;
use crate::views::by_name::{LineTree, walk_lines};

/// A value for people: `0.39 s`, `12.3%`, `412`.
#[must_use]
pub fn value(value: f64, measure: Measure) -> String {
    match measure {
        Measure::Seconds => format!("{} s", digits(value)),
        Measure::Share => format!("{:.2}%", 100.0 * value),
        Measure::Samples => format!("{value:.0}"),
    }
}

/// A change with its sign: `+0.52 s`, `-1.20 pt`, `+12`. `pt` are percentage points.
#[must_use]
pub fn change(value: f64, measure: Measure) -> String {
    let sign = if value < 0.0 { '-' } else { '+' };
    let size = value.abs();
    match measure {
        Measure::Seconds => format!("{sign}{} s", digits(size)),
        Measure::Share => format!("{sign}{:.2} pt", 100.0 * size),
        Measure::Samples => format!("{sign}{size:.0}"),
    }
}

/// The change of a pair: `+133%`, `new`, `gone`, `=`.
#[must_use]
pub fn relative(base: f64, new: f64) -> String {
    match (base > 0.0, new > 0.0) {
        (false, false) => "=".to_owned(),
        (false, true) => "new".to_owned(),
        (true, false) => "gone".to_owned(),
        (true, true) => percent(new / base - 1.0),
    }
}

/// A relative change: `+5.2%`, `-0.4%`, `+133%`, `x12` from ten times on.
#[must_use]
pub fn percent(change: f64) -> String {
    let percent = 100.0 * change;
    if percent.is_infinite() {
        "new".to_owned()
    } else if percent >= 900.0 {
        format!("x{:.0}", change + 1.0)
    } else if percent.abs() >= 99.95 {
        format!("{percent:+.0}%")
    } else {
        // Not `-0.0%`.
        format!("{:+.1}%", if percent.abs() < 0.05 { 0.0 } else { percent })
    }
}

/// Seconds with three significant digits.
#[must_use]
pub fn digits(seconds: f64) -> String {
    match seconds.abs() {
        0.0..9.995 => format!("{seconds:.3}"),
        9.995..99.95 => format!("{seconds:.2}"),
        _ => format!("{seconds:.1}"),
    }
}

/// The name of the measure in a sentence.
#[must_use]
pub fn measure_words(comparison: &Comparison) -> &str {
    match comparison.measure {
        Measure::Seconds => "CPU seconds",
        Measure::Share => "shares of each profile",
        Measure::Samples => &comparison.unit,
    }
}

/// The line with the change of the whole.
#[must_use]
pub fn headline(comparison: &Comparison) -> String {
    let Comparison { base, new, .. } = comparison;
    let whole = comparison.whole();
    let counted = |count: u64| format!("{count} {}", comparison.unit);
    match comparison.measure {
        Measure::Share => format!("{} -> {}", counted(whole.base), counted(whole.new)),
        measure => {
            let (a, b) = (base.value(whole.base, measure), new.value(whole.new, measure));
            let change = relative(a, b);
            if measure == Measure::Samples {
                format!("{} -> {} ({change})", counted(whole.base), counted(whole.new))
            } else {
                format!("{} -> {} of CPU time ({change})", value(a, measure), value(b, measure))
            }
        }
    }
}

/// Notes for readers of the table, one line each.
#[must_use]
pub fn notes(comparison: &Comparison) -> Vec<String> {
    let mut notes = Vec::new();
    let Comparison { base, new, .. } = comparison;
    if base.processes != new.processes {
        notes.push(format!(
            "the processes have different names: {} and {}",
            base.processes.join(", "),
            new.processes.join(", ")
        ));
    }
    if base.lost.apart(&new.lost) > LOST_NOTED {
        notes.push(format!(
            "lost: {} of base, {} of new; what was lost is in no sum and no function, so record both in the same way, as the same user",
            lost(base),
            lost(new)
        ));
    }
    // A larger difference in stacks without callers distorts the totals of callers.
    const INCOMPLETE_SHIFT: f64 = 0.05;
    let incomplete = (base.share(base.incomplete), new.share(new.incomplete));
    if (incomplete.0 - incomplete.1).abs() > INCOMPLETE_SHIFT {
        notes.push(format!(
            "stacks without their outer part: {:.1}% of base, {:.1}% of new; totals of outer functions are not comparable",
            100.0 * incomplete.0,
            100.0 * incomplete.1
        ));
    }
    for side in [base, new] {
        if side.waiting_left_out > 0 {
            notes.push(format!(
                "{}: {} samples of waiting threads left out (--idle takes them in)",
                escape_line(&side.source),
                side.waiting_left_out
            ));
        }
    }
    notes
}

/// The lost fraction of a side, and its main cause.
fn lost(side: &Side) -> String {
    if side.lost.counts.is_empty() {
        return "unknown".to_owned();
    }
    format!("{:.1}% ({})", 100.0 * side.lost.part, side.lost.main_reason())
}

/// At most `top` changed rows, and the number of further ones.
fn changed(comparison: &Comparison, top: usize) -> (Vec<&Row>, usize) {
    let differs = |pair: Pair| comparison.change(pair) != 0.0;
    let rows: Vec<_> = comparison.rows.iter().filter(|row| differs(row.own) || differs(row.total)).collect();
    let more = rows.len().saturating_sub(top);
    (rows.into_iter().take(top).collect(), more)
}

/// The figures of a row: self in base and new, its change, also relative; total in base and new, its change.
fn cells(comparison: &Comparison, row: &Row) -> [String; 7] {
    let (own_base, own_new) = comparison.values(row.own);
    let (total_base, total_new) = comparison.values(row.total);
    let (value, change) = (|of| value(of, comparison.measure), |by| change(by, comparison.measure));
    [
        value(own_base),
        value(own_new),
        change(own_new - own_base),
        relative(own_base, own_new),
        value(total_base),
        value(total_new),
        change(total_new - total_base),
    ]
}

// ---- The comparison as folded stacks with two counts, `stack BASE NEW`, as difffolded.pl writes and
// inferno-flamegraph reads them.
//
// If shares are compared, or the rates differ, the counts of the side with fewer are scaled to those of the
// other, since the format has only counts. The scaled counts add up to the scaled total.

/// Writes the stacks of the two profiles of `comparison`, sorted by the bytes of their lines.
///
/// # Errors
/// Errors of the writer.
pub fn write(stacks: &Stacks, comparison: &Comparison, out: &mut dyn Write) -> io::Result<()> {
    let tree = Tree::of(stacks, comparison);
    let mut path: Vec<&str> = Vec::new();
    walk_lines(&tree, &stacks.children(), |depth, node, is_line| {
        path.truncate(depth);
        path.push(tree.name(node));
        if is_line { writeln!(out, "{} {}", path.join(";"), tree.counts(node)) } else { Ok(()) }
    })
}

/// The common tree with the counts of both sides; only the current stack exists as text.
struct Tree<'a> {
    stacks: &'a Stacks,
    counts: Vec<(u64, u64)>,
}

impl<'a> Tree<'a> {
    fn of(stacks: &'a Stacks, comparison: &Comparison) -> Tree<'a> {
        let mut counts = vec![(0, 0); stacks.node_count()];
        let scales = comparison.scales();
        if let [base, new] = stacks.runs() {
            let mut scaled = CountScaler::by(scales.0);
            base.own().for_each(|(node, count)| counts[node.0 as usize].0 = scaled.next(count));
            let mut scaled = CountScaler::by(scales.1);
            new.own().for_each(|(node, count)| counts[node.0 as usize].1 = scaled.next(count));
        }
        Tree { stacks, counts }
    }

    fn of_both(&self, node: u32) -> (u64, u64) {
        self.counts.get(node as usize).copied().unwrap_or_default()
    }
}

impl LineTree for Tree<'_> {
    fn name(&self, node: u32) -> &str {
        self.stacks.name(NodeId(node))
    }

    fn has_line(&self, node: u32) -> bool {
        self.of_both(node) != (0, 0)
    }

    fn counts(&self, node: u32) -> String {
        let (base, new) = self.of_both(node);
        format!("{base} {new}")
    }
}

/// Scales counts one after the other, carrying rounding errors over to the next.
struct CountScaler {
    scale: f64,
    /// The sums so far, before and after scaling.
    sum: u64,
    written: u64,
}

impl CountScaler {
    fn by(scale: f64) -> CountScaler {
        CountScaler { scale, sum: 0, written: 0 }
    }

    fn next(&mut self, count: u64) -> u64 {
        if self.scale == 1.0 {
            return count;
        }
        self.sum = self.sum.saturating_add(count);
        let written = (self.sum as f64 * self.scale).round() as u64;
        let scaled = written.saturating_sub(self.written);
        self.written = written;
        scaled
    }
}

// ---- The comparison as JSON with stable keys; docs/json.md lists them.
//
// Values are unscaled: `samples` always, `cpu_s` or null without a sampling rate, `share` of the profile.

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

// ---- The comparison as a Markdown table, for a comment on a change.

/// The comparison with its `top` largest changes.
#[must_use]
pub fn markdown(comparison: &Comparison, top: usize) -> String {
    let Comparison { base, new, .. } = comparison;
    let mut out = String::new();
    let _ =
        writeln!(out, "**{}** → **{}**: {}\n", cell(&base.source), cell(&new.source), headline(comparison));
    let _ = writeln!(out, "Compared by {}: {}.\n", measure_words(comparison), comparison.why);
    for note in notes(comparison) {
        let _ = writeln!(out, "Note: {}.\n", cell(&note));
    }
    let (rows, more) = changed(comparison, top);
    if rows.is_empty() {
        out.push_str("No function differs.\n");
        return out;
    }
    out.push_str("| function | self base | self new | change | | total base | total new | change |\n");
    out.push_str("|---|--:|--:|--:|--:|--:|--:|--:|\n");
    for row in rows {
        let _ = writeln!(out, "| {} | {} |", code(&row.name), cells(comparison, row).join(" | "));
    }
    if more > 0 {
        let _ = writeln!(out, "\n{more} more functions differ.");
    }
    out
}

/// A name as code in a table: the fence is longer than any run of backticks in it.
#[must_use]
pub fn code(name: &str) -> String {
    let longest = name.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest + 1);
    let space = if name.starts_with('`') || name.ends_with('`') { " " } else { "" };
    format!("{fence}{space}{}{space}{fence}", escape_line(name).replace('|', "\\|"))
}

/// Text for a table or a sentence, with markup escaped.
#[must_use]
pub fn cell(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in escape_line(text).chars() {
        if matches!(c, '|' | '*' | '_' | '`' | '[' | ']' | '<' | '>' | '\\' | '#') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

// ---- The comparison as a table for the terminal. Names come last, so that long ones do not break the columns.

/// The comparison with its `top` largest changes.
#[must_use]
pub fn text(comparison: &Comparison, top: usize) -> String {
    let Comparison { base, new, .. } = comparison;
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{} -> {}: {}",
        escape_line(&base.source),
        escape_line(&new.source),
        headline(comparison)
    );
    let _ = writeln!(out, "compared by {}: {}", measure_words(comparison), comparison.why);
    for note in notes(comparison) {
        let _ = writeln!(out, "note: {note}");
    }
    let (rows, more) = changed(comparison, top);
    if rows.is_empty() {
        let _ = writeln!(out, "\nno function differs");
        return out;
    }
    let _ = writeln!(
        out,
        "\n{:>10} {:>10} {:>10} {:>8}   {:>10} {:>10} {:>10}  function",
        "self base", "self new", "change", "", "total base", "total new", "change"
    );
    for row in &rows {
        let _ = writeln!(out, "{}", line(comparison, row));
    }
    if rows.iter().any(|row| comparison.is_counting_noise(row.own)) {
        out.push_str(
            "~ counting noise can explain the change; stackprof gate compares several runs a side\n",
        );
    }
    if more > 0 {
        let _ = writeln!(out, "{more} more functions differ; --top N shows N, -o FILE.json has all");
    }
    out
}

fn line(comparison: &Comparison, row: &Row) -> String {
    let [own_base, own_new, own_change, relative, total_base, total_new, total_change] =
        cells(comparison, row);
    format!(
        "{own_base:>10} {own_new:>10} {own_change:>10} {relative:>8} {:1} \
         {total_base:>10} {total_new:>10} {total_change:>10}  {}",
        if comparison.is_counting_noise(row.own) { "~" } else { "" },
        row.name
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::About;
    use crate::diff::compare::MeasureChoice;
    use crate::diff::stacks::tests::saved;
    use crate::diff::stacks::{Matching, Stacks};

    /// Two whole commands of 100 samples each, plus these losses.
    fn lossy(base: u64, new: u64) -> Comparison {
        let mut stacks = Stacks::new(Matching::default());
        for (name, lost) in [("base", base), ("new", new)] {
            let lost = [("in the kernel, which may not be sampled".to_owned(), lost)];
            let about = About {
                hz: Some(100),
                launched: Some(true),
                lost: lost.into_iter().filter(|(_, counts)| *counts > 0).collect(),
                ..About::default()
            };
            stacks.add(name, &saved(about, "work", &[("main", 100)]), None).expect("fits");
        }
        Comparison::of(&stacks, MeasureChoice::Auto).expect("both have samples")
    }

    #[test]
    fn differing_losses_are_reported() {
        let note = "lost: 20.0% (in the kernel, which may not be sampled) of base, unknown of new; \
                    what was lost is in no sum and no function, so record both in the same way, as the same user";
        let unlike = lossy(25, 0);
        assert_eq!(notes(&unlike), [note]);
        assert!(super::text(&unlike, 9).contains(&format!("\nnote: {note}\n")));
        assert!(super::markdown(&unlike, 9).contains("Note: lost: 20.0% (in the kernel"));
        let json: serde_json::Value = serde_json::from_str(&super::json(&unlike)).expect("JSON");
        assert_eq!(json["notes"], serde_json::json!([note]));
        assert_eq!((&json["base"]["lost_share"], &json["new"]["lost_share"]), (&0.2.into(), &0.0.into()));
        assert_eq!(json["base"]["samples_lost"]["in the kernel, which may not be sampled"], 25);
        let [note] = &notes(&lossy(5, 2))[..] else { panic!("more than two points apart") };
        assert!(note.contains("of base, 2.0% (in the kernel, which may not be sampled) of new; "), "{note}");
        assert_eq!(notes(&lossy(67, 66)).len() + notes(&lossy(2, 0)).len() + notes(&lossy(0, 0)).len(), 0);
    }

    #[test]
    fn values_are_formatted_for_people() {
        assert_eq!(value(0.3914, Measure::Seconds), "0.391 s");
        assert_eq!(value(12.345, Measure::Seconds), "12.35 s");
        assert_eq!(value(0.1234, Measure::Share), "12.34%");
        assert_eq!(change(-0.012, Measure::Share), "-1.20 pt");
        assert_eq!(change(12.0, Measure::Samples), "+12");
        assert_eq!(relative(0.0, 1.0), "new");
        assert_eq!(relative(1.0, 0.0), "gone");
        assert_eq!(relative(1.0, 1.0004), "+0.0%");
        assert_eq!(relative(1.0, 2.4), "+140%");
        assert_eq!(relative(1.0, 12.0), "x12");
        assert_eq!(percent(-0.0001), "+0.0%");
        assert_eq!(percent(f64::INFINITY), "new");
    }
}

#[cfg(test)]
mod folded_tests {
    use super::super::compare::MeasureChoice;
    use super::super::stacks::Matching;
    use super::*;
    use crate::formats::folded;

    #[test]
    fn lines_of_both_sides_are_sorted_by_bytes() {
        let names = ["a", "a 1", "a!", "a::b", "a<T>", "é"];
        let side = |skip: usize| {
            let mut text = String::new();
            for (index, outer) in names.iter().enumerate().filter(|(index, _)| index % 3 != skip) {
                text += &format!("p;{outer} {}\np;{outer};{outer};x {}\n", index + 1, 10 + skip);
            }
            folded::read(text.as_bytes(), "a").expect("reads")
        };
        let mut stacks = Stacks::new(Matching::default());
        stacks.add("base", &side(0), None).expect("fits");
        stacks.add("new", &side(1), None).expect("fits");
        let comparison = Comparison::of(&stacks, MeasureChoice::Absolute).expect("comparable");
        let mut out = Vec::new();
        write(&stacks, &comparison, &mut out).expect("a Vec takes everything");
        let text = String::from_utf8(out).expect("UTF-8");
        let lines: Vec<&str> = text.lines().collect();
        let mut sorted = lines.clone();
        sorted.sort_unstable();
        assert_eq!(lines, sorted);
        assert_eq!(lines.len(), 12, "{text}");
        for line in ["p;a 0 1", "p;a 1 2 0", "p;a::b 0 4", "p;a!;a!;x 10 11", "p;a::b;a::b;x 0 11"] {
            assert!(lines.contains(&line), "{line} in\n{text}");
        }
    }

    #[test]
    fn scaling_keeps_every_stack_and_the_totals() {
        let side = |stacks: usize| {
            let text: String = (0..stacks).map(|n| format!("p;f{n:04} 1\n")).collect();
            folded::read(text.as_bytes(), "a").expect("reads")
        };
        for (base_stacks, new_stacks) in [(1000, 400), (400, 1000), (1000, 600), (7, 3)] {
            let mut stacks = Stacks::new(Matching::default());
            stacks.add("base", &side(base_stacks), None).expect("fits");
            stacks.add("new", &side(new_stacks), None).expect("fits");
            let comparison = Comparison::of(&stacks, MeasureChoice::Share).expect("comparable");
            let mut out = Vec::new();
            write(&stacks, &comparison, &mut out).expect("a Vec takes everything");
            let text = String::from_utf8(out).expect("UTF-8");
            let mut sums = [0, 0];
            for line in text.lines() {
                let mut counts =
                    line.rsplitn(3, ' ').take(2).map(|count| count.parse::<usize>().expect("a count"));
                let (new, base) = (counts.next().expect("new"), counts.next().expect("base"));
                assert!(base + new > 0, "{line}");
                sums = [sums[0] + base, sums[1] + new];
            }
            let more = base_stacks.max(new_stacks);
            assert_eq!((text.lines().count(), sums), (more, [more, more]));
        }
    }
}

#[cfg(test)]
mod markdown_tests {
    use super::*;

    #[test]
    fn names_do_not_become_markup() {
        assert_eq!(code("a|b<c>"), "`a\\|b<c>`");
        assert_eq!(code("``x`"), "``` ``x` ```");
        assert_eq!(cell("a_b|c*\n"), "a\\_b\\|c\\*\\\\u{a}");
    }
}
