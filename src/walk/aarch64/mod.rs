//! Walking on aarch64. `methods.rs` implements `Unwind` for the engine, `records.rs` and `leaf.rs` walk by
//! frame pointers; `instructions.rs` executes instructions; `call.rs`, `start.rs` and `record.rs` know calls,
//! start code and prologues.
//!
//! What differs: the return address is in the link register until a function saves it, so a
//! row may say that the caller is there; only the leaf's can. Return addresses may carry a
//! signature above the bits of [`Input::code_mask`](super::Input::code_mask), which is stripped. Frame
//! pointers may carry Swift's mark, which is stripped, too. There is no search of the stack.

pub(super) mod call;
mod instructions;
mod leaf;
mod methods;
mod new_thread;
mod processor;
mod record;
mod records;
mod start;

use processor::{LR, SP};
