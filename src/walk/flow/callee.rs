//! Whether a called function ever returns. Input: where it begins, code, and the bounds of functions;
//! output: yes, or that no path through it leads to a return. Not for: functions without known bounds, and jumps
//! to other functions, which are assumed to return.
//!
//! Behind a call that does not return are other blocks of the function, with another frame, or data.

use super::paths::{Arrived, Paths, function_around};
use super::state::{Place, State, Value};
use crate::addr::Avma;
use crate::walk::processor::Processor;

/// Most instructions of one callee that are followed.
const STEPS_MAX: u32 = 256;
/// Most nested callees: a function that reports, one that ends, and the jump that it ends with.
const DEPTH_MAX: u32 = 3;

impl Paths<'_> {
    /// Whether the function at `target`, which is called with `state`, is known not to return.
    pub(super) fn never_returns<P: Processor>(&mut self, target: Avma, state: &State) -> bool {
        if !P::EVERY_PATH || self.callees.depth == DEPTH_MAX {
            return false;
        }
        if let Some((_, never)) = self.callees.known.iter().find(|(at, _)| *at == target) {
            return *never;
        }
        // Until it is known: a function that calls itself.
        self.callees.known.push((target, false));
        let function = function_around(target, self.code).filter(|function| function.start == target);
        let Some(function) = function else { return false };
        let mut paths = Paths::new::<P>(Some(function), self.code);
        let steps = STEPS_MAX.min(self.callees.left);
        (paths.left, paths.callees.left) = (steps, self.callees.left - steps);
        paths.callees.depth = self.callees.depth + 1;
        let mut at_entry = State::new();
        at_entry.mode.t32 = state.mode.t32;
        let comes_back = paths.follow::<P, (), _>(target, at_entry, |_, arrived| match arrived {
            Arrived::Returns(state) if leaves_stack::<P>(state) => None,
            Arrived::At(_) => None,
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

/// Whether a stack pointer was loaded from elsewhere than the stack, and where this was called from was not
/// saved: `longjmp` returns so, to another frame. Code that switches tasks saves it, and returns.
fn leaves_stack<P: Processor>(state: &State) -> bool {
    let is_other = |place: Place| place.register != P::STACK_POINTER;
    let link = P::LINK.map(Value::First);
    let saves_link = state.stores().any(|(_, value)| Some(value) == link);
    let leaves = match state.get(P::STACK_POINTER) {
        Value::Loaded(place) | Value::At(place) => is_other(place),
        Value::First(register) => register != P::STACK_POINTER,
        Value::Number(_) | Value::Unknown => false,
    };
    leaves && !saves_link
}
