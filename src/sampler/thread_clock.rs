//! CPU time and the part of it represented by samples: of one thread (`ThreadClock`), and by program of processes
//! that ended before a sample covered it (`UnsampledTime`).
//!
//! Input: polls, and samples as they are taken. Output: the weight of each sample, and the unsampled rest: together
//! the thread's usage while recorded.

use hashbrown::HashMap;

use crate::sources::ThreadStatus;

const SECOND_NS: u64 = 1_000_000_000;

/// Maximum lag of a running thread's CPU time, nanoseconds: a scheduler tick at 100 Hz.
const LAG_NS: u64 = 10_000_000;

/// A thread's usage, and the part represented by samples.
#[derive(Debug)]
pub(super) struct ThreadClock {
    /// CPU time at the thread's first poll; earlier usage is not part of the recording.
    first_cpu_ns: u64,
    /// CPU time and switches at the last sample.
    sampled: ThreadStatus,
    sampled_at_ns: u64,
    /// CPU time and switches at the latest poll.
    cpu_ns: u64,
    switches: u64,
    /// CPU time that [`ThreadClock::newly_used_ns`] has reported.
    reported_cpu_ns: u64,
    /// Tick of the latest poll that showed CPU use.
    used_at_tick: u64,
    /// CPU time that wall-clock samples show as on-CPU, nanoseconds.
    shown_cpu_ns: u64,
    /// Whether there is no sample yet.
    fresh: bool,
    /// Whether it ran before the recording: its first CPU time may lag.
    preexisting: bool,
    /// Unsampled time of other processes that its next sample carries, nanoseconds.
    unsampled_of_others_ns: u64,
}

impl ThreadClock {
    /// A thread running before the recording, or one seen from its first instruction.
    pub(super) fn new(status: ThreadStatus, now_ns: u64, preexisting: bool) -> ThreadClock {
        ThreadClock {
            first_cpu_ns: status.cpu_ns,
            sampled: status,
            sampled_at_ns: now_ns,
            cpu_ns: status.cpu_ns,
            switches: status.switches,
            reported_cpu_ns: status.cpu_ns,
            used_at_tick: 0,
            shown_cpu_ns: status.cpu_ns,
            fresh: true,
            preexisting,
            unsampled_of_others_ns: 0,
        }
    }

    /// Records a poll.
    pub(super) fn update(&mut self, status: ThreadStatus, tick: u64) {
        if status.cpu_ns > self.cpu_ns || status.switches != self.switches {
            self.used_at_tick = tick;
            self.switches = status.switches;
        }
        self.cpu_ns = self.cpu_ns.max(status.cpu_ns);
    }

    /// CPU time that became known since the last call, nanoseconds.
    pub(super) fn newly_used_ns(&mut self) -> u64 {
        let before_ns = std::mem::replace(&mut self.reported_cpu_ns, self.cpu_ns);
        self.cpu_ns - before_ns
    }

    /// Whether a poll shows that the thread was on a CPU since its last sample; it may not if the thread runs on
    /// without a switch.
    pub(super) fn ran_since_sample(&self, status: ThreadStatus) -> bool {
        self.fresh || (status.cpu_ns, status.switches) != (self.sampled.cpu_ns, self.sampled.switches)
    }

    /// Whether it has used this many periods of 1/hz since its last sample.
    pub(super) fn used_at_least(&self, periods: u64, hz: u32) -> bool {
        let used_ns = self.cpu_ns.saturating_sub(self.sampled.cpu_ns);
        used_ns.saturating_mul(hz.into()) >= periods.saturating_mul(SECOND_NS)
    }

    /// Tick of the latest poll that showed CPU use.
    pub(super) fn used_at_tick(&self) -> u64 {
        self.used_at_tick
    }

    /// The weight of a sample, nanoseconds: CPU time since the previous one, up to the last poll if the thread has
    /// ended.
    pub(super) fn weigh_cpu(&mut self, status: Option<ThreadStatus>, now_ns: u64) -> u64 {
        // The first CPU time may lag: it misses time used before the recording.
        let passed_ns = now_ns.saturating_sub(self.sampled_at_ns);
        let most_ns = if self.fresh && self.preexisting { passed_ns } else { u64::MAX };
        let at_ns = if status.is_some() { now_ns } else { self.sampled_at_ns };
        let status = status.unwrap_or(ThreadStatus { cpu_ns: 0, ..self.sampled });
        let used_ns = self.used_since_sample(status, most_ns);
        self.sampled_now(status, at_ns);
        used_ns.saturating_add(std::mem::take(&mut self.unsampled_of_others_ns))
    }

