//! Linux: processes sampled through ptrace, or by the kernel (`perf`).
//!
//! PTRACE_SEIZE once, then for each sample PTRACE_INTERRUPT, wait, PTRACE_GETREGSET,
//! process_vm_readv, PTRACE_CONT. Whether a thread ran is read from /proc, so a thread
//! that waits is never touched; whether it was on a CPU when it was asked to stop tells
//! `on_cpu.rs`. `trace.rs` is the loop over stops and signals, `standing.rs` one stop, `follow.rs` keeps up with threads and
//! processes that come and go, `traced.rs` is one of the processes, `attach.rs`
//! and `launch.rs` are the two beginnings, `refusal.rs` says why attaching failed.
//!
//! Only the thread that seized may make ptrace calls, and when it ends the kernel
//! releases everything without a stop (no EINTR, no register touched). So a target lives
//! in a thread of its own ([`with_target`]), which ends with it — also by panic.

mod attach;
mod cgroup;
mod files;
mod follow;
mod images;
mod launch;
mod on_cpu;
mod own;
mod perf;
mod privileges;
mod proc;
mod refusal;
mod registers;
mod standing;
mod sys;
mod threads;
mod trace;
mod traced;

use std::ffi::{OsStr, OsString};

use crate::clock::RealClock;
use crate::error::{Error, ErrorKind, Result};
use crate::sources::{Chosen, Recordable, Role, Sampling, Way};

pub use privileges::{restrict, restrict_to_naming, run_unprivileged, set_caller};
pub use trace::LinuxTarget;

/// Which process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A running one, by process id.
    Attach(u32),
    /// A new one: program and arguments.
    Launch(Vec<OsString>),
    /// Running ones, of which there may be more later.
    Several(Chosen),
}

/// Prepares this process for tracing; call it from the first thread before others start,
/// since they inherit the signal mask: the tracer waits for these signals and nobody else
/// may take them.
pub fn prepare() {
    launch::inherit(sys::block_signals(&trace::SIGNALS), sys::raise_file_limit());
}

/// Attaches or launches and runs `body` with the target, in a thread of its own. When
/// this returns, every thread of the target runs and is no longer traced.
///
/// # Errors
/// [`ErrorKind::Attach`] when it was refused, with the reason and the next step;
/// [`ErrorKind::System`] when `body` panicked.
pub fn with_target<R: Send>(
    source: &Source,
    clock: RealClock,
    body: impl FnOnce(&mut LinuxTarget) -> R + Send,
) -> Result<R> {
    in_thread(move || {
        let mut target = trace(source, false, clock)?;
        Ok(body(&mut target))
    })
}

/// Attaches or launches and runs `body` with what samples the process at this rate, in a thread of
/// its own: with what the kernel samples, or with a target whose threads are stopped.
///
/// # Errors
/// As [`with_target`]; and where `way` asks for what the kernel refuses.
pub fn with_source<R: Send>(
    source: &Source,
    sampling: Sampling,
    clock: RealClock,
    body: impl FnOnce(Recordable<'_>) -> R + Send,
) -> Result<R> {
    in_thread(move || {
        let Sampling { way, off_cpu, children, .. } = sampling;
        let by_kernel = match way {
            Way::Ptrace => Err("--source ptrace".to_owned()),
            Way::Auto | Way::Perf => match source {
                Source::Attach(pid) => {
                    let chosen = Chosen { pids: vec![*pid], children, ..Chosen::default() };
                    perf::attach(&chosen, &sampling, clock.clone())?
                }
                Source::Several(chosen) => {
                    let chosen = Chosen { children, ..chosen.clone() };
                    perf::attach(&chosen, &sampling, clock.clone())?
                }
                Source::Launch(command) => perf::launch(command, &sampling, clock.clone())?,
            },
        };
        match by_kernel {
            Ok(mut source) => Ok(body(Recordable::Pushed(&mut source))),
            Err(why) if way == Way::Perf => {
                Err(Error::new(ErrorKind::Attach, format!("cannot sample by --source perf: {why}")))
            }
            Err(why) if off_cpu => {
                Err(Error::new(ErrorKind::Attach, format!("--off-cpu is recorded by perf_event only: {why}")))
            }
            Err(why) => match source {
                Source::Several(chosen) if !chosen.is_listed() => {
                    let why = format!("a part of the machine can be recorded by perf_event only: {why}");
                    Err(Error::new(ErrorKind::Attach, why))
                }
                _ => {
                    let mut target = trace(source, children, clock)?;
                    target.chosen_because(why);
                    Ok(body(Recordable::Stopped(&mut target)))
                }
            },
        }
    })
}

fn trace(source: &Source, children: bool, clock: RealClock) -> Result<LinuxTarget> {
    let target = match source {
        Source::Attach(pid) => attach::attach(&[*pid], children, clock)?,
        Source::Launch(command) => attach::launch(command, children, clock)?,
        Source::Several(chosen) => attach::attach(&chosen.pids, children, clock)?,
    };
    // Not sooner: a launched command inherits the priority of the thread that starts it.
    sys::prefer_this_thread();
    Ok(target)
}

fn in_thread<R: Send>(body: impl FnOnce() -> Result<R> + Send) -> Result<R> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("sampler".to_owned()).spawn_scoped(scope, body);
        let thread = thread.map_err(|error| {
            Error::new(ErrorKind::System, format!("cannot start a thread: {}", crate::error::io_text(&error)))
        })?;
        // The thread that was just started has all privileges, and what it launches gets them.
        let _ = privileges::restrict(Role::Waiting);
        thread.join().unwrap_or_else(|panic| {
            let said = panic.downcast_ref::<&str>().map(|said| (*said).to_owned());
            let said = said.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            Err(Error::new(
                ErrorKind::System,
                format!("internal error, please report it: {said}; the target was let go and runs on"),
            ))
        })
    })
}

/// The number of a user, by name or as it stands.
///
/// # Errors
/// One line: there is none of this name.
pub fn user_id(name: &OsStr) -> Result<u32> {
    let number = || name.to_str()?.parse().ok();
    sys::user_id(name).or_else(number).ok_or_else(|| {
        let why = format!("--user `{}`: there is no such user; `getent passwd` lists them", name.display());
        Error::new(ErrorKind::Attach, why)
    })
}

/// Starts a command that is not traced, as this process was started.
///
/// # Errors
/// When it could not be run.
pub(super) fn spawn(command: &mut std::process::Command) -> std::io::Result<std::process::Child> {
    launch::spawn(command)
}

/// Lets the calling thread run before others when it wakes, and its timers fire on time.
pub(super) fn prefer_this_thread() {
    sys::prefer_this_thread();
}

/// Whether SIGTERM or SIGHUP came since this was asked last; [`prepare`] keeps them for that.
pub(super) fn is_asked_to_end() -> bool {
    sys::sleep_for_signal(&[libc::SIGTERM, libc::SIGHUP], std::time::Duration::ZERO).is_some()
}

pub use cgroup::{of_container as cgroup_of_container, path as cgroup_path};

/// CPU time of this process in nanoseconds, and its peak resident memory in bytes.
#[must_use]
pub fn own_usage() -> (u64, u64) {
    let (cpu_ns, most_bytes) = sys::own_usage();
    // getrusage(2) has the peak of what this process was before `exec`, too: its parent's copy.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = proc::status_value(&status, "VmHWM").and_then(|kib| kib.split(' ').next()?.parse::<u64>().ok());
    (cpu_ns, kib.map_or(most_bytes, |kib| kib * 1024))
}
