//! The hashed call-stack trie: one node per distinct (parent, frame), counts on the node.
//!
//! `Trie` has the stacks, `Children` the children of its nodes, `Full` its limits; the last part gives the order in
//! which stacks are read.
//!
//! Memory grows with distinct stacks, not with time. A known stack is found by one hash of the whole stack,
//! without a walk; a new one costs only the part that it does not share with the previous new stack. Input:
//! frames, root first or leaf first, and weights. Output: stacks in an order that depends only on the stacks. No
//! strings, no OS, no clock, no randomness.
//!
//! A leaf is the end of a stack; it may have children. Three ways in: [`Trie::insert`] for a whole stack, found by its hash;
//! [`Trie::insert_path`]; [`Trie::descend`] and [`Trie::add`] for readers that build common prefixes once.

mod tables;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::fmt;
use std::marker::PhantomData;

use tables::{Fingerprint, FrameTable, LeafTable, NONE, NodeTable};

/// A node of the trie. `NodeId(0)` is the top, the parent of every root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// A distinct frame: an index into the trie's frame table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameId(pub u32);

/// Identity of a frame. The creator of the trie defines its meaning.
pub trait Key: Copy + Ord {
    /// The complete key as stored: different frames have different words.
    fn words(self) -> FrameWords;

    /// The frame with these words.
    fn from_words(words: FrameWords) -> Self;
}

/// A key for stacks that are inserted whole: a head, then a word for each frame below it.
pub trait StackKey: Key {
    /// The outermost frame and the address space of the words.
    type Head: Copy;

    /// A frame below the head, identified by its 64 bits.
    type Word: Copy + Eq + Into<u64>;

    /// The outermost frame.
    fn head(head: Self::Head) -> Self;

    /// The frame of a word.
    fn word(head: Self::Head, word: Self::Word) -> Self;

    /// The complete head in 64 bits: different heads have different bits.
    fn bits(head: Self::Head) -> u64;
}

/// The last new stack, with its nodes: the next new stack is mostly from the same thread a little later, and
/// shares the outer part.
#[derive(Clone, Default)]
struct LastNewStack {
    /// The bits of its head.
    head: u64,
    leaf_first: Vec<u64>,
    /// The head's node, then one node per word, outermost first; empty: no such stack.
    nodes: Vec<u32>,
}

/// The trie.
#[derive(Clone)]
pub struct Trie<K> {
    /// Whole stack to leaf; looked up first.
    leaves: LeafTable,
    nodes: NodeTable,
    frames: FrameTable,
    last_new: LastNewStack,
    total: u64,
    distinct_stacks: usize,
    key: PhantomData<K>,
}

impl<K: Key> Trie<K> {
    /// An empty trie with the limits [`NODES_MAX`] and [`FRAMES_MAX`].
    #[must_use]
    pub fn new() -> Trie<K> {
        Trie::with_limits(NODES_MAX, FRAMES_MAX)
    }

    /// An empty trie with lower limits; limits above [`NODES_MAX`] and [`FRAMES_MAX`] are clamped. The top is a
    /// node and always fits.
    #[must_use]
    pub fn with_limits(nodes_max: usize, frames_max: usize) -> Trie<K> {
        Trie {
            leaves: LeafTable::default(),
            nodes: NodeTable::new(nodes_max.min(NODES_MAX)),
            frames: FrameTable::new(frames_max.min(FRAMES_MAX)),
            last_new: LastNewStack::default(),
            total: 0,
            distinct_stacks: 0,
            key: PhantomData,
        }
    }

    /// Counts a path of frames, root first, for merges and imports. An empty path counts on the top.
    ///
    /// # Errors
    /// [`Full`] if the path is new and does not fit.
    pub fn insert_path(&mut self, frames: &[K], weight: u64) -> Result<NodeId, Full> {
        let leaf = self.extend(0, frames.iter().map(|frame| frame.words()), &mut Vec::new())?;
        self.add(leaf, weight);
        Ok(leaf)
    }

    /// The child of a node with a frame, added if missing; `NodeId(0)` is the top. For readers that find a stack
    /// by its common prefix with the previous one.
    ///
    /// # Errors
    /// [`Full`] if it is new and does not fit.
    pub fn descend(&mut self, parent: NodeId, frame: K) -> Result<NodeId, Full> {
        self.child(parent.0, frame.words()).map(NodeId)
    }

