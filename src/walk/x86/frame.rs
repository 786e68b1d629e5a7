//! The step from a frame to its caller by a rule, by the frame record, or by a leaf's code. Input: a
//! frame, a row; output: the caller's frame, not yet checked.

use super::record::unframed_return_slot;
use super::rule::Ordinary;
use super::{EBP, ESP, POINTER};
use crate::addr::{Avma, CodeAddress};
use crate::arch::{UNKNOWN_REGISTER, X86};
use crate::binary::frame_rule::{RowX86, X86_COLUMNS, X86_RETURN_ADDRESS};
use crate::walk::bounds::Failure;
use crate::walk::{Input, flow};

/// See [`walk::frame::Frame`](crate::walk::frame::Frame).
pub(super) type Frame = crate::walk::frame::Frame<X86, X86_COLUMNS>;

impl Frame {
    pub(super) fn ordinary(&self, row: &Ordinary, input: &Input<'_>) -> Result<Frame, Failure> {
        let base = *self.registers.get(usize::from(row.cfa_register)).ok_or(Failure::Refused)?;
        if base == UNKNOWN_REGISTER && usize::from(row.cfa_register) == EBP {
            return self.with_frame_pointer(input).ok_or(Failure::Refused)?.ordinary(row, input);
        }
        let cfa = base.wrapping_add_signed(row.cfa_offset.into());
        let at = |bytes: i16| Avma(cfa.wrapping_add_signed(bytes.into()));
        let address = self.word(at(row.return_at), input)?;
        let mut next = *self;
        for &(register, bytes) in row.saved() {
            // Below the stack pointer: an epilogue has popped it already, which rows of compilers
            // do not say.
            if at(bytes) >= self.sp()
                && let Some(value) = next.registers.get_mut(usize::from(register))
            {
                *value = self.word(at(bytes), input)?;
            }
        }
        Ok(next.called_from(cfa, address))
    }

    /// The same with its frame pointer, which nobody told; see the one of x86_64.
    fn with_frame_pointer(&self, input: &Input<'_>) -> Option<Frame> {
        let (at, returned) = (self.address.at(), self.address.is_return());
        let function = input.code.function(self.address.lookup().at())?;
        let above = flow::frame_pointer_on_all_ways::<X86, _>(function.start, at, returned, input.code)?;
        let mut frame = *self;
        frame.registers[EBP] = self.registers[ESP].wrapping_add_signed(above);
        Some(frame)
    }

    pub(super) fn unusual(&self, row: &RowX86, input: &Input<'_>) -> Result<Frame, Failure> {
        let mut next = self.by_row(row, input)?;
        let address = Avma(next.registers[X86_RETURN_ADDRESS]);
        next.address = if row.signal { CodeAddress::Pc(address) } else { CodeAddress::Return(address) };
        Ok(next)
    }

    /// The caller whose other registers are those of `self`.
    fn called_from(mut self, sp: u64, address: u64) -> Frame {
        self.registers[ESP] = sp;
        self.registers[X86_RETURN_ADDRESS] = address;
        self.address = CodeAddress::Return(Avma(address));
        self
    }

    /// The caller by the frame record that ebp points to, or of a leaf that is at an
    /// instruction where it has none.
    pub(super) fn by_record(&self, input: &Input<'_>) -> Result<Frame, Failure> {
        if let CodeAddress::Pc(pc) = self.address
            && let Some(slot) = unframed_return_slot(pc, self.sp(), input.code)
        {
            let address = self.word(slot, input)?;
            return Ok(self.called_from(slot.0.wrapping_add(POINTER), address));
        }
        let record = self.registers[EBP];
        if record < self.sp().0 || !record.is_multiple_of(POINTER) {
            return Err(Failure::Refused);
        }
        let saved = self.word(Avma(record), input)?;
        let address = self.word(Avma(record) + POINTER, input)?;
        let mut next = *self;
        next.registers[EBP] = saved;
        Ok(next.called_from(record.wrapping_add(2 * POINTER), address))
    }
}
