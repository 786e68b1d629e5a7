//! The name of an entry's function, through the entries that it refers to.
//!
//! Input: entries, hostile. Output: mangled or plain names from the file; and readable names, each built once per
//! thread.

mod scopes;

use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gimli::{AttributeValue, DebugInfoOffset, UnitOffset, constants as c};
use hashbrown::{HashMap, HashSet};

use super::budget::{Budget, Dwarf, Result, Slice, TEXT_BYTES_PER_STEP};
use super::unit::{self, Abbrevs, Unit};
use crate::symbol::demangle::{Demangler, demangle_with};
use crate::symbol::short_name;
use crate::symbol::table::NAME_BYTES_MAX;
use crate::symbol::why::{Style, TEXT_BYTES_MAX};

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
        let scopes = scopes::of(self, &wanted, texts);
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
    fn hop(&mut self, (unit_at, entry): EntryKey, name: &mut Name<'a>) -> Result<Option<EntryKey>> {
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
            Style::Short => self.plain(&short_name::shorten(&self.readable(name))),
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
            Style::Short if !scope.is_empty() => self.plain(&short_name::shorten(&name)),
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
