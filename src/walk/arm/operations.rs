//! What A32 and T32 have in common of instructions of 32-bit Arm: loads, stores, jumps and sums. Input: what an
//! instruction says and a [`State`]; output: the state behind it.
//!
//! Encodings: Arm Architecture Reference Manual, Armv7-A and Armv7-R edition (DDI 0406), A5 and A6.

use super::registers::{LR, PC, SP};
use crate::addr::Avma;
use crate::walk::flow::state::{Effect, Place, State, Value};

/// A load or store of one register.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    pub register: u8,
    pub base: u8,
    /// Bytes from the base.
    pub distance: i64,
    pub writes_back: bool,
    /// The distance is added before the access.
    pub is_before: bool,
}

impl Access {
    /// The address that is accessed; changes the base where the instruction does.
    fn place(&self, state: &mut State) -> Option<Place> {
        let there = state.sum(self.base, self.distance);
        let place = state.place(self.base);
        if self.writes_back {
            state.set(self.base, there);
        }
        place.map(|place| if self.is_before { place.plus(self.distance) } else { place })
    }

    /// A word is stored.
    pub(super) fn store(&self, state: &mut State) {
        let value = stored(state, self.register);
        let place = self.place(state);
        state.store(place, value);
    }

    /// A word is loaded.
    pub(super) fn load(&self, state: &mut State) -> Effect {
        let place = self.place(state);
        let value = state.load(place, SP);
        write(state, self.register, value)
    }

    /// Something that is no word is loaded, or stored.
    pub(super) fn other(&self, is_load: bool, state: &mut State) {
        self.place(state);
        if is_load && self.register != PC {
            state.set(self.register, Value::Unknown);
        }
    }

    /// Two words; the second belongs to another register.
    pub(super) fn two(&self, second: u8, is_load: bool, state: &mut State) {
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

/// What a register stores.
fn stored(state: &State, register: u8) -> Value {
    if register == PC { Value::Unknown } else { state.get(register) }
}

/// A load or store of the registers in a list, the lowest first. `first`: bytes from the base to
/// the first word; `moves`: bytes that the base moves, if it does.
pub(super) fn multiple(
    state: &mut State,
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
    // Last, since the words lie where it was.
    if let Some(value) = loaded_sp {
        state.set(SP, value);
    }
    effect
}

/// Whether a call has overwritten the link register. To push it then is the beginning of another function: the
/// call in front of it did not return.
pub(super) fn has_lost_link(state: &State) -> bool {
    state.get(LR) == Value::Unknown
}

/// Whether a register is what frames are counted from: the words there are those of the frame.
fn is_frame(state: &State, base: u8) -> bool {
    base == SP || state.place(base).is_some_and(|place| place.register == SP) || matches!(base, 7 | 11)
}

/// Sets a register to a value that was computed, loaded or moved; the program counter jumps.
pub(super) fn write(state: &mut State, register: u8, value: Value) -> Effect {
    if register == PC {
        return jump_to(state, value, true);
    }
    state.set(register, value);
    Effect::Plain
}

/// A jump to a value, which returns if that is what the link register held when the function began,
/// or a word of the frame, where nothing but that is loaded to be jumped to. What the link register held
/// is in its column then. `may_return`: the value belongs to the frame if it was loaded.
pub(super) fn jump_to(state: &mut State, value: Value, may_return: bool) -> Effect {
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
pub(super) fn exchange(at: Avma, register: u8, state: &mut State) -> Effect {
    match register {
        LR => Effect::Returns,
        // `bx pc` in T32 goes on in A32, at the next word.
        PC if state.mode.t32 => {
            state.mode.t32 = false;
            Effect::Jumps(Avma((at.0 & !3).wrapping_add(4)))
        }
        _ => {
            let value = state.get(register);
            // Arguments lie above the frame, what was saved in it: a pointer to a function that
            // was an argument is no return address.
            let is_saved = match (value, state.place(SP)) {
                (Value::Loaded(place), Some(sp)) => place.register == sp.register && place.offset < sp.offset,
                _ => false,
            };
            jump_to(state, value, is_saved)
        }
    }
}

/// The sum or difference of two registers, of which one may be a number.
pub(super) fn sum(state: &State, left: u8, right: Value, is_difference: bool) -> Value {
    match (state.get(left), right) {
        (_, Value::Number(number)) => {
            let number = i64::from((number as u32).cast_signed());
            state.sum(left, if is_difference { -number } else { number })
        }
        (Value::Number(number), Value::At(place)) if !is_difference => {
            Value::At(place.plus(i64::from((number as u32).cast_signed())))
        }
        (Value::Number(number), Value::First(register)) if !is_difference => {
            Value::At(Place { register, offset: i64::from((number as u32).cast_signed()) })
        }
        _ => Value::Unknown,
    }
}

/// A word of the code, at a distance from the instruction at the start of `bytes`.
pub(super) fn literal(bytes: &[u8], distance: i64) -> Value {
    let word = usize::try_from(distance).ok().and_then(|from| bytes.get(from..)?.first_chunk::<4>());
    word.map_or(Value::Unknown, |word| Value::Number(u32::from_le_bytes(*word).into()))
}

/// A number of `bits` bits with a sign.
pub(super) fn signed(value: u32, bits: u32) -> i64 {
    i64::from((value << (32 - bits)).cast_signed() >> (32 - bits))
}

/// Where a branch leads: `from` is what the program counter reads as.
pub(super) fn target(from: u64, distance: i64) -> Avma {
    Avma(u64::from((from as u32).wrapping_add(distance as u32)))
}

/// The registers of VFP and other coprocessors, in the encoding that A32 and T32 share.
pub(super) fn coprocessor(word: u32, state: &mut State) -> Effect {
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
        // Loads and stores; vpush and vpop are those of a list with the stack pointer as base.
        if word >> 21 & 1 == 1 {
            let bytes = i64::from(word & 0xff) * 4;
            let moved = state.sum(base, if word >> 23 & 1 == 1 { bytes } else { -bytes });
            if base != PC {
                state.set(base, moved);
            }
        }
    } else if word & 0x0f00_0010 == 0x0e00_0010 && is_load && register != PC {
        // From a coprocessor; to the program counter means to the flags.
        state.set(register, Value::Unknown);
    }
    Effect::Plain
}
