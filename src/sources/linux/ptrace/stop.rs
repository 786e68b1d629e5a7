//! A ptrace stop: the pending requests, and the capture of registers and stack bytes. Input: a thread, then the
//! same one stopped. Output: whom to wait for; a capture.
//!
//! `StopRequests` are the pending ones, `StoppedThread` is the guard; `read` reads the prefetched ranges.
//!
//! While a thread is stopped, only registers and stack bytes are read. Everything else happens before the
//! stop request or after the thread runs again.

use std::fs;

use hashbrown::HashMap;
use libc::{c_int, pid_t};

use super::on_cpu::{StopTimes, TracerCpu, was_on_cpu};
use super::registers::{Block, Code};
use super::sys;
use super::tracees::TracedThread;
use crate::addr::Avma;
use crate::arch::Abi;
use crate::clock::{Clock, RealClock};
use crate::sources::linux::proc::{self, Sched};
use crate::sources::linux::sys::{current_cpu, read_memory_into};
use crate::sources::{
    Activity, Capture, Fault, PREFETCH_RANGE_BYTES, PrefetchedWords, StopOutcome, ThreadStatus,
};

/// Most stack bytes to copy: the default stack limit.
const STACK_BYTES_MAX: usize = 8 << 20;

/// Start code may pop its arguments before it calls: then the first return address lies above the initial
/// stack pointer of the thread (musl src/thread/x86_64/clone.s).
const ABOVE_TOP_BYTES: usize = 64;

/// How long to poll for the stop of a thread on another CPU before sleeping: it takes a few microseconds,
/// less than a sleep and a wakeup. A thread on this CPU stops only when we sleep.
const POLL_NS: u64 = 30_000;

/// A stop request without a stop so far.
#[derive(Debug)]
pub(super) struct StopRequest {
    stack_bytes: usize,
    keep_waiting: bool,
    asked_ns: u64,
    /// When the poll before the request began.
    polled_ns: u64,
    /// The scheduler counters of that poll.
    before: Sched,
}

/// Pending stop requests, by thread.
#[derive(Debug, Default)]
pub(super) struct StopRequests {
    pending: HashMap<pid_t, StopRequest>,
    /// Time until which to poll for their stops.
    poll_until_ns: u64,
}

impl StopRequests {
    /// Asks a thread to stop, unless that was done.
    ///
    /// # Errors
    /// [`Fault::ThreadGone`] if it has exited.
    pub(super) fn send(
        &mut self,
        thread: &mut TracedThread,
        stack_bytes: usize,
        keep_waiting: bool,
        clock: &RealClock,
    ) -> Result<(), Fault> {
        if self.contains(thread.tid()) {
            return Ok(());
        }
        if keep_waiting {
            thread.before_stop();
        }
        let asked_ns = clock.now_ns();
        if sys::interrupt(thread.tid()).is_err() {
            thread.status_mut().note_wrong_wchan();
            return Err(Fault::ThreadGone);
        }
        let (polled_ns, before) = thread.status().last_poll();
        let request = StopRequest { stack_bytes, keep_waiting, asked_ns, polled_ns, before };
        self.pending.insert(thread.tid(), request);
        // Read only now: between the poll and the stop the thread may leave its CPU.
        if thread.status().cpu() != current_cpu() {
            self.poll_until_ns = clock.now_ns() + POLL_NS;
        }
        Ok(())
    }

    /// Removes the request of a thread that has stopped or exited.
    pub(super) fn take(&mut self, tid: pid_t) -> Option<StopRequest> {
        self.pending.remove(&tid)
    }

    /// Forgets all of them, because nothing is traced any longer.
    pub(super) fn clear(&mut self) {
        self.pending.clear();
    }

    pub(super) fn contains(&self, tid: pid_t) -> bool {
        self.pending.contains_key(&tid)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Whether to poll for the next stop instead of sleeping.
    pub(super) fn polls_at(&self, now_ns: u64) -> bool {
        !self.is_empty() && now_ns < self.poll_until_ns
    }
}

impl StopRequest {
    /// Whether a thread in a system call is captured, too.
    pub(super) fn keeps_waiting(&self) -> bool {
        self.keep_waiting
    }

