//! The step from a frame to its caller by a rule, a row of any form, or a frame record; and the check whether the result
//! can be a caller. Input: a frame, the rule at its address; output: the caller's frame, or a [`StepError`].

use super::Unwind;
use super::cache::OrdinaryRow;
use crate::addr::{Avma, CodeAddress};
use crate::arch::UNKNOWN_REGISTER;
use crate::binary::frame_rule::{Column, Columns};
use crate::walk::frames::{Frame, Method};
use crate::walk::input::{StepError, is_on_own_stack};
use crate::walk::processor::{Processor, RowOf};
use crate::walk::{Input, StackEnd, flow, processor};

impl<P: Processor> Frame<P> {
    /// The link register, if it can hold the return address: a call overwrites it.
    fn link(&self) -> Result<u64, StepError> {
        match self.address {
            CodeAddress::Pc(_) => Ok(self.registers[P::RETURN_COLUMN]),
            CodeAddress::Return(_) => Err(StepError::NotACaller),
        }
    }

    /// The caller by a row of any form.
    pub(crate) fn caller_by_row(&self, row: &RowOf<P>, input: &Input<'_>) -> Result<Frame<P>, StepError> {
        self.caller_at(row, self.cfa(row, input)?, input)
    }

    /// The caller by a row of any form, whose CFA is known.
    pub(crate) fn caller_at(
        &self,
        row: &RowOf<P>,
        cfa: u64,
        input: &Input<'_>,
    ) -> Result<Frame<P>, StepError> {
        let mut next = self.by_row(row, cfa, input)?;
        let pc = P::Columns::COUNT - 1;
        if row.signal {
            // A row without a separate program counter has it in the caller's link register.
            if row.columns[pc] == Column::Same {
                next.registers[pc] = next.registers[P::RETURN_COLUMN];
            }
            for column in [pc, P::RETURN_COLUMN, usize::from(P::FRAME_POINTER)] {
                next.registers[column] = P::address_bits(next.registers[column], input.address_mask);
            }
            next.address = CodeAddress::Pc(Avma(next.registers[pc]));
            return Ok(next);
        }
        let link_is_kept =
            P::LINK.is_some() && matches!(row.columns[P::RETURN_COLUMN], Column::Same | Column::Undefined);
        let address = match link_is_kept {
            true => self.link()?,
            false => P::address_bits(next.registers[P::RETURN_COLUMN], input.address_mask),
        };
        let sp = next.sp().0;
        Ok(next.called_from(sp, address, input))
    }

    /// The caller, with the other registers of `self`.
    pub(crate) fn called_from(mut self, sp: u64, address: u64, input: &Input<'_>) -> Frame<P> {
        let frame_pointer = usize::from(P::FRAME_POINTER);
        self.registers[usize::from(P::STACK_POINTER)] = sp;
        self.registers[P::RETURN_COLUMN] = address;
        self.registers[P::Columns::COUNT - 1] = address;
        // Swift's mark is bit 60 (see `fp::follow`).
        self.registers[frame_pointer] = P::address_bits(self.registers[frame_pointer], input.address_mask);
        self.address = CodeAddress::Return(Avma(address));
        self
    }

    /// This frame with its frame pointer, if that is unknown (for a sleeping thread only the stack pointer is
    /// known): the instructions from the function's entry show its distance above the stack pointer, if all paths
    /// agree.
    pub(crate) fn with_frame_pointer(&self, input: &Input<'_>) -> Option<Frame<P>> {
        let (at, returned) = (self.address.at(), self.address.is_return());
        let function = input.code.function(self.address.lookup().at())?;
        let above = flow::frame_pointer_on_all_paths::<P>(function.start, at, returned, input.code)?;
        let mut frame = *self;
        frame.registers[usize::from(P::FRAME_POINTER)] = self.sp().0.wrapping_add_signed(above);
        Some(frame)
    }

    /// The caller by the frame record at the frame pointer.
    pub(crate) fn caller_by_record(
        &self,
        frame_pointer: u64,
        input: &Input<'_>,
    ) -> Result<Frame<P>, StepError> {
        let record = P::frame_record(frame_pointer);
        if record < self.sp().0 || !record.is_multiple_of(P::POINTER_BYTES) {
            return Err(StepError::NotACaller);
        }
        let saved = self.word(Avma(record), input)?;
        let address = self.word(Avma(record) + P::POINTER_BYTES, input)?;
        let mut next = *self;
        next.registers[usize::from(P::FRAME_POINTER)] = saved;
        let sp = record.wrapping_add(2 * P::POINTER_BYTES);
        Ok(next.called_from(sp, P::address_bits(address, input.address_mask), input))
    }
}

