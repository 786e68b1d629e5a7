//! The aligned words of a copied stack: what a walk reads at every frame, with one comparison
//! for bounds and alignment. Input: [`StackBytes`]; output: words. Not for: unaligned reads,
//! which [`StackBytes::word`] does.

use super::StackBytes;

/// See the top of this file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Words<'a> {
    /// Address of the first word.
    start: u64,
    words: &'a [[u8; 8]],
}

impl<'a> Words<'a> {
    #[inline]
    pub(super) fn new(stack: StackBytes<'a>) -> Words<'a> {
        let Some(start) = stack.base.0.checked_next_multiple_of(8) else {
            return Words { start: 0, words: &[] };
        };
        let skipped = (start - stack.base.0) as usize;
        let words = stack.bytes.get(skipped..).unwrap_or_default().as_chunks().0;
        // Not beyond the end of the address space.
        let most = usize::try_from((u64::MAX - start) / 8 + 1).unwrap_or(usize::MAX);
        Words { start, words: &words[..words.len().min(most)] }
    }

    /// The little-endian word at `at`; `None` outside the copy, or if `at` is not aligned.
    #[inline(always)]
    pub(super) fn word(&self, at: u64) -> Option<u64> {
        // Rotated, the bits of an unaligned offset make it too large for any copy.
        let index = usize::try_from(at.wrapping_sub(self.start).rotate_right(3)).ok()?;
        self.words.get(index).map(|word| u64::from_le_bytes(*word))
    }

    /// The same of the word at `at` and the one above it.
    #[inline(always)]
    pub(super) fn two(&self, at: u64) -> Option<[u64; 2]> {
        let index = usize::try_from(at.wrapping_sub(self.start).rotate_right(3)).ok()?;
        let words = self.words.get(index..)?.first_chunk::<2>()?;
        Some(words.map(u64::from_le_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Avma;

    #[test]
    fn aligned_words_are_those_of_the_copy_and_others_none() {
        let bytes: Vec<u8> = (0..45).collect();
        for base in [0x7fff_0000_1000, 0x7fff_0000_1003, 3, u64::MAX - 43, u64::MAX - 10] {
            let stack = StackBytes { base: Avma(base), bytes: &bytes };
            let words = Words::new(stack);
            for at in (0..80).map(|at| base.wrapping_sub(16).wrapping_add(at)) {
                let expected = stack.word(Avma(at)).filter(|_| at % 8 == 0);
                assert_eq!(words.word(at), expected, "{at:#x} from {base:#x}");
                let above = at.checked_add(8).and_then(|above| stack.word(Avma(above)));
                let both = expected.zip(above).map(<[u64; 2]>::from);
                assert_eq!(words.two(at), both, "{at:#x} from {base:#x}");
            }
        }
    }

    #[test]
    fn a_copy_without_a_whole_word_has_none() {
        for length in 0..8 {
            let words = Words::new(StackBytes { base: Avma(0x1001), bytes: &[1; 8][..length] });
            assert!((0xff0..0x1020).all(|at| words.word(at).is_none()));
        }
    }
}
