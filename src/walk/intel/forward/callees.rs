//! Whether a called function returns. Input: its entry, code; output: yes, or unknown. Not for: functions called
//! through a register or a table.
//!
//! A noreturn function has no `ret` on a path from its entry, unless the path passes another noreturn call. So one
//! path from the entry to a return is proof, if the stack pointer is back where it was and all calls on it are of
//! functions that return: it stays in the function, since only after a noreturn call can another function follow.
//!
//! Thousands of rows need the same few functions (the builtins of V8), so answers about unchanging code are
//! cached, and those about code in files are shared by all processes that map them.

use std::ops::Range;

use hashbrown::HashMap;

use crate::addr::{Avma, CodeAddress};
use crate::walk::Code;
use crate::walk::engine::CalleeCache;
use crate::walk::flow::{self, Effect, FlowState, RegisterOffset};
use crate::walk::image_facts::ImageFacts;
use crate::walk::intel::Intel;
use crate::walk::intel::instructions::{self, decode_of};
use crate::walk::reader::Reader;
use crate::walk::visited::Visited;

/// Limits on instructions followed in all callees of one row, and in one of them if short.
const ALL_STEPS_MAX: u32 = 4096;
const SHORT_STEPS_MAX: u32 = 128;
const STEPS_MAX: u32 = 512;
/// Limit on branches of one callee to follow later.
const BRANCHES_MAX: usize = 16;
/// Limit on nested callees.
const DEPTH_MAX: u32 = 3;
/// Limit on cached answers.
const KEPT_MAX: usize = 65_536;

/// A path to follow.
pub(super) struct Path {
    pub at: Avma,
    pub state: FlowState,
    /// The path passed a call that is not known to return, or starts after one.
    pub called: bool,
}

/// The stack pointer, relative to the initial value of itself or rbp.
pub(super) fn stack_pointer<P: Intel>(state: &FlowState) -> Option<RegisterOffset> {
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
pub(in crate::walk) struct CalleeFacts {
    /// The callee returns.
    returns: bool,
    /// The answer depends only on unchanging code.
    is_lasting: bool,
    depends_on: Span,
}

/// Answers that depend on one file mapping alone, by the number of nested callees followed. Spans are relative to
/// the entry.
pub(in crate::walk) type SharedCallees = ImageFacts<u32, CalleeFacts>;

/// Facts about callees. Void when the images change, except for those of files.
#[derive(Clone, Debug, Default)]
pub(in crate::walk) struct Callees {
    /// Answers that depend only on unchanging code.
    kept: HashMap<CalleeKey, CalleeFacts>,
    shared: SharedCallees,
    /// Other answers, for one row.
    passing: HashMap<CalleeKey, CalleeFacts>,
    left: u32,
    /// The search is short.
    is_short: bool,
    /// Addresses on the paths of the row itself, with the stack pointer there.
    pub(super) paths: Visited<Option<RegisterOffset>>,
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
    pub(in crate::walk) fn follow_little(&mut self, little: bool) {
        self.is_short = little;
    }

    /// Whether searches are short.
    pub(in crate::walk) fn is_short(&self) -> bool {
        self.is_short
    }

    /// Whether the function at `entry` is known to return; begins a new row.
    #[cfg(test)]
    pub(in crate::walk) fn returns<P: Intel>(&mut self, entry: Avma, code: &dyn Code) -> bool {
        self.begin_row();
        self.return_from::<P>(entry, code)
    }

    /// Whether the function at `entry` is known to return.
    pub(super) fn return_from<P: Intel>(&mut self, entry: Avma, code: &dyn Code) -> bool {
        self.answer::<P>((entry.0, DEPTH_MAX), code).returns
    }

    fn answer<P: Intel>(&mut self, asked: CalleeKey, code: &dyn Code) -> CalleeFacts {
        if asked.1 == 0 {
            return CalleeFacts { returns: false, is_lasting: true, depends_on: Span::of(asked.0) };
        }
        if let Some(answer) = self.kept.get(&asked) {
            code.note_dependency(Avma(answer.depends_on.first), Avma(answer.depends_on.last));
            return *answer;
        }
        if let Some(answer) = self.passing.get(&asked) {
            return *answer;
        }
        let (entry, depth) = asked;
        let fact_key = self.shared.key(CodeAddress::Pc(Avma(entry)), code);
        if let Some(known) = fact_key.as_ref().and_then(|fact_key| self.shared.get(fact_key, depth)) {
            let answer = CalleeFacts { depends_on: known.depends_on.moved(entry), ..known };
            code.note_dependency(Avma(answer.depends_on.first), Avma(answer.depends_on.last));
            self.keep(asked, answer);
            return answer;
        }
        let room = self.visited.get_mut(asked.1 as usize - 1);
        let mut visited = room.map(std::mem::take).unwrap_or_default();
        visited.clear();
        let mut answer = self.leads_to_return::<P>(asked, code, &mut visited);
        if let Some(room) = self.visited.get_mut(asked.1 as usize - 1) {
            *room = visited;
        }
        // With the budget spent, the answer does not depend on the function alone.
        answer.is_lasting &= self.left > 0;
        if !answer.is_lasting {
            self.passing.insert(asked, answer);
            return answer;
        }
        self.keep(asked, answer);
        if let Some(fact_key) = fact_key.filter(|fact_key| answer.depends_on.is_in(&fact_key.mapped)) {
            let from_entry = answer.depends_on.moved(entry.wrapping_neg());
            self.shared.insert(&fact_key, depth, CalleeFacts { depends_on: from_entry, ..answer }, false);
        }
        answer
    }

    fn keep(&mut self, asked: CalleeKey, answer: CalleeFacts) {
        if self.kept.len() >= KEPT_MAX {
            self.kept.clear();
        }
        self.kept.insert(asked, answer);
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
                        if branches.len() < BRANCHES_MAX {
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
