//! Stops: the whole task is held while registers and stacks of a few threads are copied.
//! Everything possible is read before, or else after. Input: requests. Output: a capture for each, or why not.
//!
//! `Stops` are the requests, `Hold` suspends the task until it is dropped, `OnCpu` says which threads were on a
//! CPU.

use std::collections::VecDeque;

use super::kernel::{Kern, MachKernel, SuspensionToken, TaskPort};
use super::task::Task;
use super::threads::{MachClock, ThreadReport};
use crate::clock::Clock;
use crate::sources::{Activity, Capture, Process, StopOutcome, ThreadId, ThreadStatus};

/// Threads to copy in one hold. A hold stops all running threads, whichever is copied, so many small holds
/// cost more than a long one; the table is in docs/decisions/mach-holds-the-task.md.
const AT_ONCE: usize = 16;

/// Target for the length of a hold, nanoseconds: if calls are slow, fewer threads are copied in one.
const HOLD_NS: u64 = 1_000_000;

/// Calls in a hold for one thread: a poll, its registers, its stack in three pieces at first.
const COPY_CALLS: u64 = 5;

/// A requested stop.
#[derive(Clone, Copy, Debug)]
pub(super) struct StopRequest {
    pub(super) thread: ThreadId,
    pub(super) stack_bytes: usize,
    /// Capture it anywhere; otherwise only if it is on a CPU.
    pub(super) keep_waiting: bool,
}

/// The outcome of a stop request.
struct Stop {
    request: StopRequest,
    outcome: StopOutcome,
    capture: Capture,
    /// The poll right before the hold, and when it returned.
    before: Option<(ThreadReport, u64)>,
}

/// Requested and completed stops of a task.
#[derive(Default)]
pub(super) struct Stops {
    requests: VecDeque<StopRequest>,
    completed: VecDeque<Stop>,
    spare: Vec<Capture>,
    /// Time per thread in the last hold, nanoseconds.
    copy_ns: u64,
    on_cpu: OnCpu,
}

impl Stops {
    /// Requests a stop, at most one at a time per thread.
    pub(super) fn request(&mut self, request: StopRequest) {
        if !self.requests.iter().any(|other| other.thread == request.thread) {
            self.requests.push_back(request);
        }
    }

    pub(super) fn are_requested(&self) -> bool {
        !self.requests.is_empty()
    }

    /// Drops the requests of a thread that has exited.
    pub(super) fn forget(&mut self, thread: ThreadId) {
        self.requests.retain(|request| request.thread != thread);
    }

    /// Completes all requested stops without a capture.
    pub(super) fn cancel(&mut self, why: &'static str) {
        while let Some(request) = self.requests.pop_front() {
            let capture = self.buffer();
            self.completed.push_back(Stop {
                request,
                outcome: StopOutcome::Unreadable(why),
                capture,
                before: None,
            });
        }
    }

