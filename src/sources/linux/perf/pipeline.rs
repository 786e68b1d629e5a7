//! Connects the stages of the perf_event source, one per folder.
//!
//! [`Pipeline::push_record`] copies stack bytes and reads losses, switches and waits. [`Pipeline::flush`]: reorder
//! → process → complete stacks → waits → weigh → report.
//!
//! The source owns the stages and calls each between batches; here is what concerns several of them.
//!
//! Input: records, ring after ring. Output: [`TimedEvent`]s for the sampler. Stacks are completed before samples
//! are weighed: a late sample, which may weigh nothing, shows missing pages of a stack like any other. All system
//! access is through [`System`].

#[cfg(test)]
mod tests;

use hashbrown::HashMap;
use libc::pid_t;

use super::buffers::Pool;
use super::cpu_time::accounting::{BatchOptions, CpuTime, WeighedEvent};
use super::cpu_time::wakeup::IntervalAction;
use super::events::attributes::EventOptions;
use super::process::filter::{Procfs, SystemProcfs};
use super::process::table::{Announcement, End, NewThread, ProcessEvent, ProcessTable};
use super::reorder::{EXITED_TID, Event, EventQueue, Queue, Selection};
use super::ring::{PerfRecord, Sample, SampleId};
use super::stack::stacks::{Stacks, SystemMemory, TargetMemory};
use super::waits::wait::{SwitchStack, Wait, WaitOutcome};
use super::waits::{SleepingThreads, SystemThreads, WaitRecorder};
use crate::sources::linux::clocks::{Clocks, SystemClocks};
use crate::sources::pushed::{SourceEvent, StackUse, THROTTLED, TimedEvent};
use crate::sources::{Activity, Capture, ThreadId, ThreadStatus};

/// Loss reason: rings were full.
const KERNEL_DROPPED: &str = "the kernel dropped them";
/// Reason for a missed sample.
const COMPAT: &str = "32-bit code";
/// Reason for a missed sample: its thread is no longer known.
const EXITED: &str = "of a thread that had ended";
/// Loss reason for CPU time of processes without a sample.
const TOO_SHORT: &str = "of processes that ran too shortly to be sampled";

/// System access of the stages.
pub(super) struct System {
    pub(super) clocks: Box<dyn Clocks>,
    pub(super) procfs: Box<dyn Procfs>,
    pub(super) memory: Box<dyn TargetMemory>,
    pub(super) threads: Box<dyn SleepingThreads>,
}

impl System {
    /// This machine.
    pub(super) fn machine() -> System {
        System {
            clocks: Box::new(SystemClocks),
            procfs: Box::new(SystemProcfs),
            memory: Box::new(SystemMemory),
            threads: Box::new(SystemThreads),
        }
    }
}

/// The stages.
pub(super) struct Pipeline {
    pub(super) system: System,
    pub(super) events: EventQueue,
    /// Process events at or after the watermark: other rings may still hold older records.
    after_watermark: Queue<ProcessEvent>,
    pub(super) processes: ProcessTable,
    pub(super) cpu_time: CpuTime,
    pub(super) stacks: Stacks,
    /// `None` unless waits are recorded.
    pub(super) waits: Option<WaitRecorder>,
    /// Boxed to keep events small.
    pub(super) spare: Pool<Box<Capture>>,
    /// The monotonic clock at the sampler's time 0.
    origin_ns: u64,
}

impl Pipeline {
    pub(super) fn new(
        system: System,
        processes: ProcessTable,
        cpu_time: CpuTime,
        stacks: Stacks,
        waits: Option<WaitRecorder>,
        origin_ns: u64,
    ) -> Pipeline {
        Pipeline {
            system,
            events: EventQueue::default(),
            after_watermark: Queue::default(),
            processes,
            cpu_time,
            stacks,
            waits,
            spare: Pool::default(),
            origin_ns,
        }
    }

