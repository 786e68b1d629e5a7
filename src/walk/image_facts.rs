//! Facts about code in mapped files, shared by all processes that map them: a build runs the same compiler a
//! thousand times. Input: code addresses and facts about them; output: the same facts, at any address and in any
//! process.
//!
//! A fact is shared only if it depends on nothing but the bytes of one mapping of one file: [`Scope`] monitors the
//! requests while it is learned. If two processes map the same part of the same file, all requests within it have
//! the same answer (see [`FilePlace`]). Code in memory only belongs to one process.

use std::cell::{Cell, RefCell};
use std::hash::Hash;
use std::ops::Range;
use std::rc::Rc;

use hashbrown::HashMap;

use super::code::{Code, CodeTraits, FilePlace};
use super::glance::Glance;
use crate::addr::{Avma, CodeAddress};
use crate::binary::frame_rule::{AnyRow, Body, ExidxEntry, Row};

/// Limit on facts of one kind; one more clears them all. The capacity of a hash table with 65,536 slots.
const FACTS_MAX: usize = 7 << 13;
/// Limit on facts that contain a whole row, which is half a kilobyte.
const ROWS_MAX: usize = 4096;
/// Limit on mappings with facts.
const MAPPINGS_MAX: usize = 1 << 14;
/// The bit that marks the key of a return address rather than a program counter; offsets are below it.
const IS_RETURN: u64 = 1 << 31;

/// A file mapping: the image, its file offset, its size in bytes.
type Mapping = (u32, u64, u64);

/// The key of a fact, in all processes: a number for the mapping and the offset in it; and its other dependency.
type Key<E> = (u64, E);

/// Facts of one kind. `E`: the dependency of a fact besides its address.
#[derive(Debug)]
struct Facts<E, F> {
    mappings: HashMap<Mapping, u32>,
    facts: HashMap<Key<E>, F>,
    /// Number of facts that contain a whole row.
    rows: usize,
}

/// Facts of one kind, shared by unwinders. Clones share them.
#[derive(Debug)]
pub(in crate::walk) struct ImageFacts<E, F>(Rc<RefCell<Facts<E, F>>>);

impl<E, F> Default for ImageFacts<E, F> {
    fn default() -> ImageFacts<E, F> {
        let facts = Facts { mappings: HashMap::new(), facts: HashMap::new(), rows: 0 };
        ImageFacts(Rc::new(RefCell::new(facts)))
    }
}

impl<E, F> Clone for ImageFacts<E, F> {
    fn clone(&self) -> ImageFacts<E, F> {
        ImageFacts(Rc::clone(&self.0))
    }
}

/// Key of a fact: a code address relative to the mapped file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::walk) struct FactKey {
    address: u64,
    /// The addresses of the mapping.
    pub mapped: Range<Avma>,
}

impl<E: Copy + Eq + Hash, F: Clone> ImageFacts<E, F> {
    /// The key of the fact about an address; `None` for code outside files.
    pub(in crate::walk) fn key(&self, address: CodeAddress, code: &dyn Code) -> Option<FactKey> {
        let lookup = address.lookup().at();
        let FilePlace { image, file_offset, mapped } = code.file_place(lookup)?;
        let offset = lookup.0.checked_sub(mapped.start.0)?;
        let bytes = mapped.end.0.checked_sub(mapped.start.0).filter(|bytes| *bytes < IS_RETURN)?;
        let mut facts = self.0.borrow_mut();
        if facts.mappings.len() >= MAPPINGS_MAX {
            facts.clear();
        }
        let next = facts.mappings.len() as u32;
        let mapping = *facts.mappings.entry((image, file_offset, bytes)).or_insert(next);
        let is_return = if address.is_return() { IS_RETURN } else { 0 };
        Some(FactKey { address: u64::from(mapping) << 32 | is_return | offset, mapped })
    }

    /// The fact with this key.
    pub(in crate::walk) fn get(&self, key: &FactKey, depends_on: E) -> Option<F> {
        self.0.borrow().facts.get(&(key.address, depends_on)).cloned()
    }

    /// Number of cached facts.
    #[cfg(test)]
    pub(in crate::walk) fn len(&self) -> usize {
        self.0.borrow().facts.len()
    }

