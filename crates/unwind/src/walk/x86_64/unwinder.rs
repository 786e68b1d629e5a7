//! Unwinding on x86_64: from each frame to its caller by the row of unwind information at its address, or else by
//! its code, its frame record, or a stack scan. Input: registers, copied stack, `Code`; output: [`Frames`] and the
//! [`StackEnd`].
//!
//! Every step is checked: a return address follows a call in executable memory, and the stack pointer rises. A
//! walk is complete only at the thread's known first function. Facts about addresses are cached (`cache.rs`),
//! since the same ones recur on stacks.
//!
//! Nearly all rows have a CFA relative to rsp or rbp (`cache.rs`), so `Unwinder::run` carries only these two and
//! the address. The few others, in lazy binding, signal frames and realigned stacks, use other registers or
//! expressions (`expression.rs`). When a run meets one, its steps are repeated from its first frame with all
//! registers. That happens only once per step, since the next run begins after it.

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod tests;

use super::cache::{Cache, FollowLimit, Rule, RuleKind, SavedRegisters, Shared};
use super::leaf::{self, Leaves};
use super::{RBP, RSP, stack_base};
use crate::addr::{Avma, CodeAddress};
use crate::arch::{UNKNOWN_REGISTER, X86_64};
use crate::binary::frame_rule::RETURN_ADDRESS;
use crate::walk::engine::{Completeness, FrameSwitch, Proof, check};
use crate::walk::fp::{self, Facts};
use crate::walk::frames::{Frames, Method, UnwindMethod};
use crate::walk::input::{StepError, Words, is_on_other_stack};
use crate::walk::intel::{call, prologue};
use crate::walk::runtimes::{self, go};
use crate::walk::stack_switch::StackSwitches;
use crate::walk::{Code, Input, StackEnd, WalkResult};

/// State kept between walks; see [`walk::Unwinder`](crate::walk::Unwinder).
#[derive(Clone, Debug, Default)]
pub(crate) struct Unwinder {
    pub(super) cache: Cache,
    leaves: Leaves,
    /// The red zone was not copied together with the rest of the stack.
    below_is_later: bool,
}

/// A step from a frame.
struct CheckedStep {
    /// The caller, if there can be one.
    found: Result<(Frame, Method), StepError>,
    /// Only a frame record was left to try.
    may_use_record: bool,
    /// The rule leads to code on another stack than the copied one.
    leads_to_other_stack: bool,
    /// The frame switch at the frame's address, and the proof for its rule.
    switch: FrameSwitch,
    proof: Proof,
}

/// The reach of a walk, and its doubts and switches.
struct Progress<'a> {
    reached: Avma,
    completeness: Completeness,
    switches: StackSwitches<'a>,
}

impl<'a> Progress<'a> {
    /// That of a walk that begins at this stack pointer.
    fn new(reached: Avma, input: &Input<'a>) -> Progress<'a> {
        Progress { reached, completeness: Completeness::default(), switches: StackSwitches::new(input) }
    }

    /// Records the stack pointer of a frame.
    fn rise(&mut self, sp: Avma, input: &Input<'_>) {
        self.reached = self.switches.further(self.reached, sp, input);
    }

    /// Switches to the stack that a frame was called from, if its rule leads to another one. Returns the CFA of
    /// an unusual row then.
    fn leave_callee(
        &mut self,
        frame: &mut Frame,
        rule: Rule,
        cache: &Cache,
        input: &mut Input<'a>,
    ) -> Result<Option<u64>, StackEnd> {
        let (cfa, lowest) = match rule.kind() {
            RuleKind::FramePointer if rule.method() == Method::Cfi => {
                (None, stack_base::lowest_word(frame, rule.cfa() * 8, input))
            }
            RuleKind::Unusual => cache
                .unusual(rule)
                .and_then(|row| stack_base::of_row(frame, row, self.switches.is_switched(), input))
                .unzip(),
            _ => return Ok(None),
        };
        if let Some(lowest) = lowest {
            self.switches.leave_callee(frame, lowest, input)?;
        }
        Ok(cfa)
    }

    /// The end of the walk at the first function, of a thread or a fiber according to `first`.
    fn at_outermost(&self, first: StackEnd, input: &Input<'_>) -> StackEnd {
        self.completeness.at_outermost::<X86_64>(first, self.reached, input)
    }

    fn ends(&self, ended: StackEnd) -> WalkResult {
        WalkResult { ended, reached: self.reached }
    }
}

/// A sequence of ordinary steps.
pub(super) struct Run {
    /// Number of steps.
    steps: usize,
    /// The frame where it stopped: its address, stack pointer and frame pointer.
    pub address: CodeAddress,
    pub sp: Avma,
    pub frame_pointer: u64,
    /// The rule at that frame's address.
    pub rule: Rule,
}

impl Unwinder {
    /// An unwinder that shares its facts about files.
    pub(crate) fn new(shared: &Shared) -> Unwinder {
        Unwinder { cache: Cache::new(shared), ..Unwinder::default() }
    }

