//! Whether a function that is called comes back. Input: its entry, code; output: yes, or that it is not known.
//! Not for: functions that are called through a register or a table.
//!
//! One that does not return has no `ret` that a way leads to without passing another call that does not
//! return. So a way from the entry to a return, with the stack pointer where it was, through no call but
//! of functions that come back themselves, is enough: it is in no other function, for only behind a call that
//! does not return does one follow another.

use super::{Intel, Way, stack_pointer};
use crate::addr::Avma;
use crate::walk::Code;
use crate::walk::flow::{self, Effect, Place, State};
use crate::walk::intel::instructions::{self, decode_of};

/// Most instructions that are followed of all callees of one row, and of one of them.
const ALL_STEPS_MAX: u32 = 2048;
const STEPS_MAX: u32 = 512;
/// Most branches of one that are remembered to be followed later.
const BRANCHES_MAX: usize = 16;
/// Most callees inside each other.
const DEPTH_MAX: u32 = 3;

/// What is known of callees.
#[derive(Debug)]
pub(super) struct Callees {
    known: Vec<(Avma, bool)>,
    left: u32,
    depth: u32,
}

impl Default for Callees {
    fn default() -> Callees {
        Callees { known: Vec::new(), left: ALL_STEPS_MAX, depth: 0 }
    }
}

impl Callees {
    /// Whether the function at `entry` is known to come back.
    pub(super) fn return_from<P: Intel<N>, const N: usize>(&mut self, entry: Avma, code: &dyn Code) -> bool {
        if let Some((_, known)) = self.known.iter().find(|(at, _)| *at == entry) {
            return *known;
        }
        if self.depth == DEPTH_MAX {
            return false;
        }
        // Until it is known: of a function that calls itself some way must do without.
        self.known.push((entry, false));
        self.depth += 1;
        let returns = self.leads_to_return::<P, N>(entry, code);
        self.depth -= 1;
        if let Some((_, known)) = self.known.iter_mut().find(|(at, _)| *at == entry) {
            *known = returns;
        }
        returns
    }

    fn leads_to_return<P: Intel<N>, const N: usize>(&mut self, entry: Avma, code: &dyn Code) -> bool {
        let mut branches = vec![Way { at: entry, state: State::new(), called: false }];
        let mut visited: Vec<Avma> = Vec::new();
        let mut left = STEPS_MAX;
        while let Some(Way { mut at, mut state, .. }) = branches.pop() {
            while !visited.contains(&at) {
                let fewer = left.checked_sub(1).zip(self.left.checked_sub(1));
                let Some((fewer, fewer_of_all)) = fewer else { return false };
                (left, self.left) = (fewer, fewer_of_all);
                visited.push(at);
                let Some(bytes) = code.code(at).filter(|bytes| !P::ends_thread(bytes)) else { break };
                let Some(instruction) = decode_of::<P, N>(bytes) else { break };
                let next = at + instruction.length as u64;
                let effect = instructions::execute::<P, N>(&instruction, at, &mut state);
                let sp = stack_pointer::<P, N>(&state);
                match effect {
                    Effect::Returns => {
                        // `ret n` takes arguments off, too.
                        let takes_off = instruction.opcode != 0xc3;
                        let is_back = |sp: Place| sp.register == P::STACK_POINTER && sp.offset == 0;
                        if !takes_off && sp.is_some_and(is_back) {
                            return true;
                        }
                        break;
                    }
                    _ if sp.is_none() => break,
                    Effect::Calls(Some(target)) if self.return_from::<P, N>(target, code) => {
                        flow::after_call::<P, N>(&mut state);
                        at = next;
                    }
                    Effect::Plain => at = next,
                    Effect::Jumps(target) => at = target,
                    Effect::MayJump(target) => {
                        if branches.len() < BRANCHES_MAX {
                            branches.push(Way { at: target, state, called: false });
                        }
                        at = next;
                    }
                    _ => break,
                }
            }
        }
        false
    }
}
