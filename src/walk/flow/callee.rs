//! Whether a called function ever returns. Input: its entry, code, and the bounds of functions; output: yes, or
//! that no path through it leads to a return. Not for: functions without known bounds, and jumps to other
//! functions, which are assumed to return.
//!
//! After a noreturn call come other blocks of the function, with another frame, or data.

use super::paths::{PathEnd, Paths, function_around};
use super::state::{FlowState, RegisterOffset, Value};
use crate::addr::Avma;
use crate::walk::processor::Processor;

/// Limit on instructions followed per callee.
const STEPS_MAX: u32 = 256;
/// Limit on nested callees: a function that reports an error, one that exits, and its final jump.
const DEPTH_MAX: u32 = 3;

impl Paths<'_> {
    /// Whether the function at `target`, called with `state`, is known not to return.
    pub(super) fn never_returns<P: Processor>(&mut self, target: Avma, state: &FlowState) -> bool {
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