    /// Caches a fact. `has_row`: it contains a whole row.
    pub(in crate::walk) fn insert(&self, key: &FactKey, depends_on: E, fact: F, has_row: bool) {
        let mut facts = self.0.borrow_mut();
        if facts.facts.len() >= FACTS_MAX || has_row && facts.rows >= ROWS_MAX {
            facts.facts.clear();
            facts.rows = 0;
        }
        if facts.facts.insert((key.address, depends_on), fact).is_none() {
            facts.rows += usize::from(has_row);
        }
    }
}

impl<E, F> Facts<E, F> {
    /// Also clears the numbers of mappings: keys made before must no longer be used.
    fn clear(&mut self) {
        self.mappings.clear();
        self.facts.clear();
        self.rows = 0;
    }
}

/// Code while a fact about one mapping is learned: records whether anything else was requested.
pub(in crate::walk) struct Scope<'c> {
    code: &'c dyn Code,
    mapped: Range<Avma>,
    is_left: Cell<bool>,
}

impl<'c> Scope<'c> {
    pub(in crate::walk) fn new(code: &'c dyn Code, mapped: Range<Avma>) -> Scope<'c> {
        Scope { code, mapped, is_left: Cell::new(false) }
    }

    /// Whether code outside the mapping was requested.
    pub(in crate::walk) fn is_left(&self) -> bool {
        self.is_left.get()
    }

    fn note(&self, at: Avma) -> &'c dyn Code {
        if !self.mapped.contains(&at) {
            self.is_left.set(true);
        }
        self.code
    }
}

