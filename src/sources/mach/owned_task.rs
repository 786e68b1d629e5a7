//! The port of a task, and the names of its process.

use super::kernel::{KernReturn, MachKernel, TaskPort};
use super::refusal::Facts;
use crate::sources::Process;

/// Most attempts for an interrupted upcall to taskgated.
const INTERRUPTED_TRIES: u32 = 16;

/// A task with a right owned by us.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnedTask {
    pub(super) task: TaskPort,
    pub(super) pid: i32,
    pub(super) start_us: u64,
}

/// Takes the task port of a process. Port 0 means a process without task.
pub(super) fn acquire_once(kernel: &dyn MachKernel, pid: i32) -> std::result::Result<OwnedTask, KernReturn> {
    let mut taken = kernel.task_for_pid(pid);
    for _ in 0..INTERRUPTED_TRIES {
        if taken == Err(KernReturn::Aborted) {
            taken = kernel.task_for_pid(pid);
        }
    }
    let task = taken.and_then(|task| if task.0 == 0 { Err(KernReturn::Failure) } else { Ok(task) })?;
    if kernel.pid_for_task(task).is_ok_and(|of| of != pid) {
        // The process has ended, and its number was reused.
        let _ = kernel.port_deallocate(task.0);
        return Err(KernReturn::Failure);
    }
    let start_us = kernel.proc_bsdinfo(pid).map_or(0, |info| info.start_us);
    Ok(OwnedTask { task, pid, start_us })
}

/// Updates the name and the command.
pub(super) fn rename(kernel: &dyn MachKernel, pid: i32, process: &mut Process) {
    process.name = Facts::of(kernel, pid, false).name();
    process.command = command_of(kernel, pid);
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
