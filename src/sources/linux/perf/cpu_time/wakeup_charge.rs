//! CPU time that a process is charged before its threads run, and samples that carry it.
//!
//! Input: measurements of intervals (`wakeup_latency.rs`), and the CPU time of each batch. Output: the part that
//! the samples of the batch share, and stacks with weights for the rest. All time counts exactly once.

use std::collections::VecDeque;

use libc::pid_t;

use crate::sources::Capture;

/// Maximum number of stacks kept per process.
const STACKS_MAX: usize = 64;
/// Stacks older than this many intervals show outdated behavior: they are discarded, except for this many.
const INTERVALS_KEPT: u64 = 4;
const OLD_KEPT: usize = 4;

/// Stack of a thread that waited.
#[derive(Debug)]
struct WaitStack {
    tid: pid_t,
    capture: Box<Capture>,
    /// Number of the interval in which it was copied.
    interval: u64,
}

/// Measurements of a process, and its time not yet weighed.
#[derive(Debug, Default)]
pub(in crate::sources::linux::perf) struct WakeupCharge {
    /// The last interval, and the one before.
    intervals: [Interval; 2],
    /// CPU time of batches since the last measurement, and the part of it withheld as charged before threads ran.
    since_used_ns: u64,
    since_withheld_ns: u64,
    /// Time overcharged to samples of earlier batches, as a later interval showed; negative if undercharged.
    overcharged_ns: i64,
    /// Time still to be weighed by the stacks.
    pending_charge_ns: u64,
    stacks: VecDeque<WaitStack>,
    next: usize,
    /// Number of intervals so far.
    interval: u64,
    /// Whether the waits of the stacks are over; the stacks then carry the rest.
    is_over: bool,
}

/// CPU time of a process in an interval, and the part of it charged before its threads ran.
#[derive(Clone, Copy, Debug, Default)]
struct Interval {
    used_ns: u64,
    before_ns: i64,
}

/// The part of this time charged before threads ran, by intervals.
fn part_ns(used_ns: u64, intervals: &[Interval]) -> u64 {
    let all_ns: u64 = intervals.iter().map(|interval| interval.used_ns).sum();
    let before_ns: i64 = intervals.iter().map(|interval| interval.before_ns).sum();
    let before_ns = u64::try_from(before_ns).unwrap_or(0).min(all_ns);
    (u128::from(used_ns) * u128::from(before_ns) / u128::from(all_ns.max(1))) as u64
}

impl WakeupCharge {
    /// Adds an interval. Programs change, so CPU time since the previous interval is split by both.
    pub(in crate::sources::linux::perf) fn measure(&mut self, used_ns: u64, before_ns: i64) {
        self.interval += 1;
        let [last, _] = self.intervals;
        self.intervals = [Interval { used_ns, before_ns }, last];
        let used_ns = std::mem::take(&mut self.since_used_ns);
        if !self.stacks.is_empty() {
            let before_ns = part_ns(used_ns, &self.intervals);
            let withheld_ns = std::mem::take(&mut self.since_withheld_ns);
            self.pending_charge_ns += before_ns;
            self.overcharged_ns += before_ns.cast_signed() - withheld_ns.cast_signed();
        }
    }

    /// Adds the stack of a thread that waited in the last interval; replaced buffers go to `spare`.
    pub(in crate::sources::linux::perf) fn add_stack(
        &mut self,
        tid: pid_t,
        capture: Box<Capture>,
        mut spare: impl FnMut(Box<Capture>),
    ) {
        self.stacks.push_back(WaitStack { tid, capture, interval: self.interval });
        let old = |one: &WaitStack| one.interval + INTERVALS_KEPT < self.interval;
        while self.stacks.len() > STACKS_MAX
            || self.stacks.len() > OLD_KEPT && self.stacks.front().is_some_and(old)
        {
            let Some(one) = self.stacks.pop_front() else { break };
            spare(one.capture);
        }
    }

