//! The tables of the trie: frames by content, nodes by key (parent and frame), leaves by the fingerprint of their
//! whole stack.
//!
//! `FrameTable`, `NodeTable` and `LeafTable` are the tables, `Fingerprint` the hash of a stack.
//!
//! Each numbers its entries from 0 without gaps and finds them by a hash of the stored content, so its index is
//! four bytes an entry. The tables enforce the limits.

use hashbrown::HashTable;

use super::{FrameWords, Full};

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

    /// Checks that `more` nodes fit.
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
    pub(super) fn set_fingerprint(&mut self, id: u32, print: Fingerprint) {
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

// ---- Hashes: a whole stack to 96 bits in one pass, and the small keys of the other tables.
//
// Seeds are fixed: a stack has the same fingerprint in every run. Not cryptographic: a target that is built to
// collide can merge its own stacks with each other, no more.

/// Digits of pi: nothing-up-my-sleeve numbers.
const PI: [u64; 11] = [
    0x243f_6a88_85a3_08d3,
    0x1319_8a2e_0370_7344,
    0xa409_3822_299f_31d0,
    0x082e_fa98_ec4e_6c89,
    0x4528_21e6_38d0_1377,
    0xbe54_66cf_34e9_0c6c,
    0xc0ac_29b7_c97c_50dd,
    0x3f84_d5b5_b547_0917,
    0x9216_d5d9_8979_fb1b,
    0xd131_0ba6_98df_b5ac,
    0x2ffd_72db_d01a_dfb7,
];

/// The fingerprint of a whole stack.
///
/// Stacks that differ in one word, or in two that are absorbed together, have different states. If the rest
/// behaves like random numbers, two different stacks share all 96 bits with probability 2^-96, and 2^-64 if they
/// differ in no more than two words. Debug builds also compare the whole path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fingerprint {
    /// Hash table key, and the first 64 bits of the comparison.
    pub(super) hash: u64,
    /// 32 more bits, from the same 128-bit state by another function.
    pub(super) check: u32,
}

/// 128 bits of state. Absorbing into a 64-bit state loses a word with probability 2^-64 before any bit of the
/// result is compared; so the state is wider than the fingerprint.
type Lane = (u64, u64);

/// Odd, so that multiplication is invertible: fractional parts of the golden ratio (Knuth, The Art of Computer
/// Programming, 6.4) and of the square root of 3.
const FACTORS: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xbb67_ae85_84ca_a73b];

/// Absorbs two words. A bijection of the state: different states never become equal by absorbing equal words,
/// however many. Recursion repeats a word a thousand times, and a step that only behaves like random numbers loses
/// the state before it.
///
/// With `u = x * f`, `v = y * g`: `l = v ^ high(u)`, `r = low(u) ^ rotl(l, 29)`. From `l` and `r` follow low(u),
/// then x, then high(u), v and y. A difference in a word is spread over 64 bits before the next word meets it,
/// which cancels it with 2^-64; without the high half, a difference in a few high bits would remain one.
#[inline(always)]
fn absorb((left, right): Lane, a: u64, b: u64) -> Lane {
    let u = u128::from(left ^ a) * u128::from(FACTORS[0]);
    let v = (right ^ b).wrapping_mul(FACTORS[1]);
    let left = v ^ (u >> 64) as u64;
    (left, u as u64 ^ left.rotate_left(29))
}

/// The middle bits of a product depend on every bit of both factors; folding puts them everywhere.
#[inline(always)]
fn fold(x: u64, y: u64) -> u64 {
    let product = u128::from(x) * u128::from(y);
    product as u64 ^ (product >> 64) as u64
}

impl Fingerprint {
    /// The fingerprint of a stack. Four independent lanes hide the latency of multiplication.
    #[inline]
    pub(super) fn of<W: Copy + Into<u64>>(head: u64, leaf_first: &[W]) -> Fingerprint {
        let mut a = (PI[0], PI[1]);
        let mut b = (PI[2], PI[3]);
        let mut c = (PI[4], PI[5]);
        let mut d = (PI[6], PI[7]);
        let (blocks, mut rest) = leaf_first.as_chunks::<8>();
        for block in blocks {
            let [w0, w1, w2, w3, w4, w5, w6, w7] = *block;
            a = absorb(a, w0.into(), w1.into());
            b = absorb(b, w2.into(), w3.into());
            c = absorb(c, w4.into(), w5.into());
            d = absorb(d, w6.into(), w7.into());
        }
        if let [w0, w1, tail @ ..] = rest {
            a = absorb(a, (*w0).into(), (*w1).into());
            rest = tail;
        }
        if let [w0, w1, tail @ ..] = rest {
            b = absorb(b, (*w0).into(), (*w1).into());
            rest = tail;
        }
        if let [w0, w1, tail @ ..] = rest {
            c = absorb(c, (*w0).into(), (*w1).into());
            rest = tail;
        }
        if let [w0] = rest {
            d = absorb(d, (*w0).into(), 0);
        }
        // Halves change sides, so that equal differences in two lanes do not cancel. The head and the length come
        // after the words: in a seed the head would be xored with the first word, and their bits would be
        // indistinguishable. The length distinguishes an odd end from one with a trailing zero.
        let ab = absorb(a, b.1, b.0);
        let cd = absorb(c, d.1 ^ head, d.0 ^ leaf_first.len() as u64);
        let (left, right) = absorb(ab, cd.1, cd.0);
        // The low bits of a product's low half and the high bits of its high half are biased; so both parts of the
        // fingerprint are folded from the whole state.
        Fingerprint {
            hash: fold(left ^ PI[8], right ^ PI[9]),
            check: fold(left.wrapping_add(right.rotate_left(32)), PI[10]) as u32,
        }
    }
}

/// Hash of a frame: equally good for the low and the high bits of either word.
#[inline]
pub(super) fn of_frame((a, b): FrameWords) -> u64 {
    fold(a ^ PI[0], b ^ PI[1])
}

/// Hash of a node's key: its parent and its frame.
#[inline]
pub(super) fn of_node(parent: u32, frame: u32) -> u64 {
    fold((u64::from(parent) << 32 | u64::from(frame)) ^ PI[4], PI[5])
}

#[cfg(test)]
mod fingerprint_tests {
    use super::*;

    /// `1 / factor` modulo 2^64, by Newton's method.
    fn inverse(factor: u64) -> u64 {
        (0..6)
            .fold(factor, |inverse, _| inverse.wrapping_mul(2u64.wrapping_sub(factor.wrapping_mul(inverse))))
    }

    #[test]
    fn the_previous_state_follows_from_the_next_one() {
        let mut lane = (PI[0], PI[1]);
        for step in 0..100_000_u64 {
            // Addresses, small numbers, zeros, all bits.
            let (a, b) = match step % 4 {
                0 => (0x5555_5555_0000 + step, 0x7fff_f7a1_0c33),
                1 => (step % 7, step % 5),
                2 => (0, 0),
                _ => (u64::MAX, u64::MAX << (step % 64)),
            };
            let (left, right) = absorb(lane, a, b);
            let x = (right ^ left.rotate_left(29)).wrapping_mul(inverse(FACTORS[0]));
            let high = ((u128::from(x) * u128::from(FACTORS[0])) >> 64) as u64;
            let y = (left ^ high).wrapping_mul(inverse(FACTORS[1]));
            assert_eq!((x ^ a, y ^ b), lane, "step {step}");
            lane = (left, right);
        }
    }
}
