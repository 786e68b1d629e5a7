//! Walking on 32-bit Arm: A32, T32, and the exceptions of M-profile cores. Structured like `aarch64/` where
//! possible: `unwinder.rs` is the loop, `cache.rs` finds the rule at an address, `frame.rs` makes the step;
//! `instructions.rs` executes instructions (`a32.rs`, `t32.rs` and `t32_wide.rs` decode the encodings); `call.rs`
//! and `start.rs` recognize calls and start code, `record.rs` finds the layout of a function's frame record.
//!
//! Differences: the lowest bit of a code address is its instruction set, and is cleared for look-ups; there is no
//! single frame pointer or layout of frame records; code without unwind tables is common, so `entry.rs` searches
//! for function entries; exceptions of M-profile cores return to special values (`exception.rs`); and the stack
//! may be scanned (`scan.rs`).

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
