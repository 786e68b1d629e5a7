//! When to poll rings between the events of a batch: at intervals.
//!
//! Input: time. Output: whether to poll.

/// Interval at which rings are polled while a batch is walked, nanoseconds.
const POLL_NS: u64 = 2_000_000;

/// Time of the last poll.
#[derive(Debug, Default)]
pub(super) struct ReadAheadTimer {
    polled_ns: u64,
}

impl ReadAheadTimer {
    /// Whether to poll the rings now.
    pub(super) fn is_due(&mut self, now_ns: u64) -> bool {
        let is_due = now_ns.saturating_sub(self.polled_ns) >= POLL_NS;
        if is_due {
            self.polled_ns = now_ns;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_are_polled_at_intervals() {
        let mut timer = ReadAheadTimer::default();
        let polls = (1..=1_000).filter(|at| timer.is_due(POLL_NS + at * POLL_NS / 10)).count();
        assert_eq!(polls, 100);
    }
}
