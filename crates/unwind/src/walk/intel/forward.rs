//! The caller of a function without unwind information, by its instructions: following them from the program
//! counter to the return, with their effects on the stack pointer, shows where the return address is. Input: code;
//! output: a [`Row`], or that the code ends its thread. Not for: anything that executes, or reads the stack.
//!
//! `follow` is that; `Callees` has whether called functions return.
//!
//! These functions include `_init`, `_fini` and `__do_global_dtors_aux` of every program, the child's side of
//! `clone`, all of musl, and hand-written code.

#[cfg(test)]
mod tests;

use std::ops::Range;

use hashbrown::HashMap;

use super::Intel;
use super::call::called_from;
use super::instructions::{self, Instruction, decode_of};
use crate::addr::{Avma, CodeAddress};
use crate::binary::frame_rule::{Cfa, Column, Row};
use crate::walk::Code;
use crate::walk::code::Reader;
use crate::walk::engine::{CalleeCache, Proof};
use crate::walk::flow::paths::Visited;
use crate::walk::flow::{self, Effect, FlowState, RegisterOffset, Value};
use crate::walk::image_facts::ImageFacts;
use crate::walk::processor::{Processor, RowOf};

/// Limit on instructions followed, over all branches.
const INSTRUCTIONS_MAX: u32 = 2048;
/// The same limit for a short search, with an unknown result beyond it.
const SHORT_INSTRUCTIONS_MAX: u32 = 96;
/// Limit on branches to follow later.
const BRANCHES_MAX: usize = 64;

/// Limit on instructions of start code.
const START_INSTRUCTIONS_MAX: u32 = 48;

/// Limit on instructions followed after one path has led to a return: the other paths should agree with it.
const OTHERS_MAX: u32 = 256;

/// The end of the code from an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CodeEnd<P: Processor> {
    /// A return: the row at the address.
    Returns(Box<RowOf<P>>, Proof),
    /// The end of the thread: this function has no caller.
    ExitsThread,
}

/// Follows the code from `pc`; `returned`: a call has just returned there.
pub(crate) fn follow<P: Intel>(
    pc: Avma,
    returned: bool,
    code: &dyn Code,
    callees: &mut Callees,
) -> Option<CodeEnd<P>> {
    callees.begin_row();
    // Taken out, since callees are looked up meanwhile.
    let mut visited = std::mem::take(&mut callees.paths);
    let leads = follow_from::<P>(pc, returned, code, callees, &mut visited);
    callees.paths = visited;
    leads
}

/// Follows the code from `pc`; `visited` is a buffer for the addresses on paths.
fn follow_from<P: Intel>(
    pc: Avma,
    returned: bool,
    code: &dyn Code,
    callees: &mut Callees,
    visited: &mut Visited<Option<RegisterOffset>>,
) -> Option<CodeEnd<P>> {
    let called = returned
        && !called_from::<P>(CodeAddress::Return(pc), code)
            .is_some_and(|target| callees.return_from::<P>(target, code));
    // Paths without calls are not refuted by paths with calls: anything may follow a noreturn call. HotSpot's
    // methods end with one, before the targets of jumps in their epilogues.
    if !called {
        let mut paths = PathFacts::<P>::default();
        let start = Start { pc, returned, called, past_calls: false };
        if follow_paths::<P>(&start, code, callees, visited, &mut paths) {
            return Some(CodeEnd::ExitsThread);
        }
        if let Some(row) = paths.row.filter(|_| paths.is_certain && !paths.differ) {
            return Some(CodeEnd::Returns(row, Proof::Certain));
        }
    }
    let mut paths = PathFacts::<P>::default();
    let start = Start { pc, returned, called, past_calls: true };
    if follow_paths::<P>(&start, code, callees, visited, &mut paths) {
        return Some(CodeEnd::ExitsThread);
    }
    // Instructions between that and the return may be unknown: builtins of V8 pop a variable number of arguments.
    let by_record = paths.leaves_record.then(|| CodeEnd::Returns(Box::new(record::<P>()), Proof::Certain));
    let wanted = |row| CodeEnd::Returns(row, Proof::NeedsConfirmation);
    match paths.row {
        Some(row) if paths.is_certain && !paths.differ => Some(CodeEnd::Returns(row, Proof::Certain)),
        Some(row) => by_record.or(Some(wanted(row))),
        None => by_record.or_else(|| paths.tail_call.map(wanted)),
    }
}

