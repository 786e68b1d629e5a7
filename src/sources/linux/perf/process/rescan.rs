//! When to read /proc again after losing records of processes.
//!
//! Input: lost records, and the cost of a rescan; output: whether a rescan is due.

/// Minimum interval between rescans, nanoseconds.
const DISTANCE_NS: u64 = 500_000_000;
/// Maximum share of time for rescans: 1/20.
const COST_SHARE: u64 = 20;

/// Schedule of rescans.
#[derive(Debug, Default)]
pub(super) struct RescanSchedule {
    is_requested: bool,
    next_ns: u64,
}

impl RescanSchedule {
    /// Requests a rescan after lost records.
    pub(super) fn request(&mut self) {
        self.is_requested = true;
    }

    /// Whether to begin a rescan at this time (monotonic clock).
    pub(super) fn is_due(&mut self, now_ns: u64) -> bool {
        now_ns >= self.next_ns && std::mem::take(&mut self.is_requested)
    }

    /// Records the begin and end of a rescan.
    pub(super) fn end(&mut self, begun_ns: u64, now_ns: u64) {
        self.next_ns = begun_ns + DISTANCE_NS.max(COST_SHARE * now_ns.saturating_sub(begun_ns));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expensive_rescans_are_rare() {
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
