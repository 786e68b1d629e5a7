//! Conversion of weights to counts: nanoseconds during a recording, whole periods of 1/hz at its end.
//!
//! `Counts` converts; `WeightedStacks` has the stacks and lost time with their weights.
//!
//! A sample weighs 0.97 or 1.04 periods. Random rounding of each one, unbiased on average, would increase the
//! scatter of all shares by a third. So the time of each stack is added up first and rounded once. Stacks are
//! taken in tree order; the rounded sum of all times so far is their total count. So each function below the same
//! callers is within one count of its time, and the whole profile within half a count.

use std::collections::BTreeMap;

use super::Options;
use super::captures::Sample;
use crate::addr::LookupAvma;
use crate::clock::Clock;
use crate::recording::timeline::{EventKind, ThreadIndex, TimedSample};
use crate::recording::{Frame, Root, Stats, Timeline};
use crate::trie::{NodeId, Trie};
use crate::walk::{Frames, Method, StackEnd};

const SECOND_NS: u128 = 1_000_000_000;

/// Whole counts of consecutive times.
#[derive(Debug)]
pub(super) struct Counts {
    hz: u32,
    passed_ns: u64,
    given: u64,
}

impl Counts {
    /// In periods of 1/hz.
    pub(super) fn new(hz: u32) -> Counts {
        Counts { hz, passed_ns: 0, given: 0 }
    }

    /// Counts of the next time: all counts so far equal the rounded total time.
    pub(super) fn next(&mut self, weight_ns: u64) -> u64 {
        self.passed_ns = self.passed_ns.saturating_add(weight_ns);
        let periods = (u128::from(self.passed_ns) * u128::from(self.hz) + SECOND_NS / 2) / SECOND_NS;
        let all = u64::try_from(periods).unwrap_or(u64::MAX);
        all - std::mem::replace(&mut self.given, all)
    }
}

/// Counts of a single time.
pub(super) fn counts_of(weight_ns: u64, hz: u32) -> u64 {
    Counts::new(hz).next(weight_ns)
}

/// The length of this many periods of 1/hz, nanoseconds.
pub(super) fn periods_ns(periods: u64, hz: u32) -> u64 {
    let hz = u128::from(hz.max(1));
    u64::try_from((u128::from(periods) * SECOND_NS + hz / 2) / hz).unwrap_or(u64::MAX)
}

/// Weights of a recording's stacks that are not in its trie, nanoseconds.
#[derive(Debug, Default)]
pub(super) struct Weights {
    /// Incomplete stacks, by reason.
    pub(super) incomplete_ns: BTreeMap<&'static str, u64>,
    /// Reused stacks of waiting threads.
    pub(super) reused_ns: u64,
    /// Lost time, by reason.
    pub(super) lost_ns: BTreeMap<&'static str, u64>,
    /// Sum of the sample weights in the trie, and of their squares.
    sums: (f64, f64),
}

impl Weights {
    /// Records the weight of a sample inserted into the trie.
    pub(super) fn weighed(&mut self, weight_ns: u64) {
        let weight = weight_ns as f64;
        self.sums = (self.sums.0 + weight, self.sums.1 + weight * weight);
    }

    /// Effective sample size: Kish, Survey Sampling (1965), 8.2.
    fn effective(&self) -> u64 {
        let (sum, squares) = self.sums;
        if squares > 0.0 { (sum * sum / squares).round() as u64 } else { 0 }
    }

