//! All writes to the terminal: results on standard output, everything else on standard error with a prefix.
//!
//! Quoted text cannot control the terminal: the only control characters written are newlines. A closed pipe or
//! terminal is not a failure; a result that is lost for another reason (a full disk) is.

use std::io::Write;

use super::file;
use crate::error::{Error, Result};
use crate::escape::{escape_line, escape_lines};

/// Line width if standard error is not a terminal: still readable in a log.
const WIDTH_DEFAULT: usize = 100;

/// Width of the terminal on standard error, characters; a default if it is none.
#[must_use]
pub fn width() -> usize {
    terminal_size::terminal_size_of(std::io::stderr()).map_or(WIDTH_DEFAULT, |(width, _)| width.0.into())
}

/// Prints an error as one line.
pub fn error(error: &Error) {
    note(&error.to_string());
}

/// Prints a note as one line.
pub fn note(text: &str) {
    to_stderr(&format!("stackprof: {}\n", escape_line(text)));
}

/// Prints text with its own prefix and newlines (the closing summary).
pub fn block(text: &str) {
    to_stderr(&escape_lines(text));
}

/// Prints a result (help, version, dumps) on standard output.
///
/// # Errors
/// One line: it cannot be written.
pub fn result(text: &str) -> Result<()> {
    file::check_stdout_is_open()?;
    let text = escape_lines(text);
    file::write_stream("standard output", &mut std::io::stdout().lock(), |out| out.write_all(text.as_bytes()))
}

fn to_stderr(text: &str) {
    // A single write, so that lines of several processes do not interleave.
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}
