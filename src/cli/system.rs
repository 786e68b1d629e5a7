//! Chooses the backend that samples processes on this system.

use std::ffi::OsString;

use super::args::ProcessArguments;
use super::file::OutputFiles;
use super::stats::Memory;
use crate::clock::Clock;
use crate::error::Result;
#[cfg(not(target_os = "linux"))]
use crate::sources::SamplingMethod;
use crate::sources::{ExitStatus, HeapOptions, Role, SampleSource, Sampling, Target, process_name};

/// The process to sample.
pub(super) enum Process {
    /// A running one, by process id.
    Running(u32),
    /// A new one: program and arguments, and the user to run it as if another.
    New { words: Vec<OsString>, user: Option<OsString> },
    /// Several running ones.
    Several(ProcessArguments),
}

/// Whether the system runs 32-bit Arm programs that stackprof can record without a stub.
pub(super) const RUNS_ARM: bool = cfg!(all(target_os = "linux", target_arch = "aarch64"));

/// Prepares this process; called before other threads start.
pub(super) fn prepare() {
    #[cfg(target_os = "linux")]
    crate::sources::linux::prepare();
}

/// Reports the user that called sudo; called before the first thread starts.
pub(super) fn set_caller() {
    #[cfg(target_os = "linux")]
    crate::sources::linux::set_caller();
}

/// Drops the privileges that the calling thread needs neither in this role nor in later ones. No effect on systems
/// without capabilities.
pub(super) fn restrict(role: Role) {
    #[cfg(target_os = "linux")]
    note_failure(crate::sources::linux::restrict(role));
    #[cfg(not(target_os = "linux"))]
    let _ = role;
}

/// Drops the privileges that a sampler does not need in this role, and checks that it can still read its targets.
///
/// # Errors
/// One line: a target cannot be read, and the next step.
pub(super) fn restrict_sampler(role: Role) -> Result<()> {
    restrict(role);
    #[cfg(target_os = "linux")]
    if matches!(role, Role::SamplingByKernel | Role::SamplingByPtrace) {
        crate::sources::linux::check_readable()?;
    }
    Ok(())
}

/// Drops all privileges except those for reading program files and profiles and for writing these outputs; under
/// sudo, the calling thread switches to the user who called it, if that user may write all outputs.
pub(super) fn restrict_to_symbolizing(outputs: &OutputFiles) {
    #[cfg(target_os = "linux")]
    note_failure(crate::sources::linux::restrict_to_symbolizing(outputs.are_callers()));
    #[cfg(not(target_os = "linux"))]
    let _ = outputs;
}

#[cfg(target_os = "linux")]
fn note_failure(done: std::io::Result<()>) {
    if let Err(error) = done {
        let why = crate::error::io_text(&error);
        super::messages::note(&format!(
            "privileges could not be given up: {why}; a filter of this container forbids it"
        ));
    }
}

#[cfg(target_os = "linux")]
fn linux_source(process: &Process) -> Result<crate::sources::linux::Source> {
    use crate::sources::linux::{self, Source};
    Ok(match process {
        Process::Running(pid) => Source::Attach(*pid),
        Process::New { words, user } => {
            let account = user.as_deref().map(linux::account).transpose()?;
            Source::Launch(linux::Launch { words: words.clone(), account, environment: Vec::new() })
        }
        Process::Several(several) => Source::Several(linux_chosen(several)?),
    })
}

/// Checks, once they are attached to, that processes are those that were looked up.
///
/// # Errors
/// One line: which one is not.
#[cfg(target_os = "linux")]
fn check_processes(process: &Process) -> Result<()> {
    let pids = match process {
        Process::Running(pid) => std::slice::from_ref(pid),
        Process::New { .. } => &[],
        Process::Several(several) => &several.pids[..],
    };
    pids.iter().try_for_each(|pid| crate::sources::linux::check_process(*pid))
}

/// Resolves the selection to the system's ids.
///
/// # Errors
/// One line: no such user, control group or container.
#[cfg(target_os = "linux")]
fn linux_chosen(several: &ProcessArguments) -> Result<crate::sources::ProcessSelection> {
    use crate::sources::linux::{cgroup_of_container, cgroup_path, user_id};
    let ProcessArguments { pids, all, cgroup, container, user } = several;
    let by_path = cgroup.as_ref().map(|path| cgroup_path(path)).transpose()?;
    let by_container = container.as_ref().map(|id| cgroup_of_container(id)).transpose()?;
    Ok(crate::sources::ProcessSelection {
        pids: pids.clone(),
        all: *all,
        cgroup: by_path.or(by_container),
        uid: user.as_ref().map(|name| user_id(name)).transpose()?,
        children: false,
    })
}

