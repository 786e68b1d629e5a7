//! Processors: their names, the size of their pointers, and the registers that walking a stack begins
//! with.

mod registers;

pub use registers::*;

/// The instruction set a target runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arch {
    /// AMD64 / Intel 64.
    X86_64,
    /// 64-bit Arm.
    Aarch64,
    /// 32-bit programs of Intel processors.
    X86,
    /// 32-bit Arm: A32 and T32, with or without an operating system.
    Arm,
}

/// In which order the bytes of a word stand in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteOrder {
    /// The lowest byte first.
    Little,
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

    /// Bytes of an address in memory: 4 or 8.
    #[must_use]
    pub const fn pointer_bytes(self) -> u64 {
        match self {
            Arch::X86_64 | Arch::Aarch64 => 8,
            Arch::X86 | Arch::Arm => 4,
        }
    }

    /// The order of bytes of what is read from targets. Big-endian ones are refused where they are
    /// named, so there is one order only.
    #[must_use]
    pub const fn byte_order(self) -> ByteOrder {
        ByteOrder::Little
    }

    /// Bytes below the stack pointer that code may keep words in and nothing but itself overwrites;
    /// unwind information may refer to them. System V AMD64 ABI 3.2.2, and Apple's "Writing ARM64 code
    /// for Apple platforms" (the procedure call standard of Linux on aarch64 has none). The System V
    /// i386 ABI and the Procedure Call Standard for the Arm Architecture (6.2.1.1) have none: handlers
    /// of signals and interrupts write there.
    #[must_use]
    pub const fn red_zone_bytes(self) -> u64 {
        match self {
            Arch::X86_64 | Arch::Aarch64 => RED_ZONE_BYTES,
            Arch::X86 | Arch::Arm => 0,
        }
    }
}
