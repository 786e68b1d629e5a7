//! Why an address has no name, and how names are written.

use std::fmt;

use crate::binary::FormatError;

/// Most memory for the text of distinct names, in bytes. Real programs stay far below;
/// a file can be made whose names overlap, each 64 KiB long.
pub const MAX_TEXT_BYTES: usize = 128 * 1024 * 1024;

/// Why an address has no name. Not finding a symbol is a result, not an error.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// The address is in no image: JIT code, or memory that is not code.
    NoImage,
    /// The image's file could not be read, for this reason.
    NoFile(String),
    /// The image's file is not understood, for this reason.
    BadFile(String),
    /// The file has no function symbols: it was stripped.
    NoSymbols,
    /// The address lies between the symbols of its file.
    NotCovered,
    /// [`MAX_TEXT_BYTES`] was reached.
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

/// How names are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Style {
    /// As people know them.
    #[default]
    Readable,
    /// As people know them, without the arguments of templates and generics.
    Short,
    /// As files have them.
    Mangled,
}
