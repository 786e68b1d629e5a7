//! The driver that stops threads (`StopDriver`): each tick polls all threads, stops the running ones, and passes
//! their captures to the recorder once all run again. With a wall clock, waiting threads are captured, too, without
//! a stop if that gives the whole stack. While the profiler is suspended, the target is detached.

mod lifecycle;
pub(super) mod snapshot;

use hashbrown::HashMap;

use super::Options;
use super::budget::Budget;
use super::captures::{Captures, DueSamples, Sample};
use super::processes::FIRST;
use super::pushed::wait_while_suspended;
use super::recorder::Recorder;
use super::schedule::{PollOrder, Schedule};
use super::thread_clock::UnsampledTime;
use crate::addr::Avma;
use crate::clock::Clock;
use crate::images::LibraryCounts;
use crate::live::Live;
use crate::sources::{
    Activity, CallThread, Capture, Fault, SleepingThread, StopOutcome, Target, TargetEvent, ThreadId,
    ThreadStatus,
};
use crate::trie::NodeId;
use crate::walk::{Frames, StackEnd};
use lifecycle::{BY_NO_KNOWN_THREAD, TOO_MANY, TargetProcesses, observed};

/// Consecutive events handled before the clock is read again.
const EVENTS_AT_ONCE: u32 = 256;
/// Timeout for the stops of the final tick, nanoseconds.
const LAST_STOPS_NS: u64 = 30_000_000;
const SECOND_NS: u64 = 1_000_000_000;
/// Maximum interval between polls of the stop request, even at 1 Hz, nanoseconds.
const ATTENTION_NS: u64 = 50_000_000;
/// Maximum time that a tick polls threads, or one sampling period if longer, nanoseconds; the next tick continues
/// with the remaining threads.
const POLLS_NS: u64 = 20_000_000;

/// A stack in the trie, and how its walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KnownStack {
    node: NodeId,
    ended: StackEnd,
}

/// What is known of a waiting thread's stack (wall-clock profiles).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitStack {
    /// Nothing: needs a capture.
    Unknown,
    /// Captured, and returning to the same wait: stack pointer and program counter.
    Returning { stack: KnownStack, at: (Avma, Avma) },
    /// Valid while the thread's status is unchanged.
    With { stack: KnownStack, status: ThreadStatus },
}

/// The driver's state of a thread, in addition to its account.
#[derive(Debug)]
struct StopState {
    /// Its pid.
    process: u32,
    /// Whether a requested stop is pending.
    stop_pending: bool,
    /// Whether it was waiting when its stop was requested.
    was_waiting: bool,
    /// Why its last stop gave no capture.
    unreadable: Option<&'static str>,
    wait_stack: WaitStack,
    /// Libraries of its process before its last capture and after it.
    libraries: Option<[LibraryCounts; 2]>,
}

impl StopState {
    fn new(process: u32) -> StopState {
        StopState {
            process,
            stop_pending: false,
            was_waiting: false,
            unreadable: None,
            wait_stack: WaitStack::Unknown,
            libraries: None,
        }
    }
}

/// Why [`StopDriver::run`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RunEnd {
    /// The recording is over.
    Over,
    /// The profiler is about to be suspended; the recording continues later.
    Suspended,
}

/// Samples a target by stopping its threads at each tick.
pub(super) struct StopDriver<'a> {
    target: &'a mut dyn Target,
    clock: &'a dyn Clock,
    options: &'a Options,
    live: &'a Live,
    schedule: Schedule,
    recorder: Recorder<'a>,
    threads: HashMap<ThreadId, StopState>,
    processes: TargetProcesses,
    unsampled: UnsampledTime,
    polls: PollOrder,
    budget: Budget,
    captures: Captures,
    frames: Frames,
}

impl<'a> StopDriver<'a> {
    pub(super) fn new(
        target: &'a mut dyn Target,
        clock: &'a dyn Clock,
        options: &'a Options,
        live: &'a Live,
    ) -> Self {
        let process = target.process();
        let recorder = Recorder::new(clock, options, process);
        let processes = TargetProcesses::new(process);
        StopDriver {
            target,
            clock,
            options,
            live,
            schedule: Schedule::new(clock.now_ns(), options),
            recorder,
            threads: HashMap::new(),
            processes,
            unsampled: UnsampledTime::new(SECOND_NS / u64::from(options.hz.max(1))),
            polls: PollOrder::default(),
            budget: Budget::new(options.max_stop),
            captures: Captures::default(),
            frames: Frames::default(),
        }
    }

