//! Walking on i386, with what `intel/` shares with x86_64. `methods.rs` implements `Unwind` for the engine: what
//! there is at an address, `records.rs` and `leaf.rs` walk by frame pointers; `start.rs` and `record.rs` know start
//! code and prologues.
//!
//! What differs from x86_64: words of four bytes, no red zone, arguments on the stack (a function may
//! take them off when it returns), and calls of the next instruction, which read their own address.
//! There is no search of the stack.

mod leaf;
mod methods;
mod processor;
mod record;
mod records;
mod start;

use processor::{EAX, EBP, ESP, POINTER};
