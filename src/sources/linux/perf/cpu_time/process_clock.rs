//! The CPU clock of a process, and the part of it that is weighed.
//!
//! `ProcessClock` reads it, `CpuTimeShare` shares it among samples, `ClockBaseline` has all clocks at the start of
//! a recording with `-a`.
//!
//! Input: the clock, read once per batch. Output: CPU time since the previous batch, shared by the samples of the
//! batch, and in total.

use hashbrown::HashMap;
use libc::pid_t;

use crate::sources::linux::clocks::Clocks;

/// The CPU clock of one process.
#[derive(Debug, Default)]
pub(crate) struct ProcessClock {
    /// Clock at its first sample, if known, and at the last reading.
    first_ns: Option<u64>,
    last_ns: Option<u64>,
    /// Clock up to which samples are weighed.
    weighed_until_ns: Option<u64>,
    /// Clock at the end of sampling: later use is not recorded.
    ended_ns: Option<u64>,
    /// Whether the process started during the recording and has no weighed samples yet.
    is_new: bool,
    /// Total weight of all samples so far.
    weighed_ns: u64,
    /// Weight of samples that did not fit into a ring.
    dropped_ns: u64,
    /// CPU time left over by ticks on time.
    pub(super) late_left: LateTimeLeft,
}

impl ProcessClock {
    /// Begins to count: earlier use is not recorded.
    pub(super) fn begin(&mut self, pid: pid_t, clocks: &dyn Clocks) {
        self.last_ns = clocks.process_cpu_ns(pid);
        (self.first_ns, self.weighed_until_ns) = (self.last_ns, self.last_ns);
    }

    /// Begins to count for a process that ran before it was sampled, with this clock at the beginning of the
    /// recording.
    pub(super) fn begin_at(&mut self, clock_ns: u64) {
        (self.first_ns, self.weighed_until_ns) = (Some(clock_ns), Some(clock_ns));
    }

    /// Begins to count for a process started during the recording: its clock began with it.
    pub(super) fn begin_with_process(&mut self) {
        self.is_new = true;
    }

    /// CPU time that the samples of this batch share, dropped ones included. `None` if the clock does not show it: it
    /// was not read before, or the process no longer exists. If samples of unknown processes were `dropped`, the
    /// clock of a new process counts from its beginning; else its first samples weigh one period each, which also
    /// covers processes that were too short for a sample.
    pub(super) fn share_ns(&mut self, pid: pid_t, dropped: bool, clocks: &dyn Clocks) -> Option<u64> {
        self.share_at(self.now_ns(pid, clocks), dropped)
    }

    fn now_ns(&self, pid: pid_t, clocks: &dyn Clocks) -> Option<u64> {
        self.ended_ns.or_else(|| clocks.process_cpu_ns(pid))
    }

    /// Ends sampling at this clock; later use is not recorded.
    pub(super) fn stop_at(&mut self, clock_ns: Option<u64>) {
        self.ended_ns = clock_ns;
    }

    fn share_at(&mut self, now_ns: Option<u64>, dropped: bool) -> Option<u64> {
        self.last_ns = now_ns.or(self.last_ns);
        let at_first_ns = (std::mem::take(&mut self.is_new) && dropped).then_some(0);
        if at_first_ns.is_some() {
            self.first_ns = at_first_ns;
        }
        let before_ns = std::mem::replace(&mut self.weighed_until_ns, now_ns).or(at_first_ns);
        Some(now_ns?.saturating_sub(before_ns?))
    }

    /// Adds the weight of a sample.
    pub(super) fn add_weight(&mut self, weight_ns: u64) {
        self.weighed_ns += weight_ns;
    }

    /// Adds the time of dropped samples.
    pub(super) fn add_dropped(&mut self, dropped_ns: u64) {
        self.dropped_ns += dropped_ns;
    }

    /// Total weight of all samples so far.
    pub(super) fn weighed_ns(&self) -> u64 {
        self.weighed_ns
    }

    /// The clock when samples were last weighed, and the weight of dropped ones.
    #[cfg(test)]
    pub(super) fn balance(&self) -> (Option<u64>, u64) {
        (self.weighed_until_ns, self.dropped_ns)
    }

    /// Reads the clock for the last time.
    pub(super) fn end(&mut self, pid: pid_t, clocks: &dyn Clocks) {
        self.last_ns = self.now_ns(pid, clocks).or(self.last_ns);
    }

