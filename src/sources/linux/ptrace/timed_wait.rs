//! System calls that wait with a relative timeout (`TimedWait`), and those that an ignored signal interrupted: they
//! are restarted and end at their original deadline (`RestartedWaits`). Input: registers. Output: the call, and its
//! deadline.

use hashbrown::{HashMap, HashSet};
use libc::{c_int, pid_t};

use super::registers::Block;
use super::seize::is_filtered;
use super::stop::{Resume, StoppedThread, ignores};
use super::tracees::TracedThread;
use crate::clock::{Clock, RealClock};
use crate::sources::linux::{ptrace, sys};

/// System calls that wait for a relative time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))] // other kernels do not show what they will do
pub(super) enum WaitCall {
    /// nanosleep(2)
    Nanosleep,
    /// clock_nanosleep(2)
    ClockNanosleep,
    /// poll(2)
    Poll,
    /// futex(2)
    Futex,
    /// epoll_wait(2), epoll_pwait(2)
    Epoll,
    /// epoll_pwait2(2)
    EpollTimespec,
    /// semtimedop(2)
    Semaphore,
}

/// The timeout of an interrupted wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timeout {
    /// This long after its start.
    Milliseconds(u64),
    /// In a `timespec` with words of this size.
    Timespec { at: u64, word_bytes: usize },
    /// The remaining time, which the kernel has written there.
    Rest { at: u64, word_bytes: usize },
}

/// A wait with a relative timeout: restarted, it would last longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TimedWait {
    pub(super) timeout: Timeout,
    /// The result of the call on timeout.
    pub(super) result: i64,
}

impl TimedWait {
    /// Derives it from the call's arguments. `None` for a wait that does not last longer if restarted: it has
    /// no timeout or an absolute one, or the kernel has replaced the timeout by the remaining time.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))] // as above
    pub(super) fn of(call: WaitCall, arguments: [u64; 4], word_bytes: usize) -> Option<TimedWait> {
        const FUTEX_COMMAND: u64 = !(128 | 256); // without FUTEX_PRIVATE_FLAG and FUTEX_CLOCK_REALTIME
        const FUTEX_WAIT: u64 = 0;
        let [first, second, third, fourth] = arguments;
        let sleep = |at: u64, rest: u64| match rest {
            0 => Some(TimedWait { timeout: Timeout::Timespec { at, word_bytes }, result: 0 }),
            rest if rest == at => None,
            at => Some(TimedWait { timeout: Timeout::Rest { at, word_bytes }, result: 0 }),
        };
        let milliseconds = |ms: u64| {
            let ms = u64::try_from(ms as i32).ok()?;
            Some(TimedWait { timeout: Timeout::Milliseconds(ms), result: 0 })
        };
        let timespec = |at: u64, error: c_int| {
            let timeout = Timeout::Timespec { at, word_bytes };
            (at != 0).then(|| TimedWait { timeout, result: -i64::from(error) })
        };
        match call {
            WaitCall::Nanosleep => sleep(first, second),
            // Other clocks need not advance like the tracer's.
            WaitCall::ClockNanosleep => {
                let clocks = [libc::CLOCK_REALTIME, libc::CLOCK_MONOTONIC, libc::CLOCK_BOOTTIME];
                let known = clocks.contains(&(first as i32));
                let relative = second as i32 & libc::TIMER_ABSTIME == 0;
                if known && relative { sleep(third, fourth) } else { None }
            }
            WaitCall::Poll => milliseconds(third),
            WaitCall::Epoll => milliseconds(fourth),
            WaitCall::EpollTimespec => timespec(fourth, 0),
            WaitCall::Semaphore => timespec(fourth, libc::EAGAIN),
            WaitCall::Futex if second & FUTEX_COMMAND & u64::from(u32::MAX) != FUTEX_WAIT => None,
            WaitCall::Futex => timespec(fourth, libc::ETIMEDOUT),
        }
    }

    /// Deadline of the wait that was interrupted at `now_ns` after it had lasted for at least `waited_ns`.
    pub(super) fn deadline_ns(&self, tid: pid_t, now_ns: u64, waited_ns: u64) -> Option<u64> {
        let read = |at, word_bytes| {
            let mut bytes = [0; 16];
            let bytes = bytes.get_mut(..2 * word_bytes)?;
            (sys::read_memory(tid, at, bytes).ok()? == bytes.len()).then(|| timespec_ns(bytes))?
        };
        match self.timeout {
            Timeout::Milliseconds(ms) => {
                Some((now_ns + ms.saturating_mul(1_000_000)).saturating_sub(waited_ns).max(now_ns))
            }
            Timeout::Timespec { at, word_bytes } => {
                Some(now_ns.saturating_add(read(at, word_bytes)?).saturating_sub(waited_ns).max(now_ns))
            }
            Timeout::Rest { at, word_bytes } => Some(now_ns.saturating_add(read(at, word_bytes)?)),
        }
    }
}

/// The time in a `timespec` of two words of 4 or 8 bytes, nanoseconds; `None` if invalid.
fn timespec_ns(bytes: &[u8]) -> Option<u64> {
    let word = |bytes: &[u8]| match bytes.len() {
        4 => u64::try_from(i32::from_ne_bytes(bytes.try_into().ok()?)).ok(),
        _ => u64::try_from(i64::from_ne_bytes(bytes.try_into().ok()?)).ok(),
    };
    let (seconds, ns) = bytes.split_at(bytes.len() / 2);
    let ns = word(ns).filter(|ns| *ns < 1_000_000_000)?;
    Some(word(seconds)?.saturating_mul(1_000_000_000).saturating_add(ns))
}

