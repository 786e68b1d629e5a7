//! Timed waits that an ignored signal interrupted: they are restarted, and end at their original deadline.
//!
//! The kernel wakes a traced thread for such a signal. Some calls then fail with EINTR (epoll_wait). Others
//! continue by `restart_syscall` for the rest of their time, for which a seccomp filter may kill. Both are
//! restarted with their original arguments (`registers.rs`), which alone would wait for the whole time again.
//! The tracer keeps the deadline of the first wait and ends the call then, with the result of a timeout.
//!
//! The thread stops at the entry and at the exit of that call (PTRACE_SYSCALL), so that no other wait can be
//! mistaken for it.

use hashbrown::{HashMap, HashSet};
use libc::{c_int, pid_t};

use super::registers::Block;
use super::seccomp::is_filtered;
use super::stopped_thread::{Resume, StoppedThread, ignores};
use super::sys;
use super::thread::Thread;
use crate::clock::{Clock, RealClock};

/// `si_status` of a stop at a system call, with PTRACE_O_TRACESYSGOOD.
pub(super) const SYSCALL_STOP: c_int = libc::SIGTRAP | 0x80;

/// A wait that was restarted.
#[derive(Clone, Copy, Debug)]
struct RestartedWait {
    deadline_ns: u64,
    /// The result of the call on timeout.
    result: i64,
    /// The thread has stopped at the entry of the call; the next call stop is the exit.
    entered: bool,
    /// A stop was requested at the deadline.
    interrupted: bool,
}

/// Threads whose waits were restarted, and how they continue after a stop.
#[derive(Debug, Default)]
pub(super) struct RestartedWaits {
    waits: HashMap<pid_t, RestartedWait>,
    /// Threads that a signal that their process ignores has woken from a wait that had to be restarted.
    woken: HashSet<pid_t>,
    /// Threads are detached at their next stop.
    releasing: bool,
}

impl RestartedWaits {
    /// Repairs the interrupted call of a thread with these registers, and decides how it continues. `asked`: the
    /// stop was requested, and may interrupt waits that have just begun.
    pub(super) fn repair(
        &mut self,
        stopped: &mut StoppedThread,
        thread: &mut Thread,
        registers: &mut Block,
        asked: bool,
        clock: &RealClock,
    ) {
        let (tid, signal) = (stopped.tid(), stopped.signal());
        thread.leave_job_stop();
        let is_handled = || signal != 0 && !ignores(tid, signal);
        let (wait, is_continued) = (registers.timed_wait(), registers.is_continued());
        if thread.repair_call(registers, is_handled, || is_filtered(tid)) {
            let _ = registers.write(tid);
            if let Some(wait) = wait.filter(|_| !asked && !self.waits.contains_key(&tid)) {
                let now_ns = clock.now_ns();
                let waited_ns = thread.status().waited_ns(now_ns);
                if is_continued {
                    self.woken.insert(tid);
                }
                if let Some(deadline_ns) = wait.deadline_ns(tid, now_ns, waited_ns) {
                    let result = wait.result;
                    let wait = RestartedWait { deadline_ns, result, entered: false, interrupted: false };
                    self.waits.insert(tid, wait);
                }
            }
        }
        if self.waits.contains_key(&tid) && is_handled() {
            // The handler ends the wait.
            self.cancel(tid);
        }
        stopped.set_resume(self.resume(tid));
    }

    /// Handles a stop at the entry or the exit of a restarted wait, and decides how the thread continues.
    pub(super) fn pass_call(
        &mut self,
        stopped: &mut StoppedThread,
        thread: Option<&mut Thread>,
        registers: &mut Block,
        clock: &RealClock,
    ) {
        if let Some(thread) = thread
            && let Some(wait) = self.waits.get_mut(&stopped.tid())
        {
            wait.entered = !wait.entered;
            if !wait.entered && has_ended(*wait, thread, registers, clock) {
                self.cancel(stopped.tid());
            }
        }
        stopped.set_resume(self.resume(stopped.tid()));
    }

    fn resume(&mut self, tid: pid_t) -> Resume {
        if self.releasing {
            self.woken.remove(&tid);
            return Resume::Detach;
        }
        if self.waits.contains_key(&tid) { Resume::UntilSyscall } else { Resume::Continue }
    }

    /// Forgets the wait of a thread that no longer waits.
    pub(super) fn cancel(&mut self, tid: pid_t) {
        self.waits.remove(&tid);
    }

    /// Forgets a thread that has exited.
    pub(super) fn forget(&mut self, tid: pid_t) {
        self.cancel(tid);
        self.woken.remove(&tid);
    }

    /// Forgets everything, because nothing is traced any longer.
    pub(super) fn clear(&mut self) {
        *self = RestartedWaits::default();
    }

    /// Requests stops of threads with expired waits. Returns the next deadline.
    pub(super) fn end_expired(&mut self, clock: &RealClock) -> u64 {
        if self.waits.is_empty() {
            return u64::MAX;
        }
        let now_ns = clock.now_ns();
        let mut next_ns = u64::MAX;
        for (tid, wait) in self.waits.iter_mut().filter(|(_, wait)| !wait.interrupted) {
            if wait.deadline_ns <= now_ns {
                let _ = sys::interrupt(*tid);
                wait.interrupted = true;
            } else {
                next_ns = next_ns.min(wait.deadline_ns);
            }
        }
        next_ns
    }

    /// Begins to detach, one by one, threads woken by an ignored signal: if the tracer exited while several are
    /// stopped, nothing would repair their calls.
    pub(super) fn begin_release(&mut self) {
        self.releasing |= self.is_releasing();
        for tid in &self.woken {
            let _ = sys::interrupt(*tid);
        }
    }

    /// Whether threads are left to detach.
    pub(super) fn is_releasing(&self) -> bool {
        !self.woken.is_empty()
    }
}

/// Whether the restarted wait of a thread that is stopped at the exit of its call has ended: repairs the call.
fn has_ended(wait: RestartedWait, thread: &mut Thread, registers: &mut Block, clock: &RealClock) -> bool {
    let tid = thread.tid();
    if registers.read(tid).is_err() || !registers.is_interrupted_wait() {
        return true;
    }
    let is_over = clock.now_ns() >= wait.deadline_ns;
    if is_over {
        registers.set_call_result(wait.result);
    } else {
        // A signal with a handler still ends it with EINTR.
        thread.repair_call(registers, || false, || true);
    }
    let _ = registers.write(tid);
    is_over
}
