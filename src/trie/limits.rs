//! Limits of a trie, and the representation of frames.

use std::fmt;

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
    /// Text for the summary's list of losses.
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
