//! The caller of a function by its instructions: they are followed along the ways that they
//! can take, and what they do to the stack pointer, to saved registers and to the return
//! address tells the row at one of them. Input: code, and the bounds of functions where they
//! are known; output: a [`Row`]. Not for: anything that executes, or reads the stack.
//!
//! Two questions lead to the same row, since what is known of one instruction holds on every
//! way to it and from it (unwind tables rely on that, too):
//! [`before_return`] goes on from the instruction to a return, where the stack pointer and
//! the return address are where they were at the call; [`since_entry`] goes from the first
//! instruction of the function to it. In prologues, in epilogues and between them.
//!
//! Every way is bounded by [`STEPS_MAX`] instructions in all, and by [`LARGE_STEPS_MAX`] from the entry of a function
//! that has more; what a processor's instructions
//! do is in `intel/instructions.rs` and `aarch64/instructions.rs`.

mod callee;
mod exits;
mod packed;
mod rows;
pub(super) mod state;
#[cfg(test)]
mod tests;

use std::ops::Range;

use super::processor::Processor;
use crate::addr::{Avma, CodeAddress};
use crate::binary::frame_rule::Row;
use crate::walk::Code;
use crate::walk::reader::Reader;
pub(super) use exits::may_jump_into;
pub(super) use rows::{row_at_return, row_in_function};
use state::REGISTERS;
pub(super) use state::{Effect, Place, State, Value};

/// Most instructions that are followed for one row, over all ways.
pub(super) const STEPS_MAX: u32 = 2048;
/// Most places that branches lead to.
const TARGETS_MAX: usize = 256;
/// How much of a function is followed where that much is not enough: compilers that inline while the program
/// runs make functions of 20 KB with 700 branches.
const LARGE_STEPS_MAX: u32 = 16_384;
const LARGE_TARGETS_MAX: usize = 2048;
/// Most subroutines of a function.
const INNER_MAX: usize = 8;
/// Most instructions of a callee that are followed: pieces of functions that LLVM's machine
/// outliner made are that short.
const PIECE_MAX: u32 = 16;

/// The row at `at`, by the ways from there to a return: the first that is found, or where every way is to
/// be followed the one that all tell. `returned`: a call has just come back, so that a link register holds
/// nothing of the caller.
pub(super) fn before_return<P: Processor<N>, const N: usize>(
    at: Avma,
    returned: bool,
    code: &dyn Code,
) -> Option<Row<N>> {
    let (at, mut state) = P::begin(at);
    if let Some(link) = P::LINK.filter(|_| returned) {
        state.set(link, Value::Unknown);
    }
    // The first instruction behind the call may be the next function's: it does not return.
    let function = function_around(if returned { Avma(at.0.wrapping_sub(1)) } else { at }, code);
    let mut ways = Ways::new::<P, N>(function, code);
    let (mut found, mut differ) = (None, false);
    let first = ways.follow::<P, _, N, _>(at, state, |ways, arrived| {
        let row = row_where_it_ends::<P, N>(ways, &arrived)?;
        if !P::EVERY_WAY {
            return Some(row);
        }
        // A part that a function calls of its own returns there, and goes on to the end of the function, too.
        differ = found.as_ref().is_some_and(|found| !is_same_frame::<P, N>(found, &row));
        found = Some(row);
        differ.then(|| found.take()).flatten()
    });
    if P::EVERY_WAY { found.filter(|_| !differ) } else { first }
}

/// The row at the beginning of a way that leaves its function, by the state there.
fn row_where_it_ends<P: Processor<N>, const N: usize>(
    ways: &mut Ways<'_>,
    arrived: &Arrived<'_>,
) -> Option<Row<N>> {
    match *arrived {
        Arrived::Returns(state) => row_at_return::<P, N>(state),
        Arrived::Leaves(state, _) if !P::JUMPS_KEEP_LINK && !has_given_back::<P, N>(state) => None,
        Arrived::Leaves(state, target) => {
            let state = match ways.piece::<P, N>(target?, state, None) {
                Some(state) => state,
                None => *state,
            };
            row_at_return::<P, N>(&state)
        }
        // Only what has given back its frame, or never had one, leaves so.
        Arrived::LeavesAnywhere(state) => {
            let given_back = has_given_back::<P, N>(state);
            (given_back || P::JUMPS_KEEP_LINK && ways.function.is_none())
                .then(|| row_at_return::<P, N>(state))
                .flatten()
        }
        Arrived::At(_) | Arrived::RunsOut => None,
    }
}

