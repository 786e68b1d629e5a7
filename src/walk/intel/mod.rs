//! What x86_64 and i386 have in common: the form of their instructions and what these do
//! (`length.rs`, `instructions.rs`), calls in front of return addresses (`call.rs`), code without
//! unwind information (`forward.rs`, `prologue.rs`, `call_check.rs`), threads that have run no instruction
//! (`new_thread.rs`), and instructions at which registers belong to two frames (`switching.rs`). Each is generic
//! over [`Intel`], so that what is made of it for one processor knows nothing of the other. Not for: how
//! either walks.

pub(super) mod call;
pub(super) mod call_check;
pub(super) mod forward;
pub(super) mod instructions;
pub(super) mod length;
pub(super) mod new_thread;
pub(super) mod prologue;
pub(super) mod switching;

use super::processor::Processor;
use crate::addr::Avma;

/// What differs between the two, beside [`Processor`]. Implemented by the types of their registers.
pub(super) trait Intel: Processor {
    /// Instructions are those of 64-bit mode (Intel SDM volume 1, 3.1).
    const IS_LONG: bool;
    /// Registers by their number in instructions → by DWARF number.
    const DWARF: [u8; 16];
    /// What the dynamic linker's start code does with the address that `_dl_start` returns: it keeps
    /// that of the program's first instruction and goes on, as no other start code does.
    const KEEPS_ENTRY: &'static [u8];

    /// Bytes of an address, signed.
    const POINTER: i64 = Self::POINTER_BYTES.cast_signed();

    /// The address that lies a number of bytes from another: it wraps as the processor's do.
    fn from(at: Avma, distance: i64) -> Avma {
        let to = at.0.wrapping_add_signed(distance);
        Avma(if Self::IS_LONG { to } else { to & u64::from(u32::MAX) })
    }
}
