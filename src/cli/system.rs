//! Which backend samples processes on this system.

use std::ffi::OsString;

use crate::clock::Clock;
use crate::error::Result;
use crate::sources::Target;

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
    let source = match process {
        Process::Running(pid) => linux::Source::Attach(*pid),
        Process::New(command) => linux::Source::Launch(command.clone()),
    };
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
