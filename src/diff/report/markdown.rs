//! The comparison as a Markdown table, for a comment on a change.

use std::fmt::Write as _;

use super::{change, changed, headline, measure_words, notes, relative, value};
use crate::diff::compare::Comparison;
use crate::escape::escape_line;

/// The comparison with its `top` largest changes.
#[must_use]
pub fn markdown(comparison: &Comparison, top: usize) -> String {
    let Comparison { measure, base, new, .. } = comparison;
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
        let (own_base, own_new) = comparison.values(row.own);
        let (total_base, total_new) = comparison.values(row.total);
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} | {} | {} |",
            code(&row.name),
            value(own_base, *measure),
            value(own_new, *measure),
            change(own_new - own_base, *measure),
            relative(own_base, own_new),
            value(total_base, *measure),
            value(total_new, *measure),
            change(total_new - total_base, *measure)
        );
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_not_become_markup() {
        assert_eq!(code("a|b<c>"), "`a\\|b<c>`");
        assert_eq!(code("``x`"), "``` ``x` ```");
        assert_eq!(cell("a_b|c*\n"), "a\\_b\\|c\\*\\\\u{a}");
    }
}
