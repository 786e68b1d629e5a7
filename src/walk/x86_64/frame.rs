//! The step from a frame to its caller by a rule, by the frame record, or by a leaf's code. Input: a frame, a rule; output: the caller's frame, not yet checked.
//! Not for: the common steps, which need three registers only (see `unwinder.rs`).

use super::cache::Cache;
use super::rule::{Kind, Rule, Saved};
use super::{RBP, RSP};
use crate::addr::{Avma, CodeAddress};
use crate::arch::{UNKNOWN_REGISTER, X86_64};
use crate::binary::frame_rule::{COLUMNS, RETURN_ADDRESS, Row};
use crate::walk::bounds::Failure;
use crate::walk::{Input, flow};

/// See [`walk::frame::Frame`](crate::walk::frame::Frame).
pub(super) type Frame = crate::walk::frame::Frame<X86_64, COLUMNS>;

impl Frame {
    /// The caller by what is known of the frame's address.
    pub(super) fn step(&self, rule: Rule, cache: &mut Cache, input: &Input<'_>) -> Result<Frame, Failure> {
        match rule.kind() {
            Kind::FramePointer if self.registers[RBP] == UNKNOWN_REGISTER => {
                let saved = cache.saved(self.address, input.code);
                self.with_frame_pointer(input).ok_or(Failure::Refused)?.ordinary(rule, saved, input)
            }
            Kind::StackPointer | Kind::FramePointer => {
                let saved = cache.saved(self.address, input.code);
                self.ordinary(rule, saved, input)
            }
            Kind::Unusual => self.unusual(cache.unusual(rule).ok_or(Failure::Refused)?, input),
            Kind::Marked => self.by_record(None, input),
            Kind::Unknown | Kind::Root | Kind::Fiber => Err(Failure::Refused),
        }
    }

    fn ordinary(&self, rule: Rule, saved: Saved, input: &Input<'_>) -> Result<Frame, Failure> {
        // Swift marks frame pointers above their address (see `fp::follow`).
        let base = match rule.kind() {
            Kind::StackPointer => self.registers[RSP],
            _ => self.registers[RBP] & input.code_mask,
        };
        let at = |words: i64| Avma(base.wrapping_add_signed(words * 8));
        let address = self.word(at(rule.return_at()), input)?;
        let mut next = *self;
        // Below the stack pointer: an epilogue has popped it already, which rows of
        // compilers do not say.
        if rule.saves_frame_pointer() && at(rule.frame_pointer_at()) >= self.sp() {
            next.registers[RBP] = self.word(at(rule.frame_pointer_at()), input)?;
        }
        for (register, words) in saved.iter().filter(|(_, words)| at(*words) >= self.sp()) {
            next.registers[register] = self.word(at(words), input)?;
        }
        next.registers[RSP] = at(rule.cfa()).0;
        next.registers[RETURN_ADDRESS] = address;
        next.address = CodeAddress::Return(Avma(address));
        Ok(next)
    }

    /// The same with its frame pointer, which nobody told (a thread that sleeps shows its stack pointer
    /// only): the instructions from the function's entry on tell how far above the stack pointer it
    /// points, if all ways to this one agree.
    fn with_frame_pointer(&self, input: &Input<'_>) -> Option<Frame> {
        let (at, returned) = (self.address.at(), self.address.is_return());
        let function = input.code.function(self.address.lookup().at())?;
        let above = flow::frame_pointer_on_all_ways::<X86_64, _>(function.start, at, returned, input.code)?;
        let mut frame = *self;
        frame.registers[RBP] = self.registers[RSP].wrapping_add_signed(above);
        Some(frame)
    }

    fn unusual(&self, row: &Row, input: &Input<'_>) -> Result<Frame, Failure> {
        let mut next = self.by_row(row, input)?;
        let address = Avma(next.registers[RETURN_ADDRESS]);
        next.address = if row.signal { CodeAddress::Pc(address) } else { CodeAddress::Return(address) };
        Ok(next)
    }

    /// The caller by the frame record that rbp points to, or by the return address so many bytes above the stack pointer
    /// of a leaf that is at an instruction where it has none.
    pub(super) fn by_record(&self, unframed: Option<u64>, input: &Input<'_>) -> Result<Frame, Failure> {
        if let Some(bytes) = unframed {
            let slot = Avma(self.sp().0.wrapping_add(bytes));
            let address = self.word(slot, input)?;
            let mut next = *self;
            next.registers[RSP] = slot.0.wrapping_add(8);
            next.registers[RETURN_ADDRESS] = address;
            next.address = CodeAddress::Return(Avma(address));
            return Ok(next);
        }
        let record = self.registers[RBP] & input.code_mask;
        if record < self.sp().0 || !record.is_multiple_of(8) {
            return Err(Failure::Refused);
        }
        let saved = self.word(Avma(record), input)?;
        let address = self.word(Avma(record) + 8, input)?;
        let mut next = *self;
        next.registers[RBP] = saved;
        next.registers[RSP] = record.wrapping_add(16);
        next.registers[RETURN_ADDRESS] = address;
        next.address = CodeAddress::Return(Avma(address));
        Ok(next)
    }
}