impl<P: Unwind> Frame<P> {
    /// The caller by an ordinary row.
    pub(crate) fn ordinary(&self, row: &OrdinaryRow, input: &Input<'_>) -> Result<Frame<P>, StepError> {
        let registers = self.registers.as_ref();
        let base = *registers.get(usize::from(row.cfa_register)).ok_or(StepError::NotACaller)?;
        if base == UNKNOWN_REGISTER && row.cfa_register == P::FRAME_POINTER && P::LINK.is_none() {
            return self.with_frame_pointer(input).ok_or(StepError::NotACaller)?.ordinary(row, input);
        }
        let cfa = base.wrapping_add_signed(row.cfa_offset.into());
        let word = P::POINTER_BYTES.cast_signed();
        let at = |words: i16| Avma(cfa.wrapping_add_signed(i64::from(words) * word));
        let address = match row.return_words {
            Some(words) => P::address_bits(self.word(at(words), input)?, input.address_mask),
            None => self.link()?,
        };
        let mut next = *self;
        for &(register, words) in row.saved() {
            // Below the stack pointer: an epilogue has already loaded it, which compilers' rows do not describe.
            if at(words) >= self.sp()
                && let Some(value) = next.registers.as_mut().get_mut(usize::from(register))
            {
                *value = self.word(at(words), input)?;
            }
        }
        Ok(next.called_from(cfa, address, input))
    }

    /// The caller by the frame record, or the caller of a leaf at an instruction without a record.
    pub(crate) fn by_record(&self, input: &Input<'_>) -> Result<Frame<P>, StepError> {
        match P::without_record(self, input)? {
            Some((sp, address)) => Ok(self.called_from(sp, address, input)),
            None => self.caller_by_record(self.registers[usize::from(P::FRAME_POINTER)], input),
        }
    }

    /// The end of the walk at this frame without a known caller.
    pub(super) fn end(&self, by_records: bool, reached: Avma, input: &Input<'_>) -> StackEnd {
        // On macOS, thread_start creates no record, so nothing is left to read.
        let frame_pointer = self.registers[usize::from(P::FRAME_POINTER)];
        match processor::is_first(self.address, Avma(0), frame_pointer, input.code) {
            Some(true) => StackEnd::Root,
            Some(false) => StackEnd::BrokenFrameChain,
            None if by_records => self.end_of_records(reached, input),
            None => StackEnd::BrokenFrameChain,
        }
    }
}

/// Checks that a step leads to a possible caller. `returns`: whether a call returns to an address.
pub(crate) fn check<P: Processor>(
    from: &Frame<P>,
    next: Frame<P>,
    method: Method,
    input: &Input<'_>,
    returns: impl FnOnce(CodeAddress) -> bool,
) -> Result<(Frame<P>, Method), StepError> {
    let is_leaf = matches!(from.address, CodeAddress::Pc(_));
    let right = match next.address {
        // A signal interrupts at any instruction, and its handler may run on a separate stack.
        CodeAddress::Pc(pc) => next.sp() != from.sp() && input.code.is_code(pc),
        CodeAddress::Return(address) => {
            let frame_pointer = next.registers[usize::from(P::FRAME_POINTER)] & input.address_mask;
            if address == Avma(0)
                && processor::is_first(from.address, address, frame_pointer, input.code) == Some(true)
            {
                return Err(StepError::FirstFunction);
            }
            if address == Avma(0)
                && P::LINK.is_none()
                && method == Method::Cfi
                && !is_leaf
                && !is_on_own_stack(from.sp(), input)
            {
                return Err(StepError::NullReturnAddress);
            }
            // A leaf may leave the stack pointer unchanged if calls do not push. If they do, a leaf that has
            // popped its return address has it in a register (`vfork`, since its child returns on the same stack).
            let may_stay =
                || P::LINK.is_some() || from.registers.as_ref()[..P::RETURN_COLUMN].contains(&address.0);
            let rises = next.sp() > from.sp() || next.sp() == from.sp() && is_leaf && may_stay();
            rises && next.sp().0.is_multiple_of(P::POINTER_BYTES) && returns(next.address)
        }
    };
    if right { Ok((next, method)) } else { Err(StepError::NotACaller) }
}
