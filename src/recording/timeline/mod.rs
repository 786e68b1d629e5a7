//! When each sample was taken: of each thread the times, stacks and weights of its samples.
//!
//! Input: threads that begin and end, their samples with nodes of the recording's trie, and what was
//! lost. Output: all of that by thread and time. It stays below a bound of memory: where that is
//! reached, neighbours with one stack are joined, then times get coarser and coarser steps, then stacks
//! are left out ([`Detail`]), until half of the bound is free. What is kept of a thread always weighs what its
//! samples did.

#[cfg(test)]
mod tests;
mod thread;

use std::collections::BTreeMap;

pub use thread::{Detail, NOT_KEPT, TimedSample};
use thread::{ThreadSamples, UNIT_NS};

use crate::trie::NodeId;

/// Memory that the samples of a recording take at most, unless something else is asked for.
pub const DEFAULT_MEMORY_BYTES: usize = 64 << 20;

/// What a thread takes beside its samples, bytes: most of many short ones have one sample.
const THREAD_BYTES: usize = size_of::<ThreadTimeline>() + 16;

/// Index of a thread in a timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ThreadIndex(u32);

/// A thread over time. What its process ran is told by the roots of its stacks.
#[derive(Clone, Debug)]
pub struct ThreadTimeline {
    /// The system's number.
    pub id: u64,
    /// Its name; empty if it had none.
    pub name: Box<str>,
    /// When it was first seen, nanoseconds since the recording began.
    pub begun_ns: u64,
    /// When it ended; `None` for one that ran on.
    pub ended_ns: Option<u64>,
    samples: ThreadSamples,
}

impl ThreadTimeline {
    /// Its samples by time.
    #[must_use]
    pub fn samples(&self) -> Vec<TimedSample> {
        self.samples.by_time()
    }
}

/// The samples of a recording over time.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// When the recording began, nanoseconds of the engine's clock.
    origin_ns: u64,
    period_ns: u64,
    memory_max_bytes: usize,
    memory_bytes: usize,
    threads: Vec<ThreadTimeline>,
    /// By reason: a thread of the reasons, whose nodes number them.
    lost: ThreadSamples,
    reasons: BTreeMap<&'static str, u32>,
    detail: Detail,
    /// Samples that found no room, and what they weigh, nanoseconds.
    dropped_ns: u64,
}

impl Timeline {
    /// One that keeps nothing.
    #[must_use]
    pub fn off() -> Timeline {
        Timeline::new(0, 1, 0)
    }

