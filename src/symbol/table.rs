//! The function symbols of one file: stated address → symbol.
//!
//! `SymbolTable`: the symbols; the last part finds the end of a function without a size.
//!
//! Input: the bytes of a file, hostile, or the pieces of an image without a file. Output: the innermost symbol
//! that covers an address, or the reason why there is none. Names are not copied: a table costs 24 bytes a symbol.
//! Not for: demangling, DWARF, symbols in separate debug files.

mod elf;
pub mod macho;
pub(super) mod pe;
#[cfg(all(test, target_os = "linux"))] // the compiler must make ELF files
pub(super) mod tests;

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::Why;
use crate::addr::Svma;
use crate::binary::ImageBytes;
use crate::binary::elf::{AARCH64, X86_64};
use crate::binary::object::{Format, name_at, part};

/// Limit on symbols around one address that are searched for one that covers it. Functions do not nest; labels in
/// hand-written assembly do, two or three deep.
pub const NESTING_MAX: usize = 1024;

/// Limit on the length of a symbol name in bytes; longer ones are truncated. The longest in large template-heavy
/// programs are some ten thousand bytes.
pub const NAME_BYTES_MAX: usize = 64 * 1024;

/// Bytes compared of each of several names for the same address: fewer if there are thousands, which takes a hostile file.
fn compared_bytes(aliases: usize) -> usize {
    const EACH_MAX: usize = 1024;
    const EACH_MIN: usize = 16;
    const TOGETHER_MAX: usize = 4 << 20;
    (TOGETHER_MAX / aliases.max(1)).clamp(EACH_MIN, EACH_MAX)
}

/// Maximum memory of a table of an ELF file, per byte of the file: 24 bytes for a symbol of at least 16, like in
/// the symbol table of a Mach-O file. Its exports trie may need [`macho::TRIE_MEMORY_FACTOR`].
pub const MEMORY_FACTOR: f64 = 1.5;

/// Maximum memory of a table of a PE file, per byte of the file: 24 bytes for an export name of 6 or more, and for
/// a symbol of 18.
pub const PE_MEMORY_FACTOR: f64 = 5.5;

/// Set in [`Entry::link`] of a symbol without an end in the file. A file would need 32 GiB of symbols to reach it.
const OPEN_ENDED: u32 = 1 << 31;
/// No enclosing symbol.
const NONE: u32 = OPEN_ENDED - 1;

/// A symbol. While the table is built, `link` is the rank of its name, lower is better.
#[derive(Clone, Copy, Debug)]
struct Entry {
    start: u64,
    /// First address after it.
    end: u64,
    /// Offset of the name in the pool.
    name: u32,
    /// The nearest earlier entry that ends after this one: the next candidate for an address after this one; and
    /// [`OPEN_ENDED`].
    link: u32,
}

const _: () = assert!(size_of::<Entry>() == 24);

/// A function symbol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol<'a> {
    /// Mangled name in the file, without Mach-O's leading underscore; not empty, at most [`NAME_BYTES_MAX`].
    /// Borrowed if it is contiguous in the file.
    pub name: Cow<'a, [u8]>,
    /// First address.
    pub start: Svma,
    /// First address after it.
    pub end: Svma,
    /// The file lacks its end: `end` is an upper bound.
    pub open_ended: bool,
}

/// Names by offset: a string pool in memory, or one that is fetched piece by piece. A table requests the names
/// that it looks up, and during construction those of addresses with several.
pub trait Strings: fmt::Debug + Send + Sync {
    /// The name at an offset, without its NUL, truncated at `max_bytes`; empty if there is none, or if it is
    /// unavailable.
    fn name(&self, offset: u32, max_bytes: usize) -> Cow<'_, [u8]>;

    /// Its memory in bytes, besides the file.
    fn memory_bytes(&self) -> usize {
        0
    }
}

/// A pool in a part of a file.
#[derive(Debug)]
struct Pool(ImageBytes);

impl Strings for Pool {
    fn name(&self, offset: u32, max_bytes: usize) -> Cow<'_, [u8]> {
        Cow::Borrowed(name_at(self.0.bytes(), offset, max_bytes))
    }
}