    /// CPU time while the process was sampled, as far as known: a process that no longer exists has no clock, so
    /// its final use is that of its samples, including dropped ones.
    pub(super) fn used_ns(&self) -> u64 {
        let by_clock = self.first_ns.zip(self.last_ns);
        let by_samples = self.weighed_ns + self.dropped_ns;
        by_clock.map_or(0, |(first_ns, last_ns)| last_ns.saturating_sub(first_ns)).max(by_samples)
    }
}

// ---- How the samples of a process in a batch share the CPU time counted by its clock.
//
// Samples on time weigh one period each: they represent every moment in which ticks can be on time. The rest of
// the CPU time was used where ticks cannot be: the clock of a woken thread starts when its CPU is notified, some
// microseconds before it runs there (kernel/sched/core.c, `wakeup_preempt`), and the host of a virtual machine
// may take the CPU. Late samples are taken where that time ends, so they get the rest, and no more.

/// The shares of a process's samples in a batch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CpuTimeShare {
    /// CPU time shared by all samples, including dropped ones; `None`: a period each.
    pub(crate) used_ns: Option<u64>,
    /// Sum of the nominal periods of all these samples.
    pub(crate) due_ns: u64,
    /// Of that, periods of dropped samples.
    pub(crate) dropped_ns: u64,
    /// Periods weighed so far.
    pub(crate) weighed_ns: u64,
    /// Late samples: the time they share, their number, and the number weighed so far.
    pub(crate) late_ns: u64,
    pub(crate) late: u64,
    pub(crate) late_weighed: u64,
}

/// First `number` of `parts` equal parts of `all_ns`, rounded down.
pub(crate) fn prefix_share_ns(all_ns: u64, parts: u64, number: u64) -> u64 {
    (u128::from(all_ns) * u128::from(number) / u128::from(parts.max(1))) as u64
}

/// Divides a whole number in proportion, without a remainder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Division {
    whole: u64,
    all: u64,
    passed: u64,
}

impl Division {
    /// Divides `whole` among elements with the sum `all`.
    pub(crate) fn new(whole: u64, all: u64) -> Division {
        Division { whole, all, passed: 0 }
    }

    /// The part of the next element, of this size.
    pub(crate) fn next(&mut self, has: u64) -> u64 {
        let before = prefix_share_ns(self.whole, self.all, self.passed);
        self.passed += has;
        prefix_share_ns(self.whole, self.all, self.passed) - before
    }
}

impl CpuTimeShare {
    fn weight_until_ns(&self, used_ns: u64, weighed_ns: u64) -> u64 {
        prefix_share_ns(used_ns, self.due_ns, weighed_ns)
    }

    /// The weight of the next sample, with this period.
    pub(crate) fn next_ns(&mut self, period_ns: u64) -> u64 {
        let before_ns = self.weighed_ns;
        self.weighed_ns = (before_ns + period_ns).min(self.due_ns);
        let share = |used_ns| {
            self.weight_until_ns(used_ns, self.weighed_ns) - self.weight_until_ns(used_ns, before_ns)
        };
        self.used_ns.map_or(period_ns, share)
    }

    /// Reserves a part of the shared time for late samples, with periods that add up to `due_ns`.
    pub(crate) fn give_late(&mut self, late: u64, due_ns: u64, late_ns: u64) {
        self.due_ns -= due_ns;
        self.used_ns = self.used_ns.map(|used_ns| used_ns - late_ns);
        (self.late, self.late_ns) = (late, late_ns);
    }

    /// The weight of the next late sample.
    pub(crate) fn next_late_ns(&mut self) -> u64 {
        self.late_weighed += 1;
        let until_ns = |number| prefix_share_ns(self.late_ns, self.late, number);
        until_ns(self.late_weighed) - until_ns(self.late_weighed - 1)
    }

    /// CPU time not given to any weighed sample.
    pub(crate) fn rest_ns(&self) -> u64 {
        let late_ns = self.late_ns - prefix_share_ns(self.late_ns, self.late, self.late_weighed);
        let not_weighed_ns = |used_ns| used_ns - self.weight_until_ns(used_ns, self.weighed_ns);
        late_ns + self.used_ns.map_or(self.dropped_ns, not_weighed_ns)
    }
}

/// CPU time of a process that its ticks on time leave over, accumulated during a recording.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LateTimeLeft {
    used_ns: u64,
    on_time_ns: u64,
    given_ns: u64,
}

impl LateTimeLeft {
    /// CPU time for the late samples of a batch. `on_time_ns` and `late_ns`: nominal periods of samples on time and
    /// of late ones.
    pub(crate) fn of_batch(&mut self, used_ns: u64, on_time_ns: u64, late_ns: u64) -> u64 {
        self.used_ns += used_ns;
        self.on_time_ns += on_time_ns;
        let left_ns = self.used_ns.saturating_sub(self.on_time_ns + self.given_ns);
        // Without samples on time, late ones are the only information.
        let given_ns = if on_time_ns == 0 { used_ns } else { left_ns.min(late_ns).min(used_ns) };
        self.given_ns += given_ns;
        given_ns
    }
}

