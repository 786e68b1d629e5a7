//! A verdict as text for the terminal, a comment on a change, a program or a CI system.
//!
//! `headline` is the first line, `text` the report for the terminal, `markdown` the comment; `ci.rs` has the
//! formats for programs.
//!
//! Input: a [`Report`]. Output: text; the first line is the verdict. Only formats.

pub mod ci;

use std::cmp::Ordering;
use std::fmt::Write as _;

use super::detectable::POWER;
use super::interval::Interval;
use super::judge;
use super::measurements::Unit;
use super::verdict::{CallPath, Change, FunctionChange, FunctionState, Nameless, Report, Strength, Verdict};
use crate::diff::report::{cell, code, digits, percent};

/// The verdict in one line.
#[must_use]
pub fn headline(report: &Report) -> String {
    let limit = format!("{:.4}", 100.0 * report.options.max_increase);
    let limit = limit.trim_end_matches('0').trim_end_matches('.');
    let (quantity, grew) = (report.unit.quantity(), report.unit.grew());
    let in_state = |state| report.functions.iter().filter(move |row| row.state == state).count();
    let mut slower = Vec::new();
    if report.total_grown {
        slower.push(format!("the program's {quantity} grew {}", growth(report.total.relative)));
    }
    let grown = in_state(FunctionState::Slower);
    match (grown, report.functions.first()) {
        (1, Some(row)) if is_new(row) => {
            slower.push(format!("{} is new, {:.1}% of {quantity}", row.name, 100.0 * row.share_new));
        }
        (1, Some(row)) => slower.push(format!("{} {grew} {}", row.name, growth(row.cpu.relative))),
        (2.., Some(row)) if is_new(row) => slower.push(format!(
            "{grown} functions {grew}, {} is new, {:.1}% of {quantity}",
            row.name,
            100.0 * row.share_new
        )),
        (2.., Some(row)) => {
            slower.push(format!("{grown} functions {grew}, {} {}", row.name, growth(row.cpu.relative)))
        }
        _ => {}
    }
    let moved = in_state(FunctionState::Moved);
    if report.options.strict && moved > 0 && report.verdict == Verdict::Regression {
        slower.push(format!("cost moved to {}", functions(moved)));
    }
    let weak = if report.strength == Strength::Weak { " (weak: too few runs for a test)" } else { "" };
    match report.verdict {
        Verdict::Regression => format!("REGRESSION{weak}: {} (limit {limit}%)", slower.join("; ")),
        Verdict::Pass => {
            let also =
                if moved > 0 { format!("; cost moved to {}", functions(moved)) } else { String::new() };
            if may_be_noise(report) || hides_much(report) {
                let total = percent(report.total.relative);
                format!(
                    "PASS{weak}: no growth beyond {limit}% that these runs can tell from noise (total {total}){also}"
                )
            } else {
                format!("PASS{weak}: nothing {} by more than {limit}%{also}", report.unit.grew())
            }
        }
    }
}

/// The detectable growth in one line: smaller growth passes most gates.
fn unseen(report: &Report) -> String {
    let figure = |min_detectable: Option<f64>| match min_detectable {
        Some(growth) if growth < 0.0995 => format!("{:.1}%", 100.0 * growth),
        Some(growth) => format!("{:.0}%", 100.0 * growth),
        None => "any amount".to_owned(),
    };
    let known = report.functions.iter().filter(|row| row.cpu.base > 0.0 && row.cpu.new > 0.0);
    let size = |row: &FunctionChange| row.min_detectable.unwrap_or(f64::INFINITY);
    let least = known.clone().min_by(|a, b| size(a).total_cmp(&size(b)));
    let most = known.max_by(|a, b| size(a).total_cmp(&size(b)));
    let quantity = report.unit.quantity();
    let share = |row: &FunctionChange| format!("{}, {:.1}% of {quantity}", row.name, 100.0 * row.share_base);
    let total = figure(report.total_min_detectable);
    let mut line = match least.zip(most) {
        Some((least, most)) if figure(least.min_detectable) == figure(most.min_detectable) => {
            format!(
                "a function that grew by less than {} would go unseen; total {total}",
                figure(least.min_detectable)
            )
        }
        Some((least, most)) => format!(
            "a function that grew by less than {} ({}) to {} ({}) would go unseen; total {total}",
            figure(least.min_detectable),
            share(least),
            figure(most.min_detectable),
            share(most)
        ),
        None => format!("growth of the total by less than {total} would go unseen"),
    };
    line += &match report.strength {
        Strength::Tested { .. } => format!("; power {:.0}%", 100.0 * POWER),
        Strength::Weak => "; the power of so few runs is not known".to_owned(),
    };
    if hides_much(report) {
        line += "; more runs show less growth";
    }
    line
}

