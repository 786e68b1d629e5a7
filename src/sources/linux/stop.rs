//! One ptrace stop: reads registers and stack bytes of the thread, and continues it with its pending signal.
//! Input: a stopped thread. Output: a capture.
//!
//! While a thread is stopped, only registers and stack bytes are read. Everything else happens before the
//! stop request or after the thread runs again.

use libc::pid_t;

use super::on_cpu::{StopTimes, was_on_cpu};
use super::registers::Code;
use super::stopped_thread::{Resume, StoppedThread};
use super::target::{LinuxTarget, thread_id};
use super::threads::Pending;
use super::traced_process::TracedProcess;
use super::{prefetch, sys};
use crate::addr::Avma;
use crate::arch::Abi;
use crate::clock::Clock;
use crate::sources::{Activity, Capture, Outcome, TargetEvent, ThreadStatus};

/// Most stack bytes to copy: the default stack limit.
const STACK_BYTES_MAX: usize = 8 << 20;

/// Start code may pop its arguments before it calls: then the first return address lies above the initial
/// stack pointer of the thread (musl src/thread/x86_64/clone.s).
const ABOVE_TOP_BYTES: usize = 64;

impl LinuxTarget {
    /// Captures a thread with a stop request, whatever made it stop: any stop clears the request
    /// (kernel/signal.c, ptrace_stop). Continues any other thread.
    pub(super) fn collect_if_pending(
        &mut self,
        stopped: StoppedThread,
        capture: &mut Capture,
    ) -> Option<TargetEvent> {
        let thread = thread_id(stopped.tid);
        let Some(pending) = self.no_longer_pending(stopped.tid) else {
            self.pass_on(stopped);
            return None;
        };
        let outcome = self.collect(stopped, pending, capture);
        Some(TargetEvent::Stopped { thread, outcome })
    }

    /// Handles an exiting thread. If it is the first one, usually the whole process exits: its memory is
    /// readable while this thread stays stopped, until the sampler polls again.
    pub(super) fn handle_exit_stop(
        &mut self,
        stopped: StoppedThread,
        capture: &mut Capture,
    ) -> Option<TargetEvent> {
        let tid = stopped.tid;
        if !self.processes.contains_key(&tid) {
            return self.collect_if_pending(stopped, capture);
        }
        self.queue.push_back(TargetEvent::Exiting { process: tid.unsigned_abs() });
        let pending = self.no_longer_pending(tid);
        let event = pending.map(|pending| {
            let outcome = self.read_at(tid, pending, capture);
            TargetEvent::Stopped { thread: thread_id(tid), outcome }
        });
        self.exiting = Some(stopped);
        event.or_else(|| self.queue.pop_front())
    }

    /// Delivers a signal, or lets a stop by job control end. The kernel wakes a traced thread even for a
    /// signal that its process ignores, SIGCONT among them, so a call that fails with EINTR is then repaired
    /// as after our own stops.
    fn pass_on(&mut self, mut stopped: StoppedThread) {
        let tid = stopped.tid;
        // Job control interrupted that call, as it would without a tracer.
        let of_job_control = stopped.signal == 0
            && self.threads.get_mut(&tid).is_some_and(|thread| std::mem::take(&mut thread.job_stopped));
        if !of_job_control && self.raw.read(tid).is_ok() {
            self.repair(&mut stopped, false);
        }
        self.resume_thread(stopped);
    }

    /// Continues a thread.
    pub(super) fn resume_thread(&mut self, stopped: StoppedThread) {
        if stopped.resume == Resume::Detach
            && let Some(thread) = self.threads.get_mut(&stopped.tid)
        {
            thread.detached = true;
        }
    }

    /// Captures registers and stack bytes of a stopped thread; it runs again on return.
    fn collect(&mut self, mut stopped: StoppedThread, pending: Pending, capture: &mut Capture) -> Outcome {
        let tid = stopped.tid;
        let seen_ns = self.clock.now_ns();
        let outcome = self.read_capture(tid, pending, seen_ns, capture);
        if !matches!(outcome, Outcome::Unreadable(_)) {
            let asked = stopped.signal == 0;
            self.repair(&mut stopped, asked);
        }
        self.resume_thread(stopped);
        self.finish_stop(tid, pending, seen_ns, outcome, capture);
        outcome
    }

    /// Captures registers and stack bytes of a stopped thread, which stays stopped.
    fn read_at(&mut self, tid: pid_t, pending: Pending, capture: &mut Capture) -> Outcome {
        let seen_ns = self.clock.now_ns();
        let outcome = self.read_capture(tid, pending, seen_ns, capture);
        self.finish_stop(tid, pending, seen_ns, outcome, capture);
        outcome
    }

