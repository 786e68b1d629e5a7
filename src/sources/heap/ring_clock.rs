//! The clock of the recording beside the one of the rings.

use crate::clock::{Clock, RealClock};

/// Converts times of rings to those of the sampler.
pub(super) struct RingClock {
    sampler: RealClock,
    /// The clock of the rings at the sampler's 0.
    origin_ns: u64,
}

impl RingClock {
    /// `ring_ns`: the clock of the rings now.
    pub(super) fn new(sampler: RealClock, ring_ns: u64) -> RingClock {
        RingClock { origin_ns: ring_ns.saturating_sub(sampler.now_ns()), sampler }
    }

    /// The sampler's clock now.
    pub(super) fn now_ns(&self) -> u64 {
        self.sampler.now_ns()
    }

    /// The sampler's time at a time of the rings.
    pub(super) fn time_ns(&self, ring_ns: u64) -> u64 {
        ring_ns.saturating_sub(self.origin_ns)
    }

    /// The time of the rings at a time of the sampler.
    #[cfg(all(test, target_os = "linux"))]
    pub(super) fn ring_ns(&self, time_ns: u64) -> u64 {
        self.origin_ns + time_ns
    }
}
