//! The comparison as a table for the terminal. Names come last, so that long ones do not break the columns.

use std::fmt::Write as _;

use super::{change, changed, headline, measure_words, notes, relative, value};
use crate::diff::compare::{Comparison, Row};
use crate::escape::escape_line;

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
    let measure = comparison.measure;
    let (own_base, own_new) = comparison.values(row.own);
    let (total_base, total_new) = comparison.values(row.total);
    format!(
        "{:>10} {:>10} {:>10} {:>8} {:1} {:>10} {:>10} {:>10}  {}",
        value(own_base, measure),
        value(own_new, measure),
        change(own_new - own_base, measure),
        relative(own_base, own_new),
        if comparison.is_counting_noise(row.own) { "~" } else { "" },
        value(total_base, measure),
        value(total_new, measure),
        change(total_new - total_base, measure),
        row.name
    )
}
