//! Unwinding on x86_64 (`aarch64.rs` mirrors it): from each frame to its caller by the row of unwind information at
//! its address, or else by its code, its frame record, or a search of the stack. Input:
//! registers, copied stack, `Code`; output: [`Frames`] and why the walk ended.
//!
//! Every step is checked: a return address follows a call in executable memory, and the
//! stack pointer rises. A walk is complete only at the thread's known first function. What
//! was learned of an address is kept (`cache.rs`), since stacks lead to the same ones again
//! and again.
//!
//! Nearly all rows count the CFA from rsp or rbp (`rule.rs`), so `Unwinder::run` carries
//! only these two and the address. The few others, in lazy binding, signal frames and
//! realigned stacks, use other registers or expressions (`expression.rs`). Where a run meets
//! one, its steps are made again from the frame it began at with all registers
//! (`frame.rs`), and once only, since the next run begins behind it.

mod cache;
mod confirm;
mod doubts;
mod first;
mod forward;
mod frame;
mod installing;
pub(super) mod instructions;
mod last;
pub(super) mod leaf;
mod length;
mod prologue;
pub(super) mod record;
mod records;
mod rule;
mod scan;
mod switching;

use super::bounds::{Failure, further, is_on_own_stack};
use super::fp::Facts;
use super::frames::{Frames, How, Method};
use super::words::Words;
use super::{Ended, Input, Walked, aarch64, body};
use crate::addr::{Avma, CodeAddress};
use crate::arch::{Aarch64, X86_64};
use cache::Cache;
use doubts::Doubts;
use forward::Proof;
use frame::Frame;
pub(super) use records::can_be_checked;
use rule::{Kind, Rule};
use switching::Switch;

const RBP: usize = X86_64::RBP;
const RSP: usize = X86_64::RSP;

/// What unwinding keeps from walk to walk. Belongs to one state of the target's images:
/// [`Unwinder::images_changed`] when they change.
#[derive(Clone, Debug, Default)]
pub struct Unwinder {
    cache: Cache,
    aarch64: aarch64::Unwinder,
    facts: Facts,
}

/// A row of ordinary steps.
struct Run {
    /// How many.
    steps: usize,
    /// The frame where it stopped: its address, stack pointer and frame pointer.
    address: CodeAddress,
    sp: Avma,
    frame_pointer: u64,
    /// What is known of that frame's address.
    rule: Rule,
}

impl Unwinder {
    /// Forgets what was learned: addresses may have another meaning now.
    pub fn images_changed(&mut self) {
        self.cache.clear();
        self.aarch64.images_changed();
        self.facts.clear();
    }

    /// Forgets what was learned of the addresses that `is_gone` names: code that is made at
    /// run time is replaced without a word.
    pub fn forget(&mut self, is_gone: &dyn Fn(Avma) -> bool) {
        self.cache.forget(is_gone);
        self.aarch64.forget(is_gone);
        self.facts.forget(is_gone);
    }

    /// What walks by frame pointers keep.
    pub(super) fn facts(&mut self) -> &mut Facts {
        &mut self.facts
    }

    /// The same as [`Unwinder::walk`] on aarch64; see `aarch64.rs`.
    pub(super) fn walk_aarch64(
        &mut self,
        how: How,
        registers: &Aarch64,
        input: &Input<'_>,
        out: &mut Frames,
    ) -> Walked {
        self.aarch64.walk(how, registers, input, out)
    }

    /// Whether the walk by frame pointers on aarch64 that found these look-up addresses is
    /// complete if it claims to be; see `aarch64.rs`.
    pub(super) fn confirms_aarch64(
        &mut self,
        addresses: &[u64],
        registers: &Aarch64,
        input: &Input<'_>,
    ) -> bool {
        self.aarch64.confirms(addresses, registers, input)
    }

    /// Walks from the registers of a stopped thread; see [`super::unwind`].
    pub(super) fn walk(
        &mut self,
        how: How,
        registers: &X86_64,
        input: &Input<'_>,
        out: &mut Frames,
    ) -> Walked {
        let start = CodeAddress::Pc(Avma(registers.rip));
        let (sp, frame_pointer) = (registers.gpr[RSP], registers.gpr[RBP]);
        out.push(start, Method::Context);
        let run =
            self.run(start, sp, frame_pointer, Words::new(input.stack), input, out, Rule::ordinary_method);
        if run.rule.kind() == Kind::Root {
            return Walked { ended: Ended::Root, reached: run.sp };
        }
        self.walk_on(how, registers, run, input, out)
    }

    /// What no run to the root does. By itself, so that those that do are short.
    #[inline(never)]
    fn walk_on(
        &mut self,
        how: How,
        registers: &X86_64,
        run: Run,
        input: &Input<'_>,
        out: &mut Frames,
    ) -> Walked {
        let mut frame = Frame::new(registers);
        let mut walked = self.follow(how, &mut frame, run, input, out);
        if how == How::Auto && walked.ended == Ended::BadFrame {
            walked = scan::reconnect(self, &frame, walked, input, out);
        }
        let is_stuck = walked.ended == Ended::BadFrame;
        if is_stuck && self.cache.rule(frame.address, input.code).kind() == Kind::Unknown {
            walked.ended = Ended::Undescribed;
        }
        walked
    }

