//! The CPU clock of a process, and the part of it that is weighed.
//!
//! Input: the clock, read once per batch. Output: CPU time since the previous batch, shared by the samples of the
//! batch, and in total.

use libc::pid_t;

use super::super::clocks::Clocks;
use super::share::LateTimeLeft;

/// The CPU clock of one process.
#[derive(Debug, Default)]
pub(in crate::sources::linux::perf) struct ProcessClock {
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

#[cfg(test)]
mod tests {
    use super::super::super::clocks::SystemClocks;
    use super::*;

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
