//! Pieces of a thread's stacks beside the bytes that are copied of one, read at the moment of the sample.
//! Input: addresses and bytes; output: words.

/// Bytes of a prefetched piece: a return address with the registers that a function saves below it.
pub const PIECE_BYTES: usize = 64;
/// Most pieces that are prefetched of a stack.
pub const PIECES_MAX: usize = 512;

/// A piece: the address of its first byte, and where its bytes are.
#[derive(Clone, Copy, Debug)]
struct Piece {
    start: u64,
    offset: usize,
    len: usize,
}

/// Pieces of memory, of one moment.
#[derive(Clone, Debug, Default)]
pub struct StackPieces {
    /// By their addresses.
    pieces: Vec<Piece>,
    bytes: Vec<u8>,
    /// The signals that the thread blocked at that moment, one bit each, where the source tells.
    pub blocked_signals: Option<u64>,
}

impl StackPieces {
    /// Forgets all pieces; the buffers keep their allocation.
    pub fn clear(&mut self) {
        self.pieces.clear();
        self.bytes.clear();
        self.blocked_signals = None;
    }

    /// Takes the bytes at an address.
    pub fn push(&mut self, start: u64, bytes: &[u8]) {
        let at = match self.pieces.last() {
            Some(last) if last.start > start => self.pieces.partition_point(|piece| piece.start <= start),
            _ => self.pieces.len(),
        };
        self.pieces.insert(at, Piece { start, offset: self.bytes.len(), len: bytes.len() });
        self.bytes.extend_from_slice(bytes);
    }

    /// The little-endian word of this size at an address, zero-extended; `None` if it is in no piece.
    #[must_use]
    pub fn word(&self, at: u64, word_bytes: usize) -> Option<u64> {
        // Of pieces that overlap, which have one size, the last one that begins below leads furthest.
        let piece = self.pieces.partition_point(|piece| piece.start <= at).checked_sub(1)?;
        let piece = self.pieces.get(piece)?;
        let from = usize::try_from(at - piece.start).ok()?;
        let bytes = self.bytes.get(piece.offset..piece.offset + piece.len)?;
        let word = bytes.get(from..from.checked_add(word_bytes)?)?;
        Some(word.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    /// Whether these bytes are not those of the pieces, where both are of the same addresses.
    #[must_use]
    pub fn contradict(&self, base: u64, bytes: &[u8]) -> bool {
        let end = base.saturating_add(bytes.len() as u64);
        self.pieces.iter().any(|piece| {
            let (from, to) = (piece.start.max(base), (piece.start + piece.len as u64).min(end));
            let of_both = |start: u64, all: &[u8]| {
                let at = |address: u64| usize::try_from(address.checked_sub(start)?).ok();
                Some(all.get(at(from)?..at(to)?)?.to_vec())
            };
            let own = self.bytes.get(piece.offset..piece.offset + piece.len).unwrap_or_default();
            from < to && of_both(piece.start, own) != of_both(base, bytes)
        })
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Bytes of all of them.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes that it holds, used or not.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.bytes.capacity() + self.pieces.capacity() * size_of::<Piece>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_in_a_piece_or_unknown() {
        let bytes: Vec<u8> = (0..=255).collect();
        let mut pieces = StackPieces::default();
        // Not in their order, and two that overlap.
        for start in [128u64, 16, 40] {
            pieces.push(0x1000 + start, &bytes[start as usize..start as usize + 64]);
        }
        for word_bytes in [4, 8] {
            for at in 0..256 - word_bytes {
                let covered =
                    [128, 16, 40].iter().any(|start| (*start..=*start + 64 - word_bytes).contains(&at));
                let word = bytes[at..at + word_bytes].iter().rev();
                let expected = word.fold(0u64, |value, byte| value << 8 | u64::from(*byte));
                let found = pieces.word(0x1000 + at as u64, word_bytes);
                assert_eq!(found, covered.then_some(expected), "{word_bytes} bytes at {at}");
            }
        }
        pieces.clear();
        assert!(pieces.is_empty() && pieces.word(0x1010, 8).is_none());
    }

    #[test]
    fn bytes_of_the_same_addresses_are_compared() {
        let bytes: Vec<u8> = (0..=255).collect();
        let mut pieces = StackPieces::default();
        pieces.push(0x1040, &bytes[0x40..0x80]);
        assert!(!pieces.contradict(0x1000, &bytes[..0x50]));
        assert!(!pieces.contradict(0x1060, &bytes[0x60..]));
        assert!(!pieces.contradict(0x1000, &[9; 0x40]), "they only touch");
        assert!(!pieces.contradict(0x1080, &[9; 0x40]));
        assert!(pieces.contradict(0x1000, &[9; 0x41]));
        assert!(pieces.contradict(0x107f, &[9; 4]));
    }
}
