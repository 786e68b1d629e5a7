//! Functions and variables of an ELF file, found by address or by name, as far as following code and probing
//! allocators need them.
//!
//! Input: the bytes of a file, hostile. `Functions`: address -> range of the function; the start must be an entry:
//! symbols of function type, functions listed by Go programs, and the sections `.init` and `.fini`. `find_entries`:
//! entry points by name; `find_variables`: addresses of variables; `find_structures`: offsets of members of C
//! structures, by debug information. Not for: names of addresses (see `symbol::table`), or functions known only
//! from unwind information.
//!
//! Names are read on look-up: those of a compiler are 20 MB, which would all become resident.

use std::ops::Range;

use gimli::{AttributeValue, Dwarf, EndianSlice, UnitOffset};
use object::elf::{self, FileHeader32, FileHeader64};
use object::read::elf::{ElfFile32, FileHeader, SectionHeader, SectionTable, Sym};
use object::{LittleEndian, Object, ObjectSection};

use super::{Class, CodeSections, class, section_names, symbols};
use crate::addr::Svma;
use crate::binary::FormatError;
use crate::binary::gopclntab::GoFunctions;

/// Sections that are one function, assembled by the linker from pieces without symbols.
const WHOLE: [&[u8]; 2] = [b".init", b".fini"];
/// Limit on bytes read of a symbol's name.
const NAME_BYTES_MAX: usize = 1024;
/// Limit on symbols of one address whose names are read, at each look-up. Identical functions that a linker merged have
/// more names, but none of a part.
const ALIASES_MAX: usize = 64;

/// The ranges of an ELF file's functions, sorted by start, then by descending end.
#[derive(Clone, Debug, Default)]
pub struct Functions(Vec<FunctionRange>);

#[derive(Clone, Copy, Debug)]
struct FunctionRange {
    start: u64,
    end: u64,
    name: Name,
    /// Whether its instructions are T32 rather than A32 on 32-bit Arm, if a symbol shows it.
    is_t32: Option<bool>,
}

/// Whether the start of a function is an entry. gcc moves rarely executed parts of functions elsewhere, with a
/// separate symbol: their first instruction runs in the frame of the function.
#[derive(Clone, Copy, Debug)]
enum Name {
    /// Certainly an entry.
    OfEntry,
    /// Decided by the symbol's name, at this file offset.
    At(u32),
    /// The name is beyond the limit.
    Unknown,
}

impl Name {
    fn is_of_entry(self, file: &[u8]) -> bool {
        match self {
            Name::OfEntry => true,
            Name::At(offset) => {
                let name = file.get(offset as usize..).unwrap_or_default();
                let name = &name[..name.len().min(NAME_BYTES_MAX)];
                !is_part(name.split(|byte| *byte == 0).next().unwrap_or_default())
            }
            Name::Unknown => false,
        }
    }
}

impl Functions {
    /// Reads the symbols; empty if the file has none.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Functions {
        let found = match class(bytes) {
            Ok(Class::Elf32) => collect_functions::<FileHeader32<LittleEndian>>(bytes),
            Ok(Class::Elf64) => collect_functions::<FileHeader64<LittleEndian>>(bytes),
            Err(_) => return Functions::default(),
        };
        let mut found = found.unwrap_or_default();
        if let Some(go) = GoFunctions::find(bytes) {
            found.extend(go.iter(bytes).map(|function| {
                let (start, end) = (function.range.start.0, function.range.end.0);
                FunctionRange { start, end, name: Name::OfEntry, is_t32: None }
            }));
        }
        found.sort_unstable_by_key(|function| (function.start, std::cmp::Reverse(function.end)));
        // A symbol without a size reaches to the next one, or to the end of its section.
        let (mut start, mut next) = (u64::MAX, u64::MAX);
        for function in found.iter_mut().rev() {
            if function.start != start {
                (start, next) = (function.start, start);
            }
            function.end = function.end.min(next);
        }
        found.shrink_to_fit();
        Functions(found)
    }

    /// Whether the function or part at an address of 32-bit Arm is T32: the lowest bit of its symbol (ELF for the
    /// Arm Architecture, 5.5.3). `None` without a symbol.
    #[must_use]
    pub fn is_t32(&self, svma: Svma) -> Option<bool> {
        self.last(svma).first()?.is_t32
    }

    /// The function at an address of the file with these bytes; `None` without a symbol, and in parts separate
    /// from their entry.
    #[must_use]
    pub fn at(&self, svma: Svma, file: &[u8]) -> Option<Range<Svma>> {
        let found = self.last(svma);
        // Of several symbols at one address, the longest; a part is never an entry.
        let mut read = found.iter().take(ALIASES_MAX);
        let first = found.first().filter(|_| read.all(|symbol| symbol.name.is_of_entry(file)))?;
        Some(Svma(first.start)..Svma(first.end))
    }

    /// The symbols of the function or part that contains an address.
    fn last(&self, svma: Svma) -> &[FunctionRange] {
        let after = self.0.partition_point(|function| function.start <= svma.0);
        let Some(start) = after.checked_sub(1).map(|last| self.0[last].start) else { return &[] };
        let first = self.0[..after].partition_point(|function| function.start < start);
        let found = &self.0[first..after];
        if found.first().is_some_and(|furthest| svma.0 < furthest.end) { found } else { &[] }
    }
}

