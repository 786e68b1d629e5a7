//! Mach-O: symbol table, exports trie and function starts → one name per address.
//!
//! Input: the pieces of an image ([`Parts`]), hostile, from its file or from a target's memory. Output: a
//! [`SymbolTable`] of symbols that do not overlap. Not for: locating the pieces (see `image::macho`), debug maps
//! (stabs), names of stubs.
//!
//! Format: `<mach-o/nlist.h>`, `<mach-o/stab.h>` and `<mach-o/loader.h>` of xnu.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use super::exports::Exports;
use super::{Entry, NONE, Pool, Strings, SymbolTable, compared_bytes};
use crate::addr::Svma;
use crate::binary::elf::SYMBOLS_MAX;
use crate::binary::macho::{MachO, NLIST_32_BYTES, function_starts};
use crate::binary::object::part;
use crate::binary::{FormatError, ImageBytes};
use crate::symbol::Why;

/// Maximum memory of a table for the exports trie, per byte of it: 12 bytes for an edge of at least 2, and 24 for
/// an export of 6 with its edge. Real tries need a tenth of it, and nothing if the symbol table has all their
/// functions.
pub const TRIE_MEMORY_FACTOR: f64 = 10.0;

/// The pieces of an image that name its functions, and how a remote reader finds them.
///
/// [`SymbolTable::parse`] cuts them out of a file. For an image without a file, read the header and `sizeofcmds`
/// bytes after it from the target, pass them to [`MachO::parse`], and read the ranges in [`MachO::linkedit`] at
/// [`MachO::linkedit_svma`] + slide. Unavailable pieces may be empty.
#[derive(Clone, Debug)]
pub struct Parts<'a> {
    /// Start of `__TEXT` ([`MachO::text`]), the base of function starts and exports.
    pub text: Svma,
    /// Stated addresses of code sections, by section number − 1 ([`MachO::code`]).
    pub code: &'a [Option<Range<Svma>>],
    /// `nlist_64` entries, 16 bytes each, in any order ([`Linkedit::nlists`]).
    ///
    /// [`Linkedit::nlists`]: crate::binary::macho::Linkedit::nlists
    pub nlists: &'a [u8],
    /// The names of the entries by `n_strx`. Offsets from 2 GiB on are not requested. The pool of the shared cache
    /// is read name by name: a table requests names of addresses with several, then those it looks up.
    pub strings: Arc<dyn Strings>,
    /// Content of `LC_FUNCTION_STARTS`. Without it, symbols extend to the next one.
    pub function_starts: &'a [u8],
    /// The exports trie; kept with the table if it has names that the symbol table lacks.
    pub exports_trie: ImageBytes,
}

/// `n_type` bits of a debugging symbol (`N_STAB`).
const STAB: u8 = 0xe0;
/// `n_type` bits for the kind of a symbol (`N_TYPE`) …
const TYPE: u8 = 0x0e;
/// … and their value for a symbol defined in a section (`N_SECT`).
const IN_SECTION: u8 = 0x0e;
/// `n_type` bit of an external symbol (`N_EXT`).
const EXTERNAL: u8 = 0x01;
/// `n_desc` of `__mh_execute_header` and similar symbols (`REFERENCED_DYNAMICALLY`): remains in a stripped
/// program, and does not name its first function.
const REFERENCED_DYNAMICALLY: u16 = 0x10;
/// `n_desc` bit of a weak definition (`N_WEAK_DEF`).
const WEAK: u16 = 0x80;

/// The rank of a name for its address, lower is better; like for ELF.
const RANK_GLOBAL: u32 = 0;
const RANK_WEAK: u32 = 1;
const RANK_LOCAL: u32 = 2;
const RANK_NAMELESS: u32 = 3;

/// Set in [`Entry::name`] if the name is in the exports trie.
const EXPORTED: u32 = 1 << 31;

