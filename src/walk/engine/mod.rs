//! Walking by unwind information and code, with all registers: from each frame to its caller by the row at its
//! address, or else by its code or its frame record. Input: registers, copied stack, `Code`; output: [`Frames`]
//! and the [`StackEnd`](super::StackEnd).
//!
//! Every step is checked: a return address follows a call in executable memory, and the stack pointer rises. A
//! walk is complete only at the thread's known first function. Facts about addresses are cached (`cache.rs`).
//!
//! The loop (`walk.rs`) is generic over processors that implement [`Unwind`] (`methods.rs`): aarch64 and i386.
//! x86_64 and 32-bit Arm have separate loops: the first carries only three registers if it can, the second an
//! instruction set and a second stack (docs/decisions/own-unwinder.md). All share the decision whether a stack is
//! complete (`completeness.rs`); x86_64 also shares the checks of a step (`step.rs`) and the reliability of rows
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
