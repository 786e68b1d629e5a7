//! CPU time that a process is charged before its threads run, and the samples that get it.
//!
//! Input: measurements of intervals (`wakeup_latency.rs`), and the CPU time of each batch. Output: the part that the
//! samples of the batch share, and stacks with weights for the rest. Nothing counts twice, and nothing is left out.

use std::collections::VecDeque;

use libc::pid_t;

use crate::sources::Capture;

/// Most stacks that are kept for a process.
const STACKS_MAX: usize = 64;
/// Stacks older than this many intervals show what the program did then: they are discarded, except for this many.
const INTERVALS_KEPT: u64 = 4;
const OLD_KEPT: usize = 4;

/// A stack that a thread waited at.
#[derive(Debug)]
struct WaitStack {
    tid: pid_t,
    capture: Box<Capture>,
    /// The number of the interval in which it was copied.
    interval: u64,
}

/// Measurements of a process, and the time that is not yet weighed.
#[derive(Debug, Default)]
pub(in crate::sources::linux::perf) struct WakeupCharge {
    /// By the last interval, and by the one before.
    intervals: [Interval; 2],
    /// What was used in batches since the last interval was measured, and what of it was withheld as from before
    /// threads ran.
    since_used_ns: u64,
    since_withheld_ns: u64,
    /// What the samples of earlier batches were given too much, as a later interval showed; less than 0: too little.
    overcharged_ns: i64,
    /// Time that the stacks still have to weigh.
    pending_charge_ns: u64,
    stacks: VecDeque<WaitStack>,
    next: usize,
    /// The intervals so far.
    interval: u64,
    /// The waits of the stacks are over; they weigh what is left.
    is_over: bool,
}

/// CPU time of a process in an interval, and how much of it was from before its threads ran.
#[derive(Clone, Copy, Debug, Default)]
struct Interval {
    used_ns: u64,
    before_ns: i64,
}

/// How much of this time was from before threads ran, by intervals.
fn part_ns(used_ns: u64, intervals: &[Interval]) -> u64 {
    let all_ns: u64 = intervals.iter().map(|interval| interval.used_ns).sum();
    let before_ns: i64 = intervals.iter().map(|interval| interval.before_ns).sum();
    let before_ns = u64::try_from(before_ns).unwrap_or(0).min(all_ns);
    (u128::from(used_ns) * u128::from(before_ns) / u128::from(all_ns.max(1))) as u64
}

impl WakeupCharge {
    /// Adds an interval. Programs change, so CPU time since the interval before is judged by both.
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

    /// Takes from what was used in a batch the part from before threads ran, as the last interval shows it, and some
    /// of what earlier batches were given too much; what is left.
    pub(in crate::sources::linux::perf) fn withhold(&mut self, used_ns: u64) -> u64 {
        self.since_used_ns += used_ns;
        if self.stacks.is_empty() {
            return used_ns;
        }
        let withheld_ns = part_ns(used_ns, &self.intervals[..1]);
        self.since_withheld_ns += withheld_ns;
        // The samples of one batch do not pay for all.
        let left_ns = (used_ns - withheld_ns).cast_signed();
        let paid_ns = self.overcharged_ns.clamp(-left_ns / 4, left_ns / 4);
        self.overcharged_ns -= paid_ns;
        (left_ns - paid_ns).cast_unsigned()
    }

    /// No interval comes any more, and no batch: what was withheld is as the last interval showed.
    pub(in crate::sources::linux::perf) fn finalize(&mut self) {
        let withheld_ns = std::mem::take(&mut self.since_withheld_ns) + self.pending_charge_ns;
        let pending_charge_ns = withheld_ns.cast_signed() - std::mem::take(&mut self.overcharged_ns);
        self.pending_charge_ns = u64::try_from(pending_charge_ns).unwrap_or(0);
    }

    /// A thread ends: removes its stacks. If no other thread waited, they weigh what is left until
    /// [`WakeupCharge::finish`].
    pub(in crate::sources::linux::perf) fn forget_thread(&mut self, tid: pid_t) {
        if self.stacks.iter().any(|one| one.tid != tid) {
            self.stacks.retain(|one| one.tid != tid);
        } else {
            self.end();
        }
    }

    /// No thread waits any more where one did: it ran its last, or it runs another program.
    pub(in crate::sources::linux::perf) fn end(&mut self) {
        if !self.stacks.is_empty() {
            self.finalize();
            self.is_over = true;
        }
    }

    /// All that [`WakeupCharge::next_charge`] gave was counted.
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
        // What samples are still to pay for does not count yet: it would count twice if none came.
        let due_ns = self.pending_charge_ns.saturating_sub(u64::try_from(self.overcharged_ns).unwrap_or(0));
        let weight_ns = due_ns.min(period_ns);
        let last = last || self.is_over;
        if self.stacks.is_empty() || weight_ns == 0 || weight_ns < period_ns && !last {
            return None;
        }
        self.pending_charge_ns -= weight_ns;
        // In turn: each was copied at as many switches as any other.
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
        /// A stack of each of these threads.
        fn have_waited(&mut self, tids: impl IntoIterator<Item = pid_t>) {
            for tid in tids {
                self.add_stack(tid, Box::new(Capture::with_capacity(0)), |_| {});
            }
        }
    }

    #[test]
    fn stacks_of_what_a_program_does_no_more_go_when_there_are_new_ones() {
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
    fn samples_for_it_and_what_is_left_add_up_to_what_was_used() {
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
    fn the_last_thread_that_waited_stands_for_what_is_left_when_it_ends() {
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

    /// Half of the time is from before threads run until a moment, none later, or the other way about: batches of
    /// 100 ms, an interval each 400.
    #[test]
    fn what_changes_between_two_intervals_is_shared_among_both() {
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
                // By the last interval alone it was up to twice as much.
                let off_ns = of.pending_charge_ns.abs_diff(truth_ns);
                assert!(off_ns <= used_ns, "{changes}: {} instead of {truth_ns}", of.pending_charge_ns);
            }
        }
    }
}