/// The symbols of a file for one processor, or of an image read from memory.
pub(super) fn parse(bytes: &ImageBytes) -> Result<SymbolTable, Why> {
    let macho = MachO::parse(bytes.bytes())?;
    if let Some(read) = bytes.linkedit() {
        return SymbolTable::from_macho(Parts {
            text: macho.text.start,
            code: &macho.code,
            nlists: read.nlists.bytes(),
            strings: Arc::new(Pool(read.strings.clone())),
            function_starts: read.function_starts.bytes(),
            exports_trie: read.exports_trie.clone(),
        });
    }
    let at = &macho.linkedit;
    let nlists = part(bytes, &at.nlists);
    let nlists =
        if macho.is_64 { Cow::Borrowed(nlists.bytes()) } else { Cow::Owned(widened(nlists.bytes())) };
    SymbolTable::from_macho(Parts {
        text: macho.text.start,
        code: &macho.code,
        nlists: &nlists,
        strings: Arc::new(Pool(part(bytes, &at.strings))),
        function_starts: part(bytes, &at.function_starts).bytes(),
        exports_trie: part(bytes, &at.exports_trie),
    })
}

/// Converts `nlist` entries of 32 bits to `nlist_64`, which differ in the size of the address, their last field.
fn widened(nlists: &[u8]) -> Vec<u8> {
    let (entries, _) = nlists.as_chunks::<{ NLIST_32_BYTES as usize }>();
    let entries = entries.iter().take(SYMBOLS_MAX + 1);
    entries.flat_map(|entry| entry.iter().copied().chain([0; 4])).collect()
}

impl SymbolTable {
    /// The function symbols of a Mach-O image.
    ///
    /// Includes symbols of the symbol table that are defined in a code section, and exports at addresses without
    /// an external symbol. They have no sizes: each ends at the next symbol, the next function start or the end of
    /// its section, whichever comes first. So the code of a function without a symbol is not covered, rather than
    /// part of the preceding one.
    ///
    /// # Errors
    /// [`Why::NoSymbols`] if there are none, [`Why::BadFile`] beyond [`SYMBOLS_MAX`].
    pub fn from_macho(parts: Parts<'_>) -> Result<SymbolTable, Why> {
        if parts.nlists.len() / 16 > SYMBOLS_MAX {
            return Err(FormatError::TooManySymbols.into());
        }
        let mut entries = collect(&parts);
        let order = |entry: &Entry| (entry.start, entry.link, entry.name);
        entries.sort_unstable_by_key(order);

        let (mut exports, exported) = Exports::read(&parts.exports_trie);
        let in_symtab = entries.len();
        for export in exported.into_iter().filter(|export| export.name < EXPORTED) {
            let Some(start) = parts.text.checked_add(export.offset) else { continue };
            let first = entries[..in_symtab].partition_point(|entry| entry.start < start.0);
            let first = entries[..in_symtab].get(first).filter(|entry| entry.start == start.0);
            if first.is_some_and(|entry| entry.link <= RANK_WEAK) {
                continue;
            }
            if let Some(section) = parts.code.iter().flatten().find(|section| section.contains(&start)) {
                let name = export.name | EXPORTED;
                entries.push(Entry { start: start.0, end: section.end.0, name, link: RANK_GLOBAL });
            }
        }
        if entries.is_empty() {
            return Err(Why::NoSymbols);
        }
        if entries.len() == in_symtab {
            exports.clear();
        } else {
            entries.sort_unstable_by_key(order);
        }
        let names = SourceNames { pool: parts.strings, exports };
        choose(&mut entries, &names);
        end(&mut entries, function_starts(parts.function_starts, parts.text));
        Ok(SymbolTable::new(entries, Arc::new(names)))
    }
}

/// The symbols of the symbol table in code sections, with the end of their section.
fn collect(parts: &Parts<'_>) -> Vec<Entry> {
    let (nlists, _) = parts.nlists.as_chunks::<16>();
    // Debugging symbols may be most of a table.
    let maybe_code = |nlist: &&[u8; 16]| nlist[4] & STAB == 0 && nlist[4] & TYPE == IN_SECTION;
    let mut entries = Vec::with_capacity(nlists.iter().filter(maybe_code).count());
    for nlist in nlists.iter().filter(maybe_code) {
        let [n0, n1, n2, n3, kind, section, d0, d1, value @ ..] = *nlist;
        let (strx, desc) = (u32::from_le_bytes([n0, n1, n2, n3]), u16::from_le_bytes([d0, d1]));
        let start = Svma(u64::from_le_bytes(value));
        let section = usize::from(section).checked_sub(1).and_then(|index| parts.code.get(index));
        let Some(section) = section.and_then(Option::as_ref).filter(|section| section.contains(&start))
        else {
            continue;
        };
        let (name, link) = match (strx, desc) {
            // A symbol without a name still marks the end of the preceding one.
            (0 | EXPORTED.., _) | (_, REFERENCED_DYNAMICALLY) => (0, RANK_NAMELESS),
            _ if kind & EXTERNAL == 0 => (strx, RANK_LOCAL),
            _ if desc & WEAK != 0 => (strx, RANK_WEAK),
            _ => (strx, RANK_GLOBAL),
        };
        entries.push(Entry { start: start.0, end: section.end.0, name, link });
    }
    entries
}

