//! What a flame graph is drawn of: frames with their weights.

/// A frame at its place in the tree. A list of them in pre-order is a tree: each is
/// followed by what it calls, one deeper than itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Frames below it; 0 for the outermost one.
    pub depth: u32,
    /// What is shown.
    pub name: &'a str,
    /// Samples in the profile that is compared with, those of all that it calls included; 0
    /// where nothing is compared.
    pub base: u64,
    /// Samples, those of all that it calls included.
    pub new: u64,
}

/// What a comparison takes for equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compared {
    /// Equal numbers of samples: two runs of the same work.
    Counts,
    /// Equal shares of the whole: two recordings of different length.
    Shares,
}
