//! Bounds of the copied stack: whether an address is on the same stack, above the copy, or on another stack; and
//! reads of known words. Input: addresses, [`Input`]; output: words, yes or no, and the reason why a step failed.

use super::input::Input;
use super::stack_end::StackEnd;
use super::words::Word;
use crate::addr::Avma;

/// The copy never exceeds this: the default stack limit of Linux and macOS main threads.
pub const STACK_BYTES_MAX: u64 = 8 << 20;

/// The reason why a step failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// It needs memory above the copied bytes.
    OutsideCopy,
    /// The result cannot be a caller.
    Refused,
    /// The frame is the first function of a thread.
    First,
    /// The return address is null, according to unwind information.
    Null,
    /// It needs unknown memory of another stack.
    OtherStack,
}

impl Failure {
    pub(super) fn ended(self) -> StackEnd {
        match self {
            Failure::OutsideCopy => StackEnd::DeeperThanCopied,
            Failure::Refused | Failure::Null => StackEnd::BrokenFrameChain,
            Failure::First => StackEnd::Root,
            Failure::OtherStack => StackEnd::OtherStack,
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
pub(super) fn why_not(at: Avma, input: &Input<'_>) -> Failure {
    if is_in_stack(at, input) { Failure::OutsideCopy } else { Failure::Refused }
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
