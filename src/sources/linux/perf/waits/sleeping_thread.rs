//! The stack of a waiting thread, read through /proc: it began to wait before the recording, or the kernel had no
//! room for its stack. Input: a thread. Output: its stack, or none if it ran meanwhile.

use std::path::Path;

use libc::pid_t;

use super::wait::SwitchStack;
use crate::sources::linux::sleeping_thread;
use crate::sources::{Capture, SleepingThread};

/// Stack bytes to read: the kernel's maximum for a copy.
const STACK_BYTES: usize = 60 << 10;
/// Reason for a missing stack of a waiting thread.
const NOT_SHOWN: &str = "waited since before the recording, where /proc does not show it";

/// The waits stage's view of threads.
pub(in crate::sources::linux::perf) trait SleepingThreads {
    /// Reads registers and stack of a waiting thread.
    fn capture(&self, pid: pid_t, tid: pid_t, stack_bytes: usize, capture: &mut Capture) -> SleepingThread;

    /// Whether a thread exists.
    fn exists(&self, pid: pid_t, tid: pid_t) -> bool;
}

/// The threads of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::sources::linux::perf) struct SystemThreads;

impl SleepingThreads for SystemThreads {
    fn capture(&self, pid: pid_t, tid: pid_t, stack_bytes: usize, capture: &mut Capture) -> SleepingThread {
        sleeping_thread::capture(pid, tid, stack_bytes, capture)
    }

    fn exists(&self, pid: pid_t, tid: pid_t) -> bool {
        Path::new(&format!("/proc/{pid}/task/{tid}")).exists()
    }
}

/// Polls a thread, with a buffer to fill. `None` if it does not wait, or no longer.
pub(super) fn poll(
    threads: &dyn SleepingThreads,
    pid: pid_t,
    tid: pid_t,
    mut capture: Box<Capture>,
) -> (Option<SwitchStack>, Option<Box<Capture>>) {
    match threads.capture(pid, tid, STACK_BYTES, &mut capture) {
        SleepingThread::Captured => (Some(SwitchStack::Copied(capture)), None),
        SleepingThread::Awake => (None, Some(capture)),
        SleepingThread::Hidden => (Some(SwitchStack::Missing(NOT_SHOWN)), Some(capture)),
    }
}
