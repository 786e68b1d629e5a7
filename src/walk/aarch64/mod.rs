//! Unwinding on aarch64 with all registers: the mirror of the x86_64 unwinder above this
//! file, with the same input and the same result.
//!
//! What differs: the return address is in the link register until a function saves it, so a
//! row may say that the caller is there; only the leaf's can. Return addresses may carry a
//! signature above the bits of [`Input::code_mask`], which is stripped. Frame pointers may
//! carry Swift's mark, which is stripped, too. There is no search of the stack.

mod cache;
pub(super) mod instructions;
pub(super) mod leaf;
mod record;
#[cfg(test)]
mod tests;

use crate::addr::{Avma, CodeAddress};
use crate::arch::{Aarch64, RED_ZONE_BYTES};
use crate::binary::frame_rule::{AARCH64_COLUMNS, AARCH64_PC, Cfa, Column, RowAarch64};
use crate::walk::bounds::{Failure, further, is_on_other_stack, why_not};
use crate::walk::expression::Machine;
use crate::walk::frames::{Frames, How, Method};
use crate::walk::{Ended, Input, Walked, body, root};
use cache::{Cache, Kind, Ordinary};

const FP: usize = Aarch64::FP;
const LR: usize = Aarch64::LR;
const SP: usize = 31;

/// What is kept from walk to walk; see [`super::Unwinder`].
#[derive(Clone, Debug, Default)]
pub(super) struct Unwinder {
    cache: Cache,
    /// The frames of [`Unwinder::confirms`].
    confirmed: Frames,
}

impl Unwinder {
    pub(super) fn images_changed(&mut self) {
        self.cache.clear();
    }

    pub(super) fn forget(&mut self, is_gone: &dyn Fn(Avma) -> bool) {
        self.cache.forget(is_gone);
    }

    pub(super) fn walk(
        &mut self,
        how: How,
        registers: &Aarch64,
        input: &Input<'_>,
        out: &mut Frames,
    ) -> Walked {
        let mut frame = Frame::new(registers, input.code_mask);
        out.push(frame.address, Method::Context);
        let mut reached = frame.sp();
        // As on x86_64 (`doubts.rs`).
        let mut unproved = false;
        loop {
            let rule = self.cache.rule(frame.address, input.code);
            let step = match rule.kind {
                Kind::Root => return Walked { ended: if_proved(Ended::Root, unproved), reached },
                Kind::Ordinary(row, method) => frame.ordinary(&row, input).map(|next| (next, method)),
                Kind::Unusual(index) => match self.cache.unusual(index) {
                    Some(unusual) => {
                        if unusual.is_trampoline {
                            out.last_is_not_called(frame.address);
                        }
                        frame.unusual(&unusual.row, input).map(|next| (next, unusual.method))
                    }
                    None => Err(Failure::Refused),
                },
                Kind::Unknown => Err(Failure::Refused),
            };
            let checked = step.and_then(|(next, method)| self.check(&frame, next, method, input));
            // As on x86_64: a record only where nothing else is known.
            let may_use_record =
                how == How::Auto && matches!(rule.kind, Kind::Unknown | Kind::Ordinary(_, Method::Code));
            let checked = match checked {
                Err(Failure::Refused) if may_use_record => frame
                    .by_record(input)
                    .and_then(|next| self.check(&frame, next, Method::FramePointer, input)),
                other => other,
            };
            let (next, method) = match checked {
                Ok(found) => found,
                Err(Failure::Refused) => {
                    let ended = match frame.end(may_use_record, reached, input) {
                        // What a signal interrupted, or its caller: that of a leaf is in the
                        // link register, wherever the stack is.
                        Ended::BadFrame if is_on_other_stack(frame.sp(), input) => Ended::OtherStack,
                        ended => if_proved(ended, unproved),
                    };
                    return Walked { ended, reached };
                }
                Err(failure) => return Walked { ended: if_proved(failure.ended(), unproved), reached },
            };
            reached = further(reached, next.sp(), input);
            if out.len() >= input.max_depth {
                return Walked { ended: Ended::DepthLimit, reached };
            }
            unproved |= method == Method::FramePointer && frame.is_record_uncertain(&next, input);
            frame = next;
            out.push(frame.address, method);
        }
    }

    /// Whether unwind information does not contradict a walk by frame pointers that found these
    /// look-up addresses and claims to be complete: where any is known, it must lead to the same
    /// ones. A chain of records is whole without a function that keeps none. Where the ABI
    /// promises the records, it may lead less far, but to no other frame: code may break the
    /// promise (`-fomit-frame-pointer`), and unwind information of an image may be missing.
    pub(super) fn confirms(&mut self, addresses: &[u64], registers: &Aarch64, input: &Input<'_>) -> bool {
        if !super::x86_64::can_be_checked(addresses, input.code) {
            return true;
        }
        let mut confirmed = std::mem::take(&mut self.confirmed);
        confirmed.clear();
        let walked = self.walk(How::Cfi, registers, input, &mut confirmed);
        let same = match walked.ended {
            Ended::Root => confirmed.addresses == addresses,
            _ => input.fp_always && addresses.starts_with(&confirmed.addresses),
        };
        self.confirmed = confirmed;
        same
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
                if body::is_first(from.address, address, next.registers[FP], input.code) == Some(true) {
                    return Err(Failure::First);
                }
                // A leaf may leave the stack pointer alone.
                let is_leaf = matches!(from.address, CodeAddress::Pc(_));
                let rises = next.sp() > from.sp() || (is_leaf && next.sp() == from.sp());
                rises && next.sp().0.is_multiple_of(8) && self.cache.rule(next.address, input.code).returns
            }
        };
        if right { Ok((next, method)) } else { Err(Failure::Refused) }
    }
}

