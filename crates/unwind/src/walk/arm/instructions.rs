//! The effects of 32-bit Arm instructions on the stack pointer and saved registers, common to A32 and T32, and the
//! encodings of A32; `t32.rs` decodes those of T32.
//!
//! Registers are numbered as in DWARF, which matches the encodings. Unknown instructions write an unknown value to
//! their destination. A conditional instruction may not have been executed: its results are unknown, and a return
//! is [`Effect::MayReturn`].
//!
//! Encodings: Arm Architecture Reference Manual, Armv7-A and Armv7-R edition (DDI 0406), A5 and A6.

use super::{LR, PC, SP, t32};
use crate::addr::Avma;
use crate::walk::flow::paths::{Effect, FlowState, RegisterOffset, Value};

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
        let effect = under_condition(condition, state, |state| execute(at, bytes, word, state));
        if !matches!(effect, Effect::Forks(_)) && !keeps_flags(word) {
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

// ---- Operations common to A32 and T32: loads, stores, jumps and sums.
//
// Encodings: Arm Architecture Reference Manual, Armv7-A and Armv7-R edition (DDI 0406), A5 and A6.

/// A load or store of one register.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    pub register: u8,
    pub base: u8,
    /// Offset from the base in bytes.
    pub distance: i64,
    pub writes_back: bool,
    /// The offset is added before the access.
    pub is_before: bool,
}

impl Access {
    /// The address of the access; updates the base register if the instruction does.
    fn place(&self, state: &mut FlowState) -> Option<RegisterOffset> {
        let there = state.sum(self.base, self.distance);
        let place = state.place(self.base);
        if self.writes_back {
            state.set(self.base, there);
        }
        place.map(|place| if self.is_before { place.plus(self.distance) } else { place })
    }

    /// Stores a word.
    pub(super) fn store(&self, state: &mut FlowState) {
        let value = stored(state, self.register);
        let place = self.place(state);
        state.store(place, value);
    }

    /// Loads a word.
    pub(super) fn load(&self, state: &mut FlowState) -> Effect {
        let place = self.place(state);
        let value = state.load(place, SP);
        write(state, self.register, value)
    }

    /// Loads or stores something other than a word.
    pub(super) fn other(&self, is_load: bool, state: &mut FlowState) {
        self.place(state);
        if is_load && self.register != PC {
            state.set(self.register, Value::Unknown);
        }
    }

    /// Loads or stores two words; the second is in another register.
    pub(super) fn two(&self, second: u8, is_load: bool, state: &mut FlowState) {
        let values = [self.register, second].map(|register| stored(state, register));
        let place = self.place(state);
        let places = [place, place.map(|place| place.plus(4))];
        for ((register, value), place) in [self.register, second].into_iter().zip(values).zip(places) {
            if is_load {
                let loaded = state.load(place, SP);
                state.set(register, loaded);
            } else {
                state.store(place, value);
            }
        }
    }
}

/// The value stored from a register.
fn stored(state: &FlowState, register: u8) -> Value {
    if register == PC { Value::Unknown } else { state.get(register) }
}

/// Loads or stores the registers in a list, lowest first. `first`: offset of the first word from the base;
/// `moves`: bytes added to the base, if any.
pub(super) fn multiple(
    state: &mut FlowState,
    is_load: bool,
    base: u8,
    list: u16,
    first: i64,
    moves: Option<i64>,
) -> Effect {
    if !is_load && base == SP && moves.is_some() && list >> LR & 1 == 1 && has_lost_link(state) {
        return Effect::Ends;
    }
    let place = state.place(base).map(|place| place.plus(first));
    let before = *state;
    if let Some(bytes) = moves {
        let moved = state.sum(base, bytes);
        state.set(base, moved);
    }
    let (mut effect, mut offset) = (Effect::Plain, 0);
    let mut loaded_sp = None;
    for register in (0..16).filter(|register| list >> register & 1 == 1) {
        let place = place.map(|place| place.plus(offset));
        offset += 4;
        if !is_load {
            state.store(place, stored(&before, register));
            continue;
        }
        let value = before.load(place, SP);
        if register == PC {
            effect = jump_to(state, value, is_frame(&before, base));
        } else if register == SP {
            loaded_sp = Some(value);
        } else {
            state.set(register, value);
        }
    }
    // Last, since the base may be the stack pointer.
    if let Some(value) = loaded_sp {
        state.set(SP, value);
    }
    effect
}

/// Whether a call has overwritten the link register. Pushing it then is the start of another function: the
/// preceding call did not return.
pub(super) fn has_lost_link(state: &FlowState) -> bool {
    state.get(LR) == Value::Unknown
}

