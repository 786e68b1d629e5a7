//! Linux: processes sampled with ptrace, or by the kernel (`perf`).
//!
//! `perf/` and `ptrace/` are these sources, `heap/` records allocations. The files beside them are shared: /proc,
//! files and images of a process, privileges, `launch.rs` for commands, `refusal.rs` for failed attaches.

mod cgroup;
mod clocks;
mod files;
pub(crate) mod heap;
mod images;
mod launch;
mod perf;
mod privileges;
mod proc;
mod process;
mod program_path;
mod ptrace;
mod refusal;
mod source;
mod sys;

use std::ffi::OsStr;
use std::sync::Arc;

use crate::clock::RealClock;
use crate::error::{Error, ErrorKind, Result};
use crate::sources::{
    CallThread, HeapOptions, Observed, ProcessSelection, Role, SampleSource, Sampling, SamplingMethod,
    Target, signals,
};
use launch::{RequestsEnd, Spawner};
use ptrace::Tracer;

pub use heap::{ProbeOptions, why_no_allocations};
pub use launch::{Account, Launch, account, is_root};
#[cfg(test)]
pub(crate) use perf::SimKernel;
pub(super) use privileges::read_as;
pub use privileges::{restrict, restrict_to_symbolizing, set_caller};
pub use proc::{check_process, processes, remember_process};
pub use ptrace::LinuxTarget;
pub use refusal::{gains_rights, why_it_is_frozen, why_not_running, why_still_not_running};
pub use source::Source;

/// Prepares this process for tracing. Must be called in the main thread before others start, since they
/// inherit the signal mask: only the tracer may receive SIGCHLD. Must also precede other changes of signals:
/// a parent may have set SIGCHLD to be ignored, and then the exit status of a command could not be read.
pub fn prepare() {
    launch::inherit(sys::raise_file_limit());
    sys::heed_child_signal();
    ptrace::block_signal();
}

/// Attaches or launches and runs `body` with the target, in a separate thread. On return, every thread of the
/// target runs and is no longer traced.
///
/// # Errors
/// [`ErrorKind::Attach`] if refused, with the reason and the next step; [`ErrorKind::System`] if `body`
/// panicked.
pub fn with_target<R: Send>(
    source: &Source,
    clock: RealClock,
    body: impl FnOnce(&mut LinuxTarget) -> R + Send,
) -> Result<R> {
    let _hold = signals::Hold::new();
    refusal::check_open_files(source)?;
    in_thread(move |spawner| {
        let mut target = trace(source, false, clock, &spawner)?;
        set_targets(source, target.process().pid);
        spawner.finish();
        Ok(body(&mut target))
    })
}

/// Attaches or launches, and runs `body` with a source at this rate: with kernel samples, in a separate
/// thread; or with a target that stops threads, in the thread that the target requires
/// ([`Target::call_thread`]).
///
/// # Errors
/// Those of [`with_target`]; and if the kernel refuses the method that `sampling` requests.
pub fn with_source<R: Send>(
    source: &Source,
    sampling: Sampling,
    clock: RealClock,
    body: impl FnOnce(SampleSource<'_>) -> R + Send,
) -> Result<R> {
    let Sampling { method, off_cpu, children, .. } = sampling;
    refusal::check_open_files(source)?;
    let by_kernel = in_thread(|spawner| {
        signals::note_sampler();
        match by_kernel(source, &sampling, &clock, &spawner) {
            Ok(mut sampled) => {
                set_targets(source, sampled.process().pid);
                spawner.finish();
                Ok(Ok(body(SampleSource::Pushed(&mut sampled))))
            }
            Err(perf::OpenFailure::Refused(why)) => Ok(Err((why, body))),
            Err(perf::OpenFailure::Failed(error)) => Err(error),
        }
    })?;
    let (why, body) = match by_kernel {
        Ok(result) => return Ok(result),
        Err(refused) => refused,
    };
    let refused = |why: String| Err(Error::new(ErrorKind::Attach, why));
    match source {
        _ if method == SamplingMethod::Perf => {
            return refused(format!("cannot sample by --source perf: {why}"));
        }
        _ if off_cpu => return refused(format!("--off-cpu is recorded by perf_event only: {why}")),
        Source::Several(chosen) if !chosen.is_listed() => {
            return refused(format!("a part of the machine can be recorded by perf_event only: {why}"));
        }
        _ => {}
    }
    refusal::check_trace(source, (method == SamplingMethod::Auto).then_some(&why))?;
    let tracer = Arc::new(Tracer::start()?);
    unless_panic(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        // This thread forks commands.
        let (spawner, requests) = launch::spawner();
        let begin = move || trace(source, children, clock, &spawner);
        let mut target = tracer.call_while(begin, || _ = requests.serve())?;
        set_targets(source, target.process().pid);
        let mut readable = Ok(());
        tracer.call(&mut || {
            let _ = privileges::restrict(Role::SamplingByPtrace);
            readable = check_targets(true);
        });
        target.chosen_because(why);
        target.set_tracer(Arc::clone(&tracer));
        let pid = target.process().pid;
        let result = match readable {
            Ok(()) => Ok(body(SampleSource::Stopped(&mut target))),
            Err(error) if matches!(source, Source::Launch(_)) => {
                Err(Error::new(error.kind(), format!("{error}; the command runs on as pid {pid}")))
            }
            Err(error) => Err(error),
        };
        tracer.call(&mut || target.release());
        drop(target);
        // Last: from here on everything runs untraced.
        tracer.shut_down();
        result
    })))
}

