//! The stack of a waiting thread, read through /proc: it went to sleep before the recording, or the kernel had no
//! room for its stack. Input: a thread. Output: its stack, or none if it ran meanwhile.

use std::path::Path;

use libc::pid_t;

use super::wait::SwitchStack;
use crate::sources::linux::sleeping_thread;
use crate::sources::{Capture, SleepingThread};

/// Bytes of the stack that are read, as many as the kernel copies at most.
const STACK_BYTES: usize = 60 << 10;
/// Why the stack of a thread that waits is missing.
const NOT_SHOWN: &str = "waited since before the recording, where /proc does not show it";

/// What the waits stage asks about threads.
pub(in crate::sources::linux::perf) trait SleepingThreads {
    /// Reads registers and stack of a thread that waits.
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

/// Polls a thread, with a buffer to be filled. `None`: it does not wait, or no longer.
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
