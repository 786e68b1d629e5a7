//! Allocations of a command with the heap shim: memory that it shares with stackprof, a directory with a control
//! file and one ring of records per process, and the source that reads it.
//!
//! `directory.rs` creates and removes the directory of a recording and finds a place for the shim, `ring.rs` reads
//! records, `recorded_process.rs` reads the rings of a process, `source.rs` those of all processes several times a
//! second. What only a system can answer about a process is the trait `HeapProcess`. Processes are hostile: their
//! records are copied out, then checked. The layout is the shim's (`src/heap_shim/shared_memory.rs`).

pub mod directory;
pub(crate) mod recorded_process;
pub mod ring;
#[allow(dead_code)] // The rest is for the shim.
#[path = "../../heap_shim/shared_memory.rs"]
pub mod shared_memory;
pub(crate) mod source;
