//! A command with allocations sampled by the heap shim, which dyld inserts, and the processes that it starts.
//!
//! Needs no right to a task: the shim writes records and image lists into files, which `crate::sources::heap` reads.
//! `process.rs` answers what that asks of a process, `image_list.rs` reads the list, `reasons.rs` says why a program
//! cannot be recorded.

mod image_list;
mod process;
mod reasons;

use std::ffi::OsString;

use super::attach::{SuspendedChild, describe};
use super::kernel::MachKernel;
use super::refusal::Facts;
use crate::clock::RealClock;
use crate::error::Result;
use crate::sources::heap::HeapOptions;
use crate::sources::heap::directory::Directory;
use crate::sources::heap::source::HeapSource;
use crate::sources::{Process, SampleSource, signals};
use process::MacProcess;
pub use reasons::why_no_allocations;

/// Starts a command with the heap shim and runs `body` with its allocations.
///
/// # Errors
/// [`ErrorKind::Attach`](crate::error::ErrorKind::Attach) if it cannot be run or recorded,
/// [`ErrorKind::System`](crate::error::ErrorKind::System) if the shim cannot be stored anywhere.
pub fn with_heap_source<R>(
    kernel: &dyn MachKernel,
    command: &[OsString],
    shim: &[u8],
    options: HeapOptions,
    clock: RealClock,
    body: impl FnOnce(SampleSource<'_>) -> R,
) -> Result<R> {
    command.first().map_or(Ok(()), |program| reasons::check(kernel.arch(), program))?;
    let directory = Directory::make(shim, options)?;
    // This process must not be suspended while the command waits for it.
    let hold = signals::Hold::new();
    let mut child = SuspendedChild::start(kernel, command, &directory.environment())?;
    let pid = child.number();
    let process = Process {
        backend: "heap",
        backend_why: format!("one allocation in {} bytes, by a library that it loads", options.every_bytes),
        stops_hold_all: false,
        ..describe(kernel, &Facts::of(kernel, pid, true))
    };
    let signed = kernel.code_signing_flags(pid).unwrap_or(0);
    signals::enter(signals::Phase::Launch);
    child.go()?;
    drop(hold);
    let main = MacProcess::new(kernel, process, signed);
    let mut source = HeapSource::new(directory, options, main, clock);
    Ok(body(SampleSource::Pushed(&mut source)))
}
