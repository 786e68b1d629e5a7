//! The stacks of a saved profile by thread, for formats that separate threads.
//!
//! Input: a [`SavedProfile`]. Output: its threads, and the stacks of each. If threads were merged, a
//! process is one thread.

use std::collections::HashMap;

use crate::profile::StackFrame;
use crate::profile::saved::{SavedProfile, StackRoot};
use crate::profile::texts::TextId;
use crate::trie::{Children, NodeId};

/// A thread of a process, or a whole process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OneThread {
    /// Name of the process.
    pub process: TextId,
    /// Name and thread id; `None` if the threads of the process were merged.
    pub thread: Option<(TextId, u64)>,
    /// Its roots, nodes of the trie.
    roots: Vec<u32>,
}

/// The threads of a profile.
pub struct ByThread<'s> {
    saved: &'s SavedProfile,
    children: Children,
    threads: Vec<OneThread>,
}

impl<'s> ByThread<'s> {
    /// Groups the stacks by thread, in the order of first use.
    #[must_use]
    pub fn of(saved: &'s SavedProfile) -> ByThread<'s> {
        let children = saved.trie().children();
        let mut threads: Vec<OneThread> = Vec::new();
        let mut known: HashMap<(TextId, Option<(TextId, u64)>), usize> = HashMap::new();
        for &node in children.below(0) {
            let Some(root) = root_of(saved, node) else { continue };
            let index = *known.entry((root.process, root.thread)).or_insert_with(|| {
                threads.push(OneThread { process: root.process, thread: root.thread, roots: Vec::new() });
                threads.len() - 1
            });
            if let Some(thread) = threads.get_mut(index) {
                thread.roots.push(node);
            }
        }
        ByThread { saved, children, threads }
    }

    /// The threads.
    #[must_use]
    pub fn threads(&self) -> &[OneThread] {
        &self.threads
    }

    /// Visits the stacks of a thread with a count: the root, the frames (indexes into
    /// [`SavedProfile::frames`], outermost first) and the count.
    pub fn for_each_stack(&self, thread: &OneThread, visit: &mut dyn FnMut(&StackRoot, &[u32], u64)) {
        for &node in &thread.roots {
            let Some(root) = root_of(self.saved, node) else { continue };
            let mut frames: Vec<u32> = Vec::new();
            self.children.walk(node, &mut |node, depth| {
                if depth > 0 {
                    frames.truncate(depth - 1);
                    frames.push(frame_of(self.saved, node));
                }
                let count = self.saved.trie().count(NodeId(node));
                if count > 0 {
                    visit(root, &frames, count);
                }
            });
        }
    }
}

fn root_of(saved: &SavedProfile, node: u32) -> Option<&StackRoot> {
    match saved.trie().key(NodeId(node))? {
        StackFrame::Root(root) => saved.roots().get(root as usize),
        StackFrame::Frame(_) => None,
    }
}

/// The frame of a node below a root; an invalid index if there is none.
fn frame_of(saved: &SavedProfile, node: u32) -> u32 {
    match saved.trie().key(NodeId(node)) {
        Some(StackFrame::Frame(frame)) => frame,
        _ => u32::MAX,
    }
}