    /// Forgets facts about addresses.
    pub(crate) fn images_changed(&mut self) {
        self.cache.clear();
        self.leaves.clear();
    }

    /// Forgets facts about the addresses for which `is_gone` returns true.
    pub(crate) fn forget(&mut self, is_gone: &dyn Fn(Avma) -> bool) {
        self.cache.forget(is_gone);
        self.leaves.forget(is_gone);
    }

    /// Implements [`walk::Unwinder::set_red_zone_read_later`](crate::walk::Unwinder::set_red_zone_read_later).
    pub(crate) fn set_red_zone_read_later(&mut self, later: bool) {
        self.below_is_later = later;
    }

    /// Walks from the registers of a stopped thread; see [`unwind`](crate::walk::unwind).
    pub(crate) fn unwind(
        &mut self,
        unwind_method: UnwindMethod,
        registers: &X86_64,
        input: &Input<'_>,
        facts: &mut Facts,
        out: &mut Frames,
    ) -> WalkResult {
        if unwind_method != UnwindMethod::FramePointer {
            return self.walk(unwind_method, registers, input, out);
        }
        if let Some(complete) = self.by_ordinary_records(registers, input, out) {
            return complete;
        }
        self.by_other_records(registers, input, facts, out)
    }

    /// Walks by frame pointers if some rules on the way are not ordinary. Separate, like `walk_on`, so that the
    /// loop that needs neither keeps its frame in machine registers.
    #[inline(never)]
    fn by_other_records(
        &mut self,
        registers: &X86_64,
        input: &Input<'_>,
        facts: &mut Facts,
        out: &mut Frames,
    ) -> WalkResult {
        if let Some(complete) = self.by_kept_records(registers, input, out) {
            return complete;
        }
        let leaves = &mut self.leaves;
        let walked = fp::by_records(out, |out| leaf::walk(registers, input, facts, leaves, out));
        // With unwind information it would have been proved.
        let claims = walked.ended == StackEnd::Root;
        let unproved = claims && fp::can_be_checked(&out.addresses, input.code);
        WalkResult { ended: if unproved { StackEnd::UnverifiedFrameRecord } else { walked.ended }, ..walked }
    }

    /// Walks by unwind information and code.
    fn walk(
        &mut self,
        unwind_method: UnwindMethod,
        registers: &X86_64,
        input: &Input<'_>,
        out: &mut Frames,
    ) -> WalkResult {
        let start = leaf::leaf(registers, input.code);
        let (sp, frame_pointer) = (registers.gpr[RSP], registers.gpr[RBP]);
        out.push(leaf::shown(start, registers), Method::Context);
        let run = self.run(start, sp, frame_pointer, Words::new(input.stack), input, out, by_ordinary);
        if run.rule.kind() == RuleKind::Root {
            return WalkResult { ended: StackEnd::Root, reached: run.sp };
        }
        self.walk_on(unwind_method, (registers, start), run, input, out)
    }

