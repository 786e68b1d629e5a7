//! Open waits: their stacks were walked when they began, and their lengths are reported later.

use hashbrown::HashMap;

use super::recorder::Recorder;
use crate::sources::ThreadId;
use crate::trie::NodeId;
use crate::walk::StackEnd;

/// Loss reason for a wait with a stack that was not kept.
const NOT_KEPT: &str = "where a wait began could not be kept";

/// Open waits by thread: stack node, and how its walk ended.
#[derive(Debug, Default)]
pub(super) struct OpenWaits(HashMap<ThreadId, (NodeId, StackEnd)>);

impl OpenWaits {
    /// Begins a wait, with this stack if there was room for it.
    pub(super) fn began(&mut self, thread: ThreadId, stack: Option<(NodeId, StackEnd)>) {
        match stack {
            Some(stack) => self.0.insert(thread, stack),
            None => self.0.remove(&thread),
        };
    }

    /// Drops a thread that has ended.
    pub(super) fn forget(&mut self, thread: ThreadId) {
        self.0.remove(&thread);
    }

    /// Ends a wait at `at_ns` with this weight, nanoseconds.
    pub(super) fn over(&mut self, recorder: &mut Recorder<'_>, thread: ThreadId, at_ns: u64, weight_ns: u64) {
        match self.0.remove(&thread) {
            Some(stack) => recorder.count(thread, stack, at_ns, weight_ns),
            None => recorder.lose(NOT_KEPT, weight_ns),
        }
    }
}
