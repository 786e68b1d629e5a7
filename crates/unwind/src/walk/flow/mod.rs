//! The caller of a function by its instructions: following them along their possible paths, with their effects on
//! the stack pointer, saved registers and the return address, gives the row at one of them. Input: code, and the
//! bounds of functions if known; output: a [`Row`]. Not for: anything that executes, or reads the stack.
//!
//! There are two ways to the same row, since a fact about one instruction holds on every path to it and from it
//! (unwind tables rely on that, too): [`before_return`] follows paths from the instruction to a return, where the
//! stack pointer and the return address are where they were at the call; [`since_entry`] follows paths from the
//! function's first instruction. Both work in prologues, in epilogues and between them.
//!
//! All paths together are limited to [`STEPS_MAX`](paths::STEPS_MAX) instructions, or [`LARGE_STEPS_MAX`] from the
//! entry of a larger function. The effects of instructions are in `intel/instructions.rs` and
//! `aarch64/instructions.rs`.

pub(super) mod paths;
#[cfg(test)]
mod tests;

use super::processor::{Processor, RowOf};
use crate::addr::{Avma, CodeAddress};
use crate::binary::frame_rule::{Cfa, Column, Row};
use crate::walk::Code;
use paths::{Goal, LARGE_STEPS_MAX, LARGE_TARGETS_MAX, PathEnd, Paths};

pub(super) use paths::{Effect, FlowState, RegisterOffset, Value, after_call, function_around};

/// The row at `at`, by the paths from there to a return: the first one found, or the common one if every path must
/// be followed. `returned`: a call has just returned, so the link register does not hold the caller.
pub(super) fn before_return<P: Processor>(at: Avma, returned: bool, code: &dyn Code) -> Option<RowOf<P>> {
    let (at, mut state) = P::begin(at);
    if let Some(link) = P::LINK.filter(|_| returned) {
        state.set(link, Value::Unknown);
    }
    // If the call does not return, the next instruction may belong to the next function.
    let function = function_around(if returned { Avma(at.0.wrapping_sub(1)) } else { at }, code);
    let mut paths = Paths::new::<P>(function, code);
    let (mut found, mut differ) = (None, false);
    let first = paths.follow::<P, _, _>(at, state, |paths, arrived| {
        let row = row_where_it_ends::<P>(paths, &arrived)?;
        if !P::EVERY_PATH {
            return Some(row);
        }
        // A subroutine inside a function returns there, and its code also continues to the end of the function.
        differ = found.as_ref().is_some_and(|found| !is_same_frame::<P>(found, &row));
        found = Some(row);
        differ.then(|| found.take()).flatten()
    });
    if P::EVERY_PATH { found.filter(|_| !differ) } else { first }
}

/// The row at the start of a path that leaves its function, from the state at its end.
fn row_where_it_ends<P: Processor>(paths: &mut Paths<'_>, arrived: &PathEnd<'_>) -> Option<RowOf<P>> {
    match *arrived {
        PathEnd::Returns(state) => row_at_return::<P>(state),
        PathEnd::Leaves(state, _) if !P::JUMPS_KEEP_LINK && !has_given_back::<P>(state) => None,
        PathEnd::Leaves(state, target) => {
            let state = match paths.piece::<P>(target?, state, None) {
                Some(state) => state,
                None => *state,
            };
            row_at_return::<P>(&state)
        }
        // Only code that has removed its frame, or never had one, leaves like this.
        PathEnd::LeavesAnywhere(state) => {
            let given_back = has_given_back::<P>(state);
            (given_back || P::JUMPS_KEEP_LINK && paths.function.is_none())
                .then(|| row_at_return::<P>(state))
                .flatten()
        }
        PathEnd::At(_) | PathEnd::RunsOut => None,
    }
}

/// Whether a path has removed its frame.
fn has_given_back<P: Processor>(state: &FlowState) -> bool {
    match P::LINK {
        Some(link) => matches!(state.get(link), Value::Loaded(_)),
        None => {
            let sp = state.place(P::STACK_POINTER);
            sp.is_some_and(|sp| sp.register != P::STACK_POINTER || sp.offset > 0)
        }
    }
}