/// Two pools: offsets continue in the second as if it followed the first.
#[derive(Debug)]
struct Pools([Pool; 2]);

impl Strings for Pools {
    fn name(&self, offset: u32, max_bytes: usize) -> Cow<'_, [u8]> {
        let [first, second] = &self.0;
        match (offset as usize).checked_sub(first.0.bytes().len()) {
            Some(behind) => second.name(behind as u32, max_bytes),
            None => first.name(offset, max_bytes),
        }
    }
}

/// The function symbols of one file.
#[derive(Clone, Debug)]
pub struct SymbolTable {
    names: Arc<dyn Strings>,
    /// Sorted by start, then by descending end.
    entries: Vec<Entry>,
}

impl SymbolTable {
    /// Reads the symbols of a file: ELF `.symtab`, or if that has no functions `.dynsym` and a Go program's
    /// function table; Mach-O symbol table and exports trie (see [`macho::Parts`]); COFF symbols and exports of
    /// PE.
    ///
    /// # Errors
    /// [`Why::BadFile`] if the file is invalid, [`Why::NoSymbols`] if it has none.
    pub fn parse(bytes: &ImageBytes) -> Result<SymbolTable, Why> {
        match Format::of(bytes.bytes())? {
            Format::Elf => {
                let (entries, strings) = elf::read(bytes.bytes())?;
                let pool = |range: Range<usize>| Pool(part(bytes, &(range.start as u64..range.end as u64)));
                Ok(SymbolTable::new(entries, Arc::new(Pools(strings.map(pool)))))
            }
            Format::MachO => macho::parse(bytes),
            Format::Pe => pe::parse(bytes),
        }
    }

    fn new(mut entries: Vec<Entry>, names: Arc<dyn Strings>) -> SymbolTable {
        entries.shrink_to_fit();
        SymbolTable { names, entries }
    }

    /// The innermost symbol that covers an address: the one that starts last.
    ///
    /// # Errors
    /// [`Why::NotCovered`] if the address is between symbols.
    pub fn lookup(&self, svma: Svma) -> Result<Symbol<'_>, Why> {
        let mut index = self.entries.partition_point(|entry| entry.start <= svma.0).wrapping_sub(1);
        for _ in 0..NESTING_MAX {
            let Some(entry) = self.entries.get(index) else { break };
            if svma.0 < entry.end
                && let Some(symbol) = self.symbol(entry)
            {
                return Ok(symbol);
            }
            index = match entry.link & !OPEN_ENDED {
                NONE => usize::MAX,
                around => around as usize,
            };
        }
        Err(Why::NotCovered)
    }

    /// The start of the last symbol at or before an address.
    #[must_use]
    pub fn last_before(&self, svma: Svma) -> Option<Svma> {
        let behind = self.entries.partition_point(|entry| entry.start <= svma.0);
        Some(Svma(self.entries.get(behind.checked_sub(1)?)?.start))
    }

    /// All symbols that have a name, by address.
    pub fn symbols(&self) -> impl Iterator<Item = Symbol<'_>> {
        self.entries.iter().filter_map(|entry| self.symbol(entry))
    }

    /// Number of symbols, including those that only mark the end of the preceding one; never 0.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a table without symbols is Why::NoSymbols")]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Memory of the table, in bytes, besides the file: at most [`MEMORY_FACTOR`] times the file's size, see there
    /// for Mach-O.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>() + self.names.memory_bytes()
    }

    fn symbol(&self, entry: &Entry) -> Option<Symbol<'_>> {
        let name = self.names.name(entry.name, NAME_BYTES_MAX);
        let (start, end, open_ended) = (Svma(entry.start), Svma(entry.end), entry.link & OPEN_ENDED != 0);
        (!name.is_empty()).then_some(Symbol { name, start, end, open_ended })
    }
}

// ---- The end of a function without a size: a return followed by padding up to the start of the next function.
//
// Functions may return in several places, so a return alone is not sufficient; if one ends exactly at the next
// boundary there is no padding, and the following function is taken for a part.

/// Alignment of assembly functions (x86inc.asm and perlasm: 16, the default of compilers).
const ALIGNMENT: u64 = 16;

