//! The step from a frame to its caller by a rule, by the frame record, or by a leaf's code. Input: a frame, a
//! rule; output: the caller's frame, not yet checked. Not for: common steps, which need only three registers (see
//! `unwinder.rs`).

use super::cache::Cache;
use super::rule::{Rule, RuleKind, SavedProfile};
use super::{RBP, RSP};
use crate::addr::Avma;
use crate::arch::{UNKNOWN_REGISTER, X86_64};
use crate::walk::Input;
use crate::walk::bounds::Failure;

/// A frame of x86_64: [`walk::frame::Frame`](crate::walk::frame::Frame).
pub(super) type Frame = crate::walk::frame::Frame<X86_64>;

impl Frame {
    /// The caller by the rule at the frame's address.
    pub(super) fn step(&self, rule: Rule, cache: &mut Cache, input: &Input<'_>) -> Result<Frame, Failure> {
        match rule.kind() {
            RuleKind::FramePointer if self.registers[RBP] == UNKNOWN_REGISTER => {
                let saved = cache.saved(self.address, input.code);
                self.with_frame_pointer(input).ok_or(Failure::Refused)?.ordinary(rule, saved, input)
            }
            RuleKind::StackPointer | RuleKind::FramePointer => {
                let saved = cache.saved(self.address, input.code);
                self.ordinary(rule, saved, input)
            }
            RuleKind::Unusual => self.caller_by_row(cache.unusual(rule).ok_or(Failure::Refused)?, input),
            RuleKind::Marked => self.by_record(None, input),
            RuleKind::Unknown | RuleKind::Root | RuleKind::Fiber => Err(Failure::Refused),
        }
    }

    fn ordinary(&self, rule: Rule, saved: SavedProfile, input: &Input<'_>) -> Result<Frame, Failure> {
        // Swift marks frame pointers above their address (see `fp::follow`).
        let base = match rule.kind() {
            RuleKind::StackPointer => self.registers[RSP],
            _ => self.registers[RBP] & input.address_mask,
        };
        let at = |words: i64| Avma(base.wrapping_add_signed(words * 8));
        let address = self.word(at(rule.return_at()), input)?;
        let mut next = *self;
        // Below the stack pointer: an epilogue has already popped it, which compilers' rows do not describe.
        if rule.saves_frame_pointer() && at(rule.frame_pointer_at()) >= self.sp() {
            next.registers[RBP] = self.word(at(rule.frame_pointer_at()), input)?;
        }
        for (register, words) in saved.iter().filter(|(_, words)| at(*words) >= self.sp()) {
            next.registers[register] = self.word(at(words), input)?;
        }
        Ok(next.called_from(at(rule.cfa()).0, address, input))
    }

    /// The caller by the frame record at rbp, or, for a leaf at an instruction without a record, by the return
    /// address this many bytes above the stack pointer.
    pub(super) fn by_record(&self, unframed: Option<u64>, input: &Input<'_>) -> Result<Frame, Failure> {
        match unframed {
            Some(bytes) => {
                let slot = Avma(self.sp().0.wrapping_add(bytes));
                Ok(self.called_from(slot.0.wrapping_add(8), self.word(slot, input)?, input))
            }
            None => self.caller_by_record(self.registers[RBP] & input.address_mask, input),
        }
    }
}
