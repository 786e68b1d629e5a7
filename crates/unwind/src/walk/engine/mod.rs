//! Walking by unwind information and code, with all registers: from each frame to its caller by the row at its
//! address, or else by its code or its frame record. Input: registers, copied stack, `Code`; output: [`Frames`]
//! and the [`StackEnd`](super::StackEnd).
//!
//! Every step is checked: a return address follows a call in executable memory, and the stack pointer rises. A
//! walk is complete only at the thread's known first function. Facts about addresses are cached (`cache.rs`).
//!
//! The loop ([`Engine`]) is generic over processors that implement [`Unwind`]: aarch64 and i386. x86_64 and 32-bit
//! Arm have separate loops: the first carries only three registers if it can, the second an instruction set and a
//! second stack (docs/decisions/own-unwinder.md). All share the decision whether a stack is complete
//! ([`Completeness`]); x86_64 also shares the checks of a step ([`check`]) and the reliability of rows ([`Proof`],
//! [`FrameSwitch`]).

mod cache;
mod completeness;
mod step;

use super::frames::{Frame, Frames, Method, UnwindMethod};
use super::input::StepError;
use super::processor::{Processor, RowOf};
use super::stack_switch::StackSwitches;
use super::{Code, Input, StackEnd, WalkResult};
use crate::addr::{Avma, CodeAddress};
use crate::binary::frame_rule::Cfa;

pub(super) use cache::{Cache, CallRows, CalleeCache, RuleKind, Shared, SharedCallRows};
pub(super) use completeness::{Completeness, FrameSwitch, Proof};
pub(super) use step::check;

// ---- The methods of a processor that the engine calls, in addition to [`Processor`].

/// How to find the caller of a frame at an address.
pub(crate) enum CallerRule<P: Processor> {
    Row(Box<RowOf<P>>, Method, Proof),
    /// The thread's first function.
    Root,
    /// The first function of a fiber, or its return address; `not_called`: nothing has returned there yet.
    Fiber {
        not_called: bool,
    },
    /// Neither unwind information nor decodable code.
    Nothing,
}

impl<P: Processor> CallerRule<P> {
    /// A rule with a row that certainly leads to the caller.
    pub(crate) fn certain(row: RowOf<P>, method: Method) -> CallerRule<P> {
        CallerRule::Row(Box::new(row), method, Proof::Certain)
    }
}

/// The engine's requirements for a processor, in addition to [`Processor`].
pub(crate) trait Unwind: Processor {
    /// Cached facts about called functions; `()` if rows do not depend on them.
    type Callees: CalleeCache;
    /// Whether a walk that ends at code without rows and without decodable instructions ends as
    /// [`StackEnd::NoUnwindInfo`](super::StackEnd::NoUnwindInfo).
    const REPORTS_UNDESCRIBED: bool;
    /// Whether a frame record may be tried if an unusual row, read from code, leads to no caller.
    const RECORD_BESIDE_UNUSUAL: bool;

    /// The rule at an address, and for a return address whether a call returns there.
    fn find(address: CodeAddress, code: &dyn Code, callees: &mut Self::Callees) -> (CallerRule<Self>, bool);

    /// Whether a row marks the outermost frame.
    fn is_outermost(row: &RowOf<Self>) -> bool;

    /// The registers or saved words that are being replaced at an address with this row.
    fn switch(_address: CodeAddress, _row: &RowOf<Self>, _code: &dyn Code) -> FrameSwitch {
        FrameSwitch::No
    }

    /// The row at a program counter by its instructions alone, where unwind information fails.
    fn row_by_code(_pc: Avma, _code: &dyn Code, _callees: &mut Self::Callees) -> Option<Box<RowOf<Self>>> {
        None
    }

