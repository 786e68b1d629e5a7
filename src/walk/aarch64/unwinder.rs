//! Unwinding on aarch64, with all registers: from each frame to its caller by the row of unwind
//! information at its address, or else by its code or its frame record. Input: registers, copied
//! stack, `Code`; output: [`Frames`] and why the walk ended.

use super::cache::Cache;
use super::frame::Frame;
use super::rule::Kind;
use super::{FP, born, leaf};
use crate::addr::{Avma, CodeAddress, LookupAvma};
use crate::arch::Aarch64;
use crate::walk::bounds::{Failure, is_on_other_stack};
use crate::walk::fp::{self, Facts};
use crate::walk::frames::{Frames, How, Method};
use crate::walk::stack_switch::StackSwitches;
use crate::walk::{Ended, Input, Walked, body};

/// What is kept from walk to walk; see [`walk::Unwinder`](crate::walk::Unwinder).
#[derive(Clone, Debug, Default)]
pub(in crate::walk) struct Unwinder {
    cache: Cache,
    /// The frames of [`Unwinder::confirms`].
    confirmed: Frames,
}

impl Unwinder {
    pub(in crate::walk) fn images_changed(&mut self) {
        self.cache.clear();
    }

    pub(in crate::walk) fn forget(&mut self, is_gone: &dyn Fn(Avma) -> bool) {
        self.cache.forget(is_gone);
    }

    /// Walks from the registers of a stopped thread; see [`unwind`](crate::walk::unwind).
    pub(in crate::walk) fn unwind(
        &mut self,
        how: How,
        registers: &Aarch64,
        input: &Input<'_>,
        facts: &mut Facts,
        out: &mut Frames,
    ) -> Walked {
        if how != How::FramePointer {
            return self.walk(how, registers, input, out);
        }
        let walked = fp::by_records(out, |out| leaf::walk(registers, input, facts, out));
        let claims = walked.ended == Ended::Root;
        let unproved = claims && !self.confirms(&out.addresses, registers, input);
        Walked { ended: if unproved { Ended::Unproved } else { walked.ended }, ..walked }
    }

    fn walk(&mut self, how: How, registers: &Aarch64, input: &Input<'_>, out: &mut Frames) -> Walked {
        let mut frame = Frame::new(registers, input.code_mask);
        out.push(frame.address, Method::Context);
        let mut reached = frame.sp();
        // What unwind information and the link register tell is its starter's.
        if let Some(first) = born::goes_on_at(registers, input.code)
            && matches!(self.cache.rule(CodeAddress::Pc(first), input.code).kind, Kind::Root)
        {
            return Walked { ended: Ended::Root, reached };
        }
        // As on x86_64 (`doubts.rs`).
        let mut unproved = false;
        let mut switches = StackSwitches::default();
        let mut input = *input;
        loop {
            let input = &mut input;
            let rule = self.cache.rule(frame.address, input.code);
            let step = match rule.kind {
                Kind::Root => return Walked { ended: if_proved(Ended::Root, unproved), reached },
                Kind::Fiber => return Walked { ended: if_proved(Ended::Fiber, unproved), reached },
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
                Err(failure) => {
                    return Walked { ended: if_proved(switches.ended(failure), unproved), reached };
                }
            };
            if out.len() >= input.max_depth {
                return Walked { ended: Ended::DepthLimit, reached };
            }
            unproved |= method == Method::FramePointer && frame.is_record_uncertain(&next, input);
            let from = std::mem::replace(&mut frame, next);
            out.push(frame.address, method);
            if let CodeAddress::Pc(_) = frame.address
                && let Err(ended) = switches.leave_handler(&from, &frame, input)
            {
                return Walked { ended, reached };
            }
            // Nothing shows whether those that were called since left the stack as it was.
            if switches.is_by_call() {
                return Walked { ended: Ended::OtherStack, reached };
            }
            reached = switches.further(reached, frame.sp(), input);
        }
    }

    /// Whether unwind information does not contradict a walk by frame pointers that found these
    /// look-up addresses and claims to be complete: where any is known, it must lead to the same
    /// ones. A chain of records is whole without a function that keeps none. Where the ABI
    /// promises the records, it may lead less far, but to no other frame: code may break the
    /// promise (`-fomit-frame-pointer`), and unwind information of an image may be missing.
    fn confirms(&mut self, addresses: &[LookupAvma], registers: &Aarch64, input: &Input<'_>) -> bool {
        if !fp::can_be_checked(addresses, input.code) {
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
    if matches!(ended, Ended::Root | Ended::Fiber) && unproved { Ended::Unproved } else { ended }
}

#[cfg(test)]
mod tests;
