//! macOS: a process sampled through its task port.
//!
//! `kernel.rs` is the interface to the system, with `layout.rs` for the structures that it fills; `xnu.rs`
//! implements it on Apple systems, and tests provide a simulated one. Everything else uses that interface,
//! and is compiled and tested on all systems: `attach.rs` and `refusal.rs` (begin, or why not), `target.rs`
//! (order of polls, stops and `target.rs`), `task.rs` (what outlives an exec), `task.rs` (what does not),
//! `target.rs` (when to list threads), `stops.rs` and `on_cpu.rs` (the stops), `threads.rs`, `stops.rs`,
//! `state.rs`, `stack.rs` (one thread at a time), `dyld.rs`, `images.rs` and `jit.rs` (code), `threads.rs`
//! (names), `memory.rs` and `clock.rs`. `swift.rs` is the system's demangler. `heap/` has the allocations of a
//! command, for which no task port is needed.

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

pub use self::threads::MachClock;
#[cfg(unix)]
pub use heap::{why_no_allocations, with_heap_source};
pub use target::MachTarget;
