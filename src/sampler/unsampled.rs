//! CPU time of processes that ended before a sample stood for it, by program.
//!
//! A process of a few milliseconds uses a large part of them after its last sample, if it has one at all: the first
//! sample of others that run the same program stands for that. Input: what ends leave; output: what first samples are
//! given.

use hashbrown::HashMap;

/// Of a program so much that no sample stood for is kept for first samples that lack something, in
/// periods of the rate: it varies by the root of the number of processes that run at a time.
const KEPT_PERIODS: u64 = 8;

/// Programs of which is remembered what their processes used and no sample stood for.
const PROGRAMS_MAX: usize = 4096;

/// Time without a sample, nanoseconds, by program.
#[derive(Debug)]
pub(super) struct UnsampledTime {
    by_program: HashMap<String, u64>,
    period_ns: u64,
}

impl UnsampledTime {
    /// Of a recording that ticks this often.
    pub(super) fn new(period_ns: u64) -> UnsampledTime {
        UnsampledTime { by_program: HashMap::new(), period_ns }
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.by_program.is_empty()
    }

    /// Whether there is room for that of a program.
    pub(super) fn has_room_for(&self, program: &str) -> bool {
        self.by_program.len() < PROGRAMS_MAX || self.by_program.contains_key(program)
    }

    /// A process of this program has left so much.
    pub(super) fn add(&mut self, program: String, ns: u64) {
        *self.by_program.entry(program).or_default() += ns;
    }

    /// The first sample of a process that runs this program is given a part, `used_ns` after its beginning and
    /// `interval_ns` after the tick before: what it lacks to the time between two ticks, so that a sample of a
    /// beginning weighs what one of any other moment does. On average that is what ends leave. Where threads are
    /// sampled less often, more is left, and given out, too.
    pub(super) fn take(&mut self, program: &str, interval_ns: u64, used_ns: u64) -> u64 {
        let Some(left_ns) = self.by_program.get_mut(program) else { return 0 };
        let lacks_ns = interval_ns.saturating_sub(used_ns).min(*left_ns);
        let surplus_ns = (*left_ns - lacks_ns).saturating_sub(KEPT_PERIODS * self.period_ns);
        let given_ns = lacks_ns + surplus_ns / 2;
        *left_ns -= given_ns;
        given_ns
    }

    /// What is left of each program.
    pub(super) fn left_ns(&self) -> impl Iterator<Item = u64> {
        self.by_program.values().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::mix;

    #[test]
    fn all_that_is_left_is_given_out_but_for_what_is_kept() {
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
