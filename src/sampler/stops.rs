//! The driver that stops threads: each tick polls all threads, stops the running ones, and passes their captures
//! to the recorder once all run again.

use hashbrown::HashMap;

use super::budget::Budget;
use super::captures::Captures;
use super::deferred_samples::DueSamples;
use super::options::Options;
use super::poll_order::PollOrder;
use super::recorded_process::FIRST;
use super::recorder::Recorder;
use super::sample::Sample;
use super::schedule::Schedule;
use super::target_processes::{TOO_MANY, TargetProcesses, observed};
use super::unsampled_time::UnsampledTime;
use crate::addr::Avma;
use crate::clock::Clock;
use crate::images::LibraryCounts;
use crate::live::Live;
use crate::sources::{Activity, Capture, Fault, StopOutcome, Target, TargetEvent, ThreadId, ThreadStatus};
use crate::trie::NodeId;
use crate::walk::{Frames, StackEnd};

mod decide;
mod lifecycle;
mod sleeping;
pub(super) mod snapshot;
mod suspension;

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
