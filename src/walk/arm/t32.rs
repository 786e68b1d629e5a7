//! T32: 16-bit instructions; the 32-bit ones are in `t32_wide.rs`. Input: an instruction; output: its effect on
//! the state, and its target, as if its condition holds.
//!
//! Encodings: DDI 0406, A6.2 and A8.

use super::operations::{Access, exchange, literal, multiple, signed, sum, target, write};
use super::{LR, PC, SP, t32_wide};
use crate::addr::Avma;
use crate::walk::flow::state::{Effect, FlowState, Value};

/// Executes the instruction that starts with `half`, at address `at` and at the start of `bytes`.
pub(super) fn execute(
    at: Avma,
    bytes: &[u8],
    half: u16,
    second: Option<u16>,
    state: &mut FlowState,
) -> Effect {
    if let Some(second) = second {
        return t32_wide::execute(at, bytes, half, second, state);
    }
    let word = u32::from(half);
    let (low, middle) = (field(half, 0), field(half, 3));
    let by_bits_8 = field(half, 8);
    match half >> 11 {
        // lsls by 0 is a move
        0b00000 if half >> 6 & 0x1f == 0 => state.set(low, state.get(middle)),
        0b00000..=0b00010 => state.set(low, Value::Unknown),
        0b00011 => {
            let is_difference = half >> 9 & 1 == 1;
            let right = if half >> 10 & 1 == 1 {
                Value::Number((half >> 6 & 7).into())
            } else {
                state.get(field(half, 6))
            };
            let value = sum(state, middle, right, is_difference);
            state.set(low, value);
        }
        0b00100 => state.set(by_bits_8, Value::Number((half & 0xff).into())),
        // cmp
        0b00101 => {}
        0b00110 | 0b00111 => {
            let number = Value::Number((half & 0xff).into());
            let value = sum(state, by_bits_8, number, half >> 11 & 1 == 1);
            state.set(by_bits_8, value);
        }
        0b01000 if half >> 10 & 1 == 0 => computed(half, low, middle, state),
        0b01000 => return high(at, half, state),
        0b01001 => {
            let distance = i64::from(half & 0xff) * 4 + 4 - (at.0 & 2).cast_signed();
            state.set(by_bits_8, literal(bytes, distance));
        }
        // Register offset: str, strh, strb; all others load.
        0b01010 | 0b01011 => {
            if half >> 9 & 0b111 > 0b010 {
                state.set(low, Value::Unknown);
            }
        }
        0b01100 => access(low, middle, i64::from(half >> 6 & 0x1f) * 4).store(state),
        0b01101 => return access(low, middle, i64::from(half >> 6 & 0x1f) * 4).load(state),
        0b01110..=0b10001 => {
            if half >> 11 & 1 == 1 {
                state.set(low, Value::Unknown);
            }
        }
        0b10010 => access(by_bits_8, SP, i64::from(half & 0xff) * 4).store(state),
        0b10011 => return access(by_bits_8, SP, i64::from(half & 0xff) * 4).load(state),
        // adr
        0b10100 => state.set(by_bits_8, Value::Unknown),
        0b10101 => {
            let value = state.sum(SP, i64::from(half & 0xff) * 4);
            state.set(by_bits_8, value);
        }
        0b10110 | 0b10111 => return miscellaneous(at, half, state),
        0b11000 | 0b11001 => {
            let (is_load, list) = (half >> 11 & 1 == 1, half & 0xff);
            // A loaded base is not updated.
            let moves = !is_load || list >> by_bits_8 & 1 == 0;
            let size = 4 * i64::from(list.count_ones());
            return multiple(state, is_load, by_bits_8, list, 0, moves.then_some(size));
        }
        0b11010 | 0b11011 => {
            return match half >> 8 & 0xf {
                14 => Effect::Ends,
                // svc: the kernel, or a debugger, preserves all registers except the result.
                15 => {
                    state.set(0, Value::Unknown);
                    Effect::Plain
                }
                _ => Effect::MayJump(target(at.0 + 4, signed(word & 0xff, 8) * 2)),
            };
        }
        _ => return Effect::Jumps(target(at.0 + 4, signed(word & 0x7ff, 11) * 2)),
    }
    Effect::Plain
}

