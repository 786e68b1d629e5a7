//! The one error type: a kind that decides the exit code, and one line of text.
//!
//! Text is lower case, names the subject (path, pid, option value), what was
//! expected and the next step; `cli` prints it after `stackprof: `. Not finding
//! something (a symbol, a file) is a value with a reason, never an `Error`.

use std::fmt;

/// The consequence of an error for the caller; exit codes are in the CLI contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The target does not exist, or attaching was refused.
    Attach,
    /// A file or profile could not be read or has an unexpected format.
    Input,
    /// An output could not be written.
    Output,
    /// The command line is invalid.
    Usage,
    /// Nothing was sampled, or there is nothing to compare.
    NoData,
    /// The operating system refused an operation that normally works.
    System,
}

/// An error with one line of text, which is complete by itself; the source error is kept for programs.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    text: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// `Result` with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error of `kind`; `text` is one lower-case line without a prefix.
    pub fn new(kind: ErrorKind, text: impl Into<String>) -> Error {
        Error { kind, text: text.into(), source: None }
    }

    /// This error with its cause, returned by [`source`](std::error::Error::source).
    #[must_use]
    pub fn caused_by(self, source: impl std::error::Error + Send + Sync + 'static) -> Error {
        Error { source: Some(Box::new(source)), ..self }
    }

    /// The kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// This error with `context: ` in front of its text.
    #[must_use]
    pub fn context(self, context: impl fmt::Display) -> Error {
        Error { text: format!("{context}: {}", self.text), ..self }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&**self.source.as_ref()?)
    }
}

/// The error for a file or directory that cannot be read; `name` is what the user called it.
#[must_use]
pub fn cannot_read(name: impl fmt::Display, error: std::io::Error) -> Error {
    let why = io_text(&error);
    let next = match error.kind() {
        std::io::ErrorKind::NotFound => "; check the name",
        std::io::ErrorKind::PermissionDenied => "; read it as a user who may, or name another",
        // `ELOOP`, which has no stable `ErrorKind`.
        _ if why.contains("symbolic link") => "; a link leads to itself: name the file",
        _ => "",
    };
    Error::new(ErrorKind::Input, format!("cannot read `{name}`: {why}{next}")).caused_by(error)
}

/// The text of an I/O error without Rust's "(os error N)" tail.
#[must_use]
pub fn io_text(error: &std::io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut chars = text.chars();
    match chars.next() {
        Some(first) => first.to_lowercase().chain(chars).collect(),
        None => error.kind().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn io_errors_have_no_os_error_tail() {
        assert_eq!(io_text(&std::io::Error::from_raw_os_error(2)), "no such file or directory");
    }

    #[test]
    fn context_precedes_the_text() {
        let error = Error::new(ErrorKind::Input, "expected \"stack count\"").context("a.folded:3");
        assert_eq!(error.to_string(), "a.folded:3: expected \"stack count\"");
        assert_eq!(error.kind(), ErrorKind::Input);
    }

    #[test]
    fn an_error_keeps_its_source() {
        use std::error::Error as _;
        let error = Error::new(ErrorKind::Output, "cannot write").caused_by(std::io::Error::other("full"));
        let error = error.context("a.svg");
        assert_eq!(error.to_string(), "a.svg: cannot write");
        assert_eq!(error.source().map(ToString::to_string).as_deref(), Some("full"));
        assert!(Error::new(ErrorKind::Input, "x").source().is_none());
    }
}