    /// Reads a record; those of one CPU come in order.
    pub(super) fn push_record(&mut self, id: SampleId, record: PerfRecord<'_>) {
        let id = self.events.thread_of(id, &record);
        let selection = self.events.selection(id.pid, &self.processes);
        if let Some(waits) = &mut self.waits {
            waits.push_record(id, &record, selection == Selection::Selected);
        }
        let unused = self.cpu_time.push_record(id, &record);
        if let Some(unused) = unused {
            self.spare.give_back(unused);
        }
        match record {
            PerfRecord::Lost(_) => self.processes.note_lost(),
            PerfRecord::Sample(_) if selection != Selection::Selected => {}
            PerfRecord::Sample(sample) if sample.at_switch => self.push_switch_sample(id, &sample),
            PerfRecord::Sample(sample) => self.push_sample(id, &sample),
            other => self.events.push_record(id, &other, selection, &self.processes),
        }
    }

    fn push_sample(&mut self, id: SampleId, sample: &Sample<'_>) {
        let (id, event) = if id.tid == EXITED_TID {
            (SampleId { tid: id.pid, ..id }, Event::Missed(EXITED))
        } else if self.is_unreadable(id, sample) {
            (id, Event::Missed(COMPAT))
        } else {
            (id, Event::Sample(self.copy(id, sample)))
        };
        self.events.push(id, event);
    }

    /// Keeps the stack of a thread that is about to leave its CPU.
    fn push_switch_sample(&mut self, id: SampleId, sample: &Sample<'_>) {
        if id.pid <= 0 || self.waits.is_some() && id.tid == EXITED_TID {
            return;
        }
        let stack = if self.is_unreadable(id, sample) {
            SwitchStack::Missing(COMPAT)
        } else if sample.registers.is_none() {
            // A kernel thread, or an exiting one.
            SwitchStack::NotRecorded
        } else {
            SwitchStack::Copied(self.copy(id, sample))
        };
        let unused = match (&mut self.waits, stack) {
            (Some(waits), stack) => waits.push_stack(id, stack),
            (None, SwitchStack::Copied(capture)) => self.cpu_time.push_stack(id, capture),
            (None, _) => None,
        };
        if let Some(unused) = unused {
            self.spare.give_back(unused);
        }
    }

    /// Whether a thread runs code with another word size than its program (as emulators do), so that its stack and
    /// libraries are unknown. A thread that no longer exists is assumed to run its program's.
    fn is_unreadable(&mut self, id: SampleId, sample: &Sample<'_>) -> bool {
        if !sample.compat {
            return false;
        }
        let of_32_bits = self.processes.is_of_32_bits(id.pid, &*self.system.procfs);
        sample.registers.is_none() || of_32_bits == Some(false)
    }

    fn copy(&mut self, id: SampleId, sample: &Sample<'_>) -> Box<Capture> {
        let mut capture = self.spare.capture();
        self.stacks.copy(id, sample, &mut capture);
        capture
    }

    /// Adds samples that did not fit into the rings of CPUs ([`CpuTime::add_lost`]).
    pub(super) fn add_lost(&mut self, samples: Option<Vec<(u32, u64)>>) {
        let now_ns = self.system.clocks.monotonic_ns();
        self.cpu_time.add_lost(samples, now_ns);
    }

    /// Applies the last interval of context switches, if completely read.
    pub(super) fn apply_latency(&mut self) {
        let Pipeline { stacks, processes, system, .. } = self;
        self.cpu_time.apply_latency(&mut self.spare, |pid, tid, capture| {
            stacks.complete_at_switch((pid, tid), processes.program(pid), capture, &*system.memory);
        });
    }

