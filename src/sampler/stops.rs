//! The driver that stops threads: at each tick it polls all, asks those that run to stop, and
//! hands what they show to the recorder when none stands any more.

use hashbrown::HashMap;

use super::budget::Budget;
use super::deferred::DueSamples;
use super::options::Options;
use super::recorded_process::FIRST;
use super::recorder::Recorder;
use super::sample::Sample;
use super::target_process::{TOO_MANY, TargetProcess, observed};
use super::ticks::Ticks;
use crate::addr::Avma;
use crate::clock::Clock;
use crate::live::Live;
use crate::sources::{Activity, Capture, Event, Fault, Outcome, Target, ThreadId, ThreadStatus};
use crate::trie::NodeId;
use crate::walk::{Frames, StackEnd};

/// Events handled in a row before the engine reads the clock again.
pub(super) const EVENTS_AT_ONCE: u32 = 256;
/// How long the stops of the last tick are waited for, nanoseconds.
const LAST_STOPS_NS: u64 = 30_000_000;
const SECOND_NS: u64 = 1_000_000_000;
/// The request to stop is polled this often even at 1 Hz, nanoseconds.
const ATTENTION_NS: u64 = 50_000_000;
/// A tick polls threads for this long at most, or a period of the rate if that is longer,
/// nanoseconds; the next tick goes on with the other threads.
const POLLS_NS: u64 = 20_000_000;

/// A stack in the trie, and how its walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KnownStack {
    pub(super) node: NodeId,
    pub(super) ended: StackEnd,
}

/// What is known of a waiting thread's stack (wall-clock profiles).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waits {
    /// Nothing: it has to be captured.
    Unknown,
    /// Captured, and on its way back to where it waited: stack pointer and program counter.
    Returning { stack: KnownStack, at: (Avma, Avma) },
    /// Waiting with this stack while its status is unchanged.
    With { stack: KnownStack, status: ThreadStatus },
}

/// What the driver knows of a thread, stopped or not, beside its account.
#[derive(Debug)]
pub(super) struct StopState {
    /// The number of its process.
    pub(super) process: u32,
    /// Whether a stop was requested and has not come.
    pub(super) stop_pending: bool,
    /// Whether it waited when it was asked to stop.
    pub(super) was_waiting: bool,
    /// Why its last stop showed nothing.
    pub(super) unreadable: Option<&'static str>,
    pub(super) waits: Waits,
}

impl StopState {
    pub(super) fn new(process: u32) -> StopState {
        StopState {
            process,
            stop_pending: false,
            was_waiting: false,
            unreadable: None,
            waits: Waits::Unknown,
        }
    }
}

/// Why [`StopDriver::run`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunEnd {
    /// The recording is over.
    Over,
    /// The profiler is to be suspended, and the recording goes on later.
    Suspended,
}

