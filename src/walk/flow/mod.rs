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

mod callee;
mod exits;
mod paths;
mod rows;
pub(super) mod state;
#[cfg(test)]
mod tests;
mod value;

use super::processor::{Processor, RowOf};
use crate::addr::{Avma, CodeAddress};
use crate::walk::Code;
pub(super) use exits::may_jump_into;
use paths::{Goal, LARGE_STEPS_MAX, LARGE_TARGETS_MAX, PathEnd, Paths};
pub(super) use paths::{after_call, function_around};
pub(super) use rows::{row_at_return, row_in_function};
pub(super) use state::{Effect, FlowState, RegisterOffset, Value};

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
