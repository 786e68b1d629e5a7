//! Why a file is refused, before the file has a name: a line for people, and what caused it.

use std::error::Error;
use std::fmt;

use crate::profile::full::Full;

/// What is wrong with a file and where, as a line for people without the name of the file.
#[derive(Debug)]
pub struct Malformed {
    text: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl Malformed {
    /// A line that tells of another error, which is kept.
    pub(super) fn caused_by(text: String, source: impl Error + Send + Sync + 'static) -> Malformed {
        Malformed { text, source: Some(Box::new(source)) }
    }

    /// This error with its place in front: `thread 3: ...`.
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
