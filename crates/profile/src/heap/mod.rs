//! Heap statistics by stack from sampled allocations: memory in use, allocated, and churned.
//!
//! Input: sampled allocations, each with its trie node, and frees, in order of time. Output: [`HeapValues`],
//! estimates of all allocations with their sampling error. Pure: no process, no clock.
//!
//! ```text
//! estimate  mean bytes per sample -> weight of an allocation; sums with standard error, 95 % interval
//! history   bytes in use over time, by stack and by the callers with the most
//! model     the live set, values by node, the peak
//! ```

mod estimate;
mod history;
mod model;

pub use estimate::{Estimate, SamplingRate};
pub use history::{InuseHistory, LiveChange, LiveHistory};
pub use model::{CHURN_NS, Counters, HeapModel, HeapValues, Moment, NodeValues};

/// A value of a heap profile, with the names of Go's and jemalloc's profiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ValueKind {
    /// Number of allocations.
    AllocObjects,
    /// Bytes allocated in all.
    AllocSpace,
    /// Allocations that are not freed.
    InuseObjects,
    /// Bytes that are not freed.
    InuseSpace,
    /// Allocations freed within [`CHURN_NS`].
    ChurnObjects,
    /// Bytes of these.
    ChurnSpace,
}

impl ValueKind {
    /// All kinds, in the order of profiles.
    pub const ALL: [ValueKind; 6] = [
        ValueKind::AllocObjects,
        ValueKind::AllocSpace,
        ValueKind::InuseObjects,
        ValueKind::InuseSpace,
        ValueKind::ChurnObjects,
        ValueKind::ChurnSpace,
    ];

    /// The name in profiles.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ValueKind::AllocObjects => "alloc_objects",
            ValueKind::AllocSpace => "alloc_space",
            ValueKind::InuseObjects => "inuse_objects",
            ValueKind::InuseSpace => "inuse_space",
            ValueKind::ChurnObjects => "churn_objects",
            ValueKind::ChurnSpace => "churn_space",
        }
    }

    /// The kind with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<ValueKind> {
        ValueKind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The unit, as in pprof.
    #[must_use]
    pub fn unit(self) -> &'static str {
        match self {
            ValueKind::AllocObjects | ValueKind::InuseObjects | ValueKind::ChurnObjects => "count",
            ValueKind::AllocSpace | ValueKind::InuseSpace | ValueKind::ChurnSpace => "bytes",
        }
    }
}