    /// Goes on from a frame that is in `out`, without a search. Where it ends with
    /// [`Ended::BadFrame`] it leaves `frame` at the last one.
    fn go_on(&mut self, how: How, frame: &mut Frame, input: &Input<'_>, out: &mut Frames) -> Walked {
        let run = self.run_from(frame, input, out);
        self.follow(how, frame, run, input, out)
    }

    fn run_from(&mut self, frame: &Frame, input: &Input<'_>, out: &mut Frames) -> Run {
        let (sp, frame_pointer) = (frame.registers[RSP], frame.registers[RBP]);
        self.run(frame.address, sp, frame_pointer, Words::new(input.stack), input, out, Rule::ordinary_method)
    }

    /// The same behind a run that began at `frame`.
    fn follow(
        &mut self,
        how: How,
        frame: &mut Frame,
        mut run: Run,
        input: &Input<'_>,
        out: &mut Frames,
    ) -> Walked {
        let mut reached = frame.sp();
        let mut doubts = Doubts::default();
        loop {
            reached = further(reached, run.sp, input);
            let begun_by = match run.rule.kind() {
                Kind::Root => Some(Ended::Root),
                Kind::Fiber => Some(Ended::Fiber),
                _ => None,
            };
            if let Some(first) = begun_by
                && !doubts.need_registers()
            {
                return Walked { ended: doubts.at_first(first, reached, input), reached };
            }
            if let Err((failure, left)) = self.catch_up(frame, run.steps, &mut doubts, input) {
                out.truncate(out.len() - left);
                return Walked { ended: failure.ended(), reached };
            }
            if let Some(first) = begun_by {
                return Walked { ended: doubts.at_first(first, reached, input), reached };
            }
            // Not that of the run: what was learned since may have replaced its row.
            let rule = self.cache.rule(frame.address, input.code);
            if self.cache.not_called(rule) {
                out.last_is_not_called(frame.address);
                if self.cache.is_root(rule) {
                    let first = if self.cache.begins_fiber(rule) { Ended::Fiber } else { Ended::Root };
                    return Walked { ended: doubts.at_first(first, reached, input), reached };
                }
            }
            let switch = self.cache.switch(rule);
            let proof = self.cache.proof(rule);
            let step = frame.step(rule, &mut self.cache, input).map(|next| (next, rule.method()));
            let checked = step.and_then(|(next, method)| self.check(frame, next, method, input));
            // Only code that nothing else is known of may be walked by frame pointer: where
            // unwind information leads to no caller, a frame record is that of another frame.
            let may_use_record =
                how == How::Auto && (rule.kind() == Kind::Unknown || rule.method() == Method::Code);
            let checked = match checked {
                Err(Failure::Refused) if may_use_record => {
                    let last = last::caller(frame, &mut self.cache, input);
                    last.map(|next| (next, Method::Scan)).ok_or(Failure::Refused)
                }
                other => other,
            };
            let checked = match checked {
                Err(Failure::Refused) if may_use_record => frame
                    .by_record(input)
                    .and_then(|next| self.check(frame, next, Method::FramePointer, input)),
                Err(Failure::Null) if may_end_in_null(rule, &out.methods) => {
                    return Walked { ended: doubts.at_first(Ended::Fiber, reached, input), reached };
                }
                other => other,
            };
            let (mut next, method) = match checked {
                Ok(found) => found,
                Err(Failure::Refused | Failure::Null) => {
                    let ended =
                        if may_use_record { frame.end_of_records(reached, input) } else { Ended::BadFrame };
                    return Walked { ended: doubts.at_stuck(frame, switch, ended, input), reached };
                }
                Err(Failure::First) => {
                    return Walked { ended: doubts.at_first(Ended::Root, reached, input), reached };
                }
                Err(failure) => return Walked { ended: failure.ended(), reached },
            };
            reached = further(reached, next.sp(), input);
            if out.len() >= input.max_depth {
                return Walked { ended: Ended::DepthLimit, reached };
            }
            doubts.note(rule, switch, frame, &mut next, input);
            if switch == Switch::Installing
                && let CodeAddress::Return(address) = next.address
                && !self.cache.is_return(address, input.code)
            {
                return Walked { ended: Ended::Switching, reached };
            }
            // What may have no record is not known to have one.
            let is_proved = match (method, proof) {
                (Method::FramePointer, _) => confirm::is_record_of_v8(frame, input),
                (_, Proof::Certain) => true,
                (_, Proof::Wanted) => confirm::is_caller(frame, &next, &mut self.cache, input),
            };
            if !is_proved {
                doubts.note_unproved();
            }
            *frame = next;
            out.push(frame.address, method);
            run = self.run_from(frame, input, out);
        }
    }

