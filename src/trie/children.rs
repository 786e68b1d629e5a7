//! The children of the nodes of a trie, which stores only each node's parent.
//!
//! Output: the children of a node, and walks over whole subtrees. Memory is eight bytes a node; a walk has an
//! explicit stack, because stacks of files can be deep.

use super::tables::NodeTable;

/// The children of every node.
#[derive(Clone, Debug)]
pub struct Children {
    /// By node: index of its first child in `nodes`; one more at the end.
    starts: Vec<u32>,
    nodes: Vec<u32>,
}

impl Children {
    /// Builds the table from a trie's nodes.
    pub(super) fn of(table: &NodeTable) -> Children {
        let mut starts = vec![0u32; table.len() + 1];
        for node in table.iter().skip(1) {
            if let Some(start) = starts.get_mut(node.parent as usize + 1) {
                *start += 1;
            }
        }
        let mut sum = 0;
        for start in &mut starts {
            sum += *start;
            *start = sum;
        }
        let mut next = starts.clone();
        let mut nodes = vec![0; table.len().saturating_sub(1)];
        for (id, node) in (0..).zip(table.iter()).skip(1) {
            if let Some(next_slot) = next.get_mut(node.parent as usize) {
                if let Some(slot) = nodes.get_mut(*next_slot as usize) {
                    *slot = id;
                }
                *next_slot += 1;
            }
        }
        Children { starts, nodes }
    }

    /// The children of a node, in order of creation.
    #[must_use]
    pub fn below(&self, node: u32) -> &[u32] {
        let at = |node: usize| self.starts.get(node).map_or(0, |start| *start as usize);
        self.nodes.get(at(node as usize)..at(node as usize + 1)).unwrap_or_default()
    }

    /// Visits a node and its descendants in preorder, each with its depth below the first; siblings in order of
    /// creation.
    pub fn walk(&self, from: u32, visit: &mut dyn FnMut(u32, usize)) {
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
