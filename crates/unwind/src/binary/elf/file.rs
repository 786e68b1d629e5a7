//! An ELF file of either class: its headers, sections and symbols in plain types.
//!
//! `File` has a valid file header; `ProgramHeader`, `Sections` and `Symbols` read the tables when they are requested,
//! so damage in one table leaves the others readable. Nothing is copied or allocated: tables of hostile files may be
//! as long as the file.
//!
//! Not for: addresses of a loaded file (see `Elf`), relocations.

use std::ops::Range;

use object::elf::{self, FileHeader32, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader as _, SectionHeader as _, SectionTable, Sym, SymbolTable};
use object::{LittleEndian, SymbolIndex};

use super::{SECTION_NAME_BYTES_MAX, SYMBOLS_MAX};
use crate::binary::FormatError;
use crate::binary::object::name_at;

type Elf32 = FileHeader32<LittleEndian>;
type Elf64 = FileHeader64<LittleEndian>;

/// A little-endian ELF file.
#[derive(Clone, Copy)]
pub struct File<'a> {
    /// Its bytes.
    pub bytes: &'a [u8],
    header: Header<'a>,
}

#[derive(Clone, Copy)]
enum Header<'a> {
    Elf32(&'a Elf32),
    Elf64(&'a Elf64),
}

/// Evaluates an expression with the header of the file's class.
macro_rules! with_header {
    ($file:expr, $header:ident => $value:expr) => {
        match $file.header {
            Header::Elf32($header) => $value,
            Header::Elf64($header) => $value,
        }
    };
}

impl<'a> File<'a> {
    /// Reads the file header.
    ///
    /// # Errors
    /// No ELF file, one of another byte order, or an invalid header.
    pub fn parse(bytes: &'a [u8]) -> Result<File<'a>, FormatError> {
        // gABI, "ELF Identification".
        let header = match bytes {
            [0x7f, b'E', b'L', b'F', 1, 1, ..] => Header::Elf32(Elf32::parse(bytes)?),
            [0x7f, b'E', b'L', b'F', 2, 1, ..] => Header::Elf64(Elf64::parse(bytes)?),
            [0x7f, b'E', b'L', b'F', ..] => return Err(FormatError::ElfVariant),
            [] => return Err(FormatError::Empty),
            _ => return Err(FormatError::NotElf),
        };
        Ok(File { bytes, header })
    }

    /// Whether the file has class `ELFCLASS64`.
    #[must_use]
    pub fn is_64(&self) -> bool {
        matches!(self.header, Header::Elf64(_))
    }

    /// `e_machine`.
    #[must_use]
    pub fn machine(&self) -> u16 {
        with_header!(self, header => header.e_machine(LittleEndian).0)
    }

    /// `e_entry`.
    #[must_use]
    #[allow(clippy::useless_conversion, reason = "the header of one class has 64-bit addresses")]
    pub fn entry(&self) -> u64 {
        with_header!(self, header => header.e_entry(LittleEndian).into())
    }

    /// The place of the program headers.
    #[allow(clippy::useless_conversion, reason = "the header of one class has 64-bit addresses")]
    pub(super) fn program_headers_at(&self) -> Range<u64> {
        with_header!(self, header => {
            let headers = header.program_headers(LittleEndian, self.bytes).unwrap_or_default();
            range(header.e_phoff(LittleEndian).into(), size_of_val(headers) as u64)
        })
    }

    /// The program headers.
    ///
    /// # Errors
    /// They have another size, or are outside the file.
    pub fn program_headers(
        &self,
    ) -> Result<impl Iterator<Item = ProgramHeader> + Clone + use<'a>, FormatError> {
        let (narrow, wide) = match self.header {
            Header::Elf32(header) => (header.program_headers(LittleEndian, self.bytes)?, Default::default()),
            Header::Elf64(header) => (Default::default(), header.program_headers(LittleEndian, self.bytes)?),
        };
        Ok(narrow.iter().map(program_header::<Elf32>).chain(wide.iter().map(program_header::<Elf64>)))
    }

    /// The sections.
    ///
    /// # Errors
    /// Their headers have another size, or are outside the file.
    pub fn sections(&self) -> Result<Sections<'a>, FormatError> {
        let (narrow, wide) = match self.header {
            Header::Elf32(header) => (header.section_headers(LittleEndian, self.bytes)?, Default::default()),
            Header::Elf64(header) => (Default::default(), header.section_headers(LittleEndian, self.bytes)?),
        };
        let mut sections = Sections { file: *self, narrow, wide, names: &[] };
        let names = with_header!(self, header => header.shstrndx(LittleEndian, self.bytes));
        let names = names.ok().and_then(|index| sections.get(index as usize));
        sections.names = names.map_or(&[], |names| self.content(&names.file));
        Ok(sections)
    }

    /// A part of the file; `None` if it is empty, or not entirely in the file.
    #[must_use]
    pub fn part(&self, part: &Range<u64>) -> Option<Range<usize>> {
        let range = usize::try_from(part.start).ok()?..usize::try_from(part.end).ok()?;
        self.bytes.get(range.clone()).filter(|bytes| !bytes.is_empty()).map(|_| range)
    }

    /// The bytes of a part of the file; empty if it is not entirely in the file.
    #[must_use]
    pub fn content(&self, part: &Range<u64>) -> &'a [u8] {
        self.part(part).map_or(&[], |part| &self.bytes[part])
    }
}