// ---- With `-a`: CPU clocks of all processes at the beginning and end of the recording. They give the CPU time of
// a process from its first sample on, and at the end that of processes without a sample.

/// By process, until it is sampled or its number is reused.
#[derive(Debug, Default)]
pub(crate) struct ClockBaseline(HashMap<pid_t, Clock>);

/// The clock of a process at both ends of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Clock {
    pub(crate) began_ns: u64,
    /// `None` until the end, or if the process ended before.
    pub(crate) ended_ns: Option<u64>,
}

impl ClockBaseline {
    /// Reads the clocks of these processes, as far as they are readable.
    pub(crate) fn of(pids: &[pid_t], clock: impl Fn(pid_t) -> Option<u64>) -> ClockBaseline {
        let begin = |pid: &pid_t| Some((*pid, Clock { began_ns: clock(*pid)?, ended_ns: None }));
        ClockBaseline(pids.iter().filter_map(begin).collect())
    }

    /// Reads the clocks at the end of the recording.
    pub(crate) fn stop(&mut self, clock: impl Fn(pid_t) -> Option<u64>) {
        self.0.iter_mut().for_each(|(pid, of)| of.ended_ns = clock(*pid));
    }

    /// Removes a process that is sampled from now on; returns its initial clock.
    pub(crate) fn take(&mut self, pid: pid_t) -> Option<Clock> {
        self.0.remove(&pid)
    }

    /// CPU time of the remaining processes that did not end before the recording.
    pub(crate) fn unsampled_ns(&self) -> u64 {
        self.0.values().filter_map(|of| Some(of.ended_ns?.saturating_sub(of.began_ns))).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::linux::clocks::SystemClocks;

    #[test]
    fn with_drops_the_clock_of_a_new_process_counts_from_its_start() {
        let mut clock = ProcessClock::default();
        clock.begin_with_process();
        assert_eq!(clock.share_at(Some(700), true), Some(700));
        assert_eq!(clock.share_at(Some(900), true), Some(200));
        assert_eq!(clock.used_ns(), 900);
    }

    #[test]
    fn time_after_the_end_of_sampling_is_not_shared() {
        let own = std::process::id().cast_signed();
        let mut clock = ProcessClock::default();
        clock.begin_at(1_000);
        clock.stop_at(Some(1_600));
        let mut share_ns = || clock.share_ns(own, false, &SystemClocks);
        assert_eq!((share_ns(), share_ns()), (Some(600), Some(0)));
        clock.end(own, &SystemClocks);
        assert_eq!(clock.used_ns(), 600);
    }

    #[test]
    fn without_drops_first_samples_weigh_a_period_each() {
        let mut clock = ProcessClock::default();
        clock.begin_with_process();
        assert_eq!(clock.share_at(Some(700), false), None);
        assert_eq!(clock.share_at(Some(900), true), Some(200), "its beginning was counted");
    }

    #[test]
    fn an_initial_process_counts_from_the_start_of_the_recording() {
        let mut clock = ProcessClock::default();
        clock.begin_at(5_000);
        assert_eq!(clock.share_at(Some(5_700), true), Some(700));
        let mut unknown = ProcessClock::default();
        assert_eq!(unknown.share_at(Some(5_700), true), None);
    }
}

#[cfg(test)]
mod share_tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn weights_and_dropped_time_add_up_to_the_cpu_time() {
        const PERIOD_NS: u64 = 1_003_009;
        for (used_ns, samples, dropped, late) in
            [(1_000_003, 7, 0, 0), (50_000_000, 48, 5, 7), (9, 20, 3, 1), (0, 4, 1, 1), (70_001, 6, 0, 6)]
        {
            let (due_ns, dropped_ns) = ((samples + dropped) * PERIOD_NS, dropped * PERIOD_NS);
            let mut share =
                CpuTimeShare { used_ns: Some(used_ns), due_ns, dropped_ns, ..CpuTimeShare::default() };
            share.give_late(late, late * PERIOD_NS, used_ns / 5);
            let on_time: u64 = (0..samples - late).map(|_| share.next_ns(PERIOD_NS)).sum();
            let told = on_time + (0..late).map(|_| share.next_late_ns()).sum::<u64>();
            assert_eq!(told + share.rest_ns(), used_ns, "{samples} samples, {dropped} dropped");
        }
    }

