//! The reasons why a file with debug information cannot be used.
//!
//! [`Why`](super::Why) is the reason of an address without a name, and `Style` how names are written.
//!
//! [`SectionError`] is about one compressed section, [`DebugFileError`] about a separate file with symbols or
//! DWARF, [`ObjectFileError`] about files referred to by a debug map. Each is one line of text without the path,
//! which the caller knows, and keeps its cause. Addresses without a name are values, no errors.

use std::error::Error;
use std::fmt;

use crate::binary::{FormatError, OpenError, UnpackError};

/// The reason why the content of a section is unavailable.
#[derive(Debug)]
pub enum SectionError {
    /// Its unpacked size, with earlier sections, exceeds the limit for one file.
    OutOfProportion {
        /// Its name.
        name: String,
        /// Its stated size.
        bytes: u64,
    },
    /// It cannot be uncompressed.
    Packed {
        /// Its name.
        name: String,
        /// The cause.
        error: UnpackError,
    },
}

impl fmt::Display for SectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SectionError::OutOfProportion { name, bytes } => {
                write!(f, "{name} would unpack to {bytes} bytes, which is out of proportion")
            }
            SectionError::Packed { name, error } => write!(f, "{name}: {error}"),
        }
    }
}

impl Error for SectionError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            SectionError::OutOfProportion { .. } => None,
            SectionError::Packed { error, .. } => Some(error),
        }
    }
}

/// The reason why a separate file with symbols or DWARF is not used.
#[derive(Debug)]
pub enum DebugFileError {
    /// It cannot be opened.
    Open(OpenError),
    /// Its headers are invalid.
    Format(FormatError),
    /// One of its sections cannot be read.
    Section(SectionError),
    /// It belongs to another build, by its build id.
    OtherBuildId {
        /// The file's build id.
        found: Vec<u8>,
        /// The image's build id.
        wanted: Vec<u8>,
    },
    /// It belongs to another build, by its UUID.
    OtherUuid {
        /// The file's UUID.
        found: [u8; 16],
        /// The image's UUID.
        wanted: [u8; 16],
    },
    /// Its checksum differs from the one in `.gnu_debuglink`.
    OtherChecksum {
        /// The file's checksum.
        found: u32,
        /// The checksum in `.gnu_debuglink`.
        wanted: u32,
    },
    /// It is not this debug file's supplementary file (DWARF 5, 7.3.6).
    OtherSupplement,
    /// It is not the split file of this unit.
    OtherSplit,
    /// Without a build id it cannot be verified.
    NoBuildId,
    /// Without a UUID it cannot be verified.
    NoUuid,
    /// It is no split file.
    NoSplitDwarf,
}

/// The first bytes of a build id, for display.
fn short_id(id: &[u8]) -> String {
    id.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

fn uuid_text(uuid: &[u8; 16]) -> String {
    uuid.iter().map(|byte| format!("{byte:02X}")).collect()
}

impl fmt::Display for DebugFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DebugFileError::Open(error) => error.fmt(f),
            DebugFileError::Format(error) => error.fmt(f),
            DebugFileError::Section(error) => error.fmt(f),
            DebugFileError::OtherBuildId { found, wanted } => write!(
                f,
                "it is of another build (build id {}.., wanted {}..); install the one that fits",
                short_id(found),
                short_id(wanted)
            ),
            DebugFileError::OtherUuid { found, wanted } => write!(
                f,
                "it is of another build (UUID {}, wanted {}); run dsymutil again",
                uuid_text(found),
                uuid_text(wanted)
            ),
            DebugFileError::OtherChecksum { found, wanted } => write!(
                f,
                "its checksum {found:08x} is not the {wanted:08x} of .gnu_debuglink; install the one that fits"
            ),
            DebugFileError::OtherSupplement => {
                f.write_str("it is of another build (its checksum differs); install the one that fits")
            }
            DebugFileError::OtherSplit => {
                f.write_str("is of another build (its id differs): rebuild, or remove it")
            }
            DebugFileError::NoBuildId => f.write_str("it has no build id to tell that it fits"),
            DebugFileError::NoUuid => f.write_str("it has no UUID to tell that it fits"),
            DebugFileError::NoSplitDwarf => f.write_str("has no split DWARF"),
        }
    }
}

impl Error for DebugFileError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            DebugFileError::Open(error) => Some(error),
            DebugFileError::Format(error) => Some(error),
            DebugFileError::Section(error) => Some(error),
            _ => None,
        }
    }
}

impl From<OpenError> for DebugFileError {
    fn from(error: OpenError) -> DebugFileError {
        DebugFileError::Open(error)
    }
}

impl From<FormatError> for DebugFileError {
    fn from(error: FormatError) -> DebugFileError {
        DebugFileError::Format(error)
    }
}

impl From<SectionError> for DebugFileError {
    fn from(error: SectionError) -> DebugFileError {
        DebugFileError::Section(error)
    }
}

/// The reason why an object file in a debug map is not used. Cheap to clone: one archive may have thousands of
/// them.
#[derive(Clone, Debug)]
pub(super) enum ObjectFileError {
    /// It, or the archive that contains it, cannot be opened.
    Open(OpenError),
    /// A fat file that is invalid, or has no code for the processor.
    Format(FormatError),
    /// It has changed since it was linked.
    Changed,
    /// It cannot be verified that it is the linked one.
    NoTime,
    /// The file before the parenthesis is no archive.
    NotAnArchive,
    /// An archive that refers to files.
    ThinArchive,
    /// The names of its members would exceed the size of the archive.
    NamesOverlap,
    /// The archive has no member with this name.
    NoMember,
    /// No Mach-O file of type `MH_OBJECT`.
    NotAnObject,
    /// It defines none of the functions that the map attributes to it.
    NoFunctions,
}

impl fmt::Display for ObjectFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ObjectFileError::Open(error) => return error.fmt(f),
            ObjectFileError::Format(error) => return error.fmt(f),
            ObjectFileError::Changed => "it was changed after the image was linked; link it again",
            ObjectFileError::NoTime => "when it was changed cannot be told",
            ObjectFileError::NotAnArchive => "not an archive",
            ObjectFileError::ThinArchive => "a thin archive, which Apple's linkers do not have",
            ObjectFileError::NamesOverlap => "the names of its members overlap",
            ObjectFileError::NoMember => "the archive has no such member",
            ObjectFileError::NotAnObject => "not a Mach-O object file",
            ObjectFileError::NoFunctions => "it has none of the functions that are said to be from it",
        })
    }
}

impl Error for ObjectFileError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            ObjectFileError::Open(error) => Some(error),
            ObjectFileError::Format(error) => Some(error),
            _ => None,
        }
    }
}

impl From<OpenError> for ObjectFileError {
    fn from(error: OpenError) -> ObjectFileError {
        ObjectFileError::Open(error)
    }
}

impl From<FormatError> for ObjectFileError {
    fn from(error: FormatError) -> ObjectFileError {
        ObjectFileError::Format(error)
    }
}

// ---- The reason why an address has no name, and the style of names.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_malformed_compressed_section_is_named_and_keeps_its_cause() {
        let error = SectionError::Packed { name: ".debug_info".to_owned(), error: UnpackError::Zlib };
        let error = DebugFileError::from(error);
        assert_eq!(error.to_string(), ".debug_info: the zlib data is damaged");
        let cause = error.source().and_then(Error::source);
        assert!(cause.is_some_and(|cause| cause.is::<UnpackError>()), "{error:?}");
    }
}
