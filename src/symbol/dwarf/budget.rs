//! Types for reading DWARF: sections in gimli's form, the budget of work that a file may cause, and the error
//! type.

use std::sync::atomic::{AtomicU64, Ordering};

use gimli::{EndianSlice, LittleEndian};

/// Bytes of a section.
pub(in crate::symbol) type Slice<'a> = EndianSlice<'a, LittleEndian>;
/// The sections of a file in gimli's form.
pub(in crate::symbol) type Dwarf<'a> = gimli::Dwarf<Slice<'a>>;

/// Limit on functions at one address; the deepest in real programs are some fifty.
pub const INLINED_MAX: usize = 256;

/// Bytes of text per step: it is searched and copied by words.
pub(super) const TEXT_BYTES_PER_STEP: u64 = 16;

/// The reason why a part of a file was skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DwarfError {
    /// Malformed data.
    Malformed(gimli::Error),
    /// The [`Budget`] is spent.
    BudgetUsedUp,
}

impl From<gimli::Error> for DwarfError {
    fn from(error: gimli::Error) -> DwarfError {
        DwarfError::Malformed(error)
    }
}

/// Data read, or the reason why not.
pub(super) type Result<T> = std::result::Result<T, DwarfError>;

/// The remaining work that a file may cause.
#[derive(Clone, Copy)]
pub(super) struct Budget<'a>(pub(super) &'a AtomicU64);

impl Budget<'_> {
    /// Spends steps; [`DwarfError::BudgetUsedUp`] if none are left.
    pub(super) fn spend(&self, steps: u64) -> Result<()> {
        let left = self.0.load(Ordering::Relaxed);
        // Threads may spend the same steps: the limit need not be exact.
        self.0.store(left.saturating_sub(steps), Ordering::Relaxed);
        if left > steps { Ok(()) } else { Err(DwarfError::BudgetUsedUp) }
    }
}
