//! The effects of aarch64 instructions on the stack pointer and saved registers.
//!
//! Registers are numbered as in DWARF: x0 to x30, then the stack pointer; 31 in an instruction is the stack
//! pointer or the zero register. Unknown instructions write an unknown value to their destination.
//!
//! Encodings: Arm Architecture Reference Manual for A-profile, C4.1 and C6.2.

use crate::addr::Avma;
use crate::walk::flow::paths::{Effect, FlowState, RegisterOffset, Value};

const SP: u8 = 31;

/// Implements [`Processor::step`](crate::walk::processor::Processor::step).
pub(super) fn step(at: Avma, bytes: &[u8], state: &mut FlowState) -> Option<(Effect, u64)> {
    let word = u32::from_le_bytes(*bytes.first_chunk()?);
    let effect = match word >> 25 & 0b1111 {
        0b1000 | 0b1001 => {
            immediate(word, state);
            Effect::Plain
        }
        0b1010 | 0b1011 => branch(word, at),
        0b0100 | 0b0110 | 0b1100 | 0b1110 => {
            memory(word, state);
            Effect::Plain
        }
        0b0101 | 0b1101 => {
            register(word, state);
            Effect::Plain
        }
        // udf, which also pads between functions
        0 if word >> 16 == 0 => Effect::Ends,
        _ => Effect::Plain,
    };
    Some((effect, 4))
}

fn field(word: u32, from: u32) -> u8 {
    (word >> from & 0x1f) as u8
}

fn signed(value: u32, bits: u32) -> i64 {
    i64::from((value << (32 - bits)).cast_signed() >> (32 - bits))
}

/// Sets a register, where 31 is the zero register.
fn set(state: &mut FlowState, register: u8, value: Value) {
    if register != 31 {
        state.set(register, value);
    }
}

fn immediate(word: u32, state: &mut FlowState) {
    let (to, from) = (field(word, 0), field(word, 5));
    match word >> 23 & 0b111 {
        // add, sub
        0b010 => {
            let shift = if word >> 22 & 1 == 1 { 12 } else { 0 };
            let number = i64::from(word >> 10 & 0xfff) << shift;
            let number = if word >> 30 & 1 == 1 { -number } else { number };
            let value = if word >> 31 == 1 { state.sum(from, number) } else { Value::Unknown };
            let sets_flags = word >> 29 & 1 == 1;
            if !(sets_flags && to == SP) {
                state.set(to, value);
            }
        }
        // Swift's async mark in a frame pointer: orr x29, x29, #1<<60; and x29, x29, #~(1<<60)
        0b100 if matches!(word, 0xb244_03bd | 0x9243_fbbd) => {}
        // and, orr, eor with the stack pointer as destination align it
        0b100 if word >> 29 & 0b11 != 0b11 => state.set(to, Value::Unknown),
        // movn, movz, movk
        0b101 => {
            let shift = 16 * (word >> 21 & 0b11);
            let number = u64::from(word >> 5 & 0xffff) << shift;
            let value = match (word >> 29 & 0b11, state.get(to)) {
                (0b00, _) => Value::Number(!number),
                (0b10, _) => Value::Number(number),
                (0b11, Value::Number(old)) => Value::Number(old & !(0xffff << shift) | number),
                _ => Value::Unknown,
            };
            set(state, to, value);
        }
        _ => set(state, to, Value::Unknown),
    }
}

fn register(word: u32, state: &mut FlowState) {
    let (to, from, other) = (field(word, 0), field(word, 5), field(word, 16));
    // pacia, autia, xpaci and variants sign or strip the value in place
    if word & 0xffff_0000 == 0xdac1_0000 {
        return;
    }
    // mov xN, xM
    if word & 0xffe0_ffe0 == 0xaa00_03e0 {
        let value = if other == 31 { Value::Number(0) } else { state.get(other) };
        return set(state, to, value);
    }
    // add, sub with an extended register, the form that can write the stack pointer
    if word & 0x1fe0_0000 == 0x0b20_0000 {
        let value = match state.get(other) {
            Value::Number(number) if word >> 31 == 1 && other != 31 => {
                let extended = if word >> 13 & 0b111 == 0b010 { number & 0xffff_ffff } else { number };
                let number = (extended << (word >> 10 & 0b111).min(4)).cast_signed();
                state.sum(from, if word >> 30 & 1 == 1 { number.wrapping_neg() } else { number })
            }
            _ => Value::Unknown,
        };
        if word >> 29 & 1 == 0 {
            state.set(to, value);
        } else {
            set(state, to, value);
        }
        return;
    }
    // ccmn, ccmp write only flags
    if word & 0x3fe0_0000 != 0x3a40_0000 {
        set(state, to, Value::Unknown);
    }
}

