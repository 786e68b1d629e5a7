//! Timed waits that an ignored signal interrupted: they are restarted, and end at their original deadline.
//!
//! The kernel wakes a traced thread for such a signal. Some calls then fail with EINTR (epoll_wait). Others it
//! would continue by `restart_syscall` for the rest of their time, for which a seccomp filter may kill. Both are
//! restarted with their own arguments (`registers.rs`), which alone would wait for the whole time again. The
//! tracer keeps the deadline of the first wait and ends the call then, with the result of a timeout.
//!
//! The thread stops at the entry and at the exit of that call (PTRACE_SYSCALL), so that no other wait
//! can be taken for it.

use libc::{c_int, pid_t};

use super::sleeping_thread;
use super::stopped_thread::{Resume, StoppedThread, ignores};
use super::sys;
use super::trace::LinuxTarget;
use crate::clock::Clock;

/// `si_status` of a stop at a system call, with PTRACE_O_TRACESYSGOOD.
pub(super) const AT_CALL: c_int = libc::SIGTRAP | 0x80;

/// How long threads have to stop before they are detached one by one, nanoseconds.
const RELEASE_NS: u64 = 50_000_000;

/// The calls that wait for a relative time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))] // elsewhere the kernel does not show what it will do
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

/// When an interrupted wait ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timeout {
    /// So long after it began.
    Milliseconds(u64),
    /// After the time in a `timespec` with words of this size.
    Timespec { at: u64, word_bytes: usize },
    /// The kernel has written the rest of its time there.
    Rest { at: u64, word_bytes: usize },
}

/// A wait with a relative timeout: restarted, it would last longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TimedWait {
    pub(super) timeout: Timeout,
    /// The result of the call when its time has passed.
    pub(super) result: i64,
}

impl TimedWait {
    /// By the arguments of the call. `None` for a wait that lasts as long if it is made again: it has no
    /// timeout or an absolute one, or the kernel has replaced the timeout by the rest.
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
            // Other clocks need not pass as the tracer's does.
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

    /// When the wait ends that was interrupted at `now_ns` and had lasted for `waited_ns` or longer.
    fn deadline_ns(&self, tid: pid_t, now_ns: u64, waited_ns: u64) -> Option<u64> {
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

/// The time in a `timespec` of two words of 4 or 8 bytes, nanoseconds; `None` if it is none.
fn timespec_ns(bytes: &[u8]) -> Option<u64> {
    let word = |bytes: &[u8]| match bytes.len() {
        4 => u64::try_from(i32::from_ne_bytes(bytes.try_into().ok()?)).ok(),
        _ => u64::try_from(i64::from_ne_bytes(bytes.try_into().ok()?)).ok(),
    };
    let (seconds, ns) = bytes.split_at(bytes.len() / 2);
    let ns = word(ns).filter(|ns| *ns < 1_000_000_000)?;
    Some(word(seconds)?.saturating_mul(1_000_000_000).saturating_add(ns))
}

/// A wait that was restarted.
#[derive(Clone, Copy, Debug)]
pub(super) struct RepeatedWait {
    deadline_ns: u64,
    result: i64,
    /// It has stopped at the entry of the call; the next stop at a call is the exit.
    entered: bool,
}

impl LinuxTarget {
    /// Repairs the call that a stop interrupted, of the thread whose registers were read, and decides how
    /// it goes on. `asked`: the stop is one that was asked for, which finds waits that have just begun.
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
                let waited_ns = thread.waited_ns(now_ns);
                thread.woken |= continued;
                if let Some(deadline_ns) = wait.deadline_ns(tid, now_ns, waited_ns) {
                    thread.repeated = Some(RepeatedWait { deadline_ns, result: wait.result, entered: false });
                    self.deadlines.push((deadline_ns, tid));
                }
            }
        }
        if thread.repeated.is_some() && is_handled() {
            // Its handler ends the wait.
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
        self.let_go(stopped);
    }

    /// Whether a thread at the entry or the exit of its repeated wait still makes it.
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
            // A signal that has a handler still ends it with EINTR.
            self.raw.repair_interrupted_call(&mut thread.calls, || false, || true);
        }
        let _ = self.raw.write(tid);
        !is_over
    }

    /// Asks threads whose restarted waits have reached their deadline to stop. Returns the next deadline.
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

    /// Detaches, one by one, threads that an ignored signal has woken: were the tracer to end while several
    /// are stopped, nothing would repair their calls.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_relative_waits_last_longer_when_they_are_made_again() {
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
    fn times_have_words_of_both_sizes() {
        let words = |seconds: i64, ns: i64| [seconds.to_ne_bytes(), ns.to_ne_bytes()].concat();
        assert_eq!(timespec_ns(&words(2, 5)), Some(2_000_000_005));
        assert_eq!(timespec_ns(&[1i32.to_ne_bytes(), 7i32.to_ne_bytes()].concat()), Some(1_000_000_007));
        assert_eq!((timespec_ns(&words(-1, 0)), timespec_ns(&words(0, 1_000_000_000))), (None, None));
    }

    #[test]
    fn a_deadline_lies_as_far_ahead_as_the_wait_has_left() {
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
