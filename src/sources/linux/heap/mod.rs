//! A command with allocations sampled by the heap shim, which its environment loads, and the processes that it
//! starts: `start` begins a recording, and `why_no_allocations` says why nothing could be recorded.
//!
//! No process is stopped: the shim writes records into files, which `crate::sources::heap` reads; images are read
//! from /proc, or from the copies that the shim makes (`process.rs`). `without_shim.rs` counts the processes that
//! run without it. For a running process, `probed_heap.rs` reports the allocations sampled by probes.

mod probed_heap;
mod process;
mod without_shim;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::{fs, io};

use super::files::TargetFiles;
use super::launch::{self, Launch, Spawner};
use super::{proc, refusal, sys};
use crate::binary::files::map_regular;
use crate::clock::RealClock;
use crate::error;
use crate::sources::heap::directory::Directory;
use crate::sources::heap::source::HeapSource;
use crate::sources::pushed::AllocationLosses;
use crate::sources::signals::{self, Phase};
use crate::sources::{HeapOptions, Process, proc_file};
use without_shim::{LoadMethod, NEXT, OwnAllocator};

pub use probed_heap::ProbeOptions;

pub(super) use probed_heap::ProbedHeap;

pub(crate) use process::AllocatingProcess;

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
) -> error::Result<HeapSource<AllocatingProcess>> {
    let directory = Directory::make(shim, options)?;
    let mut environment = directory.environment();
    environment.push(sanitizer_options(std::env::var_os(SANITIZER_VARIABLE)));
    let command = Launch { environment, ..command.clone() };
    let cannot_run = |error: std::io::Error| refusal::cannot_run(&command, &error);
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
        ..refusal::describe(pid)
    };
    Ok(HeapSource::new(directory, options, AllocatingProcess::new(pid, process, files), clock))
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
pub(crate) fn process_of(pid: u32) -> AllocatingProcess {
    let pid = pid.cast_signed();
    AllocatingProcess::new(pid, refusal::describe(pid), Arc::new(TargetFiles::of(pid)))
}

// ---- Processes of a command that run on when it has ended, by /proc.
//
// A recorded process maps files of the recording's directory, or passes its path on in its environment. One that has made
// itself undumpable (ssh-agent) shows neither: it counts if it belongs to this user and began after this process.

/// Number of other processes that have a text in their environment or among their mappings, or may have.
fn count(text: &[u8]) -> usize {
    let Ok(entries) = fs::read_dir("/proc") else { return 0 };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let own = std::process::id();
    let begun = start_time(own);
    pids.filter(|pid: &u32| *pid != own && is_survivor(*pid, text, begun)).count()
}

fn is_survivor(pid: u32, text: &[u8], begun: Option<u64>) -> bool {
    let directory = format!("/proc/{pid}");
    let found = ["environ", "maps"].map(|name| proc_file::contains(format!("{directory}/{name}"), text));
    let is_denied = |found: &io::Result<bool>| {
        found.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
    };
    if found.iter().any(|found| matches!(found, Ok(true))) {
        return true;
    }
    found.iter().any(is_denied) && is_own(&directory) && start_time(pid) > begun
}

/// Whether a process belongs to this user.
fn is_own(directory: &str) -> bool {
    let status = fs::read_to_string(format!("{directory}/status")).unwrap_or_default();
    let users = proc::status_value(&status, "Uid").unwrap_or_default();
    users.split_whitespace().next().and_then(|user| user.parse().ok()) == Some(sys::effective_uid())
}

