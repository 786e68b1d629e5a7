//! The verdict as Markdown, for a comment on a change.

use std::fmt::Write as _;

use super::{
    amount, basis, change, headline, interval, nameless, notes, optional_chance, path_text, shown, total,
    unseen,
};
use crate::diff::report::markdown::{cell, code};
use crate::gate::verdict::{Report, Verdict};

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
        let more = rows.len() - top;
        let _ = match more {
            1 => writeln!(out, "\n1 more function changed."),
            _ => writeln!(out, "\n{more} more functions changed."),
        };
    }
    out
}
