//! Stops: the whole task is held (see `hold.rs`) for as long as the registers and stacks of
//! a few threads take to copy. Everything that can be known before is asked before, and
//! everything else after.
//!
//! A thread that is ready is told to run like one that is on a CPU (TH_STATE_RUNNING), and
//! stands where it was when it lost its CPU, which is not where it uses time. No call tells
//! the two apart at one moment; the hold itself does. CPU times are exact for threads that are
//! on no CPU (they are brought up to date when a thread leaves it), as all are in a held task:
//! a thread that was on a CPU has used time between a look right before the hold and one
//! during it. And it has blocked in its stop, while one that was ready still is: a hold waits
//! only until nobody is on a CPU (osfmk/kern/task.c, place_task_hold: task_wait_locked without
//! `until_not_runnable`).

use std::collections::VecDeque;

use super::hold::Hold;
use super::kernel::StateFlavor;
use super::state;
use super::task::MachTarget;
use super::threads::{ThreadReport, is_gone};
use crate::addr::Avma;
use crate::clock::Clock;
use crate::sources::{Activity, Capture, Event, Outcome, ThreadId, ThreadStatus};

/// Threads that are copied while the task is held once. To hold it costs all threads that
/// run, whoever is copied, so that many small holds cost more than a long one; the table
/// is in docs/decisions/mach-holds-the-task.md.
const AT_ONCE: usize = 16;
/// A hold is not to be longer, nanoseconds: where calls are slow, fewer threads are copied
/// in one.
const HOLD_NS: u64 = 1_000_000;
/// Calls in a hold for one thread: a look, its registers, its stack in three pieces at first.
const COPY_CALLS: u64 = 5;
/// Ready threads get the CPUs that the threads of a held task leave, and run as far as their
/// own stop, which is in the kernel: time up to this is no proof of a CPU before.
const DISPATCH_NS: u64 = 3_000;
/// After so many stops in a row at which no thread had used any time, CPU times are taken
/// to be too coarse to tell.
const UNMOVED_MAX: u32 = 512;
/// After so many in a row at which a thread that had a CPU up to the hold was told to be ready
/// in it, that is taken to be said of all.
const READY_MAX: u32 = 64;

/// A stop that is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct StopRequest {
    pub(super) thread: ThreadId,
    pub(super) stack_bytes: usize,
    /// It is wanted wherever it is; otherwise only if it is on a CPU.
    pub(super) keep_waiting: bool,
}

/// What came of a thread that was asked to stop.
struct Stop {
    asked: StopRequest,
    outcome: Outcome,
    capture: Capture,
    /// The look right before the hold, and when it was answered.
    before: Option<(ThreadReport, u64)>,
}

/// The stops of a task, asked for and made.
#[derive(Default)]
pub(super) struct Stops {
    asked: VecDeque<StopRequest>,
    made: VecDeque<Stop>,
    spare: Vec<Capture>,
    /// What one thread in a hold takes, by the last hold, nanoseconds.
    copy_ns: u64,
    /// Stops in a row that speak against what is told (see [`UNMOVED_MAX`], [`READY_MAX`]).
    unmoved: u32,
    ready: u32,
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

    /// Says of all stops that are asked for that they came to nothing.
    pub(super) fn answer_asked(&mut self, why: &'static str) {
        while let Some(asked) = self.asked.pop_front() {
            let capture = self.buffer();
            self.made.push_back(Stop { asked, outcome: Outcome::Unreadable(why), capture, before: None });
        }
    }

    /// The next stop that was made.
    pub(super) fn take(&mut self, capture: &mut Capture) -> Option<(ThreadId, Outcome)> {
        let stop = self.made.pop_front()?;
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

    fn buffer(&mut self) -> Capture {
        let mut capture = self.spare.pop().unwrap_or_else(|| Capture::with_capacity(0));
        capture.reset();
        capture
    }

    /// Whether a thread was on a CPU when its task was held: what was told of it before and
    /// in the hold, with the least time between the first and the beginning of the hold.
    fn was_on_cpu(&mut self, before: ThreadReport, held: ThreadReport, between_ns: u64) -> bool {
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
        // One that had a CPU for a part of the time has just come, or just gone and got one
        // again for its stop: by halves, as many of the ones are left out as of the others
        // are taken in.
        let in_user_mode = held.user_ns > before.user_ns;
        (in_user_mode || used_ns >= DISPATCH_NS) && used_ns >= between_ns / 2
    }
}

impl MachTarget<'_> {
    /// Holds the task and copies threads that were asked to stop.
    pub(super) fn capture_asked(&mut self) {
        if self.taskless_ns.is_some() {
            return self.stops.answer_asked("the program ended or was replaced before it was stopped");
        }
        let mut stops = self.prepare();
        if stops.is_empty() {
            return;
        }
        let begun_ns = self.clock.now_ns();
        let mut copied = 0;
        match Hold::begin(self.kernel, self.task) {
            Ok(hold) => {
                let held_ns = self.clock.now_ns();
                let mut now_ns = held_ns;
                for stop in &mut stops {
                    // Calls may take longer than those of the last hold.
                    if copied > 0 && now_ns >= held_ns.saturating_add(HOLD_NS) {
                        break;
                    }
                    stop.outcome = self.stopped(stop, begun_ns);
                    copied += 1;
                    now_ns = self.clock.now_ns();
                }
                drop(hold);
                self.stops.copy_ns = now_ns.saturating_sub(held_ns) / copied as u64;
            }
            Err(_) => {
                copied = stops.len();
                let failed = Outcome::Unreadable("task could not be suspended");
                stops.iter_mut().for_each(|stop| stop.outcome = failed);
            }
        }
        let pause_ns = self.clock.now_ns().saturating_sub(begun_ns);
        for stop in stops.drain(copied..).rev() {
            self.stops.asked.push_front(stop.asked);
            self.stops.spare.push(stop.capture);
        }
        let (mut new_code, mut stood_ns) = (false, pause_ns);
        for mut stop in stops {
            let capture = &mut stop.capture;
            capture.pause_ns = pause_ns;
            capture.stood_ns = std::mem::take(&mut stood_ns);
            if stop.outcome == Outcome::Captured {
                let (sp, pc) = (capture.registers.sp().0, capture.registers.pc().0 & self.process.code_mask);
                if let Some(thread) = self.threads.get_mut(stop.asked.thread) {
                    thread.stack.learn(&self.memory, sp);
                    capture.stack_limit = thread.stack.limit(sp).map(Avma);
                }
                new_code |= self.jit.learn(&self.memory, &self.dyld, pc);
            }
            self.stops.made.push_back(stop);
        }
        if new_code {
            self.events.push_back(Event::ImagesChanged);
        }
    }

