//! Requested stops and their outcomes: how many to make in one hold, and which threads were on a CPU.

use std::collections::VecDeque;

use super::threads::ThreadReport;
use crate::sources::{Capture, Outcome, ThreadId};

/// Threads to copy in one hold. A hold stops all running threads, whichever is copied, so many small holds
/// cost more than a long one; the table is in docs/decisions/mach-holds-the-task.md.
const AT_ONCE: usize = 16;

/// Target for the length of a hold, nanoseconds: if calls are slow, fewer threads are copied in one.
pub(super) const HOLD_NS: u64 = 1_000_000;

/// Calls in a hold for one thread: a poll, its registers, its stack in three pieces at first.
const COPY_CALLS: u64 = 5;

/// Ready threads get the CPUs that the threads of a held task leave, and run up to their own stop, which is
/// in the kernel: time up to this is no proof of a CPU before.
const DISPATCH_NS: u64 = 3_000;

/// After this many consecutive stops in which no thread had used any time, CPU times are considered too
/// coarse.
const UNMOVED_MAX: u32 = 512;

/// After this many consecutive stops in which a thread that had a CPU up to the hold was reported ready in
/// it, the system is assumed to report that of all.
const READY_MAX: u32 = 64;

/// A requested stop.
#[derive(Clone, Copy, Debug)]
pub(super) struct StopRequest {
    pub(super) thread: ThreadId,
    pub(super) stack_bytes: usize,
    /// Capture it anywhere; otherwise only if it is on a CPU.
    pub(super) keep_waiting: bool,
}

/// The outcome of a stop request.
pub(super) struct Stop {
    pub(super) asked: StopRequest,
    pub(super) outcome: Outcome,
    pub(super) capture: Capture,
    /// The poll right before the hold, and when it returned.
    pub(super) before: Option<(ThreadReport, u64)>,
}

/// Requested and completed stops of a task.
#[derive(Default)]
pub(super) struct Stops {
    pub(super) asked: VecDeque<StopRequest>,
    pub(super) made: VecDeque<Stop>,
    pub(super) spare: Vec<Capture>,
    /// Time per thread in the last hold, nanoseconds.
    pub(super) copy_ns: u64,
    /// Consecutive stops that contradict the reports (see [`UNMOVED_MAX`], [`READY_MAX`]).
    pub(super) unmoved: u32,
    pub(super) ready: u32,
}

impl Stops {
    /// Requests a stop, at most one at a time per thread.
    pub(super) fn ask(&mut self, asked: StopRequest) {
        if !self.asked.iter().any(|other| other.thread == asked.thread) {
            self.asked.push_back(asked);
        }
    }

