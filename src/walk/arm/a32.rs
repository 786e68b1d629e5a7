//! A32: 32-bit instructions. Input: an instruction; output: its effect on the state, and its target, as if its
//! condition holds.
//!
//! Encodings: DDI 0406, A5 and A8.

use super::operations::{
    Access, coprocessor, exchange, has_lost_link, literal, multiple, signed, sum, target, write,
};
use super::{LR, PC, SP};
use crate::addr::Avma;
use crate::walk::flow::state::{Effect, FlowState, Value};

/// Executes `word`, at address `at` and at the start of `bytes`.
pub(super) fn execute(at: Avma, bytes: &[u8], word: u32, state: &mut FlowState) -> Effect {
    // After `mov lr, pc` a jump is a call: the only form before Armv5T, and LLVM's calls of noreturn functions.
    let links = state.get(LR) == Value::Number(at.0 + 4);
    match by_class(at, bytes, word, state) {
        Effect::Jumps(target) if links => Effect::Calls(Some(target)),
        Effect::JumpsAnywhere | Effect::Returns if links => Effect::Calls(None),
        other => other,
    }
}

fn by_class(at: Avma, bytes: &[u8], word: u32, state: &mut FlowState) -> Effect {
    if word >> 28 == 0xf {
        return unconditional(word, state);
    }
    match word >> 25 & 0b111 {
        0b000 if word & 0x90 == 0x90 => multiply_or_extra(word, state),
        0b000 | 0b001 if word & 0x0190_0000 == 0x0100_0000 => miscellaneous(at, word, state),
        0b000 | 0b001 => data(at, word, state),
        0b011 if word & 0x10 != 0 => media(word, state),
        0b010 | 0b011 => single(bytes, word, state),
        0b100 => block(word, state),
        0b101 => {
            let to = target(at.0 + 8, signed(word & 0xff_ffff, 24) * 4);
            if word >> 24 & 1 == 1 { Effect::Calls(Some(to)) } else { Effect::Jumps(to) }
        }
        // svc: the kernel, or a debugger, preserves all registers except the result.
        0b111 if word >> 24 & 1 == 1 => {
            state.set(0, Value::Unknown);
            Effect::Plain
        }
        _ => coprocessor(word, state),
    }
}

/// Whether an instruction preserves the flags. Loads, stores and branches do, and data processing without the S
/// bit.
pub(super) fn keeps_flags(word: u32) -> bool {
    match word >> 25 & 0b111 {
        0b000 | 0b001 => word >> 20 & 1 == 0 && word & 0x0190_0000 != 0x0100_0000,
        0b010..=0b100 | 0b110 => true,
        0b101 => word >> 24 & 1 == 0 && word >> 28 != 0xf,
        _ => false,
    }
}

fn field(word: u32, from: u32) -> u8 {
    (word >> from & 0xf) as u8
}

/// Executes an unconditional instruction.
fn unconditional(word: u32, state: &mut FlowState) -> Effect {
    match word >> 25 & 0b111 {
        // blx: the function is T32.
        0b101 => Effect::Calls(None),
        // rfe, which returns from an exception; srs
        0b100 => Effect::Ends,
        // vld and vst of elements move their base by a register, or by the transfer size.
        0b010 if word & 0x0110_0000 == 0 => {
            if field(word, 0) != PC && field(word, 16) != PC {
                state.set(field(word, 16), Value::Unknown);
            }
            Effect::Plain
        }
        0b110 | 0b111 => coprocessor(word, state),
        _ => Effect::Plain,
    }
}

/// An 8-bit immediate, rotated right (A5.2.4).
fn immediate(word: u32) -> u32 {
    (word & 0xff).rotate_right(2 * (word >> 8 & 0xf))
}

fn data(at: Avma, word: u32, state: &mut FlowState) -> Effect {
    let (left, to) = (field(word, 16), field(word, 12));
    let is_shifted = word & 0xff0 != 0;
    let right = match (word >> 25 & 1 == 1, is_shifted) {
        (true, _) => Value::Number(immediate(word).into()),
        (false, false) if field(word, 0) == PC => Value::Number(at.0 + 8),
        (false, false) => state.get(field(word, 0)),
        (false, true) => shifted(word, state),
    };
    let sets_flags = word >> 20 & 1 == 1;
    // subs pc, lr, #4 and variants return from an exception.
    if to == PC && sets_flags && !matches!(word >> 21 & 0xf, 8..=11) {
        return Effect::Ends;
    }
    if to == PC && word >> 21 & 0xf == 13 && word >> 25 & 1 == 0 && !is_shifted {
        return exchange(at, field(word, 0), state);
    }
    let value = match word >> 21 & 0xf {
        // tst, teq, cmp, cmn
        8..=11 => return Effect::Plain,
        2 if left != PC => sum(state, left, right, true),
        4 if left != PC => sum(state, left, right, false),
        13 => right,
        15 => match right {
            Value::Number(number) => Value::Number((!(number as u32)).into()),
            _ => Value::Unknown,
        },
        // bic and and align the stack pointer; all others
        _ => Value::Unknown,
    };
    write(state, to, value)
}

/// A register shifted by an immediate; known only for a number shifted left.
fn shifted(word: u32, state: &FlowState) -> Value {
    match (state.get(field(word, 0)), word >> 4 & 0b111) {
        (Value::Number(number), 0) => Value::Number(u64::from((number as u32) << (word >> 7 & 0x1f))),
        _ => Value::Unknown,
    }
}

