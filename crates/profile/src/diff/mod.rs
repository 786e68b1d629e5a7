//! Comparison of two profiles.
//!
//! ```text
//! normalize   names that survive a rebuild; functions without a name that are the same in all profiles
//! stacks      saved profiles → one tree of names, counts by run; the tree of two runs for a flame graph
//! compare     self and total of each function; two runs → rows, by seconds or by shares; losses; or why not
//! report      rows → text, Markdown, JSON, folded stacks with two counts
//! ```
//!
//! Not for a verdict with error rates: that needs several runs a side, see [`gate`](crate::gate).

pub mod compare;
pub mod normalize;
pub mod report;
pub mod stacks;
