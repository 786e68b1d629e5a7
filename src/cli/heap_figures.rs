//! Figures of a heap recording, as `--stats` writes them. docs/json.md explains them.

use serde::Serialize;

/// Heap statistics for `--stats`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct HeapFigures {
    pub(super) every_bytes: u64,
    pub(super) moment: &'static str,
    pub(super) samples: u64,
    pub(super) inuse_space: u64,
    pub(super) inuse_space_error: f64,
    pub(super) inuse_space_interval: [u64; 2],
    pub(super) inuse_objects: u64,
    pub(super) inuse_objects_error: f64,
    pub(super) inuse_objects_interval: [u64; 2],
    pub(super) alloc_space: u64,
    pub(super) alloc_space_error: f64,
    pub(super) alloc_space_interval: [u64; 2],
    pub(super) alloc_objects: u64,
    pub(super) alloc_objects_error: f64,
    pub(super) alloc_objects_interval: [u64; 2],
    pub(super) churn_space: u64,
    pub(super) churn_objects: u64,
    pub(super) peak_space: u64,
    pub(super) frees: u64,
    pub(super) frees_unknown: u64,
    pub(super) frees_missing: u64,
    pub(super) frees_lost: u64,
    pub(super) samples_lost: u64,
    pub(super) samples_lost_bytes: u64,
    pub(super) samples_early: u64,
    pub(super) samples_untracked: u64,
    pub(super) records_malformed: u64,
}
