//! Open waits (`OpenWaits`): their stacks were walked when they began, and their lengths are reported later.
//! `WaitSampling` selects which of many short waits are walked.

use hashbrown::HashMap;

use super::recorder::Recorder;
use crate::rng::mix;
use crate::sources::ThreadId;
use crate::trie::NodeId;
use crate::walk::StackEnd;

/// Loss reason for a wait with a stack that was not kept.
const NOT_KEPT: &str = "where a wait began could not be kept";

/// Open waits by thread: stack node, and how its walk ended.
#[derive(Debug, Default)]
pub(super) struct OpenWaits(HashMap<ThreadId, (NodeId, StackEnd)>);

impl OpenWaits {
    /// Begins a wait, with this stack if there was room for it.
    pub(super) fn began(&mut self, thread: ThreadId, stack: Option<(NodeId, StackEnd)>) {
        match stack {
            Some(stack) => self.0.insert(thread, stack),
            None => self.0.remove(&thread),
        };
    }

    /// Drops a thread that has ended.
    pub(super) fn forget(&mut self, thread: ThreadId) {
        self.0.remove(&thread);
    }

    /// Ends a wait at `at_ns` with this weight, nanoseconds.
    pub(super) fn over(&mut self, recorder: &mut Recorder<'_>, thread: ThreadId, at_ns: u64, weight_ns: u64) {
        match self.0.remove(&thread) {
            Some(stack) => recorder.count(thread, stack, at_ns, weight_ns),
            None => recorder.lose(NOT_KEPT, weight_ns),
        }
    }
}

// ---- Selects which of many short waits are walked: a thread may wait a hundred thousand times a second.
//
// For each period of accumulated short waits, one wait is drawn, the one at a random moment of that period, and
// weighs a period. So on average each wait weighs what it lasted, and the work is bounded by time, not by the
// number of waits. A wait of a period or more weighs its exact length.

/// Draws one of the short waits in each period.
#[derive(Debug)]
pub(super) struct WaitSampling {
    /// Position in the current period of accumulated short waits, nanoseconds.
    in_period_ns: u64,
    /// The random moment in that period.
    due_ns: u64,
    /// Whether that moment has passed.
    given: bool,
    /// State of the random sequence.
    random: u64,
}

impl WaitSampling {
    /// `seed`, different for each thread, determines the moments.
    pub(super) fn new(seed: u64) -> WaitSampling {
        WaitSampling { in_period_ns: 0, due_ns: 0, given: true, random: seed }
    }

    /// The weight of a wait, nanoseconds; 0 if it was not drawn.
    pub(super) fn weight_ns(&mut self, wait_ns: u64, period_ns: u64) -> u64 {
        let period_ns = period_ns.max(1);
        if wait_ns >= period_ns {
            return wait_ns;
        }
        let mut drawn = 0;
        self.in_period_ns += wait_ns;
        if self.in_period_ns >= period_ns {
            self.in_period_ns -= period_ns;
            drawn += u64::from(!self.given);
            self.given = false;
            self.random = mix(self.random);
            self.due_ns = self.random % period_ns;
        }
        if !self.given && self.in_period_ns > self.due_ns {
            self.given = true;
            drawn += 1;
        }
        drawn * period_ns
    }
}

#[cfg(test)]
mod wait_sampling_tests {
    use super::*;

    const PERIOD_NS: u64 = 1_003_009;

    #[test]
    fn the_weights_of_short_waits_add_up_in_any_order() {
        for seed in 0..20 {
            let mut drawn = WaitSampling::new(seed);
            // Shorter and longer waits alternate, in step.
            let (mut lasted, mut stood_for, mut walked) = ([0, 0], [0, 0], 0);
            for step in 0..100_000u64 {
                let kind = (step % 2) as usize;
                let wait_ns = mix(step ^ seed) % [30_000, 90_000][kind];
                let weight_ns = drawn.weight_ns(wait_ns, PERIOD_NS);
                lasted[kind] += wait_ns;
                stood_for[kind] += weight_ns;
                walked += u64::from(weight_ns > 0);
            }
            let (all, given) = (lasted[0] + lasted[1], stood_for[0] + stood_for[1]);
            assert!(all.abs_diff(given) <= 2 * PERIOD_NS, "seed {seed}: {given} of {all}");
            assert!(walked <= all / PERIOD_NS + 1, "seed {seed}: {walked} walked");
            for (lasted, stood_for) in lasted.into_iter().zip(stood_for) {
                // Four standard deviations of the random draw.
                let bound = 4.0 * ((lasted / PERIOD_NS) as f64).sqrt() * PERIOD_NS as f64;
                assert!(lasted.abs_diff(stood_for) as f64 <= bound, "seed {seed}: {stood_for} of {lasted}");
            }
        }
    }

    #[test]
    fn a_long_wait_weighs_its_own_length() {
        let mut drawn = WaitSampling::new(1);
        assert_eq!(drawn.weight_ns(PERIOD_NS, PERIOD_NS), PERIOD_NS);
        assert_eq!(drawn.weight_ns(7_654_321_000, PERIOD_NS), 7_654_321_000);
        assert_eq!(drawn.weight_ns(0, PERIOD_NS), 0);
    }
}
