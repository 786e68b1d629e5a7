//! The frames of saved stacks, as indexes into the profile's tables.

use crate::trie::{FrameWords, Key, StackKey};

/// A frame of a stack of a [`SavedProfile`](super::SavedProfile).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StackFrame {
    /// Root of the stack: an index into [`SavedProfile::roots`](super::SavedProfile::roots).
    Root(u32),
    /// A frame below the root: an index into [`SavedProfile::frames`](super::SavedProfile::frames).
    Frame(u32),
}

impl Key for StackFrame {
    #[inline]
    fn words(self) -> FrameWords {
        match self {
            StackFrame::Root(index) => (0, index.into()),
            StackFrame::Frame(index) => (1, index.into()),
        }
    }

    #[inline]
    fn of((kind, index): FrameWords) -> StackFrame {
        if kind == 0 { StackFrame::Root(index as u32) } else { StackFrame::Frame(index as u32) }
    }
}

impl StackKey for StackFrame {
    /// Index of the root.
    type Head = u32;
    /// Index of the frame.
    type Word = u64;

    fn head(root: u32) -> StackFrame {
        StackFrame::Root(root)
    }

    fn word(_: u32, frame: u64) -> StackFrame {
        // Indexes are 32 bits; no table has an item with the last one.
        StackFrame::Frame(u32::try_from(frame).unwrap_or(u32::MAX))
    }

    fn bits(root: u32) -> u64 {
        root.into()
    }
}
