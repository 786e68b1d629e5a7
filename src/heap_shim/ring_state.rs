//! State of the ring of a process, in memory that a child of fork does not inherit.

use super::ring::Positions;
use super::shared_memory::{LostAllocations, RingHeader, SIZE_CLASSES, size_class};
use core::sync::atomic::{AtomicU32, Ordering};

/// State of the ring of this process, all zero before there is one.
#[repr(C)]
pub struct RingState {
    /// One of the states in process.rs.
    pub state: AtomicU32,
    /// Whether this is the process of PID.
    pub is_owner: AtomicU32,
    pub positions: Positions,
    /// Samples lost while another thread created the ring, by size class: the ring's first losses.
    lost_before_ring: [LostAllocations; SIZE_CLASSES],
}

impl RingState {
    /// Moves what was lost before there was a ring into it.
    pub fn move_lost(&self, header: &RingHeader) {
        for (before, lost) in self.lost_before_ring.iter().zip(&header.lost_allocations) {
            let count = before.count.swap(0, Ordering::Relaxed);
            header.lost_before_ring.fetch_add(count, Ordering::Relaxed);
            lost.count.fetch_add(count, Ordering::Relaxed);
            lost.bytes.fetch_add(before.bytes.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Counts an allocation of this size that is lost.
    pub fn count_lost(&self, size: u64) {
        let lost = &self.lost_before_ring[size_class(size)];
        lost.count.fetch_add(1, Ordering::Relaxed);
        lost.bytes.fetch_add(size, Ordering::Relaxed);
    }
}