/// Samples a target by stopping its threads at each tick.
pub(super) struct StopDriver<'a> {
    pub(super) target: &'a mut dyn Target,
    pub(super) clock: &'a dyn Clock,
    pub(super) options: &'a Options,
    pub(super) live: &'a Live,
    pub(super) start_ns: u64,
    /// When the recording is over, whatever calls of the target cost.
    pub(super) end_ns: u64,
    pub(super) ticks: Ticks,
    pub(super) recorder: Recorder<'a>,
    pub(super) threads: HashMap<ThreadId, StopState>,
    /// Processes that have not ended, by their numbers.
    pub(super) known: HashMap<u32, TargetProcess>,
    /// How often one of them turned into another program.
    pub(super) programs_begun: u64,
    /// By program, what processes used that ended before a sample stood for it, nanoseconds.
    pub(super) unsampled_ns: HashMap<String, u64>,
    /// Captured in this tick and not yet walked; buffers are kept in `spare`.
    pub(super) captured: Vec<Sample>,
    #[allow(clippy::vec_box, reason = "samples are handed on in their boxes")]
    pub(super) spare: Vec<Box<Capture>>,
    pub(super) frames: Frames,
    /// Threads that wait, captured in this tick without a stop.
    pub(super) sleeping: Vec<(ThreadId, Box<Capture>)>,
    order: Vec<ThreadId>,
    /// The source knows of some threads that they are on a CPU, or are not.
    knows_on_cpu: bool,
    /// The thread that the last tick had no time for; the next one begins with it.
    next_poll: Option<ThreadId>,
    /// Threads that may be on a CPU.
    pub(super) maybe_running: Vec<ThreadId>,
    pub(super) budget: Budget,
    /// The tick may stop threads: the target has not stood for too long.
    pub(super) may_stop: bool,
    /// Up to when the target's time was taken into account.
    pub(super) earned_until_ns: u64,
    /// From the tick before to this one, nanoseconds.
    pub(super) interval_ns: u64,
    /// This is the last tick.
    pub(super) closing: bool,
    pub(super) runnable: usize,
    ended: bool,
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
        let known = HashMap::from([(process.pid, TargetProcess::first(&process.name))]);
        StopDriver {
            target,
            clock,
            options,
            live,
            start_ns: clock.now_ns(),
            end_ns: u64::MAX,
            ticks: Ticks::new(clock.now_ns(), options.hz, options.seed),
            recorder,
            threads: HashMap::new(),
            known,
            unsampled_ns: HashMap::new(),
            captured: Vec::new(),
            spare: Vec::new(),
            frames: Frames::default(),
            sleeping: Vec::new(),
            order: Vec::new(),
            knows_on_cpu: false,
            next_poll: None,
            maybe_running: Vec::new(),
            budget: Budget::new(options.max_stop),
            may_stop: true,
            programs_begun: 0,
            earned_until_ns: clock.now_ns(),
            interval_ns: 0,
            closing: false,
            runnable: 0,
            ended: false,
        }
    }

    /// Takes in what there is at the beginning.
    pub(super) fn begin(&mut self) {
        self.add_threads();
        self.recorder.read_images(FIRST, self.target);
        self.start_ns = self.clock.now_ns();
        self.recorder.begin_times(self.start_ns);
        self.end_ns =
            self.options.duration_ns.map_or(u64::MAX, |duration| self.start_ns.saturating_add(duration));
        self.ticks = Ticks::new(self.start_ns, self.options.hz, self.options.seed);
    }

    /// Records to the end, or until the recording is to be suspended: then no thread is asked to stop, and
    /// none stands.
    pub(super) fn run(&mut self) -> std::result::Result<RunEnd, Fault> {
        while !self.ended {
            let due_ns = self.ticks.deadline_ns().min(self.end_ns);
            let overslept_ns = self.target.overslept_ns();
            self.attend_until(due_ns)?;
            let overslept_ns = self.target.overslept_ns().zip(overslept_ns).map(|(now, before)| now - before);
            let begun_late_ns = self.clock.now_ns().saturating_sub(due_ns);
            if self.ended || self.live.shall_stop() || self.clock.now_ns() >= self.end_ns {
                break;
            }
            if self.live.shall_suspend() {
                self.await_stops()?;
                return Ok(RunEnd::Suspended);
            }
            self.tick()?;
            *if self.may_stop {
                &mut self.recorder.stats.ticks
            } else {
                &mut self.recorder.stats.ticks_skipped
            } += 1;
            let done_ns = self.clock.now_ns();
            let dropped = self.ticks.done(done_ns);
            self.recorder.stats.ticks_late = self.ticks.late();
            if let Some(overslept_ns) = overslept_ns {
                // By their parts of the time that was lost.
                let late_ns = done_ns.saturating_sub(due_ns).max(1);
                let by_wakeup = u128::from(dropped) * u128::from(overslept_ns.min(begun_late_ns));
                let by_wakeup = (2 * by_wakeup + u128::from(late_ns)) / (2 * u128::from(late_ns));
                *self.recorder.stats.ticks_late_wakeup.get_or_insert(0) += by_wakeup as u64;
            }
            self.publish();
        }
        if !self.ended {
            // What was used since the last tick belongs to the recording, too.
            self.recorder.stats.duration_ns = self.clock.now_ns() - self.start_ns;
            self.closing = true;
            self.tick()?;
            self.await_stops()?;
            let until_ns = self.clock.now_ns().saturating_add(self.options.linger_ns);
            while self.live.shall_stop()
                && !self.ended
                && self.clock.now_ns() < until_ns
                && self.one_event(until_ns)?
            {}
        }
        Ok(RunEnd::Over)
    }

    /// Waits a moment for the stops that were asked for, and walks what they show.
    fn await_stops(&mut self) -> std::result::Result<(), Fault> {
        let until_ns = self.clock.now_ns() + LAST_STOPS_NS;
        while self.threads.values().any(|state| state.stop_pending) && self.clock.now_ns() < until_ns {
            self.one_event(until_ns)?;
        }
        self.walk_captured();
        Ok(())
    }

    /// Handles what happens until `until_ns`; then it is the tick's turn, whatever waits.
    fn attend_until(&mut self, until_ns: u64) -> std::result::Result<(), Fault> {
        while !self.ended {
            let wait_ns = until_ns.min(self.clock.now_ns().saturating_add(ATTENTION_NS));
            self.one_event(wait_ns)?;
            if !self.captured.is_empty() {
                // Others may stand already: walk only when none does.
                self.collect()?;
                self.walk_captured();
            }
            if self.clock.now_ns() >= until_ns || self.live.shall_stop() || self.live.shall_suspend() {
                break;
            }
        }
        Ok(())
    }

    /// Takes the stops that come at once.
    pub(super) fn collect(&mut self) -> std::result::Result<(), Fault> {
        for _ in 0..EVENTS_AT_ONCE {
            if !self.one_event(0)? || self.is_over() {
                break;
            }
        }
        Ok(())
    }

    /// One tick: polls every thread, asks those that ran to stop, collects and weighs.
    fn tick(&mut self) -> std::result::Result<(), Fault> {
        self.refresh_images();
        let now_ns = self.clock.now_ns();
        let passed_ns = now_ns.saturating_sub(self.earned_until_ns);
        if self.target.process().stops_hold_all {
            self.budget.earn(passed_ns);
        } else if self.options.idle {
            // Wall-clock time is what is recorded: that of each thread that could run.
            self.budget.earn(passed_ns.saturating_mul(self.runnable.max(1) as u64));
        }
        self.earned_until_ns = now_ns;
        self.interval_ns = passed_ns;
        // The last tick is one more stop, and what was used since is of no use without.
        self.may_stop = self.closing || self.budget.allows_stops();
        self.order.clear();
        self.order.extend(self.threads.keys());
        self.order.sort_unstable();
        let order = std::mem::take(&mut self.order);
        let (mut runnable, mut pending_stops) = (0, 0);
        // No more threads can be on a CPU than there are CPUs, and asking one that is not costs
        // it the CPU that it waits for. So where they outnumber CPUs, those of which it is not
        // certain are asked last, as far as CPUs are left for them.
        let cpus = self.target.process().cpus;
        let scarce = self.knows_on_cpu && !self.options.idle && self.runnable > cpus;
        self.maybe_running.clear();
        let until_ns = now_ns.saturating_add(POLLS_NS.max(SECOND_NS / u64::from(self.options.hz.max(1))));
        let start = self.next_poll.map_or(0, |last| order.partition_point(|id| *id < last));
        self.next_poll = None;
        for id in order[start..].iter().chain(&order[..start]) {
            if self.clock.now_ns() >= until_ns || self.is_over() {
                self.next_poll = Some(*id);
                runnable = runnable.max(self.runnable);
                break;
            }
            // A stop already asked for will tell; until it comes the thread had no CPU.
            if self.threads.get(id).is_some_and(|state| state.stop_pending) {
                runnable += 1;
                continue;
            }
            let Ok(status) = self.target.poll(*id) else { continue };
            runnable += usize::from(status.activity.wants_cpu());
            self.knows_on_cpu |= matches!(status.activity, Activity::Running | Activity::Ready);
            if scarce && status.activity == Activity::Runnable {
                self.maybe_running.push(*id);
                self.note(*id, status);
                continue;
            }
            if self.decide(*id, status) {
                pending_stops += 1;
                if pending_stops % self.target.stops_at_once() == 0 {
                    self.collect()?;
                }
            }
        }
        self.runnable = runnable;
        self.order = order;
        self.ask_maybe_running(cpus.saturating_sub(pending_stops))?;
        self.collect()?;
        self.walk_captured();
        self.walk_sleeping_threads()
    }

    /// Whether the recording shall end, and nothing more be begun.
    fn is_over(&self) -> bool {
        !self.closing && (self.live.shall_stop() || self.clock.now_ns() >= self.end_ns)
    }

    /// Takes the next event; false if none came before `until_ns`.
    pub(super) fn one_event(&mut self, until_ns: u64) -> std::result::Result<bool, Fault> {
        let mut capture = self.spare.pop().unwrap_or_default();
        match self.target.next(until_ns, &mut capture) {
            Ok(Event::Stopped { thread, outcome }) => {
                self.stopped(thread, outcome, capture);
                return Ok(true);
            }
            Ok(Event::Timeout) => {
                self.spare.push(capture);
                return Ok(false);
            }
            Ok(event) => self.happened(event),
            Err(fault) => return Err(fault),
        }
        self.spare.push(capture);
        Ok(true)
    }

    fn happened(&mut self, event: Event) {
        match event {
            Event::ThreadStarted { thread, stack_top } => {
                self.add_thread(
                    thread,
                    stack_top,
                    ThreadStatus { cpu_ns: 0, switches: 0, activity: Activity::Runnable },
                    false,
                );
            }
            Event::ThreadExited { thread, cpu_ns } => {
                self.rename(thread);
                self.remove_thread(thread, cpu_ns);
            }
            Event::Exec { thread, stack_top } => self.exec_thread(thread, stack_top),
            Event::Leaving { process } => self.walk_all_deferred_of(process),
            Event::ProcessEnded { process } => self.end_process(process),
            Event::Exited(status) => {
                self.recorder.stats.exit_status = Some(status);
                self.ended = true;
            }
            Event::ImagesChanged => {
                // Those captured before belong to the images of before.
                self.walk_captured();
                self.walk_all_deferred(DueSamples::All);
                self.recorder.images_changed(FIRST, self.target);
            }
            Event::Terminate => self.live.ask_to_stop(),
            Event::Timeout | Event::Stopped { .. } => {}
        }
    }

    fn stopped(&mut self, id: ThreadId, outcome: Outcome, capture: Box<Capture>) {
        self.recorder.stats.stops += 1;
        self.recorder.stats.pause.add(capture.pause_ns);
        self.recorder.stats.stopped_ns += capture.stood_ns;
        let mut waited = false;
        if let Some(state) = self.threads.get_mut(&id) {
            state.stop_pending = false;
            state.unreadable = if let Outcome::Unreadable(why) = outcome { Some(why) } else { None };
            waited = state.was_waiting;
        }
        // A thread that waits loses no time.
        if !waited || self.target.process().stops_hold_all {
            let copied = match outcome {
                Outcome::Captured => capture.stack.len() + capture.prefetched.bytes(),
                _ => 0,
            };
            self.recorder.stats.held_up_ns += self.budget.spend(capture.stood_ns, copied);
        }
        match outcome {
            Outcome::Captured => {
                let at_ns = self.clock.now_ns();
                let waits = capture.status.is_some_and(|status| status.activity == Activity::Waiting);
                let waiting = waited || waits;
                self.captured.push(Sample { thread: id, capture, at_ns, waiting, off_cpu_ns: 0 });
                return;
            }
            // Its time is not lost: the next sample carries it.
            Outcome::BeganToWait => self.recorder.stats.stops_released_waiting += 1,
            Outcome::NotOnCpu => self.recorder.stats.stops_not_on_cpu += 1,
            Outcome::Unreadable(why) => {
                let missed_ns = self.weigh(id, capture.status);
                self.recorder.lose(why, missed_ns.unwrap_or(0));
            }
        }
        self.spare.push(capture);
    }

    /// Walks, weighs and inserts what was captured; the threads run.
    pub(super) fn walk_captured(&mut self) {
        let mut captured = std::mem::take(&mut self.captured);
        for sample in captured.drain(..) {
            if let Some(sample) = self.take(sample) {
                self.spare.push(sample.capture);
            }
        }
        self.captured = captured;
        self.walk_all_deferred(DueSamples::ImagesRead);
    }

    /// The weight of a thread's sample that was just stopped, nanoseconds; `None` if it is accounted for already.
    pub(super) fn weigh(&mut self, id: ThreadId, stopped: Option<ThreadStatus>) -> Option<u64> {
        // The stop took the thread off its CPU, so the figure is exact up to there.
        let status = stopped.or_else(|| self.target.poll(id).ok());
        self.add_unsampled(id, status);
        let weight_ns = self.recorder.weigh(id, status)?;
        self.earn(id);
        Some(weight_ns)
    }

    /// Hands a sample to the recorder; gives back what is done with.
    fn take(&mut self, mut sample: Sample) -> Option<Sample> {
        let id = sample.thread;
        let Some(weight_ns) = self.weigh(id, sample.capture.status) else { return Some(sample) };
        // Stops that hold all threads are no time in which this one was ready.
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
        // What takes a thread in knows its process.
        self.recorder.may_prefetch = self.target.prefetches();
        let Some(process) = observed(self.target, pid) else { return Some(sample) };
        let taken = self.recorder.take(process, sample, weight_ns, most, &mut self.frames);
        let new_ranges = self.recorder.new_ranges(id);
        let has_new_ranges = new_ranges.is_some();
        if let Some(ranges) = new_ranges {
            self.target.prefetch(id, ranges);
        }
        if weight_ns == 0 && !self.options.idle {
            return taken.sample;
        }
        // With a larger stack size or other ranges the same stack may be complete: not one to keep.
        let grew = has_new_ranges || self.stack_bytes(id) > stack_bytes;
        let state = self.threads.get_mut(&id)?;
        state.waits = match taken.stack {
            Some((node, ended))
                if state.was_waiting
                    && !(grew && matches!(ended, StackEnd::DeeperThanCopied | StackEnd::OtherStack)) =>
            {
                Waits::Returning { stack: KnownStack { node, ended }, at }
            }
            _ => Waits::Unknown,
        };
        taken.sample
    }

    /// Stack bytes that the next capture of a thread shall hold.
    pub(super) fn stack_bytes(&self, id: ThreadId) -> usize {
        self.recorder.threads.get(&id).map_or(0, |account| account.stack_size.bytes())
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
