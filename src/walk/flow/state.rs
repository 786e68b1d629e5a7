//! Contents of registers and the stack on one path through instructions, relative to its start, and the effects of
//! instructions on the path.

use super::value::Packed;
pub(in crate::walk) use super::value::{REGISTERS, RegisterOffset, Value};
use crate::addr::Avma;

/// Limit on remembered saved registers.
const STORES_MAX: usize = 24;
/// The effect of an instruction on the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::walk) enum Effect {
    Plain,
    Returns,
    Calls(Option<Avma>),
    Jumps(Avma),
    MayJump(Avma),
    /// Jumps to an unknown address: a tail call, a stub, or a jump through a table.
    JumpsAnywhere,
    /// Returns, or continues with the next instruction, with the state of the latter. With [`Mode::takes`] set the
    /// same instruction returns.
    MayReturn,
    /// The frame depends on this condition: nothing has been executed. Execution continues with [`Mode::assumed`]
    /// set to the condition or to its opposite, which has the lowest bit inverted.
    Forks(u8),
    /// Nothing is known after it.
    Ends,
}

/// The decoder's mode for the next instruction, on processors with several instruction sets or with conditional
/// execution: 32-bit Arm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::walk) struct Mode {
    /// The instruction set is T32.
    pub(in crate::walk) t32: bool,
    /// Conditions of the next instructions in T32, in the form of `ITSTATE`; 0: none.
    pub(in crate::walk) it: u8,
    /// The condition of the next instruction is assumed to hold.
    pub(in crate::walk) takes: bool,
    /// This condition is assumed to hold, and its opposite not, until an instruction may change the flags.
    pub(in crate::walk) assumed: Option<u8>,
}

/// Registers, stored initial values, and the last pushed zero.
#[derive(Clone, Copy, Debug)]
pub(in crate::walk) struct FlowState {
    registers: [Packed; REGISTERS],
    /// Places, with the stored values.
    stores: [(Packed, Packed); STORES_MAX],
    stored: usize,
    pub(in crate::walk) zero: Option<RegisterOffset>,
    pub(in crate::walk) mode: Mode,
}

impl FlowState {
    pub(in crate::walk) fn new() -> FlowState {
        FlowState {
            registers: std::array::from_fn(|number| Packed::first(number as u8)),
            stores: [(Packed::NOTHING, Packed::NOTHING); STORES_MAX],
            stored: 0,
            zero: None,
            mode: Mode::default(),
        }
    }

    pub(in crate::walk) fn get(&self, register: u8) -> Value {
        self.registers.get(usize::from(register)).map_or(Value::Unknown, |held| held.value())
    }

    pub(in crate::walk) fn set(&mut self, register: u8, value: Value) {
        if let Some(held) = self.registers.get_mut(usize::from(register)) {
            *held = Packed::of(value);
        }
    }

    /// Makes the registers without a set bit unknown.
    pub(in crate::walk) fn keep_only(&mut self, kept: u32) {
        for (register, held) in self.registers.iter_mut().enumerate() {
            if kept >> register & 1 == 0 {
                *held = Packed::NOTHING;
            }
        }
    }

    /// Stored values, with their places.
    pub(in crate::walk) fn stores(&self) -> impl Iterator<Item = (RegisterOffset, Value)> {
        self.stores[..self.stored].iter().map(|(place, value)| (place.place(), value.value()))
    }

    /// Keeps only what also holds in `other`, the state after one more instruction.
    pub(in crate::walk) fn merge(&mut self, other: &FlowState) {
        for (held, others) in self.registers.iter_mut().zip(&other.registers) {
            if held != others {
                *held = Packed::NOTHING;
            }
        }
        for (index, (place, value)) in other.stores().enumerate() {
            if self.stores().nth(index) != Some((place, value)) {
                self.store(Some(place), Value::Unknown);
            }
        }
    }

    /// The address in a register.
    pub(in crate::walk) fn place(&self, register: u8) -> Option<RegisterOffset> {
        match self.get(register) {
            Value::First(register) => Some(RegisterOffset { register, offset: 0 }),
            Value::At(place) => Some(place),
            _ => None,
        }
    }

    /// The sum of a register and a number of bytes.
    pub(in crate::walk) fn sum(&self, register: u8, bytes: i64) -> Value {
        match (self.place(register), self.get(register)) {
            (Some(place), _) => Value::At(place.plus(bytes)),
            (None, Value::Number(number)) => Value::Number(number.wrapping_add_signed(bytes)),
            _ => Value::Unknown,
        }
    }

    pub(in crate::walk) fn store(&mut self, at: Option<RegisterOffset>, value: Value) {
        let Some(at) = at else { return };
        self.zero = self.zero.filter(|zero| *zero != at);
        let (place, held) = (Packed::at(at), Packed::of(value));
        if let Some(known) = self.stores[..self.stored].iter_mut().find(|(known, _)| *known == place) {
            known.1 = held;
        } else if (matches!(value, Value::First(_) | Value::Loaded(_)) || at.offset >= 0)
            && let Some(free) = self.stores.get_mut(self.stored)
        {
            *free = (place, held);
            self.stored += 1;
        }
    }

    /// The value loaded from a place; `sp` is the stack pointer register. Below its initial value there was
    /// nothing.
    pub(in crate::walk) fn load(&self, at: Option<RegisterOffset>, sp: u8) -> Value {
        let Some(at) = at else { return Value::Unknown };
        let place = Packed::at(at);
        match self.stores[..self.stored].iter().find(|(known, _)| *known == place) {
            Some((_, held)) => held.value(),
            None if at.register == sp && at.offset < 0 => Value::Unknown,
            None => Value::Loaded(at),
        }
    }
}
