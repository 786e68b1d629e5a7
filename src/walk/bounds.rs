//! Where the copied stack ends, and what lies outside it: whether an address that a step leads to is
//! of the same stack, above the copy, or of another stack; and the words that are known about it. Input: addresses,
//! [`Input`]; output: words, yes or no, and why a step led nowhere.

use super::input::Input;
use super::stack_end::StackEnd;
use super::words::Word;
use crate::addr::Avma;

/// The copy never exceeds this: the default stack limit of Linux and macOS main threads.
pub const MAX_STACK_BYTES: u64 = 8 << 20;

/// Why a step led nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// To memory above the copied bytes.
    OutsideCopy,
    /// To what cannot be a caller.
    Refused,
    /// To nothing, from the first function of a thread.
    First,
    /// To a null return address, where unwind information says that the return address is.
    Null,
}

impl Failure {
    pub(super) fn ended(self) -> StackEnd {
        match self {
            Failure::OutsideCopy => StackEnd::DeeperThanCopied,
            Failure::Refused | Failure::Null => StackEnd::BadFrame,
            Failure::First => StackEnd::Root,
        }
    }
}

impl Input<'_> {
    /// The little-endian word of a processor's size at an address of the stack, zero-extended: among the copied
    /// bytes or above them.
    #[inline]
    pub(super) fn read<W: Word>(&self, at: Avma) -> Option<u64> {
        self.stack.read::<W>(at).or_else(|| self.read_outer::<W>(at))
    }

    /// The word above the copied bytes; `None` on another stack.
    #[cold]
    pub(super) fn read_outer<W: Word>(&self, at: Avma) -> Option<u64> {
        let outer = self.outer.filter(|_| is_in_stack(at, self))?;
        outer.word(at, 1 << W::SHIFT)
    }
}

/// Why there is no word at an address of the stack.
#[cold]
pub(super) fn why_not(at: Avma, input: &Input<'_>) -> Failure {
    if is_in_stack(at, input) { Failure::OutsideCopy } else { Failure::Refused }
}

/// Whether an address is, or may be, in the stack that was copied: in the copied bytes or above them.
pub(super) fn is_in_stack(at: Avma, input: &Input<'_>) -> bool {
    let base = input.stack.base;
    at >= base
        && at - base < MAX_STACK_BYTES
        && input.stack_limit.is_none_or(|limit| at < limit)
        && input.stack_top.is_none_or(|top| base > top || at < top)
}

/// Whether a frame with this stack pointer is known to be on the stack that its thread began
/// with.
pub(super) fn is_on_own_stack(sp: Avma, input: &Input<'_>) -> bool {
    input.stack_top.is_some_and(|top| sp <= top && top - sp <= MAX_STACK_BYTES)
}

/// Whether a frame with this stack pointer is on another stack than the one that was copied:
/// below it, or so far above that no copy reaches it. Stacks for signals are memory of the
/// program, which lies below the stack of its first thread, and anywhere to those of others.
///
/// A stack pointer may be at the very top, with nothing above it: the word below it counts.
pub(super) fn is_on_other_stack(sp: Avma, input: &Input<'_>) -> bool {
    sp != input.stack.base && !is_in_stack(Avma(sp.0.saturating_sub(1)), input)
}

/// How far a walk came that had come to `reached` and now is at a frame with this stack
/// pointer: one on another stack says nothing about how much of this one was needed.
pub(super) fn further(reached: Avma, sp: Avma, input: &Input<'_>) -> Avma {
    if sp <= reached || is_on_other_stack(sp, input) { reached } else { sp }
}