    /// Adds the initial threads and processes.
    fn begin(&mut self) {
        self.add_threads();
        self.recorder.read_images(FIRST, self.target);
        let now_ns = self.clock.now_ns();
        self.schedule.begin(now_ns, self.options);
        self.recorder.begin_times(now_ns);
    }

    /// Ends the recording early because the connection to the target was lost, for this reason.
    pub(super) fn cut_short(&mut self, why: String) {
        self.recorder.stats.cut_short = Some(why);
    }

    /// Records to the end, or until suspension: on return no stop is pending and no thread is stopped.
    fn run(&mut self) -> std::result::Result<RunEnd, Fault> {
        while !self.schedule.has_ended() {
            let due_ns = self.schedule.due_ns();
            let overslept_ns = self.target.overslept_ns();
            self.attend_until(due_ns)?;
            let overslept_ns = self.target.overslept_ns().zip(overslept_ns).map(|(now, before)| now - before);
            let now_ns = self.clock.now_ns();
            if self.schedule.has_ended()
                || self.live.poll_stop()
                || self.schedule.is_over(self.clock.now_ns())
            {
                break;
            }
            if self.live.is_suspension_requested() {
                self.await_stops()?;
                return Ok(RunEnd::Suspended);
            }
            self.tick()?;
            self.end_tick(due_ns, now_ns.saturating_sub(due_ns), overslept_ns);
            self.publish();
        }
        if !self.schedule.has_ended() {
            // Time used since the last tick belongs to the recording, too.
            self.recorder.stats.duration_ns = self.clock.now_ns() - self.schedule.start_ns();
            self.schedule.close();
            self.tick()?;
            self.await_stops()?;
            let until_ns = self.clock.now_ns().saturating_add(self.options.linger_ns);
            while self.live.poll_stop()
                && !self.schedule.has_ended()
                && self.clock.now_ns() < until_ns
                && self.one_event(until_ns)?
            {}
        }
        Ok(RunEnd::Over)
    }

    /// Counts a tick that was due at this time and began this late, and the ticks dropped meanwhile;
    /// `overslept_ns`: time by which the sampler was woken late.
    fn end_tick(&mut self, due_ns: u64, begun_late_ns: u64, overslept_ns: Option<u64>) {
        let stats = &mut self.recorder.stats;
        *if self.budget.may_stop() { &mut stats.ticks } else { &mut stats.ticks_skipped } += 1;
        let done_ns = self.clock.now_ns();
        let dropped = self.schedule.end_tick(done_ns);
        stats.ticks_late = self.schedule.late_ticks();
        if let Some(overslept_ns) = overslept_ns {
            // In proportion to the lost time.
            let late_ns = done_ns.saturating_sub(due_ns).max(1);
            let by_wakeup = u128::from(dropped) * u128::from(overslept_ns.min(begun_late_ns));
            let by_wakeup = (2 * by_wakeup + u128::from(late_ns)) / (2 * u128::from(late_ns));
            *stats.ticks_late_wakeup.get_or_insert(0) += by_wakeup as u64;
        }
    }

    /// Waits briefly for the requested stops, and walks their captures.
    fn await_stops(&mut self) -> std::result::Result<(), Fault> {
        let until_ns = self.clock.now_ns() + LAST_STOPS_NS;
        while self.threads.values().any(|state| state.stop_pending) && self.clock.now_ns() < until_ns {
            self.one_event(until_ns)?;
        }
        self.walk_captured();
        Ok(())
    }

    /// Handles events until `until_ns`; then the tick runs even if events are pending.
    fn attend_until(&mut self, until_ns: u64) -> std::result::Result<(), Fault> {
        while !self.schedule.has_ended() {
            let wait_ns = until_ns.min(self.clock.now_ns().saturating_add(ATTENTION_NS));
            self.one_event(wait_ns)?;
            if !self.captures.samples().is_empty() {
                // Others may be stopped already: walk only when none is.
                self.collect()?;
                self.walk_captured();
            }
            if self.clock.now_ns() >= until_ns || self.live.poll_stop() || self.live.is_suspension_requested()
            {
                break;
            }
        }
        Ok(())
    }

    /// Takes the stops that are immediately available.
    fn collect(&mut self) -> std::result::Result<(), Fault> {
        for _ in 0..EVENTS_AT_ONCE {
            if !self.one_event(0)? || self.is_over() {
                break;
            }
        }
        Ok(())
    }