/// The function symbols of both tables, and the sections that are functions.
fn collect_functions<H: FileHeader<Endian = LittleEndian>>(
    data: &[u8],
) -> object::read::Result<Vec<FunctionRange>> {
    let header = H::parse(data)?;
    let endian = header.endian()?;
    let headers = header.section_headers(endian, data)?;
    let names = section_names(header, data, headers);
    let sections = SectionTable::<H>::new(headers, Default::default());
    let code = CodeSections::new::<H>(headers);
    let name_of = |section: &H::SectionHeader| {
        let from = usize::try_from(section.sh_name(endian)).ok()?;
        names.get(from..)?.split(|byte| *byte == 0).next()
    };
    let mut found = Vec::new();
    for (section, range) in headers.iter().zip(&code.ranges) {
        if let Some(range) = range
            && name_of(section).is_some_and(|name| WHOLE.contains(&name))
        {
            let (start, end) = (range.start, range.end);
            found.push(FunctionRange { start, end, name: Name::OfEntry, is_t32: None });
        }
    }
    for kind in [elf::SHT_SYMTAB, elf::SHT_DYNSYM] {
        let Ok(table) = symbols(&sections, data, kind) else { continue };
        let names_at =
            sections.section(table.string_section()).ok().and_then(|names| names.file_range(endian));
        for (index, symbol) in table.enumerate() {
            if !matches!(symbol.st_type(), elf::STT_FUNC | elf::STT_GNU_IFUNC) {
                continue;
            }
            let Ok(Some(section)) = table.symbol_section(endian, symbol, index) else { continue };
            let (value, size): (u64, u64) = (symbol.st_value(endian).into(), symbol.st_size(endian).into());
            let is_t32 = (header.e_machine(endian) == elf::EM_ARM).then_some(value & 1 != 0);
            let start = if is_t32 == Some(true) { value - 1 } else { value };
            let Some(section) = code.of_symbol(section.0, start, true) else { continue };
            let end = if size == 0 { section.end } else { start.saturating_add(size).min(section.end) };
            let name_at = names_at.and_then(|(offset, size)| {
                let name = u64::from(symbol.st_name(endian));
                u32::try_from(offset.checked_add(name).filter(|_| name < size)?).ok()
            });
            let name = name_at.map_or(Name::Unknown, Name::At);
            found.push(FunctionRange { start, end, name, is_t32 });
        }
    }
    Ok(found)
}

/// Whether a name belongs to the rarely executed part of a function that gcc split off: `name.cold`, in older
/// versions `name.cold.7` (gcc/final.cc, `cold_function_name`). LLVM's outlined functions, which are called, have
/// names like `name.cold.1`; these are not distinguished.
fn is_part(name: &[u8]) -> bool {
    let name = &name[..name.len().min(NAME_BYTES_MAX)];
    let without_number = {
        let digits = name.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
        let rest = &name[..name.len() - digits];
        if digits > 0 { rest.strip_suffix(b".").unwrap_or(name) } else { name }
    };
    without_number.ends_with(b".cold")
}