    /// Its CPU time by this poll, plus the unsampled time of others it carries, nanoseconds; `None` unless it
    /// began while recorded and has no sample yet.
    pub(super) fn used_unsampled_ns(&self, status: ThreadStatus) -> Option<u64> {
        let used_ns = status.cpu_ns.saturating_sub(self.first_cpu_ns);
        (self.fresh && !self.preexisting).then(|| used_ns.saturating_add(self.unsampled_of_others_ns))
    }

    /// Adds unsampled time of others to its next sample, nanoseconds.
    pub(super) fn add_unsampled(&mut self, ns: u64) {
        self.unsampled_of_others_ns = self.unsampled_of_others_ns.saturating_add(ns);
    }

    /// The weight of a sample by wall-clock time, nanoseconds.
    pub(super) fn weigh_wall(&mut self, status: ThreadStatus, now_ns: u64) -> u64 {
        let passed_ns = now_ns.saturating_sub(self.sampled_at_ns);
        self.cpu_ns = self.cpu_ns.max(status.cpu_ns);
        if self.fresh && self.preexisting {
            // The first CPU time may lag: it misses time used before the recording.
            self.shown_cpu_ns = self.shown_cpu_ns.max(self.cpu_ns.saturating_sub(passed_ns));
        }
        self.sampled_now(status, now_ns);
        passed_ns
    }

    /// The off-CPU part of a wall-clock weight. CPU time used while the thread was found waiting belongs to the
    /// next sample that finds it running.
    pub(super) fn off_cpu_ns(&mut self, weight_ns: u64) -> u64 {
        let on_cpu_ns = self.cpu_ns.saturating_sub(self.shown_cpu_ns).min(weight_ns);
        self.shown_cpu_ns += on_cpu_ns;
        weight_ns - on_cpu_ns
    }

    /// Unsampled time, nanoseconds: CPU time since the last sample, up to `cpu_ns`, or `wall`-clock time.
    pub(super) fn unsampled(&mut self, cpu_ns: Option<u64>, now_ns: u64, wall: bool) -> u64 {
        let passed_ns = now_ns.saturating_sub(self.sampled_at_ns);
        // After an exec the CPU time may be another thread's.
        let most_ns =
            if self.fresh && self.preexisting { passed_ns } else { passed_ns.saturating_add(LAG_NS) };
        let status = ThreadStatus { cpu_ns: cpu_ns.unwrap_or(0), ..self.sampled };
        let used_ns = self.used_since_sample(status, most_ns);
        self.sampled_now(status, now_ns);
        let unsampled_of_others_ns = std::mem::take(&mut self.unsampled_of_others_ns);
        if wall { passed_ns } else { used_ns.saturating_add(unsampled_of_others_ns) }
    }

    /// Skips the time up to now, in which the thread was not recorded. Returns the CPU time used in it,
    /// nanoseconds, or 0 for `wall`-clock time. Its next sample covers only later time.
    pub(super) fn skip(&mut self, cpu_ns: u64, now_ns: u64, wall: bool) -> u64 {
        let unsampled_of_others_ns = std::mem::take(&mut self.unsampled_of_others_ns);
        let used_ns = self.unsampled(Some(cpu_ns), now_ns, false);
        self.unsampled_of_others_ns = unsampled_of_others_ns;
        if wall { 0 } else { used_ns }
    }

    /// CPU time since the last sample, at most `most_ns`: a thread cannot use more than the time passed. Any
    /// excess was used by another thread, or before the recording.
    fn used_since_sample(&mut self, status: ThreadStatus, most_ns: u64) -> u64 {
        self.cpu_ns = self.cpu_ns.max(status.cpu_ns);
        let used_ns = self.cpu_ns.saturating_sub(self.sampled.cpu_ns);
        let excess_ns = used_ns.saturating_sub(most_ns);
        self.first_cpu_ns += excess_ns;
        used_ns - excess_ns
    }

