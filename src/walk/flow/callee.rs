//! Whether a function that is called ever comes back. Input: where it begins, code, and the bounds of functions;
//! output: yes, or that no way through it leads to a return. Not for: functions without known bounds, and jumps
//! to other functions, which are taken to come back.
//!
//! Behind a call that does not come back stand other blocks of the function, with another frame, or data.

use super::{Arrived, Place, State, Value, Ways, function_around};
use crate::addr::Avma;
use crate::walk::processor::Processor;

/// Most instructions of one callee that are followed, and of all of them for one row.
const STEPS_MAX: u32 = 256;
const ALL_STEPS_MAX: u32 = 4096;
/// Most callees inside each other: a function that reports, one that ends, and the jump that it ends with.
const DEPTH_MAX: u32 = 3;

/// What was found out of callees.
#[derive(Clone, Debug)]
pub(super) struct Callees {
    known: Vec<(Avma, bool)>,
    depth: u32,
    left: u32,
}

impl Default for Callees {
    fn default() -> Callees {
        Callees { known: Vec::new(), depth: 0, left: ALL_STEPS_MAX }
    }
}

impl Ways<'_> {
    /// Whether the function at `target`, which is called with `state`, is known not to return.
    pub(super) fn never_returns<P: Processor<N>, const N: usize>(
        &mut self,
        target: Avma,
        state: &State,
    ) -> bool {
        if !P::EVERY_WAY || self.callees.depth == DEPTH_MAX {
            return false;
        }
        if let Some((_, never)) = self.callees.known.iter().find(|(at, _)| *at == target) {
            return *never;
        }
        // Until it is known: a function that calls itself.
        self.callees.known.push((target, false));
        let function = function_around(target, self.code).filter(|function| function.start == target);
        let Some(function) = function else { return false };
        let mut ways = Ways::new::<P, N>(Some(function), self.code);
        let steps = STEPS_MAX.min(self.callees.left);
        (ways.left, ways.callees.left) = (steps, self.callees.left - steps);
        ways.callees.depth = self.callees.depth + 1;
        let mut at_entry = State::new();
        at_entry.mode.t32 = state.mode.t32;
        let comes_back = ways.follow::<P, (), N, _>(target, at_entry, |_, arrived| match arrived {
            Arrived::Returns(state) if leaves_stack::<P, N>(state) => None,
            Arrived::At(_) => None,
            _ => Some(()),
        });
        let never = comes_back.is_none() && ways.left > 0 && ways.has_room();
        self.callees.left = ways.callees.left + ways.left;
        if let Some(known) = self.callees.known.iter_mut().find(|(at, _)| *at == target) {
            known.1 = never;
        }
        never
    }
}

/// Whether a stack pointer was loaded from elsewhere than the stack, and where this was called from was not
/// saved: `longjmp` returns so, to another frame. What switches tasks saves it, and comes back.
fn leaves_stack<P: Processor<N>, const N: usize>(state: &State) -> bool {
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