fn range(start: u64, bytes: u64) -> Range<u64> {
    start..start.saturating_add(bytes)
}

/// A program header.
#[derive(Clone, Debug)]
pub struct ProgramHeader {
    /// `p_type`.
    pub kind: u32,
    /// `p_flags`.
    pub flags: u32,
    /// Bytes of the file.
    pub file: Range<u64>,
    /// Stated address.
    pub svma: u64,
    /// `p_align`.
    pub align: u64,
}

fn program_header<H: FileHeader<Endian = LittleEndian>>(header: &H::ProgramHeader) -> ProgramHeader {
    let (offset, bytes) = header.file_range(LittleEndian);
    ProgramHeader {
        kind: header.p_type(LittleEndian).0,
        flags: header.p_flags(LittleEndian).0,
        file: range(offset, bytes),
        svma: header.p_vaddr(LittleEndian).into(),
        align: header.p_align(LittleEndian).into(),
    }
}

/// The sections of a file.
#[derive(Clone, Copy)]
pub struct Sections<'a> {
    file: File<'a>,
    narrow: &'a [elf::SectionHeader32<LittleEndian>],
    wide: &'a [elf::SectionHeader64<LittleEndian>],
    names: &'a [u8],
}

/// A section header.
#[derive(Clone, Debug)]
pub struct SectionHeader<'a> {
    /// Its name, truncated at [`SECTION_NAME_BYTES_MAX`]; empty if it has none.
    pub name: &'a [u8],
    /// `sh_type`.
    pub kind: u32,
    /// `sh_flags`.
    pub flags: u64,
    /// Stated address.
    pub svma: u64,
    /// Size in memory.
    pub size: u64,
    /// Bytes of the file; empty if it has none there.
    pub file: Range<u64>,
    /// `sh_link`.
    pub link: u32,
    /// `sh_info`.
    pub info: u32,
    /// `sh_addralign`.
    pub align: u64,
}

impl SectionHeader<'_> {
    /// Whether it contains instructions.
    #[must_use]
    pub fn is_code(&self) -> bool {
        self.flags & elf::SHF_EXECINSTR.0 != 0
    }
}

fn section_header<'a, H: FileHeader<Endian = LittleEndian>>(
    header: &H::SectionHeader,
    names: &'a [u8],
) -> SectionHeader<'a> {
    let (offset, bytes) = header.file_range(LittleEndian).unwrap_or_default();
    SectionHeader {
        name: name_at(names, header.sh_name(LittleEndian), SECTION_NAME_BYTES_MAX),
        kind: header.sh_type(LittleEndian).0,
        flags: header.sh_flags(LittleEndian).0,
        svma: header.sh_addr(LittleEndian).into(),
        size: header.sh_size(LittleEndian).into(),
        file: range(offset, bytes),
        link: header.sh_link(LittleEndian),
        info: header.sh_info(LittleEndian),
        align: header.sh_addralign(LittleEndian).into(),
    }
}