    /// Reports the events of the batch before the watermark (monotonic clock), up to which all rings were read.
    /// The next batch reports the rest.
    pub(super) fn flush(&mut self, options: BatchOptions, watermark_ns: u64, into: &mut Vec<TimedEvent>) {
        self.processes.begin_batch();
        let mut events = self.process_events(watermark_ns);
        // Before samples: a wait may be the first event of its thread.
        self.flush_waits(watermark_ns, &events, into);
        events.append(&mut self.processes.take_events());
        let batch = self.cpu_time.weigh(events, options, &*self.system.clocks, &mut self.spare);
        for (id, event) in batch.events {
            self.report(id, event, into);
        }
        self.report_ends(batch.last_ns, watermark_ns, into);
        let unknown = SampleId { pid: self.processes.main(), time_ns: batch.last_ns, ..SampleId::default() };
        for (samples, reason) in [(batch.lost, KERNEL_DROPPED), (batch.throttled, THROTTLED)] {
            if samples > 0 {
                into.push(self.timed_event(unknown, SourceEvent::Dropped(samples, reason)));
            }
        }
        if batch.late > 0 {
            into.push(self.timed_event(unknown, SourceEvent::Late(batch.late)));
        }
        let System { clocks, procfs, .. } = &self.system;
        let found = |id, event| self.events.push(id, event);
        self.processes.rescan(batch.last_ns, &**clocks, &**procfs, found);
    }

    /// The events of selected processes, in time order, with complete stacks. /proc and memory are read at once
    /// for all records: processes may exit before the next batch.
    fn process_events(&mut self, watermark_ns: u64) -> Vec<(SampleId, ProcessEvent)> {
        self.stacks.begin_batch();
        let mut released = self.events.release();
        let held = released.len();
        for (id, event) in released.drain(..) {
            if let Some(unused) = self.processes.push_event(id, event, &*self.system.procfs) {
                self.spare.give_back(unused);
            }
        }
        self.events.reuse(released, held);
        self.processes.end_events();
        for (id, mut event) in self.processes.take_events() {
            match &mut event {
                ProcessEvent::Sample { capture, program } => {
                    self.stacks.complete(id, *program, capture, &*self.system.memory);
                }
                ProcessEvent::Removed => self.stacks.forget_process(id.pid),
                _ => {}
            }
            self.after_watermark.push(id, event);
        }
        self.after_watermark.release_before(watermark_ns)
    }

    fn flush_waits(
        &mut self,
        watermark_ns: u64,
        events: &[(SampleId, ProcessEvent)],
        into: &mut Vec<TimedEvent>,
    ) {
        let Some(waits) = &mut self.waits else { return };
        let (processes, procfs) = (&mut self.processes, &*self.system.procfs);
        let select =
            |pid, has_stack: bool| processes.get(pid).is_some() || has_stack && processes.select(pid, procfs);
        let waits = waits.flush(watermark_ns, select, &mut self.spare);
        // A thread whose first wait began after its first sample starts with that sample.
        let mut first_sample_ns: HashMap<(pid_t, pid_t), u64> = HashMap::new();
        for (id, _) in events.iter().filter(|(_, event)| event.is_sample()) {
            first_sample_ns.entry((id.pid, id.tid)).or_insert(id.time_ns);
        }
        for wait in waits {
            let sampled_ns = first_sample_ns.get(&(wait.pid, wait.tid));
            let started_ns = wait.since_ns.min(sampled_ns.copied().unwrap_or(u64::MAX));
            self.report_wait(wait, started_ns, into);
        }
    }

    fn report(&mut self, id: SampleId, event: WeighedEvent, into: &mut Vec<TimedEvent>) {
        let event = match event {
            WeighedEvent::Sample(mut capture, used_ns) => {
                self.announce(id, into);
                capture.status = Some(running(used_ns));
                SourceEvent::Sample(capture)
            }
            WeighedEvent::Missed(reason, used_ns) => {
                self.announce(id, into);
                SourceEvent::Missed(running(used_ns), reason)
            }
            WeighedEvent::Exec(name, threads_ns) => {
                for tid in self.processes.exec(id) {
                    let used_ns = threads_ns.get(&tid).copied().unwrap_or(0);
                    let reason = "replaced by exec before its next sample";
                    let event = SourceEvent::ThreadEnded { cpu_ns: Some(used_ns), reason, exited_ns: None };
                    into.push(self.timed_event(SampleId { tid, ..id }, event));
                }
                SourceEvent::Exec { name: Some(name) }
            }
            WeighedEvent::ProcessNamed(name) => SourceEvent::ProcessStarted { name },
            WeighedEvent::ThreadNamed(name) => SourceEvent::ThreadNamed { name },
            WeighedEvent::ImagesStale => SourceEvent::ImagesMayHaveChanged,
            WeighedEvent::ThreadExit => return self.processes.exit_thread(id),
        };
        into.push(self.timed_event(id, event));
    }

