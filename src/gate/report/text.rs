//! The verdict for the terminal and the logs of CI.

use std::fmt::Write as _;

use super::{
    basis, functions, headline, nameless, notes, number, optional_chance, path_text, shown, total, within,
};
use crate::diff::report::percent;
use crate::gate::verdict::{FunctionChange, Report, State};

/// The verdict with at most `top` functions.
#[must_use]
pub fn text(report: &Report, top: usize) -> String {
    let mut out = format!("{}\n", headline(report));
    let _ = writeln!(out, "  total    {}", total(report));
    let _ = writeln!(out, "  runs     {}", basis(report));
    let tested = functions(report.functions.len());
    let _ = writeln!(
        out,
        "  tested   {tested}; {} below {:.2}% of all runs left out",
        report.functions_too_small,
        100.0 * report.options.tested_from(report.runs)
    );
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
    let rows = shown(report);
    if !rows.is_empty() {
        let _ = writeln!(
            out,
            "\n{:<7} {:>10} {:>10} {:>8}  {:<18} {:>16} {:>8} {:>8}  function (self in {})",
            "",
            "base",
            "new",
            "change",
            "95% interval",
            "share",
            "p",
            "q",
            report.unit.symbol()
        );
    }
    for row in rows.iter().take(top) {
        let _ = writeln!(out, "{}", line(report, row));
        if let Some(place) = row.place.as_ref().filter(|_| matches!(row.state, State::Slower | State::Moved))
        {
            let _ = writeln!(out, "{:8}{:.0}% of it at {}", "", 100.0 * place.part, path_text(place));
            if let Some(text) = nameless(report, place) {
                let _ = writeln!(out, "{:8}{text}", "");
            }
        }
    }
    if rows.len() > top {
        let _ = writeln!(out, "{} more functions changed; --top N shows N", rows.len() - top);
    }
    out
}

fn line(report: &Report, row: &FunctionChange) -> String {
    let shares = format!("{:.1}% -> {:.1}%", 100.0 * row.share_base, 100.0 * row.share_new);
    let interval = within(row.cpu.interval);
    format!(
        "{:<7} {:>10} {:>10} {:>8}  {:<18} {shares:>16} {:>8} {:>8}  {}",
        row.state.word(),
        number(row.cpu.base, report.unit),
        number(row.cpu.new, report.unit),
        percent(row.cpu.relative),
        interval.trim().trim_matches(['(', ')']),
        optional_chance(row.p),
        optional_chance(row.q),
        row.name
    )
}