    /// Captures registers and stack bytes of the thread, which is seen stopped at `seen_ns` and stays stopped.
    /// `registers` then has its registers, unless it is unreadable.
    pub(super) fn read(
        &self,
        thread: &mut TracedThread,
        is_of_32_bits: bool,
        registers: &mut Block,
        tracer: &TracerCpu,
        seen_ns: u64,
        capture: &mut Capture,
    ) -> StopOutcome {
        if registers.read(thread.tid()).is_err() {
            return StopOutcome::Unreadable("killed while stopped");
        }
        // A program may switch to code of the other word size (emulators do), with unknown stack and
        // libraries.
        match (registers.code(), is_of_32_bits) {
            (Code::Native, false) | (Code::Compat, true) => {}
            (Code::Native, true) => return StopOutcome::Unreadable("64-bit code of a 32-bit program"),
            (Code::Compat | Code::Other, _) => return StopOutcome::Unreadable("32-bit code"),
        }
        // Reading the registers waited until the thread was off its CPU: exact.
        let stopped = thread.status().sched();
        capture.status = stopped.map(|sched| ThreadStatus {
            cpu_ns: sched.cpu_ns,
            switches: sched.switches,
            activity: Activity::Runnable,
        });
        let stopped = stopped.unwrap_or(self.before);
        thread.status_mut().set_off_cpu(stopped);
        let times = StopTimes { polled_ns: self.polled_ns, asked_ns: self.asked_ns, seen_ns };
        let kept_cpu = stopped.switches == self.before.switches;
        if !self.keep_waiting {
            // A thread in a call that kept its CPU has not begun to wait.
            if registers.interrupted_call() && !kept_cpu {
                thread.status_mut().note_wrong_wchan();
                return StopOutcome::BeganToWait;
            }
            if !was_on_cpu(self.before, stopped, times, tracer.stint()) {
                return StopOutcome::NotOnCpu;
            }
        }
        capture.registers = registers.convert().unwrap_or_default();
        let sp = capture.registers.sp();
        let below_top = thread
            .stack_top()
            .map(|top| top.0.wrapping_sub(sp.0) as usize)
            .filter(|len| *len <= STACK_BYTES_MAX)
            .map(|len| len + ABOVE_TOP_BYTES);
        let len = self.stack_bytes.min(STACK_BYTES_MAX).min(below_top.unwrap_or(STACK_BYTES_MAX));
        copy_stack(thread.tid(), sp, len, capture);
        thread.read_prefetched(capture);
        StopOutcome::Captured
    }

