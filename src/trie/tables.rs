//! The tables of the trie: frames by content, nodes by key (parent and frame), leaves by the fingerprint of their
//! whole stack.
//!
//! Each numbers its entries from 0 without gaps and finds them by a hash of the stored content, so its index is
//! four bytes an entry. The tables enforce the limits.

use hashbrown::HashTable;

use super::fingerprint::{Fingerprint, of_frame, of_node};
use super::limits::{FrameWords, Full};

/// Distinct frames, in order of first use.
#[derive(Clone)]
pub(super) struct FrameTable {
    frames: Vec<FrameWords>,
    index: HashTable<u32>,
    limit: usize,
}

impl FrameTable {
    /// An empty table for at most `limit` frames; numbers are 32 bits wide.
    pub(super) fn new(limit: usize) -> FrameTable {
        FrameTable { frames: Vec::new(), index: HashTable::new(), limit }
    }

    pub(super) fn len(&self) -> usize {
        self.frames.len()
    }

    #[inline]
    pub(super) fn as_slice(&self) -> &[FrameWords] {
        &self.frames
    }

    /// The number of a known frame.
    #[inline]
    pub(super) fn find(&self, frame: FrameWords) -> Option<u32> {
        self.index
            .find(of_frame(frame), |&id| self.frames.get(id as usize).is_some_and(|known| *known == frame))
            .copied()
    }

    /// The number of a frame, which is added if it is new.
    #[inline]
    pub(super) fn intern(&mut self, frame: FrameWords) -> Result<u32, Full> {
        if let Some(id) = self.find(frame) {
            return Ok(id);
        }
        if self.frames.len() >= self.limit {
            return Err(Full::Frames);
        }
        let id = self.frames.len() as u32;
        self.frames.push(frame);
        let frames = &self.frames;
        self.index.insert_unique(of_frame(frame), id, |&id| {
            frames.get(id as usize).map_or(0, |&frame| of_frame(frame))
        });
        Ok(id)
    }

    /// Removes the frames from number `len` on; no node may refer to them.
    pub(super) fn truncate(&mut self, len: usize) {
        for (id, &frame) in self.frames.iter().enumerate().skip(len) {
            if let Ok(entry) = self.index.find_entry(of_frame(frame), |&known| known as usize == id) {
                entry.remove();
            }
        }
        self.frames.truncate(len);
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.frames.capacity() * size_of::<FrameWords>() + self.index.allocation_size()
    }
}

/// A node. Children are found by their key. Counts are in the leaves: most nodes are no leaf, and adjacent counts
/// stay in the cache.
#[derive(Clone, Copy)]
pub(super) struct Node {
    pub(super) parent: u32,
    pub(super) frame: u32,
    /// Number in the [`LeafTable`], or [`NONE`].
    pub(super) leaf: u32,
}

const _: () = assert!(size_of::<Node>() == 12, "nodes are most of the trie's memory");

/// No number: the frame of the top, or the leaf of a node where no stack ends.
pub(super) const NONE: u32 = u32::MAX;

/// log2 of the nodes in one chunk: 48 KiB.
const CHUNK_BITS: u32 = 12;
const CHUNK: usize = 1 << CHUNK_BITS;

/// Nodes in chunks that never move: growing neither copies the nodes nor doubles their memory.
///
/// The nodes of a new stack are added one after the other, so a node's first child is nearly always the next node.
/// That one is found without the index, which contains only the others: one node per stack. A walk along the stack
/// reads memory in order.
#[derive(Clone)]
pub(super) struct NodeTable {
    chunks: Vec<Vec<Node>>,
    len: usize,
    index: HashTable<u32>,
    limit: usize,
}

impl NodeTable {
    /// A table that contains only the top, for at most `limit` nodes including the top.
    pub(super) fn new(limit: usize) -> NodeTable {
        let top = Node { parent: NONE, frame: NONE, leaf: NONE };
        NodeTable { chunks: vec![vec![top]], len: 1, index: HashTable::new(), limit }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) fn get(&self, id: u32) -> Option<&Node> {
        get(&self.chunks, id)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut Node> {
        self.chunks.get_mut((id >> CHUNK_BITS) as usize)?.get_mut(id as usize % CHUNK)
    }

    /// All nodes in order of their numbers: every parent before its children.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Node> {
        self.chunks.iter().flatten()
    }

