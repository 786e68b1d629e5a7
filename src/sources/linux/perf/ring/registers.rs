//! User registers in samples: the request mask, and parsing.
//!
//! Numbers: arch/x86/include/uapi/asm/perf_regs.h, arch/arm64/include/uapi/asm/perf_regs.h. Samples have them in
//! ascending order.

use crate::addr::Avma;
use crate::arch::Registers;

#[cfg(target_arch = "x86_64")]
mod arch {
    use crate::addr::Avma;
    use crate::arch::{Registers, UNKNOWN_REGISTER, X86, X86_64};

    /// ax bx cx dx si di bp sp ip, then r8 to r15.
    pub(crate) const MASK: u64 = 0x1ff | 0xff << 16;

    pub(super) fn from_words(words: &[u64]) -> Option<Registers> {
        let [ax, bx, cx, dx, si, di, bp, sp, ip, high @ ..] = words else { return None };
        let mut gpr = [*ax, *dx, *cx, *bx, *si, *di, *bp, *sp, 0, 0, 0, 0, 0, 0, 0, 0];
        gpr.get_mut(8..)?.copy_from_slice(high.get(..8)?);
        Some(Registers::X86_64(X86_64 { gpr, rip: *ip, fs_base: 0 }))
    }

    /// Registers of 32-bit code are the lower halves of those of 64-bit code.
    pub(super) fn from_compat_words(words: &[u64]) -> Option<Registers> {
        let [ax, bx, cx, dx, si, di, bp, sp, ip, ..] = words else { return None };
        let narrow = |word: &u64| word & u64::from(u32::MAX);
        let gpr = [ax, cx, dx, bx, sp, bp, si, di].map(narrow);
        Some(Registers::X86(X86 { gpr, eip: narrow(ip) }))
    }

    pub(super) fn of_waiting(sp: Avma, pc: Avma, of_32_bits: bool) -> Registers {
        if of_32_bits {
            let mut gpr = [UNKNOWN_REGISTER; 8];
            gpr[X86::ESP] = sp.0;
            return Registers::X86(X86 { gpr, eip: pc.0 });
        }
        let mut gpr = [UNKNOWN_REGISTER; 16];
        gpr[X86_64::RSP] = sp.0;
        Registers::X86_64(X86_64 { gpr, rip: pc.0, fs_base: 0 })
    }
}

#[cfg(target_arch = "aarch64")]
mod arch {
    use crate::addr::Avma;
    use crate::arch::{Aarch64, Arm, Registers, UNKNOWN_REGISTER};

    /// x0 to x30, sp, pc.
    pub(crate) const MASK: u64 = (1 << 33) - 1;

    pub(super) fn from_words(words: &[u64]) -> Option<Registers> {
        let x = words.get(..31)?.try_into().ok()?;
        Some(Registers::Aarch64(Aarch64 { x, sp: *words.get(31)?, pc: *words.get(32)? }))
    }

    /// Registers of 32-bit Arm are the lower halves of the first fifteen (including `compat_sp` and `compat_lr` of
    /// arch/arm64/include/asm/ptrace.h); the program counter is separate. The status register cannot be requested.
    pub(super) fn from_compat_words(words: &[u64]) -> Option<Registers> {
        let mut r = [0; 16];
        r[..Arm::PC].copy_from_slice(words.get(..Arm::PC)?);
        r[Arm::PC] = *words.get(32)?;
        let r = r.map(|word| word & u64::from(u32::MAX));
        Some(Registers::Arm(Arm { r, cpsr: None, m_profile: false }))
    }

    pub(super) fn of_waiting(sp: Avma, pc: Avma, of_32_bits: bool) -> Registers {
        if of_32_bits {
            let mut r = [UNKNOWN_REGISTER; 16];
            (r[Arm::SP], r[Arm::PC]) = (sp.0, pc.0);
            return Registers::Arm(Arm { r, cpsr: None, m_profile: false });
        }
        Registers::Aarch64(Aarch64 { x: [UNKNOWN_REGISTER; 31], sp: sp.0, pc: pc.0 })
    }
}

pub(in crate::sources::linux::perf) use arch::MASK;

/// Number of registers in a sample.
pub(in crate::sources::linux::perf) const COUNT: usize = MASK.count_ones() as usize;

/// Parses the registers of a sample from a thread in 32-bit code or not; `None` if there are too few, or the
/// format is unknown.
pub(in crate::sources::linux::perf) fn read(bytes: &[u8], compat: bool) -> Option<Registers> {
    let mut words = [0; COUNT];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_ne_bytes(bytes.try_into().ok()?);
    }
    if compat { arch::from_compat_words(&words) } else { arch::from_words(&words) }
}

/// Registers of a waiting thread with only stack pointer and program counter known, of a 32-bit program or not.
pub(in crate::sources::linux) fn of_waiting(sp: Avma, pc: Avma, of_32_bits: bool) -> Registers {
    arch::of_waiting(sp, pc, of_32_bits)
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn registers_have_the_order_of_dwarf() {
        let bytes: Vec<u8> = (0..COUNT as u64).flat_map(|word| (100 + word).to_ne_bytes()).collect();
        let Registers::X86_64(registers) = read(&bytes, false).unwrap() else { panic!() };
        assert_eq!(registers.gpr[..8], [100, 103, 102, 101, 104, 105, 106, 107]);
        assert_eq!((registers.gpr[8], registers.gpr[15], registers.rip), (109, 116, 108));
        assert_eq!(read(&bytes, false).unwrap().sp(), Avma(107));
    }

    #[test]
    fn registers_of_32_bit_code_are_lower_halves() {
        let high = 0xffff_ffff_0000_0000;
        let bytes: Vec<u8> = (0..COUNT as u64).flat_map(|word| (high + 100 + word).to_ne_bytes()).collect();
        let Registers::X86(registers) = read(&bytes, true).unwrap() else { panic!() };
        assert_eq!(registers.gpr, [100, 102, 103, 101, 107, 106, 104, 105]);
        assert_eq!(registers.eip, 108);
    }
}
