//! Events of a process that wait to be returned. Input: what changed. Output: [`TargetEvent`]s, in order.

use std::collections::VecDeque;

use crate::sources::{TargetEvent, ThreadId};

/// Events, up to the last one of the process.
#[derive(Default)]
pub(super) struct Events {
    queue: VecDeque<TargetEvent>,
    has_ended: bool,
}

impl Events {
    pub(super) fn thread_started(&mut self, thread: ThreadId) {
        self.push(TargetEvent::ThreadStarted { thread, stack_top: None });
    }

    pub(super) fn thread_exited(&mut self, thread: ThreadId) {
        self.push(TargetEvent::ThreadExited { thread, cpu_ns: None });
    }

    pub(super) fn images_changed(&mut self) {
        self.push(TargetEvent::ImagesChanged);
    }

    /// The process executed a program that began with these threads.
    pub(super) fn exec(&mut self, thread: ThreadId, others: impl Iterator<Item = ThreadId>) {
        self.push(TargetEvent::Exec { thread, stack_top: None });
        others.for_each(|thread| self.thread_started(thread));
    }

    /// The last event; none follows.
    pub(super) fn end(&mut self, last: TargetEvent) {
        self.push(last);
        self.has_ended = true;
    }

    /// Takes the next event.
    pub(super) fn next(&mut self) -> Option<TargetEvent> {
        self.queue.pop_front()
    }

    pub(super) fn have_ended(&self) -> bool {
        self.has_ended
    }

    fn push(&mut self, event: TargetEvent) {
        if !self.has_ended {
            self.queue.push_back(event);
        }
    }
}