    /// Converts the trie's weights to counts, in the order of root places and addresses, regardless of address
    /// space, and updates the statistics. Counts in the trie and lost counts add up to the whole time.
    pub(super) fn count<P: Ord>(
        self,
        hz: u32,
        trie: &mut Trie<Frame>,
        place: impl Fn(Root) -> P,
        stats: &mut Stats,
    ) {
        let mut counts = Counts::new(hz);
        // Address spaces depend on when images were read, which is random.
        let place = |frame| match frame {
            Frame::Root(root) => (Some(place(root)), LookupAvma(0)),
            Frame::Code { address, .. } => (None, address),
        };
        trie.recount(place, |weight_ns| counts.next(weight_ns));
        stats.samples = trie.total();
        stats.samples_effective = self.effective().min(stats.samples);
        stats.samples_idle_reused = counts_of(self.reused_ns, hz).min(stats.samples);
        stats.stacks_complete = complete(trie);
        stats.stacks_incomplete = divided(&self.incomplete_ns, stats.samples - stats.stacks_complete);
        stats.samples_lost =
            given(self.lost_ns.into_iter().map(|(why, lost_ns)| (why, counts.next(lost_ns))));
    }
}

/// Counts below roots with complete stacks.
fn complete(trie: &Trie<Frame>) -> u64 {
    let mut all = 0;
    trie.map_nodes(false, |node, frame, caller| {
        let complete = match frame {
            Frame::Root(root) => root.complete,
            Frame::Code { .. } => *caller,
        };
        all += if complete { trie.count(node) } else { 0 };
        complete
    });
    all
}