    /// Adds weight to a known leaf, for a sleeping thread with an unchanged stack. Does nothing for a node that
    /// this trie does not have.
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
    /// [`Full`] if a node did not fit (the last limit met). Everything else is merged: the lost weight is missing
    /// from [`total`](Trie::total).
    pub fn merge(&mut self, other: &Trie<K>) -> Result<(), Full> {
        let mut merged = Ok(());
        // The other trie's nodes to this one's; `None` for refused nodes and their descendants.
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

    /// A frame by its number; `None` if it is out of range.
    #[must_use]
    pub fn frame(&self, frame: FrameId) -> Option<K> {
        self.frames.as_slice().get(frame.0 as usize).copied().map(K::from_words)
    }

    /// A node's frame key; `None` for the top.
    #[must_use]
    pub fn key(&self, node: NodeId) -> Option<K> {
        self.frame_of(node).and_then(|frame| self.frame(frame))
    }

    /// Number of distinct frames; their ids are below it.
    #[must_use]
    pub fn frame_count(&self) -> usize {
        self.frames.len()
    }

    /// The distinct frames in [`FrameId`] order.
    pub fn frames(&self) -> impl ExactSizeIterator<Item = K> {
        self.frames.as_slice().iter().copied().map(K::from_words)
    }

    /// Number of nodes, including the top; their ids are below it.
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

    /// Maps all nodes but the top, callers before callees: `map` gets a node, its frame and the result for the
    /// node's caller, `top` for roots. Returns the results by node, `top` first.
    pub fn map_nodes<T>(&self, top: T, mut map: impl FnMut(NodeId, K, &T) -> T) -> Vec<T> {
        let Ok(mapped) =
            self.try_map_nodes(top, |node, frame, caller| Ok::<T, Infallible>(map(node, frame, caller)));
        mapped
    }

    /// [`map_nodes`](Trie::map_nodes) that ends at the first error.
    ///
    /// # Errors
    /// The error of `map`.
    pub fn try_map_nodes<T, E>(
        &self,
        top: T,
        mut map: impl FnMut(NodeId, K, &T) -> Result<T, E>,
    ) -> Result<Vec<T>, E> {
        let mut mapped = Vec::with_capacity(self.node_count());
        mapped.push(top);
        // A node is added after its caller, so its number is higher.
        for (id, node) in (0..).zip(self.nodes.iter()).skip(1) {
            let caller = mapped.get(node.parent as usize);
            if let (Some(caller), Some(frame)) = (caller, self.frame(FrameId(node.frame))) {
                let value = map(NodeId(id), frame, caller)?;
                mapped.push(value);
            }
        }
        Ok(mapped)
    }

    /// Adds the value of each node to that of its caller, so that values of the stacks that end at a node become
    /// those of all stacks through it.
    pub fn add_to_callers<T: Copy>(&self, values: &mut [T], mut add: impl FnMut(&mut T, T)) {
        // Callers have lower numbers.
        for node in (1..values.len()).rev() {
            let (caller, value) = (self.parent(NodeId(node as u32)), values[node]);
            if let Some(of_caller) = caller.and_then(|caller| values.get_mut(caller.0 as usize)) {
                add(of_caller, value);
            }
        }
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

    /// Total weight of all stacks.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Number of distinct stacks with a weight.
    #[must_use]
    pub fn distinct_stacks(&self) -> usize {
        self.distinct_stacks
    }

    /// Bytes allocated for all tables, including unused capacity.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.leaves.memory_bytes()
            + self.nodes.memory_bytes()
            + self.frames.memory_bytes()
            + self.last_new.leaf_first.capacity() * size_of::<u64>()
            + self.last_new.nodes.capacity() * size_of::<u32>()
    }

    /// Visits each stack with a weight: its frames, root first, and the weight.
    ///
    /// A stack precedes those that extend it; siblings are sorted by their frames. The order of insertion has no
    /// influence.
    pub fn for_each_stack(&self, mut visit: impl FnMut(&[FrameId], u64)) {
        self.for_each_leaf(|_, frames, weight| visit(frames, weight));
    }

    /// Like [`for_each_stack`](Trie::for_each_stack), with the last node of each stack.
    pub fn for_each_leaf(&self, visit: impl FnMut(NodeId, &[FrameId], u64)) {
        for_each_stack::<K>(self.frames.as_slice(), &self.nodes, |node| self.count(NodeId(node)), visit);
    }

    /// Replaces each weight by `value(weight)`. `value` may carry a remainder from stack to stack, so the order is fixed:
    /// callers before callees, siblings by their sort keys, stacks with equal keys adjacent.
    pub fn recount<P: Ord>(&mut self, sort_key: impl Fn(K) -> P, mut value: impl FnMut(u64) -> u64) {
        let mut recounted = Vec::with_capacity(self.distinct_stacks);
        by_sort_key(self.frames.as_slice(), &self.nodes, sort_key, |node| match self.count(node) {
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

    /// The node at the end of `frames` below a node, added if missing; appends all nodes of the path to `path`. If
    /// they do not all fit, none is added.
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
        // A missing node has no descendants, so the rest needs no look-up.
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

    /// The number of a node's leaf, added if missing; `None` if there is no such node.
    #[inline]
    fn leaf(&mut self, node: u32) -> Option<u32> {
        let entry = self.nodes.get_mut(node)?;
        if entry.leaf == NONE {
            entry.leaf = self.leaves.push_new(node);
        }
        Some(entry.leaf)
    }

    /// The child of a node with a frame, added if missing.
    fn child(&mut self, parent: u32, frame: FrameWords) -> Result<u32, Full> {
        if let Some(known) = self.nodes.find(parent, frame, &self.frames) {
            return Ok(known);
        }
        self.nodes.reserve(1)?;
        let frame = self.frames.intern(frame)?;
        Ok(self.nodes.push_new(parent, frame))
    }
}

impl<K: StackKey> Trie<K> {
    /// Counts a stack: the head, then the words from last (outermost) to first (leaf).
    ///
    /// Without words the head itself is the leaf. Weight 0 adds the stack without counting it. Two different
    /// stacks are mistaken for one with probability 2^-64 at most, mostly 2^-96.
    ///
    /// # Errors
    /// [`Full`] if the stack is new and does not fit.
    #[inline]
    pub fn insert(&mut self, head: K::Head, leaf_first: &[K::Word], weight: u64) -> Result<NodeId, Full> {
        let print = Fingerprint::of(K::bits(head), leaf_first);
        let leaf = match self.leaves.find(print) {
            Some(leaf) => {
                // Fast path: a known stack touches its leaf and no node.
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

    /// Adds a stack without a fingerprint in the table.
    #[cold]
    #[inline(never)]
    fn learn(&mut self, print: Fingerprint, head: K::Head, leaf_first: &[K::Word]) -> Result<NodeId, Full> {
        // Taken out: a refused stack must leave nothing behind here either.
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
            self.leaves.set_fingerprint(leaf, print);
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

// ---- The children of the nodes of a trie, which stores only each node's parent.
//
// Memory is eight bytes a node; a walk has an explicit stack, because stacks of files can be deep.

/// The children of every node.
#[derive(Clone, Debug)]
pub struct Children {
    /// By node: index of its first child in `nodes`; one more at the end.
    starts: Vec<u32>,
    nodes: Vec<u32>,
}

impl Children {
    /// Builds the table from a trie's nodes.
    fn of(table: &NodeTable) -> Children {
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

// ---- Limits of a trie, and the representation of frames.

/// Limit on nodes of a trie, including the top: 200 MB of nodes. Their leaves and indexes take another 70 MB if
/// one node in ten is a leaf, 740 MB if every one is.
pub const NODES_MAX: usize = 1 << 24;

/// Limit on distinct frames of a trie: about 110 MB, and as many symbol look-ups.
pub const FRAMES_MAX: usize = 1 << 22;

/// A frame as two words, which are hashed and compared together.
pub type FrameWords = (u64, u64);

/// A stack was refused because a table has reached its limit. The trie is unchanged, and known stacks still count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Full {
    /// The stack needs more nodes than [`NODES_MAX`] allows.
    Nodes,
    /// The stack needs more frames than [`FRAMES_MAX`] allows.
    Frames,
}

impl Full {
    /// The cause, for a list of losses.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Full::Nodes => "trie full (distinct stacks)",
            Full::Frames => "trie full (distinct addresses)",
        }
    }
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Full::Nodes => write!(f, "the call-stack trie is full (NODES_MAX, {NODES_MAX} nodes)"),
            Full::Frames => write!(f, "the call-stack trie is full (FRAMES_MAX, {FRAMES_MAX} addresses)"),
        }
    }
}

impl std::error::Error for Full {}

// ---- The order in which stacks are read: by their frames from the root, independent of insertion.
//
// Memory is 12 bytes a node and the depth of one stack; walks have an explicit stack, because a target's may be
// deep.

fn for_each_stack<K: Key>(
    frames: &[FrameWords],
    nodes: &NodeTable,
    count: impl Fn(u32) -> u64,
    mut visit: impl FnMut(NodeId, &[FrameId], u64),
) {
    let rank = ranks_by(frames, K::from_words);
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
    let mut open = vec![children_of(&children, 0)];
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
        open.push(children_of(&children, id));
    }
}

/// Visits all nodes, callers before callees, in the order of the sort keys of their frames. Stacks with equal keys
/// are adjacent, as if they were one.
fn by_sort_key<K: Key, P: Ord>(
    frames: &[FrameWords],
    nodes: &NodeTable,
    sort_key: impl Fn(K) -> P,
    mut visit: impl FnMut(NodeId),
) {
    let rank = ranks_by(frames, |words| sort_key(K::from_words(words)));
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
            open.extend(
                children_of(&children, *node).iter().map(|&(_, rank, child)| (depth + 1, rank, child)),
            );
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
fn children_of(children: &[(u32, u32, u32)], parent: u32) -> &[(u32, u32, u32)] {
    let from = children.partition_point(|child| child.0 < parent);
    let rest = children.get(from..).unwrap_or_default();
    let len = rest.iter().take_while(|child| child.0 == parent).count();
    rest.get(..len).unwrap_or_default()
}