    /// Handles walks that no single run completes. Separate, to keep those that one completes short.
    #[inline(never)]
    fn walk_on(
        &mut self,
        unwind_method: UnwindMethod,
        (registers, start): (&X86_64, CodeAddress),
        run: Run,
        input: &Input<'_>,
        out: &mut Frames,
    ) -> WalkResult {
        let mut frame = Frame::new(registers, input.address_mask);
        frame.address = start;
        let mut walked = self.follow(unwind_method, &mut frame, run, input, out);
        if input.code.is_interrupted() {
            return walked;
        }
        if out.len() == 1
            && walked.ended == StackEnd::BrokenFrameChain
            && self.is_new_thread(registers, input)
        {
            return WalkResult { ended: StackEnd::Root, ..walked };
        }
        if unwind_method == UnwindMethod::Auto && walked.ended == StackEnd::BrokenFrameChain {
            walked = self.reconnect(&frame, walked, input, out);
        }
        if walked.ended == StackEnd::BrokenFrameChain && self.is_undescribed(frame.address, input) {
            walked.ended = StackEnd::NoUnwindInfo;
        }
        walked
    }

    /// The rule of a frame. For V8's code with the rule [`RuleKind::Marked`] and a frame without a marker, the
    /// rule by instructions.
    #[inline(always)]
    pub(super) fn rule_of(&mut self, frame: &Frame, input: &Input<'_>) -> Rule {
        let rule = self.cache.rule(frame.address, input.code);
        if rule.kind() != RuleKind::Marked || runtimes::has_frame_mark(frame, input) {
            return rule;
        }
        self.cache.learn_with(frame.address, input.code, false)
    }

    /// Whether neither unwind information nor instructions certainly lead to the caller of an address.
    fn is_undescribed(&mut self, address: CodeAddress, input: &Input<'_>) -> bool {
        let rule = self.cache.rule(address, input.code);
        rule.kind() == RuleKind::Unknown || self.cache.proof(rule) != Proof::Certain
    }

    /// Records whether a stack scan found a caller by following calls.
    pub(super) fn note_search(&mut self, followed: u32, is_found: bool) {
        if followed > 0 {
            self.cache.searches.note(if is_found { FollowLimit::CERTAIN_CALLER_CREDIT } else { 0 });
        }
    }

    /// Whether a thread is still where the kernel created it, and continues in its first function
    /// (`intel/prologue.rs`).
    fn is_new_thread(&mut self, registers: &X86_64, input: &Input<'_>) -> bool {
        const RAX: usize = 0;
        let first = prologue::entry::<X86_64>(Avma(registers.rip), registers.gpr[RAX], input.code);
        first
            .is_some_and(|first| self.cache.rule(CodeAddress::Pc(first), input.code).kind() == RuleKind::Root)
    }

    /// Continues from a frame that is in `out`, without a scan. If it ends with [`StackEnd::BrokenFrameChain`], `frame` is
    /// the last one.
    pub(super) fn go_on(
        &mut self,
        unwind_method: UnwindMethod,
        frame: &mut Frame,
        input: &Input<'_>,
        out: &mut Frames,
    ) -> WalkResult {
        let run = self.run_from(frame, input, out);
        self.follow(unwind_method, frame, run, input, out)
    }

    fn run_from(&mut self, frame: &Frame, input: &Input<'_>, out: &mut Frames) -> Run {
        let (sp, frame_pointer) = (frame.registers[RSP], frame.registers[RBP]);
        self.run(frame.address, sp, frame_pointer, Words::new(input.stack), input, out, by_ordinary)
    }

