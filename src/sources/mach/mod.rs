//! macOS: a process sampled through its task port.
//!
//! `kernel.rs` is the interface to the system, with `layout.rs` for the structures that it fills; `xnu.rs`
//! implements it on Apple systems, and tests provide a simulated one. Everything else uses that interface,
//! and is compiled and tested on all systems: `attach.rs` and `refusal.rs` (begin, or why not), `task.rs`
//! (the events of a task), `polls.rs` (when to list threads), `stops.rs` (the stops), `threads.rs`,
//! `hold.rs`, `state.rs`, `stack.rs` (one thread at a time), `dyld.rs`, `images.rs` and `jit.rs` (code),
//! `queues.rs` (names), `memory.rs` and `clock.rs`. `swift.rs` is the system's demangler. `heap/` has the allocations of a
//! command, for which no task port is needed.

mod attach;
mod clock;
mod dyld;
mod files;
#[cfg(unix)]
mod heap;
mod hold;
mod images;
mod jit;
pub mod kernel;
pub mod layout;
mod memory;
mod owned_task;
mod polls;
mod queues;
mod refusal;
mod stack;
mod state;
mod stop_queue;
mod stops;
#[cfg(target_vendor = "apple")]
pub(super) mod swift;
mod task;
mod threads;
#[cfg(target_vendor = "apple")]
pub mod xnu;

use std::ffi::OsString;

use crate::error::Result;
use kernel::MachKernel;

pub use clock::MachClock;
#[cfg(unix)]
pub use heap::{why_no_allocations, with_heap_source};
pub use task::MachTarget;

impl<'k> MachTarget<'k> {
    /// Attaches to a running process without stopping it.
    ///
    /// # Errors
    /// [`ErrorKind::Attach`](crate::error::ErrorKind::Attach): why it was refused, and what to do.
    pub fn attach(kernel: &'k dyn MachKernel, pid: u32) -> Result<MachTarget<'k>> {
        attach::attach(kernel, pid)
    }

    /// Starts a command, attaches to it before its first instruction, and resumes it.
    ///
    /// # Errors
    /// [`ErrorKind::Attach`](crate::error::ErrorKind::Attach): why it could not be started or attached to; it
    /// has not run then.
    pub fn launch(kernel: &'k dyn MachKernel, command: &[OsString]) -> Result<MachTarget<'k>> {
        attach::launch(kernel, command)
    }
}
