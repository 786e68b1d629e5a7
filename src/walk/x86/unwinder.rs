//! Unwinding on i386, with all registers: from each frame to its caller by the row of unwind
//! information at its address, or else by its code or its frame record. Input: registers, copied
//! stack, `Code`; output: [`Frames`] and why the walk ended. Every step is checked, as on x86_64.

use super::cache::Cache;
use super::frame::Frame;
use super::rule::Kind;
use super::{ESP, POINTER, leaf};
use crate::addr::{Avma, CodeAddress};
use crate::arch::X86;
use crate::binary::frame_rule::{Cfa, X86_COLUMNS, X86_RETURN_ADDRESS};
use crate::walk::bounds::{Failure, further, is_on_own_stack};
use crate::walk::fp::{self, Facts};
use crate::walk::frames::{Frames, How, Method};
use crate::walk::intel::doubts::Doubts;
use crate::walk::intel::forward::Proof;
use crate::walk::intel::switching::Switch;
use crate::walk::intel::{born, confirm};
use crate::walk::{Ended, Input, Walked};

/// Frames of start code, which keeps no records, between the outermost record and a thread's first
/// function: `__libc_start_call_main`, `__libc_start_main` and `_start`; or `start_thread` and `clone`.
const START_FRAMES_MAX: usize = 4;

/// What is kept from walk to walk; see [`walk::Unwinder`](crate::walk::Unwinder).
#[derive(Clone, Debug, Default)]
pub(in crate::walk) struct Unwinder {
    cache: Cache,
    /// The frames of [`Unwinder::by_records`].
    confirmed: Frames,
}

