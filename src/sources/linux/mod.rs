//! Linux: processes sampled through ptrace, or by the kernel (`perf`).
//!
//! PTRACE_SEIZE once, then for each sample PTRACE_INTERRUPT, wait, PTRACE_GETREGSET,
//! process_vm_readv, PTRACE_CONT. Whether a thread ran is read from /proc, so a thread
//! that waits is never touched; whether it was on a CPU when it was asked to stop tells
//! `on_cpu.rs`. `trace.rs` is the loop over stops and signals, `standing.rs` one stop, `follow.rs` keeps up with threads and
//! processes that come and go, `traced.rs` is one of the processes, `attach.rs`
//! and `launch.rs` are the two beginnings, `refusal.rs` says why attaching failed, `resume.rs` traces again
//! after the profiler was suspended.
//!
//! Only the thread that seized may make ptrace calls, and when it ends the kernel
//! releases everything without a stop (no EINTR, no register touched). So a target is traced by
//! a thread of its own (`tracer.rs`), which ends with it, also by panic, and while the profiler is
//! suspended.

mod attach;
mod cgroup;
mod files;
mod follow;
mod images;
mod launch;
mod on_cpu;
mod own;
mod perf;
mod proc;
mod refusal;
mod registers;
mod resume;
mod standing;
mod sys;
mod threads;
mod trace;
mod traced;
mod tracer;

use std::ffi::{OsStr, OsString};
use std::sync::Arc;

use crate::clock::RealClock;
use crate::error::{Error, ErrorKind, Result};
use crate::sources::{CallThread, Chosen, Recordable, Sampling, Way, signals};
use tracer::Tracer;

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
/// since they inherit the signal mask: the tracer waits for SIGCHLD and nobody else may take it. And
/// before anything of signals is changed: a launched command gets them as they are now.
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
    let _hold = signals::Hold::new();
    in_thread(move || {
        let mut target = trace(source, false, clock)?;
        Ok(body(&mut target))
    })
}

/// Attaches or launches and runs `body` with what samples the process at this rate: with what the kernel
/// samples, in a thread of its own, or with a target whose threads are stopped, by a thread that
/// the target tells ([`Target::call_thread`](crate::sources::Target::call_thread)).
///
/// # Errors
/// As [`with_target`]; and where `way` asks for what the kernel refuses.
pub fn with_source<R: Send>(
    source: &Source,
    sampling: Sampling,
    clock: RealClock,
    body: impl FnOnce(Recordable<'_>) -> R + Send,
) -> Result<R> {
    let Sampling { way, off_cpu, children, .. } = sampling;
    let by_kernel = in_thread(|| {
        signals::note_sampler();
        Ok(match by_kernel(source, &sampling, &clock)? {
            Ok(mut source) => Ok(body(Recordable::Pushed(&mut source))),
            Err(why) => Err((why, body)),
        })
    })?;
    let (why, body) = match by_kernel {
        Ok(result) => return Ok(result),
        Err(refused) => refused,
    };
    let refused = |why: String| Err(Error::new(ErrorKind::Attach, why));
    match source {
        _ if way == Way::Perf => return refused(format!("cannot sample by --source perf: {why}")),
        _ if off_cpu => return refused(format!("--off-cpu is recorded by perf_event only: {why}")),
        Source::Several(chosen) if !chosen.is_listed() => {
            return refused(format!("a part of the machine can be recorded by perf_event only: {why}"));
        }
        _ => {}
    }
    let tracer = Arc::new(Tracer::start()?);
    unless_panic(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut target = tracer.call_for(|| trace(source, children, clock))?;
        target.chosen_because(why);
        target.set_tracer(Arc::clone(&tracer));
        let result = body(Recordable::Stopped(&mut target));
        tracer.call(&mut || target.release());
        drop(target);
        // The last of it: now everything runs, and is not traced.
        tracer.let_go();
        Ok(result)
    })))
}

/// What the kernel samples, or why it does not.
fn by_kernel(
    source: &Source,
    sampling: &Sampling,
    clock: &RealClock,
) -> Result<std::result::Result<perf::PerfSource, String>> {
    let children = sampling.children;
    match source {
        _ if sampling.way == Way::Ptrace => Ok(Err("--source ptrace".to_owned())),
        Source::Attach(pid) => {
            let chosen = Chosen { pids: vec![*pid], children, ..Chosen::default() };
            perf::attach(&chosen, sampling, clock.clone())
        }
        Source::Several(chosen) => {
            let chosen = Chosen { children, ..chosen.clone() };
            perf::attach(&chosen, sampling, clock.clone())
        }
        Source::Launch(command) => perf::launch(command, sampling, clock.clone()),
    }
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
        unless_panic(thread.join())
    })
}

/// The result of what may have panicked.
fn unless_panic<R>(result: std::thread::Result<Result<R>>) -> Result<R> {
    result.unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<&str>().map(|said| (*said).to_owned());
        let said = said.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        Err(Error::new(
            ErrorKind::System,
            format!("internal error, please report it: {said}; the target was let go and runs on"),
        ))
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