    /// Takes the next completed stop.
    pub(super) fn take(&mut self, capture: &mut Capture) -> Option<(ThreadId, StopOutcome)> {
        let mut stop = self.completed.pop_front()?;
        if stop.outcome != StopOutcome::Captured {
            stop.capture.stack.clear();
        }
        self.spare.push(std::mem::replace(capture, stop.capture));
        Some((stop.request.thread, stop.outcome))
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

    /// Holds the task and copies threads with a stop request. Returns whether one of them ran code that was
    /// unknown.
    pub(super) fn make(&mut self, task: &mut Task<'_>, process: &Process, clock: MachClock<'_>) -> bool {
        let mut stops = self.prepare(task, clock);
        if stops.is_empty() {
            return false;
        }
        let begun_ns = clock.now_ns();
        let mut copied = 0;
        match task.hold() {
            Ok(hold) => {
                let held_ns = clock.now_ns();
                let mut now_ns = held_ns;
                for stop in &mut stops {
                    // Calls may take longer than in the last hold.
                    if copied > 0 && now_ns >= held_ns.saturating_add(HOLD_NS) {
                        break;
                    }
                    stop.outcome = match self.ran(task, stop, begun_ns) {
                        true => task.copy(&hold, stop.request.thread, process, &mut stop.capture),
                        false => StopOutcome::NotOnCpu,
                    };
                    copied += 1;
                    now_ns = clock.now_ns();
                }
                drop(hold);
                self.copy_ns = now_ns.saturating_sub(held_ns) / copied as u64;
            }
            Err(_) => {
                copied = stops.len();
                let failed = StopOutcome::Unreadable("task could not be suspended");
                stops.iter_mut().for_each(|stop| stop.outcome = failed);
            }
        }
        let pause_ns = clock.now_ns().saturating_sub(begun_ns);
        for stop in stops.drain(copied..).rev() {
            self.requests.push_front(stop.request);
            self.spare.push(stop.capture);
        }
        let (mut new_code, mut stopped_ns) = (false, pause_ns);
        for mut stop in stops {
            stop.capture.pause_ns = pause_ns;
            stop.capture.stopped_ns = std::mem::take(&mut stopped_ns);
            if stop.outcome == StopOutcome::Captured {
                new_code |= task.learn(stop.request.thread, process, &mut stop.capture);
            }
            self.completed.push_back(stop);
        }
        new_code
    }

    /// Prepares buffers and facts for the threads of a hold. Threads found waiting need none.
    fn prepare(&mut self, task: &mut Task<'_>, clock: MachClock<'_>) -> Vec<Stop> {
        let count = self.requests.len().min(self.at_once());
        let requests: Vec<StopRequest> = self.requests.drain(..count).collect();
        let mut stops = Vec::with_capacity(count);
        for request in requests {
            let mut capture = self.buffer();
            capture.stack.resize(request.stack_bytes, 0);
            task.prepare(request.thread);
            stops.push(Stop { request, outcome: StopOutcome::Captured, capture, before: None });
        }
        // Last, so that little happens between these polls and the hold.
        for stop in stops.iter_mut().filter(|stop| !stop.request.keep_waiting) {
            let report = task.report_around_stop(stop.request.thread);
            stop.before = report.map(|report| (report, clock.now_ns()));
        }
        let waits = |stop: &Stop| stop.before.is_some_and(|(report, _)| !report.is_runnable());
        let (waiting, stops): (Vec<Stop>, Vec<Stop>) = stops.into_iter().partition(waits);
        self.completed.extend(waiting.into_iter().map(|mut stop| {
            stop.outcome = StopOutcome::BeganToWait;
            stop
        }));
        stops
    }

    /// Whether a thread of a held task was on a CPU, or is to be captured anywhere.
    fn ran(&mut self, task: &mut Task<'_>, stop: &mut Stop, begun_ns: u64) -> bool {
        let Some((before, told_ns)) = stop.before else { return true };
        let Some(held) = task.report_around_stop(stop.request.thread) else { return true };
        if !self.on_cpu.was_on_cpu(before, held, begun_ns.saturating_sub(told_ns)) {
            return false;
        }
        let (cpu_ns, activity) = (held.cpu_ns(), Activity::Running);
        stop.capture.status = Some(ThreadStatus { cpu_ns, switches: 0, activity });
        true
    }

    /// A capture that is empty except for the stack, which still has the bytes of an earlier stop: a copy
    /// replaces all of them, and zeroing them first costs as much as the copy.
    fn buffer(&mut self) -> Capture {
        let mut capture = self.spare.pop().unwrap_or_else(|| Capture::with_capacity(0));
        let stack = std::mem::take(&mut capture.stack);
        capture.reset();
        Capture { stack, ..capture }
    }
}

// ---- Suspends a whole task until the guard is dropped or its holder exits, in any way. Effect: it is stopped.
//
// `thread_suspend` counts outlive the profiler: if it is killed while it holds one, a thread hangs for ever.
// `task_suspend2` returns a right, which dies with its holder, and the kernel resumes the task (osfmk/kern/task.c,
// `task_suspension_notify`). So tasks are suspended, never threads. macOS has the call since 10.9.

/// A suspension of a task, released on drop.
pub(super) struct Hold<'k> {
    kernel: &'k dyn MachKernel,
    token: Option<SuspensionToken>,
}

