//! The hashed call-stack trie: one node per distinct (parent, frame), counts on the node.
//!
//! Memory grows with distinct stacks, not with time. A stack seen before is found by
//! one hash of the whole stack and costs no walk. No strings, no OS, no clock.

/// A node of the trie. `NodeId(0)` is the top, the parent of every root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// A distinct frame: an index into the trie's frame table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameId(pub u32);

/// A frame as the trie tells it apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Frame {
    /// The outermost frame of a family of stacks (a thread; complete or torn stacks).
    /// The number's meaning belongs to the profile.
    Root(u32),
    /// Code: a look-up address in one of the target's address spaces over time
    /// (a new space begins when an image is unmapped or replaced, or at `exec`).
    Code {
        /// Number of the address space.
        space: u32,
        /// Look-up address (Avma; a return address minus one).
        address: u64,
    },
}

/// The trie.
#[derive(Debug, Default)]
pub struct Trie {}
