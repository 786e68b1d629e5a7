//! Walking on 32-bit Arm: A32, T32, and the exceptions of M-profile cores. Like `aarch64/`, file for
//! file where that is possible: `unwinder.rs` is the loop, `cache.rs` finds what leads from an address
//! to its caller, `frame.rs` makes the step; `instructions.rs` executes instructions (`a32.rs`, `t32.rs`
//! and `t32_wide.rs` know the encodings); `call.rs` and `start.rs` know calls and start code, `record.rs`
//! where a function keeps its frame record.
//!
//! What differs: the lowest bit of a code address is its instruction set, and is cleared
//! where code is looked up; there is no one frame pointer, and no one layout of frame records; code
//! without unwind tables is usual, so that `entry.rs` searches for where a function begins; exceptions
//! of M-profile cores return to special values (`exception.rs`); and there is a search of the
//! stack (`scan.rs`).

mod a32;
mod cache;
mod call;
mod entry;
mod exception;
mod frame;
mod instructions;
mod operations;
mod record;
mod registers;
mod scan;
mod start;
mod t32;
mod t32_wide;
mod unwinder;

mod processor;
#[cfg(test)]
mod tests;

pub(super) use unwinder::Unwinder;

use registers::{LR, PC, SP, T32};
