//! The parsed options of a heap recording.

use super::render::Patterns;
use crate::heap::{Moment, ValueKind};
use crate::sources::gdb::AllocatorNames;

/// How allocations are recorded and shown.
#[derive(Clone, Debug, PartialEq)]
pub struct Heap {
    /// Bytes per sample on average.
    pub every_bytes: u64,
    /// Records anonymous mappings, too.
    pub records_mappings: bool,
    /// The moment of the in-use values.
    pub moment: Moment,
    /// The value type for formats with a single one.
    pub shown: ValueKind,
    /// Number of callers in the table of leaks; `None`: as many as tell sites apart.
    pub callers: Option<usize>,
    /// Functions skipped in the table of leaks.
    pub skip: Patterns,
    /// Minimum age of blocks that count as in use at the end, nanoseconds.
    pub older_than_ns: Option<u64>,
    /// Slowdown limit of an attached process, percent of the elapsed time, or of its CPU time if that is more.
    pub max_slowdown_percent: f64,
    /// Functions of the firmware's allocator.
    pub allocator: AllocatorNames,
}
