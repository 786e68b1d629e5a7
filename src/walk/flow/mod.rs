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
//! Every way is bounded by [`STEPS_MAX`] instructions in all; what a processor's instructions
//! do is in `intel/instructions.rs` and `aarch64/instructions.rs`.

pub(super) mod state;
#[cfg(test)]
mod tests;

use std::ops::Range;

use super::processor::Processor;
use crate::addr::Avma;
use crate::binary::frame_rule::{Cfa, Column, Row};
use crate::walk::Code;
use state::REGISTERS;
pub(super) use state::{Effect, Place, State, Value};

/// Most instructions that are followed for one row, over all ways.
pub(super) const STEPS_MAX: u32 = 2048;
/// Most places that branches lead to.
const TARGETS_MAX: usize = 256;
/// Most instructions of a callee that are followed: pieces of functions that LLVM's machine
/// outliner made are that short.
const PIECE_MAX: u32 = 16;

/// The row at `at`, by the ways from there to a return. `returned`: a call has just come
/// back, so that a link register holds nothing of the caller.
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
    ways.follow::<P, _, N, _>(at, state, |ways, arrived| match arrived {
        Arrived::Returns(state) => row_at_return::<P, N>(state),
        Arrived::Leaves(state, _) if !P::JUMPS_KEEP_LINK && !has_given_back::<P, N>(state) => None,
        Arrived::Leaves(state, target) => {
            let state = match ways.piece::<P, N>(target?, *state, None) {
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
        Arrived::At(_) => None,
    })
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
    P::BASES.iter().find_map(|bases| {
        let row = |state: &State| row_in_function::<P, N>(state, bases);
        on_all_ways::<P, _, N>((entry, at), returned, bases, code, row, is_same_frame::<P, N>)
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
    on_all_ways::<P, _, N>((entry, at), returned, bases, code, distance, |one, other| one == other)
}

/// What `tell` says of the state at `at`, if every way from `entry` that arrives there says the same, and
/// has the same place in one of the registers `bases` wherever two ways meet.
fn on_all_ways<P: Processor<N>, T, const N: usize>(
    (entry, at): (Avma, Avma),
    returned: bool,
    bases: &'static [u8],
    code: &dyn Code,
    tell: impl Fn(&State) -> Option<T>,
    is_same: impl Fn(&T, &T) -> bool,
) -> Option<T> {
    let function = function_around(if returned { Avma(at.0.wrapping_sub(1)) } else { at }, code);
    if function.as_ref().is_some_and(|function| !function.contains(&entry)) {
        return None;
    }
    let mut ways = Ways { bases, ..Ways::new::<P, N>(function, code) };
    let (at, (entry, state)) = (P::begin(at).0, P::begin(entry));
    ways.goal = Some(Goal { at, returned });
    let (mut found, mut differ) = (None, false);
    ways.follow::<P, (), N, _>(entry, state, |_, arrived| {
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
    found.filter(|_| !differ && !ways.differ)
}

/// Whether any way from a function's entry leads to `at`.
pub(super) fn arrives<P: Processor<N>, const N: usize>(
    entry: Avma,
    at: Avma,
    returned: bool,
    code: &dyn Code,
) -> bool {
    let mut ways = Ways::new::<P, N>(None, code);
    let (at, (entry, state)) = (P::begin(at).0, P::begin(entry));
    ways.goal = Some(Goal { at, returned });
    let found = ways
        .follow::<P, (), N, _>(entry, state, |_, arrived| matches!(arrived, Arrived::At(_)).then_some(()));
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
    arrives && ends && !ways.differ
}

/// The bounds of the function that an address is in, where they are known.
pub(super) fn function_around(at: Avma, code: &dyn Code) -> Option<Range<Avma>> {
    code.function(at).filter(|function| function.contains(&at))
}

/// Where a way has come to.
enum Arrived<'a> {
    Returns(&'a State),
    /// At a jump out of the function.
    Leaves(&'a State, Option<Avma>),
    LeavesAnywhere(&'a State),
    /// At the goal.
    At(&'a State),
}

/// The instruction that ways are to arrive at. Where a call has just come back to only that
/// call leads; what jumps there may be on another way.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Goal {
    at: Avma,
    returned: bool,
}

struct Ways<'c> {
    function: Option<Range<Avma>>,
    /// Registers that a frame is counted from, the first that can be before others.
    bases: &'static [u8],
    goal: Option<Goal>,
    code: &'c dyn Code,
    /// The places that branches lead to, and where the frame was there first: what the frame
    /// pointer was, or else the stack pointer.
    targets: Vec<(Avma, Option<Place>)>,
    /// Two ways came to one place with different frames: one of them is never taken. Or
    /// there were more places than are remembered.
    differ: bool,
    left: u32,
}

impl<'c> Ways<'c> {
    fn new<P: Processor<N>, const N: usize>(function: Option<Range<Avma>>, code: &'c dyn Code) -> Ways<'c> {
        let bases = P::BASES.first().copied().unwrap_or_default();
        Ways { function, bases, goal: None, code, targets: Vec::new(), differ: false, left: STEPS_MAX }
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
            loop {
                if self.goal == Some(Goal { at, returned: false }) {
                    match arrive(self, Arrived::At(&state)) {
                        None => break,
                        found => return found,
                    }
                }
                self.left = self.left.checked_sub(1)?;
                if self.function.as_ref().is_some_and(|function| !function.contains(&at)) {
                    break;
                }
                let Some(bytes) = self.code.code(at) else { break };
                let Some((effect, length)) = P::step(at, bytes, &mut state) else { break };
                let next = at + length;
                let found = match effect {
                    Effect::Plain => None,
                    Effect::Calls(target) => {
                        let piece = target.and_then(|target| self.piece::<P, N>(target, state, Some(next)));
                        state = piece.unwrap_or_else(|| after_call::<P, N>(state));
                        let is_goal = self.goal == Some(Goal { at: next, returned: true });
                        is_goal.then(|| arrive(self, Arrived::At(&state))).flatten()
                    }
                    Effect::Returns => arrive(self, Arrived::Returns(&state)),
                    Effect::MayReturn => {
                        let mut taken = state;
                        taken.mode.takes = true;
                        match P::step(at, bytes, &mut taken) {
                            Some((Effect::Returns, _)) => arrive(self, Arrived::Returns(&taken)),
                            _ => None,
                        }
                    }
                    Effect::Jumps(target) | Effect::MayJump(target) if self.leaves(target) => {
                        arrive(self, Arrived::Leaves(&state, Some(target)))
                    }
                    Effect::JumpsAnywhere => arrive(self, Arrived::LeavesAnywhere(&state)),
                    _ => None,
                };
                if found.is_some() {
                    return found;
                }
                match effect {
                    Effect::Plain | Effect::Calls(_) | Effect::MayReturn => at = next,
                    Effect::MayJump(target) => {
                        if !self.leaves(target) && self.is_new::<P, N>(target, &state) {
                            branches.push((target, state));
                        }
                        at = next;
                    }
                    Effect::Jumps(target) if !self.leaves(target) && self.is_new::<P, N>(target, &state) => {
                        at = target;
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

    /// Notes a place; whether it is the first time, and there is room.
    fn is_new<P: Processor<N>, const N: usize>(&mut self, at: Avma, state: &State) -> bool {
        // A callee may take its arguments off the stack, which is not seen where it is called: what a
        // frame pointer tells holds all the same.
        let frame_pointers = self.bases.iter().filter(|base| **base != P::STACK_POINTER);
        let of_frame = frame_pointers
            .filter_map(|base| state.place(*base))
            .find(|place| place.register == P::STACK_POINTER);
        let sp = of_frame.or_else(|| state.place(P::STACK_POINTER));
        if let Some((_, before)) = self.targets.iter().find(|(target, _)| *target == at) {
            self.differ |= *before != sp;
            return false;
        }
        let has_room = self.targets.len() < TARGETS_MAX;
        if has_room {
            self.targets.push((at, sp));
        }
        self.differ |= !has_room;
        has_room
    }

    /// The state after a piece of code that ends in a return soon, without branches or calls:
    /// the machine outliner puts parts of prologues and epilogues into such functions.
    /// `returns_to` is what a call to it leaves as return address.
    fn piece<P: Processor<N>, const N: usize>(
        &mut self,
        mut at: Avma,
        mut state: State,
        returns_to: Option<Avma>,
    ) -> Option<State> {
        if let (Some(_), Some(link)) = (returns_to, P::LINK) {
            state.set(link, Value::Unknown);
        } else if let (Some(_), None) = (returns_to, P::LINK) {
            return None;
        }
        for _ in 0..PIECE_MAX {
            self.left = self.left.checked_sub(1)?;
            let (effect, length) = P::step(at, self.code.code(at)?, &mut state)?;
            match effect {
                Effect::Plain => at = at + length,
                Effect::Returns => return Some(state),
                _ => return None,
            }
        }
        None
    }
}

/// The state after a call of an ordinary function.
pub(super) fn after_call<P: Processor<N>, const N: usize>(mut state: State) -> State {
    for register in (0..REGISTERS as u8).filter(|number| *number != P::STACK_POINTER) {
        if !P::SAVED.contains(&register) || Some(register) == P::LINK {
            state.set(register, Value::Unknown);
        }
    }
    state
}

/// The row at the start, from the state when a function returns: its stack pointer is the
/// canonical frame address, below which calls of x86_64 have put the return address.
pub(super) fn row_at_return<P: Processor<N>, const N: usize>(state: &State) -> Option<Row<N>> {
    let sp = state.place(P::STACK_POINTER)?;
    let cfa = sp.plus(P::pushed_by_call());
    let mut row = Row::new(Cfa::Register(cfa.register, cfa.offset));
    let from = |place: Place| {
        (place.register == cfa.register).then(|| place.offset.checked_sub(cfa.offset)).flatten()
    };
    for register in P::SAVED {
        let column = match state.get(*register) {
            Value::First(first) if first == *register => Some(Column::Same),
            Value::First(first) => Some(Column::In(first)),
            Value::Loaded(place) => from(place).map(Column::At),
            Value::At(place) => from(place).map(Column::Is),
            Value::Number(_) | Value::Unknown => None,
        };
        set_column::<P, N>(&mut row, *register, column)?;
    }
    if P::LINK.is_none() {
        row.columns[P::RETURN_COLUMN] = Column::At(-P::pushed_by_call());
    }
    Some(row)
}

/// The row where the state is `state`, which was followed from the function's entry. Its CFA is counted
/// from the first of `bases` that leads to it.
pub(super) fn row_in_function<P: Processor<N>, const N: usize>(
    state: &State,
    bases: &[u8],
) -> Option<Row<N>> {
    let above = P::pushed_by_call();
    // Bytes from the stack pointer at the entry to what a register holds now: any, by hostile code.
    let depth = |register: u8| {
        let place = state.place(register)?;
        (place.register == P::STACK_POINTER).then_some(place.offset)
    };
    // A callee may take its arguments off the stack (Swift's do), which the call does not show.
    let (base, offset) = bases.iter().find_map(|register| Some((*register, depth(*register)?)))?;
    let mut row = Row::new(Cfa::Register(base, above.checked_sub(offset)?));
    let stores = &state.stores[..state.stored];
    for register in P::SAVED {
        let first = Value::First(*register);
        let stored = || {
            let (place, _) = stores.iter().find(|(_, value)| *value == first)?;
            let from_cfa = place.offset.checked_sub(above)?;
            (place.register == P::STACK_POINTER).then_some(Column::At(from_cfa))
        };
        // Where a register was stored it may have changed since, on another way: a link register
        // has by every call. Where the stack pointer is not known (an alloca) the frame is still there.
        let is_there = |column: &Column| match (column, depth(P::STACK_POINTER)) {
            (Column::At(at), Some(sp)) => above + at >= sp,
            (Column::At(_), None) => P::LINK.is_some() && base != P::STACK_POINTER,
            _ => false,
        };
        let copied = || P::SAVED.iter().find(|other| state.get(**other) == first).map(|n| Column::In(*n));
        let column = match state.get(*register) {
            value if value == first => stored().filter(is_there).or(Some(Column::Same)),
            _ => stored().or_else(copied),
        };
        set_column::<P, N>(&mut row, *register, column)?;
    }
    if P::LINK.is_none() {
        row.columns[P::RETURN_COLUMN] = Column::At(-P::pushed_by_call());
    }
    Some(row)
}

/// Enters what is known of a register. Without the frame pointer or the return address there
/// is no row; others are only needed by rare rows of callers.
fn set_column<P: Processor<N>, const N: usize>(
    row: &mut Row<N>,
    register: u8,
    column: Option<Column>,
) -> Option<()> {
    let needed = register == P::FRAME_POINTER || Some(register) == P::LINK;
    if column.is_none() && needed {
        return None;
    }
    *row.columns.get_mut(usize::from(register))? = column.unwrap_or(Column::Undefined);
    Some(())
}