/// Whether a function is missing in base.
fn is_new(row: &FunctionChange) -> bool {
    row.cpu.relative.is_infinite()
}

/// Whether a function is missing in new.
fn is_gone(row: &FunctionChange) -> bool {
    row.cpu.new <= 0.0
}

/// The verdict on one function, in one line.
fn function_line(report: &Report, row: &FunctionChange) -> String {
    if is_new(row) {
        let quantity = report.unit.quantity();
        return format!("{} is new: {} of {quantity}", row.name, amount(row.cpu.new, report.unit));
    }
    let change = match row.state {
        FunctionState::Slower => format!("{} {}", report.unit.grew(), growth(row.cpu.relative)),
        FunctionState::Moved => format!("grew {} by cost that moved", growth(row.cpu.relative)),
        FunctionState::Faster | FunctionState::Steady => percent(row.cpu.relative),
    };
    format!(
        "{} {change}: {} -> {} of {}",
        row.name,
        number(row.cpu.base, report.unit),
        amount(row.cpu.new, report.unit),
        report.unit.quantity()
    )
}

/// The verdict on one function, and where in the call tree it grew.
fn line_with_place(report: &Report, row: &FunctionChange) -> String {
    let place = row.place.as_ref().map(|place| format!("; {}", part_text(place)));
    function_line(report, row) + &place.unwrap_or_default()
}

/// Whether a function fails the gate.
fn fails(report: &Report, row: &FunctionChange) -> bool {
    row.state == FunctionState::Slower || (row.state == FunctionState::Moved && report.options.strict)
}

/// Functions with a separate verdict: those that fail, and those that cost moved to.
fn judged(report: &Report) -> impl Iterator<Item = &FunctionChange> {
    report.functions.iter().filter(|row| matches!(row.state, FunctionState::Slower | FunctionState::Moved))
}

/// The growth, after the verb: `by 5.2%`, `to 12 times` from ten times on.
fn growth(change: f64) -> String {
    let text = percent(change);
    match text.strip_prefix('x') {
        Some(times) => format!("to {times} times"),
        None => format!("by {}", text.trim_start_matches(['+', '-'])),
    }
}

/// The relative change of a function; `gone` if it is missing in new.
fn change(row: &FunctionChange) -> String {
    if is_gone(row) { "gone".to_owned() } else { percent(row.cpu.relative) }
}

/// The interval of a function's change; empty for one that is on one side only.
fn interval(row: &FunctionChange) -> String {
    if is_gone(row) {
        return String::new();
    }
    within(row.cpu.interval).trim().trim_matches(['(', ')']).to_owned()
}

/// Whether growth far beyond the limit would go unseen.
fn hides_much(report: &Report) -> bool {
    report.total_min_detectable.is_none_or(|growth| growth > 2.0 * report.options.max_increase)
}

/// Whether the total grew beyond the limit, but not significantly.
fn may_be_noise(report: &Report) -> bool {
    report.total.relative > report.options.max_increase && !report.total_grown
}

fn functions(count: usize) -> String {
    if count == 1 { "1 function".to_owned() } else { format!("{count} functions") }
}

fn more(count: usize) -> String {
    format!("{count} more {} changed", if count == 1 { "function" } else { "functions" })
}