/// Facts from the paths.
#[derive(Default)]
struct PathFacts<P: Processor> {
    /// The row by the first path that leads to a return.
    row: Option<Box<RowOf<P>>>,
    /// A path without calls, which does not start after one, leads to it; or it is relative to an unchanged rbp,
    /// which the next function's prologue would have changed.
    is_certain: bool,
    /// Another path to a return, or to an instruction on the first one, leads to another row.
    differ: bool,
    /// A path removes the frame of an unchanged rbp: so rbp points to the function's frame record, and not to a
    /// caller's.
    leaves_record: bool,
    /// The row if a jump to an unknown address is a tail call.
    tail_call: Option<Box<RowOf<P>>>,
}

/// The start of paths.
struct Start {
    pc: Avma,
    /// A call, not known to return, may have just returned there.
    returned: bool,
    called: bool,
    /// Paths continue after calls that are not known to return.
    past_calls: bool,
}

/// Follows all paths. Returns whether they end the thread.
fn follow_paths<P: Intel>(
    &Start { pc, returned, called, past_calls }: &Start,
    code: &dyn Code,
    callees: &mut Callees,
    visited: &mut Visited<Option<RegisterOffset>>,
    found: &mut PathFacts<P>,
) -> bool {
    let lookup = if returned { Avma(pc.0.wrapping_sub(1)) } else { pc };
    let function = flow::function_around(lookup, code);
    // Stripped programs also have an entry point, where their first function begins.
    let entry = code.entry(lookup).filter(|entry| returned || *entry != pc);
    let is_outside =
        |at: Avma| entry == Some(at) || function.as_ref().is_some_and(|function| !function.contains(&at));
    let mut branches = vec![Path { at: pc, state: FlowState::new(), called }];
    visited.clear();
    let mut reader = Reader::new(code);
    let is_short = callees.is_short();
    let mut left = if is_short { SHORT_INSTRUCTIONS_MAX } else { INSTRUCTIONS_MAX };
    // Only straight code certainly ends the thread: other code may have a path that returns.
    let mut is_straight = true;
    // Calls that are not known to return, and whether the last one directly precedes the instruction.
    let (mut calls, mut is_behind_call) = (u32::from(called), called);
    while let Some(Path { mut at, mut state, mut called }) = branches.pop() {
        loop {
            // Facts about an instruction hold on every path to it.
            let sp = stack_pointer::<P>(&state);
            if let Some(before) = visited.note(at, sp) {
                found.differ |= before != sp;
                break;
            }
            let Some(fewer) = left.checked_sub(1) else {
                if is_short {
                    // A path that was not followed might differ.
                    *found = PathFacts::default();
                }
                return false;
            };
            left = fewer;
            let Some(bytes) = reader.at(at) else { break };
            // After its end is another function.
            if is_outside(at) {
                break;
            }
            if P::ends_thread(bytes) {
                // A thread's start code calls its function and ends the thread with the result. After any other
                // call that may not return, another function may have begun.
                if is_straight && (calls == 0 || calls == 1 && is_behind_call) {
                    return true;
                }
                break;
            }
            is_behind_call = false;
            // By reference: the fields are written separately, and a copy would stall on store forwarding.
            let decoded = decode_of::<P>(bytes);
            let Some(instruction) = &decoded else { break };
            let next = at + instruction.length as u64;
            found.leaves_record |= state.get(P::FRAME_POINTER) == Value::First(P::FRAME_POINTER)
                && takes_frame_off(instruction, next, code);
            let mut effect = instructions::execute::<P>(instruction, at, &mut state);
            // A computed or loaded stack pointer: nothing is known after it.
            if stack_pointer::<P>(&state).is_none() {
                effect = Effect::Ends;
            }
            is_straight &= matches!(effect, Effect::Plain | Effect::Calls(_) | Effect::Jumps(_));
            match effect {
                Effect::Plain => at = next,
                Effect::Calls(target) => {
                    if !target.is_some_and(|target| callees.return_from::<P>(target, code)) {
                        (called, calls, is_behind_call) = (true, calls.saturating_add(1), true);
                    }
                    if called && !past_calls {
                        break;
                    }
                    flow::after_call::<P>(&mut state);
                    at = next;
                }
                // The word at the stack pointer is then checked like any return address.
                Effect::JumpsAnywhere if is_lazy_binding_stub::<P>(at, code) => {
                    // The dynamic linker pops the two words of the procedure linkage table.
                    state.set(P::STACK_POINTER, state.sum(P::STACK_POINTER, 2 * P::POINTER));
                    left = found.returns(&state, called, left);
                    break;
                }
                Effect::JumpsAnywhere => {
                    found.tail_call = found.tail_call.take().or_else(|| row::<P>(&state).map(Box::new));
                    break;
                }
                Effect::Returns => {
                    left = found.returns(&state, called, left);
                    break;
                }
                // A tail call: the other function returns in place of this one.
                Effect::Jumps(target) if is_outside(target) && is_entry(target, code) => {
                    left = found.returns(&state, called, left);
                    break;
                }
                Effect::Jumps(target) => at = target,
                Effect::MayJump(target) => {
                    if branches.len() < BRANCHES_MAX {
                        branches.push(Path { at: target, state, called });
                    }
                    at = next;
                }
                Effect::Ends | Effect::MayReturn | Effect::Forks(_) => break,
            }
        }
    }
    false
}

