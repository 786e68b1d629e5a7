//! The sections of a file by name, in any format, uncompressed.
//!
//! Input: the bytes of an ELF, Mach-O or PE file, hostile. Output: names, locations and contents. Uncompressed
//! sections are not copied. Not for: symbols (see `table`), DWARF.

use std::borrow::Cow;

use object::LittleEndian;
use object::elf::{self, CompressionHeader32, CompressionHeader64, FileHeader32, FileHeader64};
use object::macho::{MachHeader64, SECTION_TYPE};
use object::pe::{IMAGE_SCN_MEM_EXECUTE, ImageNtHeaders32, ImageNtHeaders64};
use object::read::elf::{CompressionHeader, FileHeader, SectionHeader};
use object::read::macho::{MachHeader, Section as _, Segment as _};
use object::read::pe::{ImageNtHeaders, ImageOptionalHeader};

use super::error::SectionError;
use super::relocate::Relocations;
use crate::binary::FormatError;
use crate::binary::elf::{Class, SECTION_NAME_BYTES_MAX, class, section_names};
use crate::binary::object::{Format, name_at};
use crate::binary::pe::{self, Pe};
use crate::binary::unpack::{self, Packing};

/// Limit on sections of a file; object files of `-ffunction-sections` have the most.
pub const SECTIONS_MAX: usize = 1 << 18;

/// A section of a file.
#[derive(Clone, Debug)]
pub struct Section<'a> {
    /// `.debug_info`, truncated if very long; the Mach-O name `__debug_info` is converted.
    pub name: Cow<'a, str>,
    /// Its bytes in the file, possibly compressed; empty if it has none.
    pub bytes: &'a [u8],
    /// Stated address; 0 for sections that are not loaded.
    pub svma: u64,
    /// Size in memory.
    pub size: u64,
    /// ELF `sh_type`, Mach-O section type; 0 in PE.
    pub kind: u32,
    /// ELF `sh_link`, Mach-O `reserved1`.
    pub link: u32,
    /// ELF `sh_info`, Mach-O `reserved2`.
    pub info: u32,
    /// ELF `sh_flags`, Mach-O `flags`, PE `Characteristics`.
    pub flags: u64,
    /// Whether it contains code; not set for Mach-O, where it is not used.
    pub is_code: bool,
    packing: Option<(Packing, u64)>,
    /// The relocations of an object file.
    pub(super) relocations: Relocations,
}

impl<'a> Section<'a> {
    /// Whether it contains a stated address.
    #[must_use]
    pub fn holds(&self, svma: u64) -> bool {
        svma.checked_sub(self.svma).is_some_and(|into| into < self.size)
    }

    /// An empty section.
    #[cfg(test)]
    pub(super) fn named(name: &'a str) -> Section<'a> {
        Section {
            name: Cow::Borrowed(name),
            bytes: &[],
            svma: 0,
            size: 0,
            kind: 0,
            link: 0,
            info: 0,
            flags: 0,
            is_code: false,
            packing: None,
            relocations: Relocations::default(),
        }
    }

    /// The uncompressed content. `left` is the remaining limit of bytes for this file.
    ///
    /// # Errors
    /// It cannot be uncompressed, or exceeds the limit.
    pub fn content(&self, left: &mut u64) -> Result<Cow<'a, [u8]>, SectionError> {
        let Some((packing, size)) = self.packing else { return Ok(Cow::Borrowed(self.bytes)) };
        if size > *left {
            return Err(SectionError::OutOfProportion { name: self.name.clone().into_owned(), bytes: size });
        }
        let out = unpack::exact(packing, self.bytes, size)
            .map_err(|error| SectionError::Packed { name: self.name.clone().into_owned(), error })?;
        *left -= size;
        Ok(Cow::Owned(out))
    }
}

/// The sections of a file, in its order.
///
/// # Errors
/// The file has another format, or invalid headers.
pub fn all(data: &[u8]) -> Result<Vec<Section<'_>>, FormatError> {
    let found = match Format::of(data)? {
        Format::MachO => of_macho(data),
        Format::Pe => match Pe::parse(data)?.is_64 {
            true => of_pe::<ImageNtHeaders64>(data),
            false => of_pe::<ImageNtHeaders32>(data),
        },
        Format::Elf => match class(data)? {
            Class::Elf32 => of_elf::<FileHeader32<LittleEndian>>(data, |section| {
                packed::<CompressionHeader32<LittleEndian>>(section)
            }),
            Class::Elf64 => of_elf::<FileHeader64<LittleEndian>>(data, |section| {
                packed::<CompressionHeader64<LittleEndian>>(section)
            }),
        },
    };
    Ok(found?)
}

