//! Error for a table of a profile that is full.

use std::fmt;

use crate::trie;

/// A table of a saved profile has reached its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    /// The kind of items that do not fit.
    pub what: &'static str,
    /// The limit.
    pub limit: usize,
}

impl From<trie::Full> for Full {
    fn from(full: trie::Full) -> Full {
        match full {
            trie::Full::Nodes => Full { what: "nodes of distinct stacks", limit: trie::NODES_MAX },
            trie::Full::Frames => Full { what: "distinct frames", limit: trie::FRAMES_MAX },
        }
    }
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the profile is too large: more than {} {}", self.limit, self.what)
    }
}

impl std::error::Error for Full {}
