//! The functions of an ELF file as ranges, for following code from its entry.
//!
//! Input: the bytes of a file, hostile. Output: address -> range. The start must be an entry: symbols of function
//! type, functions listed by Go programs, and the sections `.init` and `.fini`, each a single function. Not for:
//! names (see `symbol::table`), or functions known only from unwind information.
//!
//! Names are read on look-up: those of a compiler are 20 MB, which would all become resident.

use std::ops::Range;

use object::LittleEndian;
use object::elf::{self, FileHeader32, FileHeader64};
use object::read::elf::{FileHeader, SectionHeader, SectionTable, Sym};

use super::{Class, CodeSections, class, section_names, symbols};
use crate::addr::Svma;
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
            Ok(Class::Elf32) => collect::<FileHeader32<LittleEndian>>(bytes),
            Ok(Class::Elf64) => collect::<FileHeader64<LittleEndian>>(bytes),
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
fn collect<H: FileHeader<Endian = LittleEndian>>(data: &[u8]) -> object::read::Result<Vec<FunctionRange>> {
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