    /// The child of a node with a frame. The frame's number is looked up only if the next node does not match.
    #[inline]
    pub(super) fn find(&self, parent: u32, frame: FrameWords, frames: &FrameTable) -> Option<u32> {
        let after = parent.wrapping_add(1);
        if let Some(node) = self.get(after)
            && node.parent == parent
            && frames.as_slice().get(node.frame as usize) == Some(&frame)
        {
            return Some(after);
        }
        let frame = frames.find(frame)?;
        let same = |&id: &u32| self.get(id).is_some_and(|node| node.parent == parent && node.frame == frame);
        self.index.find(of_node(parent, frame), same).copied()
    }

    /// Whether `more` nodes fit.
    pub(super) fn reserve(&self, more: usize) -> Result<(), Full> {
        if more <= self.limit.saturating_sub(self.len) { Ok(()) } else { Err(Full::Nodes) }
    }

    /// Adds a node that is known to be new and to fit.
    #[inline]
    pub(super) fn push_new(&mut self, parent: u32, frame: u32) -> u32 {
        let id = self.len as u32;
        let node = Node { parent, frame, leaf: NONE };
        match self.chunks.last_mut() {
            // The first chunk grows like a vector, so that a small trie stays small.
            Some(chunk) if chunk.len() < CHUNK => chunk.push(node),
            _ => {
                let mut chunk = Vec::with_capacity(CHUNK);
                chunk.push(node);
                self.chunks.push(chunk);
            }
        }
        self.len += 1;
        if id != parent.wrapping_add(1) {
            let chunks = &self.chunks;
            self.index.insert_unique(of_node(parent, frame), id, |&id| {
                get(chunks, id).map_or(0, |node| of_node(node.parent, node.frame))
            });
        }
        id
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let nodes: usize = self.chunks.iter().map(Vec::capacity).sum();
        nodes * size_of::<Node>()
            + self.chunks.capacity() * size_of::<Vec<Node>>()
            + self.index.allocation_size()
    }
}

#[inline]
fn get(chunks: &[Vec<Node>], id: u32) -> Option<&Node> {
    chunks.get((id >> CHUNK_BITS) as usize)?.get(id as usize % CHUNK)
}

/// A node where stacks end: all data that a repeated stack needs, in one place.
#[derive(Clone, Copy)]
pub(super) struct Leaf {
    hash: u64,
    pub(super) count: u64,
    pub(super) node: u32,
    check: u32,
}

const _: () = assert!(size_of::<Leaf>() == 24, "a known stack touches one of these and little else");

/// Leaves, in the order in which they were first counted.
#[derive(Clone, Default)]
pub(super) struct LeafTable {
    leaves: Vec<Leaf>,
    /// Only leaves with a fingerprint of their whole stack; those of imports and merges have none.
    index: HashTable<u32>,
}

impl LeafTable {
    /// The leaf of a whole stack.
    #[inline]
    pub(super) fn find(&mut self, print: Fingerprint) -> Option<&mut Leaf> {
        let leaves = &self.leaves;
        let same = |&id: &u32| {
            leaves.get(id as usize).is_some_and(|leaf| leaf.hash == print.hash && leaf.check == print.check)
        };
        let id = *self.index.find(print.hash, same)?;
        self.leaves.get_mut(id as usize)
    }

    #[inline]
    pub(super) fn get(&self, id: u32) -> Option<&Leaf> {
        self.leaves.get(id as usize)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut Leaf> {
        self.leaves.get_mut(id as usize)
    }

    /// Adds the leaf of a node that has none.
    pub(super) fn push_new(&mut self, node: u32) -> u32 {
        self.leaves.push(Leaf { hash: 0, count: 0, node, check: 0 });
        self.leaves.len() as u32 - 1
    }

    /// Adds a leaf to the index by the fingerprint of its whole stack.
    pub(super) fn name(&mut self, id: u32, print: Fingerprint) {
        let Some(leaf) = self.leaves.get_mut(id as usize) else { return };
        leaf.hash = print.hash;
        leaf.check = print.check;
        let leaves = &self.leaves;
        self.index.insert_unique(print.hash, id, |&id| leaves.get(id as usize).map_or(0, |leaf| leaf.hash));
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.leaves.capacity() * size_of::<Leaf>() + self.index.allocation_size()
    }
}
