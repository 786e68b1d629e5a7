//! Saved profiles: self-contained, with names instead of images.
//!
//! [`SavedProfile`] is converted from a recording or read from a file; formats, pictures and comparisons
//! are made from it. `formats` reads and writes files, `views` has the aggregations for display.

pub mod about;
pub mod builder;
mod exec_chains;
pub mod filter;
pub mod formats;
mod from_heap;
pub mod from_recording;
mod full;
pub mod inuse_history;
pub mod labels;
mod lifetimes;
mod merge;
mod remap;
mod root_names;
pub mod saved;
mod select_type;
mod split_by_thread;
mod stack_frame;
pub mod texts;
mod time_range;
pub mod timeline;
pub mod values;
pub mod views;
mod without_wrappers;

pub use about::{About, MetadataMismatch, SAMPLES};
pub use builder::{MergeError, SavedBuilder};
pub use from_heap::{RING_FULL, lost_bytes};
pub use from_recording::Circumstances;
pub use full::Full;
pub use labels::{LabelValue, LabelsId};
pub use root_names::{INCOMPLETE, shown};
pub use saved::{Frame, Function, Line, Mapping, SavedProfile, StackRoot, UNKNOWN};
pub use stack_frame::StackFrame;
pub use texts::{TextId, Texts};
pub use timeline::{Loss, ThreadTimeline, TimedSample, Timeline};
pub use values::{StackValues, ValueType};
pub use views::by_name::{ByName, FIBER, NameNode};
pub use views::call_tree::{CallTree, Direction};
pub use views::functions::{FunctionRow, FunctionTable};
pub use views::leak_sites::Caller;
pub use views::leaks::Leak;

/// Most functions per stack in a file, inlined ones included, for every format, so that a profile
/// read from one format can be read back from each. A recording has up to 65,536 frames, which can
/// expand to more functions.
pub const DEPTH_MAX: usize = 1 << 18;
