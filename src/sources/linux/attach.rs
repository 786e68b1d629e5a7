//! The two beginnings of a trace: seizing a running process, and starting one.

use std::ffi::OsString;
use std::fs;

use libc::pid_t;

use super::trace::LinuxTarget;
use super::{launch, refusal, sys, threads};
use crate::arch::Arch;
use crate::clock::{Clock, RealClock};
use crate::error::{Error, ErrorKind, Result, io_text};
use crate::sources::{Capture, Event, ExitStatus, Process, Target};

#[cfg(target_arch = "x86_64")]
const ARCH: Arch = Arch::X86_64;
#[cfg(target_arch = "aarch64")]
const ARCH: Arch = Arch::Aarch64;

/// Bits of a code pointer that are address. 47 on x86_64; on aarch64 pointers may be
/// signed (PAC) above the 48 bits of the usual user address space.
#[cfg(target_arch = "x86_64")]
const CODE_MASK: u64 = u64::MAX;
#[cfg(target_arch = "aarch64")]
const CODE_MASK: u64 = (1 << 48) - 1;

/// Passes over the thread list until one finds nothing new: a process that starts threads
/// all the time has its new ones followed by the kernel (TRACECLONE) after the first pass.
const MAX_PASSES: u32 = 16;

/// Time that a launched command has for `exec`, nanoseconds.
const EXEC_NS: u64 = 60_000_000_000;

/// Seizes every thread of a running process; none is stopped.
pub(super) fn attach(pid: u32, clock: RealClock) -> Result<LinuxTarget> {
    let pid = process_id(pid)?;
    refusal::check(pid)?;
    let mut target = LinuxTarget::new(pid, describe(pid), clock);
    for _ in 0..MAX_PASSES {
        let mut found_new = false;
        for tid in threads::list(pid).map_err(|error| refusal::explain(pid, &error))? {
            if target.knows(tid) {
                continue;
            }
            match sys::seize(tid) {
                Ok(()) => {
                    target.adopt(tid, None);
                    found_new = true;
                }
                // Ended since the listing, or followed by the kernel in the meantime.
                Err(error) if tid != pid && error.raw_os_error() == Some(libc::ESRCH) => {}
                Err(_) if tid != pid && target.knows(pid) => {}
                Err(error) => return Err(refusal::explain(pid, &error)),
            }
        }
        if !found_new {
            break;
        }
    }
    Ok(target)
}

/// Starts a command and returns with its program loaded and let run.
pub(super) fn launch(command: &[OsString], clock: RealClock) -> Result<LinuxTarget> {
    let failed = |error: &std::io::Error| cannot_run(command, error);
    let held = launch::hold(command).map_err(|error| failed(&error))?;
    let pid = held.pid;
    // If refused, `held` is dropped, and the new process ends without running the command.
    sys::seize(pid).map_err(|error| refusal::explain(pid, &error))?;
    let mut target = LinuxTarget::new(pid, describe(pid), clock.clone());
    target.adopt(pid, None);
    target.set_launched();
    let started = held.go().map_err(|error| failed(&error))?;
    let deadline_ns = clock.now_ns() + EXEC_NS;
    let mut capture = Capture::with_capacity(0);
    loop {
        match target.next(deadline_ns, &mut capture) {
            Ok(Event::Exec { .. }) => break,
            Ok(Event::Exited(ExitStatus::Signal(signal))) => {
                return Err(Error::new(
                    ErrorKind::Attach,
                    format!("cannot run `{}`: killed by signal {signal}", program(command)),
                ));
            }
            Ok(Event::Exited(_)) | Err(_) => {
                let error = started.join().err().unwrap_or_else(|| std::io::ErrorKind::NotFound.into());
                return Err(failed(&error));
            }
            Ok(Event::Timeout) => return Err(failed(&std::io::ErrorKind::TimedOut.into())),
            Ok(_) => {}
        }
    }
    started.join().map_err(|error| failed(&error))?;
    target.set_spawned(describe(pid));
    Ok(target)
}

/// The number of a process, as the system has them.
///
/// # Errors
/// For a number that no process has.
pub(super) fn process_id(pid: u32) -> Result<pid_t> {
    pid_t::try_from(pid).map_err(|_| {
        Error::new(
            ErrorKind::Attach,
            format!("cannot attach to pid {pid}: no process has such a number; `ps -e` lists those that run"),
        )
    })
}

fn program(command: &[OsString]) -> String {
    command.first().map(|program| program.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The words for a command that could not be started.
pub(super) fn cannot_run(command: &[OsString], error: &std::io::Error) -> Error {
    let next = match error.raw_os_error() {
        Some(libc::ENOENT) => "; check the name or give a path",
        Some(libc::EMFILE) => "; raise `ulimit -n`",
        _ => "",
    };
    let program = program(command);
    Error::new(ErrorKind::Attach, format!("cannot run `{program}`: {}{next}", io_text(error)))
}

/// What is known of a process that is traced.
pub(super) fn describe(pid: pid_t) -> Process {
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = command.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    Process {
        pid: pid.unsigned_abs(),
        name: String::from_utf8_lossy(&name).trim_end_matches('\n').to_owned(),
        command: words.collect::<Vec<_>>().join(" ").trim_end().to_owned(),
        arch: ARCH,
        backend: "ptrace",
        backend_why: String::new(),
        cpus: sys::cpus_of(pid),
        code_mask: CODE_MASK,
        fp_always: false,
        cfi: true,
        stops_waits_unseen: false,
        stops_hold_all: false,
    }
}
