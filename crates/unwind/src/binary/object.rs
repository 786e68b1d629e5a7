//! The file of an image in any format, for locating addresses.
//!
//! Input: the bytes of a file, hostile. Output: offset → stated address, the lowest
//! address, the build id, the entry point. Not for: symbols (see `symbol::table`).

use std::ffi::CStr;
use std::ops::Range;

use super::elf::Elf;
use super::macho::MachO;
use super::pe::Pe;
use crate::addr::Svma;
use crate::binary::{FormatError, ImageBytes};

/// The supported formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Linux and most others.
    Elf,
    /// macOS.
    MachO,
    /// Windows, run by Wine.
    Pe,
}

impl Format {
    /// The format of a file, by its first bytes.
    ///
    /// # Errors
    /// [`FormatError::Empty`], [`FormatError::Unknown`]. Unsupported variants of a format (32-bit Mach-O) pass
    /// here and are refused by its parser.
    pub fn of(bytes: &[u8]) -> Result<Format, FormatError> {
        match bytes {
            [] => Err(FormatError::Empty),
            [0x7f, b'E', b'L', b'F', ..] => Ok(Format::Elf),
            [0xca, 0xfe, 0xba, 0xbe | 0xbf, ..]
            | [0xce | 0xcf, 0xfa, 0xed, 0xfe, ..]
            | [0xfe, 0xed, 0xfa, 0xce | 0xcf, ..] => Ok(Format::MachO),
            [b'M', b'Z', ..] => Ok(Format::Pe),
            _ => Err(FormatError::Unknown),
        }
    }
}

/// The summary of an executable or library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    /// An ELF file.
    Elf(Elf),
    /// A Mach-O file for one processor.
    MachO(MachO),
    /// A PE file.
    Pe(Pe),
}

impl Object {
    /// Reads the headers.
    ///
    /// # Errors
    /// No supported format, or an invalid file.
    pub fn parse(bytes: &[u8]) -> Result<Object, FormatError> {
        match Format::of(bytes)? {
            Format::Elf => Elf::parse(bytes).map(Object::Elf),
            Format::MachO => MachO::parse(bytes).map(Object::MachO),
            Format::Pe => Pe::parse(bytes).map(Object::Pe),
        }
    }

    /// The stated address of a byte of the file that is mapped as code; `None` outside
    /// its segments.
    #[must_use]
    pub fn svma_of(&self, file_offset: u64) -> Option<Svma> {
        match self {
            Object::Elf(elf) => elf.svma_of(file_offset),
            Object::MachO(macho) => macho.svma_of(file_offset),
            Object::Pe(pe) => pe.svma_of(file_offset),
        }
    }

    /// The offset and the stated address of the first code byte in a part of the file that is mapped as code.
    #[must_use]
    pub fn code_in(&self, part: &Range<u64>) -> Option<(u64, Svma)> {
        match self {
            Object::Elf(elf) => elf.code_in(part),
            Object::MachO(macho) => Some((part.start, macho.svma_of(part.start)?)),
            Object::Pe(pe) => Some((part.start, pe.svma_of(part.start)?)),
        }
    }

    /// The file offset of a stated address; `None` outside the segments.
    #[must_use]
    pub fn file_offset_of(&self, svma: Svma) -> Option<u64> {
        match self {
            Object::Elf(elf) => elf.file_offset_of(svma),
            Object::MachO(macho) => macho.file_offset_of(svma),
            Object::Pe(pe) => pe.file_offset_of(svma),
        }
    }

    /// Base of the offset in `[module+0x1f40]`: the lowest stated address of an ELF file, the start of `__TEXT` of
    /// a Mach-O file (below it a program has its zero page), the image base of a PE file.
    #[must_use]
    pub fn base_svma(&self) -> Svma {
        match self {
            Object::Elf(elf) => elf.base_svma(),
            Object::MachO(macho) => macho.text.start,
            Object::Pe(pe) => pe.image_base,
        }
    }

    /// The identity of a build: GNU build id, UUID, or the GUID and age of a PDB.
    #[must_use]
    pub fn build_id(&self) -> Option<&[u8]> {
        match self {
            Object::Elf(elf) => elf.build_id.as_deref(),
            Object::MachO(macho) => macho.uuid.as_ref().map(<[u8; 16]>::as_slice),
            Object::Pe(pe) => pe.build_id.as_deref(),
        }
    }

    /// The entry point (ELF `e_entry`, Mach-O `LC_MAIN`), if the file has one. The entry of a PE file is a called
    /// function.
    #[must_use]
    pub fn entry(&self) -> Option<Svma> {
        match self {
            Object::Elf(elf) => (elf.entry.0 != 0).then_some(elf.entry),
            Object::MachO(macho) => macho.entry,
            Object::Pe(_) => None,
        }
    }

    /// The summary, if the file is Mach-O.
    #[must_use]
    pub fn macho(&self) -> Option<&MachO> {
        match self {
            Object::MachO(macho) => Some(macho),
            Object::Elf(_) | Object::Pe(_) => None,
        }
    }

    /// The summary, if the file is PE.
    #[must_use]
    pub fn pe(&self) -> Option<&Pe> {
        match self {
            Object::Pe(pe) => Some(pe),
            Object::Elf(_) | Object::MachO(_) => None,
        }
    }
}

/// A part of a file's bytes, as the bytes of a separate image. Clipped to the file.
pub fn part(bytes: &ImageBytes, range: &Range<u64>) -> ImageBytes {
    let length = bytes.bytes().len();
    let clip = |offset: u64| usize::try_from(offset).unwrap_or(length).min(length);
    let end = clip(range.end);
    ImageBytes::new(Part { bytes: bytes.clone(), range: clip(range.start).min(end)..end }).part_of(bytes)
}

/// The NUL-terminated name at an offset, truncated at `max` bytes; empty if there is none. Searching further for
/// the NUL would be unbounded work: many names may begin in one long one.
pub fn name_at(strings: &[u8], offset: u32, max: usize) -> &[u8] {
    let rest = strings.get(offset as usize..).unwrap_or_default();
    let rest = &rest[..rest.len().min(max)];
    // The standard library searches by words, which is faster than by bytes.
    CStr::from_bytes_until_nul(rest).map_or(rest, CStr::to_bytes)
}

struct Part {
    bytes: ImageBytes,
    range: Range<usize>,
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        self.bytes.bytes().get(self.range.clone()).unwrap_or_default()
    }
}
