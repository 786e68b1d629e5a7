//! The name of an entry's function, through the entries that it refers to.
//!
//! `NameReader` follows references, `Texts` keeps readable names, `EnclosingScopes` finds the namespaces and
//! classes around an entry.
//!
//! Input: entries, hostile. Output: mangled or plain names from the file; and readable names, each built once per
//! thread.

use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gimli::{AttributeValue, DebugInfoOffset, DwLang, DwTag, UnitOffset, constants as c};
use hashbrown::{HashMap, HashSet};

use super::unit::{self, Abbrevs, Budget, Dwarf, DwarfResult, Slice, TEXT_BYTES_PER_STEP, Unit};
use crate::symbol::demangle::{self, Demangler, demangle_with};
use crate::symbol::error::{Style, TEXT_BYTES_MAX};
use crate::symbol::table::NAME_BYTES_MAX;

/// Limit on references between a function and its name: an inlined one refers to its definition, that to a
/// declaration, and each may be in another unit.
const HOPS_MAX: usize = 8;
/// Limit on other units kept open. With link-time optimization units refer to many.
const OTHERS_MAX: usize = 64;

/// A function's names in the file.
#[derive(Clone, Copy, Debug, Default)]
struct Name<'a> {
    /// The mangled name.
    linkage: Option<&'a [u8]>,
    /// The source name, without scope.
    plain: Option<&'a [u8]>,
}

/// The file that contains an entry's unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum File {
    Own,
    Shared,
}

/// A unit by its offset; `None` is the current one.
type InUnit = Option<(File, usize)>;

/// An entry: its unit and its offset.
type EntryKey = (InUnit, UnitOffset);

/// Finds the names of one unit's functions.
pub(super) struct NameReader<'n, 'a, 'b> {
    dwarf: &'n Dwarf<'a>,
    unit: &'n Unit<'a>,
    budget: &'n Budget<'b>,
    /// Units by offset, opened when they are referred to.
    others: HashMap<(File, usize), Option<Unit<'a>>>,
    abbrevs: Abbrevs,
    /// Offsets of the units of the own file, if already known.
    units: Option<&'n [usize]>,
    own: OnceCell<Vec<usize>>,
    shared: OnceCell<Vec<usize>>,
}