    /// Continues after a run that began at `frame`.
    fn follow(
        &mut self,
        unwind_method: UnwindMethod,
        frame: &mut Frame,
        mut run: Run,
        input: &Input<'_>,
        out: &mut Frames,
    ) -> WalkResult {
        let mut progress = Progress::new(frame.sp(), input);
        let mut input = *input;
        loop {
            let input = &mut input;
            progress.rise(run.sp, input);
            if input.code.is_interrupted() {
                return progress.ends(StackEnd::BrokenFrameChain);
            }
            if let Some(ended) = self.end_of_run(frame, &run, &mut progress, input, out) {
                return progress.ends(ended);
            }
            // Not the rule of the run: facts learned since may have evicted its row.
            let rule = self.rule_of(frame, input);
            if self.cache.not_called(rule) {
                out.last_is_not_called(frame.address);
                if self.cache.is_root(rule) {
                    let first = if self.cache.begins_fiber(rule) { StackEnd::Fiber } else { StackEnd::Root };
                    return progress.ends(progress.at_outermost(first, input));
                }
            }
            let cfa = match progress.leave_callee(frame, rule, &self.cache, input) {
                Ok(cfa) => cfa,
                Err(ended) => return progress.ends(ended),
            };
            let step = self.checked_step(unwind_method, frame, (rule, cfa), input);
            let (mut next, method) = match step.found {
                Ok(found) => found,
                Err(failure) => {
                    let ended =
                        self.without_caller(failure, (frame, rule), &step, &progress, &out.methods, input);
                    return progress.ends(ended);
                }
            };
            if progress.switches.is_by_call()
                && call::calls_another_function::<X86_64>(next.address, frame, input.code)
            {
                return progress.ends(StackEnd::OtherStack);
            }
            if out.len() >= input.max_depth {
                return progress.ends(StackEnd::DepthLimit);
            }
            progress.completeness.note(
                rule.kind() == RuleKind::StackPointer,
                step.switch,
                frame,
                &mut next,
                input,
            );
            if step.switch == FrameSwitch::LandingPad
                && let CodeAddress::Return(address) = next.address
                && !self.cache.is_return(address, input.code)
            {
                return progress.ends(StackEnd::StackSwitch);
            }
            let is_proved = self.is_proved((frame, rule), &next, method, step.proof, input);
            progress.completeness.note_unproved(!is_proved);
            // Without the missing bytes this caller is not refuted.
            if input.code.is_interrupted() {
                return progress.ends(StackEnd::BrokenFrameChain);
            }
            let from = std::mem::replace(frame, next);
            out.push(frame.address, method);
            if let CodeAddress::Pc(_) = frame.address
                && let Err(ended) = progress.switches.leave_handler(&from, frame, input)
            {
                return progress.ends(ended);
            }
            progress.rise(frame.sp(), input);
            run = self.run_from(frame, input, out);
        }
    }

    /// Repeats the steps of a run with all registers, if they are needed. Returns the end of the walk if it ends
    /// there.
    fn end_of_run(
        &mut self,
        frame: &mut Frame,
        run: &Run,
        progress: &mut Progress,
        input: &Input<'_>,
        out: &mut Frames,
    ) -> Option<StackEnd> {
        let first = match run.rule.kind() {
            RuleKind::Root => Some(StackEnd::Root),
            RuleKind::Fiber => Some(StackEnd::Fiber),
            _ => None,
        };
        if let Some(first) = first.filter(|_| !progress.completeness.need_registers()) {
            return Some(progress.at_outermost(first, input));
        }
        if let Err((failure, left)) = self.catch_up(frame, run.steps, &mut progress.completeness, input) {
            out.truncate(out.len() - left);
            return Some(progress.switches.ended(failure));
        }
        first.map(|first| progress.at_outermost(first, input))
    }

