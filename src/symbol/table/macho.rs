//! Mach-O: symbol table, exports trie and function starts → one name per address; and names of stubs.
//!
//! Input: the pieces of an image ([`Parts`]), hostile, from its file or from a target's memory. Output: a
//! [`SymbolTable`] of symbols that do not overlap. `Exports` is the trie, `Nlists` the raw symbol table, `Stubs`
//! the names of stubs. Not for: locating the pieces (see `binary::macho`); `Stab`s of debug maps are read here, followed in `debug_map`.
//!
//! Format: `<mach-o/nlist.h>`, `<mach-o/stab.h>` and `<mach-o/loader.h>` of xnu.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use object::macho::{
    INDIRECT_SYMBOL_ABS, INDIRECT_SYMBOL_LOCAL, IndirectSymbol, MachHeader64, N_SECT, N_STAB, N_TYPE,
    Nlist64, S_SYMBOL_STUBS, SymbolStab,
};
use object::read::macho::{LoadCommandVariant, MachHeader as _};
use object::{LittleEndian, U32};

use super::{Entry, NAME_BYTES_MAX, NONE, Pool, Strings, SymbolTable, compared_bytes};
use crate::addr::Svma;
use crate::binary::elf::SYMBOLS_MAX;
use crate::binary::macho::{MachO, NLIST_32_BYTES, function_starts};
use crate::binary::object::{name_at, part};
use crate::binary::{FormatError, ImageBytes};
use crate::leb128::take_unsigned;
use crate::symbol::Why;
use crate::symbol::sections::{self, Section};

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
    let maybe_code = |nlist: &&[u8; 16]| nlist[4] & N_STAB == 0 && nlist[4] & N_TYPE == N_SECT.0;
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

// ---- The exports trie of a Mach-O image: names as paths, addresses in their terminal nodes.
//
// Format: `<mach-o/loader.h>`, `EXPORT_SYMBOL_FLAGS_*`. A node is: ULEB size of its terminal data; that data (ULEB
// flags, then values by flags); a byte with the number of edges; and for each its NUL-terminated letters and the
// ULEB offset of the next node.

/// Limit on edges from the root to a node. Linkers branch where names differ; twenty is usual.
const DEPTH_MAX: u32 = 1024;

/// Bits of a terminal's flags for its kind; 0 is code or data at an address.
const KIND: u64 = 0x03;
/// Flag of a re-export from another library.
const REEXPORT: u64 = 0x08;

/// "No edge": the root.
const ROOT: u32 = u32::MAX;

/// One edge of a trie; together with the edges before it, a name.
#[derive(Clone, Copy, Debug)]
struct Edge {
    /// Index of the preceding edge, always lower, or [`ROOT`].
    parent: u32,
    /// Offset of its letters in the trie.
    letters: u32,
    /// Number of letters from the root to its end.
    length: u32,
}

/// The names of a trie.
#[derive(Debug)]
pub(super) struct Exports {
    trie: ImageBytes,
    edges: Vec<Edge>,
}

/// An exported symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Export {
    /// Offset from the start of `__TEXT`. For a function with a resolver: the offset of its stub.
    pub offset: u64,
    /// Argument for [`Exports::name`].
    pub name: u32,
}

impl Exports {
    /// Reads a trie up to malformed parts; its exports in trie order.
    pub(super) fn read(trie: &ImageBytes) -> (Exports, Vec<Export>) {
        let bytes = trie.bytes();
        let mut walk = Walk { trie: bytes, left: bytes.len(), ..Walk::default() };
        walk.pending.push(ExportNode { at: 0, edge: ROOT, depth: 0 });
        while let Some(node) = walk.pending.pop() {
            let first_child = walk.pending.len();
            if walk.node(&node).is_none() {
                break;
            }
            // The last one pushed is read first.
            walk.pending[first_child..].reverse();
        }
        walk.edges.shrink_to_fit();
        (Exports { trie: trie.clone(), edges: walk.edges }, walk.exports)
    }