impl<'n, 'a, 'b> NameReader<'n, 'a, 'b> {
    /// A reader for the entries of a unit; `units` are the offsets of all units, if known.
    pub(super) fn new(
        dwarf: &'n Dwarf<'a>,
        unit: &'n Unit<'a>,
        units: Option<&'n [usize]>,
        budget: &'n Budget<'b>,
    ) -> NameReader<'n, 'a, 'b> {
        NameReader {
            dwarf,
            unit,
            budget,
            others: HashMap::new(),
            abbrevs: Abbrevs::default(),
            units,
            own: OnceCell::new(),
            shared: OnceCell::new(),
        }
    }

    /// The readable names of entries of the unit; those without a name are omitted. Names of `inlined` entries
    /// include their scope, others are as in DWARF: these have the names of symbols.
    pub(super) fn readable(
        &mut self,
        entries: impl Iterator<Item = (UnitOffset, bool)>,
        texts: &mut Texts<'_>,
    ) -> HashMap<UnitOffset, Arc<str>> {
        let mut readable = HashMap::new();
        let mut plain = Vec::new();
        for (entry, inlined) in entries {
            let (name, at) = self.follow((None, entry));
            match (name.linkage, name.plain) {
                (None, Some(name)) if inlined && texts.shared.style != Style::Mangled => {
                    plain.push((entry, name, at));
                }
                _ => readable.extend(texts.function(name).map(|text| (entry, text))),
            }
        }
        let wanted: Vec<EntryKey> = plain.iter().map(|(.., at)| *at).collect();
        let scopes = of(self, &wanted, texts);
        for (entry, name, at) in plain {
            let scope = scopes.get(&at).map_or("", String::as_str);
            readable.extend(texts.scoped(scope, name).map(|text| (entry, text)));
        }
        readable
    }

    /// The names of an entry, and the last of the entries that it refers to; invalid references are ignored.
    fn follow(&mut self, mut at: EntryKey) -> (Name<'a>, EntryKey) {
        let mut name = Name::default();
        for _ in 0..HOPS_MAX {
            match self.hop(at, &mut name) {
                Ok(Some(next)) if name.linkage.is_none() => at = next,
                _ => break,
            }
        }
        (name, at)
    }

    /// An open unit.
    fn unit(&self, unit: InUnit) -> Option<(&Dwarf<'a>, &Unit<'a>)> {
        let Some(key) = unit else { return Some((self.dwarf, self.unit)) };
        let dwarf = if key.0 == File::Shared { self.dwarf.sup()? } else { self.dwarf };
        Some((dwarf, self.others.get(&key)?.as_ref()?))
    }

    /// Reads the names of one entry, and its reference to another.
    fn hop(&mut self, (unit_at, entry): EntryKey, name: &mut Name<'a>) -> DwarfResult<Option<EntryKey>> {
        let Some((dwarf, unit)) = self.unit(unit_at) else { return Ok(None) };
        let mut next = None;
        let mut entries = unit.entries_raw(Some(entry))?;
        let Some(abbrev) = entries.read_abbreviation()? else { return Ok(None) };
        self.budget.spend(abbrev.attributes().len() as u64)?;
        for spec in abbrev.attributes() {
            match spec.name() {
                c::DW_AT_linkage_name | c::DW_AT_MIPS_linkage_name | c::DW_AT_name => {
                    let value = entries.read_attribute(*spec)?.value();
                    let Ok(text) = dwarf.attr_string(unit, value) else { continue };
                    let into = if spec.name() == c::DW_AT_name { &mut name.plain } else { &mut name.linkage };
                    self.budget.spend(text.len() as u64 / TEXT_BYTES_PER_STEP)?;
                    let text = &text.slice()[..text.len().min(NAME_BYTES_MAX)];
                    *into = into.or((!text.is_empty()).then_some(text));
                }
                c::DW_AT_abstract_origin | c::DW_AT_specification => {
                    next = Some(entries.read_attribute(*spec)?.value());
                }
                _ => entries.skip_attributes(std::slice::from_ref(spec))?,
            }
        }
        let own = unit_at.map_or(File::Own, |(file, _)| file);
        Ok(match next {
            Some(AttributeValue::UnitRef(entry)) => Some((unit_at, entry)),
            Some(AttributeValue::DebugInfoRef(DebugInfoOffset(at))) => self.open(own, at),
            Some(AttributeValue::DebugInfoRefSup(DebugInfoOffset(at))) => self.open(File::Shared, at),
            _ => None,
        })
    }

    /// Opens the unit that contains an entry of a file.
    fn open(&mut self, file: File, at: usize) -> Option<EntryKey> {
        let (dwarf, units) = match file {
            File::Own => (self.dwarf, &self.own),
            File::Shared => (self.dwarf.sup()?, &self.shared),
        };
        let units = match self.units.filter(|_| file == File::Own) {
            Some(known) => known,
            None => units.get_or_init(|| offsets(dwarf, self.budget)),
        };
        let start = *units.get(units.partition_point(|unit| *unit <= at).checked_sub(1)?)?;
        let key = (file, start);
        if !self.others.contains_key(&key) {
            if self.others.len() >= OTHERS_MAX {
                self.others.clear();
            }
            let header = dwarf.debug_info.header_from_offset(DebugInfoOffset(start)).ok()?;
            let opened = unit::open(dwarf, header, &mut self.abbrevs, self.budget);
            self.others.insert(key, opened.ok().map(|opened| opened.unit));
        }
        Some((Some(key), UnitOffset(at - start)))
    }
}

/// Offsets of the units of a file.
fn offsets(dwarf: &Dwarf<'_>, budget: &Budget<'_>) -> Vec<usize> {
    let mut units = Vec::new();
    let mut headers = dwarf.units();
    while let Ok(Some(header)) = headers.next() {
        units.extend(header.debug_info_offset().map(|offset| offset.0));
        // Each unit of the file that refers to this one requests it again.
        if budget.spend(1).is_err() {
            break;
        }
    }
    units
}

/// State shared by the threads that build names.
#[derive(Debug)]
pub struct TextsShared {
    bytes: AtomicUsize,
    style: Style,
    swift: Demangler,
}

impl TextsShared {
    /// For names of one style; `swift` demangles Swift's.
    #[must_use]
    pub fn new(style: Style, swift: Demangler) -> TextsShared {
        TextsShared { bytes: AtomicUsize::new(0), style, swift }
    }
}

/// Readable names, each built once per thread.
///
/// Names are identified by their address, so a `Texts` must not outlive the files it is used with.
#[derive(Debug)]
pub struct Texts<'s> {
    shared: &'s TextsShared,
    mangled: HashMap<(usize, usize), Option<Arc<str>>>,
    known: HashSet<Arc<str>>,
}