/// The total in one line.
fn total(report: &Report) -> String {
    let Change { base, new, relative, interval, p } = &report.total;
    let mut line = format!(
        "{} -> {} of {}, {}{}",
        number(*base, report.unit),
        amount(*new, report.unit),
        report.unit.quantity(),
        percent(*relative),
        within(*interval)
    );
    if let Some(p) = p {
        line += &format!(", p {}", chance(*p));
    }
    if report.total_grown {
        line += if report.unit == Unit::Bytes { ": more" } else { ": slower" };
    } else if may_be_noise(report) {
        line += ": could be noise";
    }
    line
}

/// The basis of the verdict, in one line.
fn basis(report: &Report) -> String {
    let (base, new) = report.runs;
    let sides = format!("{new} new against {base} base");
    match report.strength {
        Strength::Tested { permutations, exact } => {
            let how = if exact { "all" } else { "a draw of" };
            format!("{sides}; permutation test over {how} {permutations} permutations")
        }
        Strength::Weak => format!(
            "{sides}, too few for a test: only growth beyond the limit and {:.0}% of noise in every run fails; record {} or more a side",
            100.0 * judge::NOISE_FLOOR,
            judge::enough(report.options.alpha)
        ),
    }
}

/// Remarks, one line each.
fn notes(report: &Report) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(why) = report.moved_why {
        notes.push(format!("moved, not added: {}; --strict fails on it", why.words()));
    }
    // A side with this much less did not do its work, or is another program.
    const SUSPICIOUS: f64 = -0.75;
    if report.total.relative < SUSPICIOUS {
        let quantity = report.unit.quantity();
        notes.push(format!(
            "new used less than a quarter of the {quantity} of base; check that its runs are whole"
        ));
    }
    if report.unit == Unit::SecondsOfUnknownExtent {
        notes.push(
            "files do not tell whether they are of whole commands: they are taken for that; record parts of a \
             process's life equally long"
                .to_owned(),
        );
    }
    if report.unit == Unit::SecondsPerSecond {
        notes.push(
            "CPU time is per second of recording: a program that is never idle and slower throughout shows no growth"
                .to_owned(),
        );
    }
    if report.unit == Unit::Samples {
        notes.push("the files do not tell their rate; the same is assumed for all".to_owned());
    }
    notes
}

/// Functions to show: those that changed.
fn shown(report: &Report) -> Vec<&FunctionChange> {
    report.functions.iter().filter(|row| row.state != FunctionState::Steady).collect()
}

/// CPU time without its unit.
fn number(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Samples => format!("{value:.1}"),
        Unit::Bytes => format!("{value:.0}"),
        _ => digits(value),
    }
}

/// CPU time with its unit.
fn amount(value: f64, unit: Unit) -> String {
    format!("{} {}", number(value, unit), unit.symbol())
}

/// ` (+1.1% to +9.0%)`, or empty without an interval.
fn within(interval: Option<Interval>) -> String {
    interval.map_or_else(String::new, |Interval { low, high }| {
        if low.is_infinite() { String::new() } else { format!(" ({} to {})", percent(low), upper(high)) }
    })
}

fn upper(high: f64) -> String {
    if high.is_infinite() { "more".to_owned() } else { percent(high) }
}

/// A probability with its significant digits.
fn chance(p: f64) -> String {
    match p {
        0.0..0.0001 => "<0.0001".to_owned(),
        0.0001..0.001 => format!("{p:.4}"),
        0.001..0.0995 => format!("{p:.3}"),
        _ => format!("{p:.2}"),
    }
}

fn optional_chance(p: Option<f64>) -> String {
    p.map_or_else(|| "-".to_owned(), chance)
}

/// Functions without a name and with an apparent gain, if base and new are different builds of their module.
fn nameless(report: &Report, place: &CallPath) -> Option<String> {
    let functions = place.functions.iter().map(|function| {
        let Nameless { name, base, new } = function;
        format!("{name} {} -> {}", number(*base, report.unit), amount(*new, report.unit))
    });
    let functions: Vec<String> = functions.collect();
    (!functions.is_empty()).then(|| {
        format!(
            "of the new build, by the order of functions and their time, most likely {}",
            functions.join(", ")
        )
    })
}

