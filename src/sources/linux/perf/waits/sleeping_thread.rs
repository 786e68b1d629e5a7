//! The stack of a thread that waits, as a wait of the recording: for one that went to sleep before
//! anybody watched, or whose stack the kernel had no room to write down.

use libc::pid_t;

use super::wait::Stack;
use crate::sources::linux::sleeping_thread;
use crate::sources::{Capture, SleepingThread};

/// Bytes of the stack that are read, as many as the kernel copies at most.
const STACK_BYTES: usize = 60 << 10;
/// Why the stack of a thread that waits is missing.
const NOT_SHOWN: &str = "waited since before the recording, where /proc does not show it";

/// Looks at a thread, with a buffer to be filled. `None`: it does not wait, or no longer.
pub(in super::super) fn look(
    pid: pid_t,
    tid: pid_t,
    mut capture: Box<Capture>,
) -> (Option<Stack>, Option<Box<Capture>>) {
    match sleeping_thread::capture(pid, tid, STACK_BYTES, &mut capture) {
        SleepingThread::Captured => (Some(Stack::Taken(capture)), None),
        SleepingThread::Awake => (None, Some(capture)),
        SleepingThread::Hidden => (Some(Stack::Missing(NOT_SHOWN)), Some(capture)),
    }
}
