//! The registers and the stack of a waiting thread, read without a stop.
//!
//! Input: a process and one of its threads. Output: a capture of one moment. `/proc/PID/task/TID/syscall`
//! shows stack pointer and program counter of a waiting thread (proc_pid_syscall(5)), and its memory is
//! readable. It was off its CPU throughout if the scheduler's counters did not change. The other registers
//! are unknown: a walk continues if unwind rows restore them, or the instructions show the frame pointer.

use std::fs;

use libc::pid_t;

use super::perf::registers_of_waiting;
use super::{images, proc, sys};
use crate::sources::{Capture, SleepingThread};

/// Captures up to `stack_bytes` of a thread's stack.
pub(super) fn capture(pid: pid_t, tid: pid_t, stack_bytes: usize, capture: &mut Capture) -> SleepingThread {
    let path = |file: &str| format!("/proc/{pid}/task/{tid}/{file}");
    let figures = || (fs::read(path("syscall")).ok(), fs::read(path("schedstat")).ok());
    let before = figures();
    let (Some(call), Some(_)) = &before else {
        let stat = fs::read(path("stat")).ok();
        let waits = stat.and_then(|stat| proc::stat_state(&stat)).is_some_and(|state| state != b'R');
        return if waits { SleepingThread::Hidden } else { SleepingThread::Awake };
    };
    let Some((sp, pc)) = proc::waits_at(call) else { return SleepingThread::Awake };
    capture.reset();
    // With the thread's tid: the first thread may have exited, and /proc shows no memory through it.
    let read = sys::read_memory_into(tid, sp.0, stack_bytes, &mut capture.stack);
    if figures() != before {
        return SleepingThread::Awake;
    }
    if read.is_err() {
        return SleepingThread::Hidden;
    }
    // Addresses above 4 GiB are 64-bit; below may be either.
    let stat = u32::try_from(sp.0.max(pc.0)).ok().and_then(|_| fs::read(path("stat")).ok());
    let start_stack = stat.and_then(|stat| proc::stat_start_stack(&stat));
    capture.registers = registers_of_waiting(sp, pc, start_stack.is_some_and(images::is_of_32_bits));
    capture.stack_base = sp;
    SleepingThread::Captured
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_waiting_child_has_a_stack_and_an_exited_one_none() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let pid = child.id().cast_signed();
        let mut buffer = Capture::with_capacity(0);
        let shown = || fs::read(format!("/proc/{pid}/task/{pid}/syscall")).is_ok();
        // It will read sooner or later; during its exec it has no readable memory.
        let seen = loop {
            match capture(pid, pid, 60 << 10, &mut buffer) {
                SleepingThread::Captured if !buffer.stack.is_empty() => break SleepingThread::Captured,
                SleepingThread::Hidden if !shown() => break SleepingThread::Hidden,
                _ => std::thread::yield_now(),
            }
        };
        match seen {
            SleepingThread::Captured => assert_eq!(buffer.registers.sp(), buffer.stack_base),
            // Without permission to trace the child.
            other => assert!(!shown(), "{other:?}"),
        }
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(capture(pid, pid, 4096, &mut buffer), SleepingThread::Awake);
    }
}
