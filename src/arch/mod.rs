//! Processors: their names, and the registers that walking a stack begins with.

mod registers;

pub use registers::*;

/// The instruction set a target runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arch {
    /// AMD64 / Intel 64.
    X86_64,
    /// 64-bit Arm.
    Aarch64,
}

impl Arch {
    /// The name users know: `x86_64`, `aarch64`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Arch::X86_64 => "x86_64",
            Arch::Aarch64 => "aarch64",
        }
    }
}