    /// One tick: polls every thread, stops those that ran, collects and weighs.
    fn tick(&mut self) -> std::result::Result<(), Fault> {
        self.refresh_images();
        let now_ns = self.clock.now_ns();
        let passed_ns = self.schedule.begin_tick(now_ns);
        if self.target.process().stops_hold_all {
            self.budget.earn(passed_ns);
        } else if self.options.idle {
            // The budget is the recorded wall-clock time of each runnable thread.
            self.budget.earn(passed_ns.saturating_mul(self.polls.runnable().max(1) as u64));
        }
        self.budget.begin_tick(self.schedule.is_closing());
        let asked = self.poll_all(now_ns)?;
        self.request_maybe_running(self.target.process().cpus.saturating_sub(asked))?;
        self.collect()?;
        self.walk_captured();
        self.walk_sleeping_threads()
    }

    /// Polls threads while there is time, and requests stops of those that ran; returns the number of requests.
    fn poll_all(&mut self, now_ns: u64) -> std::result::Result<usize, Fault> {
        let order = self.polls.begin(self.threads.keys().copied());
        let mut asked = 0;
        // A stop costs a thread that waits for a CPU its turn. So with more runnable threads than CPUs, those not
        // known to be on one are stopped last, as far as CPUs remain for them.
        let scarce = !self.options.idle && self.polls.are_scarce(self.target.process().cpus);
        let until_ns = now_ns.saturating_add(POLLS_NS.max(SECOND_NS / u64::from(self.options.hz.max(1))));
        for id in &order {
            if self.clock.now_ns() >= until_ns || self.is_over() {
                self.polls.stop_before(*id);
                break;
            }
            // The pending stop will report; until then the thread had no CPU.
            if self.threads.get(id).is_some_and(|state| state.stop_pending) {
                self.polls.note_pending();
                continue;
            }
            let Ok(status) = self.target.poll(*id) else { continue };
            self.polls.note(status.activity);
            if scarce && status.activity == Activity::Runnable {
                self.polls.postpone(*id);
                self.note(*id, status);
                continue;
            }
            if self.decide(*id, status) {
                asked += 1;
                if asked % self.target.stops_at_once() == 0 {
                    self.collect()?;
                }
            }
        }
        self.polls.end(order);
        Ok(asked)
    }

    /// Whether the recording is over and no work may begin.
    fn is_over(&self) -> bool {
        !self.schedule.is_closing() && (self.live.poll_stop() || self.schedule.is_over(self.clock.now_ns()))
    }

    /// Handles the next event; false if none arrived before `until_ns`.
    fn one_event(&mut self, until_ns: u64) -> std::result::Result<bool, Fault> {
        let mut capture = self.captures.buffer();
        match self.target.next(until_ns, &mut capture) {
            Ok(TargetEvent::Stopped { thread, outcome }) => {
                self.handle_stop(thread, outcome, capture);
                return Ok(true);
            }
            Ok(TargetEvent::Timeout) => {
                self.captures.give_back(capture);
                return Ok(false);
            }
            Ok(event) => self.handle_event(event),
            Err(fault) => return Err(fault),
        }
        self.captures.give_back(capture);
        Ok(true)
    }

    fn handle_event(&mut self, event: TargetEvent) {
        match event {
            TargetEvent::ThreadStarted { thread, stack_top } => {
                self.add_thread(
                    thread,
                    stack_top,
                    ThreadStatus { cpu_ns: 0, switches: 0, activity: Activity::Runnable },
                    false,
                );
            }
            TargetEvent::ThreadExited { thread, cpu_ns } => {
                self.rename(thread);
                self.remove_thread(thread, cpu_ns);
            }
            TargetEvent::Exec { thread, stack_top } => self.exec_thread(thread, stack_top),
            TargetEvent::Exiting { process } => self.walk_all_deferred_of(process),
            TargetEvent::ProcessEnded { process } => self.end_process(process),
            TargetEvent::Exited(status) => {
                self.recorder.stats.exit_status = Some(status);
                self.schedule.end();
            }
            TargetEvent::ImagesChanged => {
                // Captures from before the change need the old images.
                self.walk_captured();
                self.walk_all_deferred(DueSamples::All);
                self.recorder.images_changed(FIRST, self.target);
            }
            TargetEvent::Terminate => self.live.request_stop(),
            TargetEvent::Timeout | TargetEvent::Stopped { .. } => {}
        }
    }