    /// Drops all names, if none of the exports is used.
    pub(super) fn clear(&mut self) {
        self.edges = Vec::new();
    }

    /// The name of an export, truncated at `max_bytes`.
    pub(super) fn name(&self, name: u32, max_bytes: usize) -> Vec<u8> {
        let edge = |index: u32| self.edges.get(index as usize);
        let length = |index| edge(index).map_or(0, |edge| edge.length as usize);
        let mut out = vec![0; length(name).min(max_bytes)];
        let mut at = name;
        while let Some(Edge { parent, letters, .. }) = edge(at) {
            let (start, end) = (length(*parent), length(at).min(out.len()));
            if let Some(into) = out.get_mut(start..end) {
                let letters = *letters as usize;
                into.copy_from_slice(&self.trie.bytes()[letters..letters + into.len()]);
            }
            at = *parent;
        }
        out
    }

    /// Memory for the names, in bytes, besides the trie.
    pub(super) fn memory_bytes(&self) -> usize {
        self.edges.capacity() * size_of::<Edge>()
    }
}

/// A node to read.
#[derive(Debug)]
struct ExportNode {
    at: usize,
    edge: u32,
    depth: u32,
}

#[derive(Default)]
struct Walk<'a> {
    trie: &'a [u8],
    /// Bytes that may still be read: each belongs to one node, so a walk that reads more is in a cycle, or in
    /// overlapping nodes.
    left: usize,
    edges: Vec<Edge>,
    exports: Vec<Export>,
    pending: Vec<ExportNode>,
}

impl Walk<'_> {
    /// Reads one node; `None` if it is malformed, or the byte limit is reached.
    fn node(&mut self, node: &ExportNode) -> Option<()> {
        // A node outside the trie loses only its own names.
        let Some(rest) = self.trie.get(node.at..).filter(|rest| !rest.is_empty()) else { return Some(()) };
        let mut rest = &rest[..rest.len().min(self.left)];
        let before = rest.len();

        let terminal_bytes = usize::try_from(take_unsigned(&mut rest)?).ok()?;
        let (mut terminal, mut rest) = rest.split_at_checked(terminal_bytes)?;
        if node.edge != ROOT
            && let Some(flags) = take_unsigned(&mut terminal)
            && flags & (KIND | REEXPORT) == 0
            && let Some(offset) = take_unsigned(&mut terminal)
        {
            self.exports.push(Export { offset, name: node.edge });
        }

        let (&children, after) = rest.split_first()?;
        rest = after;
        let length = self.edges.get(node.edge as usize).map_or(0, |edge| edge.length as usize);
        for _ in 0..children {
            let letters = rest.iter().position(|&byte| byte == 0)?;
            // In the trie itself, which is longer than the remaining limit.
            let at = rest.as_ptr().addr() - self.trie.as_ptr().addr();
            rest = &rest[letters + 1..];
            let child = usize::try_from(take_unsigned(&mut rest)?).ok()?;
            // No letters: ld64 creates a separate terminal node for a name that is a prefix of another.
            let length = length + letters;
            if length > NAME_BYTES_MAX || node.depth == DEPTH_MAX {
                continue;
            }
            let edge = u32::try_from(self.edges.len()).ok()?;
            self.edges.push(Edge {
                parent: node.edge,
                letters: u32::try_from(at).ok()?,
                length: length as u32,
            });
            self.pending.push(ExportNode { at: child, edge, depth: node.depth + 1 });
        }
        self.left -= before - rest.len();
        Some(())
    }
}

// ---- The raw symbol table of a Mach-O file, including object files: entries, names, and the indirect table.
//
// Format: `<mach-o/nlist.h>` and `<mach-o/loader.h>` of xnu.

/// An entry of the table.
pub(crate) type Nlist = Nlist64<LittleEndian>;

/// The kind of a debugging symbol (`N_FUN` and others); `None` for other symbols.
pub(crate) fn stab(symbol: &Nlist) -> Option<SymbolStab> {
    (symbol.n_type.0 & N_STAB != 0).then_some(SymbolStab(symbol.n_type.0))
}