impl<'s> Texts<'s> {
    /// The names of one thread.
    #[must_use]
    pub fn new(shared: &'s TextsShared) -> Texts<'s> {
        Texts { shared, mangled: HashMap::new(), known: HashSet::new() }
    }

    /// The readable form of a mangled name; `None` if names exceed the memory limit.
    pub fn mangled(&mut self, name: &[u8]) -> Option<Arc<str>> {
        let key = (name.as_ptr().addr(), name.len());
        if let Some(known) = self.mangled.get(&key) {
            return known.clone();
        }
        let text = self.mangled_anywhere(name);
        self.mangled.insert(key, text.clone());
        text
    }

    /// The readable form of a mangled name that is not in a file and so cannot be identified by its address.
    pub fn mangled_anywhere(&mut self, name: &[u8]) -> Option<Arc<str>> {
        match self.shared.style {
            Style::Readable => self.plain(&self.readable(name)),
            Style::Short => self.plain(&demangle::shorten(&self.readable(name))),
            Style::Mangled => self.plain(&String::from_utf8_lossy(name)),
        }
    }

    /// The readable form of a mangled name, independent of style; not cached.
    #[must_use]
    pub fn readable(&self, name: &[u8]) -> String {
        demangle_with(name, self.shared.swift)
    }

    /// Must be called before a file with names is closed.
    pub fn forget_places(&mut self) {
        self.mangled.clear();
    }

    /// A text without demangling; `None` if names exceed the memory limit.
    pub fn plain(&mut self, text: &str) -> Option<Arc<str>> {
        if let Some(known) = self.known.get(text) {
            return Some(Arc::clone(known));
        }
        let before = self.shared.bytes.fetch_add(text.len(), Ordering::Relaxed);
        if before + text.len() > TEXT_BYTES_MAX {
            self.shared.bytes.fetch_sub(text.len(), Ordering::Relaxed);
            return None;
        }
        let text: Arc<str> = Arc::from(text);
        self.known.insert(Arc::clone(&text));
        Some(text)
    }

    /// The readable name of a function with a scope.
    fn scoped(&mut self, scope: &str, name: &[u8]) -> Option<Arc<str>> {
        let name = format!("{scope}{}", String::from_utf8_lossy(name));
        match self.shared.style {
            Style::Short if !scope.is_empty() => self.plain(&demangle::shorten(&name)),
            _ => self.plain(&name),
        }
    }

    /// The readable name of a function.
    fn function(&mut self, name: Name<'_>) -> Option<Arc<str>> {
        match (name.linkage, name.plain) {
            (Some(linkage), _) => self.mangled(linkage),
            (None, Some(plain)) => self.plain(&String::from_utf8_lossy(plain)),
            (None, None) => None,
        }
    }
}

/// The text of a section's string, with the lifetime of the section.
pub(super) fn text<'a>(slice: Slice<'a>) -> std::borrow::Cow<'a, str> {
    String::from_utf8_lossy(slice.slice())
}

// ---- The scope of a function: the namespaces, modules and classes around its entry, for names without a mangled
// form. GCC emits none for names with internal linkage (static functions, anonymous namespaces, lambdas); if
// compilers emit line tables only (`-g1`, `line-tables-only`) there are no entries around a function either, and
// its name remains plain.
//
// An entry does not refer to its parent, so a unit is read again up to the last requested entry; only if there is
// one.

/// Limit on nested scopes; real names have up to ten.
const AROUND_MAX: usize = 32;
/// Typical size of an entry in most files, in bytes.
const ENTRY_BYTES: u64 = 8;

/// An entry around another.
#[derive(Clone, Copy, Debug)]
struct Scope {
    entry: UnitOffset,
    tag: DwTag,
}

/// The prefixes of entries' names, for example `outer::(anonymous namespace)::`. Entries without a scope are
/// omitted.
fn of(
    names: &mut NameReader<'_, '_, '_>,
    wanted: &[EntryKey],
    texts: &Texts<'_>,
) -> HashMap<EntryKey, String> {
    let mut by_unit = wanted.to_vec();
    by_unit.sort_unstable();
    by_unit.dedup();
    let mut found = HashMap::new();
    for same in by_unit.chunk_by(|a, b| a.0 == b.0) {
        let entries: Vec<UnitOffset> = same.iter().map(|(_, entry)| *entry).collect();
        let Some((_, unit)) = names.unit(same[0].0) else { continue };
        let mut around = EnclosingScopes { separator: "::", of: Vec::new() };
        // Malformed data ends the pass; earlier results are kept.
        let _ = around.read(unit, &entries, names.budget);
        for (entry, scopes) in around.of {
            let scope_text = scope_text(names, same[0].0, &scopes, around.separator, texts);
            if !scope_text.is_empty() {
                found.insert((same[0].0, entry), scope_text);
            }
        }
    }
    found
}

/// The scopes around entries of a unit.
struct EnclosingScopes {
    separator: &'static str,
    of: Vec<(UnitOffset, Vec<Scope>)>,
}