    /// The end of the walk at a frame without a known caller; `methods`: the methods of the frames.
    fn without_caller(
        &self,
        failure: StepError,
        (frame, rule): (&Frame, Rule),
        step: &CheckedStep,
        progress: &Progress,
        methods: &[Method],
        input: &Input<'_>,
    ) -> StackEnd {
        match failure {
            StepError::NullReturnAddress if may_end_in_null(rule, methods) => {
                match stack_base::loads_stack_pointer_before(frame.address, input.code) {
                    true => StackEnd::StackSwitch,
                    false => progress.at_outermost(StackEnd::Fiber, input),
                }
            }
            // A call is in progress, so registers are not being switched: its caller left its stack (system calls
            // of Wine).
            StepError::NotACaller if step.leads_to_other_stack => StackEnd::OtherStack,
            StepError::NotACaller | StepError::NullReturnAddress => {
                let ended = match self.cache.unusual(rule) {
                    _ if step.may_use_record => match frame.end_of_records(frame.sp(), input) {
                        StackEnd::Root => StackEnd::Root,
                        // More of its words may show the caller.
                        _ if progress.switches.is_uncopied(input) => StackEnd::OtherStack,
                        ended => ended,
                    },
                    Some(row) if go::returns_to_other_stack(row, frame, input) => StackEnd::OtherStack,
                    // Other functions have been called there since, and the handler has returned.
                    _ if progress.switches.is_by_call() => StackEnd::OtherStack,
                    _ => StackEnd::BrokenFrameChain,
                };
                progress.completeness.without_caller(frame, step.switch, ended, input)
            }
            StepError::FirstFunction => progress.at_outermost(StackEnd::Root, input),
            failure => progress.switches.ended(failure),
        }
    }

    /// The checked caller of a rule, whose CFA may be known; or by the only return address or the frame record, if
    /// nothing else is known.
    fn checked_step(
        &mut self,
        unwind_method: UnwindMethod,
        frame: &Frame,
        (rule, cfa): (Rule, Option<u64>),
        input: &Input<'_>,
    ) -> CheckedStep {
        // Valid until the next address is learned.
        let (switch, proof) = (self.cache.switch(rule), self.cache.proof(rule));
        let method = if rule.kind() == RuleKind::Marked { Method::FramePointer } else { rule.method() };
        let step = match cfa.and_then(|cfa| Some((self.cache.unusual(rule)?, cfa))) {
            Some((row, cfa)) => frame.caller_at(row, cfa, input),
            None => frame.step(rule, &mut self.cache, input),
        };
        let step = step.map(|next| (next, method));
        let leads_to_other_stack = step.as_ref().is_ok_and(|(next, _)| {
            frame.address.is_return()
                && is_on_other_stack(next.sp(), input)
                && input.code.is_code(next.address.at())
        });
        let mut found = step.and_then(|(next, method)| self.check(frame, next, method, input));
        // Frame pointers are used only for code without other information: if unwind information leads to no
        // caller, the frame record belongs to another frame.
        let may_use_record = unwind_method == UnwindMethod::Auto
            && (rule.kind() == RuleKind::Unknown || matches!(method, Method::Code | Method::FramePointer));
        if may_use_record && matches!(found, Err(StepError::NotACaller)) {
            let returns = |at| self.cache.is_return(at, input.code);
            let only = runtimes::only_return_address(frame, input, returns);
            found = only.map(|next| (next, Method::Scan)).ok_or(StepError::NotACaller);
        }
        if may_use_record && matches!(found, Err(StepError::NotACaller)) {
            found = frame
                .by_record(self.leaves.unframed_return_at(frame.address, input.code), input)
                .and_then(|next| self.check(frame, next, Method::FramePointer, input));
        }
        CheckedStep { found, may_use_record, leads_to_other_stack, switch, proof }
    }

