//! A process, whose task is sampled: a new one after each exec, and none once it has exited.
//!
//! Input: what BSD calls report about a process. Output: its next task, how it ended, its names.

use super::kernel::{Kern, MachKernel};
use super::owned_task::OwnedTask;
use super::refusal::{self, Facts};
use crate::sources::{ExitStatus, Process};

/// How long a process without a task is assumed to be in exec or exit.
const BETWEEN_TASKS_NS: u64 = 1_000_000_000;

/// A process, through its execs and up to its end.
pub(super) struct BsdProcess<'k> {
    kernel: &'k dyn MachKernel,
    pid: i32,
    /// Start time; 0 if unknown.
    start_us: u64,
    /// It is our child.
    launched: bool,
    description: Process,
    /// Since when it has no task available to us.
    taskless_ns: Option<u64>,
    /// Whether it is stopped by job control; `None`: not checked since the last poll.
    job_stopped: Option<bool>,
}

impl<'k> BsdProcess<'k> {
    /// The process of a task.
    pub(super) fn new(task: &OwnedTask<'k>, description: Process, launched: bool) -> BsdProcess<'k> {
        BsdProcess {
            kernel: task.kernel(),
            pid: task.pid(),
            start_us: task.start_us(),
            launched,
            description,
            taskless_ns: None,
            job_stopped: None,
        }
    }

    pub(super) fn description(&self) -> &Process {
        &self.description
    }

    /// Whether its task was available to us when it was last used.
    pub(super) fn has_task(&self) -> bool {
        self.taskless_ns.is_none()
    }

    /// Acquires its task again after a call failed as for a dead one, until [`BsdProcess::found_task`].
    pub(super) fn acquire_task(&mut self, now_ns: u64) -> Kern<OwnedTask<'k>> {
        self.taskless_ns.get_or_insert(now_ns);
        OwnedTask::acquire(self.kernel, self.pid)
    }

    /// Its task works, or it has another one.
    pub(super) fn found_task(&mut self) {
        self.taskless_ns = None;
    }

    /// Whether a task that was acquired by its number is its own: the number may have been reused.
    pub(super) fn owns(&self, task: &OwnedTask<'_>) -> bool {
        self.start_us == 0 || task.start_us() == 0 || task.start_us() == self.start_us
    }

    /// How it ended, if it has no task and none is expected.
    pub(super) fn end(&self, now_ns: u64) -> Option<ExitStatus> {
        // A child's status arrives a moment after its task is gone.
        let status = self.exit_status();
        let overdue = self.taskless_ns.is_some_and(|since| now_ns.saturating_sub(since) >= BETWEEN_TASKS_NS);
        let has_ended = overdue || !self.launched && refusal::has_ended(self.kernel, self.pid);
        status.or_else(|| has_ended.then_some(ExitStatus::Unknown))
    }

    /// The exit status of our child, if it has exited.
    pub(super) fn exit_status(&self) -> Option<ExitStatus> {
        if !self.launched {
            return None;
        }
        match self.kernel.wait_ended(self.pid) {
            Ok(status) => status.map(exit_status),
            // The status was consumed elsewhere.
            Err(_) => Some(ExitStatus::Unknown),
        }
    }

    /// Whether its program is translated by Rosetta, if reported.
    pub(super) fn is_translated(&self) -> bool {
        refusal::is_translated(self.kernel, self.pid)
    }

    /// Whether it is stopped by job control: asked once per poll.
    pub(super) fn is_job_stopped(&mut self) -> bool {
        let (kernel, pid) = (self.kernel, self.pid);
        *self.job_stopped.get_or_insert_with(|| refusal::is_job_stopped(kernel, pid))
    }

    /// Begins a poll.
    pub(super) fn begin_poll(&mut self) {
        self.job_stopped = None;
    }

    /// Updates the name and the command of our child: it is the command only after an exec.
    pub(super) fn rename_child(&mut self) {
        if self.launched {
            self.description.name = Facts::of(self.kernel, self.pid, false).name();
            self.description.command = command_of(self.kernel, self.pid);
        }
    }
}

/// Decodes a wait status (bsd/sys/wait.h).
pub(super) fn exit_status(status: i32) -> ExitStatus {
    match status & 0x7f {
        0 => ExitStatus::Code(status >> 8 & 0xff),
        signal => ExitStatus::Signal(signal),
    }
}

pub(super) fn command_of(kernel: &dyn MachKernel, pid: i32) -> String {
    kernel.proc_args(pid).map(|bytes| command_line(&bytes)).unwrap_or_default()
}

/// The joined arguments of KERN_PROCARGS2: argc, the path of the program, NULs, argv.
fn command_line(bytes: &[u8]) -> String {
    let Some((argc, rest)) = bytes.split_first_chunk::<4>() else { return String::new() };
    let argc = usize::try_from(i32::from_le_bytes(*argc)).unwrap_or(0);
    let path_end = rest.iter().position(|byte| *byte == 0).unwrap_or(rest.len());
    let rest = &rest[path_end..];
    let first = rest.iter().position(|byte| *byte != 0).unwrap_or(rest.len());
    let words = rest[first..].split(|byte| *byte == 0).take(argc).map(String::from_utf8_lossy);
    words.collect::<Vec<_>>().join(" ").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_follows_the_path() {
        let mut bytes = 3i32.to_le_bytes().to_vec();
        bytes.extend(b"/usr/local/bin/work\0\0\0\0work\0-n\0two words\0HOME=/\0");
        assert_eq!(command_line(&bytes), "work -n two words");
    }

    #[test]
    fn a_damaged_command_line_is_cut() {
        let mut bytes = (-1i32).to_le_bytes().to_vec();
        assert_eq!(command_line(&bytes), "");
        bytes.extend(b"/path");
        assert_eq!((command_line(&bytes), command_line(&bytes[..3])), (String::new(), String::new()));
        bytes[..4].copy_from_slice(&i32::MAX.to_le_bytes());
        bytes.extend(b"\0\0a\0b");
        assert_eq!(command_line(&bytes), "a b");
    }
}
