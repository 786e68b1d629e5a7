//! The 32-bit Arm registers that frames are found by, by DWARF number.

use crate::arch::Arm;

pub(super) const SP: u8 = Arm::SP as u8;
pub(super) const LR: u8 = Arm::LR as u8;
pub(super) const PC: u8 = Arm::PC as u8;
/// The bit of a code address that marks T32 code.
pub(super) const T32: u64 = 1;