// ---- Entry points of an ELF file's functions, by name.
//
// For 32-bit Arm, the lowest bit of an address marks a T32 function (ELF for the Arm Architecture, 5.5.3).

/// The entry point of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its stated address.
    pub svma: Svma,
    /// Size of the function, 0 if the symbol has none.
    pub bytes: u64,
}

/// The entry of each of these functions, `None` if the file defines none with that name, or several. The static
/// symbol table comes first, then the dynamic one, which stripped files still have.
#[must_use]
pub fn find_entries(bytes: &[u8], names: &[&str]) -> Vec<Option<Entry>> {
    let mut entries = vec![None; names.len()];
    for kind in [elf::SHT_SYMTAB, elf::SHT_DYNSYM] {
        let found = match class(bytes) {
            Ok(Class::Elf32) => collect_entries::<FileHeader32<LittleEndian>>(bytes, kind, names),
            Ok(Class::Elf64) => collect_entries::<FileHeader64<LittleEndian>>(bytes, kind, names),
            Err(_) => return entries,
        };
        let found = found.unwrap_or_default();
        for (index, entry) in entries.iter_mut().enumerate().filter(|(_, entry)| entry.is_none()) {
            let mut all = found.iter().filter(|(of, _)| *of == index).map(|(_, entry)| *entry);
            let first = all.next();
            *entry = first.filter(|first| all.all(|other| other.svma == first.svma));
        }
    }
    entries
}

/// Whether the file calls one of these functions of another file.
#[must_use]
pub fn imports(bytes: &[u8], names: &[&str]) -> bool {
    let found = match class(bytes) {
        Ok(Class::Elf32) => imports_in::<FileHeader32<LittleEndian>>(bytes, names),
        Ok(Class::Elf64) => imports_in::<FileHeader64<LittleEndian>>(bytes, names),
        Err(why) => Err(why),
    };
    found.unwrap_or(false)
}

fn imports_in<H: FileHeader<Endian = LittleEndian>>(
    data: &[u8],
    names: &[&str],
) -> Result<bool, FormatError> {
    let header = H::parse(data)?;
    let endian = header.endian()?;
    let table = symbols(&header.sections(endian, data)?, data, elf::SHT_DYNSYM)?;
    Ok(table.iter().any(|symbol| {
        let name = table.symbol_name(endian, symbol).unwrap_or_default();
        symbol.is_undefined(endian) && names.iter().any(|wanted| wanted.as_bytes() == name)
    }))
}

fn collect_entries<H: FileHeader<Endian = LittleEndian>>(
    data: &[u8],
    kind: elf::SectionType,
    names: &[&str],
) -> Result<Vec<(usize, Entry)>, FormatError> {
    let header = H::parse(data)?;
    let endian = header.endian()?;
    let table = symbols(&header.sections(endian, data)?, data, kind)?;
    let mut found = Vec::new();
    for symbol in table.iter() {
        if symbol.st_type() != elf::STT_FUNC || symbol.is_undefined(endian) {
            continue;
        }
        let name = table.symbol_name(endian, symbol).unwrap_or_default();
        let index = names.iter().position(|wanted| wanted.as_bytes() == name);
        let entry =
            Entry { svma: Svma(symbol.st_value(endian).into()), bytes: symbol.st_size(endian).into() };
        found.extend(index.map(|index| (index, entry)));
    }
    Ok(found)
}

// ---- Addresses of variables of an ELF file, by name.
//
// Suffixes by which the linker made a name unique (`name.lto_priv.0`, `name.123`) are ignored.

/// A variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its stated address.
    pub svma: Svma,
    /// Its size, 0 if the symbol has none.
    pub bytes: u64,
}

/// The variables with these names; `None` if there is none, or several.
#[must_use]
pub fn find_variables(bytes: &[u8], names: &[&str]) -> Vec<Option<Variable>> {
    let found = match class(bytes) {
        Ok(Class::Elf32) => collect_variables::<FileHeader32<LittleEndian>>(bytes, names),
        Ok(Class::Elf64) => collect_variables::<FileHeader64<LittleEndian>>(bytes, names),
        Err(_) => return vec![None; names.len()],
    };
    let found = found.unwrap_or_default();
    let one = |index: usize| {
        let mut all = found.iter().filter(|(of, _)| *of == index).map(|(_, variable)| *variable);
        let first = all.next()?;
        all.all(|other| other.svma == first.svma).then_some(first)
    };
    (0..names.len()).map(one).collect()
}

