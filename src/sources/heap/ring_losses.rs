//! What did not fit into rings, added up over the rings of a recording.
//!
//! Input: rings. Output: sums.

use super::ring::Ring;

/// Losses of a ring.
#[derive(Clone, Debug, Default)]
pub(super) struct RingLosses {
    /// By size: number and bytes.
    pub(super) allocations: Vec<(u64, u64)>,
    pub(super) frees: u64,
    pub(super) early: u64,
    pub(super) no_space: u64,
}

impl RingLosses {
    /// Adds those of another one.
    pub(super) fn merge(&mut self, other: &RingLosses) {
        self.allocations.extend(&other.allocations);
        self.frees = self.frees.saturating_add(other.frees);
        self.early = self.early.saturating_add(other.early);
        self.no_space = self.no_space.saturating_add(other.no_space);
    }

    /// Adds those that a ring states.
    pub(super) fn add(&mut self, ring: &Ring) {
        self.allocations.extend(ring.lost_allocations());
        self.frees = self.frees.saturating_add(ring.lost_frees());
        self.early = self.early.saturating_add(ring.early());
        self.no_space = self.no_space.saturating_add(ring.no_space());
    }
}
