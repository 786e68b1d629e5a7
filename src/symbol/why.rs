//! The reason why an address has no name, and the style of names.

use std::fmt;

use crate::binary::FormatError;

/// Limit on the text of distinct names, in bytes. Real programs are far below; in a malicious file names may
/// overlap, each 64 KiB long.
pub const TEXT_BYTES_MAX: usize = 128 * 1024 * 1024;

/// The reason why an address has no name. Not finding a symbol is a result, not an error.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// The address is in no image: JIT code, or memory without code.
    NoImage,
    /// The image's file could not be read, for this reason.
    NoFile(String),
    /// The image's file is invalid, for this reason.
    BadFile(String),
    /// The file has no function symbols: it was stripped.
    NoSymbols,
    /// The address is between the symbols of its file.
    NotCovered,
    /// [`TEXT_BYTES_MAX`] was reached.
    TooMuchText,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::NoImage => f.write_str("in no image"),
            Why::NoFile(reason) | Why::BadFile(reason) => f.write_str(reason),
            Why::NoSymbols => f.write_str("the file has no function symbols"),
            Why::NotCovered => f.write_str("between symbols"),
            Why::TooMuchText => f.write_str("the names take too much memory"),
        }
    }
}

impl From<FormatError> for Why {
    fn from(error: FormatError) -> Why {
        Why::BadFile(error.to_string())
    }
}

/// The style of names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Style {
    /// Demangled.
    #[default]
    Readable,
    /// Demangled, without the arguments of templates and generics.
    Short,
    /// Mangled, as stored in files.
    Mangled,
}
