//! macOS: a process sampled through its task port.
//!
//! `kernel.rs` is the interface to the system, with `layout.rs` for the structures that it fills; `xnu.rs`
//! implements it on Apple systems, and tests provide a simulated one. Everything else uses that interface, and is
//! compiled and tested on all systems: `attach.rs` and `refusal.rs` (begin, or why not), `target.rs` (order of
//! polls, stops and events; when to list threads), `task.rs` (a process, and its task until an exec), `threads.rs`
//! (the threads: state, registers, queue names, clock), `stops.rs` (holding the task, copying threads, which were
//! on a CPU), `memory.rs` (memory and stacks), `dyld.rs` and `images.rs` (code, JIT code included). `swift.rs` is
//! the system's demangler. `heap.rs` has the allocations of a command, for which no task port is needed.

mod attach;
mod dyld;
#[cfg(unix)]
mod heap;
mod images;
pub mod kernel;
pub mod layout;
mod memory;
mod refusal;
mod stops;
#[cfg(target_vendor = "apple")]
pub(super) mod swift;
mod target;
mod task;
mod threads;
#[cfg(target_vendor = "apple")]
pub mod xnu;

#[cfg(unix)]
pub use heap::{why_no_allocations, with_heap_source};
pub use target::MachTarget;
pub use threads::MachClock;
