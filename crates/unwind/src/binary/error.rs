//! Errors of reading and parsing files.
//!
//! [`OpenError`] is about a file or a target's memory, [`FormatError`] about the headers of an image,
//! [`UnpackError`] about compressed sections. Each is one line of text, without the path, which the caller knows,
//! and keeps its cause. Not for: addresses without a name, which are values with a reason.

use std::error::Error;
use std::sync::Arc;
use std::{fmt, io};

use ruzstd::decoding::errors::FrameDecoderError;

/// The reason why the bytes of a file or image are unavailable. Cheap to clone: an image keeps it for the whole
/// recording.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The system refused to open, map or read.
    System(Arc<io::Error>),
    /// The system refused a file other than the one that the caller named.
    At {
        /// The file.
        path: &'static str,
        /// The cause.
        error: Arc<io::Error>,
    },
    /// A pipe, a device, a directory.
    NotRegular,
    /// The file exceeds the limit.
    TooLong {
        /// The limit in bytes.
        bytes_max: u64,
    },
    /// The vDSO is longer than any real one.
    LongVdso {
        /// Its length.
        bytes: u64,
    },
    /// The mapping has no file.
    Anonymous,
    /// The file has been deleted, and nothing else refers to it.
    Deleted,
    /// Another file has its name.
    Replaced,
    /// The mapping no longer exists.
    Unloaded,
    /// A file in /tmp owned by neither the process's user nor root.
    UntrustedOwner {
        /// Its owner's user id.
        owner: u32,
    },
    /// A symbolic link to a file of symbol names, owned by neither the process's user nor root.
    UntrustedLink {
        /// Its owner's user id.
        owner: u32,
    },
    /// Opening or reading it timed out: a file system in user space, or on a network.
    TimedOut,
    /// A file for a process id that was written before the process started.
    PredatesProcess,
    /// The file of an image was found but is unusable.
    Format(FormatError),
    /// A file of another machine was looked for on this one.
    NotOnThisMachine(Arc<OpenError>),
    /// A reason specific to one source of samples, as one line.
    Source(&'static str),
}

impl OpenError {
    /// Whether the file does not exist, which may be no error.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, OpenError::System(error) if error.kind() == io::ErrorKind::NotFound)
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::System(error) => f.write_str(&io_text(error)),
            OpenError::At { path, error } => write!(f, "{path}: {}", io_text(error)),
            OpenError::NotRegular => f.write_str("not a regular file"),
            OpenError::TooLong { bytes_max } => write!(f, "longer than {} MiB", bytes_max >> 20),
            OpenError::LongVdso { bytes } => write!(f, "{bytes} bytes of vdso"),
            OpenError::Anonymous => f.write_str("no file"),
            OpenError::Deleted => f.write_str("deleted from disk since it was loaded"),
            OpenError::Replaced => f.write_str("replaced on disk since it was loaded"),
            OpenError::Unloaded => f.write_str("unloaded in the meantime"),
            OpenError::UntrustedOwner { owner } => {
                write!(f, "it belongs to user {owner}, not to the process's; not trusted")
            }
            OpenError::UntrustedLink { owner } => {
                write!(f, "a link that leads to it belongs to user {owner}; not followed")
            }
            OpenError::TimedOut => f.write_str("its file system does not answer"),
            OpenError::PredatesProcess => {
                f.write_str("it was last changed before the process began; not trusted")
            }
            OpenError::Format(error) => error.fmt(f),
            OpenError::NotOnThisMachine(error) => write!(f, "not here: {error}"),
            OpenError::Source(why) => f.write_str(why),
        }
    }
}

impl Error for OpenError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            OpenError::System(error) | OpenError::At { error, .. } => Some(&**error),
            OpenError::Format(error) => Some(error),
            OpenError::NotOnThisMachine(error) => Some(&**error),
            _ => None,
        }
    }
}

impl From<io::Error> for OpenError {
    fn from(error: io::Error) -> OpenError {
        OpenError::System(Arc::new(error))
    }
}

impl From<FormatError> for OpenError {
    fn from(error: FormatError) -> OpenError {
        OpenError::Format(error)
    }
}