    /// Whether the caller of a frame is proved. A frame record alone does not prove it.
    fn is_proved(
        &mut self,
        (frame, rule): (&Frame, Rule),
        next: &Frame,
        method: Method,
        proof: Proof,
        input: &Input<'_>,
    ) -> bool {
        match (method, proof) {
            (Method::FramePointer, _) => {
                runtimes::has_frame_mark(frame, input)
                    || call::is_called_from(frame, next, &mut self.cache.by_calls, input)
            }
            (_, Proof::Certain) if !self.may_be_stale(frame, rule) => true,
            (_, Proof::NeedsCall) => call::is_called_from(frame, next, &mut self.cache.by_calls, input),
            _ => call::is_caller(frame, next, &mut self.cache.by_calls, input),
        }
    }

    /// Whether a row of a leaf may have read a red zone from another time.
    fn may_be_stale(&self, frame: &Frame, rule: Rule) -> bool {
        self.below_is_later && matches!(frame.address, CodeAddress::Pc(_)) && rule.kind() == RuleKind::Unusual
    }

    /// Pushes the callers of a frame while ordinary rules lead to ones that pass every check. `may_follow` returns
    /// the method of a rule that may be followed; its second argument is whether the rule is that of the first
    /// frame. The caller determines why it stops. A single look-up of an address shows both that a call returns
    /// there and how to find its caller.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)] // a frame in its parts, which stay in registers
    pub(super) fn run(
        &mut self,
        from: CodeAddress,
        mut sp: u64,
        mut frame_pointer: u64,
        words: Words<'_>,
        input: &Input<'_>,
        out: &mut Frames,
        may_follow: impl Fn(Rule, bool) -> Option<Method>,
    ) -> Run {
        let mut rule = self.cache.rule(from, input.code);
        // The length of `out` and its last address are not carried from step to step.
        let begun = out.len();
        while out.len() < input.max_depth
            && let Some(method) = may_follow(rule, out.len() == begun)
        {
            // The processor predicts this branch, and continues from record to record before it has looked up any
            // rule.
            let caller = if rule.is_record() {
                by_record(sp, frame_pointer & input.address_mask, words)
            } else {
                by_rule(rule, sp, frame_pointer, frame_pointer & input.address_mask, words)
            };
            let Some(caller) = caller else { break };
            let address = CodeAddress::Return(Avma(caller.return_address));
            let next = self.cache.rule(address, input.code);
            if !next.returns() {
                break;
            }
            out.push(address, method);
            (sp, frame_pointer) = (caller.sp, caller.frame_pointer);
            rule = next;
        }
        let steps = out.len() - begun;
        let address = if steps == 0 { from } else { out.last_return() };
        Run { steps, address, sp: Avma(sp), frame_pointer, rule }
    }

    /// Repeats the steps of a run with all registers, which may be in bytes that were not copied. In that case
    /// returns the failure and the number of remaining steps.
    fn catch_up(
        &mut self,
        frame: &mut Frame,
        steps: usize,
        completeness: &mut Completeness,
        input: &Input<'_>,
    ) -> Result<(), (StepError, usize)> {
        for done in 0..steps {
            let rule = self.cache.rule(frame.address, input.code);
            completeness.note_ordinary(rule.kind() == RuleKind::StackPointer, frame);
            *frame = frame.step(rule, &mut self.cache, input).map_err(|failure| (failure, steps - done))?;
        }
        Ok(())
    }