    pub(super) fn are_asked(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Drops the requests and stops of a thread that has exited.
    pub(super) fn forget(&mut self, thread: ThreadId) {
        self.asked.retain(|asked| asked.thread != thread);
    }

    /// Cancels all requested stops.
    pub(super) fn answer_asked(&mut self, why: &'static str) {
        while let Some(asked) = self.asked.pop_front() {
            let capture = self.buffer();
            self.made.push_back(Stop { asked, outcome: Outcome::Unreadable(why), capture, before: None });
        }
    }

    /// Takes the next completed stop.
    pub(super) fn take(&mut self, capture: &mut Capture) -> Option<(ThreadId, Outcome)> {
        let mut stop = self.made.pop_front()?;
        if stop.outcome != Outcome::Captured {
            stop.capture.stack.clear();
        }
        self.spare.push(std::mem::replace(capture, stop.capture));
        Some((stop.asked.thread, stop.outcome))
    }

    /// Number of threads to copy in one hold.
    pub(super) fn at_once(&self) -> usize {
        let fit = HOLD_NS.checked_div(self.copy_ns).unwrap_or(u64::MAX);
        usize::try_from(fit).unwrap_or(AT_ONCE).clamp(1, AT_ONCE)
    }

    /// Sets the expected duration of a call, before any hold has shown it.
    pub(super) fn expect_calls_of(&mut self, call_ns: u64) {
        self.copy_ns = call_ns.saturating_mul(COPY_CALLS);
    }

    /// A capture that is empty except for the stack, which still has the bytes of an earlier stop: a copy
    /// replaces all of them, and zeroing them first costs as much as the copy.
    pub(super) fn buffer(&mut self) -> Capture {
        let mut capture = self.spare.pop().unwrap_or_else(|| Capture::with_capacity(0));
        let stack = std::mem::take(&mut capture.stack);
        capture.reset();
        Capture { stack, ..capture }
    }

    /// Whether a thread was on a CPU when its task was held, from the reports before and in the hold, with
    /// the least time between the first report and the beginning of the hold.
    pub(super) fn was_on_cpu(&mut self, before: ThreadReport, held: ThreadReport, between_ns: u64) -> bool {
        let used_ns = held.cpu_ns().saturating_sub(before.cpu_ns());
        self.unmoved = if used_ns == 0 { self.unmoved.saturating_add(1) } else { 0 };
        if self.unmoved > UNMOVED_MAX {
            return true;
        }
        if used_ns >= between_ns.max(DISPATCH_NS) {
            self.ready = if held.is_runnable() { self.ready.saturating_add(1) } else { 0 };
        }
        if held.is_runnable() && (self.ready <= READY_MAX || used_ns < between_ns) {
            return false;
        }
        // A thread with a CPU for part of the time has just got it, or just left it and got one again for its
        // stop: half of the time is the threshold, so that as many of the former are excluded as of the
        // latter are included.
        let in_user_mode = held.user_ns > before.user_ns;
        (in_user_mode || used_ns >= DISPATCH_NS) && used_ns >= between_ns / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(user_ns: u64, system_ns: u64, is_runnable: bool) -> ThreadReport {
        ThreadReport::new(user_ns, system_ns, is_runnable)
    }

    #[test]
    fn a_thread_that_used_time_up_to_the_hold_was_on_a_cpu() {
        let before = report(100_000, 50_000, true);
        let was_on_cpu = |user_ns, system_ns, ready| {
            Stops::default().was_on_cpu(before, report(user_ns, system_ns, ready), 8_000)
        };
        assert!(was_on_cpu(109_000, 50_000, false), "in user mode");
        assert!(was_on_cpu(100_000, 59_000, false), "in the kernel");
        assert!(!was_on_cpu(100_000, 50_000, true), "ready all the time");
        assert!(!was_on_cpu(100_000, 52_000, false), "ready, and dispatched to stop");
        assert!(!was_on_cpu(109_000, 50_000, true), "lost its CPU while the hold began");
        assert!(!was_on_cpu(103_000, 50_000, false), "had one for less than half of the time");
        assert!(was_on_cpu(105_000, 50_000, false), "for more");
    }

    #[test]
    fn contradictory_reports_are_ignored() {
        let (before, after) = (report(100_000, 0, true), report(120_000, 0, true));
        let mut stops = Stops::default();
        let captured = (0..200).filter(|_| stops.was_on_cpu(before, after, 8_000)).count();
        assert!((100..200).contains(&captured), "all are told to be ready while held: {captured}");
        let mut stops = Stops::default();
        let captured = (0..1_000).filter(|_| stops.was_on_cpu(before, before, 8_000)).count();
        assert!((400..1_000).contains(&captured), "times do not move: {captured}");
    }

    #[test]
    fn a_stop_without_a_capture_has_no_bytes_of_an_earlier_one() {
        let mut stops = Stops::default();
        stops.spare.push(Capture { stack: vec![7; 64], only_kernel: true, ..Capture::default() });
        stops.ask(StopRequest { thread: ThreadId(1), stack_bytes: 64, keep_waiting: true });
        stops.answer_asked("the program ended");
        let mut capture = Capture::default();
        let (_, outcome) = stops.take(&mut capture).expect("answered");
        assert_eq!(outcome, Outcome::Unreadable("the program ended"));
        assert_eq!((capture.stack.as_slice(), capture.only_kernel), (&[][..], false));
    }

    #[test]
    fn slow_copies_reduce_the_threads_per_hold() {
        let mut stops = Stops::default();
        assert_eq!(stops.at_once(), 16);
        for (call_ns, at_once) in [(2_000, 16), (33_000, 6), (2_000_000, 1)] {
            stops.expect_calls_of(call_ns);
            assert_eq!(stops.at_once(), at_once);
        }
    }
}
