//! When /proc is read again, where records were lost that may have said something of processes.
//!
//! Input: that records were lost, and what a rescan cost; output: whether it is time for one.

/// /proc is read again this often at most, nanoseconds.
const DISTANCE_NS: u64 = 500_000_000;
/// And so seldom that it takes this part of the time: 1/20.
const COST_SHARE: u64 = 20;

/// Whether a rescan is due.
#[derive(Debug, Default)]
pub(super) struct RescanSchedule {
    is_requested: bool,
    next_ns: u64,
}

impl RescanSchedule {
    /// Records were lost.
    pub(super) fn request(&mut self) {
        self.is_requested = true;
    }

    /// Whether a rescan begins at this time (monotonic clock).
    pub(super) fn is_due(&mut self, now_ns: u64) -> bool {
        now_ns >= self.next_ns && std::mem::take(&mut self.is_requested)
    }

    /// A rescan took from when to when.
    pub(super) fn end(&mut self, begun_ns: u64, now_ns: u64) {
        self.next_ns = begun_ns + DISTANCE_NS.max(COST_SHARE * now_ns.saturating_sub(begun_ns));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rescans_are_as_seldom_as_they_cost() {
        let mut schedule = RescanSchedule::default();
        assert!(!schedule.is_due(1_000), "nothing was lost");
        schedule.request();
        assert!(schedule.is_due(1_000) && !schedule.is_due(1_000));
        schedule.end(1_000, 2_000);
        schedule.request();
        assert!(!schedule.is_due(DISTANCE_NS) && schedule.is_due(DISTANCE_NS + 1_000));
        schedule.end(0, DISTANCE_NS);
        schedule.request();
        assert!(!schedule.is_due(COST_SHARE * DISTANCE_NS - 1) && schedule.is_due(COST_SHARE * DISTANCE_NS));
    }
}
