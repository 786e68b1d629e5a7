//! Suspends a whole task until the guard is dropped or its holder exits, in any way. Input: a task. Effect:
//! it is stopped.
//!
//! `thread_suspend` counts outlive the profiler: if it is killed while it holds one, a thread hangs for ever.
//! `task_suspend2` returns a right, and `task_suspend` keeps one; both die with their holder, and the kernel
//! resumes the task (osfmk/kern/task.c, `task_suspension_notify`). So tasks are suspended, never threads.

use super::kernel::{Kern, MachKernel, SuspensionToken, TaskPort};
use super::threads::is_gone;

/// A suspension of a task, released on drop.
pub(super) struct Hold<'k> {
    kernel: &'k dyn MachKernel,
    task: TaskPort,
    by: Option<HoldMethod>,
}

enum HoldMethod {
    /// `task_suspend2`.
    Token(SuspensionToken),
    /// `task_suspend`.
    Count,
}

impl<'k> Hold<'k> {
    /// Suspends the task; returns once none of its threads is on a CPU.
    pub(super) fn begin(kernel: &'k dyn MachKernel, task: TaskPort) -> Kern<Hold<'k>> {
        let by = match kernel.task_suspend2(task) {
            Ok(token) => HoldMethod::Token(token),
            Err(failed) if is_gone(failed) => return Err(failed),
            // A kernel without this call still has the older one.
            Err(failed) => kernel.task_suspend(task).map(|()| HoldMethod::Count).map_err(|_| failed)?,
        };
        Ok(Hold { kernel, task, by: Some(by) })
    }

    fn release(&mut self) {
        // A failure means that the task has ended, and with it the suspension.
        let _ = match self.by.take() {
            Some(HoldMethod::Token(token)) => self.kernel.task_resume2(token),
            Some(HoldMethod::Count) => self.kernel.task_resume(self.task),
            None => Ok(()),
        };
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.release();
    }
}