/// The address of the variable with this name and size, by its static or dynamic symbol.
#[must_use]
pub fn of_size(bytes: &[u8], name: &str, size: u64) -> Option<Svma> {
    match class(bytes).ok()? {
        Class::Elf32 => of_size_in::<FileHeader32<LittleEndian>>(bytes, name, size),
        Class::Elf64 => of_size_in::<FileHeader64<LittleEndian>>(bytes, name, size),
    }
}

/// The exported variable with this name.
#[must_use]
pub fn exported(bytes: &[u8], name: &str) -> Option<Variable> {
    // Of 64-bit files.
    let header = FileHeader64::<LittleEndian>::parse(bytes).ok()?;
    let endian = header.endian().ok()?;
    let table = header.sections(endian, bytes).ok()?.symbols(endian, bytes, elf::SHT_DYNSYM).ok()?;
    let mut variables =
        table.iter().filter(|symbol| symbol.st_type() == elf::STT_OBJECT && !symbol.is_undefined(endian));
    let found = variables
        .find(|symbol| table.symbol_name(endian, symbol).is_ok_and(|found| found == name.as_bytes()))?;
    Some(Variable { svma: Svma(found.st_value(endian)), bytes: found.st_size(endian) })
}

fn of_size_in<H: FileHeader<Endian = LittleEndian>>(data: &[u8], name: &str, size: u64) -> Option<Svma> {
    let header = H::parse(data).ok()?;
    let endian = header.endian().ok()?;
    let sections = header.sections(endian, data).ok()?;
    [elf::SHT_DYNSYM, elf::SHT_SYMTAB].into_iter().find_map(|kind| {
        let table = symbols(&sections, data, kind).ok()?;
        // By size first: names are scattered over the file.
        let of_size = table.iter().filter(|symbol| {
            symbol.st_size(endian).into() == size
                && symbol.st_type() == elf::STT_OBJECT
                && !symbol.is_undefined(endian)
        });
        let mut named = of_size
            .filter(|symbol| table.symbol_name(endian, symbol).is_ok_and(|told| told == name.as_bytes()));
        named.next().map(|symbol| Svma(symbol.st_value(endian).into()))
    })
}

fn collect_variables<H: FileHeader<Endian = LittleEndian>>(
    data: &[u8],
    names: &[&str],
) -> Result<Vec<(usize, Variable)>, FormatError> {
    let header = H::parse(data)?;
    let endian = header.endian()?;
    let table = symbols(&header.sections(endian, data)?, data, elf::SHT_SYMTAB)?;
    let mut found = Vec::new();
    for symbol in table.iter() {
        // gcc for Arm emits local variables without type but with size if it does not optimize.
        let is_variable = match symbol.st_type() {
            elf::STT_OBJECT => true,
            elf::STT_NOTYPE => symbol.st_size(endian).into() != 0,
            _ => false,
        };
        if !is_variable || symbol.is_undefined(endian) {
            continue;
        }
        let name = table.symbol_name(endian, symbol).unwrap_or_default();
        let name = name.split(|byte| *byte == b'.').next().unwrap_or_default();
        let index = names.iter().position(|wanted| wanted.as_bytes() == name);
        let variable =
            Variable { svma: Svma(symbol.st_value(endian).into()), bytes: symbol.st_size(endian).into() };
        found.extend(index.map(|index| (index, variable)));
    }
    Ok(found)
}

// ---- Offsets of members of C structures, from the debug information of a 32-bit ELF file.
//
// For the few structures of an operating system that are looked up by name.

/// Limit on entries of debug information read: about one second.
const ENTRIES_MAX: usize = 8 << 20;
/// Limit on members of one structure.
const MEMBERS_MAX: usize = 256;

type Slice<'a> = EndianSlice<'a, gimli::LittleEndian>;

/// A structure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Structure {
    /// Its size.
    pub bytes: u64,
    members: Vec<Member>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Member {
    name: String,
    offset: u64,
    /// Number of elements, for an array.
    count: Option<u64>,
}

