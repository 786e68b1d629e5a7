//! The loop: from each frame to its caller, checked, until there is none. Input: registers, copied stack, `Code`;
//! output: [`Frames`] and the [`StackEnd`].

use super::cache::{Cache, Shared};
use super::completeness::Completeness;
use super::frame_switch::FrameSwitch;
use super::methods::Unwind;
use super::proof::Proof;
use super::rule::RuleKind;
use super::step::check;
use crate::addr::{Avma, CodeAddress};
use crate::binary::frame_rule::Cfa;
use crate::walk::bounds::Failure;
use crate::walk::frame::Frame;
use crate::walk::frames::{Frames, Method, UnwindMethod};
use crate::walk::stack_switch::StackSwitches;
use crate::walk::{Input, StackEnd, WalkResult};

/// State kept between walks; see [`walk::Unwinder`](crate::walk::Unwinder).
#[derive(Clone, Debug, Default)]
pub(in crate::walk) struct Engine<P: Unwind> {
    pub(in crate::walk) cache: Cache<P>,
    /// The frames of a second walk, which confirms one by frame pointers.
    pub(in crate::walk) confirmed: Frames,
}

/// The result of a step, and facts about the frame's address.
struct Step<P: Unwind> {
    next: Result<(Frame<P>, Method), Failure>,
    switch: FrameSwitch,
    proof: Proof,
    /// The CFA is relative to the stack pointer.
    by_sp: bool,
    /// Only a frame record is left to try.
    may_use_record: bool,
    /// There is a row, or decodable code.
    is_described: bool,
}

impl<P: Unwind> Step<P> {
    fn nowhere(may_use_record: bool, is_described: bool) -> Step<P> {
        let (switch, proof) = (FrameSwitch::No, Proof::Certain);
        Step { next: Err(Failure::Refused), switch, proof, by_sp: false, may_use_record, is_described }
    }
}

impl<P: Unwind> Engine<P> {
    /// An engine that shares its facts about files.
    pub(in crate::walk) fn new(shared: &Shared<P>) -> Engine<P> {
        Engine { cache: Cache::new(shared), confirmed: Frames::default() }
    }

    pub(in crate::walk) fn images_changed(&mut self) {
        self.cache.clear();
    }

    /// Forgets facts about the addresses for which `is_gone` returns true.
    pub(in crate::walk) fn forget(&mut self, is_gone: &dyn Fn(Avma) -> bool) {
        self.cache.forget(is_gone);
    }

    /// Walks from the registers of a stopped thread by unwind information and code.
    pub(in crate::walk) fn walk(
        &mut self,
        how: UnwindMethod,
        registers: &P,
        input: &Input<'_>,
        out: &mut Frames,
    ) -> WalkResult {
        let mut frame = Frame::new(registers, input.address_mask);
        out.push(frame.address, Method::Context);
        let mut reached = frame.sp();
        // Unwind information and the link register lead to its creator.
        if P::LINK.is_some() && self.is_new_thread(registers, input) {
            return WalkResult { ended: StackEnd::Root, reached };
        }
        let mut completeness = Completeness::default();
        let mut switches = StackSwitches::new(input);
        let mut input = *input;
        loop {
            let input = &mut input;
            let outermost = |completeness: &Completeness, first: StackEnd| WalkResult {
                ended: completeness.at_outermost::<P>(first, reached, input),
                reached,
            };
            let step = match self.step(how, &frame, input, out) {
                Ok(step) => step,
                Err(first) => return outermost(&completeness, first),
            };
            let (mut next, method) = match self.caller(&frame, &step, input) {
                Ok(found) => found,
                Err(Failure::Null) if out.methods.iter().skip(1).all(|method| *method == Method::Cfi) => {
                    return outermost(&completeness, StackEnd::Fiber);
                }
                Err(Failure::Refused | Failure::Null)
                    if P::LINK.is_none() && out.len() == 1 && self.is_new_thread(registers, input) =>
                {
                    return outermost(&completeness, StackEnd::Root);
                }
                Err(Failure::Refused | Failure::Null) => {
                    let ended = frame.end(step.may_use_record, reached, input);
                    let ended = match completeness.without_caller(&frame, step.switch, ended, input) {
                        StackEnd::BrokenFrameChain if P::REPORTS_UNDESCRIBED && !step.is_described => {
                            StackEnd::NoUnwindInfo
                        }
                        ended => ended,
                    };
                    return WalkResult { ended, reached };
                }
                Err(Failure::First) => return outermost(&completeness, StackEnd::Root),
                Err(failure) => return WalkResult { ended: switches.ended(failure), reached },
            };
            if out.len() >= input.max_depth {
                return WalkResult { ended: StackEnd::DepthLimit, reached };
            }
            completeness.note(step.by_sp, step.switch, &frame, &mut next, input);
            if step.switch == FrameSwitch::LandingPad
                && next.address.is_return()
                && !self.cache.rule(next.address, input.code).returns
            {
                return WalkResult { ended: StackEnd::StackSwitch, reached };
            }
            completeness.note_unproved(!self.is_proved(&frame, &next, method, step.proof, input));
            let from = std::mem::replace(&mut frame, next);
            out.push(frame.address, method);
            if let CodeAddress::Pc(_) = frame.address
                && let Err(ended) = switches.leave_handler(&from, &frame, input)
            {
                return WalkResult { ended, reached };
            }
            // Whether later calls left that stack unchanged is unknown.
            if switches.is_by_call() {
                return WalkResult { ended: StackEnd::OtherStack, reached };
            }
            reached = switches.further(reached, frame.sp(), input);
        }
    }

