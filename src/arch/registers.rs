//! The registers of a stopped thread, per architecture: a leaf that target and walk share.

use super::Arch;
use crate::addr::Avma;

/// Bytes below the stack pointer that code may keep words in and nothing but itself overwrites:
/// System V AMD64 ABI 3.2.2, and Apple's "Writing ARM64 code for Apple platforms" (the procedure
/// call standard of Linux on aarch64 has none). Unwind information may refer to them.
pub const RED_ZONE_BYTES: u64 = 128;

/// Stands for a register that nobody told: no address of a program's memory, and not 0, which ends a
/// chain of frame records. A word of a program that is the same only makes a stack incomplete.
pub const UNKNOWN_REGISTER: u64 = 0xdead_dead_dead_dea8;

/// x86_64 registers. `gpr` is in DWARF register order (System V AMD64 ABI, figure 3.36),
/// which is not the order of the encoding: rax rdx rcx rbx rsi rdi rbp rsp r8..r15.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct X86_64 {
    /// General registers 0..=15 by DWARF number.
    pub gpr: [u64; 16],
    /// Program counter (DWARF 16, the return address column).
    pub rip: u64,
    /// Thread pointer.
    pub fs_base: u64,
}

impl X86_64 {
    /// DWARF number of the frame pointer.
    pub const RBP: usize = 6;
    /// DWARF number of the stack pointer.
    pub const RSP: usize = 7;
}

/// aarch64 registers, in DWARF order (x0..x30, then sp; pc beside them).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Aarch64 {
    /// x0..=x30; x29 is the frame pointer, x30 the link register.
    pub x: [u64; 31],
    /// Stack pointer.
    pub sp: u64,
    /// Program counter.
    pub pc: u64,
}

impl Aarch64 {
    /// Number of the frame pointer.
    pub const FP: usize = 29;
    /// Number of the link register.
    pub const LR: usize = 30;
}

/// The general registers of a stopped thread, in user mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registers {
    /// x86_64.
    X86_64(X86_64),
    /// aarch64.
    Aarch64(Aarch64),
}

impl Default for Registers {
    fn default() -> Registers {
        Registers::X86_64(X86_64::default())
    }
}

impl Registers {
    /// The processor that they are of.
    #[must_use]
    pub fn arch(&self) -> Arch {
        match self {
            Registers::X86_64(_) => Arch::X86_64,
            Registers::Aarch64(_) => Arch::Aarch64,
        }
    }

    /// The program counter.
    #[must_use]
    pub fn pc(&self) -> Avma {
        match self {
            Registers::X86_64(r) => Avma(r.rip),
            Registers::Aarch64(r) => Avma(r.pc),
        }
    }

    /// The stack pointer.
    #[must_use]
    pub fn sp(&self) -> Avma {
        match self {
            Registers::X86_64(r) => Avma(r.gpr[X86_64::RSP]),
            Registers::Aarch64(r) => Avma(r.sp),
        }
    }
}