/// The row at `at`, by the paths from its function's first instruction.
pub(super) fn since_entry<P: Processor>(
    entry: Avma,
    at: Avma,
    returned: bool,
    code: &dyn Code,
) -> Option<RowOf<P>> {
    let function = function_around(if returned { Avma(at.0.wrapping_sub(1)) } else { at }, code);
    let function = function.filter(|function| function.contains(&entry))?;
    let mut paths = Paths::new::<P>(Some(function), code);
    let (at, (entry, state)) = (P::begin(at).0, P::begin(entry));
    paths.goal = Some(Goal { at, returned });
    paths.follow::<P, _, _>(entry, state, |paths, arrived| match arrived {
        PathEnd::At(state) => row_in_function::<P>(state, paths.bases),
        _ => None,
    })
}

/// The row at `at`, by all paths from its function's first instruction, which must agree. The code after a
/// noreturn call belongs to another path or another function, so a single path may be one that is never taken.
/// Without the bounds of the function at `at`, any code may belong to it.
pub(super) fn since_entry_on_all_paths<P: Processor>(
    entry: Avma,
    at: Avma,
    returned: bool,
    code: &dyn Code,
) -> Option<RowOf<P>> {
    frame_on_all_paths::<P>((entry, at), returned, true, code)
}

/// The row at `at`, by all paths from `entry` without calls, so that they are in one function: without known
/// bounds, another function may start after a noreturn call.
pub(super) fn since_entry_past_no_call<P: Processor>(
    entry: Avma,
    at: Avma,
    returned: bool,
    code: &dyn Code,
) -> Option<RowOf<P>> {
    frame_on_all_paths::<P>((entry, at), returned, false, code)
}

fn frame_on_all_paths<P: Processor>(
    entry_and_at: (Avma, Avma),
    returned: bool,
    past_calls: bool,
    code: &dyn Code,
) -> Option<RowOf<P>> {
    let (entry, at) = entry_and_at;
    let is_known = || function_around(if returned { Avma(at.0.wrapping_sub(1)) } else { at }, code).is_some();
    let groups = if P::EVERY_PATH || is_known() { P::BASES } else { &P::BASES[..1] };
    groups.iter().find_map(|bases| {
        let row = |state: &FlowState| row_in_function::<P>(state, bases);
        let paths = (*bases, past_calls);
        on_all_paths::<P, _>((entry, at), returned, paths, code, row, is_same_frame::<P>)
    })
}

/// The distance in bytes from the stack pointer up to the frame pointer at `at`, by the paths from its function's
/// first instruction, which must agree.
pub(super) fn frame_pointer_on_all_paths<P: Processor>(
    entry: Avma,
    at: Avma,
    returned: bool,
    code: &dyn Code,
) -> Option<i64> {
    let distance = |state: &FlowState| {
        let since_entry = |register: u8| {
            let place = state.place(register)?;
            (place.register == P::STACK_POINTER).then_some(place.offset)
        };
        since_entry(P::FRAME_POINTER)?.checked_sub(since_entry(P::STACK_POINTER)?)
    };
    let bases = P::BASES.first()?;
    on_all_paths::<P, _>((entry, at), returned, (bases, true), code, distance, |one, other| one == other)
}