    /// Reports a thread, and its process, if new to the sampler.
    fn announce(&mut self, id: SampleId, into: &mut Vec<TimedEvent>) {
        let Announcement { process, thread } = self.processes.announce(id, &*self.system.procfs);
        if let Some(name) = process {
            into.push(self.timed_event(id, SourceEvent::ProcessStarted { name }));
        }
        if let Some(NewThread { stack_top, started_ns }) = thread {
            let started_ns = started_ns.map(|time_ns| time_ns.saturating_sub(self.origin_ns));
            let event =
                SourceEvent::ThreadStarted { stack_top, status: running(0), preexisting: false, started_ns };
            into.push(self.timed_event(id, event));
        }
    }

    /// Reports exited threads, and processes that ended with them.
    fn report_ends(&mut self, last_ns: u64, watermark_ns: u64, into: &mut Vec<TimedEvent>) {
        let events = &mut self.events;
        let stacks = &mut self.stacks;
        let over = |pid, tid| {
            events.forget_thread(pid, tid);
            stacks.forget_thread(tid);
        };
        let ends = self.processes.end_batch(last_ns, watermark_ns, &*self.system.procfs, over);
        for (id, end) in ends {
            let event = match end {
                End::Thread(exited_ns) => {
                    let cpu_ns = Some(self.cpu_time.end_thread(id.pid, id.tid));
                    let exited_ns = Some(exited_ns.saturating_sub(self.origin_ns));
                    SourceEvent::ThreadEnded {
                        cpu_ns,
                        reason: "thread ended before its next sample",
                        exited_ns,
                    }
                }
                End::Process(exited_ns) => {
                    self.cpu_time.end_process(id.pid);
                    let exited_ns = exited_ns.map(|time_ns| time_ns.saturating_sub(self.origin_ns));
                    SourceEvent::ProcessEnded { exited_ns }
                }
            };
            into.push(self.timed_event(id, event));
        }
        self.update_processes();
    }

    /// Reports a wait, and its thread if new, started at this time. An exec ends all threads but one, so a wait
    /// that ended before it belongs to a thread already reported.
    fn report_wait(&mut self, wait: Wait, started_ns: u64, into: &mut Vec<TimedEvent>) {
        let Wait { pid, tid, since_ns, until_ns, mut outcome } = wait;
        if let WaitOutcome::Continues(capture) | WaitOutcome::Ended(Some(capture)) = &mut outcome {
            let program = self.processes.program(pid);
            self.stacks.complete_at_switch((pid, tid), program, capture, &*self.system.memory);
        }
        let id = SampleId { pid, tid, time_ns: since_ns, cpu: 0 };
        let program_since_ns = self.processes.program_since_ns(pid);
        if until_ns >= program_since_ns {
            self.announce(SampleId { time_ns: started_ns.max(program_since_ns), ..id }, into);
        }
        let ns = until_ns.saturating_sub(since_ns);
        let (time_ns, event) = match outcome {
            WaitOutcome::Continues(capture) => (since_ns, SourceEvent::WaitStarted(capture)),
            WaitOutcome::Ended(stack) => (until_ns, SourceEvent::Wait { ns, stack }),
            WaitOutcome::Lost(reason) => (until_ns, SourceEvent::WaitLost { ns, reason }),
        };
        into.push(self.timed_event(SampleId { time_ns, ..id }, event));
    }

