//! The hashed call-stack trie: one node per distinct (parent, frame), counts on the node.
//!
//! Memory grows with distinct stacks, not with time. A stack seen before is found by
//! one hash of the whole stack and costs no walk; a new one costs only the part below
//! what it shares with the new one before it. Input: frames, root first or leaf
//! first, and weights. Output: stacks in an order that depends on nothing but the
//! stacks. No strings, no OS, no clock, no randomness.

mod children;
mod fingerprint;
mod limits;
mod order;
mod tables;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::fmt;
use std::marker::PhantomData;

pub use children::Children;
use fingerprint::Fingerprint;
pub use limits::{FrameWords, Full, MAX_FRAMES, MAX_NODES};
use tables::{FrameTable, LeafTable, NONE, NodeTable};

/// A node of the trie. `NodeId(0)` is the top, the parent of every root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// A distinct frame: an index into the trie's frame table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameId(pub u32);

/// A frame as a trie tells it apart. What it stands for is the business of whoever makes the trie.
pub trait Key: Copy + Ord {
    /// All of it, as it is kept: two frames that differ have other words.
    fn words(self) -> FrameWords;

    /// The frame of such words.
    fn of(words: FrameWords) -> Self;
}

/// A key of stacks that are given whole: a head, then a word for each frame below it.
pub trait Stacked: Key {
    /// What stands above the words, and what all of them are in.
    type Head: Copy;

    /// A word: what stands for a frame, told apart by its 64 bits.
    type Word: Copy + Eq + Into<u64>;

    /// The outermost frame.
    fn head(head: Self::Head) -> Self;

    /// The frame of a word.
    fn word(head: Self::Head, word: Self::Word) -> Self;

    /// All of a head, in 64 bits: two heads that differ have other bits.
    fn bits(head: Self::Head) -> u64;
}

/// The last stack that was new, with the nodes along it: the next new one is mostly
/// the same thread a little later, and shares the outer part.
#[derive(Clone, Default)]
struct LastNew {
    /// The bits of its head.
    head: u64,
    leaf_first: Vec<u64>,
    /// The head's node, then one node a word, outermost first; empty: no such stack.
    nodes: Vec<u32>,
}

/// The trie.
#[derive(Clone)]
pub struct Trie<K> {
    /// In front of everything: whole stack to leaf.
    leaves: LeafTable,
    nodes: NodeTable,
    frames: FrameTable,
    last_new: LastNew,
    total: u64,
    distinct_stacks: usize,
    key: PhantomData<K>,
}

impl<K: Key> Trie<K> {
    /// An empty trie with the limits [`MAX_NODES`] and [`MAX_FRAMES`].
    #[must_use]
    pub fn new() -> Trie<K> {
        Trie::with_limits(MAX_NODES, MAX_FRAMES)
    }

    /// An empty trie with lower limits; higher ones than [`MAX_NODES`] and [`MAX_FRAMES`]
    /// are lowered to them. The top is a node and always fits.
    #[must_use]
    pub fn with_limits(nodes_max: usize, frames_max: usize) -> Trie<K> {
        Trie {
            leaves: LeafTable::default(),
            nodes: NodeTable::new(nodes_max.min(MAX_NODES)),
            frames: FrameTable::new(frames_max.min(MAX_FRAMES)),
            last_new: LastNew::default(),
            total: 0,
            distinct_stacks: 0,
            key: PhantomData,
        }
    }

    /// Counts a path of frames, root first, as a merge or an import has it. An empty path
    /// counts on the top.
    ///
    /// # Errors
    /// [`Full`] if the path is new and does not fit.
    pub fn insert_path(&mut self, frames: &[K], weight: u64) -> Result<NodeId, Full> {
        let leaf = self.extend(0, frames.iter().map(|frame| frame.words()), &mut Vec::new())?;
        self.add(leaf, weight);
        Ok(leaf)
    }

    /// The one child of a node with a frame, made if need be; `NodeId(0)` is the top. For
    /// readers that find a stack by what it shares with the one before it.
    ///
    /// # Errors
    /// [`Full`] if it is new and does not fit.
    pub fn descend(&mut self, parent: NodeId, frame: K) -> Result<NodeId, Full> {
        self.child(parent.0, frame.words()).map(NodeId)
    }