fn is_entry(at: Avma, code: &dyn Code) -> bool {
    code.function(at).is_some_and(|function| function.start == at)
}

impl<P: Intel> PathFacts<P> {
    /// Records a path that ends in a return. Returns the remaining number of instructions.
    fn returns(&mut self, state: &FlowState, called: bool, left: u32) -> u32 {
        // Hand-written subroutines that call nothing use rbp as a general register and do not restore it: their
        // caller has saved it, and its row is not relative to it.
        let mut state = *state;
        if !called && state.get(P::FRAME_POINTER) == Value::Unknown {
            state.set(P::FRAME_POINTER, Value::First(P::FRAME_POINTER));
        }
        let Some(found) = row::<P>(&state) else { return left };
        let is_certain =
            !called || stack_pointer::<P>(&state).is_some_and(|sp| sp.register == P::FRAME_POINTER);
        match &self.row {
            Some(first) => {
                let column = usize::from(P::FRAME_POINTER);
                self.differ |= first.cfa != found.cfa || first.columns[column] != found.columns[column];
                self.is_certain |= is_certain;
            }
            None => (self.row, self.is_certain) = (Some(Box::new(found)), is_certain),
        }
        left.min(OTHERS_MAX)
    }
}

/// Whether the jump at `at` is in the first entry of a procedure linkage table, to the dynamic linker's resolver:
/// after `push GOT+8(%rip)` (System V AMD64 ABI, figure 5.2), `push GOT+4` or `push 4(%ebx)` (System V i386 ABI,
/// figures 5-7 and 5-8).
fn is_lazy_binding_stub<P: Intel>(at: Avma, code: &dyn Code) -> bool {
    let starts = |at: Avma, forms: &[&[u8]]| {
        code.code(at).is_some_and(|code| forms.iter().any(|form| code.starts_with(form)))
    };
    let (jumps, pushes): (&[&[u8]], &[&[u8]]) = match P::IS_LONG {
        true => (&[&[0xff, 0x25], &[0xf2, 0xff, 0x25]], &[&[0xff, 0x35]]),
        false => (&[&[0xff, 0x25], &[0xff, 0xa3, 8, 0, 0, 0]], &[&[0xff, 0x35], &[0xff, 0xb3, 4, 0, 0, 0]]),
    };
    starts(at, jumps) && at.0.checked_sub(6).is_some_and(|push| starts(Avma(push), pushes))
}

