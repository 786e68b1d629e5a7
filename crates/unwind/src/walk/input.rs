//! The input of a walk (`Input`): the copied stack and its bounds, memory around it (`OuterStack`, `OtherStack`),
//! and the target's code. `StepError` says why an address or a word cannot be used; `StackBytes` and `Words` read the
//! copied stack.

use super::code::Code;
use super::frames::StackEnd;
use crate::addr::Avma;

/// The input of a walk.
#[derive(Clone, Copy)]
pub struct Input<'a> {
    /// The copied stack.
    pub stack: StackBytes<'a>,
    /// Stack pointer at the thread's first instruction: every frame is below it. `None` if unknown.
    pub stack_top: Option<Avma>,
    /// First address above the memory of the thread's current stack, if known: an address at or above it is no
    /// record, so there the chain ended rather than left the copied bytes.
    pub stack_limit: Option<Avma>,
    /// Whether the platform's ABI requires the frame pointer to be a valid frame record or 0 at all times, as
    /// Apple's does for arm64 ("Writing ARM64 code for Apple platforms"): then 0 always means that there is no
    /// caller.
    pub fp_always: bool,
    /// Limit on frames.
    pub max_depth: usize,
    /// Address bits of a code pointer or of a saved frame pointer: `u64::MAX`, or without the bits of pointer
    /// authentication on arm64.
    pub address_mask: u64,
    /// The target's code.
    pub code: &'a dyn Code,
    /// Known memory of the stack above the copied bytes.
    pub outer: Option<&'a dyn OuterStack>,
    /// The signals that the thread blocks, one bit each; `None` if unknown.
    pub blocked_signals: Option<u64>,
}

/// Partially known memory of a stack above its copied bytes, and of other stacks that a walk leads to.
pub trait OuterStack {
    /// The little-endian word of this size at an address, zero-extended; `None` if unknown.
    fn word(&self, at: Avma, word_bytes: usize) -> Option<u64>;
}

impl<'a> Input<'a> {
    /// A stack without known bounds, code of an ABI without guarantees for frame pointers, pointers with address
    /// bits only, and no limit on frames: the caller sets what else is known.
    pub fn new(stack: StackBytes<'a>, code: &'a dyn Code) -> Input<'a> {
        Input {
            stack,
            stack_top: None,
            stack_limit: None,
            fp_always: false,
            max_depth: usize::MAX,
            address_mask: u64::MAX,
            code,
            outer: None,
            blocked_signals: None,
        }
    }
}

/// The second stack of a processor with two: that of a Cortex-M's process stack pointer while a handler runs on
/// the main stack.
#[derive(Clone, Copy, Debug)]
pub struct OtherStack<'a> {
    /// The copied bytes, from its stack pointer upward.
    pub stack: StackBytes<'a>,
    /// First address above its memory, if known.
    pub limit: Option<Avma>,
}

// ---- Bounds of the copied stack: whether an address is on the same stack, above the copy, or on another stack; and
// reads of known words. Input: addresses, [`Input`]; output: words, yes or no, and the reason why a step failed.

/// Words farther above the base of the copy are not used: the default stack limit of Linux and macOS main threads.
pub const STACK_BYTES_MAX: u64 = 8 << 20;

/// The reason why a step failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepError {
    /// It needs memory above the copied bytes.
    OutsideCopy,
    /// The result cannot be a caller.
    NotACaller,
    /// The frame is the first function of a thread.
    FirstFunction,
    /// The return address is null, according to unwind information.
    NullReturnAddress,
    /// It needs unknown memory of another stack.
    OtherStack,
}

impl StepError {
    pub(super) fn ended(self) -> StackEnd {
        match self {
            StepError::OutsideCopy => StackEnd::DeeperThanCopied,
            StepError::NotACaller | StepError::NullReturnAddress => StackEnd::BrokenFrameChain,
            StepError::FirstFunction => StackEnd::Root,
            StepError::OtherStack => StackEnd::OtherStack,
        }
    }
}

impl Input<'_> {
    /// Reads the little-endian word of the processor's size at a stack address, zero-extended, in the copied bytes
    /// or above them.
    #[inline]
    pub(super) fn read<W: Word>(&self, at: Avma) -> Option<u64> {
        self.stack.read::<W>(at).or_else(|| self.read_outer::<W>(at))
    }

    /// Reads a word above the copied bytes; `None` on another stack.
    #[cold]
    pub(super) fn read_outer<W: Word>(&self, at: Avma) -> Option<u64> {
        let outer = self.outer.filter(|_| is_in_stack(at, self))?;
        outer.word(at, 1 << W::SHIFT)
    }
}