/// How much of the growth is at a path.
fn part_text(place: &CallPath) -> String {
    format!("{:.0}% of it at {}", 100.0 * place.part, path_text(place))
}

/// The innermost part of a path, readable in one line.
fn path_text(place: &CallPath) -> String {
    const SHOWN: usize = 6;
    let skipped = place.path.len().saturating_sub(SHOWN);
    let inner = place.path.get(skipped..).unwrap_or_default().join(" > ");
    let front = if skipped > 0 { "... > " } else { "" };
    format!("{front}{inner}")
}

// ---- The verdict for the terminal and the logs of CI.

/// The verdict with at most `top` functions.
#[must_use]
pub fn text(report: &Report, top: usize) -> String {
    let mut out = format!("{}\n", headline(report));
    let _ = writeln!(out, "  total    {}", total(report));
    let _ = writeln!(out, "  runs     {}", basis(report));
    let tested = functions(report.functions.len());
    let _ = writeln!(
        out,
        "  tested   {tested}; {} below {:.2}% of {} left out",
        report.functions_too_small,
        100.0 * report.options.tested_from(report.runs),
        report.unit.quantity()
    );
    let _ = writeln!(out, "  unseen   {}", unseen(report));
    for note in notes(report) {
        let _ = writeln!(out, "  note     {note}");
    }
    if let Some(place) = &report.total_place {
        let _ = writeln!(
            out,
            "  where    {:.0}% of the growth is below {}",
            100.0 * place.part,
            path_text(place)
        );
        if let Some(text) = nameless(report, place) {
            let _ = writeln!(out, "           {text}");
        }
    }
    let mut rows = shown(report);
    if rows.is_empty() {
        rows = largest(report);
        if !rows.is_empty() {
            out.push_str(if direction(&report.total.interval).is_some() {
                "\nNo function changed beyond noise otherwise than the whole program. The largest differences:\n"
            } else {
                "\nNo function changed beyond noise. The largest differences:\n"
            });
        }
    } else {
        out.push('\n');
    }
    table(&mut out, report, &rows, top);
    if rows.len() > top {
        let _ = writeln!(out, "{}; --top N shows N", more(rows.len() - top));
    }
    out
}

/// The rows of the table, `top` at most, and their sum where functions have moved.
fn table(out: &mut String, report: &Report, rows: &[&FunctionChange], top: usize) {
    if !rows.is_empty() {
        let _ = writeln!(
            out,
            "{:<7} {:>10} {:>10} {:>8}  {:<18} {:>16} {:>8} {:>8} {:>8}  function (self in {})",
            "",
            "base",
            "new",
            "change",
            "95% interval",
            "share",
            "gained",
            "p",
            "q",
            report.unit.symbol()
        );
    }
    for row in rows.iter().take(top) {
        let _ = writeln!(out, "{}", line(report, row));
        if let Some(place) =
            row.place.as_ref().filter(|_| matches!(row.state, FunctionState::Slower | FunctionState::Moved))
        {
            let _ = writeln!(out, "{:8}{}", "", part_text(place));
            if let Some(text) = nameless(report, place) {
                let _ = writeln!(out, "{:8}{text}", "");
            }
        }
    }
    if report.moved_why.is_some() {
        let sum: f64 = rows.iter().map(|row| row.gained).sum();
        let _ = writeln!(
            out,
            "{:<7} {:>10} {:>10} {:>8}  {:<18} {:>16} {:>8}",
            "sum",
            "",
            "",
            "",
            "",
            "",
            percent(sum)
        );
    }
}

/// The functions with the largest differences, if none is significant.
fn largest(report: &Report) -> Vec<&FunctionChange> {
    const SHOWN: usize = 5;
    let mut rows: Vec<&FunctionChange> = report.functions.iter().collect();
    rows.sort_by(|a, b| b.gained.abs().total_cmp(&a.gained.abs()).then(a.name.cmp(&b.name)));
    rows.truncate(SHOWN);
    rows
}

