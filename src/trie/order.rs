//! The order in which stacks are read: by their frames from the root on, whoever came first.
//!
//! Input: the tables. Output: each counted stack once. Memory is 12 bytes a node and the
//! depth of one stack; the walk has its own stack, because a target's may be deep.

use super::tables::NodeTable;
use super::{FrameId, Key, NodeId};

pub(super) fn for_each_stack<K: Key>(
    frames: &[K],
    nodes: &NodeTable,
    count: impl Fn(u32) -> u64,
    mut visit: impl FnMut(NodeId, &[FrameId], u64),
) {
    let rank = ranks(frames);
    // (parent, rank of the frame, node): sorted, the children of one node lie side by side in order.
    let mut children: Vec<(u32, u32, u32)> = Vec::with_capacity(nodes.len());
    for (id, node) in nodes.iter().enumerate().skip(1) {
        let rank = rank.get(node.frame as usize).copied().unwrap_or(u32::MAX);
        children.push((node.parent, rank, id as u32));
    }
    children.sort_unstable();

    let mut path: Vec<FrameId> = Vec::new();
    if count(0) > 0 {
        visit(NodeId(0), &path, count(0));
    }
    // The children still to visit of each node of the path.
    let mut open = vec![of(&children, 0)];
    while let Some(siblings) = open.last_mut() {
        let Some((&(_, _, id), later)) = siblings.split_first() else {
            open.pop();
            path.pop();
            continue;
        };
        *siblings = later;
        let Some(node) = nodes.get(id) else { continue };
        path.push(FrameId(node.frame));
        let weight = count(id);
        if weight > 0 {
            visit(NodeId(id), &path, weight);
        }
        open.push(of(&children, id));
    }
}

/// The place of each frame in the order of frames.
fn ranks<K: Key>(frames: &[K]) -> Vec<u32> {
    let mut sorted: Vec<u32> = (0..frames.len() as u32).collect();
    sorted.sort_unstable_by_key(|&id| frames.get(id as usize));
    let mut ranks = vec![0; frames.len()];
    for (rank, id) in sorted.into_iter().enumerate() {
        if let Some(slot) = ranks.get_mut(id as usize) {
            *slot = rank as u32;
        }
    }
    ranks
}

/// The children of one node, in order.
fn of(children: &[(u32, u32, u32)], parent: u32) -> &[(u32, u32, u32)] {
    let from = children.partition_point(|child| child.0 < parent);
    let rest = children.get(from..).unwrap_or_default();
    let len = rest.iter().take_while(|child| child.0 == parent).count();
    rest.get(..len).unwrap_or_default()
}
