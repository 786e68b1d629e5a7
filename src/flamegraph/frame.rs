//! Input of a flame graph: frames with their weights.

/// A frame at its place in the tree. A list of them in pre-order is a tree: each is followed by its
/// callees, which are one deeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Distance from the outermost frame, which has 0.
    pub depth: u32,
    /// The displayed name.
    pub name: &'a str,
    /// Total samples in the baseline profile; 0 without a comparison.
    pub base: u64,
    /// Total samples in the profile.
    pub new: u64,
}

/// The quantity that a comparison treats as equal on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compared {
    /// Equal numbers of samples: two runs of the same work.
    Counts,
    /// Equal shares of the whole: two recordings of different length.
    Shares,
}
