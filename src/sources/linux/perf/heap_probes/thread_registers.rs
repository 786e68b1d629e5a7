//! Thread registers as passed to a program at a probe: their offsets, and their conversion to the
//! `Registers` of `arch`.
//!
//! Sources: arch/x86/include/uapi/asm/ptrace.h (`struct pt_regs`), arch/arm64/include/uapi/asm/ptrace.h (`struct
//! user_pt_regs`); arguments by the System V ABI 3.2.3 and AAPCS64 6.8.

use crate::arch::Registers;

#[cfg(target_arch = "x86_64")]
mod arch {
    use crate::arch::{Registers, X86_64};

    /// Number of words in the structure.
    pub(in crate::sources::linux::perf) const COUNT: usize = 21;
    /// Indices of rdi, rsi, rdx and rcx.
    pub(super) const ARGUMENTS: [usize; 4] = [14, 13, 12, 11];
    /// rax.
    pub(super) const RESULT: usize = 10;
    pub(super) const SP: usize = 19;

    pub(super) fn from_words(words: &[u64; COUNT]) -> Registers {
        let [r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, _, ip, _, _, sp, _] = *words;
        let gpr = [ax, dx, cx, bx, si, di, bp, sp, r8, r9, r10, r11, r12, r13, r14, r15];
        Registers::X86_64(X86_64 { gpr, rip: ip, fs_base: 0 })
    }
}

#[cfg(target_arch = "aarch64")]
mod arch {
    use crate::arch::{Aarch64, Registers};

    /// Number of words in the structure.
    pub(in crate::sources::linux::perf) const COUNT: usize = 34;
    /// Indices of x0 to x3.
    pub(super) const ARGUMENTS: [usize; 4] = [0, 1, 2, 3];
    /// x0.
    pub(super) const RESULT: usize = 0;
    pub(super) const SP: usize = 31;

    pub(super) fn from_words(words: &[u64; COUNT]) -> Registers {
        let x = std::array::from_fn(|number| words[number]);
        Registers::Aarch64(Aarch64 { x, sp: words[31], pc: words[32] })
    }
}

pub(super) use arch::COUNT;

/// Offset of a function argument in a program's context.
pub(super) const fn argument_offset(number: usize) -> i16 {
    arch::ARGUMENTS[number] as i16 * 8
}

/// Offset of the function result in a program's context.
pub(super) const RESULT_OFFSET: i16 = arch::RESULT as i16 * 8;

/// Offset of the stack pointer in a program's context.
pub(super) const SP_OFFSET: i16 = arch::SP as i16 * 8;

/// Reads registers from a record; `None` if it is too short.
pub(super) fn read(bytes: &[u8]) -> Option<Registers> {
    let mut words = [0; COUNT];
    for (index, word) in words.iter_mut().enumerate() {
        *word = u64::from_ne_bytes(bytes.get(8 * index..8 * index + 8)?.try_into().ok()?);
    }
    Some(arch::from_words(&words))
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::addr::Avma;

    #[test]
    fn registers_have_the_order_of_the_kernel() {
        let bytes: Vec<u8> = (0..COUNT as u64).flat_map(|word| (100 + word).to_ne_bytes()).collect();
        let Registers::X86_64(registers) = read(&bytes).unwrap() else { panic!() };
        assert_eq!((registers.gpr[0], registers.gpr[5], registers.gpr[4]), (110, 114, 113));
        assert_eq!((registers.rip, read(&bytes).unwrap().sp()), (116, Avma(119)));
        assert_eq!((argument_offset(0), RESULT_OFFSET, SP_OFFSET), (112, 80, 152));
        assert!(read(&bytes[1..]).is_none());
    }
}