/// Loads and stores.
fn memory(word: u32, state: &mut FlowState) {
    let (first, base) = (field(word, 0), field(word, 5));
    let is_vector = word >> 26 & 1 == 1;
    if word & 0x3a00_0000 == 0x2800_0000 {
        return pair(word, state);
    }
    // literal, exclusive and atomic forms
    if word & 0x3b00_0000 == 0x1800_0000 || word & 0x3f00_0000 == 0x0800_0000 {
        if !is_vector {
            set(state, first, Value::Unknown);
        }
        return;
    }
    let size = word >> 30;
    let (distance, writes_back, is_before) = if word & 0x3b00_0000 == 0x3900_0000 {
        let scale = if is_vector && word >> 23 & 1 == 1 { 4 } else { size };
        (i64::from(word >> 10 & 0xfff) << scale, false, true)
    } else if word & 0x3b20_0000 == 0x3800_0000 {
        let mode = word >> 10 & 0b11;
        (signed(word >> 12 & 0x1ff, 9), mode & 1 == 1, mode != 1)
    } else {
        // Register offset, and other forms.
        if !is_vector && word & 0x3a00_0000 == 0x3800_0000 {
            set(state, first, Value::Unknown);
        }
        return;
    };
    let at = access(state, base, distance, writes_back, is_before);
    if is_vector {
        return;
    }
    let is_word = size == 3;
    match word >> 22 & 0b11 {
        0b00 => {
            let value = if is_word && first != 31 { state.get(first) } else { Value::Unknown };
            state.store(at, value);
        }
        0b01 if is_word => {
            let value = state.load(at, SP);
            set(state, first, value);
        }
        // prfm
        0b10 if is_word => {}
        _ => set(state, first, Value::Unknown),
    }
}

fn pair(word: u32, state: &mut FlowState) {
    let (first, base, second) = (field(word, 0), field(word, 5), field(word, 10));
    let (size, is_vector, is_load) = (word >> 30, word >> 26 & 1 == 1, word >> 22 & 1 == 1);
    let scale = match (is_vector, size) {
        (true, size) => 2 + size.min(2),
        (false, 0b10) => 3,
        (false, _) => 2,
    };
    let distance = signed(word >> 15 & 0x7f, 7) << scale;
    let mode = word >> 23 & 0b11;
    let at = access(state, base, distance, mode & 1 == 1, mode != 1);
    if is_vector {
        return;
    }
    let is_word = size == 0b10;
    let places = [at, at.map(|at| at.plus(1 << scale))];
    for (register, at) in [first, second].into_iter().zip(places) {
        if is_load {
            let value = if is_word { state.load(at, SP) } else { Value::Unknown };
            set(state, register, value);
        } else {
            let value = if is_word && register != 31 { state.get(register) } else { Value::Unknown };
            state.store(at, value);
        }
    }
}

/// The address of the access; updates the base register if the instruction does.
fn access(
    state: &mut FlowState,
    base: u8,
    distance: i64,
    writes_back: bool,
    is_before: bool,
) -> Option<RegisterOffset> {
    let there = state.sum(base, distance);
    let place = state.place(base).map(|place| if is_before { place.plus(distance) } else { place });
    if writes_back {
        state.set(base, there);
    }
    place
}

/// The effect of a branch instruction, with its target.
pub(super) fn branch(word: u32, at: Avma) -> Effect {
    let to = |from: u32, bits: u32| {
        Avma(at.0.wrapping_add_signed(signed(word >> from & ((1 << bits) - 1), bits) * 4))
    };
    match word {
        // bl; blr, blraa and its variants
        _ if word >> 26 == 0b10_0101 => Effect::Calls(Some(to(0, 26))),
        _ if word & 0xfeff_f000 == 0xd63f_0000 => Effect::Calls(None),
        // ret, retaa, retab
        _ if word & 0xffff_f000 == 0xd65f_0000 => Effect::Returns,
        // br, braa and its variants
        _ if word & 0xfeff_f000 == 0xd61f_0000 => Effect::JumpsAnywhere,
        // b
        _ if word >> 26 == 0b00_0101 => Effect::Jumps(to(0, 26)),
        // b.cond, bc.cond; cbz, cbnz; tbz, tbnz
        _ if word & 0xff00_0000 == 0x5400_0000 || word & 0x7e00_0000 == 0x3400_0000 => {
            Effect::MayJump(to(5, 19))
        }
        _ if word & 0x7e00_0000 == 0x3600_0000 => Effect::MayJump(to(5, 14)),
        // brk; eret
        _ if word & 0xffe0_001f == 0xd420_0000 || word == 0xd69f_03e0 => Effect::Ends,
        // mrs
        _ if word & 0xfff0_0000 == 0xd530_0000 => Effect::Plain,
        _ => Effect::Plain,
    }
}
