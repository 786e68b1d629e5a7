//! Types for reading DWARF: sections in gimli's form, the budget of work that a file may cause, and why a file is not
//! read.

use std::sync::atomic::{AtomicU64, Ordering};

use gimli::{EndianSlice, LittleEndian};

/// Bytes of a section.
pub(in crate::symbol) type Slice<'a> = EndianSlice<'a, LittleEndian>;
/// The sections of a file, as gimli takes them.
pub(in crate::symbol) type Dwarf<'a> = gimli::Dwarf<Slice<'a>>;

/// Most functions at one address; the deepest seen in real programs are some fifty.
pub const MAX_INLINED: usize = 256;

/// How much text costs a step: it is searched and copied by words.
pub(super) const TEXT_BYTES_PER_STEP: u64 = 16;

/// Why something of a file was not read: it is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DwarfError {
    /// It is damaged.
    Malformed(gimli::Error),
    /// The [`Budget`] is used up.
    BudgetUsedUp,
}

impl From<gimli::Error> for DwarfError {
    fn from(error: gimli::Error) -> DwarfError {
        DwarfError::Malformed(error)
    }
}

/// What was read, or why not.
pub(super) type Result<T> = std::result::Result<T, DwarfError>;

/// What is left of the work that a file may cause.
#[derive(Clone, Copy)]
pub(super) struct Budget<'a>(pub(super) &'a AtomicU64);

impl Budget<'_> {
    /// Takes steps; [`DwarfError::BudgetUsedUp`] when there are none left.
    pub(super) fn spend(&self, steps: u64) -> Result<()> {
        let left = self.0.load(Ordering::Relaxed);
        // Threads may take the same steps: the limit is not exact, and need not be.
        self.0.store(left.saturating_sub(steps), Ordering::Relaxed);
        if left > steps { Ok(()) } else { Err(DwarfError::BudgetUsedUp) }
    }
}
