//! The sections of a file by name, in any format, uncompressed, and the relocations of debug sections of a Mach-O
//! object file (`Relocations`).
//!
//! Input: the bytes of an ELF, Mach-O or PE file, hostile. Output: names, locations and contents. Uncompressed
//! sections are not copied. Not for: symbols (see `table`), DWARF.

use std::borrow::Cow;

use object::LittleEndian;
use object::elf;
use object::macho::{
    ARM64_RELOC_SUBTRACTOR, ARM64_RELOC_UNSIGNED, CPU_TYPE_ARM64, CPU_TYPE_X86_64, MH_OBJECT, MachHeader64,
    Relocation, SECTION_TYPE, X86_64_RELOC_SUBTRACTOR, X86_64_RELOC_UNSIGNED,
};
use object::pe::{IMAGE_SCN_MEM_EXECUTE, ImageNtHeaders32, ImageNtHeaders64};
use object::read::ReadRef;
use object::read::macho::{MachHeader as _, Section as _, Segment as _};
use object::read::pe::{ImageNtHeaders, ImageOptionalHeader};

use super::error::SectionError;
use super::table::macho::Nlists;
use crate::binary::FormatError;
use crate::binary::elf::SECTION_NAME_BYTES_MAX;
use crate::binary::elf::file::{File, SectionHeader};
use crate::binary::object::Format;
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
    Ok(match Format::of(data)? {
        Format::MachO => of_macho(data)?,
        Format::Pe => match Pe::parse(data)?.is_64 {
            true => of_pe::<ImageNtHeaders64>(data)?,
            false => of_pe::<ImageNtHeaders32>(data)?,
        },
        Format::Elf => of_elf(File::parse(data)?)?,
    })
}

fn of_elf<'a>(file: File<'a>) -> Result<Vec<Section<'a>>, FormatError> {
    let section = |section: SectionHeader<'a>| {
        let mut found = Section {
            name: String::from_utf8_lossy(section.name),
            bytes: file.content(&section.file),
            svma: section.svma,
            size: section.size,
            kind: section.kind,
            link: section.link,
            info: section.info,
            flags: section.flags,
            is_code: section.is_code(),
            packing: None,
            relocations: Relocations::default(),
        };
        if found.flags & elf::SHF_COMPRESSED.0 != 0 {
            if let Some((packing, size, body)) = unpack::of_elf_section(found.bytes, file.is_64()) {
                found.packing = Some((packing, size));
                found.bytes = body;
            }
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
        found
    };
    Ok(file.sections()?.iter().take(SECTIONS_MAX).map(section).collect())
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

// ---- Applies relocations of symbols in debug sections of a Mach-O object file.
//
// A relocation without a symbol needs no change: the content is already the address in the object file. Format:
// `<mach-o/reloc.h>`, `<mach-o/arm64/reloc.h>`, `<mach-o/x86_64/reloc.h>` of xnu.

/// The relocations of a section in its file.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Relocations {
    pub offset: u64,
    pub count: u32,
}

/// Adds the addresses of symbols to the content of a section. Malformed relocations are ignored.
pub(super) fn apply<'a>(data: &'a [u8], at: Relocations, content: Cow<'a, [u8]>) -> Cow<'a, [u8]> {
    if at.count == 0 {
        return content;
    }
    match relocated(data, at, &content) {
        Some(relocated) => Cow::Owned(relocated),
        None => content,
    }
}

/// The new content; `None` if nothing changes.
fn relocated(data: &[u8], at: Relocations, content: &[u8]) -> Option<Vec<u8>> {
    let header = MachHeader64::<LittleEndian>::parse(data, 0).ok()?;
    let cpu = header.cputype(LittleEndian);
    let (unsigned, subtractor) = match cpu {
        CPU_TYPE_ARM64 => (ARM64_RELOC_UNSIGNED, ARM64_RELOC_SUBTRACTOR),
        CPU_TYPE_X86_64 => (X86_64_RELOC_UNSIGNED, X86_64_RELOC_SUBTRACTOR),
        _ => return None,
    };
    let relocations: &[Relocation<LittleEndian>] =
        data.read_slice_at(at.offset, at.count as usize).ok().filter(|_| {
            // In linked files, relocations are for the loader.
            header.filetype(LittleEndian) == MH_OBJECT
        })?;
    let is_external = |entry: &&Relocation<LittleEndian>| {
        !entry.r_scattered(LittleEndian, cpu) && entry.info(LittleEndian).r_extern
    };
    relocations.iter().find(is_external)?;
    let symbols = Nlists::read(data)?.symbols;
    let mut out = content.to_vec();
    for entry in relocations.iter().filter(is_external) {
        let info = entry.info(LittleEndian);
        let symbol = symbols.get(info.r_symbolnum as usize).map(|symbol| symbol.n_value.get(LittleEndian));
        let Some(symbol) = symbol.filter(|_| !info.r_pcrel) else { continue };
        // The two parts of a difference are adjacent relocations at one address: each is added.
        let change = match info.r_type {
            kind if kind == unsigned => symbol,
            kind if kind == subtractor => symbol.wrapping_neg(),
            _ => continue,
        };
        let Some(field) = out.get_mut(info.r_address as usize..) else { continue };
        match info.r_length {
            2 => {
                if let Some(field) = field.first_chunk_mut::<4>() {
                    *field = u32::from_le_bytes(*field).wrapping_add(change as u32).to_le_bytes();
                }
            }
            3 => {
                if let Some(field) = field.first_chunk_mut::<8>() {
                    *field = u64::from_le_bytes(*field).wrapping_add(change).to_le_bytes();
                }
            }
            _ => {}
        }
    }
    Some(out)
}

