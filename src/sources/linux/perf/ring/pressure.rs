//! How full the rings were when they were read: whether the reader keeps up.

/// How full rings were when they were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Pressure {
    /// The fullest one.
    pub(in super::super) fill_per_mille: u32,
    /// Samples did not fit.
    pub(in super::super) lost: bool,
}

impl Pressure {
    /// With samples that were read ahead, per mille of those that may be.
    pub(in super::super) fn with(self, ahead_per_mille: u32) -> Pressure {
        Pressure { fill_per_mille: self.fill_per_mille.max(ahead_per_mille), ..self }
    }
}