    /// Reports open waits at the end of the recording, at this time.
    pub(super) fn end_waits(&mut self, until_ns: u64, into: &mut Vec<TimedEvent>) {
        let Some(mut waits) = self.waits.take() else { return };
        let waits = waits.end(until_ns, &*self.system.threads, &mut self.spare);
        for wait in waits {
            let started_ns = wait.since_ns;
            self.report_wait(wait, started_ns, into);
        }
    }

    /// At the end of a recording, reports CPU time without a weight as lost for this reason.
    pub(super) fn report_rest(&mut self, at_ns: u64, reason: &'static str, into: &mut Vec<TimedEvent>) {
        let (samples, unsampled) = self.cpu_time.count_rest();
        let process = self.processes.main().unsigned_abs();
        for (samples, reason) in [(samples, reason), (unsampled, TOO_SHORT)] {
            into.push(TimedEvent {
                at_ns,
                process,
                thread: ThreadId(0),
                event: SourceEvent::Dropped(samples, reason),
            });
        }
    }

    fn timed_event(&self, id: SampleId, event: SourceEvent) -> TimedEvent {
        let thread = ThreadId(id.tid.unsigned_abs().into());
        let (at_ns, process) = (id.time_ns.saturating_sub(self.origin_ns), id.pid.unsigned_abs());
        TimedEvent { at_ns, process, thread, event }
    }
}

/// A running thread with this CPU time.
fn running(cpu_ns: u64) -> ThreadStatus {
    ThreadStatus { cpu_ns, switches: 0, activity: Activity::Running }
}

// ---- What concerns several stages between batches: processes, event options, returned buffers. The rest is done by
// the source at the stage itself.

/// Batch interval while a starting program loads its libraries, nanoseconds.
pub(crate) const FIRST_BATCHES_NS: u64 = 5_000_000;
/// Batch interval while processes start, end or map, nanoseconds: /proc is read while the recorded processes still
/// exist.
const BATCH_NS: u64 = 50_000_000;
/// Batch interval while nothing starts, ends or maps: there is less to read, and each wakeup of the reader takes a
/// CPU, visible in servers' latencies.
const STEADY_BATCHES_NS: u64 = 120_000_000;
const STEADY_AFTER_NS: u64 = 1_000_000_000;
/// Batch interval with large stacks, so that their ring does not fill.
const LARGE_BATCHES_NS: u64 = 15_000_000;
/// Batch interval with prefetched ranges.
const PREFETCH_BATCHES_NS: u64 = 40_000_000;

impl Pipeline {
    /// Forwards added and removed processes.
    fn update_processes(&mut self) {
        for (id, event) in self.processes.take_events() {
            self.cpu_time.push_change(id.pid, &event);
            if matches!(event, ProcessEvent::Removed) {
                self.stacks.forget_process(id.pid);
            }
        }
    }

    /// Also records these processes, if selected.
    pub(crate) fn select(&mut self, pids: &[pid_t]) {
        for pid in pids {
            self.processes.select(*pid, &*self.system.procfs);
        }
        self.update_processes();
    }

    /// Selects among the running processes, before any is sampled.
    pub(crate) fn select_all(&mut self) {
        self.processes.select_all(&*self.system.procfs);
        self.update_processes();
    }

    /// Opens or ends an interval of recorded context switches, if due (monotonic clock). `record_switches` starts
    /// or stops the events and returns whether all do so.
    pub(crate) fn apply_interval_action(&mut self, now_ns: u64, record_switches: impl Fn(bool) -> bool) {
        let action = self.cpu_time.interval_action(now_ns);
        match action {
            IntervalAction::None => {}
            IntervalAction::Open if record_switches(true) => {
                self.cpu_time.apply_interval_action(action, &*self.system.clocks);
            }
            IntervalAction::Open => {
                record_switches(false);
                self.cpu_time.turn_latency_off();
            }
            IntervalAction::Close => {
                self.cpu_time.apply_interval_action(action, &*self.system.clocks);
                record_switches(false);
            }
        }
    }

