//! The hottest functions of a profile as text: the `hottest` line of the summary, and the table of
//! `render --top`. Input: a [`FunctionTable`]. Output: text without control characters.

use super::text::{grouped, percent, shortened};
use crate::error::{Error, ErrorKind, Result};
use crate::profile::{FunctionRow, FunctionTable, SavedProfile};

/// Most functions in the line.
const LINE_FUNCTIONS_MAX: usize = 5;
/// Most characters of a name in the line.
const LINE_NAME_CHARS_MAX: usize = 60;

/// The functions of a profile; with `lines`, a function per line of source.
///
/// # Errors
/// One line: there are too many names.
pub fn read(saved: &SavedProfile, lines: bool) -> Result<FunctionTable> {
    FunctionTable::of(saved, lines)
        .map_err(|full| Error::new(ErrorKind::Output, full.to_string()).caused_by(full))
}

/// The functions with the most self counts, as many as fit into `width` characters, at least one:
/// `41.2% alpha_kernel · 9.1% memcpy (libc.so.6)`. `None` if nothing was counted.
///
/// The module is shown unless it is the program itself, recognized by a file named like one of
/// `processes`.
#[must_use]
pub fn hottest(table: &FunctionTable, processes: &[&str], width: usize) -> Option<String> {
    let mut line = String::new();
    let mut chars = 0;
    for row in table.rows().iter().take(LINE_FUNCTIONS_MAX).filter(|row| row.self_count > 0) {
        let name = shortened(table.text(row.name), LINE_NAME_CHARS_MAX);
        let mut part = format!("{} {name}", percent(row.self_count, table.total()));
        if let Some(module) = foreign_module(table, row, processes) {
            part += &format!(" ({module})");
        }
        let separator = if line.is_empty() { "" } else { " · " };
        let more = separator.chars().count() + part.chars().count();
        if !line.is_empty() && chars + more > width {
            break;
        }
        line = line + separator + &part;
        chars += more;
    }
    (!line.is_empty()).then_some(line)
}

/// The module of a function, unless it is the program itself or part of the name.
fn foreign_module<'t>(table: &'t FunctionTable, row: &FunctionRow, processes: &[&str]) -> Option<&'t str> {
    let name = table.text(row.name);
    let says_it = name.starts_with('[') || name.ends_with("_[k]");
    Some(table.text(row.module)).filter(|module| !says_it && is_foreign(module, processes))
}

/// Whether a module is a file other than the executables of these processes, judged by their names:
/// `python3` runs `python3.11`, and a process name has at most 15 characters on Linux (TASK_COMM_LEN).
#[must_use]
pub fn is_foreign(module: &str, processes: &[impl AsRef<str>]) -> bool {
    let is_own = || processes.iter().any(|process| module.starts_with(process.as_ref()));
    !module.is_empty() && !module.starts_with('[') && !is_own()
}

/// The functions with the most self counts as a table of at most `rows_max` rows; `unit` is the counted
/// unit.
#[must_use]
pub fn table(functions: &FunctionTable, unit: &str, rows_max: usize) -> String {
    let all = functions.total();
    let rows = functions.rows().iter().take(rows_max);
    let cells = |row: &FunctionRow| {
        [
            percent(row.self_count, all),
            grouped(row.self_count),
            percent(row.total_count, all),
            grouped(row.total_count),
        ]
    };
    let numbers: Vec<[String; 4]> = rows.clone().map(cells).collect();
    let heads = ["self %", "self", "total %", "total"];
    let widths: [usize; 4] = std::array::from_fn(|column| {
        let cells = numbers.iter().map(|row| row.get(column).map_or(0, String::len));
        cells.chain(heads.get(column).map(|head| head.len())).max().unwrap_or(0)
    });
    let line = |cells: &[&str; 4], name: &str, module: &str| {
        let mut line = String::new();
        for (cell, width) in cells.iter().zip(widths) {
            line += &format!("{cell:>width$}  ");
        }
        line += name;
        if !module.is_empty() {
            line += &format!("  ({module})");
        }
        line.push('\n');
        line
    };
    let mut text = line(&heads, "function  (module)", "");
    for (row, numbers) in rows.zip(&numbers) {
        let numbers: [&str; 4] = numbers.each_ref().map(String::as_str);
        text += &line(&numbers, functions.text(row.name), functions.text(row.module));
    }
    let left = functions.rows().len().saturating_sub(rows_max);
    let more = match left {
        0 => String::new(),
        1 => "; 1 more function".to_owned(),
        _ => format!("; {} more functions", grouped(left as u64)),
    };
    text += &format!("{} {unit} in all{more}\n", grouped(all));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::formats::folded_read;

    fn functions(folded: &str) -> FunctionTable {
        let saved = folded_read::read(folded.as_bytes(), "a").expect("reads");
        FunctionTable::of(&saved, false).expect("fits")
    }

    #[test]
    fn the_line_names_at_most_five_functions() {
        let six = functions("p;a 10\np;b 20\np;c 30\np;d 15\np;e 16\np;f 9\n");
        let line = hottest(&six, &["p"], 200);
        assert_eq!(line.as_deref(), Some("30.0% c · 20.0% b · 16.0% e · 15.0% d · 10.0% a"));
    }

    #[test]
    fn the_line_fits_its_width_and_names_at_least_one() {
        let three = functions("p;first 10\np;second 20\np;third 70\n");
        assert_eq!(hottest(&three, &[], 80).as_deref(), Some("70.0% third · 20.0% second · 10.0% first"));
        assert_eq!(hottest(&three, &[], 26).as_deref(), Some("70.0% third · 20.0% second"));
        assert_eq!(hottest(&three, &[], 25).as_deref(), Some("70.0% third"));
        assert_eq!(hottest(&three, &[], 1).as_deref(), Some("70.0% third"));
        assert_eq!(hottest(&functions(""), &[], 80), None);
    }

    #[test]
    fn time_of_callees_does_not_make_a_caller_hot() {
        assert_eq!(hottest(&functions("p;main;a 4\n"), &[], 80).as_deref(), Some("100% a"));
    }

    #[test]
    fn the_table_has_both_counts_and_reports_omitted_rows() {
        let text = table(&functions("p;main;a 1200\np;main;b 300\np;main 100\n"), "samples", 2);
        let expected = "\
self %   self  total %  total  function  (module)
 75.0%  1,200    75.0%  1,200  a
 18.8%    300    18.8%    300  b
1,600 samples in all; 1 more function
";
        assert_eq!(text, expected);
    }
}