impl Structure {
    /// The offset of a member.
    #[must_use]
    pub fn offset(&self, name: &str) -> Option<u64> {
        self.member(name).map(|member| member.offset)
    }

    /// The number of elements of an array member.
    #[must_use]
    pub fn count(&self, name: &str) -> Option<u64> {
        self.member(name)?.count
    }

    fn member(&self, name: &str) -> Option<&Member> {
        self.members.iter().find(|member| member.name == name)
    }
}

/// The structures with these names; `None` if the file does not describe it.
#[must_use]
pub fn find_structures(file: &[u8], names: &[&str]) -> Vec<Option<Structure>> {
    let mut found = vec![None; names.len()];
    // Structures found before an error are kept.
    let _ = collect_structures(file, names, &mut found);
    found
}

fn collect_structures(file: &[u8], names: &[&str], found: &mut [Option<Structure>]) -> Option<()> {
    let elf = ElfFile32::<object::LittleEndian>::parse(file).ok()?;
    let load = |id: gimli::SectionId| -> Result<Slice<'_>, gimli::Error> {
        let section = elf.section_by_name(id.name());
        let data = section.and_then(|section| section.data().ok()).unwrap_or_default();
        Ok(EndianSlice::new(data, gimli::LittleEndian))
    };
    let dwarf = Dwarf::load(load).ok()?;
    let mut left = ENTRIES_MAX;
    let mut headers = dwarf.units();
    while let Some(header) = headers.next().ok()? {
        let Ok(unit) = dwarf.unit(header) else { continue };
        let mut entries = unit.entries();
        // The current structure, and its depth.
        let mut inside: Option<(usize, isize)> = None;
        while let Ok(Some(entry)) = entries.next_dfs() {
            left = left.checked_sub(1)?;
            if inside.is_some_and(|(_, depth)| entry.depth() <= depth) {
                inside = None;
            }
            let name = || {
                let value = entry.attr_value(gimli::DW_AT_name)?;
                Some(dwarf.attr_string(&unit, value).ok()?.slice())
            };
            let number = |what| entry.attr_value(what)?.udata_value();
            match (entry.tag(), inside) {
                (gimli::DW_TAG_structure_type, None) => {
                    let Some((name, bytes)) = name().zip(number(gimli::DW_AT_byte_size)) else { continue };
                    let Some(index) = names.iter().position(|wanted| wanted.as_bytes() == name) else {
                        continue;
                    };
                    if found[index].is_none() {
                        found[index] = Some(Structure { bytes, members: Vec::new() });
                        inside = Some((index, entry.depth()));
                    }
                }
                (gimli::DW_TAG_member, Some((index, depth))) if entry.depth() == depth + 1 => {
                    let Some(structure) = &mut found[index] else { continue };
                    let Some(name) = name().filter(|_| structure.members.len() < MEMBERS_MAX) else {
                        continue;
                    };
                    let count = match entry.attr_value(gimli::DW_AT_type) {
                        Some(AttributeValue::UnitRef(of)) => elements(&unit, of),
                        _ => None,
                    };
                    structure.members.push(Member {
                        name: String::from_utf8_lossy(name).into_owned(),
                        // May be omitted for the first member.
                        offset: number(gimli::DW_AT_data_member_location).unwrap_or(0),
                        count,
                    });
                }
                _ => {}
            }
        }
        if found.iter().all(Option::is_some) {
            break;
        }
    }
    Some(())
}

