//! PE: the bytes of a Windows program or library, run by Wine → sections, image base, build id.
//!
//! Input: PE32 or PE32+, from disk; every byte is hostile. Output: a small owned summary. Stated addresses are
//! relative to the preferred image base, as in `objdump` and DWARF. Not for: symbols (see `symbol::table`), unwind
//! tables (see [`unwind`]), imports, relocations.
//!
//! Format: "PE Format" (Microsoft, <https://learn.microsoft.com/windows/win32/debug/pe-format>).

pub mod unwind;

#[cfg(any(test, feature = "testing"))]
pub mod build;
#[cfg(test)]
mod tests;

use std::ops::Range;

use object::LittleEndian;
use object::pe::{
    IMAGE_DIRECTORY_ENTRY_DEBUG, IMAGE_DIRECTORY_ENTRY_EXCEPTION, IMAGE_FILE_MACHINE_AMD64,
    IMAGE_NT_OPTIONAL_HDR32_MAGIC, IMAGE_NT_OPTIONAL_HDR64_MAGIC, IMAGE_REL_BASED_ABSOLUTE,
    IMAGE_SCN_MEM_EXECUTE, ImageDosHeader, ImageNtHeaders32, ImageNtHeaders64,
};
use object::read::pe::{DataDirectories, ImageNtHeaders, ImageOptionalHeader, optional_header_magic};

use super::FormatError;
use crate::addr::Svma;

/// Limit on sections of a file: the limit of Windows.
pub const SECTIONS_MAX: usize = 96;
/// Limit on export names searched for one.
const EXPORTS_MAX: usize = 1 << 16;
/// Limit on the length of a function name that is looked up.
const NAME_BYTES_MAX: usize = 64;
/// Size of a debug directory entry, and limit on entries read.
const DEBUG_ENTRY_BYTES: usize = 28;
const DEBUG_ENTRIES_MAX: usize = 64;
/// Offsets of the optional header from the signature, and of the image base in it. PE32's image base has half the
/// size, after an unused field of four bytes.
const OPTIONAL_HEADER_AT: usize = 24;
const IMAGE_BASE_AT: usize = 24;
/// `IMAGE_DEBUG_TYPE_CODEVIEW`.
const CODEVIEW: u32 = 2;

/// A part of the file, and its addresses in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// Addresses relative to the image base, as far as the file has bytes for them.
    pub rva: Range<u32>,
    /// File offset of its bytes.
    pub file_start: u32,
    /// Whether it contains code.
    pub executable: bool,
}

impl Section {
    fn file(&self) -> Range<u64> {
        let start = u64::from(self.file_start);
        start..start + u64::from(self.rva.end - self.rva.start)
    }
}

/// The parts of a PE file that are needed to locate addresses in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pe {
    /// `IMAGE_FILE_MACHINE_*`: 0x8664 for x86_64.
    pub machine: u16,
    /// Whether it is PE32+.
    pub is_64: bool,
    /// The preferred load address.
    pub image_base: Svma,
    /// Size of the image in memory.
    pub image_bytes: u32,
    /// Size of the headers, which are identical in memory and in the file.
    pub header_bytes: u32,
    /// In file order, at most [`SECTIONS_MAX`], without those that have no bytes in the file.
    pub sections: Vec<Section>,
    /// The function table (`.pdata`), relative to the image base; empty if there is none.
    pub functions: Range<u32>,
    /// The GUID that links the file to its PDB, if it has one.
    pub build_id: Option<Vec<u8>>,
}

impl Pe {
    /// Reads the headers.
    ///
    /// # Errors
    /// No PE file, or invalid headers.
    pub fn parse(bytes: &[u8]) -> Result<Pe, FormatError> {
        match bytes {
            [] => return Err(FormatError::Empty),
            [b'M', b'Z', ..] => {}
            _ => return Err(FormatError::NotPe),
        }
        Ok(match optional_header_magic(bytes)? {
            IMAGE_NT_OPTIONAL_HDR32_MAGIC => summary::<ImageNtHeaders32>(bytes)?,
            IMAGE_NT_OPTIONAL_HDR64_MAGIC => summary::<ImageNtHeaders64>(bytes)?,
            _ => return Err(FormatError::PeVariant),
        })
    }