    /// The stack pointer and return address of a leaf's caller, if the leaf is at an instruction where it has no
    /// frame record; `None` if it has one.
    ///
    /// # Errors
    /// The return address cannot be read.
    fn without_record(leaf: &Frame<Self>, input: &Input<'_>) -> Result<Option<(u64, u64)>, StepError>;

    /// Whether a frame record certainly leads to the caller, although the code does not show that it keeps one.
    fn is_record_certain(from: &Frame<Self>, next: &Frame<Self>, input: &Input<'_>) -> bool;

    /// Whether the call before a caller's return address, or else a frame record, leads to that caller.
    fn is_called(
        _proof: Proof,
        _from: &Frame<Self>,
        _next: &Frame<Self>,
        _rows: &mut CallRows<Self>,
        _input: &Input<'_>,
    ) -> bool {
        false
    }

    /// The address where a thread continues that has run no instruction yet; `None` for other threads.
    fn new_thread_entry(&self, code: &dyn Code) -> Option<Avma>;
}

// ---- The loop: from each frame to its caller, checked, until there is none. Input: registers, copied stack, `Code`;
// output: [`Frames`] and the [`StackEnd`].

/// State kept between walks; see [`walk::Unwinder`](super::Unwinder).
#[derive(Clone, Debug, Default)]
pub(crate) struct Engine<P: Unwind> {
    pub(crate) cache: Cache<P>,
    /// The frames of a second walk, which confirms one by frame pointers.
    pub(crate) confirmed: Frames,
}

/// The result of a step, and facts about the frame's address.
struct Step<P: Unwind> {
    next: Result<(Frame<P>, Method), StepError>,
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
        Step { next: Err(StepError::NotACaller), switch, proof, by_sp: false, may_use_record, is_described }
    }
}

impl<P: Unwind> Engine<P> {
    /// An engine that shares its facts about files.
    pub(crate) fn new(shared: &Shared<P>) -> Engine<P> {
        Engine { cache: Cache::new(shared), confirmed: Frames::default() }
    }

    pub(crate) fn images_changed(&mut self) {
        self.cache.clear();
    }

    /// Forgets facts about the addresses for which `is_gone` returns true.
    pub(crate) fn forget(&mut self, is_gone: &dyn Fn(Avma) -> bool) {
        self.cache.forget(is_gone);
    }

    /// Walks from the registers of a stopped thread by unwind information and code.
    pub(crate) fn walk(
        &mut self,
        unwind_method: UnwindMethod,
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
            let step = match self.step(unwind_method, &frame, input, out) {
                Ok(step) => step,
                Err(first) => return outermost(&completeness, first),
            };
            let (mut next, method) = match self.caller(&frame, &step, input) {
                Ok(found) => found,
                Err(StepError::NullReturnAddress)
                    if out.methods.iter().skip(1).all(|method| *method == Method::Cfi) =>
                {
                    return outermost(&completeness, StackEnd::Fiber);
                }
                Err(StepError::NotACaller | StepError::NullReturnAddress)
                    if P::LINK.is_none() && out.len() == 1 && self.is_new_thread(registers, input) =>
                {
                    return outermost(&completeness, StackEnd::Root);
                }
                Err(StepError::NotACaller | StepError::NullReturnAddress) => {
                    let ended = frame.end(step.may_use_record, reached, input);
                    let ended = match completeness.without_caller(&frame, step.switch, ended, input) {
                        StackEnd::BrokenFrameChain if P::REPORTS_UNDESCRIBED && !step.is_described => {
                            StackEnd::NoUnwindInfo
                        }
                        ended => ended,
                    };
                    return WalkResult { ended, reached };
                }
                Err(StepError::FirstFunction) => return outermost(&completeness, StackEnd::Root),
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
        unwind_method: UnwindMethod,
        frame: &Frame<P>,
        input: &Input<'_>,
        out: &mut Frames,
    ) -> Result<Step<P>, StackEnd> {
        let rule = self.cache.rule(frame.address, input.code);
        // Frame pointers are used only for code without other information: if unwind information leads to no
        // caller, the frame record belongs to another frame.
        let by_code = |method: Method| unwind_method == UnwindMethod::Auto && method == Method::Code;
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
            RuleKind::Unknown => Step::nowhere(unwind_method == UnwindMethod::Auto, false),
        })
    }

    /// The checked caller of a step; else by instructions alone, or by the frame record.
    fn caller(
        &mut self,
        frame: &Frame<P>,
        step: &Step<P>,
        input: &Input<'_>,
    ) -> Result<(Frame<P>, Method), StepError> {
        let checked = step.next.and_then(|(next, method)| self.check(frame, next, method, input));
        let checked = match (checked, frame.address) {
            // Where registers are exchanged, instructions are no better than rows; a row relative to a register
            // other than the stack pointer indicates this.
            (Err(StepError::NotACaller), CodeAddress::Pc(pc))
                if step.by_sp && step.switch == FrameSwitch::No =>
            {
                match self.cache.by_code(pc, input.code) {
                    Some(row) => frame
                        .caller_by_row(row, input)
                        .and_then(|next| self.check(frame, next, Method::Code, input)),
                    None => Err(StepError::NotACaller),
                }
            }
            (checked, _) => checked,
        };
        match checked {
            Err(StepError::NotACaller) if step.may_use_record => {
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
    ) -> Result<(Frame<P>, Method), StepError> {
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
