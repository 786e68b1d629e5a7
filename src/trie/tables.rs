//! The two tables of the trie: frames by contents, nodes by place (parent and frame).
//!
//! Both number what they hold from 0 without gaps and find it again by a hash of what
//! is stored, so the index beside them is four bytes an entry. Limits are theirs to keep.

use hashbrown::HashTable;

use super::fingerprint::{of_frame, of_place};
use super::{Frame, Full};

/// Frames, each once, in order of first use.
#[derive(Clone)]
pub(super) struct FrameTable {
    frames: Vec<Frame>,
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

    pub(super) fn as_slice(&self) -> &[Frame] {
        &self.frames
    }

    /// The number of a known frame.
    #[inline]
    pub(super) fn find(&self, frame: Frame) -> Option<u32> {
        self.index
            .find(of_frame(frame), |&id| self.frames.get(id as usize).is_some_and(|known| *known == frame))
            .copied()
    }

    /// The number of a frame, which is known from now on.
    #[inline]
    pub(super) fn intern(&mut self, frame: Frame) -> Result<u32, Full> {
        if let Some(id) = self.find(frame) {
            return Ok(id);
        }
        if self.frames.len() >= self.limit {
            return Err(Full::Frames);
        }
        let id = self.frames.len() as u32;
        self.frames.push(frame);
        let frames = &self.frames;
        self.index
            .insert_unique(of_frame(frame), id, |&id| frames.get(id as usize).map_or(0, |f| of_frame(*f)));
        Ok(id)
    }

    /// Forgets the frames from number `len` on; no node may have them.
    pub(super) fn truncate(&mut self, len: usize) {
        for (id, frame) in self.frames.iter().enumerate().skip(len) {
            if let Ok(entry) = self.index.find_entry(of_frame(*frame), |&known| known as usize == id) {
                entry.remove();
            }
        }
        self.frames.truncate(len);
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.frames.capacity() * size_of::<Frame>() + self.index.allocation_size()
    }
}

/// A node. The children are not in it: they are found by their place.
#[derive(Clone, Copy)]
pub(super) struct Node {
    pub(super) parent: u32,
    pub(super) frame: u32,
    pub(super) count: u64,
}

const _: () = assert!(size_of::<Node>() == 16, "a node is most of the trie's memory");

/// log2 of the nodes in one chunk: 64 KiB.
const CHUNK_BITS: u32 = 12;
const CHUNK: usize = 1 << CHUNK_BITS;

/// Nodes in chunks that never move: growing neither copies the nodes nor doubles their memory.
#[derive(Clone)]
pub(super) struct NodeTable {
    chunks: Vec<Vec<Node>>,
    len: usize,
    index: HashTable<u32>,
    limit: usize,
}

/// The frame number of the top, which has none.
pub(super) const NO_FRAME: u32 = u32::MAX;

impl NodeTable {
    /// A table with only the top in it, for at most `limit` nodes (the top is one).
    pub(super) fn new(limit: usize) -> NodeTable {
        // The top is not in the index: it is nobody's child.
        let top = Node { parent: 0, frame: NO_FRAME, count: 0 };
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

    #[inline]
    pub(super) fn find(&self, parent: u32, frame: u32) -> Option<u32> {
        let same = |&id: &u32| self.get(id).is_some_and(|node| node.parent == parent && node.frame == frame);
        self.index.find(of_place(parent, frame), same).copied()
    }

    /// Whether `more` nodes fit.
    pub(super) fn reserve(&self, more: usize) -> Result<(), Full> {
        if more <= self.limit.saturating_sub(self.len) { Ok(()) } else { Err(Full::Nodes) }
    }

    /// Adds a node that is known to be new and to fit.
    #[inline]
    pub(super) fn push_new(&mut self, parent: u32, frame: u32) -> u32 {
        let id = self.len as u32;
        let node = Node { parent, frame, count: 0 };
        match self.chunks.last_mut() {
            // The first chunk grows as a vector does, so that a small trie stays small.
            Some(chunk) if chunk.len() < CHUNK => chunk.push(node),
            _ => {
                let mut chunk = Vec::with_capacity(CHUNK);
                chunk.push(node);
                self.chunks.push(chunk);
            }
        }
        self.len += 1;
        let chunks = &self.chunks;
        self.index.insert_unique(of_place(parent, frame), id, |&id| {
            get(chunks, id).map_or(0, |node| of_place(node.parent, node.frame))
        });
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
