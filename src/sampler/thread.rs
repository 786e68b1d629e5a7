//! One thread as the sampler sees it: what was accounted, how much stack it needs.

use crate::addr::Avma;
use crate::target::{Activity, Look};
use crate::trie::NodeId;
use crate::walk::fp::MAX_STACK_BYTES;
use crate::walk::{Ended, Walked};

const SECOND_NS: u64 = 1_000_000_000;

/// Stack bytes copied at a thread's first sample.
const FIRST_WINDOW_BYTES: usize = 32 << 10;
/// Windows are multiples of this, so that small changes of depth change nothing.
const WINDOW_STEP_BYTES: usize = 4 << 10;
/// Samples in a row that needed less before the window shrinks a step.
const SHRINK_AFTER: u8 = 16;

/// A stack in the trie, and how its walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KnownStack {
    pub(super) node: NodeId,
    pub(super) ended: Ended,
}

/// What is known of a waiting thread's stack (wall-clock profiles).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waits {
    /// Nothing: it has to be captured.
    Unknown,
    /// Captured, and on its way back to where it waited: stack pointer and program counter.
    Returning { stack: KnownStack, at: (Avma, Avma) },
    /// Waiting with this stack while its look stays the same.
    With { stack: KnownStack, look: Look },
}

/// One thread's account.
#[derive(Debug)]
pub(super) struct Account {
    /// Index into the profile's threads.
    pub(super) index: u32,
    pub(super) stack_top: Option<Avma>,
    /// Searches for where the thread was born that may still be made.
    pub(super) birth_searches_left: u8,
    /// Whether a stop was asked for and has not come.
    pub(super) asked: bool,
    /// Whether it waited when it was asked to stop.
    pub(super) asked_waiting: bool,
    pub(super) waits: Waits,
    pub(super) window_bytes: usize,
    needed_less: u8,
    /// CPU time at the thread's first look; what it used before is not ours.
    first_cpu_ns: u64,
    /// CPU time and switches at the last sample.
    sampled: Look,
    sampled_at_ns: u64,
    /// The latest look's CPU time.
    cpu_ns: u64,
    /// Time not yet counted, in units of 1/hz ns: below one period's worth.
    carried: u64,
    /// No sample yet: what the system said at the beginning may have lagged.
    fresh: bool,
}

impl Account {
    pub(super) fn new(index: u32, stack_top: Option<Avma>, look: Look, now_ns: u64) -> Account {
        Account {
            index,
            stack_top,
            birth_searches_left: 8,
            asked: false,
            asked_waiting: false,
            waits: Waits::Unknown,
            window_bytes: FIRST_WINDOW_BYTES,
            needed_less: 0,
            first_cpu_ns: look.cpu_ns,
            sampled: look,
            sampled_at_ns: now_ns,
            cpu_ns: look.cpu_ns,
            carried: 0,
            fresh: true,
        }
    }

    /// Takes note of a look; whether the thread was on a CPU since its last sample, as
    /// far as the system tells: a thread that runs on without being switched may not show.
    pub(super) fn seen(&mut self, look: Look) -> bool {
        self.cpu_ns = self.cpu_ns.max(look.cpu_ns);
        self.fresh || (look.cpu_ns, look.switches) != (self.sampled.cpu_ns, self.sampled.switches)
    }

    /// Counts of a sample by CPU time: periods used since the last one, the remainder carried.
    pub(super) fn weigh_cpu(&mut self, look: Look, now_ns: u64, hz: u32) -> u64 {
        self.cpu_ns = self.cpu_ns.max(look.cpu_ns);
        let mut used_ns = self.cpu_ns.saturating_sub(self.sampled.cpu_ns);
        if self.fresh {
            // The first figure may have lagged behind what was used before we came; a
            // thread cannot use more CPU time than passes.
            used_ns = used_ns.min(now_ns.saturating_sub(self.sampled_at_ns));
            self.first_cpu_ns = self.cpu_ns - used_ns;
        }
        self.sampled = look;
        self.sampled_at_ns = now_ns;
        self.fresh = false;
        self.count(used_ns, hz)
    }

    /// Counts of a sample by wall-clock time.
    pub(super) fn weigh_wall(&mut self, look: Look, now_ns: u64, hz: u32) -> u64 {
        let passed_ns = now_ns.saturating_sub(self.sampled_at_ns);
        self.cpu_ns = self.cpu_ns.max(look.cpu_ns);
        self.sampled = look;
        self.sampled_at_ns = now_ns;
        self.fresh = false;
        self.count(passed_ns, hz)
    }