fn of_elf<'a, H: FileHeader<Endian = LittleEndian>>(
    data: &'a [u8],
    packed: impl Fn(&mut Section<'a>),
) -> object::read::Result<Vec<Section<'a>>> {
    let header = H::parse(data)?;
    let endian = header.endian()?;
    let headers = header.section_headers(endian, data)?;
    let names = section_names(header, data, headers);
    let mut out = Vec::with_capacity(headers.len().min(SECTIONS_MAX));
    for section in headers.iter().take(SECTIONS_MAX) {
        let name = name_at(names, section.sh_name(endian), SECTION_NAME_BYTES_MAX);
        let mut found = Section {
            name: String::from_utf8_lossy(name),
            bytes: section.data(endian, data).unwrap_or_default(),
            svma: section.sh_addr(endian).into(),
            size: section.sh_size(endian).into(),
            kind: section.sh_type(endian).0,
            link: section.sh_link(endian),
            info: section.sh_info(endian),
            flags: section.sh_flags(endian).0,
            is_code: section.sh_flags(endian).0 & elf::SHF_EXECINSTR.0 != 0,
            packing: None,
            relocations: Relocations::default(),
        };
        if found.flags & elf::SHF_COMPRESSED.0 != 0 {
            packed(&mut found);
        } else if let Some(rest) = found.name.strip_prefix(".zdebug_") {
            // GNU's format before SHF_COMPRESSED: "ZLIB", the size.
            if let Some((head, body)) = found.bytes.split_first_chunk::<12>()
                && let [b'Z', b'L', b'I', b'B', size @ ..] = *head
            {
                found.name = Cow::Owned(format!(".debug_{rest}"));
                found.packing = Some((Packing::Zlib, u64::from_be_bytes(size)));
                found.bytes = body;
            }
        }
        out.push(found);
    }
    Ok(out)
}

/// Records the compression of a section with `SHF_COMPRESSED`.
fn packed<C: CompressionHeader<Endian = LittleEndian>>(section: &mut Section<'_>) {
    if let Some((packing, size, body)) = unpack::of_elf_section::<C>(section.bytes) {
        section.packing = Some((packing, size));
        section.bytes = body;
    }
}

fn of_macho(data: &[u8]) -> object::read::Result<Vec<Section<'_>>> {
    let header = MachHeader64::<LittleEndian>::parse(data, 0)?;
    let endian = header.endian()?;
    let mut commands = header.load_commands(endian, data, 0)?;
    let mut out = Vec::new();
    while let Some(command) = commands.next()? {
        let Some((segment, body)) = command.segment_64()? else { continue };
        for section in segment.sections(endian, body)?.iter().take(SECTIONS_MAX - out.len()) {
            let name = String::from_utf8_lossy(section.name());
            let name = match name.strip_prefix("__debug_") {
                Some(rest) => Cow::Owned(format!(".debug_{rest}")),
                None => name,
            };
            let flags = section.flags(endian).0;
            out.push(Section {
                name,
                bytes: section.data(endian, data, section.offset.get(endian).into()).unwrap_or_default(),
                svma: section.addr.get(endian),
                size: section.size.get(endian),
                kind: flags & SECTION_TYPE,
                link: section.reserved1.get(endian),
                info: section.reserved2.get(endian),
                flags: flags.into(),
                is_code: false,
                packing: None,
                relocations: Relocations {
                    offset: section.reloff.get(endian).into(),
                    count: section.nreloc.get(endian),
                },
            });
        }
    }
    Ok(out)
}

fn of_pe<H: ImageNtHeaders>(data: &[u8]) -> object::read::Result<Vec<Section<'_>>> {
    let (headers, _, offset) = pe::headers::<H>(data)?;
    let table = headers.sections(data, offset)?;
    // Names of more than eight letters are in the symbol string table, which a stripped file lacks.
    let symbols = headers.symbols(data).unwrap_or_default();
    let base = headers.optional_header().image_base();
    let section = |section: &'_ object::pe::ImageSectionHeader| {
        let flags = section.characteristics.get(LittleEndian);
        let name = section.name(symbols.strings()).unwrap_or_default();
        Section {
            name: Cow::Owned(
                String::from_utf8_lossy(&name[..name.len().min(SECTION_NAME_BYTES_MAX)]).into_owned(),
            ),
            bytes: section.pe_data(data).unwrap_or_default(),
            svma: base.wrapping_add(section.virtual_address.get(LittleEndian).into()),
            size: section.virtual_size.get(LittleEndian).into(),
            kind: 0,
            link: 0,
            info: 0,
            flags: flags.0.into(),
            is_code: flags.contains(IMAGE_SCN_MEM_EXECUTE),
            packing: None,
            relocations: Relocations::default(),
        }
    };
    Ok(table.iter().take(SECTIONS_MAX).map(section).collect())
}
