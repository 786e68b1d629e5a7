//! What keeps a walk that reached a thread's first function from being complete: the frames
//! it went by are noted, at the end they are judged. Input: each step; output: why the walk
//! ended. Costs nothing where nothing is doubtful, which is nearly everywhere.

use super::Intel;
use super::installing::Installing;
use super::switching::Switch;
use crate::addr::{Avma, CodeAddress};
use crate::walk::bounds::is_on_other_stack;
use crate::walk::frame::Frame;
use crate::walk::{Ended, Input};

/// See the top of this file.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::walk) struct Doubts {
    switching: bool,
    /// A frame record was followed from code that is not seen to keep one, or instructions whose
    /// function's entry is not known, and nothing confirms the caller that they lead to.
    unproved: bool,
    installing: Option<Installing>,
}

impl Doubts {
    /// Notes a step `from` a frame to its caller `next`, which gets the return address that it
    /// had where that was replaced. `by_sp`: by a rule that counts from the stack pointer.
    pub(in crate::walk) fn note<P: Intel<N>, const N: usize>(
        &mut self,
        by_sp: bool,
        switch: Switch,
        from: &Frame<P, N>,
        next: &mut Frame<P, N>,
        input: &Input<'_>,
    ) {
        match (switch, &mut self.installing) {
            (Switch::No, _) => self.note_ordinary(by_sp, from),
            (Switch::Installing, none @ None) => *none = Some(Installing::new(from, next, input.stack)),
            (Switch::Yes, _) | (Switch::Installing, Some(_)) => self.switching = true,
        }
    }

    /// Notes that a caller was found by what is not known to lead to it.
    pub(in crate::walk) fn note_unproved(&mut self) {
        self.unproved = true;
    }

    /// Notes that a caller was found by a frame's stack pointer or frame pointer.
    pub(in crate::walk) fn note_ordinary<P: Intel<N>, const N: usize>(
        &mut self,
        by_sp: bool,
        from: &Frame<P, N>,
    ) {
        if let Some(installing) = &mut self.installing
            && !by_sp
        {
            installing.uses_frame_pointer(from.registers[usize::from(P::FRAME_POINTER)]);
        }
    }

    /// Whether the verdict depends on the registers of the frames.
    pub(in crate::walk) fn need_registers(&self) -> bool {
        self.installing.is_some()
    }

    /// Why a walk ended that reached the first function, of a thread or of a fiber as `first`
    /// says; `reached` is its stack pointer.
    pub(in crate::walk) fn at_outermost<P: Intel<N>, const N: usize>(
        &self,
        first: Ended,
        reached: Avma,
        input: &Input<'_>,
    ) -> Ended {
        let replaced = |installing: &Installing| !installing.is_intact::<P, N>(reached, input.stack);
        if self.switching || self.installing.as_ref().is_some_and(replaced) {
            Ended::Switching
        } else if self.unproved {
            Ended::Unproved
        } else {
            first
        }
    }

    /// Why a walk ended at a frame whose caller was not found, where `otherwise` is the reason
    /// if nothing is doubtful.
    pub(in crate::walk) fn without_caller<P: Intel<N>, const N: usize>(
        &self,
        frame: &Frame<P, N>,
        switch: Switch,
        otherwise: Ended,
        input: &Input<'_>,
    ) -> Ended {
        match (otherwise, frame.address) {
            _ if self.switching || self.installing.is_some() || switch != Switch::No => Ended::Switching,
            (Ended::Root | Ended::Fiber, _) if self.unproved => Ended::Unproved,
            // What a signal interrupted, on a stack that was not copied.
            (Ended::BadFrame, CodeAddress::Pc(_)) if is_on_other_stack(frame.sp(), input) => {
                Ended::OtherStack
            }
            _ => otherwise,
        }
    }
}
