//! Requested stops and their outcomes: how many are made in one hold, and which threads were on a CPU.

use std::collections::VecDeque;

use super::threads::ThreadReport;
use crate::sources::{Capture, Outcome, ThreadId};

/// Threads that are copied in one hold. A hold costs all threads that run, whichever is copied, so many small holds
/// cost more than a long one; the table is in docs/decisions/mach-holds-the-task.md.
const AT_ONCE: usize = 16;

/// A hold is not to be longer, nanoseconds: where calls are slow, fewer threads are copied
/// in one.
pub(super) const HOLD_NS: u64 = 1_000_000;

/// Calls in a hold for one thread: a poll, its registers, its stack in three pieces at first.
const COPY_CALLS: u64 = 5;

/// Ready threads get the CPUs that the threads of a held task leave, and run as far as their
/// own stop, which is in the kernel: time up to this is no proof of a CPU before.
const DISPATCH_NS: u64 = 3_000;

/// After this many stops in a row in which no thread had used any time, CPU times are taken to be too coarse.
const UNMOVED_MAX: u32 = 512;

/// After this many in a row in which a thread that had a CPU up to the hold was reported ready in it, the system is
/// taken to report that of all.
const READY_MAX: u32 = 64;

/// A requested stop.
#[derive(Clone, Copy, Debug)]
pub(super) struct StopRequest {
    pub(super) thread: ThreadId,
    pub(super) stack_bytes: usize,
    /// It is wanted wherever it is; otherwise only if it is on a CPU.
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

/// The stops of a task, requested and made.
#[derive(Default)]
pub(super) struct Stops {
    pub(super) asked: VecDeque<StopRequest>,
    pub(super) made: VecDeque<Stop>,
    pub(super) spare: Vec<Capture>,
    /// What one thread in a hold takes, by the last hold, nanoseconds.
    pub(super) copy_ns: u64,
    /// Stops in a row that contradict the reports (see [`UNMOVED_MAX`], [`READY_MAX`]).
    pub(super) unmoved: u32,
    pub(super) ready: u32,
}

impl Stops {
    /// Asks for a stop; once until it was made.
    pub(super) fn ask(&mut self, asked: StopRequest) {
        if !self.asked.iter().any(|other| other.thread == asked.thread) {
            self.asked.push_back(asked);
        }
    }

    pub(super) fn are_asked(&self) -> bool {
        !self.asked.is_empty()
    }

    /// A thread that has ended is not stopped.
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

    /// The next stop that was made.
    pub(super) fn take(&mut self, capture: &mut Capture) -> Option<(ThreadId, Outcome)> {
        let mut stop = self.made.pop_front()?;
        if stop.outcome != Outcome::Captured {
            stop.capture.stack.clear();
        }
        self.spare.push(std::mem::replace(capture, stop.capture));
        Some((stop.asked.thread, stop.outcome))
    }

    /// Threads to copy in one hold.
    pub(super) fn at_once(&self) -> usize {
        let fit = HOLD_NS.checked_div(self.copy_ns).unwrap_or(u64::MAX);
        usize::try_from(fit).unwrap_or(AT_ONCE).clamp(1, AT_ONCE)
    }

    /// What a call takes, before any hold has shown it.
    pub(super) fn expect_calls_of(&mut self, call_ns: u64) {
        self.copy_ns = call_ns.saturating_mul(COPY_CALLS);
    }

    /// A capture that is empty but for its stack, which still has the bytes of an earlier stop: a copy replaces
    /// all of them, and filling them with zeroes first costs as much as the copy.
    pub(super) fn buffer(&mut self) -> Capture {
        let mut capture = self.spare.pop().unwrap_or_else(|| Capture::with_capacity(0));
        let stack = std::mem::take(&mut capture.stack);
        capture.reset();
        Capture { stack, ..capture }
    }

    /// Whether a thread was on a CPU when its task was held, by the reports before and in the hold, with the least
    /// time between the first and the beginning of the hold.
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
        // A thread with a CPU for part of the time has just come, or just left and got one again for its stop: half
        // of the time counts, so that as many of the first are left out as of the others are included.
        let in_user_mode = held.user_ns > before.user_ns;
        (in_user_mode || used_ns >= DISPATCH_NS) && used_ns >= between_ns / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(user_ns: u64, system_ns: u64, is_runnable: bool) -> ThreadReport {
        ThreadReport::new(user_ns, system_ns, is_runnable)
    }

    #[test]
    fn who_used_time_up_to_the_hold_and_stopped_was_on_a_cpu() {
        let before = told(100_000, 50_000, true);
        let was_on_cpu = |user_ns, system_ns, ready| {
            Stops::default().was_on_cpu(before, told(user_ns, system_ns, ready), 8_000)
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
    fn a_system_that_contradicts_itself_is_not_believed() {
        let (before, after) = (told(100_000, 0, true), told(120_000, 0, true));
        let mut stops = Stops::default();
        let captured = (0..200).filter(|_| stops.was_on_cpu(before, after, 8_000)).count();
        assert!((100..200).contains(&captured), "all are told to be ready while held: {captured}");
        let mut stops = Stops::default();
        let captured = (0..1_000).filter(|_| stops.was_on_cpu(before, before, 8_000)).count();
        assert!((400..1_000).contains(&captured), "times do not move: {captured}");
    }

    #[test]
    fn a_stop_that_came_to_nothing_has_no_bytes_of_an_earlier_one() {
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
    fn slow_copies_make_holds_of_fewer_threads() {
        let mut stops = Stops::default();
        assert_eq!(stops.at_once(), 16);
        for (call_ns, at_once) in [(2_000, 16), (33_000, 6), (2_000_000, 1)] {
            stops.expect_calls_of(call_ns);
            assert_eq!(stops.at_once(), at_once);
        }
    }
}
