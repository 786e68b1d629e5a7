//! Targets of jumps out of a function: tail calls and split-off parts. Input: its entry, code, and the bounds of
//! functions; output: the targets, or that some are unknown. Not for: functions without known bounds.

use super::paths::{PathEnd, Paths, function_around};
use super::state::FlowState;
use crate::addr::Avma;
use crate::walk::Code;
use crate::walk::processor::Processor;

/// Limit on functions that lead to each other by jumps.
const HOPS_MAX: usize = 16;

/// Whether code entered at `from` may reach the function around `to` by jumps alone. Also `true` if a jump target
/// is unknown.
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