/// Whether a way has taken its frame off.
fn has_given_back<P: Processor<N>, const N: usize>(state: &State) -> bool {
    match P::LINK {
        Some(link) => matches!(state.get(link), Value::Loaded(_)),
        None => {
            let sp = state.place(P::STACK_POINTER);
            sp.is_some_and(|sp| sp.register != P::STACK_POINTER || sp.offset > 0)
        }
    }
}

/// The row at `at`, by the ways from the first instruction of its function to there.
pub(super) fn since_entry<P: Processor<N>, const N: usize>(
    entry: Avma,
    at: Avma,
    returned: bool,
    code: &dyn Code,
) -> Option<Row<N>> {
    let function = function_around(if returned { Avma(at.0.wrapping_sub(1)) } else { at }, code);
    let function = function.filter(|function| function.contains(&entry))?;
    let mut ways = Ways::new::<P, N>(Some(function), code);
    let (at, (entry, state)) = (P::begin(at).0, P::begin(entry));
    ways.goal = Some(Goal { at, returned });
    ways.follow::<P, _, N, _>(entry, state, |ways, arrived| match arrived {
        Arrived::At(state) => row_in_function::<P, N>(state, ways.bases),
        _ => None,
    })
}

/// The same, and every way that arrives must tell the same. What follows a call that does not
/// return belongs to another way, or to another function, so a single way may be none that is
/// ever taken. Without the bounds of the function at `at` any code may belong to it.
pub(super) fn since_entry_on_all_ways<P: Processor<N>, const N: usize>(
    entry: Avma,
    at: Avma,
    returned: bool,
    code: &dyn Code,
) -> Option<Row<N>> {
    frame_on_all_ways::<P, N>((entry, at), returned, true, code)
}

/// The same by ways that pass no call, so that all of them are in one function: what stands behind a call
/// that does not return is another one, where bounds are not known.
pub(super) fn since_entry_past_no_call<P: Processor<N>, const N: usize>(
    entry: Avma,
    at: Avma,
    returned: bool,
    code: &dyn Code,
) -> Option<Row<N>> {
    frame_on_all_ways::<P, N>((entry, at), returned, false, code)
}

fn frame_on_all_ways<P: Processor<N>, const N: usize>(
    entry_and_at: (Avma, Avma),
    returned: bool,
    past_calls: bool,
    code: &dyn Code,
) -> Option<Row<N>> {
    P::BASES.iter().find_map(|bases| {
        let row = |state: &State| row_in_function::<P, N>(state, bases);
        let ways = (*bases, past_calls);
        on_all_ways::<P, _, N>(entry_and_at, returned, ways, code, row, is_same_frame::<P, N>)
    })
}

/// Bytes from the stack pointer up to where the frame pointer points at `at`, by the ways from the
/// first instruction of its function to there, which must all tell the same.
pub(super) fn frame_pointer_on_all_ways<P: Processor<N>, const N: usize>(
    entry: Avma,
    at: Avma,
    returned: bool,
    code: &dyn Code,
) -> Option<i64> {
    let distance = |state: &State| {
        let since_entry = |register: u8| {
            let place = state.place(register)?;
            (place.register == P::STACK_POINTER).then_some(place.offset)
        };
        since_entry(P::FRAME_POINTER)?.checked_sub(since_entry(P::STACK_POINTER)?)
    };
    let bases = P::BASES.first()?;
    on_all_ways::<P, _, N>((entry, at), returned, (bases, true), code, distance, |one, other| one == other)
}

