//! The function symbols of one file: stated address → symbol.
//!
//! Input: the bytes of a file, hostile, or the pieces of an image that has none. Output:
//! the innermost symbol that covers an address, or the reason why there is none. Names
//! are not copied: a table costs 24 bytes a symbol. Not for: demangling, DWARF, symbols in
//! separate debug files.

mod elf;
mod exports;
mod function_end;
pub mod macho;
pub(super) mod pe;

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::Why;
use crate::addr::Svma;
use crate::binary::ImageBytes;
use crate::binary::object::{Format, name_at, part};

/// Most symbols around one address that are searched for one that covers it. Functions do not nest; labels in
/// hand-written assembly do, two or three deep.
pub const MAX_NESTING: usize = 1024;

/// Longest symbol name in bytes; a longer one is cut. The longest seen in large
/// template-heavy programs are some ten thousand bytes.
pub const MAX_NAME_BYTES: usize = 64 * 1024;

/// How much of two names is compared when they are for the same address.
const MAX_COMPARED_BYTES: usize = 1024;

/// The most memory a table of an ELF file takes, in bytes for each byte of the file: 24
/// bytes for a symbol that takes at least 16, as in the symbol table of a Mach-O
/// file. Its exports trie may need [`macho::TRIE_MEMORY_FACTOR`].
pub const MEMORY_FACTOR: f64 = 1.5;

/// The most memory a table of a PE file takes, in bytes for each byte of the file: 24 bytes for the name of an export, which may take 6, and for a symbol of 18.
pub const PE_MEMORY_FACTOR: f64 = 5.5;

/// Set in [`Entry::link`] of a symbol without an end in the file. A file would need 32 GiB of symbols to reach it.
const OPEN_ENDED: u32 = 1 << 31;
/// No enclosing symbol.
const NONE: u32 = OPEN_ENDED - 1;

/// A symbol. While the table is built, `link` holds how good its name is, the smaller the
/// better.
#[derive(Clone, Copy, Debug)]
struct Entry {
    start: u64,
    /// First address after it.
    end: u64,
    /// Offset of the name in the pool.
    name: u32,
    /// The nearest entry before this one that ends after it: the next candidate for an
    /// address that lies after this one; and [`OPEN_ENDED`].
    link: u32,
}

const _: () = assert!(size_of::<Entry>() == 24);

/// A function symbol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol<'a> {
    /// Name as the file has it, mangled, without the underscore that Mach-O puts before
    /// each; not empty, at most [`MAX_NAME_BYTES`]. Borrowed where the file has it in one
    /// piece.
    pub name: Cow<'a, [u8]>,
    /// First address.
    pub start: Svma,
    /// First address after it.
    pub end: Svma,
    /// The file does not have its end: `end` is where it must have ended.
    pub open_ended: bool,
}

/// Names by offset: a string pool in memory, or one that is fetched piece by piece. A table requests the names that
/// it looks up, and while it is built those of addresses with several.
pub trait Strings: fmt::Debug + Send + Sync {
    /// The name at an offset, without the NUL that ends it, cut at `max_bytes`; empty if
    /// there is none, or if it cannot be had.
    fn name(&self, offset: u32, max_bytes: usize) -> Cow<'_, [u8]>;

    /// Memory it takes for itself, in bytes, besides the file.
    fn memory_bytes(&self) -> usize {
        0
    }
}

/// A pool that is at hand, a part of a file.
#[derive(Debug)]
struct Pool(ImageBytes);

impl Strings for Pool {
    fn name(&self, offset: u32, max_bytes: usize) -> Cow<'_, [u8]> {
        Cow::Borrowed(name_at(self.0.bytes(), offset, max_bytes))
    }
}

/// Two of them: offsets count through the second as if it followed the first.
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
    /// Sorted by start, and those of one start by falling end.
    entries: Vec<Entry>,
}

impl SymbolTable {
    /// Reads the symbols of a file: ELF `.symtab`, or if that has no functions `.dynsym` and what a
    /// Go program lists; Mach-O symbol table and exports trie (see [`macho::Parts`]); COFF symbols and exports of
    /// PE.
    ///
    /// # Errors
    /// [`Why::BadFile`] if the file is not understood, [`Why::NoSymbols`] if it has none.
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

    /// The innermost symbol that covers an address: of those, the one that starts last.
    ///
    /// # Errors
    /// [`Why::NotCovered`] if the address lies between symbols.
    pub fn lookup(&self, svma: Svma) -> Result<Symbol<'_>, Why> {
        let mut index = self.entries.partition_point(|entry| entry.start <= svma.0).wrapping_sub(1);
        for _ in 0..MAX_NESTING {
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

    /// Where the last symbol begins that does so at an address or before.
    #[must_use]
    pub fn last_before(&self, svma: Svma) -> Option<Svma> {
        let behind = self.entries.partition_point(|entry| entry.start <= svma.0);
        Some(Svma(self.entries.get(behind.checked_sub(1)?)?.start))
    }

    /// All symbols that have a name, by address.
    pub fn symbols(&self) -> impl Iterator<Item = Symbol<'_>> {
        self.entries.iter().filter_map(|entry| self.symbol(entry))
    }

    /// Number of symbols, with those that only mark where the one before ends; never 0.
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
        let name = self.names.name(entry.name, MAX_NAME_BYTES);
        let (start, end, open_ended) = (Svma(entry.start), Svma(entry.end), entry.link & OPEN_ENDED != 0);
        (!name.is_empty()).then_some(Symbol { name, start, end, open_ended })
    }
}

#[cfg(all(test, target_os = "linux"))] // the compiler must make ELF files
pub(super) mod tests;
