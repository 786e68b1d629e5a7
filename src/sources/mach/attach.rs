//! Begins a recording: gets the task port of a running process, or starts a command suspended until it is attached.
//! Input: a pid or a command. Output: a target, or an error. `OwnedTask` is a right to a port, released when it is
//! dropped.

use std::ffi::OsString;

use super::kernel::{Kern, KernReturn, MachKernel, TaskPort};
use super::refusal::{self, Facts};
use super::target::MachTarget;
use super::task::{command_of, exit_status};
use super::threads::MachClock;
use crate::arch::Arch;
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result, io_text};
use crate::sources::{ExitStatus, Process, signals};

/// Attempts to get a port while the process may be executing a new program, and the pause between them.
const TRIES: u32 = 4;
const BETWEEN_TRIES_NS: u64 = 2_000_000;
/// Longest wait for a command that exits.
const EXIT_NS: u64 = 1_000_000_000;

const SIGKILL: i32 = 9;
/// macOS's number; on Linux it is 18.
const SIGCONT: i32 = 19;

/// Bits of an address in user space: 64 − 17 on 16 KiB kernels (`machdep.virtual_address_size`).
const ADDRESS_BITS: i32 = 47;

impl<'k> MachTarget<'k> {
    /// Attaches to a running process without stopping it.
    ///
    /// # Errors
    /// [`ErrorKind::Attach`]: why it was refused, and what to do.
    pub fn attach(kernel: &'k dyn MachKernel, pid: u32) -> Result<MachTarget<'k>> {
        let pid = i32::try_from(pid).map_err(|_| refusal::no_such_process(pid))?;
        take(kernel, pid, false)
    }

    /// Starts a command, attaches to it before its first instruction, and resumes it.
    ///
    /// # Errors
    /// [`ErrorKind::Attach`]: why it could not be started or attached to; it has not run then.
    pub fn launch(kernel: &'k dyn MachKernel, command: &[OsString]) -> Result<MachTarget<'k>> {
        // This process must not be suspended while the command waits for it.
        let _hold = signals::Hold::new();
        let program =
            command.first().map(|program| program.to_string_lossy().into_owned()).unwrap_or_default();
        let mut waiting = SuspendedChild::start(kernel, command, &[])?;
        let attached = take(kernel, waiting.number(), true).and_then(|target| waiting.go().map(|()| target));
        // Whatever failed, an early exit of the command is the cause.
        attached.map_err(|error| match waiting.ended() {
            Some(status) => refusal::ended_early(&program, status),
            None => error,
        })
    }
}

/// A process that was started suspended.
pub(super) struct SuspendedChild<'k> {
    kernel: &'k dyn MachKernel,
    pid: Option<i32>,
}

impl<'k> SuspendedChild<'k> {
    /// Starts a command with these variables beside those of this process.
    pub(super) fn start(
        kernel: &'k dyn MachKernel,
        command: &[OsString],
        variables: &[(OsString, OsString)],
    ) -> Result<SuspendedChild<'k>> {
        let started = kernel.spawn_suspended(command, variables);
        let pid = started.map_err(|errno| {
            let program = command.first().map(|program| program.to_string_lossy()).unwrap_or_default();
            let error = std::io::Error::from_raw_os_error(errno.0);
            let is_unknown = error.kind() == std::io::ErrorKind::NotFound;
            let next = if is_unknown { "; check the name or give a path" } else { "" };
            Error::new(ErrorKind::Attach, format!("cannot run `{program}`: {}{next}", io_text(&error)))
        })?;
        Ok(SuspendedChild { kernel, pid: Some(pid) })
    }

    /// Its number; 0 if it has ended.
    pub(super) fn number(&self) -> i32 {
        self.pid.unwrap_or(0)
    }

    /// Resumes it: it was suspended once and is resumed once.
    pub(super) fn go(&mut self) -> Result<()> {
        let Some(pid) = self.pid else { return Ok(()) };
        self.kernel.kill(pid, SIGCONT).map_err(|errno| {
            let error = io_text(&std::io::Error::from_raw_os_error(errno.0));
            Error::new(ErrorKind::System, format!("cannot let pid {pid} run: {error}; it was ended"))
        })?;
        self.pid = None;
        Ok(())
    }

    /// Its exit status; `None` while it waits.
    fn ended(&mut self) -> Option<ExitStatus> {
        let pid = self.pid?;
        let clock = MachClock::new(self.kernel);
        let until_ns = clock.now_ns().saturating_add(EXIT_NS);
        loop {
            let status = match self.kernel.wait_ended(pid) {
                Ok(status) => status.map(exit_status),
                // While SIGCHLD is ignored the exit status of children is lost.
                Err(_) => refusal::has_ended(self.kernel, pid).then_some(ExitStatus::Unknown),
            };
            if status.is_some() {
                self.pid = None;
                return status;
            }
            // The status arrives a moment after the task is gone.
            let now_ns = clock.now_ns();
            if now_ns >= until_ns || !refusal::has_ended(self.kernel, pid) {
                return None;
            }
            clock.wait_until_ns(now_ns.saturating_add(BETWEEN_TRIES_NS));
        }
    }
}

impl Drop for SuspendedChild<'_> {
    /// A command that could not be attached to would stay suspended for ever.
    fn drop(&mut self) {
        if let Some(pid) = self.pid.take() {
            let _ = self.kernel.kill(pid, SIGKILL);
            // If it is not yet a zombie, it is reaped when this process exits.
            let _ = self.kernel.wait_ended(pid);
        }
    }
}

