//! How full the rings were when they were read: whether the reader keeps up.

/// How full rings were when they were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Pressure {
    /// The fullest one.
    pub(in super::super) fill_per_mille: u32,
    /// Samples did not fit.
    pub(in super::super) lost: bool,
}
