//! stackprof: a native sampling profiler.
//!
//! Data moves down this list only; `tests/layering.rs` checks it.
//!
//! ```text
//! target   a process: threads, stop, registers, memory, images (the OS calls)
//! sampler  ticks, which threads to stop, what was lost
//! walk     registers + stack bytes -> addresses + why the walk ended
//! trie     one node per (parent, address), counts
//! image    which image an address belongs to, and where in it
//! profile  trie + images + losses + metadata
//! symbol   once per unique address -> names
//! output   folded stacks, flame graph
//! diff     two profiles -> what changed
//! gate     several profiles a side -> a verdict
//! cli      the command line, the only module that prints
//! ```
//!
//! Not for: tracing every call, kernel stacks, or other architectures than x86_64 and aarch64.

pub mod addr;
pub mod clock;
pub mod diff;
pub mod error;
pub mod frame_rule;
pub mod gate;
pub mod image;
pub mod live;
pub mod output;
pub mod place;
pub mod profile;
pub mod registers;
pub mod rng;
pub mod sampler;
pub mod symbol;
pub mod target;
pub mod trie;
pub mod unpack;
pub mod walk;

pub mod cli;

/// How long tests take.
#[cfg(test)]
#[path = "../tests/support/cpu_time.rs"]
mod cpu_time;