/// When a process began, in ticks since the system's start.
fn start_time(pid: u32) -> Option<u64> {
    proc::stat_start_ticks(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}

// ---- Why the allocations of a command could not be recorded, and the next step.
//
// Input: the program's file, and the reports of its processes; output: one line for people.

/// Why no allocations of a program were recorded.
#[must_use]
pub fn why_no_allocations(program: &OsStr, losses: &AllocationLosses, every_bytes: u64) -> String {
    let shown = program.display();
    let found = refusal::find_program(program);
    if losses.still_runs && (losses.programs == 0 || losses.refused.is_empty() && losses.malformed_rings == 0)
    {
        return "the recording ended before a sample was taken; record longer, or with a smaller --every"
            .to_owned();
    }
    if losses.programs == 0 {
        return match found.as_deref().map(LoadMethod::of) {
            Some(LoadMethod::Static) if !found.as_deref().is_some_and(names_malloc) => format!(
                "`{shown}` is linked statically and names no malloc: the heap shim is loaded by the dynamic linker, and \
                 probes need that name; a runtime with an allocator of its own (Go) has a heap profiler of its own"
            ),
            Some(LoadMethod::Static) => format!(
                "`{shown}` is linked statically, and the heap shim is loaded by the dynamic linker; link it \
                 dynamically, or record it while it runs: sudo stackprof heap --pid N"
            ),
            Some(LoadMethod::OtherRights) => format!(
                "`{shown}` gains rights when it starts (setuid, setgid or file capabilities), and the dynamic linker \
                 loads nothing into such programs; run it as its owner: sudo -u OWNER stackprof heap -- {shown} ..."
            ),
            Some(LoadMethod::OtherClass) => format!(
                "`{shown}` is built for another architecture than the heap shim; record its CPU time: \
                 stackprof -- {shown} ..."
            ),
            Some(LoadMethod::Dynamic) | None => format!(
                "the heap shim was not loaded: `{shown}` clears its environment, or starts what does (env -i, sudo); \
                 record the program itself"
            ),
        };
    }
    if let Some((why, processes)) = losses.refused.first() {
        return format!("{processes} of its processes could not report what they allocate: {why}");
    }
    if let Some(why) = &losses.ended_early {
        return why.clone();
    }
    if !losses.without_shim.is_empty() {
        let counted: Vec<String> =
            losses.without_shim.iter().map(|(why, count)| format!("{count} {why}")).collect();
        return format!(
            "some of its processes ran without the heap shim, at least {}; record that program itself",
            counted.join(", ")
        );
    }
    if losses.malformed_rings > 0 {
        return "what it reported was overwritten, by the program itself or another one".to_owned();
    }
    if let Some(own) = found.as_deref().and_then(OwnAllocator::of_path) {
        return format!("`{shown}` has {} ({}): {NEXT}", own.what, own.malloc);
    }
    if let Some(unseen) = losses.unseen.first() {
        return format!("{}: {}", unseen.functions, unseen.next);
    }
    match every_bytes {
        1 => "it allocated nothing by malloc".to_owned(),
        _ => format!(
            "it allocated little, and one allocation in {every_bytes} bytes is sampled; --every 1 takes each"
        ),
    }
}

/// Whether the symbols of a program may include `malloc`, where probes are set: names of a string table share ends.
fn names_malloc(path: &Path) -> bool {
    map_regular(path).is_ok_and(|program| memchr::memmem::find(program.bytes(), b"malloc\0").is_some())
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

#[cfg(test)]
mod survivors_tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn processes_with_the_text_in_their_environment_are_counted() {
        let text = format!("stackprof-heap-of-{}", std::process::id());
        let mut sleep = std::process::Command::new("sleep");
        let mut child = sleep.arg("600").env("OF_ANY_NAME", &text).spawn().unwrap();
        while count(text.as_bytes()) == 0 {
            std::thread::yield_now();
        }
        child.kill().and_then(|()| child.wait()).unwrap();
        assert!(is_own(&format!("/proc/{}", std::process::id())));
        assert!(start_time(std::process::id()) > start_time(1));
    }
}

#[cfg(test)]
mod reasons_tests {
    use super::*;

    #[test]
    fn the_message_depends_on_the_reported_reason() {
        let losses = |programs| AllocationLosses { programs, ..AllocationLosses::default() };
        let why = |losses: &AllocationLosses| why_no_allocations(OsStr::new("/no/prog"), losses, 1 << 19);
        assert!(why(&losses(0)).starts_with("the heap shim was not loaded: `/no/prog` clears"));
        assert!(why(&losses(1)).ends_with("one allocation in 524288 bytes is sampled; --every 1 takes each"));
        let refused = AllocationLosses { refused: vec![("there is no space", 2)], ..losses(1) };
        assert_eq!(
            why(&refused),
            "2 of its processes could not report what they allocate: there is no space"
        );
        for programs in [0, 1] {
            let running = AllocationLosses { still_runs: true, ..losses(programs) };
            assert!(why(&running).starts_with("the recording ended before a sample was taken"));
        }
        let without = AllocationLosses { without_shim: vec![("linked statically", 1)], ..losses(1) };
        assert!(why(&without).contains("ran without the heap shim, at least 1 linked statically; record"));
        let other =
            AllocationLosses { ended_early: Some("it became another program".to_owned()), ..losses(1) };
        assert_eq!(why(&other), "it became another program");
    }
}
