//! Events that the sampler has not requested yet.

use std::collections::VecDeque;

use super::stopped_thread::StoppedThread;
use super::thread::thread_id;
use crate::sources::TargetEvent;

/// Events in order, and the exiting thread that one of them keeps stopped.
#[derive(Debug, Default)]
pub(super) struct EventQueue {
    events: VecDeque<TargetEvent>,
    /// Stopped until the sampler requests the event after [`TargetEvent::Exiting`].
    exiting: Option<StoppedThread>,
}

impl EventQueue {
    pub(super) fn push(&mut self, event: TargetEvent) {
        self.events.push_back(event);
    }

    pub(super) fn pop(&mut self) -> Option<TargetEvent> {
        self.events.pop_front()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Reports that a process exits with this thread, its first: its memory is readable until then.
    pub(super) fn push_exiting(&mut self, first: StoppedThread) {
        self.push(TargetEvent::Exiting { process: first.tid().unsigned_abs() });
        self.exiting = Some(first);
    }

    /// Continues the exiting thread, unless its event is the next one.
    pub(super) fn continue_exiting(&mut self) {
        if !matches!(self.events.front(), Some(TargetEvent::Exiting { .. })) {
            self.exiting = None;
        }
    }

    /// Forgets the exiting thread, because nothing is traced any longer.
    pub(super) fn forget_exiting(&mut self) {
        self.exiting = None;
    }

    /// Whether an exiting thread is stopped.
    pub(super) fn holds_thread(&self) -> bool {
        self.exiting.is_some()
    }

    /// Whether one of the events is the exit of this thread.
    pub(super) fn has_exit_of(&self, tid: libc::pid_t) -> bool {
        let exited = thread_id(tid);
        self.events
            .iter()
            .any(|event| matches!(event, TargetEvent::ThreadExited { thread, .. } if *thread == exited))
    }
}
