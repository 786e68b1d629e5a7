//! The step from a frame to its caller by a rule, by the frame record, or by a leaf's link register.
//! Input: a frame, a row; output: the caller's frame, not yet checked.

use super::rule::Ordinary;
use super::{FP, LR, SP, leaf};
use crate::addr::{Avma, CodeAddress};
use crate::arch::Aarch64;
use crate::binary::frame_rule::{AARCH64_COLUMNS, AARCH64_PC, Column, RowAarch64};
use crate::walk::bounds::Failure;
use crate::walk::{Ended, Input, body};

/// See [`walk::frame::Frame`](crate::walk::frame::Frame).
pub(super) type Frame = crate::walk::frame::Frame<Aarch64, AARCH64_COLUMNS>;

impl Frame {
    /// The link register, where it can hold the return address: a call overwrites it.
    fn link(&self) -> Result<u64, Failure> {
        match self.address {
            CodeAddress::Pc(_) => Ok(self.registers[LR]),
            CodeAddress::Return(_) => Err(Failure::Refused),
        }
    }

    pub(super) fn ordinary(&self, row: &Ordinary, input: &Input<'_>) -> Result<Frame, Failure> {
        let base = *self.registers.get(usize::from(row.cfa_register)).ok_or(Failure::Refused)?;
        let cfa = base.wrapping_add_signed(row.cfa_offset.into());
        let at = |words: i16| Avma(cfa.wrapping_add_signed(i64::from(words) * 8));
        let address = match row.link_words {
            Some(words) => self.word(at(words), input)? & input.code_mask,
            None => self.link()?,
        };
        let mut next = *self;
        for &(register, words) in row.saved() {
            // Below the stack pointer: an epilogue has loaded it already, which rows of
            // compilers do not say.
            if at(words) >= self.sp()
                && let Some(value) = next.registers.get_mut(usize::from(register))
            {
                *value = self.word(at(words), input)?;
            }
        }
        Ok(next.called_from(cfa, address, input))
    }

    pub(super) fn unusual(&self, row: &RowAarch64, input: &Input<'_>) -> Result<Frame, Failure> {
        let mut next = self.by_row(row, input)?;
        // Where a row has no program counter apart, it is the caller's link register.
        if row.signal {
            if row.columns[AARCH64_PC] == Column::Same {
                next.registers[AARCH64_PC] = next.registers[LR];
            }
            next.registers[AARCH64_PC] &= input.code_mask;
            next.registers[LR] &= input.code_mask;
            next.registers[FP] &= input.code_mask;
            next.address = CodeAddress::Pc(Avma(next.registers[AARCH64_PC]));
            return Ok(next);
        }
        let link_is_kept = matches!(row.columns[LR], Column::Same | Column::Undefined);
        let address = if link_is_kept { self.link()? } else { next.registers[LR] & input.code_mask };
        let sp = next.registers[SP];
        Ok(next.called_from(sp, address, input))
    }

    /// The caller whose other registers are those of `self`.
    fn called_from(mut self, sp: u64, address: u64, input: &Input<'_>) -> Frame {
        self.registers[SP] = sp;
        self.registers[LR] = address;
        self.registers[AARCH64_PC] = address;
        // Swift's mark is bit 60 (see `fp::follow`).
        self.registers[FP] &= input.code_mask;
        self.address = CodeAddress::Return(Avma(address));
        self
    }

    /// The caller by the frame record that fp points to, or of a leaf that is at an
    /// instruction where it has none.
    pub(super) fn by_record(&self, input: &Input<'_>) -> Result<Frame, Failure> {
        let record = self.registers[FP];
        if let CodeAddress::Pc(pc) = self.address
            && leaf::link_is_caller(pc, self.registers[LR], record, input)
        {
            let link = self.registers[LR];
            return Ok(self.called_from(self.registers[SP], link, input));
        }
        if record < self.sp().0 || !record.is_multiple_of(8) {
            return Err(Failure::Refused);
        }
        let saved = self.word(Avma(record), input)?;
        let address = self.word(Avma(record) + 8, input)? & input.code_mask;
        let mut next = *self;
        next.registers[FP] = saved;
        Ok(next.called_from(record.wrapping_add(16), address, input))
    }

    /// Whether callers may be missing, or be there that are none, after a step to `next` by
    /// [`Frame::by_record`], which is only made where instructions do not tell: nothing says that
    /// the function keeps a record. Where the ABI promises one it still may keep none in an image
    /// that describes its other functions; and of a leaf whose instructions are not known (they
    /// were made at run time) nothing tells that the link register still holds its caller.
    pub(super) fn is_record_uncertain(&self, next: &Frame, input: &Input<'_>) -> bool {
        if !input.fp_always {
            return true;
        }
        let is_link = next.sp() == self.sp();
        let is_unknown = matches!(self.address, CodeAddress::Pc(pc) if input.code.code(pc).is_none());
        input.code.describes_frames(self.address.lookup().at()) || is_link && is_unknown
    }

    /// What it means that the walk ends here, with no caller found.
    pub(super) fn end(&self, by_records: bool, reached: Avma, input: &Input<'_>) -> Ended {
        // On macOS thread_start makes no record, so that there is nothing left to read.
        match body::is_first(self.address, Avma(0), self.registers[FP], input.code) {
            Some(true) => Ended::Root,
            Some(false) => Ended::BadFrame,
            None if by_records => self.end_of_records(reached, input),
            None => Ended::BadFrame,
        }
    }
}
