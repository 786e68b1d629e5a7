//! Fill levels of the rings when read: whether the reader keeps up.

/// Fill levels of rings when read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::sources::linux::perf) struct Pressure {
    /// The fullest ring.
    pub(in crate::sources::linux::perf) fill_per_mille: u32,
    /// Whether samples did not fit.
    pub(in crate::sources::linux::perf) lost: bool,
}

impl Pressure {
    /// Includes samples read ahead, per mille of their limit.
    pub(in crate::sources::linux::perf) fn with(self, ahead_per_mille: u32) -> Pressure {
        Pressure { fill_per_mille: self.fill_per_mille.max(ahead_per_mille), ..self }
    }
}