impl<'k> Hold<'k> {
    /// Suspends the task; returns once none of its threads is on a CPU.
    pub(super) fn begin(kernel: &'k dyn MachKernel, task: TaskPort) -> Kern<Hold<'k>> {
        Ok(Hold { kernel, token: Some(kernel.task_suspend2(task)?) })
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        if let Some(token) = self.token.take() {
            // A failure means that the task has ended, and with it the suspension.
            let _ = self.kernel.task_resume2(token);
        }
    }
}

// ---- Which threads were on a CPU when their task was held, by reports before and in the hold.
//
// A ready thread is reported as running like one on a CPU (TH_STATE_RUNNING), but is where it lost its CPU,
// which is not where it uses time. No call distinguishes the two at one moment; the hold itself does. CPU
// times are exact for threads on no CPU (they are updated when a thread leaves it), as all are in a held
// task: a thread that was on a CPU has used time between a poll right before the hold and one during it. And
// it has blocked in its stop, while a ready one is still ready: a hold waits only until no thread is on a
// CPU (osfmk/kern/task.c, place_task_hold: task_wait_locked without `until_not_runnable`).

/// Ready threads get the CPUs that the threads of a held task leave, and run up to their own stop, which is
/// in the kernel: time up to this is no proof of a CPU before.
const DISPATCH_NS: u64 = 3_000;

/// After this many consecutive stops in which no thread had used any time, CPU times are considered too
/// coarse.
const UNMOVED_MAX: u32 = 512;

/// After this many consecutive stops in which a thread that had a CPU up to the hold was reported ready in
/// it, the system is assumed to report that of all.
const READY_MAX: u32 = 64;

/// How far the reports are to be trusted: consecutive stops that contradict them (see [`UNMOVED_MAX`],
/// [`READY_MAX`]).
#[derive(Default)]
pub(super) struct OnCpu {
    unmoved: u32,
    ready: u32,
}

impl OnCpu {
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

    #[test]
    fn a_stop_without_a_capture_has_no_bytes_of_an_earlier_one() {
        let mut stops = Stops::default();
        stops.spare.push(Capture { stack: vec![7; 64], only_kernel: true, ..Capture::default() });
        stops.request(StopRequest { thread: ThreadId(1), stack_bytes: 64, keep_waiting: true });
        stops.cancel("the program ended");
        let mut capture = Capture::default();
        let (_, outcome) = stops.take(&mut capture).expect("answered");
        assert_eq!(outcome, StopOutcome::Unreadable("the program ended"));
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

#[cfg(test)]
mod on_cpu_tests {
    use super::*;

    fn report(user_ns: u64, system_ns: u64, is_runnable: bool) -> ThreadReport {
        ThreadReport::new(user_ns, system_ns, is_runnable)
    }

    #[test]
    fn a_thread_that_used_time_up_to_the_hold_was_on_a_cpu() {
        let before = report(100_000, 50_000, true);
        let was_on_cpu = |user_ns, system_ns, ready| {
            OnCpu::default().was_on_cpu(before, report(user_ns, system_ns, ready), 8_000)
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
        let mut on_cpu = OnCpu::default();
        let captured = (0..200).filter(|_| on_cpu.was_on_cpu(before, after, 8_000)).count();
        assert!((100..200).contains(&captured), "all are reported as ready while held: {captured}");
        let mut on_cpu = OnCpu::default();
        let captured = (0..1_000).filter(|_| on_cpu.was_on_cpu(before, before, 8_000)).count();
        assert!((400..1_000).contains(&captured), "times do not move: {captured}");
    }
}
