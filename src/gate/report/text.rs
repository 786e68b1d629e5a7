//! The verdict for the terminal and the logs of CI.

use std::cmp::Ordering;
use std::fmt::Write as _;

use super::{
    basis, change, functions, headline, interval, nameless, notes, number, optional_chance, path_text, shown,
    total, unseen,
};
use crate::diff::report::percent;
use crate::gate::interval::Interval;
use crate::gate::verdict::{FunctionChange, FunctionState, Report};

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
        let more = rows.len() - top;
        let _ = match more {
            1 => writeln!(out, "1 more function changed; --top N shows N"),
            _ => writeln!(out, "{more} more functions changed; --top N shows N"),
        };
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
            let _ = writeln!(out, "{:8}{:.0}% of it at {}", "", 100.0 * place.part, path_text(place));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_direction_of_a_change_is_known_if_its_interval_excludes_zero() {
        let direction = |low, high| direction(&Some(Interval { low, high }));
        assert_eq!(direction(0.01, 0.2), Some(Ordering::Greater));
        assert_eq!(direction(-0.2, -0.01), Some(Ordering::Less));
        assert_eq!((direction(-0.1, 0.2), super::direction(&None)), (None, None));
    }
}