    /// Pushes the callers of a frame as far as ordinary rules that `may_follow` has a name for
    /// lead to ones that stand every check. Why it stops is for the caller to find out. Each look-up tells of
    /// an address both that a call returns there and where its own caller is.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)] // a frame in its parts, which stay in registers
    fn run(
        &mut self,
        mut from: CodeAddress,
        mut sp: u64,
        mut frame_pointer: u64,
        words: Words<'_>,
        input: &Input<'_>,
        out: &mut Frames,
        mut may_follow: impl FnMut(Rule) -> Option<Method>,
    ) -> Run {
        let mut rule = self.cache.rule(from, input.code);
        let most = input.max_depth.saturating_sub(out.len());
        let mut steps = 0;
        while steps < most
            && let Some(method) = may_follow(rule)
        {
            // The processor foresees this branch, and goes on from record to record before
            // it has looked up any rule.
            let caller = if rule.is_record() {
                by_record(sp, frame_pointer & input.code_mask, words)
            } else {
                by_rule(rule, sp, frame_pointer, frame_pointer & input.code_mask, words)
            };
            let Some(caller) = caller else { break };
            let address = CodeAddress::Return(Avma(caller.return_address));
            let next = self.cache.rule(address, input.code);
            if !next.returns() {
                break;
            }
            out.push(address, method);
            steps += 1;
            from = address;
            (sp, frame_pointer) = (caller.sp, caller.frame_pointer);
            rule = next;
        }
        Run { steps, address: from, sp: Avma(sp), frame_pointer, rule }
    }

    /// Makes the steps of a run again, with all registers: these may lie where nothing was
    /// copied. Then it tells why, and how many steps are left.
    fn catch_up(
        &mut self,
        frame: &mut Frame,
        steps: usize,
        doubts: &mut Doubts,
        input: &Input<'_>,
    ) -> Result<(), (Failure, usize)> {
        for done in 0..steps {
            let rule = self.cache.rule(frame.address, input.code);
            doubts.note_ordinary(rule, frame);
            *frame = frame.step(rule, &mut self.cache, input).map_err(|failure| (failure, steps - done))?;
        }
        Ok(())
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
                if address == Avma(0)
                    && body::is_first(from.address, address, frame_pointer, input.code) == Some(true)
                {
                    return Err(Failure::First);
                }
                if address == Avma(0)
                    && method == Method::Cfi
                    && matches!(from.address, CodeAddress::Return(_))
                    && !is_on_own_stack(from.sp(), input)
                {
                    return Err(Failure::Null);
                }
                next.sp() > from.sp()
                    && next.sp().0.is_multiple_of(8)
                    && self.cache.is_return(address, input.code)
            }
        };
        if right { Ok((next, method)) } else { Err(Failure::Refused) }
    }
}

/// Whether a null return address that a rule leads to is the end of a fiber, whose maker puts it
/// above its first function: only where every frame was found by unwind information is it that
/// word, and not where that says that a function that made a call had pushed nothing. Only
/// assembly does, whose tables may be wrong (a call leaves the stack pointer 8 short of a
/// multiple of 16: System V AMD64 ABI, 3.2.2).
fn may_end_in_null(rule: Rule, methods: &[Method]) -> bool {
    let is_bare = rule.is_on_stack_pointer() && rule.cfa() == 1;
    !is_bare && methods.iter().skip(1).all(|method| *method == Method::Cfi)
}

/// What an ordinary step finds.
struct Caller {
    return_address: u64,
    sp: u64,
    frame_pointer: u64,
}

/// The caller by a rule, if every word was copied and the stack pointer rises; `base` is the
/// address that the frame pointer is.
#[inline(always)]
fn by_rule(rule: Rule, sp: u64, frame_pointer: u64, base: u64, words: Words<'_>) -> Option<Caller> {
    let base = if rule.is_on_stack_pointer() { sp } else { base };
    let at = |words: i64| base.wrapping_add_signed(words * 8);
    let (cfa, return_at, saved_at) = (at(rule.cfa()), at(rule.return_at()), at(rule.frame_pointer_at()));
    // Below the stack pointer: see `Frame::ordinary`.
    let is_saved = rule.saves_frame_pointer() && saved_at >= sp;
    let saved = words.word(if is_saved { saved_at } else { return_at });
    // Only aligned words are read, so the CFA is aligned too.
    let (Some(return_address), Some(saved)) = (words.word(return_at), saved) else { return None };
    let frame_pointer = if is_saved { saved } else { frame_pointer };
    (cfa > sp).then_some(Caller { return_address, sp: cfa, frame_pointer })
}

/// The same by a frame record that lies above the stack pointer.
#[inline(always)]
fn by_record(sp: u64, record: u64, words: Words<'_>) -> Option<Caller> {
    let [frame_pointer, return_address] = words.two(record)?;
    (record >= sp).then_some(Caller { return_address, sp: record.wrapping_add(16), frame_pointer })
}

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod tests;