    /// Buffers and what must be known before a hold, for the threads of one. Those that are
    /// seen to wait are let go without any.
    fn prepare(&mut self) -> Vec<Stop> {
        let count = self.stops.asked.len().min(self.stops.at_once());
        let asked: Vec<StopRequest> = self.stops.asked.drain(..count).collect();
        let mut stops = Vec::with_capacity(count);
        for asked in asked {
            let mut capture = self.stops.buffer();
            capture.stack.resize(asked.stack_bytes, 0);
            if let Some(thread) = self.threads.get_mut(asked.thread) {
                thread.stack.ask(&self.memory, thread.handle);
            }
            stops.push(Stop { asked, outcome: Outcome::Captured, capture, before: None });
        }
        // Last of all, so that little happens between these looks and the hold.
        for stop in stops.iter_mut().filter(|stop| !stop.asked.keep_waiting) {
            let told = self.threads.told_around_stop(self.kernel, stop.asked.thread);
            stop.before = told.map(|told| (told, self.clock.now_ns()));
        }
        let waits = |stop: &Stop| stop.before.is_some_and(|(told, _)| !told.is_runnable());
        let (let_go, stops): (Vec<Stop>, Vec<Stop>) = stops.into_iter().partition(waits);
        self.stops.made.extend(let_go.into_iter().map(|mut stop| {
            stop.outcome = Outcome::BeganToWait;
            stop
        }));
        stops
    }

    /// Copies a thread's registers and stack while the task is held, if it was on a CPU or is
    /// wanted wherever it is.
    fn stopped(&mut self, stop: &mut Stop, begun_ns: u64) -> Outcome {
        let id = stop.asked.thread;
        if let Some((before, told_ns)) = stop.before
            && let Some(held) = self.threads.told_around_stop(self.kernel, id)
        {
            if !self.stops.was_on_cpu(before, held, begun_ns.saturating_sub(told_ns)) {
                return Outcome::NotOnCpu;
            }
            let (cpu_ns, activity) = (held.cpu_ns(), Activity::Running);
            stop.capture.status = Some(ThreadStatus { cpu_ns, switches: 0, activity });
        }
        let capture = &mut stop.capture;
        let Some(thread) = self.threads.get_mut(id).filter(|thread| !thread.has_gone) else {
            return Outcome::Unreadable("thread ended before it was stopped");
        };
        let StateFlavor { flavor, count: wanted } = state::flavor(self.process.arch);
        let (mut words, mut count) = ([0; StateFlavor::MAX_COUNT], wanted);
        match self.kernel.thread_get_state(thread.port, flavor, &mut words, &mut count) {
            Ok(()) if count >= wanted => {}
            Err(failed) if is_gone(failed) => {
                thread.has_gone = true;
                return Outcome::Unreadable("thread ended before it was stopped");
            }
            _ => return Outcome::Unreadable("registers could not be read"),
        }
        capture.registers = state::registers(self.process.arch, &words, self.process.code_mask);
        let sp = capture.registers.sp().0;
        let stack_bytes = capture.stack.len();
        let from = thread.stack.red_zone(sp);
        let mut copy = |from: u64| {
            capture.stack_base = Avma(from);
            capture.stack.resize(stack_bytes.saturating_add((sp - from) as usize), 0);
            thread.stack.copy(&self.memory, from, &mut capture.stack)
        };
        match copy(from).or_else(|failed| if from < sp { copy(sp) } else { Err(failed) }) {
            Ok(()) => Outcome::Captured,
            Err(_) => Outcome::Unreadable("stack could not be read"),
        }
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
    fn slow_copies_make_holds_of_fewer_threads() {
        let mut stops = Stops::default();
        assert_eq!(stops.at_once(), 16);
        for (call_ns, at_once) in [(2_000, 16), (33_000, 6), (2_000_000, 1)] {
            stops.expect_calls_of(call_ns);
            assert_eq!(stops.at_once(), at_once);
        }
    }
}