/// The reason why the word at a stack address is missing.
#[cold]
pub(super) fn why_not(at: Avma, input: &Input<'_>) -> StepError {
    if is_in_stack(at, input) { StepError::OutsideCopy } else { StepError::NotACaller }
}

/// Whether an address is, or may be, in the copied stack: in the copied bytes or above them.
pub(super) fn is_in_stack(at: Avma, input: &Input<'_>) -> bool {
    let base = input.stack.base;
    at >= base
        && at - base < STACK_BYTES_MAX
        && input.stack_limit.is_none_or(|limit| at < limit)
        && input.stack_top.is_none_or(|top| base > top || at < top)
}

/// Whether a frame with this stack pointer is known to be on the thread's initial stack.
pub(super) fn is_on_own_stack(sp: Avma, input: &Input<'_>) -> bool {
    input.stack_top.is_some_and(|top| sp <= top && top - sp <= STACK_BYTES_MAX)
}

/// Whether a frame with this stack pointer is on another stack than the copied one: below it, or above it by more
/// than a copy can reach. Signal stacks are memory of the program: below the stack of its first thread, anywhere
/// relative to others.
///
/// A stack pointer may be at the very top, with nothing above it: so the word below it decides.
pub(super) fn is_on_other_stack(sp: Avma, input: &Input<'_>) -> bool {
    sp != input.stack.base && !is_in_stack(Avma(sp.0.saturating_sub(1)), input)
}

/// The new reach of a walk, from `reached` and the next frame's stack pointer: a frame on another stack does not
/// count.
pub(super) fn further(reached: Avma, sp: Avma, input: &Input<'_>) -> Avma {
    if sp <= reached || is_on_other_stack(sp, input) { reached } else { sp }
}

// ---- The aligned words of a copied stack, which a walk reads at every frame, with one comparison for bounds and
// alignment; and their size. Input: [`StackBytes`]; output: words. Not for: unaligned reads, which
// [`StackBytes::word`] does.

/// The address type of a processor: `u64`, or `u32`.
pub(crate) trait Word: Copy + std::fmt::Debug {
    /// Its bytes, in memory order.
    type Bytes: Copy + std::fmt::Debug;
    /// log2 of their number.
    const SHIFT: u32;

    /// Reinterprets bytes as whole words.
    fn whole(bytes: &[u8]) -> &[Self::Bytes];

    /// The little-endian value, zero-extended.
    fn value(bytes: &Self::Bytes) -> u64;

    /// The value of the first bytes, which need not be aligned; `None` if there are too few.
    fn first(bytes: &[u8]) -> Option<u64>;
}

impl Word for u64 {
    type Bytes = [u8; 8];
    const SHIFT: u32 = 3;

    #[inline(always)]
    fn whole(bytes: &[u8]) -> &[[u8; 8]] {
        bytes.as_chunks().0
    }

    #[inline(always)]
    fn value(bytes: &[u8; 8]) -> u64 {
        u64::from_le_bytes(*bytes)
    }

    #[inline(always)]
    fn first(bytes: &[u8]) -> Option<u64> {
        bytes.first_chunk().map(Self::value)
    }
}

impl Word for u32 {
    type Bytes = [u8; 4];
    const SHIFT: u32 = 2;

    #[inline(always)]
    fn whole(bytes: &[u8]) -> &[[u8; 4]] {
        bytes.as_chunks().0
    }

    #[inline(always)]
    fn value(bytes: &[u8; 4]) -> u64 {
        u32::from_le_bytes(*bytes).into()
    }

    #[inline(always)]
    fn first(bytes: &[u8]) -> Option<u64> {
        bytes.first_chunk().map(Self::value)
    }
}

/// Bytes copied from a thread's stack. They begin below its stack pointer, by
/// [`red_zone_bytes`](crate::arch::Arch::red_zone_bytes), where the ABI has a red zone: rows of leaf functions refer to it.
#[derive(Clone, Copy, Debug)]
pub struct StackBytes<'a> {
    /// Address of the first byte: the stack pointer, or below it.
    pub base: Avma,
    /// The copied bytes.
    pub bytes: &'a [u8],
}

