//! T32: instructions of 16 bits (`execute`) and of 32 bits (`execute_wide`). Input: an instruction; output: its
//! effect on the state, and its target, as if its condition holds.
//!
//! Encodings: DDI 0406, A6.2, A6.3 and A8.

use super::instructions::{Access, coprocessor, exchange, literal, multiple, signed, sum, target, write};
use super::{LR, PC, SP};
use crate::addr::Avma;
use crate::walk::flow::paths::{Effect, FlowState, Value};

/// Executes the instruction that starts with `half`, at address `at` and at the start of `bytes`.
pub(super) fn execute(
    at: Avma,
    bytes: &[u8],
    half: u16,
    second: Option<u16>,
    state: &mut FlowState,
) -> Effect {
    if let Some(second) = second {
        return execute_wide(at, bytes, half, second, state);
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

// ---- T32: 32-bit instructions.
//
// Encodings: DDI 0406, A6.3 and A8.

/// Executes the instruction with these halves, at address `at` and at the start of `bytes`.
pub(super) fn execute_wide(at: Avma, bytes: &[u8], first: u16, second: u16, state: &mut FlowState) -> Effect {
    match first >> 11 & 0b11 {
        0b01 => match first >> 9 & 0b11 {
            0b00 if first >> 6 & 1 == 0 => block(first, second, state),
            0b00 => two_or_table(first, second, state),
            0b01 => shifted(first, second, state),
            _ => coprocessor(word(first, second), state),
        },
        0b10 if second >> 15 == 1 => branch(at, first, second, state),
        0b10 => immediate(first, second, state),
        _ => match first >> 8 & 0b111 {
            0b000 | 0b001 if first & 0x0110 == 0x0100 => {
                elements(first, second, state);
                Effect::Plain
            }
            0b000 | 0b001 => single(at, bytes, first, second, state),
            // Register operand: shifts, extensions, counts.
            0b010 => {
                set(state, second >> 8 & 0xf);
                Effect::Plain
            }
            0b011 => {
                set(state, second >> 8 & 0xf);
                // Long multiplications
                if first >> 7 & 1 == 1 {
                    set(state, second >> 12);
                }
                Effect::Plain
            }
            _ => coprocessor(word(first, second), state),
        },
    }
}

/// The equivalent A32 word, unconditional.
fn word(first: u16, second: u16) -> u32 {
    u32::from(first) << 16 | u32::from(second)
}

/// Sets a register to an unknown value. 15 is no register here.
fn set(state: &mut FlowState, register: u16) {
    if register & 0xf != u16::from(PC) {
        state.set((register & 0xf) as u8, Value::Unknown);
    }
}

/// ldm, stm.
fn block(first: u16, second: u16, state: &mut FlowState) -> Effect {
    let (base, is_load, writes_back) = ((first & 0xf) as u8, first >> 4 & 1 == 1, first >> 5 & 1 == 1);
    let size = 4 * i64::from(second.count_ones());
    let (from, moves) = match first >> 7 & 0b11 {
        0b01 => (0, size),
        0b10 => (-size, -size),
        // rfe, which returns from an exception; srs
        _ => return Effect::Ends,
    };
    multiple(state, is_load, base, second, from, writes_back.then_some(moves))
}

/// ldrd, strd; exclusive loads and stores; table branches.
fn two_or_table(first: u16, second: u16, state: &mut FlowState) -> Effect {
    let (is_before, writes_back) = (first >> 8 & 1 == 1, first >> 5 & 1 == 1);
    let (is_up, is_load) = (first >> 7 & 1 == 1, first >> 4 & 1 == 1);
    let register = (second >> 12) as u8;
    if !is_before && !writes_back {
        // tbb, tbh
        if first & 0xfff0 == 0xe8d0 && second & 0xffe0 == 0xf000 {
            return Effect::JumpsAnywhere;
        }
        if is_load {
            set(state, second >> 12);
            set(state, second >> 8);
        } else {
            // The status register of a store; for other forms, bits that must be ones.
            set(state, if is_up { second } else { second >> 8 });
        }
        return Effect::Plain;
    }
    let bytes = i64::from(second & 0xff) * 4;
    let distance = if is_up { bytes } else { -bytes };
    let access = Access { register, base: (first & 0xf) as u8, distance, writes_back, is_before };
    access.two((second >> 8 & 0xf) as u8, is_load, state);
    Effect::Plain
}

/// Data processing on two registers, with the second one shifted.
fn shifted(first: u16, second: u16, state: &mut FlowState) -> Effect {
    let (left, to, right) = ((first & 0xf) as u8, (second >> 8 & 0xf) as u8, (second & 0xf) as u8);
    let is_plain = second & 0x70f0 == 0;
    let value = match (first >> 5 & 0xf, is_plain) {
        // mov
        (2, true) if left == PC => state.get(right),
        (8, true) => sum(state, left, state.get(right), false),
        (13, true) => sum(state, left, state.get(right), true),
        _ => Value::Unknown,
    };
    // tst, teq, cmn, cmp have no destination.
    if to != PC {
        state.set(to, value);
    }
    Effect::Plain
}

/// Data processing on a register and an immediate.
fn immediate(first: u16, second: u16, state: &mut FlowState) -> Effect {
    let (left, to) = ((first & 0xf) as u8, (second >> 8 & 0xf) as u8);
    let low = u32::from(first >> 10 & 1) << 11 | u32::from(second >> 12 & 7) << 8 | u32::from(second & 0xff);
    if to == PC {
        return Effect::Plain;
    }
    let value = if first >> 9 & 1 == 0 {
        let number = expanded(low);
        match first >> 5 & 0xf {
            2 if left == PC => Value::Number(number.into()),
            3 if left == PC => Value::Number((!number).into()),
            8 => sum(state, left, Value::Number(number.into()), false),
            13 => sum(state, left, Value::Number(number.into()), true),
            _ => Value::Unknown,
        }
    } else {
        let half = u64::from(u32::from(left) << 12 | low);
        match (first >> 4 & 0x1f, state.get(to)) {
            // addw, subw; with the program counter as base it is adr
            (0b00000, _) if left != PC => sum(state, left, Value::Number(low.into()), false),
            (0b01010, _) if left != PC => sum(state, left, Value::Number(low.into()), true),
            // movw, movt
            (0b00100, _) => Value::Number(half),
            (0b01100, Value::Number(number)) => Value::Number(number & 0xffff | half << 16),
            _ => Value::Unknown,
        }
    };
    state.set(to, value);
    Effect::Plain
}

/// The number encoded in 12 bits (A6.3.2).
fn expanded(low: u32) -> u32 {
    let byte = low & 0xff;
    match low >> 8 & 0xf {
        0b0000 => byte,
        0b0001 => byte << 16 | byte,
        0b0010 => byte << 24 | byte << 8,
        0b0011 => byte << 24 | byte << 16 | byte << 8 | byte,
        _ => (byte | 0x80).rotate_right(low >> 7),
    }
}

fn branch(at: Avma, first: u16, second: u16, state: &mut FlowState) -> Effect {
    let (high, sign) = (u32::from(first), u32::from(first >> 10 & 1));
    let (j1, j2) = (u32::from(second >> 13 & 1), u32::from(second >> 11 & 1));
    let low = u32::from(second & 0x7ff) << 1;
    let far = {
        let (i1, i2) = (u32::from(j1 == sign), u32::from(j2 == sign));
        signed(sign << 24 | i1 << 23 | i2 << 22 | (high & 0x3ff) << 12 | low, 25)
    };
    match (second >> 14 & 1, second >> 12 & 1) {
        (0, 1) => Effect::Jumps(target(at.0 + 4, far)),
        (1, 1) => Effect::Calls(Some(target(at.0 + 4, far))),
        // blx: the function is A32.
        (1, _) => Effect::Calls(None),
        _ if first >> 6 & 0xe != 0xe => {
            let distance = sign << 20 | j2 << 19 | j1 << 18 | (high & 0x3f) << 12 | low;
            Effect::MayJump(target(at.0 + 4, signed(distance, 21)))
        }
        _ => {
            match first & 0xfff0 {
                // subs pc, lr returns from an exception; hvc, smc, udf
                0xf3d0 | 0xf7e0 | 0xf7f0 => return Effect::Ends,
                // mrs
                0xf3e0 | 0xf3f0 => set(state, second >> 8),
                _ => {}
            }
            Effect::Plain
        }
    }
}

/// Vector element loads and stores move their base by a register, or by the transfer size.
fn elements(first: u16, second: u16, state: &mut FlowState) {
    if second & 0xf != u16::from(PC) {
        set(state, first);
    }
}

/// ldr, str and their narrower forms.
fn single(at: Avma, bytes: &[u8], first: u16, second: u16, state: &mut FlowState) -> Effect {
    let (base, register) = ((first & 0xf) as u8, (second >> 12) as u8);
    let (is_load, is_word) = (first >> 4 & 1 == 1, first >> 5 & 0b11 == 0b10);
    let is_up = first >> 7 & 1 == 1;
    if base == PC {
        let number = i64::from(second & 0xfff);
        let distance = if is_up { number } else { -number } + 4 - (at.0 & 2).cast_signed();
        let value = if is_word { literal(bytes, distance) } else { Value::Unknown };
        return if is_word || register != PC { write(state, register, value) } else { Effect::Plain };
    }
    let (distance, writes_back, is_before) = if is_up {
        (i64::from(second & 0xfff), false, true)
    } else if second >> 11 & 1 == 1 {
        let number = i64::from(second & 0xff);
        let number = if second >> 9 & 1 == 1 { number } else { -number };
        (number, second >> 8 & 1 == 1, second >> 10 & 1 == 1)
    } else {
        // Register offset.
        return match (is_load, is_word && register == PC) {
            (true, true) => Effect::JumpsAnywhere,
            (true, false) => {
                set(state, second >> 12);
                Effect::Plain
            }
            (false, _) => Effect::Plain,
        };
    };
    let access = Access { register, base, distance, writes_back, is_before };
    match (is_word, is_load) {
        (true, true) if register == PC && base != SP => {
            access.other(true, state);
            Effect::JumpsAnywhere
        }
        (true, true) => access.load(state),
        (true, false) => {
            access.store(state);
            Effect::Plain
        }
        (false, _) => {
            access.other(is_load, state);
            Effect::Plain
        }
    }
}