/// Whether a symbol is defined in a section of its file.
pub(crate) fn is_defined(symbol: &Nlist) -> bool {
    stab(symbol).is_none() && symbol.n_type.0 & N_TYPE == N_SECT.0
}

/// The tables of a file; empty if it has none.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Nlists<'a> {
    /// The entries, in the order of the file.
    pub symbols: &'a [Nlist],
    /// Entry indices: the targets of stubs and pointers.
    pub indirect: &'a [U32<LittleEndian, IndirectSymbol>],
    strings: &'a [u8],
}

impl<'a> Nlists<'a> {
    /// Finds the tables; `None` if the file is not 64-bit Mach-O, or has no symbols.
    pub(crate) fn read(data: &'a [u8]) -> Option<Nlists<'a>> {
        let header = MachHeader64::<LittleEndian>::parse(data, 0).ok()?;
        let endian = header.endian().ok()?;
        let mut found = Nlists::default();
        let mut commands = header.load_commands(endian, data, 0).ok()?;
        while let Ok(Some(command)) = commands.next() {
            match command.variant() {
                Ok(LoadCommandVariant::Symtab(symtab)) => {
                    let table = symtab.symbols::<MachHeader64<LittleEndian>, _>(endian, data).ok()?;
                    found.symbols = table.symbols();
                    let start = symtab.stroff.get(endian) as usize;
                    let end = start.saturating_add(symtab.strsize.get(endian) as usize).min(data.len());
                    found.strings = data.get(start..end)?;
                }
                Ok(LoadCommandVariant::Dysymtab(dysymtab)) => {
                    found.indirect = dysymtab.indirect_symbols(endian, data).unwrap_or_default();
                }
                _ => {}
            }
        }
        (!found.symbols.is_empty()).then_some(found)
    }

    /// The name at an offset, truncated at `max_bytes`; empty if there is none.
    pub(crate) fn name(&self, offset: u32, max_bytes: usize) -> &'a [u8] {
        name_at(self.strings, offset, max_bytes)
    }
}

// ---- Names of Mach-O stubs: the code through which an image calls functions of others.
//
// No symbol names stubs; the section states the size of each and the start of their entries in the indirect symbol
// table.
//
// Format: `<mach-o/loader.h>` of xnu, `S_SYMBOL_STUBS` (`__stubs`, `__auth_stubs`).

/// The stubs of a file.
#[derive(Debug)]
pub struct Stubs<'a> {
    sections: Vec<Section<'a>>,
    nlists: Nlists<'a>,
}

impl<'a> Stubs<'a> {
    /// Finds the tables, if any address is in a stub section.
    #[must_use]
    pub fn read(data: &'a [u8], mut addresses: impl Iterator<Item = u64>) -> Option<Stubs<'a>> {
        let mut sections = sections::all(data).ok()?;
        sections.retain(|section| section.kind == u32::from(S_SYMBOL_STUBS.0) && section.info > 0);
        addresses.find(|address| sections.iter().any(|section| section.holds(*address)))?;
        Some(Stubs { sections, nlists: Nlists::read(data)? })
    }

    /// The function that the stub at an address jumps to, by its source name.
    #[must_use]
    pub fn name(&self, address: u64) -> Option<&'a [u8]> {
        let section = self.sections.iter().find(|section| section.holds(address))?;
        let number = (address - section.svma) / u64::from(section.info);
        let at = u64::from(section.link).checked_add(number)?;
        let index = self.nlists.indirect.get(usize::try_from(at).ok()?)?.get(LittleEndian);
        if index.intersects(INDIRECT_SYMBOL_LOCAL | INDIRECT_SYMBOL_ABS) {
            return None;
        }
        let symbol = self.nlists.symbols.get(index.0 as usize)?;
        let name = self.nlists.name(symbol.n_strx.get(LittleEndian), NAME_BYTES_MAX);
        let name = name.strip_prefix(b"_").unwrap_or(name);
        (!name.is_empty()).then_some(name)
    }
}