    /// Whether its code is for x86_64.
    #[must_use]
    pub fn is_x86_64(&self) -> bool {
        self.is_64 && self.machine == IMAGE_FILE_MACHINE_AMD64.0
    }

    /// The stated address of a byte of the file; `None` if it is not loaded.
    #[must_use]
    pub fn svma_of(&self, file_offset: u64) -> Option<Svma> {
        let inside = |section: &&Section| section.file().contains(&file_offset);
        // Mapped in whole pages: bytes after the end of a section are zero in memory.
        let rva = match self.sections.iter().find(inside) {
            Some(section) => u64::from(section.rva.start) + (file_offset - section.file().start),
            None => Some(file_offset).filter(|offset| *offset < u64::from(self.header_bytes))?,
        };
        self.image_base.checked_add(rva)
    }

    /// The file offset of a stated address; `None` if the file has no byte for it.
    #[must_use]
    pub fn file_offset_of(&self, svma: Svma) -> Option<u64> {
        self.file_offset_at(self.rva(svma)?).map(|offset| offset as u64)
    }

    /// The address relative to the image base.
    #[must_use]
    pub fn rva(&self, svma: Svma) -> Option<u32> {
        u32::try_from(svma.0.checked_sub(self.image_base.0)?).ok()
    }

    /// The stated addresses of a range relative to the image base.
    fn svmas(&self, rvas: &Range<u32>) -> Range<Svma> {
        self.image_base + u64::from(rvas.start)..self.image_base + u64::from(rvas.end)
    }

    fn file_offset_at(&self, rva: u32) -> Option<usize> {
        let section = self.sections.iter().find(|section| section.rva.contains(&rva))?;
        usize::try_from(section.file().start + u64::from(rva - section.rva.start)).ok()
    }

    /// The bytes from an address to the end of its section; `None` outside the sections and the file.
    #[must_use]
    pub fn bytes_at<'a>(&self, bytes: &'a [u8], rva: u32) -> Option<&'a [u8]> {
        let section = self.sections.iter().find(|section| section.rva.contains(&rva))?;
        let start = self.file_offset_at(rva)?;
        let end = start.checked_add((section.rva.end - rva) as usize)?.min(bytes.len());
        bytes.get(start..end).filter(|bytes| !bytes.is_empty())
    }

    /// Addresses that the loader relocates if it does not load the file at its preferred address, relative to the
    /// image base, sorted.
    #[must_use]
    pub fn relocations(&self, bytes: &[u8]) -> Vec<u32> {
        let mut found = match self.is_64 {
            true => relocations::<ImageNtHeaders64>(bytes),
            false => relocations::<ImageNtHeaders32>(bytes),
        }
        .unwrap_or_default();
        found.sort_unstable();
        found
    }

    /// The address of an exported function, relative to the image base.
    #[must_use]
    pub fn export(&self, bytes: &[u8], name: &str) -> Option<u32> {
        let exports = exports(bytes)?;
        let wanted = |pointer: u32| {
            let found = self.bytes_at(bytes, pointer)?;
            let found = &found[..found.len().min(NAME_BYTES_MAX)];
            Some(found.strip_prefix(name.as_bytes())?.first() == Some(&0))
        };
        let (_, index) =
            exports.name_iter().take(EXPORTS_MAX).find(|(pointer, _)| wanted(*pointer) == Some(true))?;
        exports.address_by_index(index).ok().filter(|address| !exports.is_forward(*address))
    }
}

/// Whether a file is the one that was mapped, by its headers, which the mapping starts with. In memory, the loader
/// overwrites the image base in them.
#[must_use]
pub fn same_file(memory_head: &[u8], file: &[u8]) -> bool {
    let Ok(pe) = Pe::parse(file) else { return false };
    let length = memory_head.len().min(pe.header_bytes as usize);
    let (Some(memory), Some(file)) = (memory_head.get(..length), file.get(..length)) else { return false };
    let optional =
        ImageDosHeader::parse(file).map_or(0, |dos| dos.nt_headers_offset() as usize + OPTIONAL_HEADER_AT);
    let base = optional + IMAGE_BASE_AT..optional + IMAGE_BASE_AT + 8;
    let differs = |(at, (a, b)): (usize, (&u8, &u8))| a != b && !base.contains(&at);
    base.end <= length && !memory.iter().zip(file).enumerate().any(differs)
}

