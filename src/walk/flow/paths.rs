//! Follows the possible paths of instructions from one address, within limits: where each arrives, and with what
//! state. Input: code, and the bounds of functions if known.

use std::ops::Range;

use super::state::{Effect, FlowState, REGISTERS, RegisterOffset, Value};
use crate::addr::Avma;
use crate::walk::Code;
use crate::walk::processor::Processor;
use crate::walk::reader::Reader;

/// Limit on instructions followed for one row, over all paths.
pub(super) const STEPS_MAX: u32 = 2048;
/// Limit on branch targets.
pub(super) const TARGETS_MAX: usize = 256;
/// Limits for large functions, if the first ones are exceeded: JIT compilers that inline produce functions of 20
/// KB with 700 branches.
pub(super) const LARGE_STEPS_MAX: u32 = 16_384;
pub(super) const LARGE_TARGETS_MAX: usize = 2048;
/// Limit on instructions of all callees followed for one row.
const CALLEE_STEPS_MAX: u32 = 4096;
/// Limit on subroutines of a function.
pub(super) const INNER_MAX: usize = 8;
/// Limit on instructions followed in an outlined callee: pieces split off by LLVM's machine outliner are that
/// short.
pub(super) const PIECE_MAX: u32 = 16;

/// The bounds of the function that contains an address, if known.
pub(in crate::walk) fn function_around(at: Avma, code: &dyn Code) -> Option<Range<Avma>> {
    code.function(at).filter(|function| function.contains(&at))
}

/// Results for callees.
#[derive(Clone, Debug)]
pub(super) struct Callees {
    pub(super) known: Vec<(Avma, bool)>,
    pub(super) depth: u32,
    pub(super) left: u32,
}

impl Default for Callees {
    fn default() -> Callees {
        Callees { known: Vec::new(), depth: 0, left: CALLEE_STEPS_MAX }
    }
}

