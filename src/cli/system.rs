//! Which backend samples processes on this system.

use std::ffi::OsString;

use crate::clock::Clock;
use crate::error::Result;
use crate::sources::{Recordable, Target, Way};

/// Which process.
pub(super) enum Process {
    /// A running one, by process id.
    Running(u32),
    /// A new one: program and arguments.
    New(Vec<OsString>),
}

/// Prepares this process; called before other threads start.
pub(super) fn prepare() {
    #[cfg(target_os = "linux")]
    crate::sources::linux::prepare();
}

/// How a process is to be sampled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sampling {
    /// Which source.
    pub(super) way: Way,
    /// Samples per second.
    pub(super) hz: u32,
    /// Threads that wait, too.
    pub(super) idle: bool,
    /// Frames in the kernel, too.
    pub(super) kernel: bool,
}

#[cfg(target_os = "linux")]
fn linux_source(process: &Process) -> crate::sources::linux::Source {
    use crate::sources::linux::Source;
    match process {
        Process::Running(pid) => Source::Attach(*pid),
        Process::New(command) => Source::Launch(command.clone()),
    }
}

/// Attaches or launches and runs `body` with what samples the process, and the clock of its times.
///
/// # Errors
/// One line: why it was refused, and the next step.
#[cfg(target_os = "linux")]
pub(super) fn with_source<R: Send>(
    process: &Process,
    sampling: Sampling,
    body: impl FnOnce(Recordable<'_>, &dyn Clock) -> R + Send,
) -> Result<R> {
    use crate::sources::linux;
    let Sampling { way, hz, idle, kernel } = sampling;
    let clock = crate::clock::RealClock::new();
    let sampling = linux::Sampling { way, hz, idle, kernel };
    linux::with_source(&linux_source(process), sampling, clock.clone(), |source| body(source, &clock))
}

/// Attaches or launches and runs `body` with what samples the process, and the clock of its times.
/// This system has one way to sample.
///
/// # Errors
/// One line: why it was refused, and the next step; another way than that was asked for.
#[cfg(not(target_os = "linux"))]
pub(super) fn with_source<R: Send>(
    process: &Process,
    sampling: Sampling,
    body: impl FnOnce(Recordable<'_>, &dyn Clock) -> R + Send,
) -> Result<R> {
    use crate::error::{Error, ErrorKind};
    let Sampling { way, hz: _, idle: _, kernel: _ } = sampling;
    if way != Way::Auto {
        let why = "--source: this system has one source; leave the option out";
        return Err(Error::new(ErrorKind::Usage, why));
    }
    with_target(process, |target, clock| body(Recordable::Stopped(target), clock))
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
    let source = linux_source(process);
    let clock = crate::clock::RealClock::new();
    linux::with_target(&source, clock.clone(), |target| body(target, &clock))
}

/// Attaches or launches and runs `body` with the target and the clock that it waits by.
///
/// # Errors
/// One line: why it was refused, and the next step.
#[cfg(target_vendor = "apple")]
pub(super) fn with_target<R: Send>(
    process: &Process,
    body: impl FnOnce(&mut dyn Target, &dyn Clock) -> R + Send,
) -> Result<R> {
    use crate::sources::mach::MachTarget;
    use crate::sources::mach::xnu::Xnu;
    let mut target = match process {
        Process::Running(pid) => MachTarget::attach(&Xnu, *pid)?,
        Process::New(command) => MachTarget::launch(&Xnu, command)?,
    };
    let clock = target.clock();
    Ok(body(&mut target, &clock))
}

/// There is no backend for this system.
///
/// # Errors
/// Always.
#[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
pub(super) fn with_target<R: Send>(
    process: &Process,
    _body: impl FnOnce(&mut dyn Target, &dyn Clock) -> R + Send,
) -> Result<R> {
    use crate::error::{Error, ErrorKind};
    let what = match process {
        Process::Running(pid) => format!("pid {pid}"),
        Process::New(command) => format!("`{}`", command.join(" ".as_ref()).display()),
    };
    Err(Error::new(ErrorKind::System, format!("cannot look at {what}: stackprof works on macOS and Linux")))
}

/// CPU time of this process in nanoseconds, and its peak resident memory in bytes; zero
/// where the system is not known.
pub(super) fn own_usage() -> (u64, u64) {
    #[cfg(target_os = "linux")]
    return crate::sources::linux::own_usage();
    #[cfg(target_vendor = "apple")]
    return crate::sources::mach::xnu::own_usage();
    #[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
    (0, 0)
}
