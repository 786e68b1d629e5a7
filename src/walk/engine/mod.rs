//! Walking by unwind information and code, with all registers: from each frame to its caller by the row at its
//! address, or else by its code or its frame record. Input: registers, copied stack, `Code`; output: [`Frames`] and
//! why the walk ended.
//!
//! Every step is checked: a return address follows a call in executable memory, and the stack pointer rises. A walk
//! is complete only at the thread's known first function. What was learned about an address is kept (`cache.rs`).
//!
//! The loop (`walk.rs`) is generic over processors that implement [`Unwind`] (`methods.rs`): aarch64 and i386. x86_64
//! and 32-bit Arm have loops of their own: the first carries three registers where it can, the second an instruction
//! set and a second stack (docs/decisions/own-unwinder.md). All share whether a stack is complete
//! (`completeness.rs`); x86_64 also shares the checks of a step (`step.rs`) and how far a row can be relied on
//! (`proof.rs`, `frame_switch.rs`).

mod cache;
mod call_rows;
mod callee_cache;
mod completeness;
mod frame_switch;
mod methods;
mod proof;
mod rule;
mod step;
mod walk;

pub(super) use cache::{Cache, Shared};
pub(super) use call_rows::{CallRows, SharedCallRows};
pub(super) use callee_cache::CalleeCache;
pub(super) use completeness::Completeness;
pub(super) use frame_switch::FrameSwitch;
pub(super) use methods::{CallerRule, Unwind};
pub(super) use proof::Proof;
pub(super) use rule::RuleKind;
pub(super) use step::check;
pub(super) use walk::Engine;