impl<'a> Sections<'a> {
    /// The sections in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = SectionHeader<'a>> + Clone + use<'a> {
        let names = self.names;
        let narrow = self.narrow.iter().map(move |header| section_header::<Elf32>(header, names));
        narrow.chain(self.wide.iter().map(move |header| section_header::<Elf64>(header, names)))
    }

    /// The first section with a name.
    #[must_use]
    pub fn by_name(&self, name: &str) -> Option<SectionHeader<'a>> {
        self.iter().find(|section| section.name == name.as_bytes())
    }

    fn get(&self, index: usize) -> Option<SectionHeader<'a>> {
        let narrow = self.narrow.get(index).map(|header| section_header::<Elf32>(header, self.names));
        narrow.or_else(|| Some(section_header::<Elf64>(self.wide.get(index)?, self.names)))
    }

    /// The symbol table of a kind, or an empty one.
    ///
    /// # Errors
    /// It is invalid, or has more than [`SYMBOLS_MAX`] symbols.
    pub fn symbols(&self, kind: elf::SectionType) -> Result<Symbols<'a>, FormatError> {
        let (narrow, narrow_names) = symbol_table::<Elf32>(self.narrow, self.file.bytes, kind)?;
        let (wide, wide_names) = symbol_table::<Elf64>(self.wide, self.file.bytes, kind)?;
        if narrow.len().max(wide.len()) > SYMBOLS_MAX {
            return Err(FormatError::TooManySymbols);
        }
        Ok(Symbols { names_at: if self.file.is_64() { wide_names } else { narrow_names }, narrow, wide })
    }
}

/// A table, and the place of its names.
fn symbol_table<'a, H: FileHeader<Endian = LittleEndian>>(
    headers: &'a [H::SectionHeader],
    bytes: &'a [u8],
    kind: elf::SectionType,
) -> object::read::Result<(SymbolTable<'a, H>, object::read::Result<Range<u64>>)> {
    let sections = SectionTable::<H>::new(headers, Default::default());
    let table = sections.symbols(LittleEndian, bytes, kind)?;
    let names = sections.section(table.string_section()).map(|names| {
        let (offset, bytes) = names.file_range(LittleEndian).unwrap_or_default();
        range(offset, bytes)
    });
    Ok((table, names))
}

/// A symbol table.
#[derive(Clone)]
pub struct Symbols<'a> {
    narrow: SymbolTable<'a, Elf32>,
    wide: SymbolTable<'a, Elf64>,
    /// The place of the names in the file, which may not have so many bytes.
    pub names_at: object::read::Result<Range<u64>>,
}

/// A symbol.
#[derive(Clone, Copy, Debug)]
pub struct Symbol {
    /// Offset of its name.
    pub name: u32,
    /// `st_value`: mostly its address.
    pub value: u64,
    /// Its size, 0 if unknown.
    pub bytes: u64,
    /// `STT_FUNC` and others.
    pub kind: elf::SymbolType,
    /// `STB_GLOBAL` and others.
    pub binding: elf::SymbolBind,
    section: elf::SymbolSection,
}

impl Symbol {
    #[inline]
    fn of(symbol: &impl Sym<Endian = LittleEndian>) -> Symbol {
        Symbol {
            name: symbol.st_name(LittleEndian),
            value: symbol.st_value(LittleEndian).into(),
            bytes: symbol.st_size(LittleEndian).into(),
            kind: symbol.st_type(),
            binding: symbol.st_bind(),
            section: symbol.st_shndx(LittleEndian),
        }
    }

    /// Whether another file defines it.
    #[inline]
    #[must_use]
    pub fn is_undefined(&self) -> bool {
        self.section == elf::SHN_UNDEF
    }
}

impl<'a> Symbols<'a> {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.narrow.is_empty() && self.wide.is_empty()
    }

    /// The symbols in the order of the table.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = Symbol> + Clone + use<'a> {
        self.narrow.iter().map(Symbol::of).chain(self.wide.iter().map(Symbol::of))
    }

    /// The name of a symbol; empty if it has none.
    #[must_use]
    pub fn name(&self, symbol: &Symbol) -> &'a [u8] {
        let name = self.wide.strings().get(symbol.name);
        name.or_else(|()| self.narrow.strings().get(symbol.name)).unwrap_or_default()
    }

    /// The number of the section of the symbol with this index; `None` for those of no section, as absolute ones.
    #[inline]
    #[must_use]
    pub fn section(&self, index: usize, symbol: &Symbol) -> Option<usize> {
        if let Some(section) = symbol.section.index() {
            return Some(section.into());
        }
        let extended = || {
            let index = SymbolIndex(index);
            self.narrow.shndx(LittleEndian, index).or_else(|| self.wide.shndx(LittleEndian, index))
        };
        let section = (symbol.section == elf::SHN_XINDEX).then(extended).flatten()?;
        (section != 0).then_some(section as usize)
    }
}
