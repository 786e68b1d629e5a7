//! The effects of 32-bit Arm instructions on the stack pointer and saved registers, common to A32 and T32.
//! `a32.rs`, `t32.rs` and `t32_wide.rs` decode the encodings.
//!
//! Registers are numbered as in DWARF, which matches the encodings. Unknown instructions write an unknown value to
//! their destination. A conditional instruction may not have been executed: its results are unknown, and a return
//! is [`Effect::MayReturn`].
//!
//! Encodings: Arm Architecture Reference Manual, Armv7-A and Armv7-R edition (DDI 0406), A5 and A6.

use super::registers::SP;
use super::{a32, t32};
use crate::addr::Avma;
use crate::walk::flow::state::{Effect, FlowState};

/// `AL`: always.
const ALWAYS: u8 = 14;

/// Implements [`Processor::step`](crate::walk::processor::Processor::step).
pub(super) fn step(at: Avma, bytes: &[u8], state: &mut FlowState) -> Option<(Effect, u64)> {
    let takes = std::mem::take(&mut state.mode.takes);
    let it = state.mode.it;
    let (effect, length) = if state.mode.t32 {
        state.mode.it = after(it);
        let half = u16::from_le_bytes(*bytes.first_chunk()?);
        let is_wide = half >> 11 > 0b11100;
        let wide = || Some(u16::from_le_bytes(*bytes.get(2..)?.first_chunk()?));
        let second = if is_wide { Some(wide()?) } else { None };
        let execute = |state: &mut FlowState| t32::execute(at, bytes, half, second, state);
        let is_in_block = it & 0xf != 0;
        let condition = if is_in_block && !takes { it >> 4 } else { ALWAYS };
        let effect = under_condition(condition, state, execute);
        if !is_in_block || t32::sets_flags_in_block(half, second) {
            state.mode.assumed = None;
        }
        (effect, if is_wide { 4 } else { 2 })
    } else {
        let word = u32::from_le_bytes(*bytes.first_chunk()?);
        let condition = if takes { ALWAYS } else { (word >> 28) as u8 };
        let effect = under_condition(condition, state, |state| a32::execute(at, bytes, word, state));
        if !matches!(effect, Effect::Forks(_)) && !a32::keeps_flags(word) {
            state.mode.assumed = None;
        }
        (effect, 4)
    };
    if let Effect::Forks(_) = effect {
        state.mode.it = it;
    }
    Some((effect, length))
}

/// `ITSTATE` after the next instruction (DDI 0406, A2.5.2).
fn after(it: u8) -> u8 {
    if it & 0b111 == 0 { 0 } else { it & 0xe0 | it << 1 & 0x1f }
}

/// The effect of an instruction with a condition that may not hold.
fn under_condition(
    condition: u8,
    state: &mut FlowState,
    execute: impl FnOnce(&mut FlowState) -> Effect,
) -> Effect {
    if condition >= ALWAYS || state.mode.assumed == Some(condition) {
        return execute(state);
    }
    if state.mode.assumed == Some(condition ^ 1) {
        return Effect::Plain;
    }
    let mut executed = *state;
    match execute(&mut executed) {
        Effect::Returns => Effect::MayReturn,
        Effect::Jumps(target) => Effect::MayJump(target),
        Effect::Calls(_) => {
            merge(state, &executed);
            Effect::Calls(None)
        }
        // Early return epilogues: one instruction removes part of the frame, the next returns.
        Effect::Plain if executed.get(SP) != state.get(SP) => Effect::Forks(condition),
        Effect::Plain => {
            merge(state, &executed);
            Effect::Plain
        }
        other @ (Effect::MayJump(_) | Effect::MayReturn | Effect::Forks(_)) => other,
        // The other path continues.
        Effect::JumpsAnywhere | Effect::Ends => Effect::Plain,
    }
}

/// Keeps what holds whether an instruction was executed or not.
fn merge(state: &mut FlowState, executed: &FlowState) {
    state.merge(executed);
    state.mode.it = executed.mode.it;
}
