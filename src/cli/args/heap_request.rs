//! What a recording of allocations is asked for.

use super::render::Patterns;
use crate::heap::{Moment, ValueKind};
use crate::sources::gdb::AllocatorNames;

/// How allocations are recorded, and shown.
#[derive(Clone, Debug, PartialEq)]
pub struct Heap {
    /// Bytes per sample on average.
    pub every_bytes: u64,
    /// Which moment the values in use are of.
    pub moment: Moment,
    /// What formats show that have one value.
    pub shown: ValueKind,
    /// Callers in the table of leaks.
    pub callers: usize,
    /// Functions that the table of leaks passes over.
    pub skip: Patterns,
    /// Only blocks of this age are in use at the end, nanoseconds.
    pub older_than_ns: Option<u64>,
    /// By how much a process that runs already may be slowed, percent of its CPU time.
    pub max_slowdown_percent: f64,
    /// The allocator of firmware.
    pub allocator: AllocatorNames,
}