/// The result of `read` for the state at `at`, if all paths from `entry` agree on it, and on one of the registers
/// `bases` wherever two paths meet. `past_calls`: paths continue after calls.
fn on_all_paths<P: Processor, T>(
    (entry, at): (Avma, Avma),
    returned: bool,
    (bases, past_calls): (&'static [u8], bool),
    code: &dyn Code,
    read: impl Fn(&FlowState) -> Option<T>,
    is_same: impl Fn(&T, &T) -> bool,
) -> Option<T> {
    let function = function_around(if returned { Avma(at.0.wrapping_sub(1)) } else { at }, code);
    if function.as_ref().is_some_and(|function| !function.contains(&entry)) {
        return None;
    }
    let (at, (entry, state)) = (P::begin(at).0, P::begin(entry));
    let goal = Goal { at, returned };
    let paths = Paths::new::<P>(function, code);
    let paths = Paths { bases, goal: Some(goal), goes_on: P::EVERY_PATH, past_calls, ..paths };
    let large = Paths { left: LARGE_STEPS_MAX, targets_max: LARGE_TARGETS_MAX, ..paths.clone() };
    let (agreed, has_room) = agreed_value::<P, _>(paths, (entry, &state), &read, &is_same);
    if has_room { agreed } else { agreed_value::<P, _>(large, (entry, &state), &read, &is_same).0 }
}

/// The value that all paths agree on; and whether the limits allowed following them all.
fn agreed_value<P: Processor, T>(
    mut paths: Paths<'_>,
    (entry, of_entry): (Avma, &FlowState),
    read: &impl Fn(&FlowState) -> Option<T>,
    is_same: &impl Fn(&T, &T) -> bool,
) -> (Option<T>, bool) {
    let (mut found, mut differ) = (None, false);
    paths.follow::<P, (), _>(entry, *of_entry, |_, arrived| {
        let PathEnd::At(state) = arrived else { return None };
        let value = read(state);
        differ |= match (&found, &value) {
            (_, None) => true,
            (Some(found), Some(value)) => !is_same(found, value),
            (None, Some(_)) => false,
        };
        found = value.or(found.take());
        differ.then_some(())
    });
    // A jump target inside a function may be a subroutine with another frame.
    let inner = std::mem::take(&mut paths.inner);
    for target in inner {
        let mut from_call =
            Paths { bases: paths.bases, ..Paths::new::<P>(paths.function.clone(), paths.code) };
        from_call.goal = paths.goal;
        let mut state = P::begin(entry).1;
        state.mode.t32 = of_entry.mode.t32;
        from_call.follow::<P, (), _>(target, state, |_, arrived| {
            let PathEnd::At(state) = arrived else { return None };
            let value = read(state);
            differ |= !value.as_ref().zip(found.as_ref()).is_some_and(|(value, found)| is_same(value, found));
            None
        });
        differ |= from_call.left == 0;
    }
    differ |= paths.differ;
    // Unless every path is required, one arrival is enough.
    let is_cut = paths.is_full || paths.left == 0 && (P::EVERY_PATH || found.is_none());
    (found.filter(|_| !differ && !is_cut), differ || !is_cut)
}

/// Whether any path from a function's entry leads to `at` without saving the return address: a path that saves it
/// is in a function after a noreturn one.
pub(super) fn arrives<P: Processor>(entry: Avma, at: Avma, returned: bool, code: &dyn Code) -> bool {
    let mut paths = Paths::new::<P>(None, code);
    let (at, (entry, state)) = (P::begin(at).0, P::begin(entry));
    paths.goal = Some(Goal { at, returned });
    let is_saved =
        |state: &FlowState| state.stores().any(|(_, value)| P::LINK.map(Value::First) == Some(value));
    let found = paths.follow::<P, (), _>(entry, state, |_, arrived| match arrived {
        PathEnd::At(state) => (!is_saved(state)).then_some(()),
        _ => None,
    });
    found.is_some()
}

/// Whether two rows lead to the same caller.
pub(super) fn is_same_frame<P: Processor>(one: &RowOf<P>, other: &RowOf<P>) -> bool {
    let needed = |row: &RowOf<P>, register: u8| row.columns.as_ref().get(usize::from(register)).cloned();
    let registers = [Some(P::FRAME_POINTER), P::LINK];
    let same = |register: u8| needed(one, register) == needed(other, register);
    one.cfa == other.cfa && registers.into_iter().flatten().all(same)
}

/// Whether the function's code has terminated the chain of frames: it pushed a zero and created its frame record
/// there, so that its return address or its caller's frame pointer is that zero. By all paths from its entry to
/// `at`.
pub(super) fn ends_chain<P: Processor>(entry: Avma, at: Avma, returned: bool, code: &dyn Code) -> bool {
    let function = function_around(if returned { Avma(at.0.wrapping_sub(1)) } else { at }, code);
    let Some(function) = function.filter(|function| function.contains(&entry)) else { return false };
    let mut paths = Paths::new::<P>(Some(function), code);
    let (at, (entry, state)) = (P::begin(at).0, P::begin(entry));
    paths.goal = Some(Goal { at, returned });
    let (mut arrives, mut ends) = (false, true);
    paths.follow::<P, (), _>(entry, state, |_, arrived| {
        let PathEnd::At(state) = arrived else { return None };
        let record = state
            .place(P::FRAME_POINTER)
            .filter(|at| at.register == P::STACK_POINTER)
            .map(|at| at.plus(P::FRAME_RECORD_AT));
        let is_zero = |at: RegisterOffset| state.zero == Some(at);
        arrives = true;
        ends &= record
            .is_some_and(|record| is_zero(record) || is_zero(record.plus(P::POINTER_BYTES.cast_signed())));
        (!ends).then_some(())
    });
    arrives && ends && !paths.differ && !paths.is_full
}

/// Whether the code at an address is in the function that made the call, by known bounds: after a noreturn call
/// another function begins. `true` for a program counter, unless a function begins there.
pub(super) fn is_behind_own_call(address: CodeAddress, code: &dyn Code) -> bool {
    let at = address.at();
    let begins_image = code.entry(at) == Some(at);
    match function_around(address.lookup().at(), code) {
        Some(function) if address.is_return() => function.contains(&at),
        Some(function) => function.start != at,
        None => !(address.is_return() && begins_image),
    }
}

// ---- Builds rows from the state at an instruction: at the return of a function, or after following it from its
// entry. Input: a [`FlowState`]; output: a [`Row`].

/// The row at the start of a path, from the state at the function's return: its stack pointer is the canonical
/// frame address, below which x86_64 calls put the return address.
pub(crate) fn row_at_return<P: Processor>(state: &FlowState) -> Option<RowOf<P>> {
    let sp = state.place(P::STACK_POINTER)?;
    let cfa = sp.plus(P::pushed_by_call());
    let mut row = Row::new(Cfa::Register(cfa.register, cfa.offset));
    let from = |place: RegisterOffset| {
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
        set_column::<P>(&mut row, *register, column)?;
    }
    if P::LINK.is_none() {
        row.columns[P::RETURN_COLUMN] = Column::At(-P::pushed_by_call());
    }
    Some(row)
}

/// The row at an instruction, from the state there after following the function from its entry. Its CFA is
/// relative to the first of `bases` with a known offset.
pub(crate) fn row_in_function<P: Processor>(state: &FlowState, bases: &[u8]) -> Option<RowOf<P>> {
    let above = P::pushed_by_call();
    // Bytes from the stack pointer at the entry to a register's current value: any number in hostile code.
    let depth = |register: u8| {
        let place = state.place(register)?;
        (place.register == P::STACK_POINTER).then_some(place.offset)
    };
    // A callee may pop its arguments (Swift's do), which the call does not show.
    let (base, offset) = bases.iter().find_map(|register| Some((*register, depth(*register)?)))?;
    let mut row = Row::new(Cfa::Register(base, above.checked_sub(offset)?));
    for register in P::SAVED {
        let first = Value::First(*register);
        let stored = || {
            let (place, _) = state.stores().find(|(_, value)| *value == first)?;
            let from_cfa = place.offset.checked_sub(above)?;
            (place.register == P::STACK_POINTER).then_some(Column::At(from_cfa))
        };
        // A stored register may have changed since, on another path: every call changes the link register. If the
        // stack pointer is unknown (an alloca) the frame is still there.
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
        set_column::<P>(&mut row, *register, column)?;
    }
    if P::LINK.is_none() {
        row.columns[P::RETURN_COLUMN] = Column::At(-P::pushed_by_call());
    }
    Some(row)
}

/// Sets the column of a register. Without the frame pointer or the return address there is no row; other registers
/// are only needed by rare rows of callers.
fn set_column<P: Processor>(row: &mut RowOf<P>, register: u8, column: Option<Column>) -> Option<()> {
    let needed = register == P::FRAME_POINTER || Some(register) == P::LINK;
    if column.is_none() && needed {
        return None;
    }
    *row.columns.as_mut().get_mut(usize::from(register))? = column.unwrap_or(Column::Undefined);
    Some(())
}

// ---- Targets of jumps out of a function: tail calls and split-off parts. Input: its entry, code, and the bounds of
// functions; output: the targets, or that some are unknown. Not for: functions without known bounds.

/// Limit on functions that lead to each other by jumps.
const HOPS_MAX: usize = 16;

/// Whether code entered at `from` may reach the function around `to` by jumps alone. Also `true` if a jump target
/// is unknown.
pub(crate) fn may_jump_into<P: Processor>(from: Avma, to: Avma, code: &dyn Code) -> bool {
    let Some(wanted) = function_around(to, code) else { return true };
    let mut places = vec![from];
    let mut next = 0;
    while let Some(place) = places.get(next).copied() {
        next += 1;
        let (at, state) = P::begin(place);
        if wanted.contains(&at) {
            return true;
        }
        let Some(targets) = exits::<P>(at, state, code) else { return true };
        for target in targets {
            if !places.contains(&target) {
                places.push(target);
            }
        }
        if places.len() > HOPS_MAX {
            return true;
        }
    }
    false
}

/// The targets of jumps out of the function around `at`, with the bit of the instruction set; `None` if some are
/// unknown.
fn exits<P: Processor>(at: Avma, state: FlowState, code: &dyn Code) -> Option<Vec<Avma>> {
    let function = function_around(at, code)?;
    let mut paths = Paths::new::<P>(Some(function), code);
    let mut targets = Vec::new();
    let unknown = paths.follow::<P, (), _>(at, state, |_, arrived| match arrived {
        PathEnd::Leaves(state, Some(target)) => {
            targets.push(Avma(target.0 | u64::from(state.mode.t32)));
            None
        }
        PathEnd::Leaves(_, None) | PathEnd::LeavesAnywhere(_) | PathEnd::RunsOut => Some(()),
        PathEnd::Returns(_) | PathEnd::At(_) => None,
    });
    (unknown.is_none() && paths.left > 0 && paths.has_room()).then_some(targets)
}

// ---- Whether a called function ever returns.
//
// After a noreturn call come other blocks of the function, with another frame, or data.

/// Limit on instructions followed per callee.
const STEPS_MAX: u32 = 256;
/// Limit on nested callees: a function that reports an error, one that exits, and its final jump.
const DEPTH_MAX: u32 = 3;

impl Paths<'_> {
    /// Whether the function at `target`, called with `state`, is known not to return.
    fn never_returns<P: Processor>(&mut self, target: Avma, state: &FlowState) -> bool {
        if !P::EVERY_PATH || self.callees.depth == DEPTH_MAX {
            return false;
        }
        if let Some((_, never)) = self.callees.known.iter().find(|(at, _)| *at == target) {
            return *never;
        }
        // Provisional answer, for a function that calls itself.
        self.callees.known.push((target, false));
        let function = function_around(target, self.code).filter(|function| function.start == target);
        let Some(function) = function else { return false };
        let mut paths = Paths::new::<P>(Some(function), self.code);
        let steps = STEPS_MAX.min(self.callees.left);
        (paths.left, paths.callees.left) = (steps, self.callees.left - steps);
        paths.callees.depth = self.callees.depth + 1;
        let mut at_entry = FlowState::new();
        at_entry.mode.t32 = state.mode.t32;
        let comes_back = paths.follow::<P, (), _>(target, at_entry, |_, arrived| match arrived {
            PathEnd::Returns(state) if leaves_stack::<P>(state) => None,
            PathEnd::At(_) => None,
            _ => Some(()),
        });
        let never = comes_back.is_none() && paths.left > 0 && paths.has_room();
        self.callees.left = paths.callees.left + paths.left;
        if let Some(known) = self.callees.known.iter_mut().find(|(at, _)| *at == target) {
            known.1 = never;
        }
        never
    }
}

/// Whether the stack pointer was loaded from elsewhere than the stack, and the return address was not saved:
/// `longjmp` leaves to another frame like this. Code that switches tasks saves it, and returns.
fn leaves_stack<P: Processor>(state: &FlowState) -> bool {
    let is_other = |place: RegisterOffset| place.register != P::STACK_POINTER;
    let link = P::LINK.map(Value::First);
    let saves_link = state.stores().any(|(_, value)| Some(value) == link);
    let leaves = match state.get(P::STACK_POINTER) {
        Value::Loaded(place) | Value::At(place) => is_other(place),
        Value::First(register) => register != P::STACK_POINTER,
        Value::Number(_) | Value::Unknown => false,
    };
    leaves && !saves_link
}
