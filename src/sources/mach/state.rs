//! Converts the words of a thread state to registers.
//!
//! x86_THREAD_STATE64 and ARM_THREAD_STATE64 (osfmk/mach/i386/_structs.h, osfmk/mach/arm/_structs.h): 64-bit
//! little-endian fields in pairs of words. If this program and the target are both built for arm64e, the
//! kernel signs pc, lr, fp and sp (osfmk/arm64/status.c): sp is stripped here, since stacks are read by it,
//! the others by the walker, which finds signed ones on stacks, too.

use super::kernel::StateFlavor;
use crate::arch::Arch;
use crate::arch::{Aarch64, Registers, X86_64};

/// The state flavor of an architecture's general registers. Supported kernels are 64-bit, and 32-bit programs
/// are refused.
pub(super) fn flavor(arch: Arch) -> StateFlavor {
    match arch {
        Arch::X86_64 | Arch::X86 => StateFlavor::X86_64,
        Arch::Aarch64 | Arch::Arm => StateFlavor::ARM64,
    }
}

/// The registers in a state of [`flavor`]; `address_mask` has the bits of an address.
pub(super) fn registers(arch: Arch, state: &[u32; StateFlavor::COUNT_MAX], address_mask: u64) -> Registers {
    let word = |index: usize| u64::from(state[2 * index]) | u64::from(state[2 * index + 1]) << 32;
    match arch {
        // rax rbx rcx rdx rdi rsi rbp rsp r8..r15 rip rflags cs fs gs, here by DWARF number.
        Arch::X86_64 | Arch::X86 => Registers::X86_64(X86_64 {
            gpr: [
                word(0),
                word(3),
                word(2),
                word(1),
                word(5),
                word(4),
                word(6),
                word(7),
                word(8),
                word(9),
                word(10),
                word(11),
                word(12),
                word(13),
                word(14),
                word(15),
            ],
            rip: word(16),
            // Thread-local storage is addressed through gs, and the state lacks its base.
            fs_base: 0,
        }),
        // x0..x28, fp, lr, sp, pc.
        Arch::Aarch64 | Arch::Arm => {
            let sp = word(31) & address_mask;
            Registers::Aarch64(Aarch64 { x: std::array::from_fn(word), sp, pc: word(32) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A state with each word set to its index.
    fn numbered() -> [u32; StateFlavor::COUNT_MAX] {
        std::array::from_fn(|index| index as u32)
    }

    fn at(offset: usize) -> u64 {
        let word = offset as u64 / 4;
        word | (word + 1) << 32
    }

    #[test]
    fn register_offsets_match_the_headers() {
        let Registers::X86_64(x86) = registers(Arch::X86_64, &numbered(), u64::MAX) else {
            panic!("another processor")
        };
        assert_eq!(x86.rip, at(128));
        let dwarf =
            [(0, 0), (1, 24), (2, 16), (3, 8), (4, 40), (5, 32), (X86_64::RBP, 48), (X86_64::RSP, 56)];
        for (number, offset) in dwarf.into_iter().chain((8..16).map(|number| (number, number * 8))) {
            assert_eq!(x86.gpr[number], at(offset), "register {number}");
        }
        let Registers::Aarch64(arm) = registers(Arch::Aarch64, &numbered(), u64::MAX) else {
            panic!("another processor")
        };
        assert_eq!((arm.x[0], arm.x[28]), (at(0), at(224)));
        assert_eq!(
            (arm.x[Aarch64::FP], arm.x[Aarch64::LR], arm.sp, arm.pc),
            (at(232), at(240), at(248), at(256))
        );
    }

    #[test]
    fn only_an_arm64_stack_pointer_may_be_signed() {
        const MASK: u64 = (1 << 47) - 1;
        let arm = registers(Arch::Aarch64, &[u32::MAX; StateFlavor::COUNT_MAX], MASK);
        assert_eq!((arm.sp().0, arm.pc().0), (MASK, u64::MAX));
        let x86 = registers(Arch::X86_64, &[u32::MAX; StateFlavor::COUNT_MAX], MASK);
        assert_eq!(x86.sp().0, u64::MAX);
    }
}
