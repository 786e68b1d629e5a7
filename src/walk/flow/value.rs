//! The content of a register on a path, as a [`Value`] or a [`RegisterOffset`]; and packed into 64 bits: states are copied
//! at each branch, and code is full of branches.

/// Number of registers, enough for either processor.
pub(in crate::walk) const REGISTERS: usize = 32;

/// An address as a register's initial value plus bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::walk) struct RegisterOffset {
    pub(in crate::walk) register: u8,
    pub(in crate::walk) offset: i64,
}

impl RegisterOffset {
    pub(in crate::walk) fn plus(self, bytes: i64) -> RegisterOffset {
        RegisterOffset { offset: self.offset.wrapping_add(bytes), ..self }
    }
}

/// The content of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::walk) enum Value {
    /// The initial value of that register.
    First(u8),
    /// An address.
    At(RegisterOffset),
    /// The initial content of memory at that place.
    Loaded(RegisterOffset),
    Number(u64),
    Unknown,
}

/// Kind in the lowest three bits, register in the next five, and a signed 56-bit number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packed(u64);

const UNKNOWN: u64 = 0;
const FIRST: u64 = 1;
const AT: u64 = 2;
const LOADED: u64 = 3;
const NUMBER: u64 = 4;

const REGISTER_SHIFT: u32 = 3;
const NUMBER_SHIFT: u32 = 8;
const _: () = assert!(REGISTERS <= 1 << (NUMBER_SHIFT - REGISTER_SHIFT));

impl Packed {
    pub(super) const NOTHING: Packed = Packed(UNKNOWN);

    /// The initial content of a register.
    pub(super) const fn first(register: u8) -> Packed {
        Packed(FIRST | (register as u64 % REGISTERS as u64) << REGISTER_SHIFT)
    }

    /// Packs a value. A number of more than 56 bits, too large for a frame, becomes unknown.
    pub(super) fn of(value: Value) -> Packed {
        match value {
            Value::Unknown => Packed(UNKNOWN),
            Value::First(register) => Packed::first(register),
            Value::At(place) => Packed::of_place(place, AT),
            Value::Loaded(place) => Packed::of_place(place, LOADED),
            Value::Number(number) => {
                let packed = Packed(NUMBER | number << NUMBER_SHIFT);
                if packed.number().cast_unsigned() == number { packed } else { Packed(UNKNOWN) }
            }
        }
    }

    pub(super) fn at(place: RegisterOffset) -> Packed {
        Packed::of_place(place, AT)
    }

    /// Offsets of more than 56 bits, which only hostile code has, are truncated.
    fn of_place(place: RegisterOffset, kind: u64) -> Packed {
        Packed(Packed::first(place.register).0 & !FIRST | kind | place.offset.cast_unsigned() << NUMBER_SHIFT)
    }

    #[inline]
    pub(super) fn value(self) -> Value {
        match self.0 & 7 {
            FIRST => Value::First(self.register()),
            AT => Value::At(self.place()),
            LOADED => Value::Loaded(self.place()),
            NUMBER => Value::Number(self.number().cast_unsigned()),
            _ => Value::Unknown,
        }
    }

    #[inline]
    pub(super) fn place(self) -> RegisterOffset {
        RegisterOffset { register: self.register(), offset: self.number() }
    }

    fn register(self) -> u8 {
        (self.0 >> REGISTER_SHIFT & (REGISTERS as u64 - 1)) as u8
    }

    fn number(self) -> i64 {
        self.0.cast_signed() >> NUMBER_SHIFT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_survive_packing() {
        let offsets = [0, 8, -8, 0x7fff_ffff, -0x8000_0000, (1 << 55) - 1, -(1 << 55)];
        let mut values = vec![Value::Unknown];
        for register in [0, 7, 31] {
            values.push(Value::First(register));
            let places = offsets.map(|offset| RegisterOffset { register, offset });
            values.extend(places.map(Value::At));
            values.extend(places.map(Value::Loaded));
        }
        values.extend(offsets.map(|offset| Value::Number(offset.cast_unsigned())));
        for value in values {
            assert_eq!(Packed::of(value).value(), value);
        }
        assert_eq!(Packed::NOTHING.value(), Value::Unknown);
    }

    #[test]
    fn numbers_too_large_for_a_frame_become_unknown() {
        for number in [1 << 55, 0x8000_0000_0000_0000, u64::MAX >> 1] {
            assert_eq!(Packed::of(Value::Number(number)).value(), Value::Unknown, "{number:#x}");
        }
        let far = RegisterOffset { register: 3, offset: i64::MAX };
        assert_eq!(Packed::at(far).place(), RegisterOffset { register: 3, offset: -1 });
    }
}
