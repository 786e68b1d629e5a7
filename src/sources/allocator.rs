//! Roles of allocator functions, for the sources that follow allocator calls.

/// AllocatorRole of an allocator function. Numbers are argument indices, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sources) enum AllocatorRole {
    /// Returns a block of this many bytes.
    Allocate { bytes: usize },
    /// Returns a block of this many items of a size.
    AllocateItems { count: usize, bytes: usize },
    /// Moves a block, or frees it where the size is 0.
    Reallocate { block: usize, bytes: usize },
    /// Frees a block.
    Free { block: usize },
}
