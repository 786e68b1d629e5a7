//! Linux: a process sampled by the kernel (perf_event_open(2)), which nobody stops for it.
//!
//! A timer in the kernel looks at what runs: the sample holds the user registers, the bytes of
//! the user stack and the frames in the kernel at one moment, so it is exact where a stop by
//! ptrace shows the thread a few microseconds later. `events.rs` says what is opened, `filter.rs`
//! which samples the kernel drops at once, `grid.rs` which come late, `record.rs` reads what it wrote, `told.rs` weighs it,
//! `window.rs` decides how much of each stack is copied, `source.rs` is the whole.

mod events;
mod filter;
mod grid;
mod mapped;
mod record;
mod registers;
mod source;
mod sys;
mod told;
mod window;

use std::ffi::OsString;
use std::io;

use libc::pid_t;

use super::{attach, launch, refusal, threads};
use crate::clock::RealClock;
use crate::error::Result;
use crate::sources::Process;
use events::{Events, How, Scope};
use window::Window;

pub(super) use source::PerfSource;

/// Why the kernel does not sample this process for us, and what to do about it: a part of a line.
pub(super) type Refused = String;

/// What became of an attempt: the source, or why not, which need not end the recording.
type Attempt = Result<std::result::Result<PerfSource, Refused>>;

/// Samples a running process.
///
/// # Errors
/// [`ErrorKind::Attach`](crate::error::ErrorKind::Attach) for what is no process to profile.
pub(super) fn attach(pid: u32, hz: u32, kernel_frames: bool, clock: RealClock) -> Attempt {
    let pid = attach::process_id(pid)?;
    refusal::check_process(pid)?;
    if let Err(error) = std::fs::read(format!("/proc/{pid}/maps")) {
        return Ok(Err(format!("/proc/{pid}/maps cannot be read: {error}")));
    }
    let events = match open(pid, hz) {
        Ok(events) => events,
        Err(refused) => return Ok(Err(refused)),
    };
    let process = describe(pid, events.how);
    let mut source = PerfSource::new(pid, process, clock, events, kernel_frames, false);
    Ok(source.enable().map(|()| source).map_err(|error| refused(&error)))
}

/// Starts a command and samples it from its first instruction on.
///
/// # Errors
/// [`ErrorKind::Attach`](crate::error::ErrorKind::Attach) when it cannot be run.
pub(super) fn launch(command: &[OsString], hz: u32, kernel_frames: bool, clock: RealClock) -> Attempt {
    let held = launch::hold(command).map_err(|error| attach::cannot_run(command, &error))?;
    let pid = held.pid;
    // If refused, `held` is dropped, and the new process ends without running the command.
    let events = match open(pid, hz) {
        Ok(events) => events,
        Err(refused) => return Ok(Err(refused)),
    };
    let how = events.how;
    let mut source = PerfSource::new(pid, describe(pid, how), clock, events, kernel_frames, true);
    if let Err(error) = source.enable() {
        return Ok(Err(refused(&error)));
    }
    let started = held.go().map_err(|error| attach::cannot_run(command, &error))?;
    started.join().map_err(|error| attach::cannot_run(command, &error))?;
    source.set_spawned(describe(pid, how));
    Ok(Ok(source))
}

fn describe(pid: pid_t, how: How) -> Process {
    let over = match how.scope {
        Scope::Cpus => "on each CPU",
        Scope::Threads => "for each thread",
    };
    let kernel = if how.kernel { "user and kernel" } else { "user code only" };
    Process {
        backend: "perf_event",
        backend_why: format!("{kernel}, {over}"),
        stops_waits_unseen: true,
        ..attach::describe(pid)
    }
}

/// Opens the best events that the system allows: of user code and the kernel on each CPU, then of
/// the threads of the process, then of user code only.
fn open(pid: pid_t, hz: u32) -> std::result::Result<Events, Refused> {
    let window_bytes = Window::new().bytes();
    let threads = threads::list(pid).map_or(1, |threads| threads.len());
    let first = events::scope_for(events::cpu_count(), threads);
    let other = if first == Scope::Cpus { Scope::Threads } else { Scope::Cpus };
    // Of the least that can be asked for: why that is refused is the reason that nothing works.
    let mut why = None;
    for (scope, kernel) in [(first, true), (other, true), (Scope::Threads, false)] {
        match Events::open(pid, How { scope, kernel, hz, window_bytes }) {
            Ok(events) => return Ok(events),
            Err(error) => why = Some(error),
        }
    }
    Err(why.map_or_else(|| "perf_event is refused".to_owned(), |error| refused(&error)))
}

/// The words for perf_event_open(2) having failed with `error`.
fn refused(error: &io::Error) -> Refused {
    let paranoid = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid");
    if events::is_limit(error) {
        return error.to_string();
    }
    match (error.raw_os_error(), paranoid) {
        (Some(libc::EACCES | libc::EPERM), Ok(level)) if level.trim().parse::<i32>().is_ok_and(|n| n > 1) => {
            let level = level.trim();
            format!(
                "perf_event refused by kernel.perf_event_paranoid {level}: sudo, or sysctl kernel.perf_event_paranoid=1"
            )
        }
        (Some(libc::EACCES | libc::EPERM), _) => {
            "perf_event refused: it is another user's process, or a container's filter forbids the call; sudo"
                .to_owned()
        }
        (Some(libc::ENOSYS | libc::ENOENT | libc::EOPNOTSUPP), _) => {
            "this kernel has no perf_event".to_owned()
        }
        (Some(libc::EMFILE), _) => "perf_event needs more open files: raise `ulimit -n`".to_owned(),
        _ => format!("perf_event failed: {}", crate::error::io_text(error)),
    }
}
