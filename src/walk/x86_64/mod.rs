//! Walking on x86_64. `unwinder.rs` walks by unwind information and code, `leaf.rs` finds the leaf's caller for
//! walks by frame pointers; `rule.rs` packs rules for callers, `cache.rs` stores them by address, `frame.rs` makes
//! the step; `start.rs` and `record.rs` recognize start code and prologues. `intel/` has the code shared with
//! i386: instructions, calls, code without unwind information. The other files are about code that only this
//! processor's programs have.

mod cache;
mod callee_stack;
mod frame;
mod leaf;
mod processor;
mod record;
mod records;
mod rule;
mod scan;
mod stack_base;
mod stack_load;
mod start;
mod syscall;
mod unwinder;

#[cfg(test)]
pub(super) use cache::Cache;
pub(super) use cache::Shared;
#[cfg(test)]
pub(super) use rule::RuleKind;
pub(super) use unwinder::Unwinder;

use processor::{RBP, RSP};
