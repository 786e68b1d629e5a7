//! A command with allocations sampled by the heap shim, which its environment loads, and the processes that it starts.
//!
//! No process is stopped: the shim writes records into files, which `crate::sources::heap` reads; images are read from
//! /proc, or from the copies that the shim makes (`process.rs`). For a running process, `probed_heap.rs` reports the
//! allocations sampled by probes.

mod load_method;
mod own_allocator;
mod probed_heap;
mod process;
mod reasons;
mod survivors;
mod without_shim;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use super::files::TargetFiles;
use super::launch::{Launch, Spawner};
use super::{describe, launch};
use crate::clock::RealClock;
use crate::error::Result;
use crate::sources::Process;
use crate::sources::heap::HeapOptions;
use crate::sources::heap::directory::Directory;
use crate::sources::heap::source::HeapSource;
use crate::sources::signals::{self, Phase};
pub use probed_heap::ProbeOptions;
pub(super) use probed_heap::ProbedHeap;
pub(in crate::sources) use process::LinuxProcess;
pub use reasons::why_no_allocations;

/// Starts a command with the shim.
///
/// # Errors
/// [`ErrorKind::Attach`](crate::error::ErrorKind::Attach) if it cannot be run,
/// [`ErrorKind::System`](crate::error::ErrorKind::System) if there is no place for the shim.
pub(super) fn start(
    command: &Launch,
    shim: &[u8],
    options: HeapOptions,
    clock: RealClock,
    spawner: &Spawner,
) -> Result<HeapSource<LinuxProcess>> {
    let directory = Directory::make(shim, options)?;
    let mut environment = directory.environment();
    environment.push(sanitizer_options(std::env::var_os(SANITIZER_VARIABLE)));
    let command = Launch { environment, ..command.clone() };
    let cannot_run = |error: std::io::Error| describe::cannot_run(&command, &error);
    let held = launch::hold(spawner, &command).map_err(cannot_run)?;
    let pid = held.pid;
    let files = Arc::new(TargetFiles::of(pid));
    signals::enter(Phase::Launch);
    held.go().map_err(cannot_run)?.join().map_err(cannot_run)?;
    let process = Process {
        backend: "heap",
        backend_why: format!("one allocation in {} bytes, by a library that it loads", options.every_bytes),
        stops_interrupt_syscalls: false,
        // Not the name that it has now: it may run another program already.
        name: command.words.first().map(|program| command_name(program)).unwrap_or_default(),
        ..describe::describe(pid)
    };
    Ok(HeapSource::new(directory, options, LinuxProcess::new(pid, process, files), clock))
}

const SANITIZER_VARIABLE: &str = "ASAN_OPTIONS";

/// AddressSanitizer wants to be the first library and ends the program otherwise; after the shim it works all the same.
fn sanitizer_options(given: Option<OsString>) -> (OsString, OsString) {
    let mut options = given.filter(|given| !given.is_empty()).map_or_else(OsString::new, |mut given| {
        given.push(":");
        given
    });
    options.push("verify_asan_link_order=0");
    (SANITIZER_VARIABLE.into(), options)
}

/// The name that the kernel gives to a process that runs this program: the first 15 bytes of the file's name
/// (`TASK_COMM_LEN`, `__set_task_comm` in fs/exec.c).
fn command_name(program: &OsStr) -> String {
    let file = Path::new(program).file_name().unwrap_or(program).as_bytes();
    String::from_utf8_lossy(&file[..file.len().min(15)]).into_owned()
}

/// A process of tests.
#[cfg(test)]
pub(in crate::sources) fn process_of(pid: u32) -> LinuxProcess {
    let pid = pid.cast_signed();
    LinuxProcess::new(pid, describe::describe(pid), Arc::new(TargetFiles::of(pid)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_a_sanitizer_are_kept() {
        for (given, expected) in [
            (None, "verify_asan_link_order=0"),
            (Some(""), "verify_asan_link_order=0"),
            (Some("detect_leaks=0"), "detect_leaks=0:verify_asan_link_order=0"),
        ] {
            let (name, options) = sanitizer_options(given.map(OsString::from));
            assert_eq!((name.to_str(), options.to_str()), (Some("ASAN_OPTIONS"), Some(expected)));
        }
    }
}