    /// Adds weight to a known leaf, as for a sleeping thread whose stack is taken again.
    /// Does nothing for a node that this trie does not have.
    #[inline]
    pub fn add(&mut self, node: NodeId, weight: u64) {
        if weight == 0 {
            return;
        }
        let Some(leaf) = self.leaf(node.0) else { return };
        let Some(leaf) = self.leaves.get_mut(leaf) else { return };
        self.distinct_stacks += usize::from(leaf.count == 0);
        leaf.count = leaf.count.saturating_add(weight);
        self.total = self.total.saturating_add(weight);
    }

    /// Adds all stacks of another trie. Any order of merges gives the same stacks and counts.
    ///
    /// # Errors
    /// [`Full`] if a node did not fit (the last limit met). Everything else is merged:
    /// the weight that was lost is what [`total`](Trie::total) did not grow by.
    pub fn merge(&mut self, other: &Trie<K>) -> Result<(), Full> {
        let mut merged = Ok(());
        // Other's nodes to ours; `None` where a node was refused, and so all below it.
        let ours = other.map_nodes(Some(0), |_, frame, parent| {
            parent
                .and_then(|parent| self.child(parent, frame.words()).map_err(|full| merged = Err(full)).ok())
        });
        for (there, ours) in (0..).zip(ours) {
            if let Some(ours) = ours {
                self.add(NodeId(ours), other.count(NodeId(there)));
            }
        }
        merged
    }

    /// A frame by its number; `None` for a number that it does not have.
    #[must_use]
    pub fn frame(&self, frame: FrameId) -> Option<K> {
        self.frames.as_slice().get(frame.0 as usize).copied().map(K::of)
    }

    /// A node's frame itself; `None` for the top.
    #[must_use]
    pub fn key(&self, node: NodeId) -> Option<K> {
        self.frame_of(node).and_then(|frame| self.frame(frame))
    }

    /// Number of distinct frames; their ids are the numbers below it.
    #[must_use]
    pub fn frame_count(&self) -> usize {
        self.frames.len()
    }

    /// The distinct frames in [`FrameId`] order.
    pub fn frames(&self) -> impl ExactSizeIterator<Item = K> {
        self.frames.as_slice().iter().copied().map(K::of)
    }

    /// Number of nodes, the top included; their ids are the numbers below it.
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// A node's caller; `None` for the top.
    #[must_use]
    pub fn parent(&self, node: NodeId) -> Option<NodeId> {
        if node.0 == 0 { None } else { self.nodes.get(node.0).map(|node| NodeId(node.parent)) }
    }

    /// A node's frame; `None` for the top.
    #[must_use]
    pub fn frame_of(&self, node: NodeId) -> Option<FrameId> {
        if node.0 == 0 { None } else { self.nodes.get(node.0).map(|node| FrameId(node.frame)) }
    }

    /// Goes over all nodes but the top, callers before what they call: `map` gets a node, its
    /// frame and what it gave for the node's caller, `top` for that of roots. All that it gave,
    /// by node; `top` first.
    pub fn map_nodes<T>(&self, top: T, mut map: impl FnMut(NodeId, K, &T) -> T) -> Vec<T> {
        let Ok(mapped) =
            self.try_map_nodes(top, |node, frame, caller| Ok::<T, Infallible>(map(node, frame, caller)));
        mapped
    }

    /// [`map_nodes`](Trie::map_nodes) that ends at the first error.
    ///
    /// # Errors
    /// What `map` gives.
    pub fn try_map_nodes<T, E>(
        &self,
        top: T,
        mut map: impl FnMut(NodeId, K, &T) -> Result<T, E>,
    ) -> Result<Vec<T>, E> {
        let mut mapped = Vec::with_capacity(self.node_count());
        mapped.push(top);
        // A node is made after its caller, so its number is higher.
        for (id, node) in (0..).zip(self.nodes.iter()).skip(1) {
            let caller = mapped.get(node.parent as usize);
            if let (Some(caller), Some(frame)) = (caller, self.frame(FrameId(node.frame))) {
                let value = map(NodeId(id), frame, caller)?;
                mapped.push(value);
            }
        }
        Ok(mapped)
    }