/// Splits this many counts by reason, in proportion to time.
fn divided(by_reason_ns: &BTreeMap<&'static str, u64>, all: u64) -> BTreeMap<&'static str, u64> {
    let all_ns: u128 = by_reason_ns.values().map(|ns| u128::from(*ns)).sum::<u128>().max(1);
    let (mut passed_ns, mut before) = (0, 0);
    given(by_reason_ns.iter().map(|(why, ns)| {
        passed_ns += u128::from(*ns);
        let up_to = ((u128::from(all) * passed_ns + all_ns / 2) / all_ns) as u64;
        (*why, up_to - std::mem::replace(&mut before, up_to))
    }))
}

fn given(counts: impl Iterator<Item = (&'static str, u64)>) -> BTreeMap<&'static str, u64> {
    counts.filter(|(_, counts)| *counts > 0).collect()
}

// ---- Stacks and their weights, in the trie and over time, and lost time by reason: weights and losses add up to
// all time.

/// The stacks of a recording so far.
pub(super) struct WeightedStacks<'a> {
    clock: &'a dyn Clock,
    hz: u32,
    trie: Trie<Frame>,
    timeline: Timeline,
    weights: Weights,
    frames_by_method: [u64; Method::ALL.len()],
}

impl<'a> WeightedStacks<'a> {
    pub(super) fn new(clock: &'a dyn Clock, options: &Options) -> WeightedStacks<'a> {
        WeightedStacks {
            clock,
            hz: options.hz,
            trie: Trie::new(),
            timeline: Timeline::new(clock.now_ns(), options.hz, options.timeline_bytes),
            weights: Weights::default(),
            frames_by_method: [0; Method::ALL.len()],
        }
    }

    /// Counts in the trie so far.
    pub(super) fn counts(&self) -> u64 {
        counts_of(self.trie.total(), self.hz)
    }

    /// The time between two ticks, nanoseconds.
    pub(super) fn period_ns(&self) -> u64 {
        periods_ns(1, self.hz)
    }

    /// The timeline of threads.
    pub(super) fn timeline(&mut self) -> &mut Timeline {
        &mut self.timeline
    }

    /// Inserts the frames of a sample below its root, in this address space, with the kernel frames they led to.
    /// The off-CPU part of its time is a wait.
    pub(super) fn insert(
        &mut self,
        (root, space): (Root, u32),
        timeline_thread: Option<ThreadIndex>,
        sample: &Sample,
        ended: StackEnd,
        frames: &mut Frames,
        weight_ns: u64,
    ) -> Option<NodeId> {
        frames.addresses.splice(0..0, sample.capture.kernel.iter().copied());
        let off_cpu_ns = sample.off_cpu_ns.min(weight_ns);
        let weight_ns = weight_ns - off_cpu_ns;
        if off_cpu_ns > 0 {
            let root = Root { waiting: true, ..root };
            match self.trie.insert((root, space), &frames.addresses, off_cpu_ns) {
                Ok(node) => {
                    let at_ns = sample.at_ns.saturating_sub(weight_ns);
                    let timed = TimedSample { at_ns, node, weight_ns: off_cpu_ns, cpu: None };
                    self.timeline.add_sample(timeline_thread, timed);
                    self.add_weight(ended, off_cpu_ns);
                }
                Err(full) => self.lose(full.reason(), off_cpu_ns),
            }
        }
        match self.trie.insert((root, space), &frames.addresses, weight_ns) {
            Ok(node) => {
                // A waiting thread is on no CPU.
                let (at_ns, cpu) = (sample.at_ns, sample.capture.cpu.filter(|_| !sample.waiting));
                self.timeline.add_sample(timeline_thread, TimedSample { at_ns, node, weight_ns, cpu });
                self.add_weight(ended, weight_ns);
                for method in &frames.methods {
                    self.frames_by_method[*method as usize] += 1;
                }
                Some(node)
            }
            Err(full) => {
                self.lose(full.reason(), weight_ns);
                None
            }
        }
    }

    /// Counts a previously inserted stack, for the time up to `at_ns`.
    pub(super) fn count(
        &mut self,
        timeline_thread: Option<ThreadIndex>,
        (node, ended): (NodeId, StackEnd),
        at_ns: u64,
        weight_ns: u64,
    ) {
        self.trie.add(node, weight_ns);
        self.timeline.add_sample(timeline_thread, TimedSample { at_ns, node, weight_ns, cpu: None });
        self.add_weight(ended, weight_ns);
    }

    /// Counts this much of the next weight as a reused stack.
    pub(super) fn note_reused(&mut self, weight_ns: u64) {
        self.weights.reused_ns += weight_ns;
    }

    fn add_weight(&mut self, ended: StackEnd, weight_ns: u64) {
        self.weights.weighed(weight_ns);
        if !ended.is_complete() && weight_ns > 0 {
            *self.weights.incomplete_ns.entry(ended.reason()).or_default() += weight_ns;
        }
    }

    /// Counts the time up to now, nanoseconds, as lost for this reason.
    pub(super) fn lose(&mut self, reason: &'static str, lost_ns: u64) {
        self.lose_since(reason, self.clock.now_ns().saturating_sub(lost_ns), lost_ns);
    }

    /// Counts time between `since_ns` and now, nanoseconds, as lost for this reason.
    pub(super) fn lose_since(&mut self, reason: &'static str, since_ns: u64, lost_ns: u64) {
        if lost_ns > 0 {
            *self.weights.lost_ns.entry(reason).or_default() += lost_ns;
            self.timeline.add_loss(reason, since_ns, self.clock.now_ns(), lost_ns);
        }
    }

    /// Counts samples, each weighing one period, as lost for this reason.
    pub(super) fn lose_samples(&mut self, reason: &'static str, samples: u64) {
        self.lose(reason, periods_ns(samples, self.hz));
    }

    /// Records a process event at this time of the sampler's clock.
    pub(super) fn add_event(&mut self, kind: EventKind, pid: u32, at_ns: u64, text: &str) {
        self.timeline.add_event(kind, pid, at_ns, text);
    }

    /// Converts weights to counts, in the order of root places, and updates the statistics. Returns the trie, and
    /// the times if kept.
    pub(super) fn finish<P: Ord>(
        mut self,
        place: impl Fn(Root) -> P,
        stats: &mut Stats,
    ) -> (Trie<Frame>, Option<Timeline>) {
        self.weights.count(self.hz, &mut self.trie, place, stats);
        stats.frames_by_method = self.frames_by_method;
        (self.trie, (!self.timeline.is_off()).then_some(self.timeline))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::mix;

    const HZ: u32 = 997;

    fn root(group: u32, complete: bool) -> Root {
        Root { group, complete, fiber: false, waiting: false }
    }

    /// Time in counts, unrounded.
    fn exact(ns: u64) -> f64 {
        ns as f64 * f64::from(HZ) / 1e9
    }

    #[test]
    fn each_function_below_its_callers_is_within_one_count_of_its_time() {
        for seed in 0..100 {
            let mut state = seed;
            let mut random = |below: u64| {
                state = mix(state);
                state % below
            };
            let mut trie = Trie::new();
            let mut weights = Weights::default();
            // By group, and by group and outermost function.
            let (mut of_group, mut of_function) = (BTreeMap::new(), BTreeMap::new());
            let mut all_ns = 0;
            for _ in 0..2_000 {
                let group = random(3) as u32;
                let (function, leaf) = ((1 + random(4)) << 12, 0x9000 + random(6));
                let weight_ns = 500_000 + random(1_000_000);
                let stack = [LookupAvma(leaf), LookupAvma(function + random(3))];
                trie.insert((root(group, group != 1), 0), &stack, weight_ns).expect("fits");
                if group == 1 {
                    *weights.incomplete_ns.entry(["a", "b"][random(2) as usize]).or_default() += weight_ns;
                }
                *of_group.entry(group).or_insert(0) += weight_ns;
                *of_function.entry((group, function)).or_insert(0) += weight_ns;
                all_ns += weight_ns;
            }
            weights.lost_ns.insert("lost", 7_300_000);
            let mut stats = Stats::default();
            weights.count(HZ, &mut trie, |root| root, &mut stats);

            let (mut groups, mut functions) = (BTreeMap::new(), BTreeMap::new());
            trie.for_each_stack(|path, counts| {
                let (Some(Frame::Root(root)), Some(Frame::Code { address, .. })) =
                    (trie.frame(path[0]), path.get(1).and_then(|frame| trie.frame(*frame)))
                else {
                    panic!("seed {seed}: a stack without a root or code");
                };
                *groups.entry(root.group).or_insert(0) += counts;
                *functions.entry((root.group, address.at().0 & !0xfff)).or_insert(0) += counts;
            });
            for (group, ns) in of_group {
                assert!((exact(ns) - groups[&group] as f64).abs() <= 1.0, "seed {seed}, group {group}");
            }
            for (at, ns) in of_function {
                assert!((exact(ns) - functions[&at] as f64).abs() <= 1.0, "seed {seed}, function {at:x?}");
            }
            assert!((exact(all_ns) - stats.samples as f64).abs() <= 0.5, "seed {seed}");
            let lost: u64 = stats.samples_lost.values().sum();
            assert!((exact(all_ns + 7_300_000) - (stats.samples + lost) as f64).abs() <= 0.5, "seed {seed}");
            let incomplete: u64 = stats.stacks_incomplete.values().sum();
            assert_eq!((incomplete, stats.stacks_complete), (groups[&1], groups[&0] + groups[&2]));
        }
    }

    #[test]
    fn one_heavy_sample_lowers_the_effective_sample_size() {
        let effective = |weights: &[u64]| {
            let mut all = Weights::default();
            weights.iter().for_each(|weight_ns| all.weighed(*weight_ns));
            all.effective()
        };
        assert_eq!(effective(&[]), 0);
        assert_eq!(effective(&[7; 100]), 100);
        // Half of all time is in one sample: the effective sample size is at most four.
        assert_eq!(effective(&[&[100; 100], &[10_000][..]].concat()), 4);
        assert_eq!(effective(&[u64::MAX; 3]), 3);
    }

    #[test]
    fn samples_of_nearly_a_period_are_one_count_each() {
        let mut counts = Counts::new(1000);
        let given: Vec<u64> = (0..100u64).map(|at| counts.next(1_000_000 + at % 7 * 100 - 300)).collect();
        assert_eq!(given, vec![1; 100]);
    }

    #[test]
    fn periods_and_times_convert_exactly() {
        for hz in [1, 3, 997, 10_000] {
            for periods in [0, 1, 2, 999, 1_000_003] {
                assert_eq!(counts_of(periods_ns(periods, hz), hz), periods, "{periods} at {hz} Hz");
            }
        }
        assert_eq!(Counts::new(10_000).next(u64::MAX), 184_467_440_737_096);
    }
}
