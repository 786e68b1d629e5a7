//! Threads that wait on: where they do was walked when they began to, and how long they do is reported later.

use hashbrown::HashMap;

use super::recorder::Recorder;
use crate::sources::ThreadId;
use crate::trie::NodeId;
use crate::walk::StackEnd;

/// Why a wait is lost whose stack found no place.
const NOT_KEPT: &str = "where a wait began could not be kept";

/// Waits that continue, by thread: where each waits, and how its walk ended.
#[derive(Debug, Default)]
pub(super) struct OpenWaits(HashMap<ThreadId, (NodeId, StackEnd)>);

impl OpenWaits {
    /// A thread began to wait, with this stack if there was room for it.
    pub(super) fn began(&mut self, thread: ThreadId, stack: Option<(NodeId, StackEnd)>) {
        match stack {
            Some(stack) => self.0.insert(thread, stack),
            None => self.0.remove(&thread),
        };
    }

    /// It has ended.
    pub(super) fn forget(&mut self, thread: ThreadId) {
        self.0.remove(&thread);
    }

    /// Its wait is over at `at_ns`, and weighs so much, nanoseconds.
    pub(super) fn over(&mut self, recorder: &mut Recorder<'_>, thread: ThreadId, at_ns: u64, weight_ns: u64) {
        match self.0.remove(&thread) {
            Some(stack) => recorder.count(thread, stack, at_ns, weight_ns),
            None => recorder.lose(NOT_KEPT, weight_ns),
        }
    }
}