/// Whether an address is in the code from an image's entry point to the call of the first function. It has no
/// caller, and may lack unwind information.
///
/// Sources: glibc sysdeps/x86_64/dl-machine.h and sysdeps/i386/dl-machine.h (`RTLD_START`, which continues after
/// the call), musl arch/x86_64/crt_arch.h.
pub(crate) fn is_start<P: Intel>(entry: Avma, address: CodeAddress, code: &dyn Code) -> bool {
    let at = address.at();
    let (mut here, mut goes_on) = (entry, false);
    for _ in 0..START_INSTRUCTIONS_MAX {
        if here >= at {
            // A call just before the entry returns into no start code: it is a noreturn call.
            return here == at && (here != entry || !address.is_return());
        }
        let Some(instruction) = code.code(here).and_then(decode_of::<P>) else { return false };
        here = here + instruction.length as u64;
        let operation = instruction.operands().map_or(0, |(_, operation, _)| operation);
        match (instruction.map, instruction.opcode) {
            (0, 0xc2 | 0xc3 | 0xe9 | 0xeb | 0xf4) | (1, 0x0b) => return false,
            (0, 0xff) if operation == 4 => return false,
            (0, 0xe8 | 0xff) if !goes_on => {
                if address == CodeAddress::Return(here) {
                    return true;
                }
                goes_on = code.code(here).is_some_and(|next| next.starts_with(P::KEEPS_ENTRY));
                if !goes_on {
                    return false;
                }
            }
            _ => {}
        }
    }
    false
}

/// `leave`, or `mov %rbp,%rsp; pop %rbp`.
fn takes_frame_off(instruction: &Instruction, next: Avma, code: &dyn Code) -> bool {
    const POP_RBP: u8 = 0x5d;
    let pops = || code.code(next).is_some_and(|next| next.first() == Some(&POP_RBP));
    let (mode, register, operand) = instruction.operands().unwrap_or((0, 0, 0));
    let registers = (mode, register | (instruction.rex & 4) << 1, operand | (instruction.rex & 1) << 3);
    match (instruction.map, instruction.opcode) {
        (0, 0xc9) => true,
        (0, 0x89) => registers == (3, 5, 4) && pops(),
        (0, 0x8b) => registers == (3, 4, 5) && pops(),
        _ => false,
    }
}

/// The row of a function with rbp pointing to its frame record.
fn record<P: Intel>() -> RowOf<P> {
    let mut row: RowOf<P> = Row::new(Cfa::Register(P::FRAME_POINTER, 2 * P::POINTER));
    row.columns[P::RETURN_COLUMN] = Column::At(-P::POINTER);
    row.columns[usize::from(P::FRAME_POINTER)] = Column::At(-2 * P::POINTER);
    row
}

/// The row at the start, from the state at the return. For registers other than rbp it only has the places where
/// they were saved. None if those are below the initial stack pointer: the path has entered other code, after a
/// noreturn call.
fn row<P: Intel>(state: &FlowState) -> Option<RowOf<P>> {
    if stack_pointer::<P>(state).is_none_or(|sp| sp.register == P::STACK_POINTER && sp.offset < 0) {
        return None;
    }
    let mut row = flow::row_at_return::<P>(state)?;
    let is_given_back = |column: &Column| matches!(column, Column::Same | Column::At(_));
    if !is_given_back(&row.columns[usize::from(P::FRAME_POINTER)]) {
        return None;
    }
    for column in row.columns.as_mut()[..P::RETURN_COLUMN].iter_mut().filter(|column| !is_given_back(column))
    {
        *column = Column::Same;
    }
    Some(row)
}

// ---- Whether a called function returns.
//
// A noreturn function has no `ret` on a path from its entry, unless the path passes another noreturn call. So one
// path from the entry to a return is proof, if the stack pointer is back where it was and all calls on it are of
// functions that return: it stays in the function, since only after a noreturn call can another function follow.
//
// Thousands of rows need the same few functions (the builtins of V8), so answers about unchanging code are cached,
// and those about code in files are shared by all processes that map them.

/// Limits on instructions followed in all callees of one row, and in one of them if short.
const ALL_STEPS_MAX: u32 = 4096;
const SHORT_STEPS_MAX: u32 = 128;
const STEPS_MAX: u32 = 512;
/// Limit on branches of one callee to follow later.
const CALLEE_BRANCHES_MAX: usize = 16;
/// Limit on nested callees.
const DEPTH_MAX: u32 = 3;
/// Limit on cached answers.
const KEPT_MAX: usize = 65_536;

/// A path to follow.
struct Path {
    pub at: Avma,
    pub state: FlowState,
    /// The path passed a call that is not known to return, or starts after one.
    pub called: bool,
}

