//! The one place that writes to the terminal: results on standard output, all else on
//! standard error after one prefix.
//!
//! A terminal that has gone is no reason to fail, so nothing here returns an error.

use std::io::Write;

use super::text::visible;
use crate::error::Error;

/// Prints an error as its one line.
pub fn error(error: &Error) {
    note(&error.to_string());
}

/// Prints a remark as one line.
pub fn note(text: &str) {
    to_stderr(&format!("stackprof: {}\n", visible(text)));
}

/// Prints text that brings its own prefix and line ends (the closing summary).
pub fn block(text: &str) {
    to_stderr(text);
}

/// Prints a result (help, version, dumps) on standard output.
pub fn result(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Prints a result of several lines that quote names from profiles.
pub fn lines(text: &str) {
    let lines: String = text.lines().flat_map(|line| [visible(line), "\n".to_owned()]).collect();
    result(&lines);
}

fn to_stderr(text: &str) {
    // One write, so that the lines of several processes do not mix.
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}