/// What is known of a frame's address, and the caller that it leads to.
struct Step {
    next: Result<(Frame, Method), Failure>,
    switch: Switch,
    proof: Proof,
    /// The CFA is counted from the stack pointer.
    by_sp: bool,
    /// Nothing but a frame record is left to try.
    may_use_record: bool,
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
        registers: &X86,
        input: &Input<'_>,
        facts: &mut Facts,
        out: &mut Frames,
    ) -> Walked {
        match how {
            How::FramePointer => self.by_records(registers, input, facts, out),
            _ => self.walk(how, registers, input, out),
        }
    }

    /// Walks by frame pointers. A chain of records is whole only where unwind information leads to the
    /// same frames, and then on through start code, which keeps no records. Where there is none, the
    /// place where the chain ends decides.
    fn by_records(
        &mut self,
        registers: &X86,
        input: &Input<'_>,
        facts: &mut Facts,
        out: &mut Frames,
    ) -> Walked {
        let cache = &mut self.cache;
        let walked = fp::by_records(out, |out| leaf::walk(registers, input, cache, facts, out));
        if walked.ended == Ended::Root && !fp::can_be_checked(&out.addresses, input.code) {
            return walked;
        }
        let mut confirmed = std::mem::take(&mut self.confirmed);
        confirmed.clear();
        let proved = self.walk(How::Cfi, registers, input, &mut confirmed);
        let more = confirmed.addresses.strip_prefix(out.addresses.as_slice()).unwrap_or_default();
        let is_whole = proved.ended.is_complete()
            && confirmed.addresses.starts_with(&out.addresses)
            && more.len() <= START_FRAMES_MAX;
        let ended = match walked.ended {
            _ if is_whole => {
                let found = out.len();
                out.addresses.extend_from_slice(more);
                out.methods.extend_from_slice(&confirmed.methods[found..]);
                proved.ended
            }
            Ended::Root => Ended::Unproved,
            other => other,
        };
        self.confirmed = confirmed;
        Walked { ended, ..walked }
    }

    /// The same by unwind information and code.
    fn walk(&mut self, how: How, registers: &X86, input: &Input<'_>, out: &mut Frames) -> Walked {
        let mut frame = Frame::new(registers, input.code_mask);
        out.push(frame.address, Method::Context);
        let mut reached = frame.sp();
        let mut doubts = Doubts::default();
        let outermost = |doubts: &Doubts, first: Ended, reached: Avma| Walked {
            ended: doubts.at_outermost::<X86, X86_COLUMNS>(first, reached, input),
            reached,
        };
        loop {
            let step = match self.step(how, &frame, input, out) {
                Ok(step) => step,
                Err(first) => return outermost(&doubts, first, reached),
            };
            let Step { switch, proof, by_sp, may_use_record, .. } = step;
            let checked = step.next.and_then(|(next, method)| self.check(&frame, next, method, input));
            let checked = match (checked, frame.address) {
                // Where registers are exchanged instructions tell no more than rows do; a row that counts
                // from another register than the stack pointer is of such code.
                (Err(Failure::Refused), CodeAddress::Pc(pc)) if by_sp && switch == Switch::No => {
                    match self.cache.by_code(pc, input.code) {
                        Some(row) => frame
                            .unusual(row, input)
                            .and_then(|next| self.check(&frame, next, Method::Code, input)),
                        None => Err(Failure::Refused),
                    }
                }
                (checked, _) => checked,
            };
            let checked = match checked {
                Err(Failure::Refused) if may_use_record => frame
                    .by_record(input)
                    .and_then(|next| self.check(&frame, next, Method::FramePointer, input)),
                Err(Failure::Null) if out.methods.iter().skip(1).all(|method| *method == Method::Cfi) => {
                    return outermost(&doubts, Ended::Fiber, reached);
                }
                other => other,
            };
            let (mut next, method) = match checked {
                Ok(found) => found,
                Err(Failure::Refused | Failure::Null | Failure::First)
                    if out.len() == 1 && self.has_not_begun(registers, input) =>
                {
                    return outermost(&doubts, Ended::Root, reached);
                }
                Err(Failure::Refused | Failure::Null | Failure::First) => {
                    let ended = match may_use_record {
                        true => frame.end_of_records(reached, input),
                        false => Ended::BadFrame,
                    };
                    let is_unknown = self.cache.rule(frame.address, input.code).kind == Kind::Unknown;
                    return Walked {
                        ended: match doubts.without_caller(&frame, switch, ended, input) {
                            Ended::BadFrame if is_unknown => Ended::Undescribed,
                            ended => ended,
                        },
                        reached,
                    };
                }
                Err(failure) => return Walked { ended: failure.ended(), reached },
            };
            reached = further(reached, next.sp(), input);
            if out.len() >= input.max_depth {
                return Walked { ended: Ended::DepthLimit, reached };
            }
            doubts.note(by_sp, switch, &frame, &mut next, input);
            if switch == Switch::Installing
                && let CodeAddress::Return(_) = next.address
                && !self.cache.rule(next.address, input.code).returns
            {
                return Walked { ended: Ended::Switching, reached };
            }
            // What may have no record is not known to have one.
            let is_proved = match (method, proof) {
                (Method::FramePointer, _) => false,
                (_, Proof::Certain) => true,
                (_, Proof::OfCall) => confirm::is_called_from(&frame, &next, &mut self.cache, input),
                (_, Proof::Wanted) => confirm::is_caller(&frame, &next, &mut self.cache, input),
            };
            if !is_proved {
                doubts.note_unproved();
            }
            frame = next;
            out.push(frame.address, method);
        }
    }

    /// Whether a thread stands where it was made, and goes on in its first function (`born.rs`).
    fn has_not_begun(&mut self, registers: &X86, input: &Input<'_>) -> bool {
        const EAX: usize = 0;
        let first = born::goes_on_at::<X86, X86_COLUMNS>(Avma(registers.eip), registers.gpr[EAX], input.code);
        first.is_some_and(|first| self.cache.rule(CodeAddress::Pc(first), input.code).kind == Kind::Root)
    }

    /// The step from a frame, not yet checked; from a first function what that ends.
    fn step(&mut self, how: How, frame: &Frame, input: &Input<'_>, out: &mut Frames) -> Result<Step, Ended> {
        let rule = self.cache.rule(frame.address, input.code);
        // Only code that nothing else is known of may be walked by frame pointer: where unwind
        // information leads to no caller, a frame record is that of another frame.
        let by_code = |method: Method| how == How::Auto && method == Method::Code;
        Ok(match rule.kind {
            Kind::Root => return Err(Ended::Root),
            Kind::Fiber { not_called } => {
                if not_called {
                    out.last_is_not_called(frame.address);
                }
                return Err(Ended::Fiber);
            }
            Kind::Ordinary(row, method) => Step {
                next: frame.ordinary(&row, input).map(|next| (next, method)),
                switch: Switch::No,
                proof: Proof::Certain,
                by_sp: usize::from(row.cfa_register) == ESP,
                may_use_record: by_code(method),
            },
            Kind::Unusual(index) => {
                let unusual = self.cache.unusual(index).ok_or(Ended::BadFrame)?;
                if unusual.is_trampoline {
                    out.last_is_not_called(frame.address);
                }
                Step {
                    next: frame.unusual(&unusual.row, input).map(|next| (next, unusual.method)),
                    switch: unusual.switch,
                    proof: unusual.proof,
                    by_sp: matches!(unusual.row.cfa, Cfa::Register(register, _) if usize::from(register) == ESP),
                    may_use_record: by_code(unusual.method),
                }
            }
            Kind::Unknown => Step {
                next: Err(Failure::Refused),
                switch: Switch::No,
                proof: Proof::Certain,
                by_sp: false,
                may_use_record: how == How::Auto,
            },
        })
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
                if address == Avma(0)
                    && method == Method::Cfi
                    && matches!(from.address, CodeAddress::Return(_))
                    && !is_on_own_stack(from.sp(), input)
                {
                    return Err(Failure::Null);
                }
                // One that has taken its return address off the stack has it in a register (`vfork`).
                let is_taken_off = next.sp() == from.sp()
                    && matches!(from.address, CodeAddress::Pc(_))
                    && from.registers[..X86_RETURN_ADDRESS].contains(&address.0);
                (next.sp() > from.sp() || is_taken_off)
                    && next.sp().0.is_multiple_of(POINTER)
                    && self.cache.rule(next.address, input.code).returns
            }
        };
        if right { Ok((next, method)) } else { Err(Failure::Refused) }
    }
}
