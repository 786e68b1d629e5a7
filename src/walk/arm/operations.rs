//! Operations common to A32 and T32: loads, stores, jumps and sums. Input: operands of an instruction and a
//! [`FlowState`]; output: the state after it.
//!
//! Encodings: Arm Architecture Reference Manual, Armv7-A and Armv7-R edition (DDI 0406), A5 and A6.

use super::registers::{LR, PC, SP};
use crate::addr::Avma;
use crate::walk::flow::state::{Effect, FlowState, RegisterOffset, Value};

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