/// Attaches or launches, and runs `body` with the sample source and its clock.
///
/// # Errors
/// One line: why it was refused, and the next step.
#[cfg(target_os = "linux")]
pub(super) fn with_source<R: Send>(
    process: &Process,
    sampling: Sampling,
    body: impl FnOnce(SampleSource<'_>, &dyn Clock) -> R + Send,
) -> Result<R> {
    use crate::sources::linux;
    let clock = crate::clock::RealClock::new();
    linux::with_source(&linux_source(process)?, sampling, clock.clone(), |source| {
        check_processes(process)?;
        Ok(body(source, &clock))
    })?
}

/// Attaches or launches, and runs `body` with the sample source and its clock. This system has one
/// way to sample.
///
/// # Errors
/// One line: why it was refused, and the next step; or the requested method does not exist on this
/// system.
#[cfg(not(target_os = "linux"))]
pub(super) fn with_source<R: Send>(
    process: &Process,
    sampling: Sampling,
    body: impl FnOnce(SampleSource<'_>, &dyn Clock) -> R + Send,
) -> Result<R> {
    use crate::error::{Error, ErrorKind};
    if sampling.method != SamplingMethod::Auto {
        let why = "--source: this system has one source; leave the option out";
        return Err(Error::new(ErrorKind::Usage, why));
    }
    let linux_only = match process {
        Process::Several(several) if !several.pids.is_empty() => Some("a second --pid"),
        Process::Several(_) => Some("-a, --cgroup, --container and --user"),
        Process::New { user: Some(_), .. } => {
            let why = "--as is for Linux; run stackprof as that user: sudo -u USER stackprof -- ./prog";
            return Err(Error::new(ErrorKind::Usage, why));
        }
        _ => sampling.children_needed.then_some("--children"),
    };
    if sampling.off_cpu {
        let why = "--off-cpu is for Linux; this system's source has --idle";
        return Err(Error::new(ErrorKind::Usage, why));
    }
    if let Some(options) = linux_only {
        let why = format!("this system's source records one process; for Linux only: {options}");
        return Err(Error::new(ErrorKind::Usage, why));
    }
    attach_and_run(process, |target, clock| body(SampleSource::Stopped(target), clock))
}

/// Launches a command with allocations sampled once per so many bytes on average, and runs `body` with their source and
/// its clock.
///
/// # Errors
/// One line: why it cannot be run, or its allocations not be recorded, and the next step.
pub(super) fn with_heap_source<R: Send>(
    words: &[OsString],
    options: HeapOptions,
    body: impl FnOnce(SampleSource<'_>, &dyn Clock) -> R + Send,
) -> Result<R> {
    let shim = crate::sources::heap_shim::library().map_err(|why| {
        use crate::error::{Error, ErrorKind};
        Error::new(ErrorKind::System, format!("this build of stackprof cannot record allocations: {why}"))
    })?;
    #[cfg(target_os = "linux")]
    {
        use crate::sources::linux;
        let command = linux::Launch { words: words.to_vec(), account: None, environment: Vec::new() };
        let clock = crate::clock::RealClock::new();
        linux::with_heap_source(&command, shim, options, clock.clone(), |source| body(source, &clock))
    }
    #[cfg(target_vendor = "apple")]
    {
        use crate::error::{Error, ErrorKind};
        use crate::sources::mach;
        if options.records_mappings {
            return Err(Error::new(ErrorKind::Usage, "--mmap is for Linux; leave it out"));
        }
        let clock = crate::clock::RealClock::new();
        mach::with_heap_source(&mach::xnu::Xnu, words, shim, options, clock.clone(), |source| {
            body(source, &clock)
        })
    }
    #[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
    {
        use crate::error::{Error, ErrorKind};
        let _ = (words, options, body, shim);
        let why = "heap is for Linux and macOS; record firmware here: stackprof heap --gdb HOST:PORT";
        Err(Error::new(ErrorKind::Usage, why))
    }
}

/// Runs `body` with a source of the allocations of a running process.
///
/// # Errors
/// One line: why they cannot be recorded, and the next step.
pub(super) fn with_probed_heap<R: Send>(
    pid: u32,
    every_bytes: u64,
    max_slowdown_percent: f64,
    body: impl FnOnce(SampleSource<'_>, &dyn Clock) -> R + Send,
) -> Result<R> {
    #[cfg(target_os = "linux")]
    {
        use crate::sources::linux;
        let clock = crate::clock::RealClock::new();
        let options = linux::ProbeOptions { every_bytes, max_slowdown_percent };
        linux::with_probed_heap(pid, options, clock.clone(), |source| {
            linux::check_process(pid)?;
            Ok(body(source, &clock))
        })?
    }
    #[cfg(not(target_os = "linux"))]
    {
        use crate::error::{Error, ErrorKind};
        let _ = (pid, every_bytes, max_slowdown_percent, body);
        let why = "heap --pid needs the uprobes of Linux; record CPU time here: stackprof --pid N";
        Err(Error::new(ErrorKind::Usage, why))
    }
}

/// Why no allocations of a program were recorded.
pub(super) fn why_no_allocations(
    program: &std::ffi::OsStr,
    losses: &crate::sources::pushed::AllocationLosses,
    every_bytes: u64,
) -> String {
    #[cfg(target_os = "linux")]
    return crate::sources::linux::why_no_allocations(program, losses, every_bytes);
    #[cfg(target_vendor = "apple")]
    return crate::sources::mach::why_no_allocations(program, losses, every_bytes);
    #[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
    {
        let _ = (program, losses, every_bytes);
        "it allocated nothing that was sampled; --every 1 takes each allocation".to_owned()
    }
}

/// Attaches or launches and runs `body` with the target and the clock that it waits by.
///
/// # Errors
/// One line: why it was refused, and the next step.
#[cfg(target_os = "linux")]
pub(super) fn with_target<R: Send>(
    process: &Process,
    body: impl FnOnce(&mut dyn Target, &dyn Clock) -> R + Send,
) -> Result<R> {
    use crate::sources::linux;
    let source = linux_source(process)?;
    let clock = crate::clock::RealClock::new();
    linux::with_target(&source, clock.clone(), |target| {
        check_processes(process)?;
        Ok(body(target, &clock))
    })?
}

/// Attaches or launches and runs `body` with the target and the clock that it waits by.
///
/// # Errors
/// One line: why it was refused, and the next step.
#[cfg(not(target_os = "linux"))]
pub(super) fn with_target<R: Send>(
    process: &Process,
    body: impl FnOnce(&mut dyn Target, &dyn Clock) -> R + Send,
) -> Result<R> {
    // No thread is parked here, unlike in a recording.
    let _hold = crate::sources::signals::Hold::new();
    attach_and_run(process, body)
}

/// Attaches or launches and runs `body`, which releases the target before this process is
/// suspended.
#[cfg(target_vendor = "apple")]
fn attach_and_run<R: Send>(
    process: &Process,
    body: impl FnOnce(&mut dyn Target, &dyn Clock) -> R + Send,
) -> Result<R> {
    use crate::sources::mach::MachTarget;
    use crate::sources::mach::xnu::Xnu;
    let mut target = match process {
        Process::Running(pid) => MachTarget::attach(&Xnu, *pid)?,
        Process::New { words, .. } => MachTarget::launch(&Xnu, words)?,
        Process::Several(_) => unreachable!("refused before"),
    };
    let clock = target.clock();
    Ok(body(&mut target, &clock))
}

/// Always an error: this system has no backend.
#[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
fn attach_and_run<R: Send>(
    process: &Process,
    _body: impl FnOnce(&mut dyn Target, &dyn Clock) -> R + Send,
) -> Result<R> {
    use crate::error::{Error, ErrorKind};
    let what = match process {
        Process::Running(pid) => format!("pid {pid}"),
        Process::New { words, .. } => format!("`{}`", words.join(" ".as_ref()).display()),
        Process::Several(_) => "several processes".to_owned(),
    };
    Err(Error::new(ErrorKind::System, format!("cannot look at {what}: stackprof works on macOS and Linux")))
}

/// The id of the only process with this name.
///
/// # Errors
/// One line: there is none, or there are several, which are listed.
pub(super) fn process_by_name(name: &str) -> Result<u32> {
    let pid = process_name::pid_of(name, processes())?;
    #[cfg(target_os = "linux")]
    let pid = {
        /// A process of that name that starts again and again is the last one seen.
        const LOOK_UPS_MAX: u32 = 8;
        let mut pid = pid;
        for _ in 0..LOOK_UPS_MAX {
            crate::sources::linux::remember_process(pid);
            // Another process may have got the id in between.
            let again = process_name::pid_of(name, processes())?;
            if again == pid {
                break;
            }
            pid = again;
        }
        pid
    };
    Ok(pid)
}

/// Running processes, without this one.
pub(super) fn processes() -> Vec<process_name::RunningProcess> {
    #[cfg(target_os = "linux")]
    let processes = crate::sources::linux::processes();
    #[cfg(target_vendor = "apple")]
    let processes = crate::sources::mach::xnu::processes();
    #[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
    let processes = Vec::new();
    processes
}

/// Exit status of a launched command after its recording; `None` while it runs. With `kill` it is
/// killed first.
#[cfg(unix)]
pub(super) fn command_end(pid: u32, kill: bool) -> Option<ExitStatus> {
    use crate::sources::child;
    if kill { child::end_child(pid) } else { child::child_end(pid) }
}

/// Always `None`: this system has no backend that launches commands.
#[cfg(not(unix))]
pub(super) fn command_end(_pid: u32, _kill: bool) -> Option<ExitStatus> {
    None
}

/// The user who had sudo or doas run this process as root, if `--as` can run a command as them.
pub(super) fn user_behind_root() -> Option<String> {
    #[cfg(target_os = "linux")]
    if crate::sources::linux::is_root() {
        // The uid replaces a missing name.
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let by_sudo = variable("SUDO_UID").filter(|uid| uid != "0");
        let by_sudo = by_sudo.map(|uid| variable("SUDO_USER").unwrap_or(uid));
        return by_sudo.or_else(|| variable("DOAS_USER")).filter(|user| user != "root");
    }
    None
}

/// What keeps a process from running, and the next step; `None` if unknown.
pub(super) fn why_not_running(pid: u32) -> Option<String> {
    #[cfg(target_os = "linux")]
    return crate::sources::linux::why_not_running(pid);
    #[cfg(not(target_os = "linux"))]
    {
        let _ = pid;
        None
    }
}

/// What keeps a process from running after a recording has released it, and the next step.
pub(super) fn why_still_not_running(pid: u32) -> Option<String> {
    #[cfg(target_os = "linux")]
    return crate::sources::linux::why_still_not_running(pid);
    #[cfg(not(target_os = "linux"))]
    {
        let _ = pid;
        None
    }
}

/// The frozen control group of a process, and the next step.
pub(super) fn why_it_is_frozen(pid: u32) -> Option<String> {
    #[cfg(target_os = "linux")]
    return crate::sources::linux::why_it_is_frozen(pid);
    #[cfg(not(target_os = "linux"))]
    {
        let _ = pid;
        None
    }
}

/// Whether a program gains rights on exec that this process lacks, so that it cannot be recorded as
/// it is.
pub(super) fn gains_rights(program: &std::ffi::OsStr) -> bool {
    #[cfg(target_os = "linux")]
    return crate::sources::linux::gains_rights(program);
    #[cfg(not(target_os = "linux"))]
    {
        let _ = program;
        false
    }
}

/// Current memory of this process.
pub(super) fn own_memory() -> Memory {
    let (_, peak_bytes) = own_usage();
    #[cfg(target_os = "linux")]
    let (private_bytes, file_bytes) = crate::sources::linux::own_memory();
    #[cfg(not(target_os = "linux"))]
    let (private_bytes, file_bytes) = (None, None);
    Memory { peak_bytes, private_bytes, file_bytes }
}

/// CPU time of this process in nanoseconds, and its peak resident memory in bytes; zero on unknown
/// systems.
pub(super) fn own_usage() -> (u64, u64) {
    #[cfg(target_os = "linux")]
    return crate::sources::linux::own_usage();
    #[cfg(target_vendor = "apple")]
    return crate::sources::mach::xnu::own_usage();
    #[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
    (0, 0)
}