/// Starts a command with the heap shim and runs `body` with its allocations, in a separate thread.
///
/// # Errors
/// [`ErrorKind::Attach`] if it cannot be run, [`ErrorKind::System`] if the shim cannot be stored anywhere.
pub fn with_heap_source<R: Send>(
    command: &Launch,
    shim: &[u8],
    options: HeapOptions,
    clock: RealClock,
    body: impl FnOnce(SampleSource<'_>) -> R + Send,
) -> Result<R> {
    in_thread(|spawner| {
        signals::note_sampler();
        let mut source = heap::start(command, shim, options, clock, &spawner)?;
        privileges::set_targets(&[source.process().pid.cast_signed()], true);
        spawner.finish();
        Ok(body(SampleSource::Pushed(&mut source)))
    })
}

/// Sets probes in the allocator of a process and runs `body` with its allocations, in a separate thread.
///
/// # Errors
/// [`ErrorKind::Attach`] if the process cannot be profiled, or if the kernel refuses.
pub fn with_probed_heap<R: Send>(
    pid: u32,
    options: ProbeOptions,
    clock: RealClock,
    body: impl FnOnce(SampleSource<'_>) -> R + Send,
) -> Result<R> {
    in_thread(|spawner| {
        signals::note_sampler();
        let mut source = heap::ProbedHeap::attach(pid, options, clock)?;
        privileges::set_targets(&[pid.cast_signed()], false);
        spawner.finish();
        Ok(body(SampleSource::Pushed(&mut source)))
    })
}

/// Sets whom the sampler must still be able to read when it has given up privileges. `main`: the one process of the
/// source, or 0.
fn set_targets(source: &Source, main: u32) {
    let pids = match source {
        Source::Several(chosen) if !chosen.is_listed() => &[][..],
        Source::Several(chosen) => &chosen.pids,
        Source::Attach(_) | Source::Launch(_) => std::slice::from_ref(&main),
    };
    let pids: Vec<_> = pids.iter().map(|pid| pid.cast_signed()).collect();
    privileges::set_targets(&pids, matches!(source, Source::Launch(_)));
}

/// Checks that the calling thread, in a sampling role, can still read what is to be sampled.
///
/// # Errors
/// One line: why not, and the next step.
pub fn check_readable() -> Result<()> {
    check_targets(false)
}

/// [`check_readable`]; `by_calls`: also their memory by process_vm_readv(2).
fn check_targets(by_calls: bool) -> Result<()> {
    let privileges::Targets { pids, are_launched, .. } = privileges::targets();
    pids.iter().try_for_each(|pid| refusal::check_readable(*pid, are_launched, by_calls))
}

/// The kernel's sampling source, or why there is none.
fn by_kernel(
    source: &Source,
    sampling: &Sampling,
    clock: &RealClock,
    spawner: &Spawner,
) -> std::result::Result<perf::PerfSource, perf::OpenFailure> {
    let children = sampling.children;
    match source {
        _ if sampling.method == SamplingMethod::Ptrace => {
            Err(perf::OpenFailure::Refused("--source ptrace".to_owned()))
        }
        Source::Attach(pid) => {
            let chosen = ProcessSelection { pids: vec![*pid], children, ..ProcessSelection::default() };
            perf::attach(&chosen, sampling, clock.clone())
        }
        Source::Several(chosen) => {
            let chosen = ProcessSelection { children, ..chosen.clone() };
            perf::attach(&chosen, sampling, clock.clone())
        }
        Source::Launch(launch) => perf::launch(launch, sampling, clock.clone(), spawner),
    }
}

fn trace(source: &Source, children: bool, clock: RealClock, spawner: &Spawner) -> Result<LinuxTarget> {
    let target = match source {
        Source::Attach(pid) => ptrace::attach(&[*pid], children, clock)?,
        Source::Launch(launch) => ptrace::launch(launch, children, clock, spawner)?,
        Source::Several(chosen) => ptrace::attach(&chosen.pids, children, clock)?,
    };
    sys::prefer_this_thread();
    Ok(target)
}

/// Runs `body` in a separate thread. The calling thread forks commands for it.
fn in_thread<R: Send>(body: impl FnOnce(Spawner) -> Result<R> + Send) -> Result<R> {
    std::thread::scope(|scope| {
        let (spawner, requests) = launch::spawner();
        let thread = std::thread::Builder::new().name("sampler".to_owned());
        let thread = thread.spawn_scoped(scope, move || body(spawner));
        let thread = thread.map_err(|error| {
            Error::new(ErrorKind::System, format!("cannot start a thread: {}", crate::error::io_text(&error)))
        })?;
        if requests.serve() == RequestsEnd::All {
            // A launched command has all privileges that this process was started with.
            let _ = privileges::restrict(Role::Waiting);
        }
        unless_panic(thread.join())
    })
}

/// The result of a thread that may have panicked.
fn unless_panic<R>(result: std::thread::Result<Result<R>>) -> Result<R> {
    result.unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<&str>().map(|said| (*said).to_owned());
        let said = said.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        Err(Error::new(
            ErrorKind::System,
            format!("internal error, please report it: {said}; the target was released and still runs"),
        ))
    })
}

