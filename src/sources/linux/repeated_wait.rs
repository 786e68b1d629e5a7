//! Timed waits that an ignored signal interrupted: they are restarted, and end at their original deadline.
//!
//! The kernel wakes a traced thread for such a signal. Some calls then fail with EINTR (epoll_wait). Others
//! continue by `restart_syscall` for the rest of their time, for which a seccomp filter may kill. Both are
//! restarted with their original arguments (`registers.rs`), which alone would wait for the whole time again.
//! The tracer keeps the deadline of the first wait and ends the call then, with the result of a timeout.
//!
//! The thread stops at the entry and at the exit of that call (PTRACE_SYSCALL), so that no other wait can be
//! mistaken for it.

use libc::{c_int, pid_t};

use super::sleeping_thread;
use super::stopped_thread::{Resume, StoppedThread, ignores};
use super::sys;
use super::target::LinuxTarget;
use super::timed_wait::RepeatedWait;
use crate::clock::Clock;

/// `si_status` of a stop at a system call, with PTRACE_O_TRACESYSGOOD.
pub(super) const AT_CALL: c_int = libc::SIGTRAP | 0x80;

/// Time for threads to stop before they are detached one by one, nanoseconds.
const RELEASE_NS: u64 = 50_000_000;

impl LinuxTarget {
    /// Repairs the interrupted call of the thread in `raw`, and decides how it continues. `asked`: the stop
    /// was requested, and may interrupt waits that have just begun.
    pub(super) fn repair(&mut self, stopped: &mut StoppedThread, asked: bool) {
        let (tid, signal) = (stopped.tid, stopped.signal);
        let Some(thread) = self.threads.get_mut(&tid) else { return };
        thread.job_stopped = false;
        let is_handled = || signal != 0 && !ignores(tid, signal);
        let (wait, continued) = (self.raw.timed_wait(), self.raw.is_continued());
        let filtered = || sleeping_thread::is_filtered(tid);
        if self.raw.repair_interrupted_call(&mut thread.calls, is_handled, filtered) {
            let _ = self.raw.write(tid);
            if let (Some(wait), None, false) = (wait, thread.repeated, asked) {
                let now_ns = self.clock.now_ns();
                let waited_ns = thread.status.waited_ns(now_ns);
                thread.woken |= continued;
                if let Some(deadline_ns) = wait.deadline_ns(tid, now_ns, waited_ns) {
                    thread.repeated = Some(RepeatedWait { deadline_ns, result: wait.result, entered: false });
                    self.deadlines.push((deadline_ns, tid));
                }
            }
        }
        if thread.repeated.is_some() && is_handled() {
            // The handler ends the wait.
            thread.repeated = None;
        }
        stopped.resume = match thread.repeated {
            _ if self.releasing => Resume::Detach,
            Some(_) => Resume::UntilCall,
            None => Resume::Continue,
        };
    }

    /// Handles a stop at the entry or the exit of a restarted wait.
    pub(super) fn at_call(&mut self, tid: pid_t) {
        let mut stopped = StoppedThread::new(tid);
        stopped.resume = match self.goes_on_repeating(tid) {
            _ if self.releasing => Resume::Detach,
            true => Resume::UntilCall,
            false => Resume::Continue,
        };
        self.resume_thread(stopped);
    }

    /// Whether a thread at the entry or the exit of its repeated wait is still in it.
    fn goes_on_repeating(&mut self, tid: pid_t) -> bool {
        let Some(thread) = self.threads.get_mut(&tid) else { return false };
        let Some(wait) = &mut thread.repeated else { return false };
        let entered = wait.entered;
        wait.entered = !entered;
        if !entered {
            return true;
        }
        let wait = *wait;
        if self.raw.read(tid).is_err() || !self.raw.is_interrupted_wait() {
            thread.repeated = None;
            return false;
        }
        let is_over = self.clock.now_ns() >= wait.deadline_ns;
        if is_over {
            thread.repeated = None;
            self.raw.set_call_result(wait.result);
        } else {
            // A signal with a handler still ends it with EINTR.
            self.raw.repair_interrupted_call(&mut thread.calls, || false, || true);
        }
        let _ = self.raw.write(tid);
        !is_over
    }

    /// Requests stops of threads with expired restarted waits. Returns the next deadline.
    pub(super) fn end_repeated_waits(&mut self) -> u64 {
        if self.deadlines.is_empty() {
            return u64::MAX;
        }
        let now_ns = self.clock.now_ns();
        let threads = &self.threads;
        self.deadlines.retain(|(deadline_ns, tid)| {
            let waits = threads.get(tid).and_then(|thread| thread.repeated);
            if waits.is_none_or(|wait| wait.deadline_ns != *deadline_ns) {
                return false;
            }
            if *deadline_ns <= now_ns {
                let _ = sys::interrupt(*tid);
                return false;
            }
            true
        });
        self.deadlines.iter().map(|(deadline_ns, _)| *deadline_ns).min().unwrap_or(u64::MAX)
    }

    /// Detaches, one by one, threads woken by an ignored signal: if the tracer exited while several are
    /// stopped, nothing would repair their calls.
    pub(super) fn release_woken(&mut self) {
        let woken: Vec<pid_t> =
            self.threads.iter().filter(|(_, thread)| thread.woken).map(|(tid, _)| *tid).collect();
        if woken.is_empty() {
            return;
        }
        self.releasing = true;
        for tid in &woken {
            let _ = sys::interrupt(*tid);
        }
        let until_ns = self.clock.now_ns() + RELEASE_NS;
        let mut capture = crate::sources::Capture::with_capacity(0);
        let is_traced =
            |target: &LinuxTarget, tid| target.threads.get(tid).is_some_and(|thread| !thread.detached);
        while woken.iter().any(|tid| is_traced(self, tid)) && self.clock.now_ns() < until_ns {
            if self.next_event(until_ns, &mut capture).is_err() {
                return;
            }
        }
    }
}
