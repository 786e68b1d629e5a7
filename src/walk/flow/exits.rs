//! Where jumps out of a function lead: its tail calls, and parts of it that were split off. Input: where it begins,
//! code, and the bounds of functions; output: the targets, or that they are not all known. Not for: functions
//! without known bounds.

use super::paths::{Arrived, Paths, function_around};
use super::state::State;
use crate::addr::Avma;
use crate::walk::Code;
use crate::walk::processor::Processor;

/// Most functions that lead to each other by jumps.
const HOPS_MAX: usize = 16;

/// Whether code that is entered at `from` may get into the function around `to` by jumps alone. `true` also
/// where a jump leads to a place that is not known.
pub(in crate::walk) fn may_jump_into<P: Processor>(from: Avma, to: Avma, code: &dyn Code) -> bool {
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

/// The places outside the function around `at` that jumps from there lead to, with the bit of the
/// instruction set; `None` if not all are known.
fn exits<P: Processor>(at: Avma, state: State, code: &dyn Code) -> Option<Vec<Avma>> {
    let function = function_around(at, code)?;
    let mut paths = Paths::new::<P>(Some(function), code);
    let mut targets = Vec::new();
    let unknown = paths.follow::<P, (), _>(at, state, |_, arrived| match arrived {
        Arrived::Leaves(state, Some(target)) => {
            targets.push(Avma(target.0 | u64::from(state.mode.t32)));
            None
        }
        Arrived::Leaves(_, None) | Arrived::LeavesAnywhere(_) | Arrived::RunsOut => Some(()),
        Arrived::Returns(_) | Arrived::At(_) => None,
    });
    (unknown.is_none() && paths.left > 0 && paths.has_room()).then_some(targets)
}