/// Why a walk ended that went by frame records which are not certain.
fn if_proved(ended: Ended, unproved: bool) -> Ended {
    if ended == Ended::Root && unproved { Ended::Unproved } else { ended }
}

/// A frame: its registers as they are while it is the leaf, or while its callee runs.
#[derive(Clone, Copy, Debug)]
struct Frame {
    address: CodeAddress,
    /// x0 to x30, the stack pointer; the last is the program counter.
    registers: [u64; AARCH64_COLUMNS],
}

impl Frame {
    fn new(registers: &Aarch64, mask: u64) -> Frame {
        let mut all = [0; AARCH64_COLUMNS];
        all[..SP].copy_from_slice(&registers.x);
        all[FP] &= mask;
        all[LR] &= mask;
        all[SP] = registers.sp;
        all[AARCH64_PC] = registers.pc & mask;
        Frame { address: CodeAddress::Pc(Avma(all[AARCH64_PC])), registers: all }
    }

    /// Lowest address that it may keep words at. Only what no call has left has any below its
    /// stack pointer.
    fn lowest(&self) -> Avma {
        match self.address {
            CodeAddress::Pc(_) => Avma(self.sp().0.saturating_sub(RED_ZONE_BYTES)),
            CodeAddress::Return(_) => self.sp(),
        }
    }

    #[inline]
    fn sp(&self) -> Avma {
        Avma(self.registers[SP])
    }

    /// The link register, where it can hold the return address: a call overwrites it.
    fn link(&self) -> Result<u64, Failure> {
        match self.address {
            CodeAddress::Pc(_) => Ok(self.registers[LR]),
            CodeAddress::Return(_) => Err(Failure::Refused),
        }
    }

    fn ordinary(&self, row: &Ordinary, input: &Input<'_>) -> Result<Frame, Failure> {
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

    fn unusual(&self, row: &RowAarch64, input: &Input<'_>) -> Result<Frame, Failure> {
        let machine = Machine { registers: &self.registers, lowest: self.lowest(), input };
        let cfa = match &row.cfa {
            Cfa::Register(register, offset) => {
                let base = self.registers.get(usize::from(*register)).ok_or(Failure::Refused)?;
                base.wrapping_add_signed(*offset)
            }
            Cfa::Expression(code) => machine.evaluate(code, None)?,
        };
        let mut next = *self;
        next.registers[SP] = cfa;
        for (register, column) in row.columns.iter().enumerate() {
            next.registers[register] = match column {
                Column::Same | Column::Undefined => continue,
                Column::At(offset)
                    if register < LR && !row.signal && cfa.wrapping_add_signed(*offset) < self.sp().0 =>
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
    fn by_record(&self, input: &Input<'_>) -> Result<Frame, Failure> {
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
    fn is_record_uncertain(&self, next: &Frame, input: &Input<'_>) -> bool {
        if !input.fp_always {
            return true;
        }
        let is_link = next.sp() == self.sp();
        let is_unknown = matches!(self.address, CodeAddress::Pc(pc) if input.code.code(pc).is_none());
        input.code.describes_frames(self.address.lookup()) || is_link && is_unknown
    }

    /// What it means that the walk ends here, with no caller found.
    fn end(&self, by_records: bool, reached: Avma, input: &Input<'_>) -> Ended {
        let next = self.registers[FP];
        // On macOS thread_start makes no record, so that there is nothing left to read.
        match body::is_first(self.address, Avma(0), next, input.code) {
            Some(true) => return Ended::Root,
            Some(false) => return Ended::BadFrame,
            None => {}
        }
        let outermost = match self.address {
            CodeAddress::Return(address) => Some(address),
            CodeAddress::Pc(_) => None,
        };
        let processor = root::Processor::Aarch64;
        // The copy begins below the stack pointer, at which a thread's first function has nothing.
        let above = if outermost.is_none() { self.sp() } else { input.stack.base };
        let chain = root::Chain { processor, next, above, reached, outermost };
        match chain.end(input) {
            Ended::Root if by_records && chain.place_decides(input) => Ended::Root,
            _ => Ended::BadFrame,
        }
    }

    /// The word at an address of the stack.
    #[inline]
    fn word(&self, at: Avma, input: &Input<'_>) -> Result<u64, Failure> {
        input.stack.word(at).ok_or_else(|| why_not(at, input))
    }
}
