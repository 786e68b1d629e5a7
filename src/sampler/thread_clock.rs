//! The clock of one thread: what it has used, and what samples stood for.
//!
//! Input: polls, and samples as they are taken. Output: the weight of each, and what no sample will take: together
//! what the thread used while it was recorded.

use crate::sources::ThreadStatus;

const SECOND_NS: u64 = 1_000_000_000;

/// A running thread's CPU time may lag by this, nanoseconds: a scheduler tick at 100 Hz.
const LAG_NS: u64 = 10_000_000;

/// What a thread has used, and what of that samples stood for.
#[derive(Debug)]
pub(super) struct ThreadClock {
    /// CPU time at the thread's first poll; what it used before is not ours.
    first_cpu_ns: u64,
    /// CPU time and switches at the last sample.
    sampled: ThreadStatus,
    sampled_at_ns: u64,
    /// The latest poll's CPU time, and switches.
    cpu_ns: u64,
    switches: u64,
    /// CPU time that [`ThreadClock::newly_used_ns`] has reported.
    reported_cpu_ns: u64,
    /// Tick of the latest poll that showed that the thread had used a CPU.
    used_at_tick: u64,
    /// CPU time that samples of wall-clock time show as such, nanoseconds.
    shown_cpu_ns: u64,
    /// No sample yet.
    fresh: bool,
    /// It already ran when we came: what the system said then may have lagged.
    preexisting: bool,
    /// What others used that its next sample stands for, too, nanoseconds.
    unsampled_of_others_ns: u64,
}

impl ThreadClock {
    /// Of a thread that was running before the recording, or else one seen from its first instruction on.
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

    /// Takes in a poll.
    pub(super) fn update(&mut self, status: ThreadStatus, tick: u64) {
        if status.cpu_ns > self.cpu_ns || status.switches != self.switches {
            self.used_at_tick = tick;
            self.switches = status.switches;
        }
        self.cpu_ns = self.cpu_ns.max(status.cpu_ns);
    }

    /// CPU time that became known since this was asked last, nanoseconds.
    pub(super) fn newly_used_ns(&mut self) -> u64 {
        let before_ns = std::mem::replace(&mut self.reported_cpu_ns, self.cpu_ns);
        self.cpu_ns - before_ns
    }

    /// Whether the thread was on a CPU since its last sample, as far as a poll shows: one that
    /// runs on without being switched may not show.
    pub(super) fn ran_since_sample(&self, status: ThreadStatus) -> bool {
        self.fresh || (status.cpu_ns, status.switches) != (self.sampled.cpu_ns, self.sampled.switches)
    }

    /// Whether it has used this many periods of 1/hz since its last sample.
    pub(super) fn used_at_least(&self, periods: u64, hz: u32) -> bool {
        let used_ns = self.cpu_ns.saturating_sub(self.sampled.cpu_ns);
        used_ns.saturating_mul(hz.into()) >= periods.saturating_mul(SECOND_NS)
    }

    /// Tick of the latest poll that showed that the thread had used a CPU.
    pub(super) fn used_at_tick(&self) -> u64 {
        self.used_at_tick
    }

    /// The weight of a sample, nanoseconds: CPU time used since the last one. Without a poll (the
    /// thread has ended) up to the last one.
    pub(super) fn weigh_cpu(&mut self, status: Option<ThreadStatus>, now_ns: u64) -> u64 {
        // The first figure may have lagged behind what was used before we came.
        let passed_ns = now_ns.saturating_sub(self.sampled_at_ns);
        let most_ns = if self.fresh && self.preexisting { passed_ns } else { u64::MAX };
        let at_ns = if status.is_some() { now_ns } else { self.sampled_at_ns };
        let status = status.unwrap_or(ThreadStatus { cpu_ns: 0, ..self.sampled });
        let used_ns = self.used_since_sample(status, most_ns);
        self.sampled_now(status, at_ns);
        used_ns.saturating_add(std::mem::take(&mut self.unsampled_of_others_ns))
    }

    /// What it has used by this poll, with the unsampled time of others, if it began while recorded and was not sampled
    /// yet, nanoseconds.
    pub(super) fn used_unsampled_ns(&self, status: ThreadStatus) -> Option<u64> {
        let used_ns = status.cpu_ns.saturating_sub(self.first_cpu_ns);
        (self.fresh && !self.preexisting).then(|| used_ns.saturating_add(self.unsampled_of_others_ns))
    }

    /// Its next sample stands for this time of others, too, nanoseconds.
    pub(super) fn add_unsampled(&mut self, ns: u64) {
        self.unsampled_of_others_ns = self.unsampled_of_others_ns.saturating_add(ns);
    }

    /// The weight of a sample by wall-clock time, nanoseconds.
    pub(super) fn weigh_wall(&mut self, status: ThreadStatus, now_ns: u64) -> u64 {
        let passed_ns = now_ns.saturating_sub(self.sampled_at_ns);
        self.cpu_ns = self.cpu_ns.max(status.cpu_ns);
        if self.fresh && self.preexisting {
            // The first figure may have lagged behind what was used before we came.
            self.shown_cpu_ns = self.shown_cpu_ns.max(self.cpu_ns.saturating_sub(passed_ns));
        }
        self.sampled_now(status, now_ns);
        passed_ns
    }