    /// Checks that a step leads to a possible caller.
    pub(super) fn check(
        &mut self,
        from: &Frame,
        next: Frame,
        method: Method,
        input: &Input<'_>,
    ) -> Result<(Frame, Method), StepError> {
        check(from, next, method, input, |address| self.cache.rule(address, input.code).returns())
    }
}

/// Whether a null return address according to a rule is the end of a fiber, set by its creator above its first
/// function. Only if every frame was found by unwind information is it that word, and not if a function that made
/// a call has pushed nothing according to its row. Only assembly does that, and its tables may be wrong (a call
/// leaves the stack pointer 8 short of a multiple of 16: System V AMD64 ABI, 3.2.2).
fn may_end_in_null(rule: Rule, methods: &[Method]) -> bool {
    let is_bare = rule.is_on_stack_pointer() && rule.cfa() == 1;
    !is_bare && methods.iter().skip(1).all(|method| *method == Method::Cfi)
}

/// Follows every ordinary rule; see `run`.
#[inline(always)]
pub(super) fn by_ordinary(rule: Rule, _: bool) -> Option<Method> {
    rule.ordinary_method()
}

/// The result of an ordinary step.
struct Caller {
    return_address: u64,
    sp: u64,
    frame_pointer: u64,
}

/// The caller by a rule, if every word was copied and the stack pointer rises; `base` is the address in the frame
/// pointer.
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

/// The caller by a frame record above the stack pointer.
#[inline(always)]
fn by_record(sp: u64, record: u64, words: Words<'_>) -> Option<Caller> {
    let [frame_pointer, return_address] = words.two(record)?;
    (record >= sp).then_some(Caller { return_address, sp: record.wrapping_add(16), frame_pointer })
}

// ---- The step from a frame to its caller by a rule, by the frame record, or by a leaf's code. Input: a frame, a
// rule; output: the caller's frame, not yet checked. Not for: common steps, which need only three registers (see
// `unwinder.rs`).

/// A frame of x86_64: [`walk::frame::Frame`](crate::walk::frames::Frame).
pub(super) type Frame = crate::walk::frames::Frame<X86_64>;

impl Frame {
    /// The caller by the rule at the frame's address.
    pub(super) fn step(&self, rule: Rule, cache: &mut Cache, input: &Input<'_>) -> Result<Frame, StepError> {
        match rule.kind() {
            RuleKind::FramePointer if self.registers[RBP] == UNKNOWN_REGISTER => {
                let saved = cache.saved(self.address, input.code);
                self.with_frame_pointer(input).ok_or(StepError::NotACaller)?.ordinary(rule, saved, input)
            }
            RuleKind::StackPointer | RuleKind::FramePointer => {
                let saved = cache.saved(self.address, input.code);
                self.ordinary(rule, saved, input)
            }
            RuleKind::Unusual => self.caller_by_row(cache.unusual(rule).ok_or(StepError::NotACaller)?, input),
            RuleKind::Marked => self.by_record(None, input),
            RuleKind::Unknown | RuleKind::Root | RuleKind::Fiber => Err(StepError::NotACaller),
        }
    }

    fn ordinary(&self, rule: Rule, saved: SavedRegisters, input: &Input<'_>) -> Result<Frame, StepError> {
        // Swift marks frame pointers above their address (see `fp::follow`).
        let base = match rule.kind() {
            RuleKind::StackPointer => self.registers[RSP],
            _ => self.registers[RBP] & input.address_mask,
        };
        let at = |words: i64| Avma(base.wrapping_add_signed(words * 8));
        let address = self.word(at(rule.return_at()), input)?;
        let mut next = *self;
        // Below the stack pointer: an epilogue has already popped it, which compilers' rows do not describe.
        if rule.saves_frame_pointer() && at(rule.frame_pointer_at()) >= self.sp() {
            next.registers[RBP] = self.word(at(rule.frame_pointer_at()), input)?;
        }
        for (register, words) in saved.iter().filter(|(_, words)| at(*words) >= self.sp()) {
            next.registers[register] = self.word(at(words), input)?;
        }
        Ok(next.called_from(at(rule.cfa()).0, address, input))
    }