fn take<'k>(kernel: &'k dyn MachKernel, pid: i32, launched: bool) -> Result<MachTarget<'k>> {
    let mut taken = take_once(kernel, pid, launched);
    for _ in 1..TRIES {
        // The port may be that of the program before an intervening exec.
        match taken {
            Err(TakeError::TaskGone(_)) => taken = take_once(kernel, pid, launched),
            _ => break,
        }
    }
    taken.map_err(|failed| match failed {
        TakeError::TaskGone(error) | TakeError::Other(error) => error,
    })
}

/// Why the task port could not be acquired.
enum TakeError {
    /// The task ended meanwhile: another attempt may find that of the next program.
    TaskGone(Error),
    /// Another attempt would fail, too.
    Other(Error),
}

impl From<Error> for TakeError {
    fn from(error: Error) -> TakeError {
        TakeError::Other(error)
    }
}

/// Attaches, in one attempt.
fn take_once(
    kernel: &dyn MachKernel,
    pid: i32,
    launched: bool,
) -> std::result::Result<MachTarget<'_>, TakeError> {
    let facts = refusal::check(kernel, pid, launched)?;
    let mut taken = OwnedTask::acquire(kernel, pid);
    for _ in 1..TRIES {
        // The same code also means that the process is executing a new program.
        if taken.as_ref().err() == Some(&KernReturn::Failure)
            && refusal::may_be_between_programs(kernel, &facts)
        {
            let clock = MachClock::new(kernel);
            clock.wait_until_ns(clock.now_ns().saturating_add(BETWEEN_TRIES_NS));
            taken = OwnedTask::acquire(kernel, pid);
        }
    }
    let acquired = taken.map_err(|failed| refusal::explain(kernel, pid, launched, failed))?;
    let description = describe(kernel, &facts);
    refusal::check_task(kernel, acquired.port(), &facts)?;
    let mut target = MachTarget::new(acquired, description, launched);
    let cpu_type =
        target.begin().map_err(|failed| TakeError::TaskGone(refusal::cannot_list(kernel, &facts, failed)))?;
    refusal::check_program(kernel, &facts, cpu_type)?;
    Ok(target)
}

pub(super) fn describe(kernel: &dyn MachKernel, facts: &Facts) -> Process {
    let arch = kernel.arch();
    let bits = match arch {
        Arch::Aarch64 => kernel.sysctl_i32("machdep.virtual_address_size").ok(),
        Arch::X86_64 | Arch::X86 | Arch::Arm => None,
    };
    let bits = bits.filter(|bits| (36..=56).contains(bits)).unwrap_or(ADDRESS_BITS);
    let cpus = kernel.sysctl_i32("hw.ncpu").ok().and_then(|cpus| usize::try_from(cpus).ok());
    Process {
        pid: facts.pid.unsigned_abs(),
        name: facts.name(),
        command: command_of(kernel, facts.pid),
        arch,
        backend: "mach",
        backend_why: String::new(),
        // Unknown: any number of threads may run at once.
        cpus: cpus.filter(|cpus| *cpus > 0).unwrap_or(usize::MAX),
        address_mask: (1 << bits) - 1,
        fp_always: arch == Arch::Aarch64,
        cfi: true,
        stops_interrupt_syscalls: false,
        stops_hold_all: true,
    }
}

// ---- A right to the port of a task. Input: a pid. Output: a right, released when it is dropped.

/// Most attempts for an interrupted upcall to taskgated.
const INTERRUPTED_TRIES: u32 = 16;

/// A right to a task, and the process that it belonged to when the right was acquired.
pub(super) struct OwnedTask<'k> {
    kernel: &'k dyn MachKernel,
    port: TaskPort,
    pid: i32,
    /// Start time of the process; 0 if unknown.
    start_us: u64,
}

impl<'k> OwnedTask<'k> {
    /// Takes the task port of a process. Port 0 means a process without task.
    pub(super) fn acquire(kernel: &'k dyn MachKernel, pid: i32) -> Kern<OwnedTask<'k>> {
        let mut taken = kernel.task_for_pid(pid);
        for _ in 0..INTERRUPTED_TRIES {
            if taken == Err(KernReturn::Aborted) {
                taken = kernel.task_for_pid(pid);
            }
        }
        let port = taken.and_then(|port| if port.0 == 0 { Err(KernReturn::Failure) } else { Ok(port) })?;
        let mut owned = OwnedTask { kernel, port, pid, start_us: 0 };
        if kernel.pid_for_task(port).is_ok_and(|of| of != pid) {
            // The process has ended, and its number was reused.
            return Err(KernReturn::Failure);
        }
        owned.start_us = kernel.proc_bsdinfo(pid).map_or(0, |info| info.start_us);
        Ok(owned)
    }

    pub(super) fn kernel(&self) -> &'k dyn MachKernel {
        self.kernel
    }

    pub(super) fn port(&self) -> TaskPort {
        self.port
    }

    pub(super) fn pid(&self) -> i32 {
        self.pid
    }

    pub(super) fn start_us(&self) -> u64 {
        self.start_us
    }
}

impl Drop for OwnedTask<'_> {
    fn drop(&mut self) {
        let _ = self.kernel.port_deallocate(self.port.0);
    }
}
