//! Unwinding on x86_64 with all registers: from each frame to its caller by the row of
//! unwind information at its address, or else by its code, its frame record, or a search
//! of the stack. Input: registers, copied stack, `Code`; output: [`Frames`] and why the
//! walk ended.
//!
//! Every step is checked: a return address follows a call in executable memory, and the
//! stack pointer rises. A walk is complete only at the thread's known first function. What
//! was learned of an address is kept (`cache.rs`), since stacks lead to the same ones again
//! and again.
//!
//! The rows of libraries are ordinary but for a few, which use other registers than the
//! stack and frame pointer, or expressions (`expression.rs`): lazy binding, signal frames,
//! realigned stacks. All registers are kept from the leaf on, so such a row is only a
//! slower step.

mod aarch64;
mod body;
mod cache;
mod code;
mod expression;
mod flow;
mod length;
mod scan;

use super::fp::MAX_STACK_BYTES;
use super::frames::{Frames, How, Method};
use super::x86_64::record::unframed_return_slot;
use super::{Ended, Input, Walked, root};
use crate::addr::{Avma, CodeAddress};
use crate::frame_rule::{COLUMNS, Cfa, Column, RETURN_ADDRESS, Row};
use crate::registers::{Aarch64, X86_64};
use cache::{Cache, Ordinary, Rule};
use expression::Machine;

const RBP: usize = X86_64::RBP;
const RSP: usize = X86_64::RSP;

/// What unwinding keeps from walk to walk. Belongs to one state of the target's images:
/// [`Unwinder::images_changed`] when they change.
#[derive(Clone, Debug, Default)]
pub struct Unwinder {
    cache: Cache,
    aarch64: aarch64::Unwinder,
}

impl Unwinder {
    /// Forgets what was learned: addresses may have another meaning now.
    pub fn images_changed(&mut self) {
        self.cache.clear();
        self.aarch64.images_changed();
    }

    /// The same on aarch64; see `aarch64.rs`.
    pub(super) fn walk_aarch64(
        &mut self,
        how: How,
        registers: &Aarch64,
        input: &Input<'_>,
        out: &mut Frames,
    ) -> Walked {
        self.aarch64.walk(how, registers, input, out)
    }

    /// Walks from the registers of a stopped thread; see [`super::unwind`].
    pub(super) fn walk(
        &mut self,
        how: How,
        registers: &X86_64,
        input: &Input<'_>,
        out: &mut Frames,
    ) -> Walked {
        let mut frame = Frame::new(registers);
        out.push(frame.address, Method::Context);
        let walked = self.follow(how, &mut frame, input, out);
        if how == How::Auto && walked.ended == Ended::BadFrame {
            return scan::reconnect(self, &frame, walked, input, out);
        }
        walked
    }

    /// Goes on from a frame that is in `out`, without a search. Leaves `frame` at the last one.
    fn follow(&mut self, how: How, frame: &mut Frame, input: &Input<'_>, out: &mut Frames) -> Walked {
        let mut reached = frame.sp();
        loop {
            let entry = self.cache.entry(frame.address, input.code);
            let step = match entry.rule {
                Rule::Root => return Walked { ended: Ended::Root, reached },
                Rule::Ordinary(row, method) => frame.ordinary(&row, input).map(|next| (next, method)),
                Rule::Unusual(index) => match self.cache.unusual(index) {
                    Some(row) => frame.unusual(row, input).map(|next| (next, Method::Cfi)),
                    None => Err(Failure::Refused),
                },
                Rule::Unknown => Err(Failure::Refused),
            };
            let checked = step.and_then(|(next, method)| self.check(frame, next, method, input));
            // Only code that nothing else is known of may be walked by frame pointer: where
            // unwind information leads to no caller, a frame record is that of another frame.
            let may_use_record =
                how == How::Auto && matches!(entry.rule, Rule::Unknown | Rule::Ordinary(_, Method::Code));
            let checked = match checked {
                Err(Failure::Refused) if may_use_record => frame
                    .by_record(input)
                    .and_then(|next| self.check(frame, next, Method::FramePointer, input)),
                other => other,
            };
            let (next, method) = match checked {
                Ok(found) => found,
                Err(Failure::First) => return Walked { ended: Ended::Root, reached },
                Err(Failure::OutsideWindow) => return Walked { ended: Ended::WindowRanOut, reached },
                Err(Failure::Refused) => {
                    let ended = if may_use_record {
                        frame.end_of_records(reached, input, out.methods.last())
                    } else {
                        Ended::BadFrame
                    };
                    return Walked { ended, reached };
                }
            };
            // After a signal frame the stack may be another one.
            reached = if next.sp() < reached { reached } else { next.sp() };
            if out.len() >= input.max_depth {
                return Walked { ended: Ended::DepthLimit, reached };
            }
            *frame = next;
            out.push(frame.address, method);
        }
    }