impl StackBytes<'_> {
    /// The little-endian word at `at`, or `None` outside the copy.
    #[must_use]
    #[inline]
    pub fn word(&self, at: Avma) -> Option<u64> {
        self.read::<u64>(at)
    }

    /// The little-endian word of the processor's size at `at`, zero-extended, or `None` outside the copy.
    #[inline]
    pub(crate) fn read<W: Word>(&self, at: Avma) -> Option<u64> {
        let offset = usize::try_from(at.0.checked_sub(self.base.0)?).ok()?;
        W::first(self.bytes.get(offset..)?)
    }

    /// The first address after the copy.
    #[must_use]
    pub fn end(&self) -> Avma {
        self.base + self.bytes.len() as u64
    }
}

/// The aligned words of a copied stack.
#[derive(Clone, Copy, Debug)]
pub(super) struct Words<'a, W: Word = u64> {
    /// Address of the first word.
    start: u64,
    words: &'a [W::Bytes],
}

impl<'a, W: Word> Words<'a, W> {
    #[inline]
    pub(super) fn new(stack: StackBytes<'a>) -> Words<'a, W> {
        let Some(start) = stack.base.0.checked_next_multiple_of(1 << W::SHIFT) else {
            return Words { start: 0, words: &[] };
        };
        let skipped = (start - stack.base.0) as usize;
        let words = W::whole(stack.bytes.get(skipped..).unwrap_or_default());
        // Not beyond the end of the address space.
        let most = usize::try_from(((u64::MAX - start) >> W::SHIFT) + 1).unwrap_or(usize::MAX);
        Words { start, words: &words[..words.len().min(most)] }
    }

    /// The little-endian word at `at`; `None` outside the copy, or if `at` is not aligned.
    #[inline(always)]
    pub(super) fn word(&self, at: u64) -> Option<u64> {
        // Rotation makes the offset of an unaligned address too large for any copy.
        let index = usize::try_from(at.wrapping_sub(self.start).rotate_right(W::SHIFT)).ok()?;
        self.words.get(index).map(W::value)
    }

    /// The little-endian words at `at` and right above it; `None` outside the copy, or if `at` is not aligned.
    #[inline(always)]
    pub(super) fn two(&self, at: u64) -> Option<[u64; 2]> {
        let index = usize::try_from(at.wrapping_sub(self.start).rotate_right(W::SHIFT)).ok()?;
        let words = self.words.get(index..)?.first_chunk::<2>()?;
        Some([W::value(&words[0]), W::value(&words[1])])
    }
}

#[cfg(test)]
mod words_tests {
    use super::*;

    fn check<W: Word>(word_bytes: u64) {
        let bytes: Vec<u8> = (0..45).collect();
        for base in [0x7fff_0000_1000, 0x7fff_0000_1003, 3, u64::MAX - 43, u64::MAX - 10] {
            let stack = StackBytes { base: Avma(base), bytes: &bytes };
            let words: Words<'_, W> = Words::new(stack);
            for at in (0..80).map(|at| base.wrapping_sub(16).wrapping_add(at)) {
                let expected = stack.read::<W>(Avma(at)).filter(|_| at % word_bytes == 0);
                assert_eq!(words.word(at), expected, "{at:#x} from {base:#x}");
                let above = at.checked_add(word_bytes).and_then(|above| stack.read::<W>(Avma(above)));
                let both = expected.zip(above).map(<[u64; 2]>::from);
                assert_eq!(words.two(at), both, "{at:#x} from {base:#x}");
            }
        }
    }

    #[test]
    fn aligned_words_are_read_and_others_are_not() {
        check::<u64>(8);
        check::<u32>(4);
    }

    #[test]
    fn words_have_the_size_of_their_processor() {
        let bytes: Vec<u8> = (0..16).collect();
        let stack = StackBytes { base: Avma(0x1000), bytes: &bytes };
        assert_eq!(stack.read::<u32>(Avma(0x1001)), Some(0x0403_0201));
        assert_eq!(stack.read::<u32>(Avma(0x100c)), Some(0x0f0e_0d0c));
        assert_eq!(stack.word(Avma(0x100c)), None);
        assert_eq!(Words::<u32>::new(stack).two(0x1008), Some([0x0b0a_0908, 0x0f0e_0d0c]));
    }

    #[test]
    fn a_copy_without_a_whole_word_has_none() {
        for length in 0..8 {
            let words: Words<'_> = Words::new(StackBytes { base: Avma(0x1001), bytes: &[1; 8][..length] });
            assert!((0xff0..0x1020).all(|at| words.word(at).is_none()));
        }
    }
}