    /// The children of every node.
    #[must_use]
    pub fn children(&self) -> Children {
        Children::of(&self.nodes)
    }

    /// Weight of the stacks that end at a node.
    #[must_use]
    pub fn count(&self, node: NodeId) -> u64 {
        let leaf = self.nodes.get(node.0).and_then(|node| self.leaves.get(node.leaf));
        leaf.map_or(0, |leaf| leaf.count)
    }

    /// Weight of all stacks.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Number of different stacks with a weight.
    #[must_use]
    pub fn distinct_stacks(&self) -> usize {
        self.distinct_stacks
    }

    /// Bytes allocated for all tables, whether in use or not.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.leaves.memory_bytes()
            + self.nodes.memory_bytes()
            + self.frames.memory_bytes()
            + self.last_new.leaf_first.capacity() * size_of::<u64>()
            + self.last_new.nodes.capacity() * size_of::<u32>()
    }

    /// Visits each stack that has a weight: its frames, root first, and the weight.
    ///
    /// A stack comes before those it is the beginning of; siblings come in the order of
    /// their frames. The order of insertion has no influence.
    pub fn for_each_stack(&self, mut visit: impl FnMut(&[FrameId], u64)) {
        self.for_each_leaf(|_, frames, weight| visit(frames, weight));
    }

    /// Visits each stack that has a weight as [`for_each_stack`](Trie::for_each_stack) does, with the node that it
    /// ends at.
    pub fn for_each_leaf(&self, visit: impl FnMut(NodeId, &[FrameId], u64)) {
        order::for_each_stack::<K>(
            self.frames.as_slice(),
            &self.nodes,
            |node| self.count(NodeId(node)),
            visit,
        );
    }

    /// Gives every weight another value: callers before what they call, siblings in the order of
    /// their places; stacks whose frames have the same places follow each other.
    pub fn recount<P: Ord>(&mut self, place: impl Fn(K) -> P, mut value: impl FnMut(u64) -> u64) {
        let mut recounted = Vec::with_capacity(self.distinct_stacks);
        order::by_place(self.frames.as_slice(), &self.nodes, place, |node| match self.count(node) {
            0 => {}
            weight => recounted.push((node, value(weight))),
        });
        (self.total, self.distinct_stacks) = (0, 0);
        for (node, weight) in recounted {
            if let Some(leaf) = self.leaf(node.0).and_then(|leaf| self.leaves.get_mut(leaf)) {
                leaf.count = 0;
            }
            self.add(node, weight);
        }
    }

    /// The node that `frames` lead to from a node, made if need be; all nodes on the way
    /// are appended to `path`. If they do not all fit, none is made.
    fn extend(
        &mut self,
        from: u32,
        mut frames: impl Iterator<Item = FrameWords> + Clone,
        path: &mut Vec<u32>,
    ) -> Result<NodeId, Full> {
        let mut node = from;
        loop {
            let below = frames.clone();
            let Some(frame) = frames.next() else { return Ok(NodeId(node)) };
            let Some(known) = self.nodes.find(node, frame, &self.frames) else {
                frames = below;
                break;
            };
            node = known;
            path.push(node);
        }
        // Nothing below a missing node exists, so no node from here on needs a look-up.
        self.nodes.reserve(frames.clone().count())?;
        let (first, frames_before) = (path.len(), self.frames.len());
        for frame in frames {
            match self.frames.intern(frame) {
                Ok(frame) => path.push(frame),
                Err(full) => {
                    self.frames.truncate(frames_before);
                    return Err(full);
                }
            }
        }
        for slot in path.iter_mut().skip(first) {
            node = self.nodes.push_new(node, *slot);
            *slot = node;
        }
        Ok(NodeId(node))
    }

    /// The number of a node's leaf, made if need be; `None` if there is no such node.
    #[inline]
    fn leaf(&mut self, node: u32) -> Option<u32> {
        let place = self.nodes.get_mut(node)?;
        if place.leaf == NONE {
            place.leaf = self.leaves.push_new(node);
        }
        Some(place.leaf)
    }

    /// The one child of a node with a frame, made if need be.
    fn child(&mut self, parent: u32, frame: FrameWords) -> Result<u32, Full> {
        if let Some(known) = self.nodes.find(parent, frame, &self.frames) {
            return Ok(known);
        }
        self.nodes.reserve(1)?;
        let frame = self.frames.intern(frame)?;
        Ok(self.nodes.push_new(parent, frame))
    }
}