/// Leaves one entry per address of the entries, which are sorted by address and rank.
fn choose(entries: &mut Vec<Entry>, names: &SourceNames) {
    let (mut kept, mut group) = (0, 0);
    while group < entries.len() {
        let start = entries[group].start;
        let length = entries[group..].iter().take_while(|entry| entry.start == start).count();
        entries[kept] = best(&entries[group..group + length], names);
        kept += 1;
        group += length;
    }
    entries.truncate(kept);
}

/// The best name of an address: of the best rank with a name, with the fewest leading underscores, then the
/// shortest, then the alphabetically first.
fn best(aliases: &[Entry], names: &SourceNames) -> Entry {
    if let [only] = aliases {
        return *only;
    }
    let bytes_max = compared_bytes(aliases.len());
    let of_rank = aliases.chunk_by(|a, b| a.link == b.link).find_map(|same_rank| {
        let named = same_rank.iter().filter_map(|entry| {
            let name = names.name(entry.name, bytes_max);
            let underscores = name.iter().take_while(|&&byte| byte == b'_').count();
            (!name.is_empty()).then_some(((underscores, name.len(), name), entry))
        });
        named.min_by(|(a, _), (b, _)| a.cmp(b)).map(|(_, entry)| *entry)
    });
    of_rank.unwrap_or(aliases[0])
}

/// Ends each symbol at the next symbol or function start, if not before.
fn end(entries: &mut [Entry], starts: impl Iterator<Item = Svma>) {
    let mut starts = starts.peekable();
    for index in 0..entries.len() {
        let next = entries.get(index + 1).map_or(u64::MAX, |entry| entry.start);
        let entry = &mut entries[index];
        while starts.next_if(|function| function.0 <= entry.start).is_some() {}
        let next_function = starts.peek().map_or(u64::MAX, |function| function.0);
        entry.end = entry.end.min(next).min(next_function);
        entry.link = NONE;
    }
}

/// The source names of an image; empty if they name nothing.
#[derive(Debug)]
struct SourceNames {
    pool: Arc<dyn Strings>,
    exports: Exports,
}

impl Strings for SourceNames {
    fn name(&self, offset: u32, max_bytes: usize) -> Cow<'_, [u8]> {
        // One byte more for the removed underscore.
        let name = match offset {
            0 => Cow::Borrowed(&[][..]),
            EXPORTED.. => Cow::Owned(self.exports.name(offset - EXPORTED, max_bytes + 1)),
            _ => self.pool.name(offset, max_bytes + 1),
        };
        in_source(name, max_bytes)
    }

    fn memory_bytes(&self) -> usize {
        self.exports.memory_bytes() + self.pool.memory_bytes()
    }
}

/// Removes the leading underscore that compilers add (except for Objective-C methods). Returns nothing for a name
/// without information: `<redacted>`, which the builder of the shared cache leaves of a local symbol, and the
/// names of Mach-O headers.
fn in_source(name: Cow<'_, [u8]>, max_bytes: usize) -> Cow<'_, [u8]> {
    let skip = usize::from(name.starts_with(b"_"));
    let is_header = name.starts_with(b"__mh_") && name.ends_with(b"_header");
    if is_header || *name == *b"<redacted>" {
        return Cow::Borrowed(&[]);
    }
    match name {
        Cow::Borrowed(name) => Cow::Borrowed(&name[skip..name.len().min(skip + max_bytes)]),
        Cow::Owned(mut name) => {
            name.truncate(skip + max_bytes);
            name.drain(..skip);
            Cow::Owned(name)
        }
    }
}