    /// Records how long the thread was stopped, at the end of the stop.
    pub(super) fn finish(&self, tracer: &TracerCpu, seen_ns: u64, end_ns: u64, capture: &mut Capture) {
        // A thread that stopped while we slept had waited for a CPU: it has been stopped since the end of
        // that sleep or a little longer.
        capture.pause_ns = end_ns - tracer.slept_until_ns().max(self.asked_ns);
        capture.stopped_ns = end_ns - seen_ns;
    }
}

/// Copies `len` bytes from the stack pointer up, and the red zone below it.
fn copy_stack(tid: pid_t, sp: Avma, len: usize, capture: &mut Capture) {
    let below = capture.registers.arch().red_zone_bytes(Abi::SystemV).min(sp.0);
    // Memory below may be unmapped, and so may memory above the top of a stack.
    for below in [below, 0] {
        capture.stack_base = Avma(sp.0 - below);
        // With the thread's tid: the first thread may have exited, and /proc shows no memory through it.
        let read = read_memory_into(tid, capture.stack_base.0, len + below as usize, &mut capture.stack);
        if read.is_ok_and(|read| read as u64 > below) {
            return;
        }
    }
    capture.stack.clear();
}

// ---- A thread in a ptrace stop, and how it continues. Input: a tid and a signal. Effect: the thread runs again
// when the guard is dropped.

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

// ---- Reads prefetched ranges of a stopped thread's stack. Input: the addresses of ranges. Output: the readable
// bytes.

const PAGE_BYTES: u64 = 4096;

/// Reads ranges of the memory of a thread into the buffers of an earlier read.
pub(super) fn read(tid: pid_t, starts: &[u64], into: &mut PrefetchedWords) {
    into.clear();
    let ranges = ranges(starts);
    let mut left = &ranges[..];
    let mut bytes = Vec::new();
    while !left.is_empty() {
        // With the thread's tid: the first thread may have exited, and /proc shows no memory through it.
        if sys::read_ranges(tid, left, &mut bytes).is_err() {
            bytes.clear();
        }
        let mut rest = &bytes[..];
        let mut read = 0;
        for (start, len) in left.iter().take(sys::RANGES_MAX) {
            let Some((range, above)) = rest.split_at_checked(*len) else { break };
            into.push(*start, range);
            (rest, read) = (above, read + 1);
        }
        // Skips the range that could not be read.
        let failed = usize::from(read < left.len().min(sys::RANGES_MAX));
        left = left.get(read + failed..).unwrap_or_default();
    }
}

/// Merges ranges: those in one page are read at once, with the bytes between them.
fn ranges(starts: &[u64]) -> Vec<(u64, usize)> {
    let mut ranges: Vec<(u64, usize)> = Vec::new();
    for start in starts {
        let end = start.saturating_add(PREFETCH_RANGE_BYTES as u64);
        match ranges.last_mut() {
            Some((first, len)) if (end - 1) / PAGE_BYTES == *first / PAGE_BYTES => {
                *len = (*len).max((end - *first) as usize);
            }
            _ => ranges.push((*start, PREFETCH_RANGE_BYTES)),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::{Aarch64, Registers, X86_64};

    #[test]
    fn the_red_zone_is_copied() {
        let own = std::process::id().cast_signed();
        let memory: Vec<u8> = (0..512).map(|at| (at % 251) as u8).collect();
        let sp = Avma(memory.as_ptr().addr() as u64 + 256);
        let registers = Registers::X86_64(X86_64::default());
        let mut capture = Capture { registers, ..Capture::default() };
        // 128 bytes (System V ABI for x86_64, 3.2.2).
        copy_stack(own, sp, 64, &mut capture);
        assert_eq!((capture.stack_base, &*capture.stack), (Avma(sp.0 - 128), &memory[128..320]));
        // The Linux procedure call standard for aarch64 has no red zone.
        capture.registers = Registers::Aarch64(Aarch64::default());
        copy_stack(own, sp, 64, &mut capture);
        assert_eq!((capture.stack_base, &*capture.stack), (sp, &memory[256..320]));
    }
}

#[cfg(test)]
mod prefetch_tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn ranges_in_one_page_are_merged() {
        let starts = [0x1000, 0x1020, 0x1f00, 0x1fc8, 0x3000, 0x4100];
        let expected = [(0x1000, 0xf40), (0x1fc8, 64), (0x3000, 64), (0x4100, 64)];
        assert_eq!(ranges(&starts), expected);
    }

    #[test]
    fn an_unreadable_range_does_not_affect_the_others() {
        let bytes: Vec<u8> = (0..=255).cycle().take(8 * 4096).collect();
        let start = bytes.as_ptr() as u64;
        let mut prefetched = PrefetchedWords::default();
        // Nothing is mapped in the first page, and the last address is invalid.
        let wanted = [0x40, start, start + 0x3001, start + 0x7f00, 0xffff_ffff_ffff_ffc0];
        read(std::process::id().cast_signed(), &wanted, &mut prefetched);
        for at in &wanted[1..4] {
            let offset = (at - start) as usize;
            let word = u64::from_le_bytes(bytes[offset..offset + 8].try_into().unwrap());
            assert_eq!(prefetched.word(*at, 8), Some(word), "{offset:#x}");
        }
        assert_eq!((prefetched.word(0x40, 8), prefetched.word(start + 0x2000, 8)), (None, None));
    }
}