/// The first address after a function's last instruction. `code` is the code from `start` on; `machine` is ELF's
/// `e_machine`. `None` if there is no evidence.
fn of(code: &[u8], start: u64, machine: u16) -> Option<u64> {
    let fills_up = |at: usize, filling: fn(&[u8]) -> Option<usize>| {
        let boundary = start.checked_add(at as u64)?.checked_next_multiple_of(ALIGNMENT)?;
        let mut left = code.get(at..)?.get(..usize::try_from(boundary - start).ok()?.checked_sub(at)?)?;
        if left.is_empty() {
            return None;
        }
        while !left.is_empty() {
            left = left.get(filling(left)?..)?;
        }
        start.checked_add(at as u64)
    };
    match machine {
        // ret; other instructions may contain that byte, but not with this padding after it.
        X86_64 => (0..code.len()).filter(|at| code[*at] == 0xc3).find_map(|at| fills_up(at + 1, nop_x86_64)),
        AARCH64 => (0..code.len() / 4)
            .map(|word| 4 * word)
            .filter(|at| code[*at..].starts_with(&[0xc0, 0x03, 0x5f, 0xd6]))
            .find_map(|at| fills_up(at + 4, nop_aarch64)),
        _ => None,
    }
}

/// The length of the padding at the start: `nop` in the forms that processor vendors recommend and assemblers emit
/// (Intel SDM, volume 2, NOP), `int3`.
fn nop_x86_64(code: &[u8]) -> Option<usize> {
    let prefixes = code.iter().take_while(|byte| matches!(byte, 0x66 | 0x2e)).count();
    Some(
        prefixes
            + match code.get(prefixes..)? {
                [0x90, ..] => 1,
                [0xcc, ..] if prefixes == 0 => 1,
                [0x0f, 0x1f, 0x00, ..] => 3,
                [0x0f, 0x1f, 0x40, 0, ..] => 4,
                [0x0f, 0x1f, 0x44, 0, 0, ..] => 5,
                [0x0f, 0x1f, 0x80, 0, 0, 0, 0, ..] => 7,
                [0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0, ..] => 8,
                _ => return None,
            },
    )
}

/// The length of the padding at the start: `nop`, and zeros, which are no instruction.
fn nop_aarch64(code: &[u8]) -> Option<usize> {
    matches!(code.first_chunk()?, [0x1f, 0x20, 0x03, 0xd5] | [0, 0, 0, 0]).then_some(4)
}

#[cfg(test)]
mod function_end_tests {
    use super::*;

    #[test]
    fn a_return_followed_by_padding_ends_a_function() {
        // 0x1000: test %edi,%edi; je +1; ret; xor %eax,%eax; ret; nopl 0x0(%rax,%rax,1)
        let code = b"\x85\xff\x74\x01\xc3\x31\xc0\xc3\x0f\x1f\x84\0\0\0\0\0\x90\xc3";
        assert_eq!(of(code, 0x1000, X86_64), Some(0x1008));
        // No padding: the return ends on the boundary.
        assert_eq!(of(code, 0x1008, X86_64), None);
        // Truncated within the padding.
        assert_eq!(of(&code[..12], 0x1000, X86_64), None);
        // NASM's padding, then a function; before it 0xc3 in mov $0x9090c3,%eax.
        let code = b"\xb8\xc3\x90\x90\x00\xc3\x90\x90\x90\x90\x90\x90\x90\x90\x90\x90\x53";
        assert_eq!(of(code, 0x1000, X86_64), Some(0x1006));
        assert_eq!(of(code, u64::MAX - 3, X86_64), None, "no overflow");
        assert_eq!(of(b"", 0, X86_64), None);
        assert_eq!(of(code, 0x1000, 3), None, "another processor");
    }

    #[test]
    fn on_aarch64_too() {
        let words = [0xd65f_03c0u32, 0x1400_0001, 0xd65f_03c0, 0xd503_201f, 0xd280_0000];
        let code: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
        assert_eq!(of(&code, 0x1000, AARCH64), Some(0x100c));
        assert_eq!(of(&code[..13], 0x1000, AARCH64), None);
    }
}
