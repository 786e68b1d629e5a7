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

use super::frames::{Frame, Frames, Method, UnwindMethod};
use super::input::{StepError, is_on_other_stack, is_on_own_stack};
use super::processor::{self, Processor, RowOf};
use super::runtimes::LandingPad;
use super::stack_switch::StackSwitches;
use super::{Code, Input, StackEnd, WalkResult, flow};
use crate::addr::{Avma, CodeAddress};
use crate::arch::UNKNOWN_REGISTER;
use crate::binary::frame_rule::{Cfa, Column, Columns};
use cache::OrdinaryRow;

pub(super) use cache::{Cache, CallRows, CalleeCache, RuleKind, Shared, SharedCallRows};

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

// ---- The step from a frame to its caller by a rule, a row of any form, or a frame record; and the check whether the
// result can be a caller. Input: a frame, the rule at its address; output: the caller's frame.

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
    fn end(&self, by_records: bool, reached: Avma, input: &Input<'_>) -> StackEnd {
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

// ---- Decides whether a walk that reached an outermost frame is complete, for the loops of all processors. Input:
// each doubtful step; output: the [`StackEnd`].

/// Doubts about the frames of a walk so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Completeness {
    switching: bool,
    /// A frame record was followed from code that may not keep one, or instructions of a function with unknown
    /// entry, and nothing confirms the caller.
    unproved: bool,
    /// A caller was found by a stack scan.
    scanned: bool,
    landing_pad: Option<LandingPad>,
}

impl Completeness {
    /// Records a step `from` a frame to its caller `next`, and restores a replaced return address in `next`.
    /// `by_sp`: the rule's CFA is relative to the stack pointer.
    pub(crate) fn note<P: Processor>(
        &mut self,
        by_sp: bool,
        switch: FrameSwitch,
        from: &Frame<P>,
        next: &mut Frame<P>,
        input: &Input<'_>,
    ) {
        match (switch, &mut self.landing_pad) {
            (FrameSwitch::No, _) => self.note_ordinary(by_sp, from),
            (FrameSwitch::LandingPad, none @ None) => *none = Some(LandingPad::new(from, next, input.stack)),
            (FrameSwitch::Registers, _) | (FrameSwitch::LandingPad, Some(_)) => self.switching = true,
        }
    }

    /// Records whether a caller was found without proof.
    pub(crate) fn note_unproved(&mut self, is_unproved: bool) {
        self.unproved |= is_unproved;
    }

    /// Records that a caller was found by a stack scan.
    pub(crate) fn note_scanned(&mut self) {
        self.scanned = true;
    }

    /// Records that a caller was found by a frame's stack pointer or frame pointer.
    pub(crate) fn note_ordinary<P: Processor>(&mut self, by_sp: bool, from: &Frame<P>) {
        if let Some(landing_pad) = &mut self.landing_pad
            && !by_sp
        {
            landing_pad.uses_frame_pointer(from.registers[usize::from(P::FRAME_POINTER)]);
        }
    }

    /// Whether the verdict depends on the registers of the frames.
    pub(crate) fn need_registers(&self) -> bool {
        self.landing_pad.is_some()
    }

    /// The end of a walk at the first function, of a thread or a fiber according to `first`; `reached` is its
    /// stack pointer.
    pub(crate) fn at_outermost<P: Processor>(
        &self,
        first: StackEnd,
        reached: Avma,
        input: &Input<'_>,
    ) -> StackEnd {
        let replaced = |landing_pad: &LandingPad| !landing_pad.is_intact::<P>(reached, input.stack);
        if self.switching || self.landing_pad.as_ref().is_some_and(replaced) {
            StackEnd::StackSwitch
        } else if self.scanned {
            StackEnd::StackScan
        } else if self.unproved {
            StackEnd::UnverifiedFrameRecord
        } else {
            first
        }
    }

    /// The end of a walk at a frame without a known caller; `otherwise` applies if nothing is doubtful.
    pub(crate) fn without_caller<P: Processor>(
        &self,
        frame: &Frame<P>,
        switch: FrameSwitch,
        otherwise: StackEnd,
        input: &Input<'_>,
    ) -> StackEnd {
        match (otherwise, frame.address) {
            _ if self.switching || self.landing_pad.is_some() || switch != FrameSwitch::No => {
                StackEnd::StackSwitch
            }
            (StackEnd::Root | StackEnd::Fiber, _) if self.unproved => StackEnd::UnverifiedFrameRecord,
            // Code interrupted by a signal, on a stack that was not copied; or its caller, found by the link
            // register independent of the stack.
            (StackEnd::BrokenFrameChain, address)
                if (P::LINK.is_some() || !address.is_return()) && is_on_other_stack(frame.sp(), input) =>
            {
                StackEnd::OtherStack
            }
            _ => otherwise,
        }
    }
}

// ---- Reliability of the caller that a row leads to.

/// Reliability of a row that was derived from instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Proof {
    /// The row is right at this instruction, whatever the program does.
    #[default]
    Certain,
    /// The row holds if a call on the path returns, which is unknown. If it does not, the instructions after it
    /// belong to another path or another function. A frame record or the call before the return address must
    /// confirm the caller.
    NeedsConfirmation,
    /// The CFA is relative to a frame pointer that another function may have set up. Only the target of the call
    /// before the return address decides.
    NeedsCall,
}

// ---- Instructions at which a thread's registers belong partly to one frame and partly to another. Each processor
// detects its own (`intel/switch_instructions.rs`).

/// The state that the code at an address replaces while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameSwitch {
    /// Nothing: all registers belong to the frame.
    No,
    /// The saved words of the frame, replaced by those of the frame with the landing pad: see
    /// [`LandingPad`](super::runtimes::LandingPad).
    LandingPad,
    /// The registers: the caller may be that of another frame than the running one.
    Registers,
}