    /// Whether a thread is still where the kernel created it, and continues in its first function.
    fn is_new_thread(&mut self, registers: &P, input: &Input<'_>) -> bool {
        let first = registers.new_thread_entry(input.code);
        first.is_some_and(|first| self.cache.rule(CodeAddress::Pc(first), input.code).kind == RuleKind::Root)
    }

    /// The step from a frame, not yet checked; from a first function, the end of the walk.
    fn step(
        &mut self,
        how: UnwindMethod,
        frame: &Frame<P>,
        input: &Input<'_>,
        out: &mut Frames,
    ) -> Result<Step<P>, StackEnd> {
        let rule = self.cache.rule(frame.address, input.code);
        // Frame pointers are used only for code without other information: if unwind information leads to no
        // caller, the frame record belongs to another frame.
        let by_code = |method: Method| how == UnwindMethod::Auto && method == Method::Code;
        Ok(match rule.kind {
            RuleKind::Root => return Err(StackEnd::Root),
            RuleKind::Fiber { not_called } => {
                if not_called {
                    out.last_is_not_called(frame.address);
                }
                return Err(StackEnd::Fiber);
            }
            RuleKind::OrdinaryRow(row, method) => Step {
                next: frame.ordinary(&row, input).map(|next| (next, method)),
                by_sp: row.cfa_register == P::STACK_POINTER,
                ..Step::nowhere(by_code(method), true)
            },
            RuleKind::Unusual(index) => match self.cache.unusual(index) {
                Some(unusual) => {
                    if unusual.is_trampoline {
                        out.last_is_not_called(frame.address);
                    }
                    Step {
                        next: frame.caller_by_row(&unusual.row, input).map(|next| (next, unusual.method)),
                        switch: unusual.switch,
                        proof: unusual.proof,
                        by_sp: matches!(unusual.row.cfa, Cfa::Register(register, _) if register == P::STACK_POINTER),
                        ..Step::nowhere(P::RECORD_BESIDE_UNUSUAL && by_code(unusual.method), true)
                    }
                }
                None => Step::nowhere(false, true),
            },
            RuleKind::Unknown => Step::nowhere(how == UnwindMethod::Auto, false),
        })
    }

    /// The checked caller of a step; else by instructions alone, or by the frame record.
    fn caller(
        &mut self,
        frame: &Frame<P>,
        step: &Step<P>,
        input: &Input<'_>,
    ) -> Result<(Frame<P>, Method), Failure> {
        let checked = step.next.and_then(|(next, method)| self.check(frame, next, method, input));
        let checked = match (checked, frame.address) {
            // Where registers are exchanged, instructions are no better than rows; a row relative to a register
            // other than the stack pointer indicates this.
            (Err(Failure::Refused), CodeAddress::Pc(pc)) if step.by_sp && step.switch == FrameSwitch::No => {
                match self.cache.by_code(pc, input.code) {
                    Some(row) => frame
                        .caller_by_row(row, input)
                        .and_then(|next| self.check(frame, next, Method::Code, input)),
                    None => Err(Failure::Refused),
                }
            }
            (checked, _) => checked,
        };
        match checked {
            Err(Failure::Refused) if step.may_use_record => {
                frame.by_record(input).and_then(|next| self.check(frame, next, Method::FramePointer, input))
            }
            other => other,
        }
    }

    fn check(
        &mut self,
        from: &Frame<P>,
        next: Frame<P>,
        method: Method,
        input: &Input<'_>,
    ) -> Result<(Frame<P>, Method), Failure> {
        check(from, next, method, input, |address| self.cache.rule(address, input.code).returns)
    }

    /// Whether the caller of a step is proved. A frame record is proof only if the processor says so.
    fn is_proved(
        &mut self,
        from: &Frame<P>,
        next: &Frame<P>,
        method: Method,
        proof: Proof,
        input: &Input<'_>,
    ) -> bool {
        match (method, proof) {
            (Method::FramePointer, _) => P::is_record_certain(from, next, input),
            (_, Proof::Certain) => true,
            (_, proof) => P::is_called(proof, from, next, &mut self.cache.by_calls, input),
        }
    }
}
