//! Comparison of two profiles.
//!
//! ```text
//! normalize   names that survive a rebuild
//! builds      functions without a name that are the same in all profiles
//! stacks      saved profiles → one tree of names, counts by run
//! functions   → self and total of each function, by run
//! lost        what a run lost: time without a sample
//! compare     two runs → rows, by seconds or by shares; or why not (incomparable)
//! tree        two runs → nodes in pre-order, for a flame graph
//! report      rows → text, Markdown, JSON, folded stacks with two counts
//! ```
//!
//! Not for a verdict with error rates: that needs several runs a side, see [`gate`](crate::gate).

pub mod compare;
pub mod normalize;
pub mod report;
pub mod stacks;