    /// Accounts for a completed stop.
    fn finish_stop(
        &mut self,
        tid: pid_t,
        pending: Pending,
        seen_ns: u64,
        outcome: Outcome,
        capture: &mut Capture,
    ) {
        let end_ns = self.clock.now_ns();
        // A thread that stopped while we slept had waited for a CPU: it has been stopped since the end of
        // that sleep or a little longer.
        capture.pause_ns = end_ns - self.slept_until_ns.max(pending.asked_ns);
        capture.stopped_ns = end_ns - seen_ns;
        if outcome == Outcome::BeganToWait
            && let Some(thread) = self.threads.get_mut(&tid)
        {
            thread.status.doubt();
        }
    }

    /// Captures registers and stack bytes of a thread stopped by job control. Changes nothing in it: this
    /// profiler did not interrupt its call.
    pub(super) fn read_stopped(&mut self, tid: pid_t, pending: Pending, capture: &mut Capture) -> Outcome {
        capture.reset();
        if !pending.keep_waiting {
            return Outcome::Unreadable("stopped by job control");
        }
        let seen_ns = self.clock.now_ns();
        self.read_capture(tid, pending, seen_ns, capture)
    }

    fn read_capture(&mut self, tid: pid_t, pending: Pending, seen_ns: u64, capture: &mut Capture) -> Outcome {
        if self.raw.read(tid).is_err() {
            return Outcome::Unreadable("killed while stopped");
        }
        let in_call = self.raw.interrupted_call();
        let Some(thread) = self.threads.get_mut(&tid) else {
            return Outcome::Unreadable("killed while stopped");
        };
        // A program may switch to code of the other word size (emulators do), with unknown stack and
        // libraries.
        let of_32_bits = self.processes.get(&thread.pid).is_some_and(TracedProcess::is_of_32_bits);
        match (self.raw.code(), of_32_bits) {
            (Code::Native, false) | (Code::Compat, true) => {}
            (Code::Native, true) => return Outcome::Unreadable("64-bit code of a 32-bit program"),
            (Code::Compat | Code::Other, _) => return Outcome::Unreadable("32-bit code"),
        }
        // Reading the registers waited until the thread was off its CPU: exact.
        let stopped = thread.status.sched();
        capture.status = stopped.map(|sched| ThreadStatus {
            cpu_ns: sched.cpu_ns,
            switches: sched.switches,
            activity: Activity::Runnable,
        });
        let stopped = stopped.unwrap_or(pending.before);
        thread.status.set_off_cpu(stopped);
        let times = StopTimes { polled_ns: pending.polled_ns, asked_ns: pending.asked_ns, seen_ns };
        let kept_cpu = stopped.switches == pending.before.switches;
        let outcome = match () {
            () if pending.keep_waiting => Outcome::Captured,
            // A thread in a call that kept its CPU has not begun to wait.
            () if in_call && !kept_cpu => Outcome::BeganToWait,
            () if was_on_cpu(pending.before, stopped, times, self.own.stint) => Outcome::Captured,
            () => Outcome::NotOnCpu,
        };
        if outcome == Outcome::Captured {
            capture.registers = self.raw.convert().unwrap_or_default();
            let sp = capture.registers.sp();
            let below_top = thread
                .stack_top
                .map(|top| top.0.wrapping_sub(sp.0) as usize)
                .filter(|len| *len <= STACK_BYTES_MAX)
                .map(|len| len + ABOVE_TOP_BYTES);
            let len = pending.stack_bytes.min(STACK_BYTES_MAX).min(below_top.unwrap_or(STACK_BYTES_MAX));
            copy_stack(tid, sp, len, capture);
            prefetch::read(tid, &thread.prefetch, &mut capture.prefetched);
            if !thread.prefetch.is_empty() {
                capture.prefetched.blocked_signals = sys::blocked_signals(tid).ok();
            }
        }
        outcome
    }
}

/// Copies `len` bytes from the stack pointer up, and the red zone below it.
fn copy_stack(tid: pid_t, sp: Avma, len: usize, capture: &mut Capture) {
    let below = capture.registers.arch().red_zone_bytes(Abi::SystemV).min(sp.0);
    // Memory below may be unmapped, and so may memory above the top of a stack.
    for below in [below, 0] {
        capture.stack_base = Avma(sp.0 - below);
        // With the thread's tid: the first thread may have exited, and /proc shows no memory through it.
        let read = sys::read_memory_into(tid, capture.stack_base.0, len + below as usize, &mut capture.stack);
        if read.is_ok_and(|read| read as u64 > below) {
            return;
        }
    }
    capture.stack.clear();
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
