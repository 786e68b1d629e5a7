//! The stack of a thread that waits, read without a stop: for one that went to sleep before anybody
//! watched, or whose stack the kernel had no room to write down.
//!
//! Input: a process and a thread of it; output: what it shows, certain to be of one moment.
//! `/proc/PID/task/TID/syscall` tells stack pointer and program counter of a thread that waits
//! (proc_pid_syscall(5)), and its memory can be read. It was off its CPU throughout if the scheduler
//! counted nothing in between. The other registers are not told: a walk goes on where the
//! rows of unwind information restore them, or the instructions tell where a frame pointer points.

use std::fs;

use libc::pid_t;

use super::registers;
use super::waits::Stack;
use crate::sources::Capture;
use crate::sources::linux::{images, proc, sys};

/// Bytes of the stack that are read, as many as the kernel copies at most.
const STACK_BYTES: usize = 60 << 10;
/// Why the stack of a thread that waits is missing.
const NOT_SHOWN: &str = "waited since before the recording, where /proc does not show it";

/// Looks at a thread, with a buffer to be filled. `None`: it does not wait, or no longer.
pub(super) fn look(
    pid: pid_t,
    tid: pid_t,
    mut capture: Box<Capture>,
) -> (Option<Stack>, Option<Box<Capture>>) {
    let path = |file: &str| format!("/proc/{pid}/task/{tid}/{file}");
    let figures = || (fs::read(path("syscall")).ok(), fs::read(path("schedstat")).ok());
    let before = figures();
    let (Some(call), Some(_)) = &before else {
        let stat = fs::read(path("stat")).ok();
        let waits = stat.and_then(|stat| proc::stat_state(&stat)).is_some_and(|state| state != b'R');
        return (waits.then_some(Stack::Missing(NOT_SHOWN)), Some(capture));
    };
    let Some((sp, pc)) = proc::waits_at(call) else { return (None, Some(capture)) };
    let read = sys::read_memory_into(pid, sp.0, STACK_BYTES, &mut capture.stack);
    if figures() != before {
        return (None, Some(capture));
    }
    if read.is_err() {
        return (Some(Stack::Missing(NOT_SHOWN)), Some(capture));
    }
    // What is above 4 GiB is of 64 bits; below there may be either.
    let stat = u32::try_from(sp.0.max(pc.0)).ok().and_then(|_| fs::read(path("stat")).ok());
    let start_stack = stat.and_then(|stat| proc::stat_start_stack(&stat));
    capture.registers = registers::of_waiting(sp, pc, start_stack.is_some_and(images::is_of_32_bits));
    (capture.stack_base, capture.only_kernel) = (sp, false);
    capture.kernel.clear();
    (capture.pause_ns, capture.stood_ns, capture.stack_limit, capture.look) = (0, 0, None, None);
    (Some(Stack::Taken(capture)), None)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_child_that_waits_shows_its_stack_and_one_that_is_gone_shows_nothing() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let pid = child.id().cast_signed();
        let buffer = || Box::new(Capture::with_capacity(0));
        let shown = || fs::read(format!("/proc/{pid}/task/{pid}/syscall")).is_ok();
        // It reads sooner or later; in the middle of its exec it has no memory to show.
        let seen = loop {
            let (seen, _) = look(pid, pid, buffer());
            match seen {
                Some(Stack::Taken(capture)) if !capture.stack.is_empty() => break Stack::Taken(capture),
                Some(Stack::Missing(why)) if !shown() => break Stack::Missing(why),
                _ => std::thread::yield_now(),
            }
        };
        match seen {
            Stack::Taken(capture) => assert_eq!(capture.registers.sp(), capture.stack_base),
            // Who may not trace the child.
            other => assert!(!shown(), "{other:?}"),
        }
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(look(pid, pid, buffer()).0.is_none());
    }
}
