//! What a command with the heap shim and stackprof share: a directory with the shim, a control file and a ring of records
//! for each process.
//!
//! `directory.rs` makes and removes it, `ring.rs` reads records. What processes write is hostile: it is copied out, then
//! checked. The layout is that of the shim (`src/heap_shim/shared_memory.rs`).

pub mod directory;
pub mod ring;
#[allow(dead_code)] // The shim uses the rest.
#[path = "../../heap_shim/shared_memory.rs"]
pub mod shared_memory;

/// How allocations are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapOptions {
    /// Bytes per sample on average; 1 records each allocation.
    pub every_bytes: u64,
    /// Seed of the sampling; 0: by the clock.
    pub seed: u64,
}
