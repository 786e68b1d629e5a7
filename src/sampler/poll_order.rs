//! In which order a tick polls threads, and which of them it asks to stop last.
//!
//! Input: threads, and what polls show. Output: the threads in turn; those that may be on a CPU, where it is not
//! certain. A tick that has no time for all goes on with the others the next time.

use std::cmp::Reverse;

use crate::rng::mix;
use crate::sources::{Activity, ThreadId};

/// The order of polls.
#[derive(Debug, Default)]
pub(super) struct PollOrder {
    /// The thread that the last tick had no time for; the next one begins with it.
    next: Option<ThreadId>,
    /// The source knows of some threads that they are on a CPU, or are not.
    knows_on_cpu: bool,
    /// Threads that could run at the last tick, and those of this one so far.
    runnable: usize,
    seen_runnable: usize,
    threads: Vec<ThreadId>,
    /// Threads that may be on a CPU.
    maybe_running: Vec<ThreadId>,
}

impl PollOrder {
    /// A tick begins: the threads in order.
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

    /// The tick has no time for this thread and those after it.
    pub(super) fn stop_before(&mut self, id: ThreadId) {
        self.next = Some(id);
        self.seen_runnable = self.seen_runnable.max(self.runnable);
    }

    /// A stop was asked for that has not come: the thread had no CPU.
    pub(super) fn note_pending(&mut self) {
        self.seen_runnable += 1;
    }

    /// A poll showed this.
    pub(super) fn note(&mut self, activity: Activity) {
        self.seen_runnable += usize::from(activity.wants_cpu());
        self.knows_on_cpu |= matches!(activity, Activity::Running | Activity::Ready);
    }

    /// The thread may be on a CPU: it is asked after those that are.
    pub(super) fn put_off(&mut self, id: ThreadId) {
        self.maybe_running.push(id);
    }

    /// All were polled that there was time for. Takes the list back: its memory is used again.
    pub(super) fn end(&mut self, threads: Vec<ThreadId>) {
        self.threads = threads;
        self.runnable = self.seen_runnable;
    }

    /// How many threads could run at the last tick.
    pub(super) fn runnable(&self) -> usize {
        self.runnable
    }

    /// Whether threads that may be on a CPU outnumber these: then those of which that is certain are asked first.
    pub(super) fn are_scarce(&self, cpus: usize) -> bool {
        self.knows_on_cpu && self.runnable > cpus
    }

    /// Those that were put off: first those that were seen to use a CPU last, at this tick or before, and of these at
    /// random.
    pub(super) fn take_put_off(
        &mut self,
        tick: u64,
        used_at_tick: impl Fn(ThreadId) -> Option<u64>,
    ) -> Vec<ThreadId> {
        let mut threads = std::mem::take(&mut self.maybe_running);
        threads.sort_by_cached_key(|id| (Reverse(used_at_tick(*id)), mix(id.0 ^ tick.rotate_left(32))));
        threads
    }

    /// Takes the list back that [`PollOrder::take_put_off`] gave out: its memory is used again.
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
    fn a_tick_goes_on_with_the_threads_that_the_one_before_had_no_time_for() {
        let mut order = PollOrder::default();
        let threads = order.begin(ids(&[4, 1, 3, 2]).into_iter());
        assert_eq!(threads, ids(&[1, 2, 3, 4]));
        order.stop_before(ThreadId(3));
        order.end(threads);
        // The one that it would begin with may have ended.
        let threads = order.begin(ids(&[4, 1, 2]).into_iter());
        assert_eq!(threads, ids(&[4, 1, 2]));
        order.end(threads);
        assert_eq!(order.begin(ids(&[4, 1, 2]).into_iter()), ids(&[1, 2, 4]));
    }

    #[test]
    fn those_that_used_a_cpu_last_are_asked_first() {
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
            order.put_off(ThreadId(id));
        }
        let first = order.take_put_off(7, |id| Some(id.0 % 3));
        assert_eq!(first, ids(&[2, 1, 3]));
    }
}
