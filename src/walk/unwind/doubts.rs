//! What keeps a walk that reached a thread's first function from being complete: the frames
//! it went by are noted, at the end they are judged. Input: each step; output: why the walk
//! ended. Costs nothing where nothing is doubtful, which is nearly everywhere.

use super::Frame;
use super::cache::{Entry, Rule};
use super::switching::{Installing, Switch};
use crate::addr::{Avma, CodeAddress};
use crate::walk::frames::Method;
use crate::walk::{Ended, Input};

/// See the top of this file.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Doubts {
    switching: bool,
    /// A frame record was followed from code that is known, and not known to keep one.
    unproved: bool,
    installing: Option<Installing>,
}

impl Doubts {
    /// Notes a step `from` a frame of which the cache holds `entry` to its caller.
    #[inline]
    pub(super) fn note(
        &mut self,
        entry: &Entry,
        from: &Frame,
        next: &Frame,
        method: Method,
        input: &Input<'_>,
    ) {
        if entry.switch != Switch::No || self.installing.is_some() {
            self.note_switch(entry, from, next);
        }
        self.unproved |= method == Method::FramePointer && input.code.code(from.address.lookup()).is_some();
    }

    #[cold]
    fn note_switch(&mut self, entry: &Entry, from: &Frame, next: &Frame) {
        match (entry.switch, &mut self.installing) {
            (Switch::Yes, _) | (Switch::Installing, Some(_)) => self.switching = true,
            (Switch::Installing, none) => *none = Some(Installing::new(&next.registers)),
            (Switch::No, Some(installing)) => {
                let by_frame_pointer = match entry.rule {
                    Rule::Ordinary(row, _) => usize::from(row.cfa_register) == super::RBP,
                    _ => true,
                };
                if by_frame_pointer {
                    installing.uses_frame_pointer(from.registers[super::RBP]);
                }
            }
            (Switch::No, None) => {}
        }
    }

    /// Why a walk ended that reached the first function; `reached` is its stack pointer.
    pub(super) fn at_root(&self, reached: Avma, input: &Input<'_>) -> Ended {
        let replaced = |installing: &Installing| !installing.is_intact(reached, input.stack);
        if self.switching || self.installing.as_ref().is_some_and(replaced) {
            Ended::Switching
        } else if self.unproved {
            Ended::Unproved
        } else {
            Ended::Root
        }
    }

    /// Why a walk ended at a frame that leads to no caller, where `otherwise` is the reason
    /// if nothing is doubtful.
    pub(super) fn at_stuck(
        &self,
        frame: &Frame,
        entry: &Entry,
        otherwise: Ended,
        input: &Input<'_>,
    ) -> Ended {
        let is_on_other_stack = frame.sp() < input.stack.base;
        match (otherwise, frame.address) {
            _ if self.switching || self.installing.is_some() || entry.switch != Switch::No => {
                Ended::Switching
            }
            (Ended::Root, _) if self.unproved => Ended::Unproved,
            // What a signal interrupted, on a stack that was not copied.
            (Ended::BadFrame, CodeAddress::Pc(_)) if is_on_other_stack => Ended::OtherStack,
            _ => otherwise,
        }
    }
}
