//! Decides whether a walk that reached an outermost frame is complete, for the loops of all processors. Input: each doubtful
//! step (how reliable its row is: [`Proof`], what its code replaces: [`FrameSwitch`]); output: the [`StackEnd`].

use crate::addr::Avma;
use crate::walk::frames::Frame;
use crate::walk::input::is_on_other_stack;
use crate::walk::processor::Processor;
use crate::walk::runtimes::LandingPad;
use crate::walk::{Input, StackEnd};

/// Doubts about the frames of a walk so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Completeness {
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
    pub(crate) fn note<P: Processor>(
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
    pub(crate) fn note_unproved(&mut self, is_unproved: bool) {
        self.unproved |= is_unproved;
    }

    /// Records that a caller was found by a stack scan.
    pub(crate) fn note_scanned(&mut self) {
        self.scanned = true;
    }

    /// Records that a caller was found by a frame's stack pointer or frame pointer.
    pub(crate) fn note_ordinary<P: Processor>(&mut self, by_sp: bool, from: &Frame<P>) {
        if let Some(landing_pad) = &mut self.landing_pad
            && !by_sp
        {
            landing_pad.uses_frame_pointer(from.registers[usize::from(P::FRAME_POINTER)]);
        }
    }

    /// Whether the verdict depends on the registers of the frames.
    pub(crate) fn need_registers(&self) -> bool {
        self.landing_pad.is_some()
    }

    /// The end of a walk at the first function, of a thread or a fiber according to `first`; `reached` is its
    /// stack pointer.
    pub(crate) fn at_outermost<P: Processor>(
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
    pub(crate) fn without_caller<P: Processor>(
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

// ---- Reliability of the caller that a row leads to.

/// Reliability of a row that was derived from instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Proof {
    /// The row is right at this instruction, whatever the program does.
    #[default]
    Certain,
    /// The row holds if a call on the path returns, which is unknown. If it does not, the instructions after it
    /// belong to another path or another function. A frame record or the call before the return address must
    /// confirm the caller.
    NeedsConfirmation,
    /// The CFA is relative to a frame pointer that another function may have set up. Only the target of the call
    /// before the return address decides.
    NeedsCall,
}

// ---- Instructions at which a thread's registers belong partly to one frame and partly to another. Each processor
// detects its own (`intel/switch_instructions.rs`).

/// The state that the code at an address replaces while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameSwitch {
    /// Nothing: all registers belong to the frame.
    No,
    /// The saved words of the frame, replaced by those of the frame with the landing pad: see
    /// [`LandingPad`](crate::walk::runtimes::LandingPad).
    LandingPad,
    /// The registers: the caller may be that of another frame than the running one.
    Registers,
}
