//! Facts about code in mapped files, shared by all processes that map them: a build runs the same compiler a
//! thousand times. Input: code addresses and facts about them; output: the same facts, at any address and in any
//! process.
//!
//! `ImageFacts` are the facts, `Scope` decides which are shared; `Table` is the table of facts about code
//! addresses, also of one process.
//!
//! A fact is shared only if it depends on nothing but the bytes of one mapping of one file: [`Scope`] monitors the
//! requests while it is learned. If two processes map the same part of the same file, all requests within it have
//! the same answer (see [`FilePlace`]). Code in memory only belongs to one process.

use std::cell::{Cell, RefCell};
use std::hash::Hash;
use std::ops::Range;
use std::rc::Rc;

use hashbrown::HashMap;

use super::code::{Code, FilePlace, Glance};
use crate::addr::{Avma, CodeAddress};

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
pub(crate) struct ImageFacts<E, F>(Rc<RefCell<Facts<E, F>>>);

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
pub(crate) struct FactKey {
    address: u64,
    /// The addresses of the mapping.
    pub mapped: Range<Avma>,
}

impl<E: Copy + Eq + Hash, F: Clone> ImageFacts<E, F> {
    /// The key of the fact about an address; `None` for code outside files.
    pub(crate) fn key(&self, address: CodeAddress, code: &dyn Code) -> Option<FactKey> {
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
    pub(crate) fn get(&self, key: &FactKey, depends_on: E) -> Option<F> {
        self.0.borrow().facts.get(&(key.address, depends_on)).cloned()
    }

    /// Number of cached facts.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn len(&self) -> usize {
        self.0.borrow().facts.len()
    }

    /// Caches a fact. `has_row`: it contains a whole row.
    pub(crate) fn insert(&self, key: &FactKey, depends_on: E, fact: F, has_row: bool) {
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
pub(crate) struct Scope<'c> {
    code: &'c dyn Code,
    mapped: Range<Avma>,
    is_left: Cell<bool>,
}

impl<'c> Scope<'c> {
    pub(crate) fn new(code: &'c dyn Code, mapped: Range<Avma>) -> Scope<'c> {
        Scope { code, mapped, is_left: Cell::new(false) }
    }

    /// Whether code outside the mapping was requested.
    pub(crate) fn is_left(&self) -> bool {
        self.is_left.get()
    }

    fn note(&self, at: Avma) -> &'c dyn Code {
        if !self.mapped.contains(&at) {
            self.is_left.set(true);
        }
        self.code
    }
}

impl Code for Scope<'_> {
    fn inner(&self, at: Avma) -> Option<&dyn Code> {
        Some(self.note(at))
    }

    fn is_code(&self, at: Avma) -> bool {
        self.note(at).is_code(at)
    }

    fn code(&self, at: Avma) -> Option<&[u8]> {
        self.note(at).code(at)
    }

    fn glance(&self, at: Avma) -> Glance {
        self.note(at).glance(at)
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
}

// ---- A table of facts about code addresses, for look-ups at every frame.
//
// Open addressing from a home slot. The table grows with the number of addresses and is at most a quarter full, so
// that nearly every key is in its home slot. In a direct-mapped table of fixed size a few hundred addresses already
// evict each other, and each loss costs as much as a hundred look-ups.

/// A key that no address has (see [`key`], and [`Table::get`]).
const NO_KEY: u64 = u64::MAX;
/// The bit that distinguishes the key of a return address from that of a program counter.
const RETURN_BIT: u64 = 1 << 63;
/// Slots of a table with one entry, and the limit; powers of two.
const SLOTS_MIN: usize = 64;
const SLOTS_MAX: usize = 1 << 17;
/// Slots per entry while the table may grow.
const SLOTS_PER_ENTRY: usize = 4;
/// Number of slots, from its home on, that may hold a key.
const PROBES: usize = 8;

/// The key of an address, which differs between return address and program counter. User-mode addresses never have
/// the highest bit set: addresses with it share keys with others, and may then not be recognized as return
/// addresses.
#[inline(always)]
pub(super) fn key(address: CodeAddress) -> u64 {
    match address {
        CodeAddress::Pc(at) => at.0,
        CodeAddress::Return(at) => at.0.wrapping_sub(1) ^ RETURN_BIT,
    }
}

/// The look-up address of a key.
pub(super) fn lookup_of(key: u64) -> Avma {
    Avma(key & !RETURN_BIT)
}

/// Values by key, with open addressing. Allocates nothing until the first insertion.
#[derive(Clone, Debug)]
pub(super) struct Table<V> {
    slots: Box<[(u64, V)]>,
    len: usize,
}

impl<V: Copy + Default> Default for Table<V> {
    fn default() -> Table<V> {
        Table { slots: Box::default(), len: 0 }
    }
}

impl<V: Copy + Default> Table<V> {
    /// Removes all keys and frees their memory.
    pub(super) fn clear(&mut self) {
        *self = Table::default();
    }

    /// The value of a key, if it was inserted and not overwritten since. The key `u64::MAX` has no value or the
    /// default value.
    #[inline(always)]
    pub(super) fn get(&self, key: u64) -> Option<V> {
        let (found, value) = self.slots.get(home(key) & self.slots.len().wrapping_sub(1))?;
        if *found == key { Some(*value) } else { self.get_away_from_home(key) }
    }