impl<K: Stacked> Trie<K> {
    /// Counts a stack: the head, then the words from last (outermost) to first (leaf).
    ///
    /// Without words the head itself is the leaf. Weight 0 makes the stack known.
    /// Two different stacks are taken for one with probability 2^-64 at most, mostly 2^-96.
    ///
    /// # Errors
    /// [`Full`] if the stack is new and does not fit.
    #[inline]
    pub fn insert(&mut self, head: K::Head, leaf_first: &[K::Word], weight: u64) -> Result<NodeId, Full> {
        let print = Fingerprint::of(K::bits(head), leaf_first);
        let leaf = match self.leaves.find(print) {
            Some(leaf) => {
                // In place: a known stack touches its leaf and no node.
                self.distinct_stacks += usize::from(leaf.count == 0 && weight != 0);
                self.total = self.total.saturating_add(weight);
                leaf.count = leaf.count.saturating_add(weight);
                NodeId(leaf.node)
            }
            None => {
                let leaf = self.learn(print, head, leaf_first)?;
                self.add(leaf, weight);
                leaf
            }
        };
        debug_assert!(self.is_stack(leaf, head, leaf_first), "two stacks with one fingerprint");
        Ok(leaf)
    }

    /// Makes a stack known that has no fingerprint in the table yet.
    #[cold]
    #[inline(never)]
    fn learn(&mut self, print: Fingerprint, head: K::Head, leaf_first: &[K::Word]) -> Result<NodeId, Full> {
        // Taken out: if the stack is refused, nothing of it may stay behind here either.
        let mut last = std::mem::take(&mut self.last_new);
        let mut shared = 0;
        if last.head == K::bits(head) && !last.nodes.is_empty() {
            let outermost = leaf_first.iter().rev().zip(last.leaf_first.iter().rev());
            shared = outermost.take_while(|&(&new, &known)| new.into() == known).count();
            last.nodes.truncate(1 + shared);
        } else {
            last.nodes.clear();
        }
        let from = last.nodes.last().copied().unwrap_or(0);
        let first = last.nodes.is_empty().then(|| K::head(head).words());
        let new = leaf_first.get(..leaf_first.len() - shared).unwrap_or_default();
        let frames = new.iter().rev().map(|&word| K::word(head, word).words());
        let leaf = self.extend(from, first.into_iter().chain(frames), &mut last.nodes)?;
        last.head = K::bits(head);
        last.leaf_first.clear();
        last.leaf_first.extend(leaf_first.iter().map(|&word| word.into()));
        self.last_new = last;
        if let Some(leaf) = self.leaf(leaf.0) {
            self.leaves.name(leaf, print);
        }
        Ok(leaf)
    }

    /// Whether a leaf's path is exactly this stack.
    fn is_stack(&self, leaf: NodeId, head: K::Head, leaf_first: &[K::Word]) -> bool {
        let below = leaf_first.iter().map(|&word| K::word(head, word));
        let mut node = leaf;
        for frame in below.chain([K::head(head)]) {
            if self.key(node) != Some(frame) {
                return false;
            }
            node = self.parent(node).unwrap_or(NodeId(0));
        }
        node == NodeId(0)
    }
}

impl<K: Key> Default for Trie<K> {
    fn default() -> Trie<K> {
        Trie::new()
    }
}

impl<K: Key> fmt::Debug for Trie<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Trie({} stacks, weight {}, {} nodes, {} frames)",
            self.distinct_stacks,
            self.total,
            self.node_count(),
            self.frame_count()
        )
    }
}