/// The export table, of PE32 or PE32+.
pub fn exports(bytes: &[u8]) -> Option<object::read::pe::ExportTable<'_>> {
    fn of<H: ImageNtHeaders>(bytes: &[u8]) -> Option<object::read::pe::ExportTable<'_>> {
        let (headers, directories, offset) = headers::<H>(bytes).ok()?;
        let sections = headers.sections(bytes, offset).ok()?;
        directories.export_table(bytes, &sections).ok()?
    }
    match optional_header_magic(bytes).ok()? {
        IMAGE_NT_OPTIONAL_HDR32_MAGIC => of::<ImageNtHeaders32>(bytes),
        IMAGE_NT_OPTIONAL_HDR64_MAGIC => of::<ImageNtHeaders64>(bytes),
        _ => None,
    }
}

fn relocations<H: ImageNtHeaders>(bytes: &[u8]) -> Option<Vec<u32>> {
    let (headers, directories, offset) = headers::<H>(bytes).ok()?;
    let sections = headers.sections(bytes, offset).ok()?;
    let mut blocks = directories.relocation_blocks(bytes, &sections).ok()??;
    let mut found = Vec::new();
    // Each takes two bytes of the file.
    while let Ok(Some(block)) = blocks.next() {
        let changes = block.filter(|relocation| relocation.typ != IMAGE_REL_BASED_ABSOLUTE);
        found.extend(changes.map(|relocation| relocation.virtual_address));
    }
    Some(found)
}

/// The headers, and the offset of the section headers.
pub fn headers<H: ImageNtHeaders>(bytes: &[u8]) -> object::read::Result<(&H, DataDirectories<'_>, u64)> {
    let mut offset = ImageDosHeader::parse(bytes)?.nt_headers_offset().into();
    let (headers, directories) = H::parse(bytes, &mut offset)?;
    Ok((headers, directories, offset))
}

fn summary<H: ImageNtHeaders>(bytes: &[u8]) -> object::read::Result<Pe> {
    let (headers, directories, offset) = headers::<H>(bytes)?;
    let table = headers.sections(bytes, offset)?;
    let mut sections = Vec::new();
    for section in table.iter().take(SECTIONS_MAX) {
        let start = section.virtual_address.get(LittleEndian);
        let (file_start, length) = section.pe_file_range();
        let executable = section.characteristics.get(LittleEndian).contains(IMAGE_SCN_MEM_EXECUTE);
        if let Some(end) = start.checked_add(length).filter(|_| length > 0) {
            sections.push(Section { rva: start..end, file_start, executable });
        }
    }
    let directory = |index: usize| {
        let (start, size) = directories.get(index)?.address_range();
        Some(start..start.checked_add(size)?)
    };
    let optional = headers.optional_header();
    let mut pe = Pe {
        machine: headers.file_header().machine.get(LittleEndian).0,
        is_64: headers.is_type_64(),
        image_base: Svma(optional.image_base()),
        image_bytes: optional.size_of_image(),
        header_bytes: optional.size_of_headers(),
        sections,
        functions: directory(IMAGE_DIRECTORY_ENTRY_EXCEPTION).unwrap_or_default(),
        build_id: None,
    };
    let debug = directory(IMAGE_DIRECTORY_ENTRY_DEBUG);
    pe.build_id = debug.and_then(|debug| guid(bytes, pe.bytes_at(bytes, debug.start)?, &debug));
    Ok(pe)
}

/// The GUID of the debug directory's `RSDS` record, and its age.
fn guid(file: &[u8], directory: &[u8], range: &Range<u32>) -> Option<Vec<u8>> {
    let length = (range.end - range.start) as usize;
    let (entries, _) = directory[..length.min(directory.len())].as_chunks::<DEBUG_ENTRY_BYTES>();
    entries.iter().take(DEBUG_ENTRIES_MAX).find_map(|entry| {
        let word = |at: usize| Some(u32::from_le_bytes(*entry.get(at..)?.first_chunk()?));
        if word(12)? != CODEVIEW {
            return None;
        }
        let record = file.get(usize::try_from(word(24)?).ok()?..)?;
        Some(record.strip_prefix(b"RSDS")?.first_chunk::<20>()?.to_vec())
    })
}