    fn handle_stop(&mut self, id: ThreadId, outcome: StopOutcome, capture: Box<Capture>) {
        self.recorder.stats.stops += 1;
        self.recorder.stats.pause.add(capture.pause_ns);
        self.recorder.stats.stopped_ns += capture.stopped_ns;
        let mut waited = false;
        if let Some(state) = self.threads.get_mut(&id) {
            state.stop_pending = false;
            state.unreadable = if let StopOutcome::Unreadable(why) = outcome { Some(why) } else { None };
            waited = state.was_waiting;
        }
        // A waiting thread loses no time.
        if !waited || self.target.process().stops_hold_all {
            let copied = match outcome {
                StopOutcome::Captured => capture.stack.len() + capture.prefetched.bytes(),
                _ => 0,
            };
            self.recorder.stats.held_up_ns += self.budget.spend(capture.stopped_ns, copied);
        }
        match outcome {
            StopOutcome::Captured => {
                self.count_libraries(id, 1);
                let libraries = self.threads.get(&id).and_then(|state| state.libraries);
                let at_ns = self.clock.now_ns();
                let waits = capture.status.is_some_and(|status| status.activity == Activity::Waiting);
                let waiting = waited || waits;
                self.captures.push(Sample { thread: id, capture, libraries, at_ns, waiting, off_cpu_ns: 0 });
                return;
            }
            // Its time is not lost: the next sample carries it.
            StopOutcome::BeganToWait => self.recorder.stats.stops_released_waiting += 1,
            StopOutcome::NotOnCpu => self.recorder.stats.stops_not_on_cpu += 1,
            StopOutcome::Unreadable(why) => {
                let missed_ns = self.weigh(id, capture.status);
                self.recorder.lose(why, missed_ns.unwrap_or(0));
            }
        }
        self.captures.give_back(capture);
    }

    /// Walks, weighs and inserts the captures, with all threads running.
    fn walk_captured(&mut self) {
        let mut captured = self.captures.take_samples();
        for sample in captured.drain(..) {
            if let Some(sample) = self.add_sample(sample) {
                self.captures.give_back(sample.capture);
            }
        }
        self.captures.reuse(captured);
        self.walk_all_deferred(DueSamples::ImagesRead);
    }

    /// The weight of a sample of a thread just stopped, nanoseconds; `None` if its account is closed.
    fn weigh(&mut self, id: ThreadId, stopped: Option<ThreadStatus>) -> Option<u64> {
        // The stop took the thread off its CPU, so its CPU time is exact up to there.
        let status = stopped.or_else(|| self.target.poll(id).ok());
        self.add_unsampled(id, status);
        let weight_ns = self.recorder.weigh(id, status)?;
        self.earn(id);
        Some(weight_ns)
    }

    /// Passes a sample to the recorder; returns it once done.
    fn add_sample(&mut self, mut sample: Sample) -> Option<Sample> {
        let id = sample.thread;
        let Some(weight_ns) = self.weigh(id, sample.capture.status) else { return Some(sample) };
        // Time in stops that hold all threads is not time in which this one was ready.
        if self.options.idle && !sample.waiting && !self.target.process().stops_hold_all {
            sample.off_cpu_ns = self.recorder.off_cpu_ns(id, weight_ns);
        }
        let Some(pid) = self.threads.get(&id).map(|state| state.process) else { return Some(sample) };
        if !self.place_thread(pid, id) {
            self.recorder.lose(TOO_MANY, weight_ns);
            return Some(sample);
        }
        let stack_bytes = self.stack_bytes(id);
        let at = (sample.capture.registers.sp(), sample.capture.registers.pc());
        let most = self.budget.stack_max_bytes();
        // An added thread always has a known process.
        self.recorder.walker().set_may_prefetch(self.target.prefetches());
        let Some(process) = observed(self.target, pid) else { return Some(sample) };
        let taken = self.recorder.add_sample(process, sample, weight_ns, most, &mut self.frames);
        let new_ranges = self.recorder.new_ranges(id);
        let has_new_ranges = new_ranges.is_some();
        if let Some(ranges) = new_ranges {
            self.target.prefetch(id, ranges);
        }
        if weight_ns == 0 && !self.options.idle {
            return taken.sample;
        }
        // With a larger stack size or other ranges the same stack may be complete: do not reuse it.
        let grew = has_new_ranges || self.stack_bytes(id) > stack_bytes;
        let state = self.threads.get_mut(&id)?;
        state.wait_stack = match taken.stack {
            Some((node, ended))
                if state.was_waiting
                    && !(grew && matches!(ended, StackEnd::DeeperThanCopied | StackEnd::OtherStack)) =>
            {
                WaitStack::Returning { stack: KnownStack { node, ended }, at }
            }
            _ => WaitStack::Unknown,
        };
        taken.sample
    }

