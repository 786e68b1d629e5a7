//! Suspends a whole task, until the guard is dropped or its holder ends, in any way. Input: a task. Effect: it is
//! stopped.
//!
//! `thread_suspend` counts outlive the profiler: if it is killed while it holds one, a thread hangs for ever.
//! `task_suspend2` returns a right, and `task_suspend` parks one; both die with their holder, and the kernel resumes
//! the task (osfmk/kern/task.c, `task_suspension_notify`). So tasks are suspended, never threads.

use super::kernel::{Kern, MachKernel, SuspensionToken, TaskPort};
use super::threads::is_gone;

/// A task that is suspended by us, until this is dropped.
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
    /// Suspends the task; returns once no thread of it is on a CPU.
    pub(super) fn begin(kernel: &'k dyn MachKernel, task: TaskPort) -> Kern<Hold<'k>> {
        let by = match kernel.task_suspend2(task) {
            Ok(token) => HoldMethod::Token(token),
            Err(failed) if is_gone(failed) => return Err(failed),
            // A kernel that has no such call still has the older one.
            Err(failed) => kernel.task_suspend(task).map(|()| HoldMethod::Count).map_err(|_| failed)?,
        };
        Ok(Hold { kernel, task, by: Some(by) })
    }

    fn release(&mut self) {
        // A failure means that the task has ended, and the hold with it.
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