/// Returns the id of a user, given by name or number.
///
/// # Errors
/// One line: the user does not exist.
pub fn user_id(name: &OsStr) -> Result<u32> {
    let number = || name.to_str()?.parse().ok();
    sys::user_id(name).or_else(number).ok_or_else(|| {
        let why = format!("--user `{}`: there is no such user; `getent passwd` lists them", name.display());
        Error::new(ErrorKind::Attach, why)
    })
}

/// Starts an untraced command with this process's original settings.
///
/// # Errors
/// It could not be run.
pub(super) fn spawn(command: &mut std::process::Command) -> std::io::Result<std::process::Child> {
    launch::spawn(command)
}

/// Makes the calling thread run before others when it wakes, and its timers fire on time.
pub(super) fn prefer_this_thread() {
    sys::prefer_this_thread();
}

pub use cgroup::{of_container as cgroup_of_container, path as cgroup_path};

/// Resident bytes of this process: private memory, and mapped files; `None` if not reported.
#[must_use]
pub fn own_memory() -> (Option<u64>, Option<u64>) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    (proc::status_bytes(&status, "RssAnon"), proc::status_bytes(&status, "RssFile"))
}

/// CPU time of this process in nanoseconds, and its peak resident memory in bytes.
#[must_use]
pub fn own_usage() -> (u64, u64) {
    let (cpu_ns, most_bytes) = sys::own_usage();
    // getrusage(2) includes the peak before `exec`: that of the parent's copy.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    (cpu_ns, proc::status_bytes(&status, "VmHWM").unwrap_or(most_bytes))
}
