//! ELF machine numbers (`e_machine`).

use object::elf;

/// i386.
pub const X86: u16 = elf::EM_386.0;
/// 32-bit Arm.
pub const ARM: u16 = elf::EM_ARM.0;
/// x86-64.
pub const X86_64: u16 = elf::EM_X86_64.0;
/// AArch64.
pub const AARCH64: u16 = elf::EM_AARCH64.0;
