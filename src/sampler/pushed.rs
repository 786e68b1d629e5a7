//! Driver for pushed samples: of a kernel, which writes them into per-CPU buffers, of the heap shim, or of
//! breakpoints behind a stub; delivered in batches.
//!
//! Input: events that arrive late, and out of order between threads; output: the recording, in order of event
//! times. Events have their own times; the clock decides when the recording ends.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use hashbrown::HashMap;

use super::Options;
use super::captures::{DueSamples, Rewalk, Sample};
use super::processes::{FIRST, ProcessIndex};
use super::recorder::{Recorder, SampleOutcome, UNKNOWN_THREAD, unknown_status};
use super::waits::OpenWaits;
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::live::Live;
use crate::recording::Recording;
use crate::recording::timeline::EventKind;
use crate::sources::pushed::{PushedSource, SourceEvent, StackUse, TimedEvent};
use crate::sources::{Capture, Fault, Observed, ThreadId};
use crate::walk::Frames;

/// Maximum stack size to request of the source, which decides itself.
const STACK_MAX_BYTES: usize = 64 << 10;

/// The time of the current event, and the time passed since its processing began.
struct EventTime<'a> {
    clock: &'a dyn Clock,
    at_ns: Cell<u64>,
    begun_ns: Cell<u64>,
}

impl EventTime<'_> {
    fn set_time(&self, at_ns: u64) {
        self.at_ns.set(at_ns);
        self.begun_ns.set(self.clock.now_ns());
    }

    /// Moves back to the earlier time of the actual event, if known.
    fn go_back_to(&self, at_ns: Option<u64>) {
        if let Some(at_ns) = at_ns.filter(|at_ns| *at_ns < self.at_ns.get()) {
            self.set_time(at_ns);
        }
    }
}

impl Clock for EventTime<'_> {
    fn now_ns(&self) -> u64 {
        self.at_ns.get() + self.clock.now_ns().saturating_sub(self.begun_ns.get())
    }
}

/// Records events from a source until it ends, the time is over or `live` requests a stop. `clock` is the clock of
/// the source's timestamps.
///
/// # Errors
/// [`ErrorKind::System`] when the source fails. The end of a process is no error.
pub fn record(
    source: &mut dyn PushedSource,
    clock: &dyn Clock,
    options: &Options,
    live: &Live,
) -> Result<Recording> {
    let start_ns = clock.now_ns();
    let time = EventTime { clock, at_ns: Cell::new(start_ns), begun_ns: Cell::new(start_ns) };
    let mut driver = PushedDriver {
        time: &time,
        live,
        recorder: Recorder::new(&time, options, source.process()),
        index_by_pid: HashMap::from([(source.process().pid, FIRST)]),
        pids_in_batch: Vec::new(),
        open_waits: OpenWaits::default(),
        frames: Frames::default(),
        spare: Vec::new(),
    };
    // Waits are events with their own times.
    driver.recorder.expect_events(source.allocation_rate(), options.block_age_min_ns);
    driver.recorder.begin_times(start_ns);
    let (first_ns, mut start_ns) = (start_ns, start_ns);
    let mut end_ns = options.duration_ns.map_or(u64::MAX, |duration_ns| start_ns.saturating_add(duration_ns));
    let mut waiting: Vec<TimedEvent> = Vec::new();
    let mut ends = false;
    loop {
        if live.is_suspension_requested() {
            // The source keeps sampling while it has room: overflow is lost and counted.
            let suspended_ns = wait_while_suspended(clock, live);
            driver.recorder.stats.suspended_ns += suspended_ns;
            start_ns += suspended_ns;
            end_ns = end_ns.saturating_add(suspended_ns);
        }
        if !ends && (live.poll_stop() || clock.now_ns() >= end_ns) {
            // Closing a sampler may take long.
            driver.recorder.stats.duration_ns = clock.now_ns() - start_ns;
            source.end();
            ends = true;
        }
        let complete_until_ns = match source.next_batch(end_ns, &mut waiting) {
            Ok(complete_until_ns) => complete_until_ns,
            Err(Fault::Gone) => None,
            Err(fault) => {
                return Err(Error::new(ErrorKind::System, format!("the recording failed: {fault}")));
            }
        };
        // A stable sort keeps the events of one thread in order.
        waiting.sort_by_key(|event| (event.at_ns, event.process, event.thread));
        let due = complete_until_ns.map_or(waiting.len(), |complete_until_ns| {
            waiting.partition_point(|event| event.at_ns < complete_until_ns)
        });
        for event in waiting.drain(..due) {
            source.drain_rings();
            driver.handle_event(source, event);
        }
        if complete_until_ns.is_none() {
            break;
        }
        driver.refresh_images(source);
        driver.publish(source, clock.now_ns() - start_ns);
    }
    if !ends {
        driver.recorder.stats.duration_ns = clock.now_ns() - start_ns;
    }
    // The command may run before the driver does.
    let stats = &mut driver.recorder.stats;
    stats.duration_ns += first_ns.saturating_sub(stats.begun_ns);
    Ok(driver.finish(source, clock, options))
}

