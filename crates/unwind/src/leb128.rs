//! LEB128: integers in seven bits a byte (DWARF 5, 7.6). Input: bytes; output: a number, and the reverse.

/// A decoded number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leb128 {
    /// The lowest 64 bits.
    pub(crate) bits: u64,
    /// Number of bits in its bytes.
    width: u32,
    /// Whether bits beyond 64 are set.
    overflows: bool,
}

impl Leb128 {
    /// Reads a number of at most `most_bytes` bytes; `None` if it is longer or truncated.
    pub(crate) fn read(bytes: &mut impl Iterator<Item = u8>, most_bytes: u32) -> Option<Leb128> {
        let mut number = Leb128 { bits: 0, width: 0, overflows: false };
        for byte in bytes.take(most_bytes as usize) {
            let part = u64::from(byte & 0x7f);
            let shifted = part.checked_shl(number.width).unwrap_or(0);
            number.overflows |= shifted.checked_shr(number.width).unwrap_or(0) != part;
            number.bits |= shifted;
            number.width += 7;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    /// The number, sign-extended.
    pub(crate) fn signed(self) -> i64 {
        let unused = 64 - self.width.min(64);
        (self.bits << unused).cast_signed() >> unused
    }
}

/// Takes an unsigned number of at most 10 bytes from the front of `bytes`; `None` if it is longer, truncated, or
/// does not fit 64 bits.
pub fn take_unsigned(bytes: &mut &[u8]) -> Option<u64> {
    let mut rest = bytes.iter();
    let number = Leb128::read(&mut rest.by_ref().copied(), 10).filter(|number| !number.overflows)?;
    *bytes = rest.as_slice();
    Some(number.bits)
}

/// Appends an unsigned number.
#[inline]
pub fn put_unsigned(mut number: u64, into: &mut Vec<u8>) {
    while number >= 0x80 {
        into.push(number as u8 | 0x80);
        number >>= 7;
    }
    into.push(number as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive_a_round_trip() {
        for number in [0, 1, 0x7f, 0x80, 0x3fff, 0x4000, u64::MAX >> 1, u64::MAX] {
            let mut bytes = Vec::new();
            put_unsigned(number, &mut bytes);
            bytes.push(7);
            let mut rest = &bytes[..];
            assert_eq!((take_unsigned(&mut rest), rest), (Some(number), &[7][..]));
        }
        let signed = |bytes: &[u8]| Some(Leb128::read(&mut bytes.iter().copied(), 11)?.signed());
        // DWARF 5, figure 22 in 7.6.
        assert_eq!(signed(&[0x7e]), Some(-2));
        assert_eq!(signed(&[0xff, 0]), Some(127));
        assert_eq!(signed(&[0x80, 0x7f]), Some(-128));
    }

    #[test]
    fn invalid_numbers_are_not_consumed() {
        for bytes in
            [&[][..], &[0x80], &[0xff; 11], &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]]
        {
            let mut rest = bytes;
            assert_eq!((take_unsigned(&mut rest), rest), (None, bytes));
        }
        let padded = [[0x80; 10].as_slice(), &[0]].concat();
        assert!(Leb128::read(&mut padded.iter().copied(), 10).is_none());
        assert!(Leb128::read(&mut padded.iter().copied(), 11).is_some());
    }
}
