//! One frame with all its registers, and the step to its caller by a row, by the frame record,
//! or by a leaf's code. Input: a frame, a rule; output: the caller's frame, not yet checked.
//! Not for: the common steps, which need three registers only (see `super`).

use super::cache::Cache;
use super::record::unframed_return_slot;
use super::rule::{Kind, Rule, Saved};
use super::{RBP, RSP};
use crate::addr::{Avma, CodeAddress};
use crate::arch::{RED_ZONE_BYTES, X86_64};
use crate::binary::frame_rule::{COLUMNS, Cfa, Column, RETURN_ADDRESS, Row};
use crate::walk::bounds::{Failure, why_not};
use crate::walk::expression::Machine;
use crate::walk::{Ended, Input, root};

/// A frame: its registers as they are while it is the leaf, or while its callee runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    pub address: CodeAddress,
    /// By DWARF number; the last is the program counter.
    pub registers: [u64; COLUMNS],
}

impl Frame {
    pub(super) fn new(registers: &X86_64) -> Frame {
        let mut all = [0; COLUMNS];
        all[..RETURN_ADDRESS].copy_from_slice(&registers.gpr);
        all[RETURN_ADDRESS] = registers.rip;
        Frame { address: CodeAddress::Pc(Avma(registers.rip)), registers: all }
    }

    #[inline]
    pub(super) fn sp(&self) -> Avma {
        Avma(self.registers[RSP])
    }

    /// Lowest address that it may keep words at. Only what no call has left has any below its
    /// stack pointer.
    fn lowest(&self) -> Avma {
        match self.address {
            CodeAddress::Pc(_) => Avma(self.sp().0.saturating_sub(RED_ZONE_BYTES)),
            CodeAddress::Return(_) => self.sp(),
        }
    }

    /// The caller by what is known of the frame's address.
    pub(super) fn step(&self, rule: Rule, cache: &mut Cache, input: &Input<'_>) -> Result<Frame, Failure> {
        match rule.kind() {
            Kind::StackPointer | Kind::FramePointer => {
                let saved = cache.saved(self.address, input.code);
                self.ordinary(rule, saved, input)
            }
            Kind::Unusual => self.unusual(cache.unusual(rule).ok_or(Failure::Refused)?, input),
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

    fn unusual(&self, row: &Row, input: &Input<'_>) -> Result<Frame, Failure> {
        let machine = Machine { registers: &self.registers, lowest: self.lowest(), input };
        let cfa = match &row.cfa {
            Cfa::Register(register, offset) => {
                let base = self.registers.get(usize::from(*register)).ok_or(Failure::Refused)?;
                base.wrapping_add_signed(*offset)
            }
            Cfa::Expression(code) => machine.evaluate(code, None)?,
        };
        let mut next = *self;
        next.registers[RSP] = cfa;
        for (register, column) in row.columns.iter().enumerate() {
            next.registers[register] = match column {
                Column::Same | Column::Undefined => continue,
                Column::At(offset)
                    if register < RETURN_ADDRESS && cfa.wrapping_add_signed(*offset) < self.sp().0 =>
                {
                    continue;
                }
                Column::At(offset) => self.word(Avma(cfa.wrapping_add_signed(*offset)), input)?,
                Column::Is(offset) => cfa.wrapping_add_signed(*offset),
                Column::In(other) => *self.registers.get(usize::from(*other)).ok_or(Failure::Refused)?,
                Column::AtExpression(code) => {
                    let at = machine.evaluate(code, Some(cfa))?;
                    self.word(Avma(at), input)?
                }
                Column::IsExpression(code) => machine.evaluate(code, Some(cfa))?,
            };
        }
        let address = Avma(next.registers[RETURN_ADDRESS]);
        next.address = if row.signal { CodeAddress::Pc(address) } else { CodeAddress::Return(address) };
        Ok(next)
    }

    /// The caller by the frame record that rbp points to, or of a leaf that is at an
    /// instruction where it has none.
    pub(super) fn by_record(&self, input: &Input<'_>) -> Result<Frame, Failure> {
        if let CodeAddress::Pc(pc) = self.address
            && let Some(slot) = unframed_return_slot(pc, self.sp(), input.code)
        {
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

    /// What it means that a chain of frame records ends here.
    pub(super) fn end_of_records(&self, reached: Avma, input: &Input<'_>) -> Ended {
        let outermost = match self.address {
            CodeAddress::Return(address) => Some(address),
            CodeAddress::Pc(_) => None,
        };
        let next = self.registers[RBP] & input.code_mask;
        let processor = root::Processor::X86_64;
        // The copy begins below the stack pointer, at which a thread's first function has nothing.
        let above = if outermost.is_none() { self.sp() } else { input.stack.base };
        let chain = root::Chain { processor, next, above, reached, outermost };
        match chain.end(input) {
            Ended::Root if chain.place_decides(input) => Ended::Root,
            // A search of the stack may lead further.
            _ => Ended::BadFrame,
        }
    }

    /// The word at an address of the stack.
    #[inline]
    fn word(&self, at: Avma, input: &Input<'_>) -> Result<u64, Failure> {
        input.stack.word(at).ok_or_else(|| why_not(at, input))
    }
}