/// The end of a path.
pub(super) enum PathEnd<'a> {
    Returns(&'a FlowState),
    /// A jump out of the function.
    Leaves(&'a FlowState, Option<Avma>),
    LeavesAnywhere(&'a FlowState),
    /// The goal.
    At(&'a FlowState),
    /// The end of the function, except after a call, or an unknown instruction.
    RunsOut,
}

/// The instruction where paths should arrive. If a call has just returned there, only that call leads to it; jumps
/// there may be on another path.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Goal {
    pub(super) at: Avma,
    pub(super) returned: bool,
}

#[derive(Clone)]
pub(super) struct Paths<'c> {
    pub(super) function: Option<Range<Avma>>,
    /// Base registers of a frame, in order of preference.
    pub(super) bases: &'static [u8],
    pub(super) goal: Option<Goal>,
    pub(super) code: &'c dyn Code,
    pub(super) reader: Reader<'c>,
    /// The branch targets, by address, with the frame's place at the first visit: the frame pointer, or else the
    /// stack pointer.
    pub(super) targets: Vec<(Avma, Option<RegisterOffset>)>,
    pub(super) targets_max: usize,
    /// Two paths reached one address with different frames: one of them is never taken.
    pub(super) differ: bool,
    /// There were more branch targets than the limit.
    pub(super) is_full: bool,
    /// Paths continue after the goal.
    pub(super) goes_on: bool,
    /// Paths continue after calls.
    pub(super) past_calls: bool,
    pub(super) left: u32,
    pub(super) callees: Callees,
    /// Entries of subroutines inside the function, which it calls.
    pub(super) inner: Vec<Avma>,
}

impl<'c> Paths<'c> {
    pub(super) fn new<P: Processor>(function: Option<Range<Avma>>, code: &'c dyn Code) -> Paths<'c> {
        let bases = P::BASES.first().copied().unwrap_or_default();
        let callees = Callees::default();
        let (targets, left) = (Vec::new(), STEPS_MAX);
        Paths {
            function,
            bases,
            goal: None,
            code,
            reader: Reader::new(code),
            targets,
            targets_max: TARGETS_MAX,
            differ: false,
            is_full: false,
            goes_on: false,
            past_calls: true,
            left,
            callees,
            inner: Vec::new(),
        }
    }

    /// Follows every path from `start`, until `arrive` returns a result for the end of one.
    pub(super) fn follow<P: Processor, T, F>(
        &mut self,
        start: Avma,
        state: FlowState,
        mut arrive: F,
    ) -> Option<T>
    where
        F: FnMut(&mut Paths<'c>, PathEnd<'_>) -> Option<T>,
    {
        self.is_new::<P>(start, &state);
        let mut branches = vec![(start, state)];
        while let Some((mut at, mut state)) = branches.pop() {
            let (mut has_called, mut falls) = (false, false);
            loop {
                if self.goal == Some(Goal { at, returned: false }) {
                    match arrive(self, PathEnd::At(&state)) {
                        None if self.goes_on => {}
                        None => break,
                        found => return found,
                    }
                }
                // Another path continues from there with the same frame.
                if !P::EVERY_PATH && falls && self.is_known::<P>(at, &state) {
                    break;
                }
                falls = true;
                self.left = self.left.checked_sub(1)?;
                let is_inside = self.function.as_ref().is_none_or(|function| function.contains(&at));
                let bytes = self.reader.at(at).filter(|_| is_inside);
                let Some((effect, length)) = bytes.and_then(|bytes| P::step(at, bytes, &mut state)) else {
                    match arrive(self, PathEnd::RunsOut) {
                        Some(found) if is_inside || !has_called => return Some(found),
                        _ => break,
                    }
                };
                let next = at + length;
                has_called = matches!(effect, Effect::Calls(_));
                let mut comes_back = true;
                let found = match effect {
                    Effect::Plain => None,
                    Effect::Calls(target) => {
                        comes_back = self.call::<P>(target, next, &mut state);
                        let is_goal = self.goal == Some(Goal { at: next, returned: true });
                        is_goal.then(|| arrive(self, PathEnd::At(&state))).flatten()
                    }
                    Effect::Returns => arrive(self, PathEnd::Returns(&state)),
                    Effect::MayReturn => returned::<P>(at, bytes.unwrap_or_default(), state)
                        .and_then(|state| arrive(self, PathEnd::Returns(&state))),
                    Effect::Jumps(target) | Effect::MayJump(target) if self.leaves(target) => {
                        arrive(self, PathEnd::Leaves(&state, Some(target)))
                    }
                    Effect::JumpsAnywhere => arrive(self, PathEnd::LeavesAnywhere(&state)),
                    Effect::Ends => arrive(self, PathEnd::RunsOut),
                    _ => None,
                };
                if found.is_some() {
                    return found;
                }
                match effect {
                    Effect::Calls(_) if !comes_back || !self.past_calls => break,
                    Effect::Plain | Effect::Calls(_) | Effect::MayReturn => at = next,
                    Effect::Forks(condition) => {
                        let mut fulfilled = state;
                        fulfilled.mode.assumed = Some(condition);
                        branches.push((at, fulfilled));
                        state.mode.assumed = Some(condition ^ 1);
                    }
                    Effect::MayJump(target) => {
                        if !self.leaves(target) && self.is_new::<P>(target, &state) {
                            branches.push((target, state));
                        }
                        at = next;
                    }
                    Effect::Jumps(target) if !self.leaves(target) && self.is_new::<P>(target, &state) => {
                        (at, falls) = (target, false);
                    }
                    _ => break,
                }
            }
        }
        None
    }

    /// Applies a call to the state. Returns whether the call returns to `next`.
    fn call<P: Processor>(&mut self, target: Option<Avma>, next: Avma, state: &mut FlowState) -> bool {
        if let Some(target) = target.filter(|target| self.is_inner(*target)) {
            self.inner.push(target);
        }
        let comes_back = !target.is_some_and(|target| self.never_returns::<P>(target, state));
        match target.and_then(|target| self.piece::<P>(target, state, Some(next))) {
            Some(after) => *state = after,
            None => after_call::<P>(state),
        }
        comes_back
    }

    /// Whether a jump leaves the function for another one, or goes back to its entry. A jump into the middle of
    /// another function stays: hand-written code has several labels.
    pub(super) fn leaves(&self, target: Avma) -> bool {
        match &self.function {
            Some(function) if function.contains(&target) => function.start == target,
            Some(_) => true,
            None => false,
        }
    }

    /// The place of the frame. A callee may pop its arguments, which the call does not show; a frame pointer is
    /// right even then.
    pub(super) fn frame<P: Processor>(&self, state: &FlowState) -> Option<RegisterOffset> {
        let frame_pointers = self.bases.iter().filter(|base| **base != P::STACK_POINTER);
        let of_frame = frame_pointers
            .filter_map(|base| Some((*base, state.place(*base)?)))
            .find(|(_, place)| place.register == P::STACK_POINTER);
        // Which register has it must be the same on all paths, if there are several.
        let many = !P::EVERY_PATH && !self.bases.contains(&P::STACK_POINTER);
        let of_frame = of_frame.map(|(base, place)| RegisterOffset {
            register: if many { base } else { place.register },
            ..place
        });
        of_frame.or_else(|| state.place(P::STACK_POINTER))
    }

    /// Whether an address is a known branch target with the same frame.
    pub(super) fn is_known<P: Processor>(&self, at: Avma, state: &FlowState) -> bool {
        let index = self.targets.binary_search_by_key(&at, |(target, _)| *target);
        let known = index.ok().and_then(|index| self.targets.get(index));
        known.is_some_and(|(_, before)| *before == self.frame::<P>(state))
    }

    /// Records a branch target. Returns whether it is new and fits.
    pub(super) fn is_new<P: Processor>(&mut self, at: Avma, state: &FlowState) -> bool {
        let sp = self.frame::<P>(state);
        let index = match self.targets.binary_search_by_key(&at, |(target, _)| *target) {
            Ok(index) => {
                self.differ |= self.targets.get(index).is_none_or(|(_, before)| *before != sp);
                return false;
            }
            Err(index) => index,
        };
        let has_room = self.has_room();
        if has_room {
            self.targets.insert(index, (at, sp));
        }
        self.is_full |= !has_room;
        has_room
    }

    /// Whether a call leads into the function itself but not to its entry, and is new.
    pub(super) fn is_inner(&self, target: Avma) -> bool {
        let is_inside = self
            .function
            .as_ref()
            .is_some_and(|function| function.contains(&target) && function.start != target);
        self.goes_on && is_inside && self.inner.len() < INNER_MAX && !self.inner.contains(&target)
    }

    /// Whether one more branch target fits.
    pub(super) fn has_room(&self) -> bool {
        self.targets.len() < self.targets_max
    }

    /// The state after a short piece of code that ends in a return, without branches or calls: the machine
    /// outliner puts parts of prologues and epilogues into these functions. `returns_to`: the return address of a
    /// call to it.
    pub(super) fn piece<P: Processor>(
        &mut self,
        mut at: Avma,
        before: &FlowState,
        returns_to: Option<Avma>,
    ) -> Option<FlowState> {
        if returns_to.is_some() && P::LINK.is_none() {
            return None;
        }
        let mut state = *before;
        if let (Some(_), Some(link)) = (returns_to, P::LINK) {
            state.set(link, Value::Unknown);
        }
        for _ in 0..PIECE_MAX {
            self.left = self.left.checked_sub(1)?;
            let (effect, length) = P::step(at, self.reader.at(at)?, &mut state)?;
            match effect {
                Effect::Plain => at = at + length,
                Effect::Returns => return Some(state),
                _ => return None,
            }
        }
        None
    }
}

/// The state at a conditional return, if the instruction is one and its condition holds.
fn returned<P: Processor>(at: Avma, bytes: &[u8], mut state: FlowState) -> Option<FlowState> {
    state.mode.takes = true;
    matches!(P::step(at, bytes, &mut state), Some((Effect::Returns, _))).then_some(state)
}

/// Applies the call of an ordinary function to the state. In place: code is full of calls.
pub(in crate::walk) fn after_call<P: Processor>(state: &mut FlowState) {
    let one = |register: u8| 1u32 << register;
    let kept = P::SAVED.iter().filter(|saved| Some(**saved) != P::LINK);
    let kept = kept.fold(one(P::STACK_POINTER), |kept, saved| kept | one(*saved));
    state.keep_only(kept);
}

/// One bit per register.
const _: () = assert!(REGISTERS <= u32::BITS as usize);
