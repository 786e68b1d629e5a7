//! The addresses that paths have reached, each with the value noted there first. Looked up at every followed
//! instruction. Input: code addresses; output: the earlier value. Not for: more than some thousand addresses, the
//! limit for a function.
//!
//! Open addressing by the low bits of addresses: neighboring instructions have neighboring slots. Clearing is
//! free, unlike for a map.

use crate::addr::Avma;

/// Initial number of slots, a power of two; doubles when half of them are used.
const SLOTS_MIN: usize = 512;

/// The addresses that paths have reached, each with the value noted there first. Allocates nothing until the first
/// note.
#[derive(Clone, Debug, Default)]
pub(super) struct Visited<V> {
    slots: Vec<Slot<V>>,
    /// Slots of other rounds are free.
    round: u32,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
struct Slot<V> {
    at: u64,
    round: u32,
    noted: V,
}

impl<V: Copy + Default> Visited<V> {
    /// Removes all addresses.
    pub(super) fn clear(&mut self) {
        self.len = 0;
        self.round = self.round.wrapping_add(1);
        if self.round == 0 {
            // After wrapping around, slots of an old round would look like those of this one.
            self.slots.clear();
        }
    }

    /// Notes a value at an address, or returns the earlier one, which is kept.
    #[inline]
    pub(super) fn note(&mut self, at: Avma, noted: V) -> Option<V> {
        if 2 * self.len >= self.slots.len() {
            self.grow();
        }
        let slot = self.slot_of(at.0);
        let slot = self.slots.get_mut(slot)?;
        if slot.round == self.round {
            return Some(slot.noted);
        }
        *slot = Slot { at: at.0, round: self.round, noted };
        self.len += 1;
        None
    }

    /// The slot of an address, or the free slot for it: half of them are free.
    #[inline]
    fn slot_of(&self, at: u64) -> usize {
        let mask = self.slots.len() - 1;
        let mut index = at as usize & mask;
        while self.slots.get(index).is_some_and(|slot| slot.round == self.round && slot.at != at) {
            index = (index + 1) & mask;
        }
        index
    }

    #[cold]
    fn grow(&mut self) {
        let wanted = (2 * self.slots.len()).max(SLOTS_MIN);
        // A free slot belongs to the previous round.
        let free = Slot { at: 0, round: self.round.wrapping_sub(1), noted: V::default() };
        let before = std::mem::replace(&mut self.slots, vec![free; wanted]);
        for slot in before.into_iter().filter(|slot| slot.round == self.round) {
            let index = self.slot_of(slot.at);
            if let Some(place) = self.slots.get_mut(index) {
                *place = slot;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn the_first_value_is_kept_until_cleared() {
        let mut visited = Visited::default();
        for round in 0..40 {
            let mut expected = HashMap::new();
            for number in 0..round * 70 {
                // Addresses of one function, and of another with the same low bits; many repeat.
                let scattered = (number + round) * 2_654_435_761 % 2003;
                let at = 0x5555_0000 + scattered + ((number % 3 / 2) << 32);
                let before = expected.get(&at).copied();
                assert_eq!(visited.note(Avma(at), number), before, "{at:#x} in round {round}");
                expected.entry(at).or_insert(number);
            }
            visited.clear();
        }
    }

    #[test]
    fn rounds_restart_when_their_number_wraps() {
        let mut visited = Visited::default();
        assert_eq!(visited.note(Avma(1), 'a'), None);
        visited.round = u32::MAX;
        assert_eq!(visited.note(Avma(1), 'b'), None);
        assert_eq!(visited.note(Avma(1), 'c'), Some('b'));
        visited.clear();
        assert_eq!((visited.round, visited.note(Avma(1), 'd')), (0, None));
        assert_eq!(visited.note(Avma(1), 'e'), Some('d'));
    }
}
