//! CPU time, by program, of processes that ended before a sample covered it.
//!
//! A process of a few milliseconds uses much of its time after its last sample, if it has one at all: the first
//! samples of other processes with the same program cover it. Input: unsampled time of ended processes; output:
//! the time added to first samples.

use hashbrown::HashMap;

/// Unsampled time kept per program for later first samples, in sampling periods: it varies with the square root of
/// the number of concurrent processes.
const KEPT_PERIODS: u64 = 8;

/// Maximum number of programs with unsampled time.
const PROGRAMS_MAX: usize = 4096;

/// Unsampled time, nanoseconds, by program.
#[derive(Debug)]
pub(super) struct UnsampledTime {
    by_program: HashMap<String, u64>,
    period_ns: u64,
}

impl UnsampledTime {
    /// For a recording with this sampling period.
    pub(super) fn new(period_ns: u64) -> UnsampledTime {
        UnsampledTime { by_program: HashMap::new(), period_ns }
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.by_program.is_empty()
    }

    /// Whether there is room for this program.
    pub(super) fn has_room_for(&self, program: &str) -> bool {
        self.by_program.len() < PROGRAMS_MAX || self.by_program.contains_key(program)
    }

    /// Adds the unsampled time of an ended process of this program.
    pub(super) fn add(&mut self, program: String, ns: u64) {
        *self.by_program.entry(program).or_default() += ns;
    }

    /// Time to add to the first sample of a process that runs this program, `used_ns` after its start and
    /// `interval_ns` after the previous tick: the rest of the interval, so that a sample after a start weighs as
    /// much as any other. On average this equals the unsampled time of ended processes. If threads are sampled
    /// less often, more is left, and is added, too.
    pub(super) fn take(&mut self, program: &str, interval_ns: u64, used_ns: u64) -> u64 {
        let Some(left_ns) = self.by_program.get_mut(program) else { return 0 };
        let lacks_ns = interval_ns.saturating_sub(used_ns).min(*left_ns);
        let surplus_ns = (*left_ns - lacks_ns).saturating_sub(KEPT_PERIODS * self.period_ns);
        let given_ns = lacks_ns + surplus_ns / 2;
        *left_ns -= given_ns;
        given_ns
    }

    /// Remaining time of each program.
    pub(super) fn left_ns(&self) -> impl Iterator<Item = u64> {
        self.by_program.values().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::mix;

    #[test]
    fn all_unsampled_time_beyond_the_reserve_is_given_out() {
        const PERIOD_NS: u64 = 1_000_000;
        let mut unsampled = UnsampledTime::new(PERIOD_NS);
        let (mut left_ns, mut given_ns) = (0, 0);
        for process in 0..10_000 {
            let ns = mix(process) % PERIOD_NS;
            unsampled.add("work".to_owned(), ns);
            left_ns += ns;
            given_ns += unsampled.take("work", PERIOD_NS, mix(!process) % PERIOD_NS);
            assert_eq!(unsampled.left_ns().sum::<u64>(), left_ns - given_ns);
        }
        assert!(left_ns - given_ns < 2 * KEPT_PERIODS * PERIOD_NS, "{given_ns} of {left_ns}");
        assert_eq!(unsampled.take("other", PERIOD_NS, 0), 0);
    }
}