fn miscellaneous(at: Avma, word: u32, state: &mut FlowState) -> Effect {
    let to = field(word, 12);
    match word & 0x0fff_fff0 {
        0x012f_ff10 | 0x012f_ff20 => return exchange(at, field(word, 0), state),
        0x012f_ff30 => return Effect::Calls(None),
        _ => {}
    }
    match word & 0x0ff0_0000 {
        // movw, movt
        0x0300_0000 => {
            state.set(to, Value::Number(u64::from(word >> 4 & 0xf000 | word & 0xfff)));
        }
        0x0340_0000 => {
            let value = match state.get(to) {
                Value::Number(low) => {
                    Value::Number(low & 0xffff | u64::from(word >> 4 & 0xf000 | word & 0xfff) << 16)
                }
                _ => Value::Unknown,
            };
            state.set(to, value);
        }
        // bkpt, hvc, eret, smc, with an encoding not matched above
        0x0120_0000 if word & 0x70 == 0x70 => return Effect::Ends,
        0x0160_0000 if word & 0x70 == 0x60 => return Effect::Ends,
        // halfword multiplications
        _ if word & 0x0200_0090 == 0x0000_0080 => {
            for register in [to, field(word, 16)].into_iter().filter(|register| *register != PC) {
                state.set(register, Value::Unknown);
            }
        }
        // mrs, clz, and saturating arithmetic
        0x0100_0000 | 0x0140_0000 if to != PC => state.set(to, Value::Unknown),
        0x0120_0000 | 0x0160_0000 if word & 0xf0 != 0 && to != PC => state.set(to, Value::Unknown),
        _ => {}
    }
    Effect::Plain
}

fn multiply_or_extra(word: u32, state: &mut FlowState) -> Effect {
    let (register, base) = (field(word, 12), field(word, 16));
    let kind = word >> 5 & 0b11;
    if kind == 0 {
        // Multiplications write one or both; swp, ldrex and strex write the lower.
        let is_exclusive = word >> 24 & 1 == 1;
        for written in [Some(register), (!is_exclusive).then_some(base)].into_iter().flatten() {
            if written != PC {
                state.set(written, Value::Unknown);
            }
        }
        return Effect::Plain;
    }
    let number = i64::from(word >> 4 & 0xf0 | word & 0xf);
    let is_number = word >> 22 & 1 == 1;
    let is_before = word >> 24 & 1 == 1;
    let access = Access {
        register,
        base,
        distance: if word >> 23 & 1 == 1 { number } else { -number },
        writes_back: !is_before || word >> 21 & 1 == 1,
        is_before,
    };
    let is_load = word >> 20 & 1 == 1;
    if !is_number {
        if is_load || kind == 0b10 {
            state.set(register, Value::Unknown);
        }
        if !is_load && kind == 0b10 {
            state.set(register | 1, Value::Unknown);
        }
        if access.writes_back {
            state.set(base, Value::Unknown);
        }
        return Effect::Plain;
    }
    match (is_load, kind) {
        // ldrd, strd
        (false, 0b10) => access.two(register | 1, true, state),
        (false, 0b11) => access.two(register | 1, false, state),
        _ => access.other(is_load, state),
    }
    Effect::Plain
}

fn media(word: u32, state: &mut FlowState) -> Effect {
    // udf
    if word & 0x0ff0_00f0 == 0x07f0_00f0 {
        return Effect::Ends;
    }
    // Multiplications and absolute differences have the destination in another field.
    let to = match word >> 23 & 0b11 {
        0b10 => field(word, 16),
        0b11 if word & 0x0070_0000 == 0 => field(word, 16),
        _ => field(word, 12),
    };
    if to != PC {
        state.set(to, Value::Unknown);
    }
    Effect::Plain
}

/// ldr, str and the byte forms.
fn single(bytes: &[u8], word: u32, state: &mut FlowState) -> Effect {
    let (register, base) = (field(word, 12), field(word, 16));
    let is_before = word >> 24 & 1 == 1;
    let writes_back = !is_before || word >> 21 & 1 == 1;
    let (is_byte, is_load) = (word >> 22 & 1 == 1, word >> 20 & 1 == 1);
    if word >> 25 & 1 == 1 {
        if writes_back {
            state.set(base, Value::Unknown);
        }
        return if is_load { write(state, register, Value::Unknown) } else { Effect::Plain };
    }
    let number = i64::from(word & 0xfff);
    let distance = if word >> 23 & 1 == 1 { number } else { -number };
    if base == PC && is_load && !is_byte {
        return write(state, register, literal(bytes, distance + 8));
    }
    let access = Access { register, base, distance, writes_back, is_before };
    match (is_byte, is_load) {
        (false, true) if register == PC && base != SP => {
            access.other(true, state);
            Effect::JumpsAnywhere
        }
        (false, true) => access.load(state),
        (false, false) if register == LR && base == SP && writes_back && has_lost_link(state) => Effect::Ends,
        (false, false) => {
            access.store(state);
            Effect::Plain
        }
        (true, _) => {
            access.other(is_load, state);
            Effect::Plain
        }
    }
}

/// ldm, stm.
fn block(word: u32, state: &mut FlowState) -> Effect {
    let (base, list) = (field(word, 16), word as u16);
    let (is_before, is_up) = (word >> 24 & 1 == 1, word >> 23 & 1 == 1);
    let (of_user, writes_back, is_load) = (word >> 22 & 1 == 1, word >> 21 & 1 == 1, word >> 20 & 1 == 1);
    let size = 4 * i64::from(list.count_ones());
    let first = match (is_up, is_before) {
        (true, false) => 0,
        (true, true) => 4,
        (false, true) => -size,
        (false, false) => 4 - size,
    };
    // User mode registers, or an exception return.
    if of_user {
        if is_load && list >> PC & 1 == 1 {
            return Effect::Ends;
        }
        return Effect::Plain;
    }
    let moves = writes_back.then_some(if is_up { size } else { -size });
    multiple(state, is_load, base, list, first, moves)
}

const _: () = assert!(LR < PC && SP < LR);
