//! When samples were taken: of each thread that has any, times, stacks and counts.
//!
//! Part of a [`Saved`](super::Saved); its nodes are those of the profile's trie. Of each stack the
//! counts over time add up to the count that the trie has, so that all of the time shows what the
//! profile without times does.

use std::collections::BTreeMap;
use std::ops::Range;

use super::texts::TextId;
use crate::trie::NodeId;

/// A sample at a time, or several that were joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedSample {
    /// When it was taken, or the last of them was: nanoseconds since the recording began.
    pub at_ns: u64,
    /// What it stands for, nanoseconds before that time.
    pub weight_ns: u64,
    /// Node of its stack in the profile's trie; `None` for one whose stack was not kept.
    pub node: Option<NodeId>,
    /// Counts of it: 0 for a part of a period that others are counted for.
    pub count: u64,
}

/// A thread over time, while it ran one program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadTimeline {
    /// What its stacks are shown under.
    pub process: TextId,
    /// The process, where it is known.
    pub pid: Option<u32>,
    /// Its name; empty if it had none.
    pub name: TextId,
    /// The system's number.
    pub id: u64,
    /// When it was first seen, nanoseconds since the recording began.
    pub begun_ns: u64,
    /// When it ended; `None` for one that ran on.
    pub ended_ns: Option<u64>,
    /// Its samples by time.
    pub samples: Vec<TimedSample>,
}

/// Time that was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// When that was known, nanoseconds since the recording began.
    pub at_ns: u64,
    /// How much, nanoseconds.
    pub lost_ns: u64,
    /// Why.
    pub reason: TextId,
}

/// The samples of a profile over time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// Steps that times are kept in, nanoseconds; `None` where each sample has its own.
    pub step_ns: Option<u64>,
    /// The threads that have samples.
    pub threads: Vec<ThreadTimeline>,
    /// What was lost, by time.
    pub losses: Vec<Loss>,
}

impl Timeline {
    /// Gives each sample its counts: as many over time of each stack as `count` says of its node in all.
    pub(super) fn count_samples(&mut self, count: impl Fn(NodeId) -> u64) {
        // What its samples weigh in all, weigh so far, and the counts given for that.
        let mut nodes: BTreeMap<NodeId, (u128, u128, u64)> = BTreeMap::new();
        for sample in self.threads.iter().flat_map(|thread| &thread.samples) {
            if let Some(node) = sample.node {
                nodes.entry(node).or_default().0 += u128::from(sample.weight_ns);
            }
        }
        let all = self.threads.iter_mut().flat_map(|thread| &mut thread.samples);
        for sample in all {
            sample.count = 0;
            let Some(node) = sample.node else { continue };
            let Some((all_ns, passed_ns, given)) = nodes.get_mut(&node) else { continue };
            *passed_ns += u128::from(sample.weight_ns);
            let up_to = (u128::from(count(node)) * *passed_ns + *all_ns / 2) / (*all_ns).max(1);
            let up_to = u64::try_from(up_to).unwrap_or(u64::MAX);
            sample.count = up_to - std::mem::replace(given, up_to);
        }
    }

    /// The same of another profile, whose trie has the nodes that `node` gives and whose texts those of `text`.
    pub(super) fn remap<E>(
        &self,
        mut node: impl FnMut(NodeId) -> Option<NodeId>,
        mut text: impl FnMut(TextId) -> Result<TextId, E>,
    ) -> Result<Timeline, E> {
        let mut threads = Vec::with_capacity(self.threads.len());
        for thread in &self.threads {
            let of = |sample: &TimedSample| TimedSample { node: sample.node.and_then(&mut node), ..*sample };
            threads.push(ThreadTimeline {
                process: text(thread.process)?,
                name: text(thread.name)?,
                samples: thread.samples.iter().map(of).collect(),
                ..*thread
            });
        }
        let mut losses = Vec::with_capacity(self.losses.len());
        for loss in &self.losses {
            losses.push(Loss { reason: text(loss.reason)?, ..*loss });
        }
        Ok(Timeline { step_ns: self.step_ns, threads, losses })
    }

    /// What is in a part of the time, nanoseconds since the recording began. Times stay those of the whole.
    #[must_use]
    pub fn within(&self, range: &Range<u64>) -> Timeline {
        let mut part = self.clone();
        for thread in &mut part.threads {
            thread.samples.retain(|sample| range.contains(&sample.at_ns));
        }
        part.threads.retain(|thread| !thread.samples.is_empty());
        part.losses.retain(|loss| range.contains(&loss.at_ns));
        part
    }

    /// Counts by node.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<NodeId, u64> {
        let mut counts = BTreeMap::new();
        for sample in self.threads.iter().flat_map(|thread| &thread.samples) {
            if let Some(node) = sample.node {
                *counts.entry(node).or_default() += sample.count;
            }
        }
        counts
    }
}
