//! A suspension of a whole task that ends whatever happens.
//!
//! `thread_suspend` counts outlive the profiler: killed while it holds one, it would leave
//! a thread hanging for ever. What `task_suspend2` gives is a right, and `task_suspend`
//! parks one; both die with their holder, and the kernel lets the task run
//! (osfmk/kern/task.c, `task_suspension_notify`). So tasks are suspended, never threads.

use super::kernel::{Kern, MachKernel, SuspensionToken, TaskPort};
use super::threads::is_gone;

/// A task that stands still because of us, until this is dropped.
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
        // A failure means that the task has died, and with it what it was held by.
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
