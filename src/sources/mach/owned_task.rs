//! A right to the port of a task. Input: a pid. Output: a right, released when it is dropped.

use super::kernel::{Kern, KernReturn, MachKernel, TaskPort};

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
