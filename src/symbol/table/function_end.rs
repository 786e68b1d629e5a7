//! The end of a function without a size: a return followed by padding up to the start of the next function.
//!
//! Input: instructions from a function's first one, hostile. Output: the first address after the return. Not for:
//! functions with a size, or with unwind information. Functions may return in several places, so a return alone is
//! not sufficient; if one ends exactly at the next boundary there is no padding, and the following function is
//! taken for a part.

use crate::binary::elf::machine::{AARCH64, X86_64};

/// Alignment of assembly functions (x86inc.asm and perlasm: 16, the default of compilers).
const ALIGNMENT: u64 = 16;

/// The first address after a function's last instruction. `code` is the code from `start` on; `machine` is ELF's
/// `e_machine`. `None` if there is no evidence.
pub(super) fn of(code: &[u8], start: u64, machine: u16) -> Option<u64> {
    let fills_up = |at: usize, filling: fn(&[u8]) -> Option<usize>| {
        let boundary = start.checked_add(at as u64)?.checked_next_multiple_of(ALIGNMENT)?;
        let mut left = code.get(at..)?.get(..usize::try_from(boundary - start).ok()?.checked_sub(at)?)?;
        if left.is_empty() {
            return None;
        }
        while !left.is_empty() {
            left = left.get(filling(left)?..)?;
        }
        start.checked_add(at as u64)
    };
    match machine {
        // ret; other instructions may contain that byte, but not with this padding after it.
        X86_64 => (0..code.len()).filter(|at| code[*at] == 0xc3).find_map(|at| fills_up(at + 1, nop_x86_64)),
        AARCH64 => (0..code.len() / 4)
            .map(|word| 4 * word)
            .filter(|at| code[*at..].starts_with(&[0xc0, 0x03, 0x5f, 0xd6]))
            .find_map(|at| fills_up(at + 4, nop_aarch64)),
        _ => None,
    }
}

/// The length of the padding at the start: `nop` in the forms that processor vendors recommend and assemblers emit
/// (Intel SDM, volume 2, NOP), `int3`.
fn nop_x86_64(code: &[u8]) -> Option<usize> {
    let prefixes = code.iter().take_while(|byte| matches!(byte, 0x66 | 0x2e)).count();
    Some(
        prefixes
            + match code.get(prefixes..)? {
                [0x90, ..] => 1,
                [0xcc, ..] if prefixes == 0 => 1,
                [0x0f, 0x1f, 0x00, ..] => 3,
                [0x0f, 0x1f, 0x40, 0, ..] => 4,
                [0x0f, 0x1f, 0x44, 0, 0, ..] => 5,
                [0x0f, 0x1f, 0x80, 0, 0, 0, 0, ..] => 7,
                [0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0, ..] => 8,
                _ => return None,
            },
    )
}

/// The length of the padding at the start: `nop`, and zeros, which are no instruction.
fn nop_aarch64(code: &[u8]) -> Option<usize> {
    matches!(code.first_chunk()?, [0x1f, 0x20, 0x03, 0xd5] | [0, 0, 0, 0]).then_some(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_return_followed_by_padding_ends_a_function() {
        // 0x1000: test %edi,%edi; je +1; ret; xor %eax,%eax; ret; nopl 0x0(%rax,%rax,1)
        let code = b"\x85\xff\x74\x01\xc3\x31\xc0\xc3\x0f\x1f\x84\0\0\0\0\0\x90\xc3";
        assert_eq!(of(code, 0x1000, X86_64), Some(0x1008));
        // No padding: the return ends on the boundary.
        assert_eq!(of(code, 0x1008, X86_64), None);
        // Truncated within the padding.
        assert_eq!(of(&code[..12], 0x1000, X86_64), None);
        // NASM's padding, then a function; before it 0xc3 in mov $0x9090c3,%eax.
        let code = b"\xb8\xc3\x90\x90\x00\xc3\x90\x90\x90\x90\x90\x90\x90\x90\x90\x90\x53";
        assert_eq!(of(code, 0x1000, X86_64), Some(0x1006));
        assert_eq!(of(code, u64::MAX - 3, X86_64), None, "no overflow");
        assert_eq!(of(b"", 0, X86_64), None);
        assert_eq!(of(code, 0x1000, 3), None, "another processor");
    }

    #[test]
    fn on_aarch64_too() {
        let words = [0xd65f_03c0u32, 0x1400_0001, 0xd65f_03c0, 0xd503_201f, 0xd280_0000];
        let code: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
        assert_eq!(of(&code, 0x1000, AARCH64), Some(0x100c));
        assert_eq!(of(&code[..13], 0x1000, AARCH64), None);
    }
}