/// The stack pointer, relative to the initial value of itself or rbp.
fn stack_pointer<P: Intel>(state: &FlowState) -> Option<RegisterOffset> {
    state
        .place(P::STACK_POINTER)
        .filter(|place| [P::STACK_POINTER, P::FRAME_POINTER].contains(&place.register))
}

/// An entry, and the number of nested callees to follow from there.
type CalleeKey = (u64, u32);

/// The code that an answer depends on: the first and the last examined address.
#[derive(Clone, Copy, Debug)]
struct Span {
    first: u64,
    last: u64,
}

impl Span {
    fn of(at: u64) -> Span {
        Span { first: at, last: at }
    }

    fn moved(self, by: u64) -> Span {
        Span { first: self.first.wrapping_add(by), last: self.last.wrapping_add(by) }
    }

    fn is_in(self, mapped: &Range<Avma>) -> bool {
        mapped.contains(&Avma(self.first)) && mapped.contains(&Avma(self.last))
    }

    fn with(self, other: Span) -> Span {
        Span { first: self.first.min(other.first), last: self.last.max(other.last) }
    }
}

/// Facts about a callee.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CalleeFacts {
    /// The callee returns.
    returns: bool,
    /// The answer depends only on unchanging code.
    is_lasting: bool,
    depends_on: Span,
}

/// Answers that depend on one file mapping alone, by the number of nested callees followed. Spans are relative to
/// the entry.
pub(crate) type SharedCallees = ImageFacts<u32, CalleeFacts>;

/// Facts about callees. Void when the images change, except for those of files.
#[derive(Clone, Debug, Default)]
pub(crate) struct Callees {
    /// Answers that depend only on unchanging code.
    kept: HashMap<CalleeKey, CalleeFacts>,
    shared: SharedCallees,
    /// Other answers, for one row.
    passing: HashMap<CalleeKey, CalleeFacts>,
    left: u32,
    /// The search is short.
    is_short: bool,
    /// Addresses on the paths of the row itself, with the stack pointer there.
    paths: Visited<Option<RegisterOffset>>,
    /// Addresses on the paths of callees, by nesting depth.
    visited: [Visited<()>; DEPTH_MAX as usize],
}

impl CalleeCache for Callees {
    type Shared = SharedCallees;

    fn new(shared: &SharedCallees) -> Callees {
        Callees { shared: shared.clone(), ..Callees::default() }
    }

    fn clear(&mut self) {
        self.kept.clear();
    }

    fn begin_row(&mut self) {
        self.passing.clear();
        self.left = if self.is_short { SHORT_STEPS_MAX } else { ALL_STEPS_MAX };
    }

    fn is_exhausted(&self) -> bool {
        self.left == 0
    }
}

impl Callees {
    /// Sets whether searches for the next rows are short.
    pub(crate) fn follow_little(&mut self, little: bool) {
        self.is_short = little;
    }

    /// Whether searches are short.
    pub(crate) fn is_short(&self) -> bool {
        self.is_short
    }

    /// Whether the function at `entry` is known to return; begins a new row.
    #[cfg(test)]
    pub(crate) fn returns<P: Intel>(&mut self, entry: Avma, code: &dyn Code) -> bool {
        self.begin_row();
        self.return_from::<P>(entry, code)
    }

    /// Whether the function at `entry` is known to return.
    fn return_from<P: Intel>(&mut self, entry: Avma, code: &dyn Code) -> bool {
        self.answer::<P>((entry.0, DEPTH_MAX), code).returns
    }