/// The number of elements of the array type at an offset; `None` for other types.
fn elements(unit: &gimli::Unit<Slice<'_>>, at: UnitOffset) -> Option<u64> {
    let mut entries = unit.entries_at_offset(at).ok()?;
    let array = entries.next_dfs().ok()??;
    if array.tag() != gimli::DW_TAG_array_type {
        return None;
    }
    let depth = array.depth();
    let range = entries.next_dfs().ok()??;
    if range.depth() != depth + 1 {
        return None;
    }
    let number = |what| range.attr_value(what)?.udata_value();
    number(gimli::DW_AT_count).or_else(|| number(gimli::DW_AT_upper_bound)?.checked_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that consists of two names, of an entry and of a part.
    const NAMES: &[u8] = b"\0f\0f.cold\0";

    fn functions(list: &[(u64, u64, bool)]) -> Functions {
        let range = |&(start, end, is_entry): &(u64, u64, bool)| {
            let name = if is_entry { Name::At(1) } else { Name::At(3) };
            FunctionRange { start, end, name, is_t32: None }
        };
        Functions(list.iter().map(range).collect())
    }

    #[test]
    fn a_function_contains_its_bytes_and_no_others() {
        let functions = functions(&[(0x10, 0x20, true), (0x30, 0x40, false), (0x40, 0x50, true)]);
        let at = |address| functions.at(Svma(address), NAMES);
        assert_eq!(at(0xf), None);
        assert_eq!(at(0x10), Some(Svma(0x10)..Svma(0x20)));
        assert_eq!(at(0x1f), Some(Svma(0x10)..Svma(0x20)));
        assert_eq!(at(0x20), None, "between two");
        assert_eq!(at(0x35), None, "a part without an entry");
        assert_eq!(at(0x4f), Some(Svma(0x40)..Svma(0x50)));
        assert_eq!(at(u64::MAX), None);
    }

    #[test]
    fn with_several_symbols_at_one_address_a_part_is_no_entry() {
        let functions =
            functions(&[(0x10, 0x20, true), (0x10, 0x18, true), (0x20, 0x40, true), (0x20, 0x30, false)]);
        let at = |address| functions.at(Svma(address), NAMES);
        assert_eq!(at(0x1c), Some(Svma(0x10)..Svma(0x20)), "the one that reaches furthest");
        assert_eq!((at(0x25), at(0x38)), (None, None));
    }

    #[test]
    fn of_very_many_symbols_at_one_address_only_some_names_are_read() {
        let functions =
            |entries| functions(&[vec![(0x10, 0x20, true); entries], vec![(0x10, 0x18, false)]].concat());
        assert_eq!(functions(ALIASES_MAX - 1).at(Svma(0x10), NAMES), None);
        assert_eq!(functions(ALIASES_MAX).at(Svma(0x10), NAMES), Some(Svma(0x10)..Svma(0x20)));
    }

    #[test]
    fn a_name_outside_the_file_is_of_no_entry() {
        let name = |name: Name, file| name.is_of_entry(file);
        assert!(name(Name::At(1), NAMES) && !name(Name::At(3), NAMES));
        assert!(name(Name::OfEntry, b"") && !name(Name::Unknown, NAMES));
        let long = [&[b'f'; 2 * NAME_BYTES_MAX][..], b".cold"].concat();
        assert!(name(Name::At(0), &long), "as far as names are read");
    }

    #[test]
    fn parts_split_off_by_gcc_are_recognized_by_name() {
        for part in ["main.cold", "main.cold.12", "f.part.0.cold"] {
            assert!(is_part(part.as_bytes()), "{part}");
        }
        for function in ["main", "f.part.0", "coldstart", "cold", "f.constprop.0", "a.cold.b", ".7", ""] {
            assert!(!is_part(function.as_bytes()), "{function}");
        }
    }

    #[test]
    #[cfg(target_os = "linux")] // the test executable must be ELF
    #[allow(clippy::unwrap_used)]
    fn the_functions_of_this_program_are_found() {
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let functions = Functions::read(&bytes);
        assert!(functions.0.len() > 1000, "{}", functions.0.len());
        assert!(functions.0.is_sorted_by_key(|function| function.start));
        let apart = |pair: &[FunctionRange]| pair[0].start == pair[1].start || pair[0].end <= pair[1].start;
        assert!(functions.0.windows(2).all(apart));
        for at in (0..bytes.len()).step_by(bytes.len() / 4) {
            let mut damaged = bytes[..at].to_vec();
            damaged.extend_from_slice(&bytes[at / 2..]);
            let _ = Functions::read(&damaged).at(Svma(0x1000), &damaged);
        }
        assert!(Functions::read(b"").0.is_empty());
    }
}

#[cfg(test)]
mod entries_tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn functions_are_found_by_name() {
        assert_eq!(find_entries(b"\x7fELF", &["main"]), [None]);
        let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        if class(&program).is_err() {
            // A program of macOS.
            return;
        }
        let found = find_entries(&program, &["main", "no such function"]);
        assert!(found[0].is_some_and(|main| main.svma.0 != 0) && found[1].is_none());
    }
}
