//! The registers of a stopped thread, per architecture: a leaf module that target and walk share.

use super::Arch;
use crate::addr::Avma;

/// The largest red zone of any processor and ABI; see [`Arch::red_zone_bytes`].
pub const RED_ZONE_BYTES: u64 = 128;

/// Placeholder for a register without a value: not a valid program address on 32 or 64 bits, and not 0, which ends
/// a chain of frame records. A program word of the same value only makes a stack incomplete.
pub const UNKNOWN_REGISTER: u64 = 0xdead_dead_dead_dea8;

/// x86_64 registers. `gpr` is in DWARF register order (System V AMD64 ABI, figure 3.36), which differs from the
/// encoding order: rax rdx rcx rbx rsi rdi rbp rsp r8..r15.
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

/// aarch64 registers, in DWARF order (x0..x30, then sp), and pc.
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

/// i386 registers, in DWARF order (System V i386 ABI, table 2.14): eax ecx edx ebx esp ebp esi edi. Values are
/// zero-extended, so none equals [`UNKNOWN_REGISTER`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct X86 {
    /// General registers 0..=7 by DWARF number.
    pub gpr: [u64; 8],
    /// Program counter (DWARF 8, the return address column).
    pub eip: u64,
}

impl X86 {
    /// DWARF number of the stack pointer.
    pub const ESP: usize = 4;
    /// DWARF number of the frame pointer.
    pub const EBP: usize = 5;
}

/// Registers of 32-bit Arm, in DWARF order (AADWARF32, 4.1). Values are zero-extended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arm {
    /// r0..=r15; r13 is the stack pointer, r14 the link register, r15 the program counter.
    pub r: [u64; 16],
    /// The status register: CPSR, or xPSR of an M-profile core; `None` if it is unknown.
    pub cpsr: Option<u32>,
    /// The core is of the M profile (Cortex-M): T32 only, and exceptions push a frame.
    pub m_profile: bool,
}

impl Arm {
    /// Number of the stack pointer.
    pub const SP: usize = 13;
    /// Number of the link register.
    pub const LR: usize = 14;
    /// Number of the program counter.
    pub const PC: usize = 15;
}

/// The general registers of a stopped thread, in user mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registers {
    /// x86_64.
    X86_64(X86_64),
    /// aarch64.
    Aarch64(Aarch64),
    /// i386.
    X86(X86),
    /// 32-bit Arm.
    Arm(Arm),
}

impl Default for Registers {
    fn default() -> Registers {
        Registers::X86_64(X86_64::default())
    }
}

impl Registers {
    /// The processor of these registers.
    #[must_use]
    pub fn arch(&self) -> Arch {
        match self {
            Registers::X86_64(_) => Arch::X86_64,
            Registers::Aarch64(_) => Arch::Aarch64,
            Registers::X86(_) => Arch::X86,
            Registers::Arm(_) => Arch::Arm,
        }
    }

    /// The program counter.
    #[must_use]
    pub fn pc(&self) -> Avma {
        match self {
            Registers::X86_64(r) => Avma(r.rip),
            Registers::Aarch64(r) => Avma(r.pc),
            Registers::X86(r) => Avma(r.eip),
            Registers::Arm(r) => Avma(r.r[Arm::PC]),
        }
    }

    /// The stack pointer.
    #[must_use]
    pub fn sp(&self) -> Avma {
        match self {
            Registers::X86_64(r) => Avma(r.gpr[X86_64::RSP]),
            Registers::Aarch64(r) => Avma(r.sp),
            Registers::X86(r) => Avma(r.gpr[X86::ESP]),
            Registers::Arm(r) => Avma(r.r[Arm::SP]),
        }
    }
}