    /// Withholds from the CPU time of a batch the part charged before threads ran, by the last interval, and some
    /// of the overcharge of earlier batches; returns the rest.
    pub(in crate::sources::linux::perf) fn withhold(&mut self, used_ns: u64) -> u64 {
        self.since_used_ns += used_ns;
        if self.stacks.is_empty() {
            return used_ns;
        }
        let withheld_ns = part_ns(used_ns, &self.intervals[..1]);
        self.since_withheld_ns += withheld_ns;
        // Samples of one batch do not pay for all.
        let left_ns = (used_ns - withheld_ns).cast_signed();
        let paid_ns = self.overcharged_ns.clamp(-left_ns / 4, left_ns / 4);
        self.overcharged_ns -= paid_ns;
        (left_ns - paid_ns).cast_unsigned()
    }

    /// Finalizes without further intervals or batches: the withheld part is as the last interval showed.
    pub(in crate::sources::linux::perf) fn finalize(&mut self) {
        let withheld_ns = std::mem::take(&mut self.since_withheld_ns) + self.pending_charge_ns;
        let pending_charge_ns = withheld_ns.cast_signed() - std::mem::take(&mut self.overcharged_ns);
        self.pending_charge_ns = u64::try_from(pending_charge_ns).unwrap_or(0);
    }

    /// Removes the stacks of an ended thread. If no other thread waited, they carry the rest until
    /// [`WakeupCharge::finish`].
    pub(in crate::sources::linux::perf) fn forget_thread(&mut self, tid: pid_t) {
        if self.stacks.iter().any(|one| one.tid != tid) {
            self.stacks.retain(|one| one.tid != tid);
        } else {
            self.end();
        }
    }

    /// Ends all waits: the last thread ended, or the process executed another program.
    pub(in crate::sources::linux::perf) fn end(&mut self) {
        if !self.stacks.is_empty() {
            self.finalize();
            self.is_over = true;
        }
    }

    /// Notes that all charges of [`WakeupCharge::next_charge`] were counted.
    pub(in crate::sources::linux::perf) fn finish(&mut self) {
        if std::mem::take(&mut self.is_over) {
            self.stacks.clear();
        }
    }

