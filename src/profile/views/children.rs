//! The tree below the nodes of a trie, which knows only each node's parent.
//!
//! Input: a trie. Output: the children of a node, and walks over whole subtrees. Memory is
//! eight bytes a node; a walk has its own stack, because stacks of files can be deep.

use crate::trie::{NodeId, Trie};

/// The children of every node.
pub(super) struct Children {
    /// By node: where its children begin in `nodes`; one more at the end.
    starts: Vec<u32>,
    nodes: Vec<u32>,
}

impl Children {
    /// Reads them from a trie.
    pub(super) fn of(trie: &Trie) -> Children {
        let count = trie.node_count();
        let parent = |id: usize| trie.parent(NodeId(id as u32)).map_or(0, |parent| parent.0 as usize);
        let mut starts = vec![0u32; count + 1];
        for id in 1..count {
            if let Some(start) = starts.get_mut(parent(id) + 1) {
                *start += 1;
            }
        }
        let mut sum = 0;
        for start in &mut starts {
            sum += *start;
            *start = sum;
        }
        let mut next = starts.clone();
        let mut nodes = vec![0; count.saturating_sub(1)];
        for id in 1..count {
            if let Some(place) = next.get_mut(parent(id)) {
                if let Some(slot) = nodes.get_mut(*place as usize) {
                    *slot = id as u32;
                }
                *place += 1;
            }
        }
        Children { starts, nodes }
    }

    /// The children of a node, in the order in which they were made.
    pub(super) fn below(&self, node: u32) -> &[u32] {
        let at = |node: usize| self.starts.get(node).map_or(0, |start| *start as usize);
        self.nodes.get(at(node as usize)..at(node as usize + 1)).unwrap_or_default()
    }
}

impl Children {
    /// Visits a node and all below it, each with its distance from the first: a node comes
    /// before those below it, siblings in the order in which they were made.
    pub(super) fn walk(&self, from: u32, visit: &mut dyn FnMut(u32, usize)) {
        visit(from, 0);
        let mut open = vec![self.below(from)];
        while let Some(siblings) = open.last_mut() {
            let Some((node, later)) = siblings.split_first() else {
                open.pop();
                continue;
            };
            *siblings = later;
            visit(*node, open.len());
            open.push(self.below(*node));
        }
    }
}