    /// Of what a sample weighs by wall-clock time, how much the thread was on no CPU. CPU time that was used while it was
    /// found waiting is that of the next sample which finds it running.
    pub(super) fn off_cpu_ns(&mut self, weight_ns: u64) -> u64 {
        let on_cpu_ns = self.cpu_ns.saturating_sub(self.shown_cpu_ns).min(weight_ns);
        self.shown_cpu_ns += on_cpu_ns;
        weight_ns - on_cpu_ns
    }

    /// Time that no sample will take, nanoseconds: CPU time used since the last one, up to `cpu_ns`,
    /// or `wall`-clock time.
    pub(super) fn unsampled(&mut self, cpu_ns: Option<u64>, now_ns: u64, wall: bool) -> u64 {
        let passed_ns = now_ns.saturating_sub(self.sampled_at_ns);
        // After an exec the figure may be another thread's.
        let most_ns =
            if self.fresh && self.preexisting { passed_ns } else { passed_ns.saturating_add(LAG_NS) };
        let status = ThreadStatus { cpu_ns: cpu_ns.unwrap_or(0), ..self.sampled };
        let used_ns = self.used_since_sample(status, most_ns);
        self.sampled_now(status, now_ns);
        let unsampled_of_others_ns = std::mem::take(&mut self.unsampled_of_others_ns);
        if wall { passed_ns } else { used_ns.saturating_add(unsampled_of_others_ns) }
    }

    /// Leaves out the time up to now, in which the thread was not recorded: the CPU time that it used in that,
    /// nanoseconds, where this is `wall`-clock time none. Its next sample stands for what comes after.
    pub(super) fn skip(&mut self, cpu_ns: u64, now_ns: u64, wall: bool) -> u64 {
        let unsampled_of_others_ns = std::mem::take(&mut self.unsampled_of_others_ns);
        let used_ns = self.unsampled(Some(cpu_ns), now_ns, false);
        self.unsampled_of_others_ns = unsampled_of_others_ns;
        if wall { 0 } else { used_ns }
    }

    /// CPU time since the last sample, `most_ns` at most: a thread cannot use more than
    /// passes. What is beyond was not used by it, or before we came.
    fn used_since_sample(&mut self, status: ThreadStatus, most_ns: u64) -> u64 {
        self.cpu_ns = self.cpu_ns.max(status.cpu_ns);
        let used_ns = self.cpu_ns.saturating_sub(self.sampled.cpu_ns);
        let excess_ns = used_ns.saturating_sub(most_ns);
        self.first_cpu_ns += excess_ns;
        used_ns - excess_ns
    }

    fn sampled_now(&mut self, status: ThreadStatus, now_ns: u64) {
        // A poll of a thread that has ended knows less: what was counted stays counted.
        self.sampled = ThreadStatus { cpu_ns: self.cpu_ns, ..status };
        self.sampled_at_ns = now_ns;
        self.fresh = false;
    }

    /// When it was sampled last, or taken in, nanoseconds of the engine's clock.
    pub(super) fn sampled_at_ns(&self) -> u64 {
        self.sampled_at_ns
    }

    /// CPU time used while recorded, nanoseconds.
    pub(super) fn used_cpu_ns(&self) -> u64 {
        self.cpu_ns.saturating_sub(self.first_cpu_ns)
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
    fn what_is_left_out_and_what_is_weighed_add_up_to_the_cpu_time() {
        let mut clock = ThreadClock::new(status(5_000), 0, true);
        clock.add_unsampled(700);
        let before_ns = clock.weigh_cpu(Some(status(1_005_000)), 2_000_000);
        clock.add_unsampled(300);
        let skipped_ns = clock.skip(9_005_000, 12_000_000, false);
        let after_ns = clock.weigh_cpu(Some(status(9_505_000)), 13_000_000);
        assert_eq!((before_ns, skipped_ns, after_ns), (1_000_700, 8_000_000, 500_300));
        assert_eq!(clock.used_cpu_ns(), 9_500_000);
        // Of wall-clock time nothing is lost: it is not recorded.
        assert_eq!(clock.skip(9_600_000, 20_000_000, true), 0);
        assert_eq!(clock.weigh_wall(status(9_600_000), 20_000_400), 400);
    }

    /// Half of the time another thread has its CPU.
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
        // 4 ms of CPU time show up 1 ms after we came.
        assert_eq!(clock.weigh_cpu(Some(status(4_000_000)), 2_000_000), 1_000_000);
        assert_eq!(clock.used_cpu_ns(), 1_000_000);
    }

    #[test]
    fn a_thread_that_was_not_put_on_a_cpu_has_not_run() {
        let mut clock = ThreadClock::new(status(0), 0, true);
        assert!(clock.ran_since_sample(status(0)), "nothing is known before the first sample");
        clock.weigh_cpu(Some(status(5)), 10);
        assert!(!clock.ran_since_sample(status(5)));
        assert!(clock.ran_since_sample(ThreadStatus { switches: 2, ..status(5) }));
    }
}
