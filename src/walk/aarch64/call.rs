//! Whether an address is a return address of an aarch64 call: decided by the instruction before it. Input: code
//! bytes; output: yes or no.
//!
//! Encodings: Arm Architecture Reference Manual for A-profile, C6.2, BL, BLR.

use crate::addr::Avma;
use crate::walk::Code;

/// Whether code before `address` is `bl`, `blr` or an authenticated `blr`.
#[must_use]
pub(super) fn returns(address: Avma, code: &dyn Code) -> bool {
    let Some(call) = address.0.checked_sub(4).filter(|call| call.is_multiple_of(4)).map(Avma) else {
        return false;
    };
    if !code.is_code(call) {
        return false;
    }
    let word = code.code(call).and_then(|code| code.first_chunk::<4>());
    word.is_none_or(|word| is_call(u32::from_le_bytes(*word)))
}

/// Whether an instruction is `bl`, `blr` or an authenticated `blr`.
pub(in crate::walk) fn is_call(word: u32) -> bool {
    // bl; blr; blraa, blrab; blraaz, blrabz
    word >> 26 == 0b10_0101
        || word & 0xffff_fc1f == 0xd63f_0000
        || word & 0xffff_f800 == 0xd73f_0800
        || word & 0xffff_f81f == 0xd63f_081f
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::walk::text::Text;

    #[test]
    fn aarch64_calls_are_one_word() {
        // bl, blr x8, blraa x8,x9, blraaz x8; br x8, b, ret
        let words =
            &[0x9400_0010, 0xd63f_0100, 0xd73f_0909, 0xd63f_091f, 0xd61f_0100, 0x1400_0010, 0xd65f_03c0];
        let text = Text::of_words(0x1000, words);
        for index in 0..words.len() {
            let after = Avma(0x1000 + 4 * (index as u64 + 1));
            assert_eq!(returns(after, &text), index < 4, "{index}");
            assert!(!returns(after + 2, &text));
        }
        assert!(!returns(Avma(0x1000), &text));
    }
}
