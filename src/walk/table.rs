//! A table of facts about code addresses, for look-ups at every frame. Input: keys made of addresses; output: a
//! small value for each. Not for: keys that must not be lost, since a full table overwrites.
//!
//! Open addressing from a home slot. The table grows with the number of addresses and is at most a quarter full,
//! so that nearly every key is in its home slot. In a direct-mapped table of fixed size a few hundred addresses
//! already evict each other, and each loss costs as much as a hundred look-ups.

use crate::addr::{Avma, CodeAddress};

/// A key that no address has (see [`key`], and [`Table::get`]).
const NO_KEY: u64 = u64::MAX;
/// The bit that distinguishes the key of a return address from that of a program counter.
const IS_RETURN: u64 = 1 << 63;
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
        CodeAddress::Return(at) => at.0.wrapping_sub(1) ^ IS_RETURN,
    }
}

/// The look-up address of a key.
pub(super) fn lookup_of(key: u64) -> Avma {
    Avma(key & !IS_RETURN)
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
