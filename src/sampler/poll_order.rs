//! The order in which a tick polls threads, and which of them it stops last.
//!
//! Input: threads, and the results of polls. Output: threads in polling order, and those only possibly on a CPU. A
//! tick without time for all threads leaves the rest to the next one.

use std::cmp::Reverse;

use crate::rng::mix;
use crate::sources::{Activity, ThreadId};

/// Polling order.
#[derive(Debug, Default)]
pub(super) struct PollOrder {
    /// First thread that the last tick had no time for; the next tick starts there.
    next: Option<ThreadId>,
    /// Whether the source knows, for some threads, if they are on a CPU.
    knows_on_cpu: bool,
    /// Runnable threads at the last tick, and at this one so far.
    runnable: usize,
    seen_runnable: usize,
    threads: Vec<ThreadId>,
    /// Threads that may be on a CPU.
    maybe_running: Vec<ThreadId>,
}

impl PollOrder {
    /// Begins a tick; returns the threads in order.
    pub(super) fn begin(&mut self, threads: impl Iterator<Item = ThreadId>) -> Vec<ThreadId> {
        let mut order = std::mem::take(&mut self.threads);
        order.clear();
        order.extend(threads);
        order.sort_unstable();
        let start = self.next.take().map_or(0, |next| order.partition_point(|id| *id < next));
        order.rotate_left(start);
        self.seen_runnable = 0;
        self.maybe_running.clear();
        order
    }

    /// Ends polling early: this thread and later ones wait for the next tick.
    pub(super) fn stop_before(&mut self, id: ThreadId) {
        self.next = Some(id);
        self.seen_runnable = self.seen_runnable.max(self.runnable);
    }

    /// Notes a requested stop that is still pending: the thread had no CPU.
    pub(super) fn note_pending(&mut self) {
        self.seen_runnable += 1;
    }

    /// Notes the result of a poll.
    pub(super) fn note(&mut self, activity: Activity) {
        self.seen_runnable += usize::from(activity.wants_cpu());
        self.knows_on_cpu |= matches!(activity, Activity::Running | Activity::Ready);
    }

    /// Postpones a thread that may be on a CPU until after those that are.
    pub(super) fn postpone(&mut self, id: ThreadId) {
        self.maybe_running.push(id);
    }

    /// Ends polling. Takes back the list for reuse of its memory.
    pub(super) fn end(&mut self, threads: Vec<ThreadId>) {
        self.threads = threads;
        self.runnable = self.seen_runnable;
    }

    /// Number of runnable threads at the last tick.
    pub(super) fn runnable(&self) -> usize {
        self.runnable
    }

    /// Whether CPUs are outnumbered by runnable threads, so that threads known to be on one are stopped first.
    pub(super) fn are_scarce(&self, cpus: usize) -> bool {
        self.knows_on_cpu && self.runnable > cpus
    }

    /// Takes the postponed threads: those last seen using a CPU first, ties in random order.
    pub(super) fn take_postponed(
        &mut self,
        tick: u64,
        used_at_tick: impl Fn(ThreadId) -> Option<u64>,
    ) -> Vec<ThreadId> {
        let mut threads = std::mem::take(&mut self.maybe_running);
        threads.sort_by_cached_key(|id| (Reverse(used_at_tick(*id)), mix(id.0 ^ tick.rotate_left(32))));
        threads
    }

    /// Takes back the list from [`PollOrder::take_postponed`] for reuse of its memory.
    pub(super) fn give_back(&mut self, threads: Vec<ThreadId>) {
        self.maybe_running = threads;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(numbers: &[u64]) -> Vec<ThreadId> {
        numbers.iter().map(|number| ThreadId(*number)).collect()
    }

    #[test]
    fn a_tick_continues_with_the_threads_that_the_last_one_left_out() {
        let mut order = PollOrder::default();
        let threads = order.begin(ids(&[4, 1, 3, 2]).into_iter());
        assert_eq!(threads, ids(&[1, 2, 3, 4]));
        order.stop_before(ThreadId(3));
        order.end(threads);
        // The thread to start with may have ended.
        let threads = order.begin(ids(&[4, 1, 2]).into_iter());
        assert_eq!(threads, ids(&[4, 1, 2]));
        order.end(threads);
        assert_eq!(order.begin(ids(&[4, 1, 2]).into_iter()), ids(&[1, 2, 4]));
    }

    #[test]
    fn threads_that_used_a_cpu_last_come_first() {
        let mut order = PollOrder::default();
        order.note(Activity::Runnable);
        order.note(Activity::Runnable);
        order.end(Vec::new());
        assert!(!order.are_scarce(1), "nothing shows who has a CPU");
        order.begin(std::iter::empty());
        order.note(Activity::Ready);
        order.note_pending();
        order.end(Vec::new());
        assert!(order.are_scarce(1) && !order.are_scarce(2));
        for id in [1, 2, 3] {
            order.postpone(ThreadId(id));
        }
        let first = order.take_postponed(7, |id| Some(id.0 % 3));
        assert_eq!(first, ids(&[2, 1, 3]));
    }
}
