//! What keeps a walk that reached a thread's first function from being complete: the frames
//! it went by are noted, at the end they are judged. Input: each step; output: why the walk
//! ended. Costs nothing where nothing is doubtful, which is nearly everywhere.

use super::RBP;
use super::frame::Frame;
use super::installing::Installing;
use super::rule::{Kind, Rule};
use super::switching::Switch;
use crate::addr::{Avma, CodeAddress};
use crate::walk::bounds::is_on_other_stack;
use crate::walk::{Ended, Input};

/// See the top of this file.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Doubts {
    switching: bool,
    /// A frame record was followed from code that is not seen to keep one, or instructions whose
    /// function's entry is not known, and nothing confirms the caller that they lead to.
    unproved: bool,
    installing: Option<Installing>,
}

impl Doubts {
    /// Notes a step `from` a frame to its caller `next`, which gets the return address that it
    /// had where that was replaced.
    pub(super) fn note(
        &mut self,
        rule: Rule,
        switch: Switch,
        from: &Frame,
        next: &mut Frame,
        input: &Input<'_>,
    ) {
        match (switch, &mut self.installing) {
            (Switch::No, _) => self.note_ordinary(rule, from),
            (Switch::Installing, none @ None) => *none = Some(Installing::new(from, next, input.stack)),
            (Switch::Yes, _) | (Switch::Installing, Some(_)) => self.switching = true,
        }
    }

    /// Notes that a caller was found by what is not known to lead to it.
    pub(super) fn note_unproved(&mut self) {
        self.unproved = true;
    }

    /// Notes that a caller was found by a frame's stack pointer or frame pointer.
    pub(super) fn note_ordinary(&mut self, rule: Rule, from: &Frame) {
        if let Some(installing) = &mut self.installing
            && rule.kind() != Kind::StackPointer
        {
            installing.uses_frame_pointer(from.registers[RBP]);
        }
    }

    /// Whether the verdict depends on the registers of the frames.
    pub(super) fn need_registers(&self) -> bool {
        self.installing.is_some()
    }

    /// Why a walk ended that reached the first function, of a thread or of a fiber as `first`
    /// says; `reached` is its stack pointer.
    pub(super) fn at_outermost(&self, first: Ended, reached: Avma, input: &Input<'_>) -> Ended {
        let replaced = |installing: &Installing| !installing.is_intact(reached, input.stack);
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
    pub(super) fn without_caller(
        &self,
        frame: &Frame,
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