    /// Whether it keeps nothing.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.memory_max_bytes == 0
    }

    /// Of a recording that began at `origin_ns` of the engine's clock, with `hz` samples a second of a
    /// thread that runs, in `memory_max_bytes` at most.
    #[must_use]
    pub fn new(origin_ns: u64, hz: u32, memory_max_bytes: usize) -> Timeline {
        Timeline {
            origin_ns,
            period_ns: 1_000_000_000 / u64::from(hz.max(1)),
            memory_max_bytes,
            memory_bytes: 0,
            threads: Vec::new(),
            lost: ThreadSamples::default(),
            reasons: BTreeMap::new(),
            detail: Detail::Samples,
            dropped_ns: 0,
        }
    }

    /// Takes a thread in that was first seen at `at_ns` of the engine's clock; `None` where the bound leaves no
    /// room for more threads.
    pub fn add_thread(&mut self, id: u64, at_ns: u64) -> Option<ThreadIndex> {
        // Half is for their samples.
        if self.is_off() || (self.threads.len() + 1) * THREAD_BYTES > self.memory_max_bytes / 2 {
            return None;
        }
        let index = ThreadIndex(self.threads.len() as u32);
        self.threads.push(ThreadTimeline {
            id,
            name: Box::default(),
            begun_ns: at_ns.saturating_sub(self.origin_ns),
            ended_ns: None,
            samples: ThreadSamples::default(),
        });
        self.memory_bytes += THREAD_BYTES;
        Some(index)
    }

    /// A thread has this name from now on.
    pub fn set_name(&mut self, thread: Option<ThreadIndex>, name: &str) {
        if let Some(thread) = thread.and_then(|thread| self.threads.get_mut(thread.0 as usize)) {
            self.memory_bytes += name.len();
            self.memory_bytes -= thread.name.len();
            thread.name = name.into();
        }
    }

    /// Whether a thread has a place, and no name yet.
    #[must_use]
    pub fn lacks_name(&self, thread: Option<ThreadIndex>) -> bool {
        let thread = thread.and_then(|thread| self.threads.get(thread.0 as usize));
        thread.is_some_and(|thread| thread.name.is_empty())
    }

    /// A thread ended at `at_ns` of the engine's clock.
    pub fn end_thread(&mut self, thread: Option<ThreadIndex>, at_ns: u64) {
        if let Some(thread) = thread.and_then(|thread| self.threads.get_mut(thread.0 as usize)) {
            thread.ended_ns = Some(at_ns.saturating_sub(self.origin_ns));
        }
    }

    /// A sample of a thread, at `at_ns` of the engine's clock.
    pub fn add_sample(&mut self, thread: Option<ThreadIndex>, at_ns: u64, node: NodeId, weight_ns: u64) {
        if weight_ns == 0 || self.is_off() {
            return;
        }
        let at_ns = at_ns.saturating_sub(self.origin_ns);
        let Some(thread) = thread.and_then(|thread| self.threads.get_mut(thread.0 as usize)) else {
            self.dropped_ns = self.dropped_ns.saturating_add(weight_ns);
            return;
        };
        let before = thread.samples.memory_bytes();
        thread.samples.push(TimedSample { at_ns, node, weight_ns });
        self.memory_bytes += thread.samples.memory_bytes() - before;
        self.keep_bound();
    }

    /// Time that was lost at `at_ns` of the engine's clock, for this reason.
    pub fn add_loss(&mut self, reason: &'static str, at_ns: u64, lost_ns: u64) {
        if lost_ns == 0 || self.is_off() {
            return;
        }
        let next = self.reasons.len() as u32;
        let node = NodeId(*self.reasons.entry(reason).or_insert(next));
        let at_ns = at_ns.saturating_sub(self.origin_ns);
        let before = self.lost.memory_bytes();
        self.lost.push(TimedSample { at_ns, node, weight_ns: lost_ns });
        self.memory_bytes += self.lost.memory_bytes() - before;
        self.keep_bound();
    }

    /// The threads, in the order in which they were first seen.
    #[must_use]
    pub fn threads(&self) -> &[ThreadTimeline] {
        &self.threads
    }

    /// What was lost, by time: reason, when, and how much, nanoseconds.
    #[must_use]
    pub fn losses(&self) -> Vec<(&'static str, u64, u64)> {
        let reason = |node: NodeId| self.reasons.iter().find(|(_, number)| **number == node.0);
        let losses = self.lost.by_time().into_iter();
        losses.filter_map(|loss| Some((*reason(loss.node)?.0, loss.at_ns, loss.weight_ns))).collect()
    }

    /// What is kept of the samples.
    #[must_use]
    pub fn detail(&self) -> Detail {
        self.detail
    }

    /// Weight of samples of threads that found no room, nanoseconds.
    #[must_use]
    pub fn dropped_ns(&self) -> u64 {
        self.dropped_ns
    }

    /// Bytes of memory.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }

    /// Keeps less where there is more than the bound, until half of it is free for what comes.
    fn keep_bound(&mut self) {
        if self.memory_bytes <= self.memory_max_bytes {
            return;
        }
        if self.detail != Detail::Samples {
            self.reduce();
        }
        let enough = self.fixed_bytes().midpoint(self.memory_max_bytes);
        while self.memory_bytes > enough {
            self.detail = match self.detail {
                Detail::Samples => Detail::Runs,
                Detail::Runs => Detail::Steps(2 * self.period_ns),
                Detail::Steps(step_ns) if step_ns < STEP_MAX_NS => Detail::Steps(2 * step_ns),
                Detail::Steps(step_ns) => Detail::TimesOnly(step_ns),
                Detail::TimesOnly(step_ns) if step_ns < 1 << 62 => Detail::TimesOnly(2 * step_ns),
                Detail::TimesOnly(_) => return,
            };
            self.reduce();
        }
    }

    fn reduce(&mut self) {
        // Two samples of a thread that runs on are a period apart, more or less.
        let gap_ns = self.period_ns / 2 + UNIT_NS;
        let detail = self.detail;
        self.lost
            .reduce(gap_ns, detail.max(Detail::Steps(2 * self.period_ns)).min(Detail::Steps(STEP_MAX_NS)));
        let mut bytes = self.lost.memory_bytes();
        for thread in &mut self.threads {
            thread.samples.reduce(gap_ns, detail);
            bytes += thread.samples.memory_bytes();
        }
        self.memory_bytes = self.fixed_bytes() + bytes;
    }

    /// What threads take beside their samples.
    fn fixed_bytes(&self) -> usize {
        self.threads.iter().map(|thread| THREAD_BYTES + thread.name.len()).sum()
    }
}

/// Coarser steps than this say less than times without stacks.
const STEP_MAX_NS: u64 = 1_000_000_000;
