//! The CPU clock of a process, and how much of it is weighed.
//!
//! Input: the clock, read once per batch. Output: CPU time since the batch before, which the samples of the batch
//! share, and in all.

use libc::pid_t;

use super::super::clocks::Clocks;
use super::share::LateTimeLeft;

/// The CPU clock of one process.
#[derive(Debug, Default)]
pub(in crate::sources::linux::perf) struct ProcessClock {
    /// When it was sampled first, if it was known then; and when it was read last.
    first_ns: Option<u64>,
    last_ns: Option<u64>,
    /// Up to which samples have been weighed.
    weighed_until_ns: Option<u64>,
    /// Its clock when sampling ended: what is used after that is not recorded.
    ended_ns: Option<u64>,
    /// The process began while it was recorded, and no samples of it were weighed yet.
    is_new: bool,
    /// What all samples so far weigh.
    weighed_ns: u64,
    /// What those weigh that did not fit into a ring.
    dropped_ns: u64,
    /// What ticks that come on time leave.
    pub(super) late_left: LateTimeLeft,
}

impl ProcessClock {
    /// Begins to count: what was used before is not recorded.
    pub(super) fn begin(&mut self, pid: pid_t, clocks: &dyn Clocks) {
        self.last_ns = clocks.process_cpu_ns(pid);
        (self.first_ns, self.weighed_until_ns) = (self.last_ns, self.last_ns);
    }

    /// Begins to count for a process that ran before it was sampled, whose clock was at this when the recording
    /// began.
    pub(super) fn begin_at(&mut self, clock_ns: u64) {
        (self.first_ns, self.weighed_until_ns) = (Some(clock_ns), Some(clock_ns));
    }

    /// The process was started while it was recorded: its clock began with it.
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

    /// Sampling ended with the clock at this; what it counts from now on is not recorded.
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

    /// A sample was weighed.
    pub(super) fn add_weight(&mut self, weight_ns: u64) {
        self.weighed_ns += weight_ns;
    }

    /// Adds the time of dropped samples.
    pub(super) fn add_dropped(&mut self, dropped_ns: u64) {
        self.dropped_ns += dropped_ns;
    }

    /// What all samples so far weigh.
    pub(super) fn weighed_ns(&self) -> u64 {
        self.weighed_ns
    }

    /// The clock when samples were weighed last, and what those weigh that were dropped.
    #[cfg(test)]
    pub(super) fn balance(&self) -> (Option<u64>, u64) {
        (self.weighed_until_ns, self.dropped_ns)
    }

    /// Reads the clock a last time.
    pub(super) fn end(&mut self, pid: pid_t, clocks: &dyn Clocks) {
        self.last_ns = self.now_ns(pid, clocks).or(self.last_ns);
    }

    /// CPU time while the process was sampled, as far as it is known: a process that no longer exists has no clock,
    /// so its samples, and its dropped ones, give what it used at its end.
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
    fn where_samples_were_dropped_the_clock_of_a_new_process_counts_from_its_beginning() {
        let mut clock = ProcessClock::default();
        clock.begin_with_process();
        assert_eq!(clock.share_at(Some(700), true), Some(700));
        assert_eq!(clock.share_at(Some(900), true), Some(200));
        assert_eq!(clock.used_ns(), 900);
    }

    #[test]
    fn what_is_used_after_the_end_of_sampling_is_not_shared() {
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
    fn without_drops_first_samples_stand_for_a_period_each() {
        let mut clock = ProcessClock::default();
        clock.begin_with_process();
        assert_eq!(clock.share_at(Some(700), false), None);
        assert_eq!(clock.share_at(Some(900), true), Some(200), "its beginning was counted");
    }

    #[test]
    fn a_process_that_was_found_counts_from_the_beginning_of_the_recording() {
        let mut clock = ProcessClock::default();
        clock.begin_at(5_000);
        assert_eq!(clock.share_at(Some(5_700), true), Some(700));
        let mut unknown = ProcessClock::default();
        assert_eq!(unknown.share_at(Some(5_700), true), None);
    }
}