// ---- Timed waits that an ignored signal interrupted: they are restarted, and end at their original deadline.
//
// The kernel wakes a traced thread for such a signal. Some calls then fail with EINTR (epoll_wait). Others
// continue by `restart_syscall` for the rest of their time, for which a seccomp filter may kill. Both are
// restarted with their original arguments (`registers.rs`), which alone would wait for the whole time again.
// The tracer keeps the deadline of the first wait and ends the call then, with the result of a timeout.
//
// The thread stops at the entry and at the exit of that call (PTRACE_SYSCALL), so that no other wait can be
// mistaken for it.

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
        thread: &mut TracedThread,
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
        thread: Option<&mut TracedThread>,
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
                let _ = ptrace::sys::interrupt(*tid);
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
            let _ = ptrace::sys::interrupt(*tid);
        }
    }

    /// Whether threads are left to detach.
    pub(super) fn is_releasing(&self) -> bool {
        !self.woken.is_empty()
    }
}

/// Whether the restarted wait of a thread that is stopped at the exit of its call has ended: repairs the call.
fn has_ended(
    wait: RestartedWait,
    thread: &mut TracedThread,
    registers: &mut Block,
    clock: &RealClock,
) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_relative_waits_last_longer_when_restarted() {
        let of = |call, arguments| TimedWait::of(call, arguments, 8);
        let timespec = |at| Timeout::Timespec { at, word_bytes: 8 };
        let sleep = of(WaitCall::Nanosleep, [0x10, 0, 0, 0]);
        assert_eq!(sleep, Some(TimedWait { timeout: timespec(0x10), result: 0 }));
        let rest = Timeout::Rest { at: 0x20, word_bytes: 8 };
        let with_rest = of(WaitCall::Nanosleep, [0x10, 0x20, 0, 0]).map(|wait| wait.timeout);
        assert_eq!(with_rest, Some(rest));
        assert_eq!(of(WaitCall::Nanosleep, [0x10, 0x10, 0, 0]), None, "the kernel has replaced it");
        assert_eq!(of(WaitCall::ClockNanosleep, [1, 1, 0x10, 0]), None, "absolute");
        assert_eq!(of(WaitCall::ClockNanosleep, [2, 0, 0x10, 0]), None, "CPU time");
        assert_eq!(
            of(WaitCall::ClockNanosleep, [1, 0, 0x10, 0]).map(|wait| wait.timeout),
            Some(timespec(0x10))
        );
        let poll = |ms: i32| of(WaitCall::Poll, [0, 0, u64::from(ms.cast_unsigned()), 0]);
        assert_eq!(poll(-1), None);
        assert_eq!(poll(7).map(|wait| wait.timeout), Some(Timeout::Milliseconds(7)));
        let futex = |operation, at| of(WaitCall::Futex, [0, operation, 0, at]).map(|wait| wait.result);
        assert_eq!((futex(128, 0x10), futex(0, 0x10)), (Some(-110), Some(-110)));
        assert_eq!((futex(0, 0), futex(9, 0x10)), (None, None), "none, and an absolute one");
        let wait = |call, result| of(call, [0, 0, 0x10, 0x10]).is_some_and(|wait| wait.result == result);
        assert!(wait(WaitCall::Epoll, 0) && wait(WaitCall::EpollTimespec, 0));
        assert!(wait(WaitCall::Semaphore, -11));
    }

    #[test]
    fn timespecs_have_words_of_both_sizes() {
        let words = |seconds: i64, ns: i64| [seconds.to_ne_bytes(), ns.to_ne_bytes()].concat();
        assert_eq!(timespec_ns(&words(2, 5)), Some(2_000_000_005));
        assert_eq!(timespec_ns(&[1i32.to_ne_bytes(), 7i32.to_ne_bytes()].concat()), Some(1_000_000_007));
        assert_eq!((timespec_ns(&words(-1, 0)), timespec_ns(&words(0, 1_000_000_000))), (None, None));
    }

    #[test]
    fn a_deadline_is_the_remaining_time_ahead() {
        let poll = TimedWait { timeout: Timeout::Milliseconds(10), result: 0 };
        assert_eq!(poll.deadline_ns(0, 50_000_000, 4_000_000), Some(56_000_000));
        assert_eq!(poll.deadline_ns(0, 50_000_000, 40_000_000), Some(50_000_000));
        let time = [3i64.to_ne_bytes(), 0i64.to_ne_bytes()].concat();
        let at = time.as_ptr() as u64;
        let own = std::process::id().cast_signed();
        let sleep = |timeout| TimedWait { timeout, result: 0 }.deadline_ns(own, 9, 4);
        assert_eq!(sleep(Timeout::Timespec { at, word_bytes: 8 }), Some(3_000_000_005));
        assert_eq!(sleep(Timeout::Rest { at, word_bytes: 8 }), Some(3_000_000_009));
        assert_eq!(sleep(Timeout::Timespec { at: 0, word_bytes: 8 }), None);
    }
}