/// Whether an instruction in an IT block may change the flags: 16-bit instructions do so only if they compare (DDI
/// 0406, A6.2.2).
pub(super) fn sets_flags_in_block(half: u16, second: Option<u16>) -> bool {
    match second {
        // Data processing with the S bit, and instructions that write the flags directly.
        Some(second) => match half >> 9 & 0b11_1111 {
            0b11_0101 => half >> 4 & 1 == 1,
            0b11_1000..=0b11_1011 => second >> 15 == 1 || half >> 4 & 1 == 1,
            0b11_0111 | 0b11_1110 | 0b11_1111 => true,
            _ => half >> 8 & 0b11_1111 == 0b11_1010,
        },
        None => {
            half >> 11 == 0b00101
                || half & 0xff00 == 0x4500
                || matches!(half >> 6, 0b01_0000_1000 | 0b01_0000_1010 | 0b01_0000_1011)
                || half & 0xff80 == 0x4780
        }
    }
}

/// One of the eight low registers.
fn field(half: u16, from: u32) -> u8 {
    (half >> from & 7) as u8
}

fn access(register: u8, base: u8, distance: i64) -> Access {
    Access { register, base, distance, writes_back: false, is_before: true }
}

/// Executes data processing on two low registers.
fn computed(half: u16, to: u8, other: u8, state: &mut FlowState) {
    let value = match (half >> 6 & 0xf, state.get(other)) {
        // tst, cmp, cmn
        (8 | 10 | 11, _) => return,
        // rsbs from 0, mvns
        (9, Value::Number(number)) => Value::Number((number as u32).wrapping_neg().into()),
        (15, Value::Number(number)) => Value::Number((!(number as u32)).into()),
        _ => Value::Unknown,
    };
    state.set(to, value);
}

/// Executes instructions with access to all registers.
fn high(at: Avma, half: u16, state: &mut FlowState) -> Effect {
    let to = (half & 7 | half >> 4 & 8) as u8;
    let from = (half >> 3 & 0xf) as u8;
    match half >> 8 & 0b11 {
        0b00 if from != PC && to != PC => {
            let value = sum(state, to, state.get(from), false);
            state.set(to, value);
            Effect::Plain
        }
        0b00 => write(state, to, Value::Unknown),
        0b01 => Effect::Plain,
        0b10 if to == PC => exchange(at, from, state),
        0b10 => write(state, to, if from == PC { Value::Unknown } else { state.get(from) }),
        _ if half >> 7 & 1 == 1 => Effect::Calls(None),
        _ => exchange(at, from, state),
    }
}

fn miscellaneous(at: Avma, half: u16, state: &mut FlowState) -> Effect {
    match half >> 8 & 0xf {
        0b0000 => {
            let bytes = i64::from(half & 0x7f) * 4;
            let value = state.sum(SP, if half >> 7 & 1 == 1 { -bytes } else { bytes });
            state.set(SP, value);
        }
        // cbz, cbnz
        0b0001 | 0b0011 | 0b1001 | 0b1011 => {
            let distance = i64::from(half >> 2 & 0x3e | half >> 3 & 0x40);
            return Effect::MayJump(target(at.0 + 4, distance));
        }
        // Extensions; rev
        0b0010 | 0b1010 => state.set(field(half, 0), Value::Unknown),
        0b0100 | 0b0101 => {
            let list = half & 0xff | (half >> 8 & 1) << LR;
            let size = 4 * i64::from(list.count_ones());
            return multiple(state, false, SP, list, -size, Some(-size));
        }
        0b1100 | 0b1101 => {
            let list = half & 0xff | (half >> 8 & 1) << PC;
            let size = 4 * i64::from(list.count_ones());
            return multiple(state, true, SP, list, 0, Some(size));
        }
        // bkpt, except semihosting, which returns (Semihosting for AArch32 and AArch64, 2.3)
        0b1110 if half & 0xff != 0xab => return Effect::Ends,
        0b1110 => state.set(0, Value::Unknown),
        // it, with a nonzero mask
        0b1111 if half & 0xf != 0 => state.mode.it = half as u8,
        // cps, hints
        _ => {}
    }
    Effect::Plain
}
