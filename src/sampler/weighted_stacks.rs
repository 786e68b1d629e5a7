//! Stacks and their weights, in the trie and over time, and lost time by reason: weights and losses add up to all
//! time.
//!
//! Input: frames of samples and their weights, losses, process events. Output: counts and their times.

use super::options::Options;
use super::sample::Sample;
use super::weights::{Weights, counts_of, periods_ns};
use crate::clock::Clock;
use crate::recording::timeline::{EventKind, ThreadIndex, TimedSample};
use crate::recording::{Frame, Root, Stats, Timeline};
use crate::trie::{NodeId, Trie};
use crate::walk::{Frames, Method, StackEnd};

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
