//! One frame with all its registers, and the processor-independent part of the step to its caller. Input: a frame,
//! a row of unwind information; output: the caller's registers, not yet checked.

use std::marker::PhantomData;

use super::bounds::{Failure, why_not};
use super::expression::Machine;
use super::processor::{Processor, RowOf, Values};
use super::{Input, StackEnd, root};
use crate::addr::{Avma, CodeAddress};
use crate::binary::frame_rule::{Cfa, Column, Columns};

/// A frame: its registers as they are while it is the leaf, or while its callee runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame<P: Processor> {
    pub address: CodeAddress,
    /// By DWARF number; the last is the program counter.
    pub registers: Values<P>,
}

impl<P: Processor> Frame<P> {
    /// The leaf of a thread stopped with these registers; for `mask` see [`Processor::values`].
    pub(super) fn new(registers: &P, mask: u64) -> Frame<P> {
        let registers = registers.values(mask);
        Frame { address: CodeAddress::Pc(Avma(registers[P::Columns::COUNT - 1])), registers }
    }

    /// A frame with an address and all registers by column.
    pub(super) fn of(address: CodeAddress, registers: Values<P>) -> Frame<P> {
        Frame { address, registers }
    }

    #[inline]
    pub(super) fn sp(&self) -> Avma {
        Avma(self.registers[usize::from(P::STACK_POINTER)])
    }

    /// The lowest address where the frame may have a word. Only a leaf that has not called has any below its stack
    /// pointer.
    fn lowest(&self) -> Avma {
        match self.address {
            CodeAddress::Pc(_) => Avma(self.sp().0.saturating_sub(P::RED_ZONE_BYTES)),
            CodeAddress::Return(_) => self.sp(),
        }
    }

    fn machine<'a>(&'a self, input: &'a Input<'a>) -> Machine<'a, P::Word> {
        let (word, lowest) = (PhantomData::<P::Word>, self.lowest());
        Machine { word, registers: self.registers.as_ref(), lowest, input }
    }

    /// The CFA of a row.
    pub(super) fn cfa(&self, row: &RowOf<P>, input: &Input<'_>) -> Result<u64, Failure> {
        match &row.cfa {
            Cfa::Register(register, offset) => {
                let base = self.registers.as_ref().get(usize::from(*register)).ok_or(Failure::Refused)?;
                Ok(base.wrapping_add_signed(*offset))
            }
            Cfa::Expression(code) => self.machine(input).evaluate(code, None),
        }
    }

    /// The caller's registers by a row of any form with this CFA, which becomes the stack pointer. The address is
    /// still that of `self`.
    pub(super) fn by_row(&self, row: &RowOf<P>, cfa: u64, input: &Input<'_>) -> Result<Frame<P>, Failure> {
        let machine = self.machine(input);
        let mut next = *self;
        next.registers[usize::from(P::STACK_POINTER)] = cfa;
        for (register, column) in row.columns.as_ref().iter().enumerate() {
            next.registers[register] = match column {
                Column::Same | Column::Undefined => continue,
                // Below the stack pointer: an epilogue has already loaded it, which compilers' rows do not
                // describe.
                Column::At(offset)
                    if register < P::RETURN_COLUMN
                        && !row.signal
                        && cfa.wrapping_add_signed(*offset) < self.sp().0 =>
                {
                    continue;
                }
                Column::At(offset) => self.word(Avma(cfa.wrapping_add_signed(*offset)), input)?,
                Column::Is(offset) => cfa.wrapping_add_signed(*offset),
                Column::In(other) => *machine.registers.get(usize::from(*other)).ok_or(Failure::Refused)?,
                Column::AtExpression(code) => {
                    let at = machine.evaluate(code, Some(cfa))?;
                    self.word(Avma(at), input)?
                }
                Column::IsExpression(code) => machine.evaluate(code, Some(cfa))?,
            };
        }
        Ok(next)
    }

    /// The stack end if a chain of frame records ends here.
    pub(super) fn end_of_records(&self, reached: Avma, input: &Input<'_>) -> StackEnd {
        let outermost = self.address.is_return().then_some(self.address.at());
        let next = self.registers[usize::from(P::FRAME_POINTER)] & input.address_mask;
        // The copy starts below the stack pointer, where a thread's first function has nothing.
        let above = if outermost.is_none() { self.sp() } else { input.stack.base };
        let chain = root::Chain { next, above, reached, outermost };
        match chain.end::<P>(input) {
            StackEnd::Root if chain.place_decides(input) => StackEnd::Root,
            // A stack scan may lead further.
            _ => StackEnd::BrokenFrameChain,
        }
    }

    /// The word at a stack address.
    #[inline]
    pub(super) fn word(&self, at: Avma, input: &Input<'_>) -> Result<u64, Failure> {
        input.read::<P::Word>(at).ok_or_else(|| why_not(at, input))
    }
}
