//! Walking by unwind information and code, with all registers: from each frame to its caller by the row at its
//! address, or else by its code or its frame record. Input: registers, copied stack, `Code`; output: [`Frames`] and
//! why the walk ended.
//!
//! Every step is checked: a return address follows a call in executable memory, and the stack pointer rises. A walk
//! is complete only at the thread's known first function. What was learned of an address is kept (`cache.rs`).
//!
//! The loop is one for all processors that are [`Unwind`]; what one of them does in its own way is a method of that (`methods.rs`).
//! x86_64 and 32-bit Arm have loops of their own, of the same steps (`step.rs`): the first carries three registers
//! where it can, the second an instruction set and a second stack.

mod cache;
mod call_rows;
mod methods;
mod rule;
mod step;
mod walk;

pub(super) use cache::{Cache, Shared};
pub(super) use call_rows::{CallRows, SharedCallRows};
pub(super) use methods::{CallerRule, Unwind};
pub(super) use rule::RuleKind;
pub(super) use step::check;
pub(super) use walk::Engine;