#[cfg(test)]
mod relocate_tests {
    use super::*;

    const HEADER_BYTES: usize = 32;
    const SYMTAB_BYTES: usize = 24;
    const RELOCATIONS_AT: usize = HEADER_BYTES + SYMTAB_BYTES;

    /// An object file with two symbols, at 0x1000 and 0x20, and relocations.
    fn object(cpu: u32, kind: u32, relocations: &[[u32; 2]]) -> (Vec<u8>, Relocations) {
        let symbols_at = (RELOCATIONS_AT + relocations.len() * 8) as u32;
        // Magic, processor, subtype, file type, commands, their size, flags, reserved.
        let header = [0xfeed_facf, cpu, 0, kind, 1, SYMTAB_BYTES as u32, 0, 0];
        // LC_SYMTAB: entries, their count, strings, their size.
        let symtab = [2, SYMTAB_BYTES as u32, symbols_at, 2, symbols_at, 0];
        let symbols = [[0u32, 0x0100_000e_u32.swap_bytes(), 0x1000, 0], [0, 0, 0x20, 0]];
        let words = header.into_iter().chain(symtab).chain(relocations.iter().flatten().copied());
        let bytes = words.chain(symbols.into_iter().flatten()).flat_map(u32::to_le_bytes).collect();
        (bytes, Relocations { offset: RELOCATIONS_AT as u64, count: relocations.len() as u32 })
    }

    const ARM64: u32 = 0x0100_000c;
    const X86_64: u32 = 0x0100_0007;
    const EIGHT_BYTES: u32 = 3 << 25;
    const FOUR_BYTES: u32 = 2 << 25;
    const EXTERNAL: u32 = 1 << 27;

    fn check(cpu: u32, kind: u32, relocations: &[[u32; 2]], expected: [u64; 2]) {
        let (file, at) = object(cpu, kind, relocations);
        let content = [5u64, 7].map(u64::to_le_bytes).concat();
        let found = apply(&file, at, Cow::Borrowed(&content));
        assert_eq!(*found, *expected.map(u64::to_le_bytes).concat(), "{relocations:x?}");
        let changes = expected != [5, 7];
        assert_eq!(matches!(found, Cow::Owned(_)), changes, "copied only if it must be");
    }

    #[test]
    fn addresses_of_symbols_are_added() {
        let (object, dsym) = (1, 10);
        for (cpu, subtractor) in [(ARM64, 1 << 28), (X86_64, 5 << 28)] {
            check(cpu, object, &[[0, EXTERNAL | EIGHT_BYTES]], [0x1005, 7]);
            check(cpu, object, &[[8, EXTERNAL | EIGHT_BYTES | 1]], [5, 0x27]);
            check(cpu, object, &[[8, EXTERNAL | FOUR_BYTES | 1]], [5, 0x27]);
            // A difference: the first symbol minus the second.
            let minus = [0, EXTERNAL | EIGHT_BYTES | subtractor | 1];
            check(cpu, object, &[minus, [0, EXTERNAL | EIGHT_BYTES]], [0xfe5, 7]);
            // Of a section: the address is already there.
            check(cpu, object, &[[0, EIGHT_BYTES | 1]], [5, 7]);
            // In linked files they are ignored.
            check(cpu, dsym, &[[0, EXTERNAL | EIGHT_BYTES]], [5, 7]);
        }
        check(0x0100_0012, object, &[[0, EXTERNAL | EIGHT_BYTES]], [5, 7]);
    }

    #[test]
    fn malformed_relocations_are_ignored() {
        let good = [0, EXTERNAL | EIGHT_BYTES];
        // No such symbol; beyond the end; across it; another kind; pc-relative.
        for bad in [
            [8, EXTERNAL | EIGHT_BYTES | 2],
            [16, EXTERNAL | EIGHT_BYTES],
            [9, EXTERNAL | EIGHT_BYTES],
            [0x7fff_fff0, EXTERNAL | EIGHT_BYTES],
            [8, EXTERNAL | EIGHT_BYTES | 9 << 28],
            [8, EXTERNAL | EIGHT_BYTES | 1 << 24],
            [8, EXTERNAL],
        ] {
            check(ARM64, 1, &[good, bad], [0x1005, 7]);
        }
        let (file, at) = object(ARM64, 1, &[good]);
        let content = [0; 8];
        for at in [Relocations { count: 1 << 30, ..at }, Relocations { offset: u64::MAX, ..at }] {
            assert_eq!(*apply(&file, at, Cow::Borrowed(&content)), content);
        }
        assert_eq!(*apply(&file[..40], at, Cow::Borrowed(&content)), content);
    }
}