    #[test]
    fn dropped_time_is_divided_without_a_remainder() {
        let mut rng = Rng::new(11);
        for _ in 0..1_000 {
            let samples: Vec<u64> = (0..rng.within(1, 40)).map(|_| rng.within(1, 9)).collect();
            let (all, dropped) = (samples.iter().sum(), rng.within(0, 500));
            let mut division = Division::new(dropped, all);
            let parts: Vec<u64> = samples.iter().map(|samples| division.next(*samples)).collect();
            assert_eq!(parts.iter().sum::<u64>(), dropped, "{samples:?}");
            let fair = samples.iter().zip(&parts).all(|(samples, part)| {
                (*part as f64 - dropped as f64 * *samples as f64 / all as f64).abs() < 1.0
            });
            assert!(fair, "{samples:?}: {parts:?}");
        }
    }

    #[test]
    fn samples_of_a_cpu_with_longer_periods_weigh_more() {
        let periods_ns = [750_000, 1_250_000, 750_000, 1_250_000, 750_000];
        let mut share =
            CpuTimeShare { used_ns: Some(9_500_000), due_ns: 4_750_000, ..CpuTimeShare::default() };
        let told = periods_ns.map(|period_ns| share.next_ns(period_ns));
        assert_eq!(told, periods_ns.map(|period_ns| 2 * period_ns));
        assert_eq!((share.rest_ns(), share.next_ns(1_000_000)), (0, 0), "no more than was used");
    }

    #[test]
    fn without_a_clock_each_sample_weighs_its_period() {
        let mut share = CpuTimeShare { due_ns: 5_000, dropped_ns: 3_000, ..CpuTimeShare::default() };
        assert_eq!((share.next_ns(800), share.next_ns(1_200), share.rest_ns()), (800, 1_200, 3_000));
    }

    /// A thread works 100 us, waits, and is woken; its clock begins `early_ns` before it can be interrupted. A
    /// tick due in that time comes as soon as it can, late, like one due while the CPU slept.
    fn share_of_late(early_ns: u64, seed: u64) -> f64 {
        const PERIOD_NS: u64 = 1_000_000;
        let mut rng = Rng::new(seed);
        let (mut left, mut given_ns, mut all_ns) = (LateTimeLeft::default(), 0, 0);
        for _ in 0..80 {
            let (mut used, mut on_time, mut late) = (0, 0, 0);
            let mut due = rng.within(0, PERIOD_NS);
            let mut now = 0;
            while now < 50 * PERIOD_NS {
                let asleep_ns = rng.within(40_000, 120_000);
                let (runs, ends) = (now + asleep_ns, now + asleep_ns + 100_000);
                used += ends - runs + early_ns;
                while due < ends {
                    match due {
                        due if due >= runs => on_time += 1,
                        // Half of those due while it sleeps are late, too.
                        due if due >= runs - early_ns || due % 2 == 0 => late += 1,
                        _ => {}
                    }
                    due += PERIOD_NS;
                }
                now = ends;
            }
            let of_late = left.of_batch(used, on_time * PERIOD_NS, late * PERIOD_NS);
            assert!(of_late <= used, "seed {seed}");
            given_ns += of_late;
            all_ns += used;
        }
        given_ns as f64 / all_ns as f64
    }

    #[test]
    fn late_ticks_cover_time_without_ticks_on_time() {
        for seed in 0..20 {
            let (none, some) = (share_of_late(0, seed), share_of_late(20_000, seed));
            // 20 us of 120; the standard error of 4,000 ticks is a point and a half.
            assert!(none < 0.05 && (some - 1.0 / 6.0).abs() < 0.05, "seed {seed}: {none} and {some}");
        }
    }
}

#[cfg(test)]
mod clock_baseline_tests {
    use super::*;

    #[test]
    fn each_process_is_counted_by_its_samples_or_by_its_clock() {
        let mut baseline = ClockBaseline::of(&[4, 5, 6, 7, 8], |pid| (pid != 8).then_some(1_000));
        let found = Clock { began_ns: 1_000, ended_ns: None };
        assert_eq!((baseline.take(5), baseline.take(5), baseline.take(8)), (Some(found), None, None));
        assert_eq!(baseline.unsampled_ns(), 0, "it has not ended");
        baseline.stop(|pid| match pid {
            6 => Some(1_250),
            7 => None,
            _ => Some(9_000),
        });
        assert_eq!(baseline.take(4), Some(Clock { began_ns: 1_000, ended_ns: Some(9_000) }));
        assert_eq!(baseline.unsampled_ns(), 250);
    }
}
