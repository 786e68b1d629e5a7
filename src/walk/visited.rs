//! The places that paths have reached, and what was noted there first. Looked up at every instruction that is followed.
//! Input: code addresses; output: what was noted before. Not for: more than some thousand places, which is all that
//! is followed of a function.
//!
//! Open addressing by the low bits of addresses: neighbouring instructions have neighbouring
//! slots. Clearing is free, unlike clearing a map.

use crate::addr::Avma;

/// Slots at first, a power of two; they double where half are taken.
const SLOTS_MIN: usize = 512;

/// The places that paths have come to, each with what was noted there first. Allocates nothing until the first note.
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
    /// Forgets all places.
    pub(super) fn clear(&mut self) {
        self.len = 0;
        self.round = self.round.wrapping_add(1);
        if self.round == 0 {
            // Slots of four thousand million rounds ago would look like those of this one.
            self.slots.clear();
        }
    }

    /// Notes a place, or gives what was noted there before, which stays.
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

    /// Where a place is noted, or the free slot where it is to be: half of them are free.
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
        // A fresh slot belongs to the round before this one.
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
    fn what_was_noted_first_stays_until_all_is_forgotten() {
        let mut visited = Visited::default();
        for round in 0..40 {
            let mut expected = HashMap::new();
            for number in 0..round * 70 {
                // Of one function, and of another one whose addresses have the same low bits; many come again.
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
    fn rounds_begin_anew_when_their_numbers_do() {
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