/// Whether a register is a base of the frame, so that words there belong to it.
fn is_frame(state: &FlowState, base: u8) -> bool {
    base == SP || state.place(base).is_some_and(|place| place.register == SP) || matches!(base, 7 | 11)
}

/// Sets a register to a computed, loaded or moved value; writing the program counter jumps.
pub(super) fn write(state: &mut FlowState, register: u8, value: Value) -> Effect {
    if register == PC {
        return jump_to(state, value, true);
    }
    state.set(register, value);
    Effect::Plain
}

/// A jump to a value. It is a return if the value is the link register's at the function's entry, or a loaded word
/// of the frame: nothing else in the frame is a jump target. Then the value is set as the link register's.
/// `may_return`: a loaded value is in the frame.
pub(super) fn jump_to(state: &mut FlowState, value: Value, may_return: bool) -> Effect {
    match value {
        Value::First(LR) => {
            state.set(LR, value);
            Effect::Returns
        }
        Value::Loaded(_) if may_return => {
            state.set(LR, value);
            Effect::Returns
        }
        Value::Number(number) => {
            state.mode.t32 = number & 1 == 1;
            Effect::Jumps(Avma(number & !1))
        }
        _ => Effect::JumpsAnywhere,
    }
}

/// `bx` to a register.
pub(super) fn exchange(at: Avma, register: u8, state: &mut FlowState) -> Effect {
    match register {
        LR => Effect::Returns,
        // `bx pc` in T32 continues in A32, at the next word.
        PC if state.mode.t32 => {
            state.mode.t32 = false;
            Effect::Jumps(Avma((at.0 & !3).wrapping_add(4)))
        }
        _ => {
            let value = state.get(register);
            // Arguments are above the frame, saved registers in it: a function pointer passed as an argument is no
            // return address.
            let is_saved = match (value, state.place(SP)) {
                (Value::Loaded(place), Some(sp)) => place.register == sp.register && place.offset < sp.offset,
                _ => false,
            };
            jump_to(state, value, is_saved)
        }
    }
}

/// The sum or difference of two registers, of which one may be a number.
pub(super) fn sum(state: &FlowState, left: u8, right: Value, is_difference: bool) -> Value {
    match (state.get(left), right) {
        (_, Value::Number(number)) => {
            let number = i64::from((number as u32).cast_signed());
            state.sum(left, if is_difference { -number } else { number })
        }
        (Value::Number(number), Value::At(place)) if !is_difference => {
            Value::At(place.plus(i64::from((number as u32).cast_signed())))
        }
        (Value::Number(number), Value::First(register)) if !is_difference => {
            Value::At(RegisterOffset { register, offset: i64::from((number as u32).cast_signed()) })
        }
        _ => Value::Unknown,
    }
}

/// A word of code, at an offset from the start of `bytes`.
pub(super) fn literal(bytes: &[u8], distance: i64) -> Value {
    let word = usize::try_from(distance).ok().and_then(|from| bytes.get(from..)?.first_chunk::<4>());
    word.map_or(Value::Unknown, |word| Value::Number(u32::from_le_bytes(*word).into()))
}

/// A signed number of `bits` bits.
pub(super) fn signed(value: u32, bits: u32) -> i64 {
    i64::from((value << (32 - bits)).cast_signed() >> (32 - bits))
}

/// A branch target: `from` is the value that the program counter reads as.
pub(super) fn target(from: u64, distance: i64) -> Avma {
    Avma(u64::from((from as u32).wrapping_add(distance as u32)))
}

/// Executes instructions of VFP and other coprocessors, in the encoding common to A32 and T32.
pub(super) fn coprocessor(word: u32, state: &mut FlowState) -> Effect {
    let (base, register) = ((word >> 16 & 0xf) as u8, (word >> 12 & 0xf) as u8);
    let is_load = word >> 20 & 1 == 1;
    if word & 0x0fe0_0000 == 0x0c40_0000 {
        // Two general registers to or from a coprocessor.
        if is_load {
            state.set(register, Value::Unknown);
            if base != PC {
                state.set(base, Value::Unknown);
            }
        }
    } else if word & 0x0e00_0000 == 0x0c00_0000 {
        // Loads and stores; vpush and vpop have a list and the stack pointer as base.
        if word >> 21 & 1 == 1 {
            let bytes = i64::from(word & 0xff) * 4;
            let moved = state.sum(base, if word >> 23 & 1 == 1 { bytes } else { -bytes });
            if base != PC {
                state.set(base, moved);
            }
        }
    } else if word & 0x0f00_0010 == 0x0e00_0010 && is_load && register != PC {
        // From a coprocessor; the program counter as destination denotes the flags.
        state.set(register, Value::Unknown);
    }
    Effect::Plain
}

// ---- A32: 32-bit instructions.
//
// Encodings: DDI 0406, A5 and A8.

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