    /// The next sample and its weight of one period; the last one gets the remainder.
    pub(in crate::sources::linux::perf) fn next_charge(
        &mut self,
        period_ns: u64,
        last: bool,
    ) -> Option<(pid_t, &Capture, u64)> {
        // Exclude time that samples still have to pay back: it would count twice if none came.
        let due_ns = self.pending_charge_ns.saturating_sub(u64::try_from(self.overcharged_ns).unwrap_or(0));
        let weight_ns = due_ns.min(period_ns);
        let last = last || self.is_over;
        if self.stacks.is_empty() || weight_ns == 0 || weight_ns < period_ns && !last {
            return None;
        }
        self.pending_charge_ns -= weight_ns;
        // In turn: each was copied at the same fraction of switches.
        self.next = (self.next + 1) % self.stacks.len();
        self.stacks.get(self.next).map(|one| (one.tid, &*one.capture, weight_ns))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::rng::Rng;

    const PERIOD_NS: u64 = 1_000_000;

    impl WakeupCharge {
        /// Adds a stack of each of these threads.
        fn have_waited(&mut self, tids: impl IntoIterator<Item = pid_t>) {
            for tid in tids {
                self.add_stack(tid, Box::new(Capture::with_capacity(0)), |_| {});
            }
        }
    }

    #[test]
    fn old_stacks_are_discarded_when_there_are_new_ones() {
        let mut of = WakeupCharge::default();
        of.have_waited(std::iter::repeat_n(1, 2 * STACKS_MAX));
        assert_eq!(of.stacks.len(), STACKS_MAX);
        for _ in 0..=INTERVALS_KEPT {
            of.measure(1_000_000, 250_000);
        }
        assert_eq!(of.stacks.len(), STACKS_MAX, "none has come");
        let mut spare = 0;
        of.add_stack(2, Box::new(Capture::with_capacity(0)), |_| spare += 1);
        assert_eq!((of.stacks.len(), spare), (OLD_KEPT, STACKS_MAX + 1 - OLD_KEPT));
        of.have_waited([2, 2, 2, 2]);
        assert!(of.stacks.iter().all(|one| one.tid == 2));
    }

    #[test]
    fn charges_and_the_rest_add_up_to_the_cpu_time() {
        for seed in 0..50 {
            let mut rng = Rng::new(seed);
            let mut of = WakeupCharge::default();
            assert_eq!(of.withhold(70), 70, "nothing is known");
            of.have_waited(0..3);
            let (mut used_ns, mut left_ns, mut told_ns, mut seen) = (0, 0, 0, [0; 3]);
            for batch in 0..100 {
                let used = rng.within(0, 50_000_000);
                used_ns += used;
                if batch % 4 == 0 {
                    of.measure(rng.within(0, 1_000_000), rng.within(0, 1_000_000).cast_signed() - 50_000);
                }
                left_ns += of.withhold(used);
                if batch == 99 {
                    of.finalize();
                }
                while let Some((tid, _, weight_ns)) = of.next_charge(PERIOD_NS, batch == 99) {
                    assert!(weight_ns == PERIOD_NS || batch == 99);
                    told_ns += weight_ns;
                    seen[tid as usize] += weight_ns;
                }
            }
            assert_eq!(left_ns + told_ns, used_ns, "seed {seed}");
            assert!(seen.iter().max().unwrap() - seen.iter().min().unwrap() <= 2 * PERIOD_NS);
            of.forget_thread(0);
            of.forget_thread(1);
            of.forget_thread(2);
            of.finish();
            assert_eq!(of.withhold(70), 70, "nobody waits any more");
        }
    }

    #[test]
    fn the_last_waiting_thread_carries_the_rest_when_it_ends() {
        let mut of = WakeupCharge::default();
        of.have_waited([1, 2]);
        of.measure(1_000_000, 250_000);
        let left_ns = of.withhold(10_000_000);
        of.forget_thread(2);
        assert!(of.next_charge(PERIOD_NS, false).is_none(), "another interval may come");
        of.forget_thread(1);
        let mut told_ns = 0;
        while let Some((tid, _, weight_ns)) = of.next_charge(PERIOD_NS, false) {
            assert_eq!(tid, 1);
            told_ns += weight_ns;
        }
        of.finish();
        assert_eq!((left_ns, told_ns), (7_500_000, 2_500_000));
        assert!(of.stacks.is_empty() && of.withhold(70) == 70);
    }

    /// Half of the time is charged before threads run until some moment and none later, or vice versa: batches of
    /// 100 ms, an interval each 400.
    #[test]
    fn a_change_between_two_intervals_is_split_between_both() {
        let used_ns = 100_000_000;
        for changes in 1..50 {
            for first in [true, false] {
                let mut of = WakeupCharge::default();
                of.have_waited([1]);
                let (mut truth_ns, mut left_ns) = (0, 0);
                for batch in 0..60 {
                    let before_ns = if (batch < changes) == first { used_ns / 2 } else { 0 };
                    truth_ns += before_ns;
                    if batch % 4 == 1 {
                        of.measure(used_ns / 2, before_ns.cast_signed() / 2);
                    }
                    left_ns += of.withhold(used_ns);
                }
                of.finalize();
                assert_eq!(left_ns + of.pending_charge_ns, 60 * used_ns);
                // By the last interval alone the error was up to twice as much.
                let off_ns = of.pending_charge_ns.abs_diff(truth_ns);
                assert!(off_ns <= used_ns, "{changes}: {} instead of {truth_ns}", of.pending_charge_ns);
            }
        }
    }
}