    /// Size of a thread's next capture.
    fn stack_bytes(&self, id: ThreadId) -> usize {
        self.recorder.account(id).map_or(0, |account| account.stack.bytes())
    }

    fn publish(&self) {
        use std::sync::atomic::Ordering::Relaxed;
        self.live.ticks.store(self.recorder.stats.ticks, Relaxed);
        self.live.samples.store(self.recorder.samples(), Relaxed);
        self.live.threads.store(self.threads.len() as u64, Relaxed);
        self.live.pause_ns.store(self.recorder.stats.stopped_ns, Relaxed);
        let alive_ns = self.recorder.alive_cpu_ns();
        self.live.target_cpu_ns.store(self.recorder.stats.target_cpu_ns + alive_ns, Relaxed);
    }
}

// ---- The tick's decision for a polled thread: request a stop, weigh its known waiting stack again, or leave it
// alone.

/// If stops do not disturb waits: CPU time, in sampling periods, after which a thread never found running is
/// sampled where it waits.
const CARRIED_PERIODS: u64 = 4;

impl StopDriver<'_> {
    /// Acts on a poll: requests a stop, or weighs a known waiting stack again. Returns whether a stop is pending.
    fn decide(&mut self, id: ThreadId, status: ThreadStatus) -> bool {
        let moved = self.note(id, status);
        if !self.budget.may_stop() {
            return false;
        }
        let Some(account) = self.recorder.account_mut(id) else { return false };
        match status.activity {
            // If only a stop reveals the state, it also reveals whether there is anything to record.
            Activity::Running | Activity::Unknown => self.request_stop(id, false),
            // It uses no CPU time, but wall-clock time passes where it waits for a CPU.
            Activity::Ready => self.options.idle && self.request_stop(id, false),
            // A ready thread that got no CPU since its last sample weighs nothing. An unchanged status may also
            // mean that it kept running: then every runnable thread has a CPU.
            Activity::Runnable if moved || self.polls.runnable() <= self.target.process().cpus => {
                self.request_stop(id, false)
            }
            Activity::Waiting if self.options.idle => self.decide_waiting(id, status),
            // It ran and waits again. Its time is carried to a sample that finds it running, which shows where it
            // was used. Finding it waiting every time by chance is unlikely (e^-4).
            Activity::Waiting if moved && !self.target.process().stops_interrupt_syscalls => {
                let periods = if self.schedule.is_closing() { 1 } else { CARRIED_PERIODS };
                account.clock.used_at_least(periods, self.options.hz) && self.request_stop(id, true)
            }
            // Not stopped, and its next stack must not weigh this time.
            Activity::Stopped if self.options.idle => {
                let stopped_ns = account.clock.weigh_wall(status, self.clock.now_ns());
                self.recorder.lose("stopped by job control", stopped_ns);
                false
            }
            Activity::Runnable | Activity::Waiting | Activity::Stopped => false,
        }
    }

    /// Records a poll; returns whether the thread was on a CPU since its last sample.
    fn note(&mut self, id: ThreadId, status: ThreadStatus) -> bool {
        let tick = self.recorder.stats.ticks;
        let Some(account) = self.recorder.account_mut(id) else { return false };
        account.clock.update(status, tick);
        let moved = account.clock.ran_since_sample(status);
        self.earn(id);
        moved
    }

    /// Credits the budget with a thread's CPU time. Wall-clock recordings, and targets with stops that hold all
    /// threads, credit wall-clock time elsewhere.
    fn earn(&mut self, id: ThreadId) {
        if self.target.process().stops_hold_all || self.options.idle {
            return;
        }
        if let Some(account) = self.recorder.account_mut(id) {
            self.budget.earn(account.clock.newly_used_ns());
        }
    }

    /// Requests stops of threads that may be on a CPU, as many as CPUs remain: those last seen using one first,
    /// ties in random order.
    fn request_maybe_running(&mut self, cpus_left: usize) -> std::result::Result<(), Fault> {
        let (tick, recorder) = (self.recorder.stats.ticks, &self.recorder);
        let used_at_tick = |id| recorder.account(id).map(|account| account.clock.used_at_tick());
        let maybe_running = self.polls.take_postponed(tick, used_at_tick);
        let mut pending_stops = 0;
        for id in &maybe_running {
            if pending_stops >= cpus_left {
                break;
            }
            // The first poll is outdated after the other requests.
            let Ok(status) = self.target.poll(*id) else { continue };
            if self.decide(*id, status) {
                pending_stops += 1;
                if pending_stops % self.target.stops_at_once() == 0 {
                    self.collect()?;
                }
            }
        }
        self.polls.give_back(maybe_running);
        Ok(())
    }

    fn decide_waiting(&mut self, id: ThreadId, status: ThreadStatus) -> bool {
        let Some(state) = self.threads.get_mut(&id) else { return false };
        let stack = match state.wait_stack {
            WaitStack::With { stack, status: then } if then == status => stack,
            // Returned from our stop to the same place, as far as the system shows.
            WaitStack::Returning { stack, at } if self.target.waits_at(id).is_none_or(|now| now == at) => {
                state.wait_stack = WaitStack::With { stack, status };
                stack
            }
            _ => return self.capture_waiting(id),
        };
        let Some(account) = self.recorder.account_mut(id) else { return false };
        let weight_ns = account.clock.weigh_wall(status, self.clock.now_ns());
        self.recorder.repeat(id, stack.node, stack.ended, weight_ns);
        false
    }

    fn request_stop(&mut self, id: ThreadId, waiting: bool) -> bool {
        let stack_bytes = self.stack_bytes(id);
        self.count_libraries(id, 0);
        let Some(state) = self.threads.get_mut(&id) else { return false };
        match self.target.interrupt(id, stack_bytes, self.options.idle || waiting) {
            Ok(()) => {
                state.stop_pending = true;
                state.was_waiting = waiting;
                true
            }
            // An event reports its end, and its usage is counted then.
            Err(_) => false,
        }
    }

    /// Counts the libraries of a thread's process before a capture, 0, or after it, 1.
    fn count_libraries(&mut self, id: ThreadId, after: usize) {
        let Some(state) = self.threads.get_mut(&id) else { return };
        let of = self.processes.index(state.process);
        let process = observed(self.target, state.process);
        let counts = of.zip(process).and_then(|(of, process)| self.recorder.loader_counts(of, process));
        state.libraries = match (after, state.libraries, counts) {
            (0, _, Some(counts)) => Some([counts; 2]),
            (_, Some([before, _]), Some(counts)) => Some([before, counts]),
            _ => None,
        };
    }
}

