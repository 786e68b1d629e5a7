//! How much a trie holds, and what a frame is to it.

use std::fmt;

/// Most nodes of a trie, the top included: 200 MB of nodes. Their leaves and indexes take
/// 70 MB beside them when one node in ten is a leaf, 740 MB when every one is.
pub const MAX_NODES: usize = 1 << 24;

/// Most distinct frames of a trie: about 110 MB, and as many symbol look-ups.
pub const MAX_FRAMES: usize = 1 << 22;

/// A frame in two words, which are hashed and compared at once.
pub type FrameWords = (u64, u64);

/// A stack was refused because a table has reached its limit. The trie is as it was
/// before, and stacks that it knows still count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Full {
    /// The stack needs more nodes than [`MAX_NODES`] leaves.
    Nodes,
    /// The stack needs more frames than [`MAX_FRAMES`] leaves.
    Frames,
}

impl Full {
    /// Words for the summary's list of what was lost.
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
            Full::Nodes => write!(f, "the call-stack trie is full (MAX_NODES, {MAX_NODES} nodes)"),
            Full::Frames => write!(f, "the call-stack trie is full (MAX_FRAMES, {MAX_FRAMES} addresses)"),
        }
    }
}

impl std::error::Error for Full {}