impl EnclosingScopes {
    /// Reads a unit up to the last of `wanted`, which are sorted.
    fn read(&mut self, unit: &Unit<'_>, wanted: &[UnitOffset], budget: &Budget<'_>) -> DwarfResult<()> {
        let mut wanted = wanted.iter().peekable();
        let mut entries = unit.entries_raw(None)?;
        let mut around: Vec<(isize, Scope)> = Vec::new();
        // Depth where a jump restarts.
        let mut base = 0;
        while let Some(&&next) = wanted.peek().filter(|_| !entries.is_empty()) {
            let (entry, depth) = (entries.next_offset(), base + entries.next_depth());
            let Some(abbrev) = entries.read_abbreviation()? else { continue };
            budget.spend(1 + abbrev.attributes().len() as u64 / ENTRY_BYTES)?;
            while around.last().is_some_and(|(around, _)| *around >= depth) {
                around.pop();
            }
            // A wanted offset in the middle of another entry is invalid.
            while wanted.next_if(|wanted| **wanted < entry).is_some() {}
            if wanted.next_if(|wanted| **wanted == entry).is_some() {
                let first = around.len().saturating_sub(AROUND_MAX);
                self.of.push((entry, around[first..].iter().map(|(_, scope)| *scope).collect()));
            }
            let (mut sibling, mut language) = (None, None);
            for spec in abbrev.attributes() {
                match spec.name() {
                    c::DW_AT_sibling | c::DW_AT_language => match entries.read_attribute(*spec)?.value() {
                        AttributeValue::UnitRef(to) => sibling = Some(to),
                        AttributeValue::Language(of) => language = Some(of),
                        _ => {}
                    },
                    _ => entries.skip_attributes(std::slice::from_ref(spec))?,
                }
            }
            if let Some(language) = language.filter(|_| depth == 0) {
                match separator(language) {
                    Some(separator) => self.separator = separator,
                    None => return Ok(()),
                }
            }
            let next = wanted.peek().map_or(next, |next| **next);
            if let Some(sibling) = sibling.filter(|to| *to > entries.next_offset() && *to <= next) {
                entries = unit.entries_raw(Some(sibling))?;
                base = depth;
            } else if abbrev.has_children() && is_scope(abbrev.tag()) {
                around.push((depth, Scope { entry, tag: abbrev.tag() }));
            }
        }
        Ok(())
    }
}

/// A language's separator of names; `None` if functions have no scope.
fn separator(language: DwLang) -> Option<&'static str> {
    match language {
        c::DW_LANG_C89 | c::DW_LANG_C | c::DW_LANG_C99 | c::DW_LANG_C11 | c::DW_LANG_C17 => None,
        c::DW_LANG_ObjC | c::DW_LANG_Mips_Assembler => None,
        c::DW_LANG_Ada83 | c::DW_LANG_Ada95 | c::DW_LANG_Ada2005 | c::DW_LANG_Ada2012 => Some("."),
        c::DW_LANG_D | c::DW_LANG_Java | c::DW_LANG_Kotlin | c::DW_LANG_Go => Some("."),
        c::DW_LANG_Swift | c::DW_LANG_Zig | c::DW_LANG_OCaml | c::DW_LANG_Haskell => Some("."),
        _ => Some("::"),
    }
}

fn is_scope(tag: DwTag) -> bool {
    is_type(tag) || matches!(tag, c::DW_TAG_namespace | c::DW_TAG_module | c::DW_TAG_subprogram)
}

fn is_type(tag: DwTag) -> bool {
    matches!(
        tag,
        c::DW_TAG_class_type
            | c::DW_TAG_structure_type
            | c::DW_TAG_union_type
            | c::DW_TAG_interface_type
            | c::DW_TAG_enumeration_type
    )
}

/// The names of the scopes around an entry, outermost first, each followed by the separator.
fn scope_text(
    names: &mut NameReader<'_, '_, '_>,
    unit: InUnit,
    scopes: &[Scope],
    separator: &str,
    texts: &Texts<'_>,
) -> String {
    // Functions in functions (GNU C, Fortran, Ada) remain plain; only types in functions do not.
    let last = scopes.iter().rposition(|scope| scope.tag != c::DW_TAG_subprogram);
    let mut parts: Vec<String> = Vec::new();
    let mut bytes = 0;
    for scope in scopes[..last.map_or(0, |last| last + 1)].iter().rev() {
        let (name, _) = names.follow((unit, scope.entry));
        let part = match (name.linkage, name.plain) {
            (Some(linkage), _) => texts.readable(linkage),
            (None, Some(plain)) => String::from_utf8_lossy(plain).into_owned(),
            (None, None) if scope.tag == c::DW_TAG_namespace => "(anonymous namespace)".to_owned(),
            (None, None) if is_type(scope.tag) => "(anonymous class)".to_owned(),
            (None, None) => continue,
        };
        bytes += part.len() + separator.len();
        if bytes > NAME_BYTES_MAX {
            break;
        }
        parts.push(part);
        // A mangled name includes its scope.
        if name.linkage.is_some() {
            break;
        }
    }
    parts.into_iter().rev().flat_map(|part| [part, separator.to_owned()]).collect()
}
