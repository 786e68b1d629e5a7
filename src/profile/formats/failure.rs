//! Errors of a file with its name.

use std::io;

use crate::error::{Error, ErrorKind, io_text};

/// Error for a file that could not be read further.
pub(super) fn broken(name: &str, error: io::Error) -> Error {
    let what = match error.kind() {
        io::ErrorKind::UnexpectedEof => "the packed data ends early; was it cut off?".to_owned(),
        io::ErrorKind::InvalidInput => format!("the packed data is damaged: {error}"),
        _ => io_text(&error),
    };
    refused(name, &what).caused_by(error)
}

pub(super) fn refused(name: &str, what: &str) -> Error {
    Error::new(ErrorKind::Input, format!("{name}: {what}"))
}
