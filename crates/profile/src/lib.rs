//! Profiles that need neither the process nor its files.
//!
#![doc = include_str!("../README.md")]
//!
//! ```text
//! trie        one node per (parent, frame), counts
//! heap        sampled allocations -> bytes in use by stack, their sampling error
//! saved       the profile: about it, its texts, its timeline; built by builder, narrowed by filter
//! formats     files <-> profiles
//! views       profiles -> functions, trees, threads, leaks
//! flamegraph  the picture; html: the page
//! diff        two profiles -> what changed
//! gate        several profiles per side -> a verdict
//! ```

pub mod about;
pub mod builder;
pub mod diff;
pub mod error;
pub mod escape;
pub mod filter;
pub mod flamegraph;
pub mod formats;
pub mod gate;
pub mod heap;
mod merge;
pub mod module_offset;
pub mod rng;
pub mod saved;
mod table;
pub mod texts;
pub mod timeline;
pub mod trie;
pub mod views;

pub use about::{About, MetadataMismatch, RING_FULL, SAMPLES};
pub use builder::{MergeError, SavedBuilder};
pub use saved::{
    Frame, Full, Function, INCOMPLETE, LabelValue, LabelsId, Line, Mapping, SavedProfile, StackFrame,
    StackRoot, StackValues, UNKNOWN, ValueType, shown,
};
pub use texts::{TextId, Texts};
pub use timeline::{Loss, ThreadTimeline, TimedSample, Timeline};
pub use views::by_name::{ByName, FIBER, NameNode};
pub use views::call_tree::{CallTree, Direction};
pub use views::functions::{FunctionRow, FunctionTable};
pub use views::leaks::{Caller, Leak};

/// Most functions per stack in a file, inlined ones included, for every format, so that a profile
/// read from one format can be read back from each. A recording has up to 65,536 frames, which can
/// expand to more functions.
pub const DEPTH_MAX: usize = 1 << 18;

/// CPU time of tests.
#[cfg(test)]
#[path = "../../../tests/support/cpu_time.rs"]
mod cpu_time;
/// The seeds that tests run.
#[cfg(test)]
#[path = "../../../tests/support/rounds.rs"]
mod rounds;
/// What a test lacks.
#[cfg(test)]
#[path = "../../../tests/support/skip.rs"]
mod skip;