    /// Whether a step leads to what can be a caller.
    fn check(
        &mut self,
        from: &Frame,
        next: Frame,
        method: Method,
        input: &Input<'_>,
    ) -> Result<(Frame, Method), Failure> {
        let right = match next.address {
            // A signal interrupts anywhere, and its handler may have a stack of its own.
            CodeAddress::Pc(pc) => next.sp() != from.sp() && input.code.is_code(pc),
            CodeAddress::Return(address) => {
                let frame_pointer = next.registers[RBP] & input.code_mask;
                if address.0 == 0
                    && body::is_first(from.address, address, frame_pointer, input.code) == Some(true)
                {
                    return Err(Failure::First);
                }
                next.sp() > from.sp()
                    && next.sp().0.is_multiple_of(8)
                    && cache::is_return(address, &mut self.cache, input.code)
            }
        };
        if right { Ok((next, method)) } else { Err(Failure::Refused) }
    }
}

/// Why a step led nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    /// To memory above the copied window.
    OutsideWindow,
    /// To what cannot be a caller.
    Refused,
    /// To nothing, from the first function of a thread.
    First,
}

/// A frame: its registers as they are while it is the leaf, or while its callee runs.
#[derive(Clone, Copy, Debug)]
struct Frame {
    address: CodeAddress,
    /// By DWARF number; the last is the program counter.
    registers: [u64; COLUMNS],
}

impl Frame {
    fn new(registers: &X86_64) -> Frame {
        let mut all = [0; COLUMNS];
        all[..RETURN_ADDRESS].copy_from_slice(&registers.gpr);
        all[RETURN_ADDRESS] = registers.rip;
        Frame { address: CodeAddress::Pc(Avma(registers.rip)), registers: all }
    }

    #[inline]
    fn sp(&self) -> Avma {
        Avma(self.registers[RSP])
    }

    #[inline]
    fn ordinary(&self, row: &Ordinary, input: &Input<'_>) -> Result<Frame, Failure> {
        let base = self.registers[usize::from(row.cfa_register)];
        // Swift's mark (see `fp::follow`).
        let base = if usize::from(row.cfa_register) == RBP { base & input.code_mask } else { base };
        let cfa = base.wrapping_add_signed(row.cfa_offset.into());
        let at = |words: i16| Avma(cfa.wrapping_add_signed(i64::from(words) * 8));
        let address = self.word(at(row.return_words), input)?;
        let mut next = *self;
        for &(register, words) in row.saved() {
            // Below the stack pointer: an epilogue has popped it already, which rows of
            // compilers do not say.
            if at(words) >= self.sp() {
                next.registers[usize::from(register)] = self.word(at(words), input)?;
            }
        }
        next.registers[RSP] = cfa;
        next.registers[RETURN_ADDRESS] = address;
        next.address = CodeAddress::Return(Avma(address));
        Ok(next)
    }

    fn unusual(&self, row: &Row, input: &Input<'_>) -> Result<Frame, Failure> {
        let machine = Machine { registers: &self.registers, stack: input.stack };
        let cfa = match &row.cfa {
            Cfa::Register(register, offset) => {
                let base = self.registers.get(usize::from(*register)).ok_or(Failure::Refused)?;
                base.wrapping_add_signed(*offset)
            }
            Cfa::Expression(code) => machine.evaluate(code, None).ok_or(Failure::Refused)?,
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
                    let at = machine.evaluate(code, Some(cfa)).ok_or(Failure::Refused)?;
                    self.word(Avma(at), input)?
                }
                Column::IsExpression(code) => machine.evaluate(code, Some(cfa)).ok_or(Failure::Refused)?,
            };
        }
        let address = Avma(next.registers[RETURN_ADDRESS]);
        next.address = if row.signal { CodeAddress::Pc(address) } else { CodeAddress::Return(address) };
        Ok(next)
    }

    /// The caller by the frame record that rbp points to, or of a leaf that is at an
    /// instruction where it has none.
    fn by_record(&self, input: &Input<'_>) -> Result<Frame, Failure> {
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
        next.registers[RSP] = record + 16;
        next.registers[RETURN_ADDRESS] = address;
        next.address = CodeAddress::Return(Avma(address));
        Ok(next)
    }

    /// What it means that a chain of frame records ends here.
    fn end_of_records(&self, reached: Avma, input: &Input<'_>, found_by: Option<&Method>) -> Ended {
        let outermost = match self.address {
            CodeAddress::Return(address) => Some(address),
            CodeAddress::Pc(_) => None,
        };
        let next = self.registers[RBP] & input.code_mask;
        let chain = root::Chain { next, above: input.stack.base, reached, outermost };
        // That a walk ends is no proof of anything, but where the place tells, or a chain of
        // records ends with the mark of the deepest frame (System V AMD64 ABI, 3.4.1).
        let in_records = matches!(found_by, Some(Method::FramePointer | Method::Code));
        let told = input.stack_top.is_some() || input.fp_always || in_records;
        if told { chain.end(input) } else { Ended::BadFrame }
    }

    /// The word at an address of the stack.
    #[inline]
    fn word(&self, at: Avma, input: &Input<'_>) -> Result<u64, Failure> {
        input.stack.word(at).ok_or_else(|| why_not(at, input))
    }
}

/// Why there is no word at an address of the stack.
#[cold]
fn why_not(at: Avma, input: &Input<'_>) -> Failure {
    let base = input.stack.base;
    let above = at >= base && at - base < MAX_STACK_BYTES;
    let in_stack = input.stack_limit.is_none_or(|limit| at < limit)
        && input.stack_top.is_none_or(|top| base > top || at < top);
    if above && in_stack { Failure::OutsideWindow } else { Failure::Refused }
}

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod tests;
