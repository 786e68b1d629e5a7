//! A thread in a ptrace stop, and how it continues. Input: a tid and a signal. Effect: the thread runs again
//! when the guard is dropped.

use std::fs;

use libc::{c_int, pid_t};

use super::sys;
use crate::sources::linux::proc;

/// A thread in a ptrace stop; dropping it continues the thread with its pending signal, or 0.
#[derive(Debug)]
pub(super) struct StoppedThread {
    tid: pid_t,
    signal: c_int,
    resume: Resume,
}

/// How a thread continues after a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resume {
    Continue,
    /// Stay stopped by job control until SIGCONT.
    Listen,
    /// Stop again at the entry of the next system call, or at the exit of the current one.
    UntilSyscall,
    /// Stop tracing.
    Detach,
}

impl StoppedThread {
    /// A thread in a stop without a signal to deliver.
    pub(super) fn new(tid: pid_t) -> StoppedThread {
        StoppedThread::with_signal(tid, 0)
    }

    /// A thread stopped by a signal to be delivered.
    pub(super) fn with_signal(tid: pid_t, signal: c_int) -> StoppedThread {
        StoppedThread { tid, signal, resume: Resume::Continue }
    }

    /// A thread stopped by job control.
    pub(super) fn by_job_control(tid: pid_t) -> StoppedThread {
        StoppedThread { tid, signal: 0, resume: Resume::Listen }
    }

    pub(super) fn tid(&self) -> pid_t {
        self.tid
    }

    /// Its pending signal, or 0.
    pub(super) fn signal(&self) -> c_int {
        self.signal
    }

    /// Sets how it continues.
    pub(super) fn set_resume(&mut self, resume: Resume) {
        self.resume = resume;
    }

    /// Leaves it stopped until the tracer exits.
    pub(super) fn keep_stopped(self) {
        std::mem::forget(self);
    }
}

impl Drop for StoppedThread {
    fn drop(&mut self) {
        // Fails only for a thread that was killed meanwhile, which needs nothing.
        let _ = match self.resume {
            Resume::Continue => sys::cont(self.tid, self.signal),
            Resume::Listen => sys::listen(self.tid),
            Resume::UntilSyscall => sys::cont_until_call(self.tid, self.signal),
            Resume::Detach => sys::detach(self.tid, self.signal),
        };
    }
}

/// Whether the process of a thread ignores a signal.
pub(super) fn ignores(tid: pid_t, signal: c_int) -> bool {
    let status = fs::read(format!("/proc/{tid}/status")).unwrap_or_default();
    let status = String::from_utf8_lossy(&status);
    let bit = |key| {
        let set = proc::status_value(&status, key).and_then(|hex| u64::from_str_radix(hex, 16).ok());
        set.is_some_and(|set| set >> (signal - 1) & 1 == 1)
    };
    let ignored_by_default = matches!(signal, libc::SIGCHLD | libc::SIGURG | libc::SIGWINCH | libc::SIGCONT);
    bit("SigIgn") || ignored_by_default && !bit("SigCgt")
}