    /// Maximum time until the next batch, nanoseconds: at most the rest of an open interval of context switches,
    /// while the source `samples`. `begins`: the recording begins, and programs load their libraries.
    pub(crate) fn batch_ns(&self, begins: bool, now_ns: u64, samples: bool) -> u64 {
        let batch_ns = if begins {
            FIRST_BATCHES_NS
        } else if self.stacks.copies_tails() {
            LARGE_BATCHES_NS
        } else if self.stacks.has_prefetched() {
            PREFETCH_BATCHES_NS
        } else if now_ns < self.events.changed_ns().saturating_add(STEADY_AFTER_NS) {
            BATCH_NS
        } else {
            STEADY_BATCHES_NS
        };
        let ends_ns = self.cpu_time.interval_ends_ns().filter(|_| samples);
        ends_ns.map_or(batch_ns, |ends_ns| batch_ns.min(ends_ns.saturating_sub(now_ns)))
    }

    /// Switches to new events that sample since this time (monotonic clock), with these periods; the old ones are
    /// read next. `counted_ns`: counts of old events inherited by processes.
    pub(crate) fn replace_events(&mut self, since_ns: u64, counted_ns: u64, periods_ns: &[(u32, u64)]) {
        self.cpu_time.abandon_interval();
        self.cpu_time.add_counted(counted_ns);
        self.stacks.reopened(since_ns);
        self.cpu_time.set_periods(since_ns, periods_ns);
        // Both record each context switch for a moment.
        if let Some(waits) = &mut self.waits {
            waits.accept_until(since_ns);
        }
    }

    /// Takes back the buffers of a sample.
    pub(crate) fn give_back(&mut self, mut capture: Box<Capture>) {
        self.stacks.give_back(&mut capture);
        self.spare.give_back(capture);
    }

    /// Takes back the buffers of a sample, with the stack use of its walk. Returns the options for the next
    /// samples, if they changed.
    pub(crate) fn take_back(
        &mut self,
        tid: pid_t,
        capture: Box<Capture>,
        needed: StackUse,
        options: EventOptions,
        may_copy: bool,
    ) -> Option<EventOptions> {
        let (stack_size_index, usual_bytes) = (capture.stack_size_index, capture.usual_bytes());
        let copied_bytes = capture.stack.len() + capture.upper_stack.bytes();
        self.give_back(capture);
        self.stacks.note_tail(tid, usual_bytes, copied_bytes, needed);
        // The tail is left to prefetching.
        let bytes = if needed.truncated { needed.bytes } else { needed.bytes.min(usual_bytes) };
        let needed = StackUse { bytes, ..needed };
        self.stacks.walked(stack_size_index, needed, options, may_copy)
    }

    /// Takes back the buffers of a stack at a context switch, like [`Pipeline::take_back`].
    pub(crate) fn take_back_at_switch(
        &mut self,
        capture: Box<Capture>,
        needed: StackUse,
        options: EventOptions,
    ) -> Option<EventOptions> {
        let stack_size_index = capture.stack_size_index;
        self.spare.give_back(capture);
        self.stacks.wait_walked(stack_size_index, needed, options)
    }

    /// Lists the threads of all recorded processes, each of which may have been waiting since before this time
    /// (monotonic clock), and polls the first.
    pub(super) fn list_threads(&mut self, now_ns: u64) {
        if let Some(waits) = &mut self.waits {
            for pid in self.processes.running() {
                for tid in self.system.procfs.threads(pid) {
                    waits.list(pid, tid, now_ns);
                }
            }
        }
        self.poll_threads();
    }

    /// Polls some of the threads with unknown stacks.
    pub(crate) fn poll_threads(&mut self) {
        if let Some(waits) = &mut self.waits {
            waits.poll(&*self.system.threads, &*self.system.clocks, &mut self.spare);
        }
    }
}