/// Whether a relative change is a growth or a decrease; `None` if its interval includes zero, or there is none.
fn direction(interval: &Option<Interval>) -> Option<Ordering> {
    let interval = interval.as_ref()?;
    [(interval.low > 0.0, Ordering::Greater), (interval.high < 0.0, Ordering::Less)]
        .into_iter()
        .find_map(|(excludes_zero, direction)| excludes_zero.then_some(direction))
}

/// The state of a function; none for one that changed as the whole program did.
fn word(report: &Report, row: &FunctionChange) -> &'static str {
    let (own, total) = (direction(&row.cpu.interval), direction(&report.total.interval));
    if row.state == FunctionState::Steady && own.is_some() && own == total {
        return "";
    }
    row.state.word_of(report.unit)
}

fn line(report: &Report, row: &FunctionChange) -> String {
    let shares = format!("{:.1}% -> {:.1}%", 100.0 * row.share_base, 100.0 * row.share_new);
    format!(
        "{:<7} {:>10} {:>10} {:>8}  {:<18} {shares:>16} {:>8} {:>8} {:>8}  {}",
        word(report, row),
        number(row.cpu.base, report.unit),
        number(row.cpu.new, report.unit),
        change(row),
        interval(row),
        percent(row.gained),
        optional_chance(row.p),
        optional_chance(row.q),
        row.name
    )
}

// ---- The verdict as Markdown, for a comment on a change.

/// The verdict with at most `top` functions.
#[must_use]
pub fn markdown(report: &Report, top: usize) -> String {
    let sign = match report.verdict {
        Verdict::Pass => "✅",
        Verdict::Regression => "❌",
    };
    let mut out = format!("### {sign} {}\n\n", cell(&headline(report)));
    let _ = writeln!(out, "- total: {}", total(report));
    let _ = writeln!(out, "- runs: {}", basis(report));
    let _ = writeln!(out, "- unseen: {}", cell(&unseen(report)));
    for note in notes(report) {
        let _ = writeln!(out, "- note: {}", cell(&note));
    }
    if let Some(place) = &report.total_place {
        let _ =
            writeln!(out, "- {:.0}% of the growth is below {}", 100.0 * place.part, code(&path_text(place)));
    }
    let rows = shown(report);
    if rows.is_empty() {
        return out;
    }
    out.push_str("\n| | function | self base | self new | change | 95% interval | share | p | q | where |\n");
    out.push_str("|---|---|--:|--:|--:|---|---|--:|--:|---|\n");
    for row in rows.iter().take(top) {
        let place = row.place.as_ref().map_or_else(String::new, |place| {
            let nameless = nameless(report, place).map(|text| format!("; {}", cell(&text)));
            format!("{}{}", code(&path_text(place)), nameless.unwrap_or_default())
        });
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} | {:.1}% → {:.1}% | {} | {} | {place} |",
            row.state.word_of(report.unit),
            code(&row.name),
            amount(row.cpu.base, report.unit),
            amount(row.cpu.new, report.unit),
            change(row),
            interval(row),
            100.0 * row.share_base,
            100.0 * row.share_new,
            cell(&optional_chance(row.p)),
            cell(&optional_chance(row.q)),
        );
    }
    if rows.len() > top {
        let _ = writeln!(out, "\n{}.", more(rows.len() - top));
    }
    out
}

#[cfg(test)]
mod text_tests {
    use super::*;

    #[test]
    fn the_direction_of_a_change_is_known_if_its_interval_excludes_zero() {
        let direction = |low, high| direction(&Some(Interval { low, high }));
        assert_eq!(direction(0.01, 0.2), Some(Ordering::Greater));
        assert_eq!(direction(-0.2, -0.01), Some(Ordering::Less));
        assert_eq!((direction(-0.1, 0.2), super::direction(&None)), (None, None));
    }
}