/// Waits while the recording is suspended; returns the duration, nanoseconds.
pub(super) fn wait_while_suspended(clock: &dyn Clock, live: &Live) -> u64 {
    let begun_ns = clock.now_ns();
    live.park();
    clock.now_ns().saturating_sub(begun_ns)
}

/// The number of samples that a thread would have had if it ran all of the time.
fn ticks(samples: u64, passed_ns: u64, target_cpu_ns: u64) -> u64 {
    let ticks = (u128::from(samples) * u128::from(passed_ns)).checked_div(target_cpu_ns.into());
    ticks.and_then(|ticks| ticks.try_into().ok()).unwrap_or(samples)
}

struct PushedDriver<'a> {
    time: &'a EventTime<'a>,
    live: &'a Live,
    recorder: Recorder<'a>,
    /// Processes by their ids.
    index_by_pid: HashMap<u32, ProcessIndex>,
    /// Processes with events in the batch.
    pids_in_batch: Vec<u32>,
    /// Threads in a wait.
    open_waits: OpenWaits,
    frames: Frames,
    #[allow(clippy::vec_box, reason = "samples are handed on in their boxes")]
    spare: Vec<Box<Capture>>,
}

impl PushedDriver<'_> {
    /// The index of a process; a new one is added under this name.
    fn index(&mut self, pid: u32, name: &str) -> Option<ProcessIndex> {
        let known = self.index_by_pid.get(&pid).copied();
        known.or_else(|| {
            let index = self.recorder.add_process(pid, name)?;
            self.index_by_pid.insert(pid, index);
            self.recorder.stats.processes_seen += 1;
            Some(index)
        })
    }

    fn handle_event(&mut self, source: &mut dyn PushedSource, event: TimedEvent) {
        let TimedEvent { at_ns, process: pid, thread, event } = event;
        self.time.set_time(at_ns);
        source.set_time(at_ns);
        match event {
            SourceEvent::Dropped(samples, reason) => return self.recorder.lose_samples(reason, samples),
            SourceEvent::Late(ticks) => return self.recorder.stats.ticks_late += ticks,
            SourceEvent::Exited(status) => {
                self.recorder.stats.exit_status = Some(status);
                // A recording of several processes has no main process.
                if pid > 0 && self.index_by_pid.contains_key(&pid) {
                    self.recorder.note_event(EventKind::ProcessEnd, pid, "");
                }
                return;
            }
            // The match below names all others.
            _ => {}
        }
        let prefetches = source.prefetches();
        let Some(process) = source.observed(pid) else { return };
        let name = match &event {
            SourceEvent::ProcessStarted { name } => name,
            _ => &process.process().name,
        };
        let Some(of) = self.index(pid, name) else {
            let samples = u64::from(matches!(event, SourceEvent::Sample(_)));
            return self.recorder.lose_samples("too many processes", samples);
        };
        if self.pids_in_batch.last() != Some(&pid) {
            self.pids_in_batch.push(pid);
        }
        match event {
            SourceEvent::Sample(capture) => {
                // Samples define the time: a command may run before the driver does.
                if self.recorder.stats.samples_pushed == 0 && at_ns < self.recorder.stats.begun_ns {
                    self.recorder.begin_times(at_ns);
                }
                self.recorder.walker().set_may_prefetch(prefetches);
                let taken = self.take_sample(of, process, thread, at_ns, capture);
                let Some((capture, needed)) = taken else { return };
                source.walked(thread, capture, needed);
                if let Some(ranges) = self.recorder.new_ranges(thread) {
                    source.prefetch(thread, ranges);
                }
            }
            SourceEvent::Missed(status, reason) => {
                let missed_ns = self.recorder.weigh(thread, Some(status));
                self.recorder.lose(reason, missed_ns.unwrap_or(0));
            }
            SourceEvent::Allocation(allocation, capture) => {
                self.know_thread(of, process, thread);
                let sample =
                    Sample { thread, capture, libraries: None, at_ns, waiting: false, off_cpu_ns: 0 };
                let capture =
                    self.recorder.add_allocation(process, pid, sample, allocation, &mut self.frames);
                source.walked(thread, capture, StackUse::default());
            }
            SourceEvent::Free(free) => self.recorder.heap().free(pid, at_ns, free),
            SourceEvent::Shrink { block, bytes } => self.recorder.heap().shrink(pid, at_ns, block, bytes),
            SourceEvent::Restore { block } => self.recorder.heap().restore(pid, block),
            SourceEvent::WaitStarted(capture) => {
                self.know_thread(of, process, thread);
                self.recorder.read_changed_images(of, process);
                let taken = self.take_wait(process, thread, at_ns, capture, 0);
                self.open_waits.began(thread, taken.stack);
                source.wait_walked(buffer_of(taken.sample), Some(taken.needed));
            }
            SourceEvent::Wait { ns, stack } => {
                self.know_thread(of, process, thread);
                self.recorder.stats.waits += 1;
                let weight_ns = self.recorder.weigh_wait(thread, ns).unwrap_or(0);
                match stack {
                    None => self.open_waits.over(&mut self.recorder, thread, at_ns, weight_ns),
                    // Most of many short waits are not drawn: others carry their weight.
                    Some(capture) if weight_ns == 0 => source.wait_walked(capture, None),
                    Some(capture) => {
                        let taken = self.take_wait(process, thread, at_ns, capture, weight_ns);
                        self.walk_deferred(of, process, DueSamples::ImagesRead);
                        source.wait_walked(buffer_of(taken.sample), Some(taken.needed));
                    }
                }
            }
            SourceEvent::WaitLost { ns, reason } => {
                self.know_thread(of, process, thread);
                self.recorder.stats.waits += 1;
                let lost_ns = self.recorder.weigh_wait(thread, ns).unwrap_or(0);
                self.recorder.lose(reason, lost_ns);
            }
            SourceEvent::ThreadStarted { stack_top, status, preexisting, started_ns } => {
                match self.recorder.account_mut(thread) {
                    // One of its waits, with an earlier time, was reported first.
                    Some(account) if account.process == of => account.stack.set_top(stack_top),
                    _ => {
                        self.recorder.add_thread(of, process, thread, stack_top, status, preexisting);
                        self.recorder.set_start(thread, started_ns);
                    }
                }
            }
            SourceEvent::ThreadNamed { name } => self.recorder.set_name(thread, name),
            SourceEvent::ThreadEnded { cpu_ns, reason, exited_ns } => {
                self.recorder.read_wanted_images(of, process);
                self.walk_deferred(of, process, DueSamples::ThreadEnded(thread));
                self.time.go_back_to(exited_ns);
                self.recorder.remove_thread(thread, cpu_ns, reason);
                self.open_waits.forget(thread);
            }
            SourceEvent::Exec { name } => {
                self.walk_deferred(of, process, DueSamples::All);
                let program = name.as_deref().unwrap_or(&process.process().name);
                self.recorder.heap().end_process(pid, self.time.at_ns.get());
                self.recorder.note_event(EventKind::Exec, pid, program);
                self.recorder.begin_program(of, name.as_deref().map(|name| (pid, name)));
            }
            SourceEvent::ProcessEnded { exited_ns } => {
                self.walk_all_deferred_of(of, process);
                self.time.go_back_to(exited_ns);
                self.recorder.note_event(EventKind::ProcessEnd, pid, "");
                self.recorder.heap().end_process(pid, self.time.at_ns.get());
                self.recorder.end_process(of);
                self.index_by_pid.remove(&pid);
            }
            SourceEvent::ImagesChanged => {
                self.recorder.read_images(of, process);
            }
            SourceEvent::ImagesMayHaveChanged => self.recorder.images_changed(of, process),
            // Already handled: its name was, or it is of no process.
            SourceEvent::ProcessStarted { .. }
            | SourceEvent::Dropped(..)
            | SourceEvent::Late(_)
            | SourceEvent::Exited(_) => {}
        }
        self.spare.clear();
    }

    /// Adds a thread known only from its waits.
    fn know_thread(&mut self, of: ProcessIndex, process: &mut dyn Observed, thread: ThreadId) {
        if self.recorder.account(thread).is_none() {
            self.recorder.add_thread(of, process, thread, None, unknown_status(), false);
        }
    }

    /// Walks and counts a sample; returns its buffer and how much of the copied stack it needed. `None` for an
    /// unknown thread.
    fn take_sample(
        &mut self,
        of: ProcessIndex,
        process: &mut dyn Observed,
        thread: ThreadId,
        at_ns: u64,
        capture: Box<Capture>,
    ) -> Option<(Box<Capture>, StackUse)> {
        self.recorder.stats.samples_pushed += 1;
        let weight_ns = self.recorder.weigh(thread, capture.status);
        let taken = weight_ns.map(|weight_ns| {
            let sample = Sample { thread, capture, libraries: None, at_ns, waiting: false, off_cpu_ns: 0 };
            self.recorder.add_sample(process, sample, weight_ns, STACK_MAX_BYTES, &mut self.frames)
        });
        self.recorder.walker().set_may_prefetch(false);
        if taken.is_none() {
            self.recorder.lose_samples(UNKNOWN_THREAD, 1);
        }
        let taken = taken?;
        self.walk_deferred(of, process, DueSamples::ImagesRead);
        Some((buffer_of(taken.sample), taken.needed))
    }

    /// Walks and counts a wait.
    fn take_wait(
        &mut self,
        process: &mut dyn Observed,
        thread: ThreadId,
        at_ns: u64,
        capture: Box<Capture>,
        weight_ns: u64,
    ) -> SampleOutcome {
        let sample = Sample { thread, capture, libraries: None, at_ns, waiting: true, off_cpu_ns: 0 };
        self.recorder.add_sample(process, sample, weight_ns, STACK_MAX_BYTES, &mut self.frames)
    }

    /// Walks all deferred samples of a process: its images will not change again.
    fn walk_all_deferred_of(&mut self, of: ProcessIndex, process: &mut dyn Observed) {
        self.recorder.read_wanted_images(of, process);
        self.walk_deferred(of, process, DueSamples::All);
    }

    fn walk_all_deferred(&mut self, source: &mut dyn PushedSource) {
        let known: Vec<(u32, ProcessIndex)> = self.index_by_pid.iter().map(|(pid, of)| (*pid, *of)).collect();
        for (pid, of) in known {
            if let Some(process) = source.observed(pid) {
                self.walk_all_deferred_of(of, process);
            }
        }
    }

    /// Walks deferred samples, waits for the command to exit if the recording was stopped, and completes the
    /// statistics.
    fn finish(mut self, source: &mut dyn PushedSource, clock: &dyn Clock, options: &Options) -> Recording {
        self.live.acknowledge_stop();
        self.walk_all_deferred(source);
        if self.live.poll_stop() && self.recorder.stats.exit_status.is_none() {
            let until_ns = clock.now_ns().saturating_add(options.linger_ns);
            self.recorder.stats.exit_status = source.exit_before(until_ns);
        }
        let mut recording = self.recorder.finish(source);
        if let Some(heap) = &mut recording.heap {
            heap.losses = source.allocation_losses();
        }
        let stats = &mut recording.stats;
        if let Some(cpu_ns) = source.target_cpu_ns() {
            stats.target_cpu_ns = cpu_ns;
        }
        stats.machine_idle = source.machine_idle();
        (stats.rings_bytes, stats.stacks_bytes) = source.memory_bytes();
        stats.ticks = if stats.samples_pushed == 0 && stats.waits > 0 {
            // Waits are all recorded, with their exact times.
            let ticks = u128::from(stats.duration_ns) * u128::from(options.hz) / 1_000_000_000;
            ticks.try_into().unwrap_or(u64::MAX)
        } else {
            ticks(stats.samples_pushed, stats.duration_ns, stats.target_cpu_ns)
        };
        recording
    }

    /// Reads the images of processes with events in the batch, if due.
    fn refresh_images(&mut self, source: &mut dyn PushedSource) {
        self.pids_in_batch.sort_unstable();
        self.pids_in_batch.dedup();
        for pid in self.pids_in_batch.drain(..) {
            if let Some(of) = self.index_by_pid.get(&pid)
                && let Some(process) = source.observed(pid)
            {
                self.recorder.refresh_images(*of, process);
            }
        }
    }

    /// Publishes the progress of the recording.
    fn publish(&self, source: &dyn PushedSource, passed_ns: u64) {
        let live = self.live;
        let target_cpu_ns = source.target_cpu_ns().unwrap_or(0);
        live.ticks
            .store(ticks(self.recorder.stats.samples_pushed, passed_ns, target_cpu_ns), Ordering::Relaxed);
        live.samples.store(self.recorder.samples(), Ordering::Relaxed);
        live.threads.store(self.recorder.thread_count() as u64, Ordering::Relaxed);
        live.target_cpu_ns.store(target_cpu_ns, Ordering::Relaxed);
    }

    /// Walks deferred samples.
    fn walk_deferred(&mut self, of: ProcessIndex, process: &mut dyn Observed, due: DueSamples) {
        let (frames, spare) = (&mut self.frames, &mut self.spare);
        let mut rewalk = Rewalk { stack_max_bytes: STACK_MAX_BYTES, frames, spare };
        self.recorder.walk_deferred(of, process, due, &mut rewalk);
    }
}

/// The buffer to return to the source: the sample's, or a new one if the sample is deferred.
fn buffer_of(sample: Option<Sample>) -> Box<Capture> {
    sample.map(|sample| sample.capture).unwrap_or_default()
}