// ---- Waiting threads in a wall-clock recording: captured without a stop if that gives the whole stack.

/// Reason for a waiting thread without a stack.
const UNSHOWN: &str = "waits under a seccomp filter, where /proc does not show it";

/// Whether more registers than stack pointer and program counter would not lead the walk further.
fn leads_as_far_as_a_stop(ended: StackEnd) -> bool {
    ended.is_complete() || matches!(ended, StackEnd::DeeperThanCopied | StackEnd::DepthLimit)
}

impl StopDriver<'_> {
    /// Captures a waiting thread without a stop, to be walked when no thread is stopped; requests a stop if the
    /// source cannot. Returns whether a stop was requested.
    fn capture_waiting(&mut self, id: ThreadId) -> bool {
        let mut capture = self.captures.buffer();
        self.count_libraries(id, 0);
        let seen = self.target.capture_sleeping(id, self.stack_bytes(id), &mut capture);
        if seen == SleepingThread::Captured {
            self.count_libraries(id, 1);
            self.captures.push_sleeping(id, capture);
            return false;
        }
        self.captures.give_back(capture);
        if seen == SleepingThread::Hidden && self.target.is_harmed_by_stops(id) {
            let waited_ns = self.weigh(id, None).unwrap_or(0);
            self.recorder.lose(UNSHOWN, waited_ns);
            return false;
        }
        // A wait that has just begun tolerates a stop.
        self.request_stop(id, true)
    }

    /// Walks the threads captured without a stop, and stops those for which a stop shows more.
    fn walk_sleeping_threads(&mut self) -> std::result::Result<(), Fault> {
        let mut sleeping = self.captures.take_sleeping();
        if sleeping.is_empty() {
            return Ok(());
        }
        for (id, capture) in sleeping.drain(..) {
            if self.is_shown_whole(id, &capture) || self.target.is_harmed_by_stops(id) {
                let mut libraries = None;
                if let Some(state) = self.threads.get_mut(&id) {
                    state.was_waiting = true;
                    libraries = state.libraries;
                }
                let at_ns = self.clock.now_ns();
                self.captures.push(Sample {
                    thread: id,
                    capture,
                    libraries,
                    at_ns,
                    waiting: true,
                    off_cpu_ns: 0,
                });
            } else {
                self.captures.give_back(capture);
                self.request_stop(id, true);
            }
        }
        self.captures.reuse_sleeping(sleeping);
        self.collect()?;
        self.walk_captured();
        Ok(())
    }

    fn is_shown_whole(&mut self, id: ThreadId, capture: &Capture) -> bool {
        let Some(pid) = self.threads.get(&id).map(|state| state.process) else { return false };
        if !self.place_thread(pid, id) {
            return false;
        }
        let most = self.budget.stack_max_bytes();
        let Some(process) = observed(self.target, pid) else { return false };
        let walked = self.recorder.walk(process, id, capture, most, &mut self.frames);
        walked.is_some_and(|(ended, _)| leads_as_far_as_a_stop(ended))
    }
}

