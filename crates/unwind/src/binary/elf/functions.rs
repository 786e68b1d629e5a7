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
use object::elf;

use super::file::{File, Symbol};
use super::{ARM, CodeSections};
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
        let Ok(file) = File::parse(bytes) else { return Functions::default() };
        let mut found = collect_functions(file).unwrap_or_default();
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
fn collect_functions(file: File<'_>) -> Result<Vec<FunctionRange>, FormatError> {
    let sections = file.sections()?;
    let (code, is_arm) = (CodeSections::new(sections), file.machine() == ARM);
    let mut found = Vec::new();
    for (section, range) in sections.iter().zip(&code.ranges) {
        if let Some(range) = range
            && WHOLE.contains(&section.name)
        {
            let (start, end) = (range.start, range.end);
            found.push(FunctionRange { start, end, name: Name::OfEntry, is_t32: None });
        }
    }
    for kind in [elf::SHT_SYMTAB, elf::SHT_DYNSYM] {
        let Ok(table) = sections.symbols(kind) else { continue };
        for (index, symbol) in table.iter().enumerate() {
            if !matches!(symbol.kind, elf::STT_FUNC | elf::STT_GNU_IFUNC) {
                continue;
            }
            let Some(section) = table.section(index, &symbol) else { continue };
            let is_t32 = is_arm.then_some(symbol.value & 1 != 0);
            let start = if is_t32 == Some(true) { symbol.value - 1 } else { symbol.value };
            let Some(section) = code.of_symbol(section, start, true) else { continue };
            let end = match symbol.bytes {
                0 => section.end,
                bytes => start.saturating_add(bytes).min(section.end),
            };
            let name_at = table.names_at.as_ref().ok().and_then(|names| {
                let at = names.start.checked_add(symbol.name.into())?;
                u32::try_from(at).ok().filter(|_| names.contains(&at))
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

// ---- Functions and variables of an ELF file, by name.
//
// For 32-bit Arm, the lowest bit of an address marks a T32 function (ELF for the Arm Architecture, 5.5.3).

/// A function or variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Definition {
    /// Its stated address: of a function, that of its entry.
    pub svma: Svma,
    /// Its size, 0 if the symbol has none.
    pub bytes: u64,
}

impl Definition {
    fn of(symbol: Symbol) -> Definition {
        Definition { svma: Svma(symbol.value), bytes: symbol.bytes }
    }
}

/// The functions with these names, each `None` if the file defines none with that name, or several. The static symbol
/// table comes first, then the dynamic one, which stripped files still have.
#[must_use]
pub fn find_entries(bytes: &[u8], names: &[&str]) -> Vec<Option<Definition>> {
    let is_function = |symbol: &Symbol| symbol.kind == elf::STT_FUNC;
    find(bytes, &[elf::SHT_SYMTAB, elf::SHT_DYNSYM], names, is_function, |name| name)
}

/// The variables with these names, each `None` if there is none, or several. Suffixes by which the linker made a name
/// unique (`name.lto_priv.0`, `name.123`) are ignored.
#[must_use]
pub fn find_variables(bytes: &[u8], names: &[&str]) -> Vec<Option<Definition>> {
    // gcc for Arm emits local variables without type but with size if it does not optimize.
    let is_variable = |symbol: &Symbol| {
        symbol.kind == elf::STT_OBJECT || symbol.kind == elf::STT_NOTYPE && symbol.bytes != 0
    };
    find(bytes, &[elf::SHT_SYMTAB], names, is_variable, |name| {
        name.split(|byte| *byte == b'.').next().unwrap_or_default()
    })
}

fn find(
    bytes: &[u8],
    tables: &[elf::SectionType],
    names: &[&str],
    is_wanted: impl Fn(&Symbol) -> bool,
    source_name: impl Fn(&[u8]) -> &[u8],
) -> Vec<Option<Definition>> {
    let mut definitions = vec![None; names.len()];
    let Ok(sections) = File::parse(bytes).and_then(|file| file.sections()) else { return definitions };
    for kind in tables {
        let Ok(table) = sections.symbols(*kind) else { continue };
        let mut found = Vec::new();
        for symbol in table.iter().filter(|symbol| is_wanted(symbol) && !symbol.is_undefined()) {
            let name = source_name(table.name(&symbol));
            let index = names.iter().position(|wanted| wanted.as_bytes() == name);
            found.extend(index.map(|index| (index, Definition::of(symbol))));
        }
        for (index, definition) in definitions.iter_mut().enumerate().filter(|(_, known)| known.is_none()) {
            let mut all = found.iter().filter(|(of, _)| *of == index).map(|(_, definition)| *definition);
            let first = all.next();
            *definition = first.filter(|first| all.all(|other| other.svma == first.svma));
        }
    }
    definitions
}

/// Whether the file calls one of these functions of another file.
#[must_use]
pub fn imports(bytes: &[u8], names: &[&str]) -> bool {
    let sections = File::parse(bytes).and_then(|file| file.sections());
    let table = sections.and_then(|sections| sections.symbols(elf::SHT_DYNSYM));
    table.is_ok_and(|table| {
        let is_named = |symbol: &Symbol| names.iter().any(|name| name.as_bytes() == table.name(symbol));
        table.iter().any(|symbol| symbol.is_undefined() && is_named(&symbol))
    })
}

/// The address of the variable with this name and size, by its dynamic or static symbol.
#[must_use]
pub fn of_size(bytes: &[u8], name: &str, size: u64) -> Option<Svma> {
    let sections = File::parse(bytes).ok()?.sections().ok()?;
    [elf::SHT_DYNSYM, elf::SHT_SYMTAB].into_iter().find_map(|kind| {
        let table = sections.symbols(kind).ok()?;
        // By size first: names are scattered over the file.
        let is_variable = |symbol: &Symbol| {
            symbol.bytes == size && symbol.kind == elf::STT_OBJECT && !symbol.is_undefined()
        };
        let is_named = |symbol: &Symbol| table.name(symbol) == name.as_bytes();
        table.iter().find(|symbol| is_variable(symbol) && is_named(symbol)).map(|found| Svma(found.value))
    })
}

/// The variable that a 64-bit file exports by this name.
#[must_use]
pub fn exported(bytes: &[u8], name: &str) -> Option<Definition> {
    let file = File::parse(bytes).ok().filter(File::is_64)?;
    let table = file.sections().ok()?.symbols(elf::SHT_DYNSYM).ok()?;
    let is_variable = |symbol: &Symbol| symbol.kind == elf::STT_OBJECT && !symbol.is_undefined();
    let is_named = |symbol: &Symbol| table.name(symbol) == name.as_bytes();
    table.iter().find(|symbol| is_variable(symbol) && is_named(symbol)).map(Definition::of)
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
    let file = File::parse(file).ok().filter(|file| !file.is_64())?;
    let sections = file.sections().ok()?;
    let load = |id: gimli::SectionId| -> Result<Slice<'_>, gimli::Error> {
        let data = sections.by_name(id.name()).map_or(&[][..], |section| file.content(&section.file));
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
        if File::parse(&program).is_err() {
            // A program of macOS.
            return;
        }
        let found = find_entries(&program, &["main", "no such function"]);
        assert!(found[0].is_some_and(|main| main.svma.0 != 0) && found[1].is_none());
    }
}