    fn answer<P: Intel>(&mut self, key: CalleeKey, code: &dyn Code) -> CalleeFacts {
        if key.1 == 0 {
            return CalleeFacts { returns: false, is_lasting: true, depends_on: Span::of(key.0) };
        }
        if let Some(answer) = self.kept.get(&key) {
            code.note_dependency(Avma(answer.depends_on.first), Avma(answer.depends_on.last));
            return *answer;
        }
        if let Some(answer) = self.passing.get(&key) {
            return *answer;
        }
        let (entry, depth) = key;
        let fact_key = self.shared.key(CodeAddress::Pc(Avma(entry)), code);
        if let Some(known) = fact_key.as_ref().and_then(|fact_key| self.shared.get(fact_key, depth)) {
            let answer = CalleeFacts { depends_on: known.depends_on.moved(entry), ..known };
            code.note_dependency(Avma(answer.depends_on.first), Avma(answer.depends_on.last));
            self.keep(key, answer);
            return answer;
        }
        let room = self.visited.get_mut(key.1 as usize - 1);
        let mut visited = room.map(std::mem::take).unwrap_or_default();
        visited.clear();
        let mut answer = self.leads_to_return::<P>(key, code, &mut visited);
        if let Some(room) = self.visited.get_mut(key.1 as usize - 1) {
            *room = visited;
        }
        // With the budget spent, the answer does not depend on the function alone.
        answer.is_lasting &= self.left > 0;
        if !answer.is_lasting {
            self.passing.insert(key, answer);
            return answer;
        }
        self.keep(key, answer);
        if let Some(fact_key) = fact_key.filter(|fact_key| answer.depends_on.is_in(&fact_key.mapped)) {
            let from_entry = answer.depends_on.moved(entry.wrapping_neg());
            self.shared.insert(&fact_key, depth, CalleeFacts { depends_on: from_entry, ..answer }, false);
        }
        answer
    }

    fn keep(&mut self, key: CalleeKey, answer: CalleeFacts) {
        if self.kept.len() >= KEPT_MAX {
            self.kept.clear();
        }
        self.kept.insert(key, answer);
    }

    /// Computes the answer for [`Callees::answer`].
    fn leads_to_return<P: Intel>(
        &mut self,
        (entry, depth): CalleeKey,
        code: &dyn Code,
        visited: &mut Visited<()>,
    ) -> CalleeFacts {
        let mut reader = Reader::new(code);
        let (mut is_lasting, mut depends_on) = (true, Span::of(entry));
        let answer = |returns, is_lasting, depends_on, reader: &Reader<'_>| {
            let is_lasting = is_lasting && reader.is_lasting();
            CalleeFacts { returns, is_lasting, depends_on }
        };
        let mut branches = vec![Path { at: Avma(entry), state: FlowState::new(), called: false }];
        let mut left = STEPS_MAX;
        while let Some(Path { mut at, mut state, .. }) = branches.pop() {
            while visited.note(at, ()).is_none() {
                let fewer = left.checked_sub(1).zip(self.left.checked_sub(1));
                let Some((fewer, fewer_of_all)) = fewer else {
                    return answer(false, is_lasting, depends_on, &reader);
                };
                depends_on = depends_on.with(Span::of(at.0));
                (left, self.left) = (fewer, fewer_of_all);
                let Some(bytes) = reader.at(at).filter(|bytes| !P::ends_thread(bytes)) else { break };
                let decoded = decode_of::<P>(bytes);
                let Some(instruction) = &decoded else { break };
                let next = at + instruction.length as u64;
                let effect = instructions::execute::<P>(instruction, at, &mut state);
                let sp = stack_pointer::<P>(&state);
                match effect {
                    Effect::Returns => {
                        // `ret n` also pops arguments.
                        let takes_off = instruction.opcode != 0xc3;
                        let is_back = |sp: RegisterOffset| sp.register == P::STACK_POINTER && sp.offset == 0;
                        if !takes_off && sp.is_some_and(is_back) {
                            return answer(true, is_lasting, depends_on, &reader);
                        }
                        break;
                    }
                    _ if sp.is_none() => break,
                    Effect::Calls(Some(target)) => {
                        let callee = self.answer::<P>((target.0, depth - 1), code);
                        is_lasting &= callee.is_lasting;
                        depends_on = depends_on.with(callee.depends_on);
                        if !callee.returns {
                            break;
                        }
                        flow::after_call::<P>(&mut state);
                        at = next;
                    }
                    Effect::Plain => at = next,
                    Effect::Jumps(target) => at = target,
                    Effect::MayJump(target) => {
                        if branches.len() < CALLEE_BRANCHES_MAX {
                            branches.push(Path { at: target, state, called: false });
                        }
                        at = next;
                    }
                    _ => break,
                }
            }
        }
        answer(false, is_lasting, depends_on, &reader)
    }
}