    fn sampled_now(&mut self, status: ThreadStatus, now_ns: u64) {
        // Polling an ended thread may show less: CPU time never decreases.
        self.sampled = ThreadStatus { cpu_ns: self.cpu_ns, ..status };
        self.sampled_at_ns = now_ns;
        self.fresh = false;
    }

    /// Time of its last sample, or of its addition, nanoseconds of the sampler's clock.
    pub(super) fn sampled_at_ns(&self) -> u64 {
        self.sampled_at_ns
    }

    /// CPU time used while recorded, nanoseconds.
    pub(super) fn used_cpu_ns(&self) -> u64 {
        self.cpu_ns.saturating_sub(self.first_cpu_ns)
    }
}

// ---- CPU time, by program, of processes that ended before a sample covered it.
//
// A process of a few milliseconds uses much of its time after its last sample, if it has one at all: the first
// samples of other processes with the same program cover it.

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
    use crate::sources::Activity;

    fn status(cpu_ns: u64) -> ThreadStatus {
        ThreadStatus { cpu_ns, switches: 1, activity: Activity::Runnable }
    }

    #[test]
    fn weights_add_up_to_the_cpu_time() {
        let mut clock = ThreadClock::new(status(7_000), 0, true);
        let (mut cpu_ns, mut weighed_ns) = (7_000, 0);
        for step in 0..10_000u64 {
            cpu_ns += 1 + step * 7919 % 2_000_000;
            weighed_ns += clock.weigh_cpu(Some(status(cpu_ns)), u64::MAX / 2);
        }
        assert_eq!((clock.used_cpu_ns(), weighed_ns), (cpu_ns - 7_000, cpu_ns - 7_000));
    }

    #[test]
    fn skipped_and_weighed_time_add_up_to_the_cpu_time() {
        let mut clock = ThreadClock::new(status(5_000), 0, true);
        clock.add_unsampled(700);
        let before_ns = clock.weigh_cpu(Some(status(1_005_000)), 2_000_000);
        clock.add_unsampled(300);
        let skipped_ns = clock.skip(9_005_000, 12_000_000, false);
        let after_ns = clock.weigh_cpu(Some(status(9_505_000)), 13_000_000);
        assert_eq!((before_ns, skipped_ns, after_ns), (1_000_700, 8_000_000, 500_300));
        assert_eq!(clock.used_cpu_ns(), 9_500_000);
        // Skipped wall-clock time is not lost: it is not recorded.
        assert_eq!(clock.skip(9_600_000, 20_000_000, true), 0);
        assert_eq!(clock.weigh_wall(status(9_600_000), 20_000_400), 400);
    }

    /// Another thread has its CPU half of the time.
    #[test]
    fn ready_is_not_running() {
        let mut clock = ThreadClock::new(status(7_000_000), 0, true);
        let mut on_cpu_ns = 0;
        for round in 1..=1000u64 {
            // Found running, and found waiting after a moment on a CPU.
            let weight_ns = clock.weigh_wall(status(7_000_000 + round * 500_000), round * 1_000_000);
            if round % 3 > 0 {
                on_cpu_ns += weight_ns - clock.off_cpu_ns(weight_ns);
            }
        }
        assert_eq!(on_cpu_ns, 1000 * 500_000);
    }

    #[test]
    fn the_first_sample_weighs_at_most_the_time_that_passed() {
        let mut clock = ThreadClock::new(status(0), 1_000_000, true);
        // 4 ms of CPU time show up 1 ms after the first poll.
        assert_eq!(clock.weigh_cpu(Some(status(4_000_000)), 2_000_000), 1_000_000);
        assert_eq!(clock.used_cpu_ns(), 1_000_000);
    }

    #[test]
    fn a_thread_without_a_switch_has_not_run() {
        let mut clock = ThreadClock::new(status(0), 0, true);
        assert!(clock.ran_since_sample(status(0)), "nothing is known before the first sample");
        clock.weigh_cpu(Some(status(5)), 10);
        assert!(!clock.ran_since_sample(status(5)));
        assert!(clock.ran_since_sample(ThreadStatus { switches: 2, ..status(5) }));
    }
}

#[cfg(test)]
mod unsampled_time_tests {
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