/// Must implement every method of [`Code`]: a default method would answer instead of the wrapped code.
impl Code for Scope<'_> {
    fn is_code(&self, at: Avma) -> bool {
        self.note(at).is_code(at)
    }

    fn code(&self, at: Avma) -> Option<&[u8]> {
        self.note(at).code(at)
    }

    fn glance(&self, at: Avma) -> Glance {
        self.note(at).glance(at)
    }

    fn traits(&self, at: Avma) -> CodeTraits {
        self.note(at).traits(at)
    }

    fn file_place(&self, at: Avma) -> Option<FilePlace> {
        self.note(at).file_place(at)
    }

    fn note_dependency(&self, first: Avma, last: Avma) {
        self.note(first).note_dependency(first, last);
        self.note(last);
    }

    fn commit_dependencies(&self, lookup: Avma) -> bool {
        self.note(lookup).commit_dependencies(lookup)
    }

    fn is_interrupted(&self) -> bool {
        self.code.is_interrupted()
    }

    fn may_follow(&self, lookup: Avma) -> bool {
        self.note(lookup).may_follow(lookup)
    }

    fn note_search(&self, from: Avma, to: Avma) {
        self.note(from).note_search(from, to);
        self.note(Avma(to.0.saturating_sub(1)));
    }

    fn row(&self, lookup: Avma) -> Option<AnyRow> {
        self.note(lookup).row(lookup)
    }

    fn row_in_epilogue(&self, pc: Avma) -> Option<Row> {
        self.note(pc).row_in_epilogue(pc)
    }

    fn is_t32(&self, pc: Avma) -> Option<bool> {
        self.note(pc).is_t32(pc)
    }

    fn exidx(&self, lookup: Avma) -> Option<(Range<Avma>, ExidxEntry)> {
        self.note(lookup).exidx(lookup)
    }

    fn describes_frames(&self, lookup: Avma) -> bool {
        self.note(lookup).describes_frames(lookup)
    }

    fn body(&self, lookup: Avma) -> Option<Body> {
        self.note(lookup).body(lookup)
    }

    fn begins_threads(&self, lookup: Avma) -> Option<bool> {
        self.note(lookup).begins_threads(lookup)
    }

    fn entry(&self, pc: Avma) -> Option<Avma> {
        self.note(pc).entry(pc)
    }

    fn described_function(&self, lookup: Avma) -> Option<Range<Avma>> {
        self.note(lookup).described_function(lookup)
    }

    fn function(&self, pc: Avma) -> Option<Range<Avma>> {
        self.note(pc).function(pc)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mapped file without other facts.
    struct MappedFile(FilePlace);

    impl Code for MappedFile {
        fn is_code(&self, _: Avma) -> bool {
            false
        }
        fn code(&self, _: Avma) -> Option<&[u8]> {
            None
        }
        fn file_place(&self, at: Avma) -> Option<FilePlace> {
            self.0.mapped.contains(&at).then(|| self.0.clone())
        }
    }

    const START: u64 = 0x7000_0000;

    fn mapped(image: u32, bytes: u64) -> MappedFile {
        MappedFile(FilePlace { image, file_offset: 0x1000, mapped: Avma(START)..Avma(START + bytes) })
    }

    fn key(facts: &ImageFacts<(), u64>, image: u32, at: u64) -> FactKey {
        facts.key(CodeAddress::Pc(Avma(START + at)), &mapped(image, 1 << 30)).expect("in a file")
    }

    #[test]
    fn an_address_has_separate_facts_as_pc_and_return_address() {
        let facts: ImageFacts<(), u64> = ImageFacts::default();
        let code = mapped(1, 0x1000);
        let (pc, returned) = (CodeAddress::Pc(Avma(START + 4)), CodeAddress::Return(Avma(START + 5)));
        for (fact, address) in [pc, returned].into_iter().enumerate() {
            let key = facts.key(address, &code).expect("in a file");
            assert_eq!(facts.get(&key, ()), None);
            facts.insert(&key, (), fact as u64, false);
            assert_eq!(facts.clone().get(&key, ()), Some(fact as u64));
        }
        assert_eq!(facts.key(CodeAddress::Pc(Avma(START + 0x1000)), &code), None);
        assert_eq!(facts.key(pc, &mapped(1, IS_RETURN)), None, "larger than offsets are");
    }

    #[test]
    fn cached_facts_are_bounded() {
        let facts: ImageFacts<(), u64> = ImageFacts::default();
        for at in 0..2 * FACTS_MAX as u64 {
            facts.insert(&key(&facts, 1, at), (), at, false);
        }
        assert_eq!(facts.0.borrow().facts.len(), FACTS_MAX);
        assert!(facts.0.borrow().facts.capacity() == FACTS_MAX, "no more memory than that");
        for at in 0..3 * ROWS_MAX as u64 {
            facts.insert(&key(&facts, 2, at), (), at, true);
        }
        assert!(facts.0.borrow().rows <= ROWS_MAX && facts.0.borrow().facts.len() <= FACTS_MAX);
        for image in 0..3 * MAPPINGS_MAX as u32 {
            let last = key(&facts, image, 0);
            facts.insert(&last, (), image.into(), false);
            assert_eq!(facts.get(&last, ()), Some(image.into()));
        }
        assert!(facts.0.borrow().mappings.len() <= MAPPINGS_MAX);
    }

    #[test]
    fn a_scope_reports_requests_outside_it() {
        let code = mapped(1, 0x1000);
        let left = |ask: &dyn Fn(&dyn Code)| {
            let scope = Scope::new(&code, code.0.mapped.clone());
            ask(&scope);
            scope.is_left()
        };
        let (inside, last, behind) = (Avma(START), Avma(START + 0xfff), Avma(START + 0x1000));
        assert!(!left(&|code| {
            let _ = (code.is_code(inside), code.code(last), code.glance(inside), code.traits(last));
            let _ = (code.row(inside), code.function(last), code.body(inside), code.entry(last));
            code.note_dependency(inside, last);
            code.note_search(inside, behind);
        }));
        assert!(left(&|code| _ = code.is_code(behind)));
        assert!(left(&|code| _ = code.code(Avma(START - 1))));
        assert!(left(&|code| _ = code.glance(behind)));
        assert!(left(&|code| _ = code.traits(behind)));
        assert!(left(&|code| _ = code.row(behind)));
        assert!(left(&|code| _ = code.row_in_epilogue(behind)));
        assert!(left(&|code| _ = code.is_t32(behind)));
        assert!(left(&|code| _ = code.exidx(behind)));
        assert!(left(&|code| _ = code.describes_frames(behind)));
        assert!(left(&|code| _ = code.body(behind)));
        assert!(left(&|code| _ = code.begins_threads(behind)));
        assert!(left(&|code| _ = code.entry(behind)));
        assert!(left(&|code| _ = code.described_function(behind)));
        assert!(left(&|code| _ = code.function(behind)));
        assert!(left(&|code| code.note_dependency(inside, behind)));
        assert!(left(&|code| code.note_search(inside, behind + 1)));
    }
}