    /// Counts that no sample will take: CPU time used since the last one, up to `cpu_ns`.
    pub(super) fn unsampled(&mut self, cpu_ns: Option<u64>, hz: u32) -> u64 {
        self.cpu_ns = self.cpu_ns.max(cpu_ns.unwrap_or(0));
        if self.fresh {
            // Never sampled: how much of it was used before we came is not known.
            return self.count(self.cpu_ns.saturating_sub(self.first_cpu_ns), hz);
        }
        self.count(self.cpu_ns.saturating_sub(self.sampled.cpu_ns), hz)
    }

    /// What is known when the system tells no more.
    pub(super) fn last_look(&self) -> Look {
        Look { cpu_ns: self.cpu_ns, ..self.sampled }
    }

    /// CPU time used while recorded, nanoseconds.
    pub(super) fn used_cpu_ns(&self) -> u64 {
        self.cpu_ns.saturating_sub(self.first_cpu_ns)
    }

    fn count(&mut self, ns: u64, hz: u32) -> u64 {
        self.carried = self.carried.saturating_add(ns.saturating_mul(hz.into()));
        let counts = self.carried / SECOND_NS;
        self.carried %= SECOND_NS;
        counts
    }

    /// Fits the window to what a walk from `sp` needed: up at once, down a step after
    /// [`SHRINK_AFTER`] samples that needed less, because depth comes back.
    pub(super) fn fit_window(&mut self, walked: &Walked, sp: Avma) {
        let needed = match walked.ended {
            Ended::WindowRanOut => self.window_bytes.saturating_mul(4),
            _ => (walked.reached.0.saturating_sub(sp.0) as usize).saturating_add(WINDOW_STEP_BYTES),
        };
        let needed = needed.min(MAX_STACK_BYTES as usize).next_multiple_of(WINDOW_STEP_BYTES);
        if needed >= self.window_bytes {
            self.window_bytes = needed;
            self.needed_less = 0;
        } else {
            self.needed_less += 1;
            if self.needed_less == SHRINK_AFTER {
                self.window_bytes -= WINDOW_STEP_BYTES;
                self.needed_less = 0;
            }
        }
    }
}

/// A look at a thread of which nothing is known yet.
pub(super) fn unknown_look() -> Look {
    Look { cpu_ns: 0, switches: 0, activity: Activity::Runnable }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(cpu_ns: u64) -> Look {
        Look { cpu_ns, switches: 1, activity: Activity::Runnable }
    }

    #[test]
    fn counts_add_up_to_cpu_seconds_times_hz() {
        let mut account = Account::new(0, None, look(7_000), 0);
        let (mut cpu_ns, mut counts) = (7_000, 0);
        for step in 0..10_000u64 {
            cpu_ns += 1 + step * 7919 % 2_000_000;
            counts += account.weigh_cpu(look(cpu_ns), u64::MAX / 2, 997);
        }
        let exact = u128::from(cpu_ns - 7_000) * 997 / u128::from(SECOND_NS);
        assert_eq!(u128::from(counts), exact);
        assert_eq!(account.used_cpu_ns(), cpu_ns - 7_000);
    }

    #[test]
    fn the_first_sample_weighs_at_most_the_time_that_passed() {
        let mut account = Account::new(0, None, look(0), 1_000_000);
        // 4 ms of CPU time show up 1 ms after we came.
        assert_eq!(account.weigh_cpu(look(4_000_000), 2_000_000, 1000), 1);
        assert_eq!(account.used_cpu_ns(), 1_000_000);
    }

    #[test]
    fn a_thread_that_was_not_put_on_a_cpu_has_not_run() {
        let mut account = Account::new(0, None, look(0), 0);
        assert!(account.seen(look(0)), "nothing is known before the first sample");
        account.weigh_cpu(look(5), 10, 997);
        assert!(!account.seen(look(5)));
        assert!(account.seen(Look { switches: 2, ..look(5) }));
    }

    #[test]
    fn the_window_grows_at_once_and_shrinks_slowly() {
        let mut account = Account::new(0, None, look(0), 0);
        let sp = Avma(0x1000);
        account.fit_window(&Walked { ended: Ended::WindowRanOut, reached: sp }, sp);
        assert_eq!(account.window_bytes, 4 * FIRST_WINDOW_BYTES);
        for _ in 0..16 * 40 {
            account.fit_window(&Walked { ended: Ended::Root, reached: sp + 100 }, sp);
        }
        assert_eq!(account.window_bytes, 2 * WINDOW_STEP_BYTES);
        for _ in 0..20 {
            account.fit_window(&Walked { ended: Ended::WindowRanOut, reached: sp }, sp);
        }
        assert_eq!(account.window_bytes as u64, MAX_STACK_BYTES);
    }
}
