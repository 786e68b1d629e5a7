//! Walking on i386, with the code in `intel/` that it shares with x86_64. `methods.rs` implements `Unwind` for the
//! engine, `records.rs` and `leaf.rs` walk by frame pointers; `start.rs` and `record.rs` recognize start code and
//! prologues.
//!
//! Differences from x86_64: words of four bytes, no red zone, arguments on the stack (a function may pop them on
//! return), and calls of the next instruction, which read their own address. The stack is not scanned.

mod leaf;
mod methods;
mod processor;
mod record;
mod records;
mod start;

use processor::{EAX, EBP, ESP, POINTER};
