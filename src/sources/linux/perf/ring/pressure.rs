//! How full the rings were when they were read: whether the reader keeps up.

/// How full rings were when they were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::sources::linux::perf) struct Pressure {
    /// The fullest one.
    pub(in crate::sources::linux::perf) fill_per_mille: u32,
    /// Samples did not fit.
    pub(in crate::sources::linux::perf) lost: bool,
}

impl Pressure {
    /// With samples that were read ahead, per mille of those that may be.
    pub(in crate::sources::linux::perf) fn with(self, ahead_per_mille: u32) -> Pressure {
        Pressure { fill_per_mille: self.fill_per_mille.max(ahead_per_mille), ..self }
    }
}