    /// The caller by the frame record at rbp, or, for a leaf at an instruction without a record, by the return
    /// address this many bytes above the stack pointer.
    pub(super) fn by_record(&self, unframed: Option<u64>, input: &Input<'_>) -> Result<Frame, StepError> {
        match unframed {
            Some(bytes) => {
                let slot = Avma(self.sp().0.wrapping_add(bytes));
                Ok(self.called_from(slot.0.wrapping_add(8), self.word(slot, input)?, input))
            }
            None => self.caller_by_record(self.registers[RBP] & input.address_mask, input),
        }
    }
}

// ---- The last resort: if neither unwind information nor code nor a frame record leads to a caller, a word on the
// stack that is a return address may be it.
//
// Stale words look like live ones. So a word counts only if its call leads to the address where the walk is stuck
// (`intel/call.rs`), and if the walk continues from it to the thread's first function without a second scan; and
// the stack is still reported separately ([`StackEnd::StackScan`]).

/// Distance above the stack pointer that is searched for a return address.
const BYTES_MAX: u64 = 4096;
/// Limit on return addresses tried.
const TRIES_MAX: u32 = 16;
/// Limit on the size of a JIT function.
const FUNCTION_BYTES_MAX: u64 = 64 << 10;
/// Limit on calls followed to the address where the walk is stuck; none if that rarely succeeds (SBCL's code,
/// which has no tables, would be followed from as many calls at each new program counter).
const FOLLOWED_MAX: u32 = 16;

/// Whether the call before a return address is worth following to `stuck`: JIT functions continue after their
/// entries, and there are many calls on their stacks.
fn may_lead_to(address: CodeAddress, stuck: &Frame, code: &dyn Code) -> bool {
    let at = stuck.address.lookup().at();
    let is_near = |entry: Avma| at.0.checked_sub(entry.0).is_some_and(|bytes| bytes < FUNCTION_BYTES_MAX);
    !code.traits(at).is_jit || call::calls::<X86_64>(address, code).is_some_and(is_near)
}

impl Unwinder {
    /// Scans from the stack pointer of `stuck`, the last frame of `out`, upward.
    pub(super) fn reconnect(
        &mut self,
        stuck: &Frame,
        walked: WalkResult,
        input: &Input<'_>,
        out: &mut Frames,
    ) -> WalkResult {
        let found = out.len();
        let slots = stuck.sp().0.checked_next_multiple_of(8).map(Avma);
        let slots = slots.and_then(|first| Some((first, first.checked_add(BYTES_MAX)?)));
        let Some((mut slot, end)) = slots else { return walked };
        let mut tries = 0;
        let follows = !self.cache.searches.is_short();
        let (mut followed, mut is_found) = (0, false);
        let mut is_deeper = false;
        while slot < end && tries < TRIES_MAX && found < input.max_depth {
            let Some(word) = input.stack.word(slot) else { break };
            let below = slot;
            slot = slot + 8;
            let address = Avma(word);
            if !input.code.is_code(CodeAddress::Return(address).lookup().at())
                || !self.cache.is_return(address, input.code)
            {
                continue;
            }
            let mut frame = *stuck;
            frame.address = CodeAddress::Return(address);
            frame.registers[RSP] = below.0 + 8;
            frame.registers[RETURN_ADDRESS] = word;
            let mut is_called = call::calls_function_of(frame.address, stuck, input.code);
            if !is_called
                && follows
                && followed < FOLLOWED_MAX
                && may_lead_to(frame.address, stuck, input.code)
            {
                followed += 1;
                is_called = call::is_called_from(stuck, &frame, &mut self.cache.by_calls, input);
                is_found |= is_called;
            }
            if !is_called {
                continue;
            }
            tries += 1;
            out.push(frame.address, Method::Scan);
            let further = self.go_on(UnwindMethod::Auto, &mut frame, input, out);
            match further.ended {
                StackEnd::Root | StackEnd::Fiber => {
                    self.note_search(followed, is_found);
                    return WalkResult { ended: StackEnd::StackScan, ..further };
                }
                StackEnd::DeeperThanCopied => is_deeper = true,
                _ => {}
            }
            out.truncate(found);
        }
        self.note_search(followed, is_found);
        // With more bytes the scan may succeed.
        if is_deeper { WalkResult { ended: StackEnd::DeeperThanCopied, ..walked } } else { walked }
    }
}
