//! Errors of a file without its name: a line for people, and the cause.

use std::error::Error;
use std::fmt;

use crate::profile::full::Full;

/// An error and its position in a file, as a line for people without the name of the file.
#[derive(Debug)]
pub struct Malformed {
    text: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl Malformed {
    /// A line about another error, which is kept as its source.
    pub(super) fn caused_by(text: String, source: impl Error + Send + Sync + 'static) -> Malformed {
        Malformed { text, source: Some(Box::new(source)) }
    }

    /// Prefixes the error with its position: `thread 3: ...`.
    pub(super) fn at(self, place: impl fmt::Display) -> Malformed {
        Malformed { text: format!("{place}: {}", self.text), ..self }
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Error for Malformed {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&**self.source.as_ref()?)
    }
}

impl From<String> for Malformed {
    fn from(text: String) -> Malformed {
        Malformed { text, source: None }
    }
}

impl From<&str> for Malformed {
    fn from(text: &str) -> Malformed {
        Malformed::from(text.to_owned())
    }
}

impl From<Full> for Malformed {
    fn from(full: Full) -> Malformed {
        Malformed::caused_by(full.to_string(), full)
    }
}
