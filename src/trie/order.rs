//! The order in which stacks are read: by their frames from the root, independent of insertion.
//!
//! Input: the tables. Output: each counted stack once, or each node. Memory is 12 bytes a node and the depth of
//! one stack; walks have an explicit stack, because a target's may be deep.

use super::tables::NodeTable;
use super::{FrameId, FrameWords, Key, NodeId};

pub(super) fn for_each_stack<K: Key>(
    frames: &[FrameWords],
    nodes: &NodeTable,
    count: impl Fn(u32) -> u64,
    mut visit: impl FnMut(NodeId, &[FrameId], u64),
) {
    let rank = ranks_by(frames, K::of);
    // (parent, rank of the frame, node): after sorting, the children of a node are adjacent and in order.
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
    // The unvisited children of each node of the path.
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

/// Visits all nodes, callers before callees, in the order of the sort keys of their frames. Stacks with equal keys
/// are adjacent, as if they were one.
pub(super) fn by_sort_key<K: Key, P: Ord>(
    frames: &[FrameWords],
    nodes: &NodeTable,
    sort_key: impl Fn(K) -> P,
    mut visit: impl FnMut(NodeId),
) {
    let rank = ranks_by(frames, |words| sort_key(K::of(words)));
    let mut children: Vec<(u32, u32, u32)> = Vec::with_capacity(nodes.len());
    for (id, node) in nodes.iter().enumerate().skip(1) {
        children.push((node.parent, rank.get(node.frame as usize).copied().unwrap_or(u32::MAX), id as u32));
    }
    children.sort_unstable();
    // (depth, rank, node), next one last: nodes with equal keys are adjacent.
    let mut open: Vec<(u32, u32, u32)> = vec![(0, 0, 0)];
    let mut same: Vec<u32> = Vec::new();
    while let Some((depth, rank, node)) = open.pop() {
        same.clear();
        same.push(node);
        while let Some((_, _, next)) = open.pop_if(|next| (next.0, next.1) == (depth, rank)) {
            same.push(next);
        }
        let first = open.len();
        for node in &same {
            visit(NodeId(*node));
            open.extend(of(&children, *node).iter().map(|&(_, rank, child)| (depth + 1, rank, child)));
        }
        if let Some(below) = open.get_mut(first..) {
            below.sort_unstable_by(|a, b| b.cmp(a));
        }
    }
}

/// The rank of each frame's sort key; frames with equal keys have equal ranks.
fn ranks_by<P: Ord>(frames: &[FrameWords], sort_key: impl Fn(FrameWords) -> P) -> Vec<u32> {
    let mut sorted: Vec<(P, u32)> = frames.iter().map(|frame| sort_key(*frame)).zip(0..).collect();
    sorted.sort_unstable();
    let mut ranks = vec![0; frames.len()];
    for (rank, same) in (0..).zip(sorted.chunk_by(|a, b| a.0 == b.0)) {
        for (_, id) in same {
            if let Some(slot) = ranks.get_mut(*id as usize) {
                *slot = rank;
            }
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