/// What `tell` says of the state at `at`, if every way from `entry` that arrives there says the same, and
/// has the same place in one of the registers `bases` wherever two ways meet. `past_calls`: they go on
/// where a call comes back to.
fn on_all_ways<P: Processor<N>, T, const N: usize>(
    (entry, at): (Avma, Avma),
    returned: bool,
    (bases, past_calls): (&'static [u8], bool),
    code: &dyn Code,
    tell: impl Fn(&State) -> Option<T>,
    is_same: impl Fn(&T, &T) -> bool,
) -> Option<T> {
    let function = function_around(if returned { Avma(at.0.wrapping_sub(1)) } else { at }, code);
    if function.as_ref().is_some_and(|function| !function.contains(&entry)) {
        return None;
    }
    let (at, (entry, state)) = (P::begin(at).0, P::begin(entry));
    let goal = Goal { at, returned };
    let ways = Ways::new::<P, N>(function, code);
    let ways = Ways { bases, goal: Some(goal), goes_on: P::EVERY_WAY, past_calls, ..ways };
    let large = Ways { left: LARGE_STEPS_MAX, targets_max: LARGE_TARGETS_MAX, ..ways.clone() };
    let (told, has_room) = told_by_all::<P, _, N>(ways, (entry, &state), &tell, &is_same);
    if has_room { told } else { told_by_all::<P, _, N>(large, (entry, &state), &tell, &is_same).0 }
}

/// The same for ways that are still to be followed; and whether there was room for what was followed.
fn told_by_all<P: Processor<N>, T, const N: usize>(
    mut ways: Ways<'_>,
    (entry, of_entry): (Avma, &State),
    tell: &impl Fn(&State) -> Option<T>,
    is_same: &impl Fn(&T, &T) -> bool,
) -> (Option<T>, bool) {
    let (mut found, mut differ) = (None, false);
    ways.follow::<P, (), N, _>(entry, *of_entry, |_, arrived| {
        let Arrived::At(state) = arrived else { return None };
        let told = tell(state);
        differ |= match (&found, &told) {
            (_, None) => true,
            (Some(found), Some(told)) => !is_same(found, told),
            (None, Some(_)) => false,
        };
        found = told.or(found.take());
        differ.then_some(())
    });
    // What jumps lead to inside a function may be a subroutine of its own, which has another frame then.
    let inner = std::mem::take(&mut ways.inner);
    for target in inner {
        let mut from_call = Ways { bases: ways.bases, ..Ways::new::<P, N>(ways.function.clone(), ways.code) };
        from_call.goal = ways.goal;
        let mut state = P::begin(entry).1;
        state.mode.t32 = of_entry.mode.t32;
        from_call.follow::<P, (), N, _>(target, state, |_, arrived| {
            let Arrived::At(state) = arrived else { return None };
            let told = tell(state);
            differ |= !told.as_ref().zip(found.as_ref()).is_some_and(|(told, found)| is_same(told, found));
            None
        });
        differ |= from_call.left == 0;
    }
    differ |= ways.differ;
    // Where not every way is asked for, one that arrived is enough.
    let is_cut = ways.is_full || ways.left == 0 && (P::EVERY_WAY || found.is_none());
    (found.filter(|_| !differ && !is_cut), differ || !is_cut)
}

/// Whether any way from a function's entry leads to `at`, and does not save where it was called from: what does
/// is a function that stands behind one that does not return.
pub(super) fn arrives<P: Processor<N>, const N: usize>(
    entry: Avma,
    at: Avma,
    returned: bool,
    code: &dyn Code,
) -> bool {
    let mut ways = Ways::new::<P, N>(None, code);
    let (at, (entry, state)) = (P::begin(at).0, P::begin(entry));
    ways.goal = Some(Goal { at, returned });
    let is_saved = |state: &State| state.stores().any(|(_, value)| P::LINK.map(Value::First) == Some(value));
    let found = ways.follow::<P, (), N, _>(entry, state, |_, arrived| match arrived {
        Arrived::At(state) => (!is_saved(state)).then_some(()),
        _ => None,
    });
    found.is_some()
}

/// Whether two rows lead to the same caller.
pub(super) fn is_same_frame<P: Processor<N>, const N: usize>(one: &Row<N>, other: &Row<N>) -> bool {
    let needed = |row: &Row<N>, register: u8| row.columns.get(usize::from(register)).cloned();
    let registers = [Some(P::FRAME_POINTER), P::LINK];
    let same = |register: u8| needed(one, register) == needed(other, register);
    one.cfa == other.cfa && registers.into_iter().flatten().all(same)
}

/// Whether the function's own code has ended the chain of frames: it pushed a zero and
/// made its frame record there, so that its return address or its caller's frame pointer is
/// that zero. By all ways from its entry to `at`.
pub(super) fn ends_chain<P: Processor<N>, const N: usize>(
    entry: Avma,
    at: Avma,
    returned: bool,
    code: &dyn Code,
) -> bool {
    let function = function_around(if returned { Avma(at.0.wrapping_sub(1)) } else { at }, code);
    let Some(function) = function.filter(|function| function.contains(&entry)) else { return false };
    let mut ways = Ways::new::<P, N>(Some(function), code);
    let (at, (entry, state)) = (P::begin(at).0, P::begin(entry));
    ways.goal = Some(Goal { at, returned });
    let (mut arrives, mut ends) = (false, true);
    ways.follow::<P, (), N, _>(entry, state, |_, arrived| {
        let Arrived::At(state) = arrived else { return None };
        let record = state.place(P::FRAME_POINTER).filter(|at| at.register == P::STACK_POINTER);
        let is_zero = |at: Place| state.zero == Some(at);
        arrives = true;
        ends &= record
            .is_some_and(|record| is_zero(record) || is_zero(record.plus(P::POINTER_BYTES.cast_signed())));
        (!ends).then_some(())
    });
    arrives && ends && !ways.differ && !ways.is_full
}

/// The bounds of the function that an address is in, where they are known.
pub(super) fn function_around(at: Avma, code: &dyn Code) -> Option<Range<Avma>> {
    code.function(at).filter(|function| function.contains(&at))
}

/// Whether the code at an address goes on in the function that made the call, as far as bounds are known: behind a
/// call that does not return stands another function. `true` for a program counter, unless a function begins there.
pub(super) fn is_behind_own_call(address: CodeAddress, code: &dyn Code) -> bool {
    let at = address.at();
    let begins_image = code.entry(at) == Some(at);
    match function_around(address.lookup().at(), code) {
        Some(function) if address.is_return() => function.contains(&at),
        Some(function) => function.start != at,
        None => !(address.is_return() && begins_image),
    }
}

/// Where a way has come to.
enum Arrived<'a> {
    Returns(&'a State),
    /// At a jump out of the function.
    Leaves(&'a State, Option<Avma>),
    LeavesAnywhere(&'a State),
    /// At the goal.
    At(&'a State),
    /// Where the function ends, not behind a call, or at what is no known instruction.
    RunsOut,
}

/// The instruction that ways are to arrive at. Where a call has just come back to only that
/// call leads; what jumps there may be on another way.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Goal {
    at: Avma,
    returned: bool,
}

#[derive(Clone)]
struct Ways<'c> {
    function: Option<Range<Avma>>,
    /// Registers that a frame is counted from, the first that can be before others.
    bases: &'static [u8],
    goal: Option<Goal>,
    code: &'c dyn Code,
    reader: Reader<'c>,
    /// The places that branches lead to, by address, and where the frame was there first: what the frame
    /// pointer was, or else the stack pointer.
    targets: Vec<(Avma, Option<Place>)>,
    targets_max: usize,
    /// Two ways came to one place with different frames: one of them is never taken.
    differ: bool,
    /// There were more places than are remembered.
    is_full: bool,
    /// Ways go on behind the goal.
    goes_on: bool,
    /// They go on behind calls.
    past_calls: bool,
    left: u32,
    callees: callee::Callees,
    /// What the function itself calls of its own.
    inner: Vec<Avma>,
}

impl<'c> Ways<'c> {
    fn new<P: Processor<N>, const N: usize>(function: Option<Range<Avma>>, code: &'c dyn Code) -> Ways<'c> {
        let bases = P::BASES.first().copied().unwrap_or_default();
        let callees = callee::Callees::default();
        let (targets, left) = (Vec::new(), STEPS_MAX);
        Ways {
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

    /// Follows every way from `start`, until `arrive` makes a row of where one ends.
    fn follow<P: Processor<N>, T, const N: usize, F>(
        &mut self,
        start: Avma,
        state: State,
        mut arrive: F,
    ) -> Option<T>
    where
        F: FnMut(&mut Ways<'c>, Arrived<'_>) -> Option<T>,
    {
        self.is_new::<P, N>(start, &state);
        let mut branches = vec![(start, state)];
        while let Some((mut at, mut state)) = branches.pop() {
            let (mut has_called, mut falls) = (false, false);
            loop {
                if self.goal == Some(Goal { at, returned: false }) {
                    match arrive(self, Arrived::At(&state)) {
                        None if self.goes_on => {}
                        None => break,
                        found => return found,
                    }
                }
                // Another way goes on from there in the same frame.
                if !P::EVERY_WAY && falls && self.is_known::<P, N>(at, &state) {
                    break;
                }
                falls = true;
                self.left = self.left.checked_sub(1)?;
                let is_inside = self.function.as_ref().is_none_or(|function| function.contains(&at));
                let bytes = self.reader.at(at).filter(|_| is_inside);
                let Some((effect, length)) = bytes.and_then(|bytes| P::step(at, bytes, &mut state)) else {
                    match arrive(self, Arrived::RunsOut) {
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
                        if let Some(target) = target.filter(|target| self.is_inner(*target)) {
                            self.inner.push(target);
                        }
                        comes_back = !target.is_some_and(|target| self.never_returns::<P, N>(target, &state));
                        match target.and_then(|target| self.piece::<P, N>(target, &state, Some(next))) {
                            Some(after) => state = after,
                            None => after_call::<P, N>(&mut state),
                        }
                        let is_goal = self.goal == Some(Goal { at: next, returned: true });
                        is_goal.then(|| arrive(self, Arrived::At(&state))).flatten()
                    }
                    Effect::Returns => arrive(self, Arrived::Returns(&state)),
                    Effect::MayReturn => {
                        let mut taken = state;
                        taken.mode.takes = true;
                        match P::step(at, bytes.unwrap_or_default(), &mut taken) {
                            Some((Effect::Returns, _)) => arrive(self, Arrived::Returns(&taken)),
                            _ => None,
                        }
                    }
                    Effect::Jumps(target) | Effect::MayJump(target) if self.leaves(target) => {
                        arrive(self, Arrived::Leaves(&state, Some(target)))
                    }
                    Effect::JumpsAnywhere => arrive(self, Arrived::LeavesAnywhere(&state)),
                    Effect::Ends => arrive(self, Arrived::RunsOut),
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
                        if !self.leaves(target) && self.is_new::<P, N>(target, &state) {
                            branches.push((target, state));
                        }
                        at = next;
                    }
                    Effect::Jumps(target) if !self.leaves(target) && self.is_new::<P, N>(target, &state) => {
                        (at, falls) = (target, false);
                    }
                    _ => break,
                }
            }
        }
        None
    }

    /// Whether a jump leaves the function for another one, or begins it anew. A jump into the
    /// middle of another is one inside hand-written code that has several labels.
    fn leaves(&self, target: Avma) -> bool {
        match &self.function {
            Some(function) if function.contains(&target) => function.start == target,
            Some(_) => true,
            None => false,
        }
    }

    /// Where the frame is: a callee may take its arguments off the stack, which is not seen where it is called;
    /// what a frame pointer tells holds all the same.
    fn frame<P: Processor<N>, const N: usize>(&self, state: &State) -> Option<Place> {
        let frame_pointers = self.bases.iter().filter(|base| **base != P::STACK_POINTER);
        let of_frame = frame_pointers
            .filter_map(|base| state.place(*base))
            .find(|place| place.register == P::STACK_POINTER);
        of_frame.or_else(|| state.place(P::STACK_POINTER))
    }

    /// Whether branches lead to a place, with the same frame.
    fn is_known<P: Processor<N>, const N: usize>(&self, at: Avma, state: &State) -> bool {
        let index = self.targets.binary_search_by_key(&at, |(target, _)| *target);
        let known = index.ok().and_then(|index| self.targets.get(index));
        known.is_some_and(|(_, before)| *before == self.frame::<P, N>(state))
    }

    /// Notes a place; whether it is the first time, and there is room.
    fn is_new<P: Processor<N>, const N: usize>(&mut self, at: Avma, state: &State) -> bool {
        let sp = self.frame::<P, N>(state);
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

    /// Whether a call leads into the function itself, not to its beginning, and that was not seen before.
    fn is_inner(&self, target: Avma) -> bool {
        let is_inside = self
            .function
            .as_ref()
            .is_some_and(|function| function.contains(&target) && function.start != target);
        self.goes_on && is_inside && self.inner.len() < INNER_MAX && !self.inner.contains(&target)
    }

    /// Whether one more place can be remembered.
    fn has_room(&self) -> bool {
        self.targets.len() < self.targets_max
    }

    /// The state after a piece of code that ends in a return soon, without branches or calls:
    /// the machine outliner puts parts of prologues and epilogues into such functions.
    /// `returns_to` is what a call to it leaves as return address.
    fn piece<P: Processor<N>, const N: usize>(
        &mut self,
        mut at: Avma,
        before: &State,
        returns_to: Option<Avma>,
    ) -> Option<State> {
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

/// Makes the state before a call of an ordinary function that after it. In place: code is full of
/// calls.
pub(super) fn after_call<P: Processor<N>, const N: usize>(state: &mut State) {
    let one = |register: u8| 1u32 << register;
    let kept = P::SAVED.iter().filter(|saved| Some(**saved) != P::LINK);
    let kept = kept.fold(one(P::STACK_POINTER), |kept, saved| kept | one(*saved));
    state.keep_only(kept);
}

/// A bit for each register.
const _: () = assert!(REGISTERS <= u32::BITS as usize);
