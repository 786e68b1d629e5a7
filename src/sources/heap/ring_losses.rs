//! Records that did not fit into the rings of a command.
//!
//! Input: counters of rings; output: their sums.

use super::ring::Ring;

/// Losses of one or several rings.
#[derive(Clone, Debug, Default)]
pub(super) struct RingLosses {
    pub(super) allocations: Vec<(u64, u64)>,
    pub(super) frees: u64,
    pub(super) lost_before_ring: u64,
    pub(super) no_space: u64,
    /// Rings that could not be read further.
    pub(super) malformed_rings: u64,
}

impl RingLosses {
    /// Adds those of another ring.
    pub(super) fn merge(&mut self, other: &RingLosses) {
        self.allocations.extend(&other.allocations);
        self.frees = self.frees.saturating_add(other.frees);
        self.lost_before_ring = self.lost_before_ring.saturating_add(other.lost_before_ring);
        self.no_space = self.no_space.saturating_add(other.no_space);
        self.malformed_rings = self.malformed_rings.saturating_add(other.malformed_rings);
    }

    /// Adds those of a ring.
    pub(super) fn add(&mut self, ring: &Ring) {
        self.allocations.extend(ring.lost_allocations());
        self.frees = self.frees.saturating_add(ring.lost_frees());
        self.lost_before_ring = self.lost_before_ring.saturating_add(ring.lost_before_ring());
        self.no_space = self.no_space.saturating_add(ring.no_space());
    }
}
