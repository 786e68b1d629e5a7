//! Processors: names, pointer size, and the registers that a stack walk starts with.

mod registers;

pub use registers::*;

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
