//! Walking on aarch64. `methods.rs` implements `Unwind` for the engine, `records.rs` and `leaf.rs` walk by frame
//! pointers; `instructions.rs` executes instructions; `call.rs`, `start.rs` and `record.rs` recognize calls, start
//! code and prologues.
//!
//! Differences: the return address is in the link register until a function saves it, so the row of a leaf may
//! refer to the link register; rows of other frames cannot. Return addresses may carry a signature above the bits
//! of [`Input::address_mask`](super::Input::address_mask), and frame pointers Swift's async mark; both are stripped. The
//! stack is not scanned.

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
