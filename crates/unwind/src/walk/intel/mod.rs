//! Common code of x86_64 and i386: instruction decoding and effects (`instructions.rs`), calls before return
//! addresses, and whether they confirm a caller (`call.rs`), code without unwind information (`forward.rs`,
//! `prologue.rs`), threads that have run no instruction (`prologue.rs`), and instructions at which registers belong
//! to two frames (`switch_instructions.rs`). Each is generic over [`Intel`] and compiled separately for each
//! processor. Not for: the walks themselves.

pub(super) mod call;
pub(super) mod forward;
pub(super) mod instructions;
pub(super) mod prologue;
pub(super) mod switch_instructions;

use super::processor::Processor;
use crate::addr::Avma;

/// The differences between the two, in addition to [`Processor`]. Implemented by the types of their registers.
pub(crate) trait Intel: Processor {
    /// Whether instructions are those of 64-bit mode (Intel SDM volume 1, 3.1).
    const IS_LONG: bool;
    /// Register number in instructions → DWARF number.
    const DWARF: [u8; 16];
    /// The dynamic linker's instructions after `_dl_start`, which save the returned entry point of the program and
    /// continue. No other start code does that.
    const KEEPS_ENTRY: &'static [u8];

    /// Size of a pointer, signed.
    const POINTER: i64 = Self::POINTER_BYTES.cast_signed();

    /// The address at a distance from another; wraps like the processor's.
    fn from(at: Avma, distance: i64) -> Avma {
        let to = at.0.wrapping_add_signed(distance);
        Avma(if Self::IS_LONG { to } else { to & u64::from(u32::MAX) })
    }
}
