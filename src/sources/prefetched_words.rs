//! Ranges of a thread's stacks outside of the copied bytes, read at the moment of the sample. Input:
//! addresses and bytes; output: words.

/// Bytes of a prefetched range: a return address with the registers that a function saves below it.
pub const PREFETCH_RANGE_BYTES: usize = 64;
/// Most prefetched ranges of a stack.
pub const PREFETCH_RANGES_MAX: usize = 512;

/// A range: the address of its first byte, and the position of its bytes.
#[derive(Clone, Copy, Debug)]
struct ByteRange {
    start: u64,
    offset: usize,
    len: usize,
}

/// Ranges of memory, read at one moment.
#[derive(Clone, Debug, Default)]
pub struct PrefetchedWords {
    /// Sorted by address.
    ranges: Vec<ByteRange>,
    bytes: Vec<u8>,
    /// The thread's blocked signals at that moment, one bit each, if the source reports them.
    pub blocked_signals: Option<u64>,
}

impl PrefetchedWords {
    /// Removes all ranges; the buffers keep their allocation.
    pub fn clear(&mut self) {
        self.ranges.clear();
        self.bytes.clear();
        self.blocked_signals = None;
    }

    /// Adds the bytes at an address.
    pub fn push(&mut self, start: u64, bytes: &[u8]) {
        let at = match self.ranges.last() {
            Some(last) if last.start > start => self.ranges.partition_point(|range| range.start <= start),
            _ => self.ranges.len(),
        };
        self.ranges.insert(at, ByteRange { start, offset: self.bytes.len(), len: bytes.len() });
        self.bytes.extend_from_slice(bytes);
    }

    /// The zero-extended little-endian word of this size at an address; `None` if it is in no range.
    #[must_use]
    pub fn word(&self, at: u64, word_bytes: usize) -> Option<u64> {
        // Ranges have one size: of overlapping ones, the last one that begins at or below `at` reaches
        // furthest.
        let range = self.ranges.partition_point(|range| range.start <= at).checked_sub(1)?;
        let range = self.ranges.get(range)?;
        let from = usize::try_from(at - range.start).ok()?;
        let bytes = self.bytes.get(range.offset..range.offset + range.len)?;
        let word = bytes.get(from..from.checked_add(word_bytes)?)?;
        Some(word.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    /// Whether these bytes differ from the ranges at an address that both contain.
    #[must_use]
    pub fn contradict(&self, base: u64, bytes: &[u8]) -> bool {
        let end = base.saturating_add(bytes.len() as u64);
        self.ranges.iter().any(|range| {
            let (from, to) = (range.start.max(base), (range.start + range.len as u64).min(end));
            let of_both = |start: u64, all: &[u8]| {
                let at = |address: u64| usize::try_from(address.checked_sub(start)?).ok();
                Some(all.get(at(from)?..at(to)?)?.to_vec())
            };
            let own = self.bytes.get(range.offset..range.offset + range.len).unwrap_or_default();
            from < to && of_both(range.start, own) != of_both(base, bytes)
        })
    }

    /// Whether there are no ranges.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Total bytes of the ranges.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Allocated bytes, used or not.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.bytes.capacity() + self.ranges.capacity() * size_of::<ByteRange>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_outside_of_all_ranges_is_none() {
        let bytes: Vec<u8> = (0..=255).collect();
        let mut ranges = PrefetchedWords::default();
        // Out of order, and two that overlap.
        for start in [128u64, 16, 40] {
            ranges.push(0x1000 + start, &bytes[start as usize..start as usize + 64]);
        }
        for word_bytes in [4, 8] {
            for at in 0..256 - word_bytes {
                let covered =
                    [128, 16, 40].iter().any(|start| (*start..=*start + 64 - word_bytes).contains(&at));
                let word = bytes[at..at + word_bytes].iter().rev();
                let expected = word.fold(0u64, |value, byte| value << 8 | u64::from(*byte));
                let found = ranges.word(0x1000 + at as u64, word_bytes);
                assert_eq!(found, covered.then_some(expected), "{word_bytes} bytes at {at}");
            }
        }
        ranges.clear();
        assert!(ranges.is_empty() && ranges.word(0x1010, 8).is_none());
    }

    #[test]
    fn only_bytes_at_shared_addresses_are_compared() {
        let bytes: Vec<u8> = (0..=255).collect();
        let mut ranges = PrefetchedWords::default();
        ranges.push(0x1040, &bytes[0x40..0x80]);
        assert!(!ranges.contradict(0x1000, &bytes[..0x50]));
        assert!(!ranges.contradict(0x1060, &bytes[0x60..]));
        assert!(!ranges.contradict(0x1000, &[9; 0x40]), "they only touch");
        assert!(!ranges.contradict(0x1080, &[9; 0x40]));
        assert!(ranges.contradict(0x1000, &[9; 0x41]));
        assert!(ranges.contradict(0x107f, &[9; 4]));
    }
}
