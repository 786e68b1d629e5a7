//! Waiting threads in a wall-clock recording: captured without a stop if that gives the whole stack.

use super::super::sample::Sample;
use super::super::target_processes::observed;
use super::StopDriver;
use crate::sources::{Capture, Fault, SleepingThread, ThreadId};
use crate::walk::StackEnd;

/// Reason for a waiting thread without a stack.
const UNSHOWN: &str = "waits under a seccomp filter, where /proc does not show it";

/// Whether more registers than stack pointer and program counter would not lead the walk further.
pub(super) fn leads_as_far_as_a_stop(ended: StackEnd) -> bool {
    ended.is_complete() || matches!(ended, StackEnd::DeeperThanCopied | StackEnd::DepthLimit)
}

impl StopDriver<'_> {
    /// Captures a waiting thread without a stop, to be walked when no thread is stopped; requests a stop if the
    /// source cannot. Returns whether a stop was requested.
    pub(super) fn capture_waiting(&mut self, id: ThreadId) -> bool {
        let mut capture = self.captures.buffer();
        self.count_libraries(id, 0);
        let seen = self.target.capture_sleeping(id, self.stack_bytes(id), &mut capture);
        if seen == SleepingThread::Captured {
            self.count_libraries(id, 1);
            self.captures.push_sleeping(id, capture);
            return false;
        }
        self.captures.give_back(capture);
        if seen == SleepingThread::Hidden && self.target.is_harmed_by_stops(id) {
            let waited_ns = self.weigh(id, None).unwrap_or(0);
            self.recorder.lose(UNSHOWN, waited_ns);
            return false;
        }
        // A wait that has just begun tolerates a stop.
        self.request_stop(id, true)
    }

    /// Walks the threads captured without a stop, and stops those for which a stop shows more.
    pub(super) fn walk_sleeping_threads(&mut self) -> std::result::Result<(), Fault> {
        let mut sleeping = self.captures.take_sleeping();
        if sleeping.is_empty() {
            return Ok(());
        }
        for (id, capture) in sleeping.drain(..) {
            if self.is_shown_whole(id, &capture) || self.target.is_harmed_by_stops(id) {
                let mut libraries = None;
                if let Some(state) = self.threads.get_mut(&id) {
                    state.was_waiting = true;
                    libraries = state.libraries;
                }
                let at_ns = self.clock.now_ns();
                self.captures.push(Sample {
                    thread: id,
                    capture,
                    libraries,
                    at_ns,
                    waiting: true,
                    off_cpu_ns: 0,
                });
            } else {
                self.captures.give_back(capture);
                self.request_stop(id, true);
            }
        }
        self.captures.reuse_sleeping(sleeping);
        self.collect()?;
        self.walk_captured();
        Ok(())
    }

    fn is_shown_whole(&mut self, id: ThreadId, capture: &Capture) -> bool {
        let Some(pid) = self.threads.get(&id).map(|state| state.process) else { return false };
        if !self.place_thread(pid, id) {
            return false;
        }
        let most = self.budget.stack_max_bytes();
        let Some(process) = observed(self.target, pid) else { return false };
        let walked = self.recorder.walk(process, id, capture, most, &mut self.frames);
        walked.is_some_and(|(ended, _)| leads_as_far_as_a_stop(ended))
    }
}
