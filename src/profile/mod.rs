//! Saved profiles: self-contained, with names instead of images.
//!
//! [`SavedProfile`] is converted from a recording or read from a file; formats, pictures and comparisons
//! are made from it. `formats` reads and writes files, `views` has the aggregations for display.

pub mod about;
pub mod builder;
pub mod filter;
pub mod formats;
pub mod from_recording;
mod merge;
pub mod saved;
pub mod texts;
pub mod timeline;
pub mod views;

pub use about::{About, MetadataMismatch, SAMPLES};
pub use builder::{MergeError, SavedBuilder};
pub use from_recording::{Circumstances, INCOMPLETE, RING_FULL, lost_bytes, shown};
pub use saved::{
    Frame, Full, Function, LabelValue, LabelsId, Line, Mapping, SavedProfile, StackFrame, StackRoot,
    StackValues, UNKNOWN, ValueType,
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
