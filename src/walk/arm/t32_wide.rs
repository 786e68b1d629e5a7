//! T32: 32-bit instructions. Input: their two halves; output: their effect on the state, and their target, as if
//! their condition holds.
//!
//! Encodings: DDI 0406, A6.3 and A8.

use super::operations::{Access, coprocessor, literal, multiple, signed, sum, target, write};
use super::{PC, SP};
use crate::addr::Avma;
use crate::walk::flow::state::{Effect, FlowState, Value};

/// Executes the instruction with these halves, at address `at` and at the start of `bytes`.
pub(super) fn execute(at: Avma, bytes: &[u8], first: u16, second: u16, state: &mut FlowState) -> Effect {
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