    #[inline(never)]
    fn get_away_from_home(&self, key: u64) -> Option<V> {
        let places = (home(key)..home(key) + PROBES).map(|at| at & (self.slots.len() - 1));
        let filled = places.map_while(|at| self.slots.get(at).filter(|slot| slot.0 != NO_KEY));
        filled.into_iter().find(|slot| slot.0 == key).map(|slot| slot.1)
    }

    /// Sets the value of a key; may evict another key.
    pub(super) fn insert(&mut self, key: u64, value: V) {
        if key == NO_KEY {
            return;
        }
        let wanted = (self.len + 1) * SLOTS_PER_ENTRY;
        if wanted > self.slots.len() && self.slots.len() < SLOTS_MAX {
            self.grow((2 * wanted).next_power_of_two().clamp(SLOTS_MIN, SLOTS_MAX));
        }
        self.place(key, value);
    }

    /// Removes the keys for which `stays` returns false.
    pub(super) fn retain(&mut self, stays: impl Fn(u64) -> bool) {
        // Mostly all of them stay, and a new table would touch fresh memory.
        let goes = |(key, _): &(u64, V)| *key != NO_KEY && !stays(*key);
        if self.slots.iter().any(goes) {
            self.rebuild(self.slots.len(), stays);
        }
    }

    fn grow(&mut self, slots: usize) {
        self.rebuild(slots, |_| true);
    }

    fn rebuild(&mut self, slots: usize, stays: impl Fn(u64) -> bool) {
        let before = std::mem::replace(&mut self.slots, vec![(NO_KEY, V::default()); slots].into());
        self.len = 0;
        for (key, value) in before.into_iter().filter(|(key, _)| *key != NO_KEY && stays(*key)) {
            self.place(key, value);
        }
    }

    fn place(&mut self, key: u64, value: V) {
        let mask = self.slots.len() - 1;
        let home = home(key);
        let places = (home..home + PROBES).map(|at| at & mask);
        let free = { places }.find(|at| [NO_KEY, key].contains(&self.slots[*at].0));
        let slot = &mut self.slots[free.unwrap_or(home & mask)];
        self.len += usize::from(slot.0 == NO_KEY);
        *slot = (key, value);
    }
}

/// The home slot of a key, before reduction to the table size. Neighboring functions differ in the low bits,
/// libraries in the high ones.
#[inline(always)]
fn home(key: u64) -> usize {
    (key ^ key >> 13) as u32 as usize
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

#[cfg(test)]
mod table_tests {
    use super::*;

    fn keys(count: u64) -> impl Iterator<Item = u64> {
        (0..count).map(|index| 0x5555_5540_0000 + index * 37 + ((index % 7) << 36))
    }

    #[test]
    fn nothing_is_lost_while_the_table_may_grow() {
        let mut table = Table::default();
        assert_eq!(table.get(1), None);
        let count = (SLOTS_MAX / SLOTS_PER_ENTRY) as u64;
        for (value, key) in keys(count).enumerate() {
            assert_eq!(table.get(key), None);
            table.insert(key, value);
        }
        let found = keys(count).enumerate().filter(|(value, key)| table.get(*key) == Some(*value)).count();
        assert_eq!((found, table.slots.len()), (count as usize, SLOTS_MAX));
        table.clear();
        assert_eq!(keys(count).find_map(|key| table.get(key)), None);
    }

    #[test]
    fn retain_removes_only_unwanted_keys() {
        let mut table = Table::default();
        keys(1000).for_each(|key| table.insert(key, key));
        table.retain(|key| key % 2 == 0);
        assert!(keys(1000).all(|key| table.get(key) == (key % 2 == 0).then_some(key)));
        let mut empty: Table<u64> = Table::default();
        empty.retain(|_| false);
        assert_eq!(empty.get(1), None);
    }

    #[test]
    fn a_key_has_one_value() {
        let mut table = Table::default();
        table.insert(5, 1);
        table.insert(5, 2);
        assert_eq!((table.get(5), table.len), (Some(2), 1));
    }

    #[test]
    fn more_keys_than_slots_overwrite_and_never_mix() {
        let mut table = Table::default();
        for key in keys(3 * SLOTS_MAX as u64) {
            table.insert(key, key);
        }
        assert_eq!(table.slots.len(), SLOTS_MAX);
        let kept = keys(3 * SLOTS_MAX as u64).filter(|key| table.get(*key) == Some(*key)).count();
        assert!((SLOTS_MAX / 2..=SLOTS_MAX).contains(&kept), "{kept}");
        assert!(keys(3 * SLOTS_MAX as u64).all(|key| table.get(key).is_none_or(|value| value == key)));
    }

    #[test]
    fn keys_with_one_home_are_found_with_bounded_probes() {
        // The low 13 bits and the ones folded onto them equal those of 1.
        let same_home = |index: u64| 1 | index << 45;
        let mut table = Table::default();
        for index in 0..PROBES as u64 {
            table.insert(same_home(index), index);
        }
        assert!((0..PROBES as u64).all(|index| table.get(same_home(index)) == Some(index)));
        table.insert(same_home(99), 99);
        assert_eq!((table.get(same_home(99)), table.get(same_home(0))), (Some(99), None));
    }

    #[test]
    fn the_reserved_key_has_no_value() {
        let mut table = Table::default();
        table.insert(1, 7);
        table.insert(u64::MAX, 7);
        assert!(matches!(table.get(u64::MAX), None | Some(0)));
    }
}
