//! Processors: names, pointer size, and the registers that a stack walk starts with.
//!
//! `Arch`, `ByteOrder` and `Abi` name a processor; `Registers` are those of a stopped thread, one struct for each
//! processor.

use crate::addr::Avma;

/// The instruction set a target runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arch {
    /// AMD64 / Intel 64.
    X86_64,
    /// 64-bit Arm.
    Aarch64,
    /// 32-bit x86.
    X86,
    /// 32-bit Arm: A32 and T32, with or without an operating system.
    Arm,
}

/// Order of the bytes of a word in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteOrder {
    /// Least significant byte first.
    Little,
}

/// The ABI of a system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abi {
    /// System V and the procedure call standards of Arm: Linux, programs without an operating system.
    SystemV,
    /// Apple's: macOS.
    Apple,
}

impl Arch {
    /// The name users know: `x86_64`, `aarch64`, `i386`, `arm`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Arch::X86_64 => "x86_64",
            Arch::Aarch64 => "aarch64",
            Arch::X86 => "i386",
            Arch::Arm => "arm",
        }
    }

    /// Bytes of a pointer: 4 or 8.
    #[must_use]
    pub const fn pointer_bytes(self) -> u64 {
        match self {
            Arch::X86_64 | Arch::Aarch64 => 8,
            Arch::X86 | Arch::Arm => 4,
        }
    }

    /// The byte order of data read from targets. Big-endian targets are refused where they are identified, so
    /// there is only one.
    #[must_use]
    pub const fn byte_order(self) -> ByteOrder {
        ByteOrder::Little
    }

    /// Size of the red zone: bytes below the stack pointer that code may use and that neither signal handlers nor
    /// interrupts overwrite. Unwind information may refer to them. Sources: System V AMD64 ABI, 3.2.2; Apple, "Writing
    /// ARM64 code for Apple platforms". The Procedure Call Standard for the Arm 64-bit Architecture, that for the Arm
    /// Architecture (6.2.1.1) and the System V i386 ABI have none.
    #[must_use]
    pub const fn red_zone_bytes(self, abi: Abi) -> u64 {
        match (self, abi) {
            (Arch::X86_64, _) | (Arch::Aarch64, Abi::Apple) => RED_ZONE_BYTES,
            (Arch::Aarch64, Abi::SystemV) | (Arch::X86 | Arch::Arm, _) => 0,
        }
    }

    /// The largest red zone of this processor, for code with unknown ABI.
    #[must_use]
    pub const fn red_zone_bytes_max(self) -> u64 {
        let (system_v, apple) = (self.red_zone_bytes(Abi::SystemV), self.red_zone_bytes(Abi::Apple));
        if system_v > apple { system_v } else { apple }
    }
}

// ---- The registers of a stopped thread, by processor.

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
