//! Decides whether a walk that reached an outermost frame is complete, for the loops of all processors. Input:
//! each doubtful step; output: the [`StackEnd`].

use super::frame_switch::FrameSwitch;
use crate::addr::Avma;
use crate::walk::bounds::is_on_other_stack;
use crate::walk::frame::Frame;
use crate::walk::processor::Processor;
use crate::walk::runtimes::libgcc::landing_pad::LandingPad;
use crate::walk::{Input, StackEnd};

/// Doubts about the frames of a walk so far.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::walk) struct Completeness {
    switching: bool,
    /// A frame record was followed from code that may not keep one, or instructions of a function with unknown
    /// entry, and nothing confirms the caller.
    unproved: bool,
    /// A caller was found by a stack scan.
    scanned: bool,
    landing_pad: Option<LandingPad>,
}

impl Completeness {
    /// Records a step `from` a frame to its caller `next`, and restores a replaced return address in `next`.
    /// `by_sp`: the rule's CFA is relative to the stack pointer.
    pub(in crate::walk) fn note<P: Processor>(
        &mut self,
        by_sp: bool,
        switch: FrameSwitch,
        from: &Frame<P>,
        next: &mut Frame<P>,
        input: &Input<'_>,
    ) {
        match (switch, &mut self.landing_pad) {
            (FrameSwitch::No, _) => self.note_ordinary(by_sp, from),
            (FrameSwitch::LandingPad, none @ None) => *none = Some(LandingPad::new(from, next, input.stack)),
            (FrameSwitch::Registers, _) | (FrameSwitch::LandingPad, Some(_)) => self.switching = true,
        }
    }

    /// Records whether a caller was found without proof.
    pub(in crate::walk) fn note_unproved(&mut self, is_unproved: bool) {
        self.unproved |= is_unproved;
    }

    /// Records that a caller was found by a stack scan.
    pub(in crate::walk) fn note_scanned(&mut self) {
        self.scanned = true;
    }

    /// Records that a caller was found by a frame's stack pointer or frame pointer.
    pub(in crate::walk) fn note_ordinary<P: Processor>(&mut self, by_sp: bool, from: &Frame<P>) {
        if let Some(landing_pad) = &mut self.landing_pad
            && !by_sp
        {
            landing_pad.uses_frame_pointer(from.registers[usize::from(P::FRAME_POINTER)]);
        }
    }

    /// Whether the verdict depends on the registers of the frames.
    pub(in crate::walk) fn need_registers(&self) -> bool {
        self.landing_pad.is_some()
    }

    /// The end of a walk at the first function, of a thread or a fiber according to `first`; `reached` is its
    /// stack pointer.
    pub(in crate::walk) fn at_outermost<P: Processor>(
        &self,
        first: StackEnd,
        reached: Avma,
        input: &Input<'_>,
    ) -> StackEnd {
        let replaced = |landing_pad: &LandingPad| !landing_pad.is_intact::<P>(reached, input.stack);
        if self.switching || self.landing_pad.as_ref().is_some_and(replaced) {
            StackEnd::StackSwitch
        } else if self.scanned {
            StackEnd::StackScan
        } else if self.unproved {
            StackEnd::UnverifiedFrameRecord
        } else {
            first
        }
    }

    /// The end of a walk at a frame without a known caller; `otherwise` applies if nothing is doubtful.
    pub(in crate::walk) fn without_caller<P: Processor>(
        &self,
        frame: &Frame<P>,
        switch: FrameSwitch,
        otherwise: StackEnd,
        input: &Input<'_>,
    ) -> StackEnd {
        match (otherwise, frame.address) {
            _ if self.switching || self.landing_pad.is_some() || switch != FrameSwitch::No => {
                StackEnd::StackSwitch
            }
            (StackEnd::Root | StackEnd::Fiber, _) if self.unproved => StackEnd::UnverifiedFrameRecord,
            // Code interrupted by a signal, on a stack that was not copied; or its caller, found by the link
            // register independent of the stack.
            (StackEnd::BrokenFrameChain, address)
                if (P::LINK.is_some() || !address.is_return()) && is_on_other_stack(frame.sp(), input) =>
            {
                StackEnd::OtherStack
            }
            _ => otherwise,
        }
    }
}
