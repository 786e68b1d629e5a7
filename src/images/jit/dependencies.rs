//! The bytes of JIT code that each conclusion depends on: it is kept while they are unchanged. Input: blocks of
//! code, and look-up addresses. Output: whether the conclusion on an address still holds. Not for: reading memory,
//! and the conclusions themselves, which the walker has.

use hashbrown::{HashMap, HashSet};

/// Limit on blocks that are compared; code of 8 MiB.
pub(super) const BLOCKS_MAX: usize = 1024;
/// Limit on addresses with known dependencies.
const LEARNED_MAX: usize = 65_536;

/// The blocks of JIT code that were read, and which addresses depend on each.
#[derive(Debug, Default)]
pub(super) struct Dependencies {
    /// By first address.
    blocks: HashMap<u64, Block>,
    /// By look-up address: the first addresses of blocks.
    learned: HashMap<u64, Box<[u64]>>,
    /// Blocks that changed after a conclusion depended on them.
    changed: HashSet<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    /// The first address after it.
    end: u64,
    fingerprint: u64,
}

impl Dependencies {
    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        *self = Dependencies::default();
    }

    /// The known blocks: first address, and first address after it.
    pub(super) fn blocks(&self) -> Vec<(u64, u64)> {
        self.blocks.iter().map(|(start, block)| (*start, block.end)).collect()
    }

    /// Adds a block as just read, or compares it with the first read. Returns `false` if there is no room for it.
    pub(super) fn see(&mut self, start: u64, end: u64, bytes: &[u8]) -> bool {
        let fingerprint = fingerprint(bytes);
        if let Some(known) = self.blocks.get(&start) {
            if (known.end, known.fingerprint) != (end, fingerprint) {
                self.changed.insert(start);
            }
            return true;
        }
        let has_room = self.blocks.len() < BLOCKS_MAX;
        if has_room {
            self.blocks.insert(start, Block { end, fingerprint });
        }
        has_room
    }

    /// Records that the conclusion on an address depends on these blocks, which have all been seen, in addition to
    /// earlier ones.
    pub(super) fn note(&mut self, lookup: u64, blocks: &[u64]) {
        let has_room = self.learned.len() < LEARNED_MAX;
        match self.learned.get_mut(&lookup) {
            Some(known) if blocks.iter().all(|block| known.contains(block)) => {}
            Some(known) => {
                let more = blocks.iter().filter(|block| !known.contains(block));
                *known = known.iter().chain(more).copied().collect();
            }
            None if has_room => {
                self.learned.insert(lookup, blocks.into());
            }
            None => {}
        }
    }

    /// Records that the conclusion on an address has an unknown dependency.
    pub(super) fn forget(&mut self, lookup: u64) {
        self.learned.remove(&lookup);
    }

    /// Whether the conclusion on an address held at the last comparison; `None` if its dependencies were not
    /// recorded.
    pub(super) fn holds(&self, lookup: u64) -> Option<bool> {
        let blocks = self.learned.get(&lookup)?;
        Some(!blocks.iter().any(|block| self.changed.contains(block)))
    }

    /// Drops the blocks that have changed, and what depended on them; all of them if the table is full, since code
    /// that no longer runs may have filled it.
    pub(super) fn forget_changed(&mut self) {
        if self.blocks.len() >= BLOCKS_MAX || self.learned.len() >= LEARNED_MAX {
            return self.clear();
        }
        let changed = std::mem::take(&mut self.changed);
        if changed.is_empty() {
            return;
        }
        self.learned.retain(|_, blocks| !blocks.iter().any(|block| changed.contains(block)));
        self.blocks.retain(|start, _| !changed.contains(start));
    }

    /// Whether [`Dependencies::forget_changed`] will drop everything.
    pub(super) fn is_full(&self) -> bool {
        self.blocks.len() >= BLOCKS_MAX || self.learned.len() >= LEARNED_MAX
    }
}

/// A 64-bit hash of the bytes: different ones collide with probability 2^-64. Each step is a bijection of the
/// state before it and of the word, so a difference in one word is always detected. Four lanes hide the latency of
/// multiplication.
fn fingerprint(bytes: &[u8]) -> u64 {
    // Odd: the fractional part of the golden ratio (Knuth, The Art of Computer Programming, 6.4).
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mixed = |lane: u64, word: u64| (lane ^ word).wrapping_mul(FACTOR).rotate_left(29);
    let mut lanes = [1, 2, 3, 4];
    let (chunks, rest) = bytes.as_chunks::<32>();
    for chunk in chunks {
        let (words, _) = chunk.as_chunks::<8>();
        for (lane, word) in lanes.iter_mut().zip(words) {
            *lane = mixed(*lane, u64::from_le_bytes(*word));
        }
    }
    let (words, rest) = rest.as_chunks::<8>();
    let rest = rest.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
    let words = words.iter().map(|word| u64::from_le_bytes(*word));
    let last = words.chain([rest, bytes.len() as u64]);
    lanes.into_iter().chain(last).fold(0, mixed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conclusions_on_a_changed_block_no_longer_hold() {
        let mut dependencies = Dependencies::default();
        assert!(dependencies.see(0, 4, &[1, 2, 3, 4]) && dependencies.see(8, 12, &[5, 6, 7, 8]));
        dependencies.note(1, &[0]);
        dependencies.note(2, &[8]);
        dependencies.note(2, &[0]);
        assert!(dependencies.see(0, 4, &[1, 2, 3, 4]));
        assert_eq!([1, 2, 3].map(|lookup| dependencies.holds(lookup)), [Some(true), Some(true), None]);
        // Also after the block changes back: something may have been learned in between.
        assert!(dependencies.see(8, 12, &[5, 6, 7, 9]) && dependencies.see(8, 12, &[5, 6, 7, 8]));
        assert_eq!([1, 2].map(|lookup| dependencies.holds(lookup)), [Some(true), Some(false)]);
        dependencies.forget_changed();
        assert_eq!([1, 2].map(|lookup| dependencies.holds(lookup)), [Some(true), None]);
        assert_eq!(dependencies.blocks(), [(0, 4)]);
        dependencies.forget(1);
        assert_eq!(dependencies.holds(1), None);
    }

    #[test]
    fn a_full_table_is_cleared() {
        let mut dependencies = Dependencies::default();
        for start in 0..BLOCKS_MAX as u64 {
            assert!(dependencies.see(start, start + 1, &[0]));
        }
        dependencies.note(7, &[7]);
        assert!(!dependencies.see(u64::MAX, u64::MAX, &[0]) && dependencies.see(7, 8, &[0]));
        assert!(dependencies.is_full());
        dependencies.forget_changed();
        assert!(!dependencies.is_full() && dependencies.holds(7).is_none());
    }

    #[test]
    fn any_byte_and_the_length_change_the_fingerprint() {
        let bytes: Vec<u8> = (0..8192 + 13).map(|index| (index * 7 + index / 256) as u8).collect();
        let before = fingerprint(&bytes);
        for at in [0, 1, 7, 8, 31, 32, 4095, 4096, 8190, 8191, 8192, 8200, 8204] {
            for bit in 0..8 {
                let mut other = bytes.clone();
                other[at] ^= 1 << bit;
                assert_ne!(fingerprint(&other), before, "byte {at}, bit {bit}");
            }
        }
        assert_ne!(fingerprint(&bytes[..8204]), before);
        assert_ne!(fingerprint(&[0; 8]), fingerprint(&[0; 9]));
        assert_ne!(fingerprint(&[]), fingerprint(&[0; 32]));
    }
}