/// The reason why a file is no supported image, or not the wanted one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FormatError {
    /// No bytes.
    Empty,
    /// An unknown format.
    Unknown,
    /// No ELF file.
    NotElf,
    /// Big-endian, or of a class that is neither 32 nor 64 bits.
    ElfVariant,
    /// No Mach-O file.
    NotMachO,
    /// Big-endian.
    MachOVariant,
    /// No PE file.
    NotPe,
    /// Neither PE32 nor PE32+.
    PeVariant,
    /// A fat file instead of one image.
    Fat,
    /// There is no `__TEXT`, so the address of the image is unknown.
    NoText,
    /// Headers or load commands that contradict the file.
    Damaged(object::read::Error),
    /// A fat file without an image for the processor.
    NoProcessor,
    /// No image of the file has the UUID of the one that was loaded.
    OtherUuid,
    /// A symbol table beyond [`SYMBOLS_MAX`](super::elf::SYMBOLS_MAX).
    TooManySymbols,
}

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FormatError::Empty => "an empty file",
            FormatError::Unknown => "neither ELF, Mach-O nor PE",
            FormatError::NotElf => "not an ELF file",
            FormatError::ElfVariant => "an ELF file of another byte order or class",
            FormatError::NotMachO => "not a Mach-O file",
            FormatError::MachOVariant => "a Mach-O file of another byte order",
            FormatError::NotPe => "not a PE file",
            FormatError::PeVariant => "a PE file of another kind than PE32 and PE32+",
            FormatError::Fat => "a file for several processors: one must be chosen first",
            FormatError::NoText => "a Mach-O file without __TEXT segment",
            FormatError::Damaged(error) => return error.fmt(f),
            FormatError::NoProcessor => "no code for this processor",
            FormatError::OtherUuid => "replaced on disk since it was loaded",
            FormatError::TooManySymbols => "more symbols than are read",
        })
    }
}

impl Error for FormatError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            FormatError::Damaged(error) => Some(error),
            _ => None,
        }
    }
}

impl From<object::read::Error> for FormatError {
    fn from(error: object::read::Error) -> FormatError {
        FormatError::Damaged(error)
    }
}

/// The reason why compressed bytes cannot be unpacked.
#[derive(Debug)]
#[non_exhaustive]
pub enum UnpackError {
    /// The stated size exceeds [`RATIO_MAX`](super::unpack::RATIO_MAX).
    StatedTooLarge,
    /// The content exceeds [`RATIO_MAX`](super::unpack::RATIO_MAX).
    TooLarge,
    /// A zlib stream that the decoder refuses.
    Zlib,
    /// A zstd frame with a header that the decoder refuses.
    Zstd(FrameDecoderError),
    /// A truncated or inconsistent stream.
    Stream(io::Error),
    /// An unknown, newer compression method.
    UnknownPacking,
    /// The unpacked size differs from the stated one.
    OtherSize,
}

impl fmt::Display for UnpackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UnpackError::StatedTooLarge => f.write_str("its unpacked size is out of proportion"),
            UnpackError::TooLarge => f.write_str("it unpacks to more than is in proportion"),
            UnpackError::Zlib => f.write_str("the zlib data is damaged"),
            UnpackError::Zstd(error) => write!(f, "the zstd data is damaged: {error}"),
            UnpackError::Stream(error) => write!(f, "the packed data is damaged: {error}"),
            UnpackError::UnknownPacking => f.write_str("packed in a way that is not known"),
            UnpackError::OtherSize => f.write_str("unpacks to another size than stated"),
        }
    }
}

impl Error for UnpackError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            UnpackError::Zstd(error) => Some(error),
            UnpackError::Stream(error) => Some(error),
            _ => None,
        }
    }
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
    fn an_error_keeps_its_source() {
        let gone = OpenError::from(io::Error::from_raw_os_error(2));
        assert!(gone.is_not_found());
        let chain = OpenError::NotOnThisMachine(Arc::new(gone));
        assert_eq!(chain.to_string(), "not here: no such file or directory");
        let system = chain.source().and_then(Error::source).and_then(<dyn Error>::downcast_ref::<io::Error>);
        assert_eq!(system.and_then(io::Error::raw_os_error), Some(2));
        assert!(!OpenError::from(io::Error::from_raw_os_error(13)).is_not_found());

        let unfit = OpenError::from(FormatError::OtherUuid);
        assert_eq!(unfit.to_string(), OpenError::Replaced.to_string());
        assert!(unfit.source().is_some_and(|source| source.is::<FormatError>()));
        let cut = super::super::unpack::xz(b"\xfd7zXZ\0").expect_err("cut short");
        assert!(cut.source().is_some_and(|source| source.is::<io::Error>()), "{cut:?}");
    }
}
