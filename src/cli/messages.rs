//! The one place that writes to the terminal: results on standard output, all else on
//! standard error after one prefix.
//!
//! No character of a quoted text can control the terminal: only line ends are written as they are. A closed terminal
//! is no reason to fail, so nothing here returns an error.

use std::io::Write;

use crate::error::Error;
use crate::escape::{escape_line, escape_lines};

/// Where standard error is no terminal: a line of this length still reads well in a log.
const WIDTH_DEFAULT: usize = 100;

/// Characters in a line of the terminal behind standard error; a default width where it is none.
#[must_use]
pub fn width() -> usize {
    terminal_size::terminal_size_of(std::io::stderr()).map_or(WIDTH_DEFAULT, |(width, _)| width.0.into())
}

/// Prints an error as its one line.
pub fn error(error: &Error) {
    note(&error.to_string());
}

/// Prints a remark as one line.
pub fn note(text: &str) {
    to_stderr(&format!("stackprof: {}\n", escape_line(text)));
}

/// Prints text that brings its own prefix and line ends (the closing summary).
pub fn block(text: &str) {
    to_stderr(&escape_lines(text));
}

/// Prints a result (help, version, dumps) on standard output.
pub fn result(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(escape_lines(text).as_bytes()).and_then(|()| out.flush());
}

fn to_stderr(text: &str) {
    // One write, so that the lines of several processes do not mix.
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}