// ---- Suspensions of a recording: the target is detached before, and the time until resumption is excluded.

/// Loss reason for CPU time used during a suspension.
const SUSPENDED: &str = "used while stackprof was suspended";

/// Minimum number of thread and process events handled before the first tick after a suspension.
const EVENTS_MIN: usize = 1024;

impl StopDriver<'_> {
    /// Records to the end, across suspensions. Calls that belong to the tracer thread run there.
    pub(crate) fn record(&mut self) -> Result<(), Fault> {
        let thread = self.target.call_thread();
        let thread = thread.as_deref();
        let ended = self.record_segments(thread);
        if let (Err(Fault::Lost(_)), Some(thread)) = (&ended, thread) {
            // Detach at once: nothing serves traced threads any more.
            thread.call(&mut || self.target.release());
            thread.shut_down();
            thread.restart()?;
        }
        ended
    }

    fn record_segments(&mut self, thread: Option<&dyn CallThread>) -> Result<(), Fault> {
        let mut segment = Ok(RunEnd::Over);
        call(thread, &mut || {
            self.begin();
            segment = self.run();
        });
        while segment? == RunEnd::Suspended {
            if let Some(thread) = thread {
                thread.call(&mut || {
                    let clocks = self.process_clocks();
                    self.lose_unattributed_of_all(&clocks, BY_NO_KNOWN_THREAD);
                    self.target.release();
                });
                thread.shut_down();
            }
            let suspended_ns = wait_while_suspended(self.clock, self.live);
            if let Some(thread) = thread {
                thread.restart()?;
            }
            segment = Ok(RunEnd::Over);
            call(thread, &mut || segment = self.go_on(suspended_ns));
        }
        Ok(())
    }

    /// Resumes the recording, excluding `suspended_ns` from its time.
    fn go_on(&mut self, suspended_ns: u64) -> Result<RunEnd, Fault> {
        self.target.reattach()?;
        self.schedule.exclude_suspension(suspended_ns, self.clock.now_ns());
        self.recorder.stats.suspended_ns += suspended_ns;
        // Stops requested before will not be reported.
        for state in self.threads.values_mut() {
            *state = StopState::new(state.process);
        }
        // Before the events: usage before an exec does not belong to the next sample.
        self.skip_all();
        for _ in 0..EVENTS_MIN.max(2 * self.threads.len()) {
            if !self.one_event(0)? {
                break;
            }
        }
        let clocks = self.process_clocks();
        self.skip_all();
        self.lose_unattributed_of_all(&clocks, SUSPENDED);
        self.run()
    }

    fn skip_all(&mut self) {
        let ids: Vec<_> = self.threads.keys().copied().collect();
        for id in ids {
            if let Ok(status) = self.target.poll(id) {
                self.recorder.skip(id, status.cpu_ns, SUSPENDED);
            }
        }
    }
}

/// Runs a call in the target's tracer thread, or in this one if it has none.
fn call(thread: Option<&dyn CallThread>, body: &mut dyn FnMut()) {
    match thread {
        Some(thread) => thread.call(body),
        None => body(),
    }
}
