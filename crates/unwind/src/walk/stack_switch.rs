//! Stack switches that a walk follows: a signal handler on the alternate stack (sigaltstack(2)), where the kernel
//! saved the interrupted registers, and functions that call on another stack (`__morestack` of split stacks,
//! `rust_psm_on_stack`, those of OCaml 5) and have rows relative to the frame pointer or to a stack pointer in memory.
//!
//! Input: a frame and its caller; output: the [`Input`] for the rest of the walk. Its words are those of
//! [`OuterStack`](super::OuterStack), as far as they are known for the time of the sample.
//!
//! A saved context outlives its handler: a coroutine created by a signal returns from the handler and is resumed
//! by longjmp, while the interrupted stack has moved on. So a context is valid only while the thread blocks more
//! signals than when it was interrupted, as the kernel ensures until sigreturn. Programs that create coroutines
//! like this raise the signal themselves; so if a system call was interrupted, each call with a known target must
//! also have called the function of the frame below.

use super::frames::Frame;
use super::input::{StepError, is_on_other_stack};
use super::processor::Processor;
use super::{Input, StackBytes, StackEnd};
use crate::addr::{Avma, CodeAddress};

/// Limit on switches of one walk. A segment of a split stack has a page or more.
const SWITCHES_MAX: u32 = 1024;

/// The switches of a walk so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct StackSwitches<'a> {
    /// The copied stack, and the end of its memory.
    copied: StackBytes<'a>,
    limit: Option<Avma>,
    count: u32,
    /// The stack pointer after the switch numbered by the last power of two: if it recurs, the switches form a
    /// cycle.
    mark: Avma,
    /// A system call was interrupted.
    by_call: bool,
}

impl<'a> StackSwitches<'a> {
    /// No switches of a walk that begins on the copied stack.
    pub(super) fn new(input: &Input<'a>) -> StackSwitches<'a> {
        let (copied, limit) = (input.stack, input.stack_limit);
        StackSwitches { copied, limit, count: 0, mark: Avma(0), by_call: false }
    }

    /// Whether the signal of the last switch interrupted a system call, which may have raised it. Coroutines are
    /// created like this, and their handlers have returned: later calls on that stack contradict the frames.
    pub(super) fn is_by_call(&self) -> bool {
        self.by_call
    }

    /// Whether a walk has left the copied stack.
    pub(super) fn is_switched(&self) -> bool {
        self.count > 0
    }

    /// Whether a walk is on another stack of which nothing was copied.
    pub(super) fn is_uncopied(&self, input: &Input<'_>) -> bool {
        self.is_switched() && input.stack.bytes.is_empty()
    }

    /// The new reach of a walk at this stack pointer: other stacks do not count for the first one.
    pub(super) fn further(&self, reached: Avma, sp: Avma, input: &Input<'_>) -> Avma {
        if self.count > 0 { reached } else { super::input::further(reached, sp, input) }
    }

    /// The end of a walk after a failed step.
    pub(super) fn ended(&self, failure: StepError) -> StackEnd {
        match failure {
            StepError::OutsideCopy if self.count > 0 => StackEnd::OtherStack,
            failure => failure.ended(),
        }
    }

    /// Switches to the stack of `next` if `from` is the trampoline of a handler on the alternate stack, and `next`
    /// was interrupted on another one.
    ///
    /// # Errors
    /// The walk ends.
    pub(super) fn leave_handler<P: Processor>(
        &mut self,
        from: &Frame<P>,
        next: &Frame<P>,
        input: &mut Input<'a>,
    ) -> Result<(), StackEnd> {
        let CodeAddress::Return(trampoline) = from.address else { return Ok(()) };
        // If the blocked signals are unknown, words of this stack may still lead to the caller.
        let Some(blocked) = input.blocked_signals else { return Ok(()) };
        let Some(layout) = P::SIGNAL_FRAME else { return Ok(()) };
        if !input.code.code(trampoline).is_some_and(P::is_sigreturn) {
            return Ok(());
        }
        let word = |offset: u64| input.read::<u64>(Avma(from.sp().0.wrapping_add(offset)));
        let (stack, bytes) = (word(layout.stack), word(layout.stack_bytes));
        let Some((stack, bytes)) = stack.zip(bytes) else { return Ok(()) };
        // include/linux/sched/signal.h, `__on_sig_stack`.
        let is_on = |sp: Avma| sp.0 > stack && sp.0 - stack <= bytes;
        if !is_on(from.sp()) || is_on(next.sp()) {
            return Ok(());
        }
        // Handlers that unblock their own signal look the same as handlers that have returned.
        let is_live = word(layout.blocked).is_some_and(|saved| blocked & saved == saved && blocked != saved);
        if !is_live {
            return Err(StackEnd::OtherStack);
        }
        let CodeAddress::Pc(pc) = next.address else { return Ok(()) };
        let before = pc.0.checked_sub(P::SYSTEM_CALL.len() as u64).and_then(|at| input.code.code(Avma(at)));
        self.by_call =
            !P::SYSTEM_CALL.is_empty() && before.is_some_and(|code| code.starts_with(P::SYSTEM_CALL));
        let lowest = Avma(next.sp().0.saturating_sub(P::RED_ZONE_BYTES));
        self.go_to(lowest, input)
    }

    /// Switches to the stack that the row of `frame` refers to, if its function has called on another one:
    /// `lowest` is the lowest address that the row reads, and becomes the frame's stack pointer.
    ///
    /// # Errors
    /// The walk ends.
    pub(super) fn leave_callee<P: Processor>(
        &mut self,
        frame: &mut Frame<P>,
        lowest: Avma,
        input: &mut Input<'a>,
    ) -> Result<(), StackEnd> {
        frame.registers[usize::from(P::STACK_POINTER)] = lowest.0;
        self.go_to(lowest, input)
    }

    fn go_to(&mut self, lowest: Avma, input: &mut Input<'a>) -> Result<(), StackEnd> {
        if self.count >= SWITCHES_MAX || self.count > 0 && lowest == self.mark {
            return Err(StackEnd::BrokenFrameChain);
        }
        self.count += 1;
        if self.count.is_power_of_two() {
            self.mark = lowest;
        }
        let copied = lowest.0.checked_sub(self.copied.base.0);
        let copied = copied.and_then(|from| self.copied.bytes.get(usize::try_from(from).ok()?..));
        let copied = copied.filter(|bytes| !bytes.is_empty());
        input.stack = StackBytes { base: lowest, bytes: copied.unwrap_or_default() };
        input.stack_limit = copied.and(self.limit);
        Ok(())
    }
}

/// Whether the bytes at an address of a frame were not copied: above the copy, or on another stack.
pub(super) fn is_outside_copy(at: Avma, input: &Input<'_>) -> bool {
    at >= input.stack.end() || is_on_other_stack(at, input)
}

#[cfg(test)]
mod tests;
