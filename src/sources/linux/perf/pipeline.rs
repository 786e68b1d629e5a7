//! The stages: each folder holds one.
//!
//! [`Pipeline::take`]: stack bytes are copied; losses, switches and waits are read from each record. [`Pipeline::flush`]:
//! reorder → process → complete stacks → waits → weigh → report.
//!
//! Input: records of rings, ring after ring; output: [`TimedEvent`]s for the sampler. Samples are completed before they are
//! weighed: a late tick, which may weigh nothing, shows as well as any other which pages of a stack are missing. Nothing
//! here asks a system but through [`System`].

use hashbrown::HashMap;
use libc::pid_t;

use super::buffers::Pool;
use super::clocks::{Clocks, SystemClocks};
use super::cpu_time::accounting::{BatchOptions, CpuTime, WeighedEvent};
use super::process::event::ProcessEvent;
use super::process::procfs::{Procfs, SystemProcfs};
use super::process::table::{Announcement, End, NewThread, ProcessTable};
use super::reorder::event::{Event, Selection};
use super::reorder::event_queue::EventQueue;
use super::reorder::exited_threads::EXITED_TID;
use super::reorder::queue::Queue;
use super::ring::record::{Id, PerfRecord, Sample};
use super::stack::memory::{SystemMemory, TargetMemory};
use super::stack::stacks::Stacks;
use super::waits::recorder::WaitRecorder;
use super::waits::sleeping_thread::{SleepingThreads, SystemThreads};
use super::waits::wait::{Stack, Wait, WaitOutcome};
use crate::sources::pushed::{SourceEvent, TimedEvent};
use crate::sources::{Activity, Capture, ThreadId, ThreadStatus};

/// Why a sample is missed.
const COMPAT: &str = "32-bit code";
/// Why another one is: what it was of is not known any more.
const EXITED: &str = "of a thread that had ended";
/// Why the time of processes is lost of which no sample came.
const TOO_SHORT: &str = "of processes that ran too shortly to be sampled";

/// What the stages ask the system.
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
    system: System,
    events: EventQueue,
    /// What happened at the watermark or later, with whom that is of: other rings may hold older records.
    later: Queue<ProcessEvent>,
    pub(super) processes: ProcessTable,
    pub(super) cpu_time: CpuTime,
    pub(super) stacks: Stacks,
    /// Where waits are recorded.
    waits: Option<WaitRecorder>,
    /// Boxes, since the records that they go out in are small with them.
    spare: Pool<Box<Capture>>,
    /// The monotonic clock at the sampler's 0.
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
            later: Queue::default(),
            processes,
            cpu_time,
            stacks,
            waits,
            spare: Pool::default(),
            origin_ns,
        }
    }

    /// Takes in a record, those of one CPU in their order.
    pub(super) fn take(&mut self, id: Id, record: PerfRecord<'_>) {
        let id = self.events.thread_of(id, &record);
        let selection = self.events.selection(id.pid, &self.processes);
        if let Some(waits) = &mut self.waits {
            waits.take(id, &record, selection == Selection::Selected);
        }
        let unused = self.cpu_time.take(id, &record);
        if let Some(unused) = unused {
            self.spare.give_back(unused);
        }
        match record {
            PerfRecord::Lost(_) => self.processes.note_lost(),
            PerfRecord::Sample(_) if selection != Selection::Selected => {}
            PerfRecord::Sample(sample) if sample.at_switch => self.take_switch_sample(id, &sample),
            PerfRecord::Sample(sample) => self.take_sample(id, &sample),
            other => self.events.take(id, &other, selection, &self.processes),
        }
    }

    fn take_sample(&mut self, id: Id, sample: &Sample<'_>) {
        let (id, event) = if id.tid == EXITED_TID {
            (Id { tid: id.pid, ..id }, Event::Missed(EXITED))
        } else if self.is_unreadable(id, sample) {
            (id, Event::Missed(COMPAT))
        } else {
            (id, Event::Sample(self.copy(id, sample)))
        };
        self.events.push(id, event);
    }

    /// Takes in where a thread is about to leave its CPU.
    fn take_switch_sample(&mut self, id: Id, sample: &Sample<'_>) {
        if id.pid <= 0 || self.waits.is_some() && id.tid == EXITED_TID {
            return;
        }
        let stack = if self.is_unreadable(id, sample) {
            Stack::Missing(COMPAT)
        } else if sample.registers.is_none() {
            // A thread of the kernel, or one that is exiting.
            Stack::Unwanted
        } else {
            Stack::Copied(self.copy(id, sample))
        };
        let unused = match (&mut self.waits, stack) {
            (Some(waits), stack) => waits.take_stack(id, stack),
            (None, Stack::Copied(capture)) => self.cpu_time.take_stack(id, capture),
            (None, _) => None,
        };
        if let Some(unused) = unused {
            self.spare.give_back(unused);
        }
    }

    /// Whether a thread runs code of another size than its program's (emulators do): its stack and
    /// libraries are none that it was loaded with. One that is gone is believed to run its own.
    fn is_unreadable(&mut self, id: Id, sample: &Sample<'_>) -> bool {
        if !sample.compat {
            return false;
        }
        let of_32_bits = self.processes.is_of_32_bits(id.pid, &*self.system.procfs);
        sample.registers.is_none() || of_32_bits == Some(false)
    }

    fn copy(&mut self, id: Id, sample: &Sample<'_>) -> Box<Capture> {
        let mut capture = self.spare.capture();
        self.stacks.copy(id, sample, &mut capture);
        capture
    }

    /// Takes the buffers of a sample back.
    pub(super) fn give_back(&mut self, capture: Box<Capture>) {
        self.spare.give_back(capture);
    }

    /// Ends a batch of buffers; the bytes that are freed.
    pub(super) fn end_buffers(&mut self) -> usize {
        self.spare.end_batch()
    }

    /// Takes in how many samples did not fit into the rings of CPUs, as [`CpuTime::take_lost`].
    pub(super) fn take_lost(&mut self, samples: Option<Vec<(u32, u64)>>) {
        let now_ns = self.system.clocks.monotonic_ns();
        self.cpu_time.take_lost(samples, now_ns);
    }

    /// Takes in what the last interval of context switches measured, if all of it was read.
    pub(super) fn apply_latency(&mut self) {
        let Pipeline { stacks, processes, system, .. } = self;
        self.cpu_time.apply_latency(&mut self.spare, |pid, tid, capture| {
            stacks.complete_at_switch((pid, tid), processes.program(pid), capture, &*system.memory);
        });
    }

    /// Hands the batch over: what happened before the watermark (monotonic clock), since all rings were read to there.
    /// The next batch holds the rest.
    pub(super) fn flush(&mut self, options: BatchOptions, watermark_ns: u64, into: &mut Vec<TimedEvent>) {
        self.processes.begin_batch();
        let mut events = self.process_events(watermark_ns);
        // Before samples, which may be of threads that are first announced by their waits.
        self.flush_waits(watermark_ns, &events, into);
        events.append(&mut self.processes.take_events());
        let batch = self.cpu_time.weigh(events, options, &*self.system.clocks, &mut self.spare);
        for (id, event) in batch.events {
            self.report(id, event, into);
        }
        self.report_ends(batch.last_ns, watermark_ns, into);
        let nobody = Id { pid: self.processes.main(), time_ns: batch.last_ns, ..Id::default() };
        if batch.lost > 0 {
            into.push(self.timed_event(nobody, SourceEvent::Dropped(batch.lost, "the kernel dropped them")));
        }
        if batch.late > 0 {
            into.push(self.timed_event(nobody, SourceEvent::Late(batch.late)));
        }
        let System { clocks, procfs, .. } = &self.system;
        let found = |id, event| self.events.push(id, event);
        self.processes.rescan(batch.last_ns, &**clocks, &**procfs, found);
    }

    /// The events of selected processes, in the order of their times, with complete stacks. Of all that was read /proc
    /// is asked and memory is read at once: processes may be gone when the next batch is flushed.
    fn process_events(&mut self, watermark_ns: u64) -> Vec<(Id, ProcessEvent)> {
        self.stacks.begin_batch();
        let mut released = self.events.release();
        let held = released.len();
        for (id, event) in released.drain(..) {
            if let Some(unused) = self.processes.take(id, event, &*self.system.procfs) {
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
            self.later.push(id, event);
        }
        self.later.release_before(watermark_ns)
    }

    fn flush_waits(&mut self, watermark_ns: u64, events: &[(Id, ProcessEvent)], into: &mut Vec<TimedEvent>) {
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

    fn report(&mut self, id: Id, event: WeighedEvent, into: &mut Vec<TimedEvent>) {
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
                    into.push(self.timed_event(Id { tid, ..id }, event));
                }
                SourceEvent::Exec { name: Some(name) }
            }
            WeighedEvent::Other(ProcessEvent::ProcessNamed(name)) => SourceEvent::ProcessStarted { name },
            WeighedEvent::Other(ProcessEvent::ThreadNamed(name)) => SourceEvent::ThreadNamed { name },
            WeighedEvent::Other(ProcessEvent::ImagesStale) => SourceEvent::ImagesMayHaveChanged,
            WeighedEvent::Other(ProcessEvent::ThreadExit) => return self.processes.exit_thread(id),
            WeighedEvent::Other(_) => return,
        };
        into.push(self.timed_event(id, event));
    }

    /// Reports a thread, and its process, that are new to the sampler.
    fn announce(&mut self, id: Id, into: &mut Vec<TimedEvent>) {
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

    /// Reports threads that exited, and processes that have ended with them.
    fn report_ends(&mut self, last_ns: u64, watermark_ns: u64, into: &mut Vec<TimedEvent>) {
        let events = &mut self.events;
        let over = |pid, tid| events.forget_thread(pid, tid);
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

    /// Reports a wait, and if that is new its thread, which started at this time. All threads of a program end with it,
    /// and begin anew with the next one: a wait that ended before that is of a thread that has been reported.
    fn report_wait(&mut self, wait: Wait, started_ns: u64, into: &mut Vec<TimedEvent>) {
        let Wait { pid, tid, since_ns, until_ns, mut outcome } = wait;
        if let WaitOutcome::Continues(capture) | WaitOutcome::Ended(Some(capture)) = &mut outcome {
            let program = self.processes.program(pid);
            self.stacks.complete_at_switch((pid, tid), program, capture, &*self.system.memory);
        }
        let id = Id { pid, tid, time_ns: since_ns, cpu: 0 };
        let program_since_ns = self.processes.program_since_ns(pid);
        if until_ns >= program_since_ns {
            self.announce(Id { time_ns: started_ns.max(program_since_ns), ..id }, into);
        }
        let ns = until_ns.saturating_sub(since_ns);
        let (time_ns, event) = match outcome {
            WaitOutcome::Continues(capture) => (since_ns, SourceEvent::WaitStarted(capture)),
            WaitOutcome::Ended(stack) => (until_ns, SourceEvent::Wait { ns, stack }),
            WaitOutcome::Lost(reason) => (until_ns, SourceEvent::WaitLost { ns, reason }),
        };
        into.push(self.timed_event(Id { time_ns, ..id }, event));
    }

    /// Reports the waits that continue at the end of the recording, at this time.
    pub(super) fn end_waits(&mut self, until_ns: u64, into: &mut Vec<TimedEvent>) {
        let Some(mut waits) = self.waits.take() else { return };
        let waits = waits.end(until_ns, &*self.system.threads, &mut self.spare);
        for wait in waits {
            let started_ns = wait.since_ns;
            self.report_wait(wait, started_ns, into);
        }
    }

    /// At the end of a recording: what was used and nothing stands for that was reported is lost for this reason.
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

    fn timed_event(&self, id: Id, event: SourceEvent) -> TimedEvent {
        let thread = ThreadId(id.tid.unsigned_abs().into());
        let (at_ns, process) = (id.time_ns.saturating_sub(self.origin_ns), id.pid.unsigned_abs());
        TimedEvent { at_ns, process, thread, event }
    }
}

/// Outside of batches.
impl Pipeline {
    /// Takes in which processes were added and removed.
    pub(super) fn update_processes(&mut self) {
        for (id, event) in self.processes.take_events() {
            self.cpu_time.take_change(id.pid, &event);
            if matches!(event, ProcessEvent::Removed) {
                self.stacks.forget_process(id.pid);
            }
        }
    }

    /// Records these processes, too, if they are selected.
    pub(super) fn select(&mut self, pids: &[pid_t]) {
        for pid in pids {
            self.processes.select(*pid, &*self.system.procfs);
        }
        self.update_processes();
    }

    /// Judges the processes that run now, before any is sampled.
    pub(super) fn select_all(&mut self) {
        self.processes.select_all(&*self.system.procfs);
        self.update_processes();
    }

    /// Whether waits are recorded.
    pub(super) fn records_waits(&self) -> bool {
        self.waits.is_some()
    }

    /// A thread was there when the recording began, at this time.
    pub(super) fn list_thread(&mut self, pid: pid_t, tid: pid_t, now_ns: u64) {
        if let Some(waits) = &mut self.waits {
            waits.list(pid, tid, now_ns);
        }
    }

    /// Polls threads whose stacks are not known, some at a time.
    pub(super) fn poll_threads(&mut self) {
        if let Some(waits) = &mut self.waits {
            waits.poll(&*self.system.threads, &*self.system.clocks, &mut self.spare);
        }
    }

    /// Takes context switches until this time from the rings that are read next.
    pub(super) fn take_switches_until(&mut self, until_ns: u64) {
        if let Some(waits) = &mut self.waits {
            waits.take_until(until_ns);
        }
    }

    /// Takes context switches from this time on.
    pub(super) fn take_switches_from(&mut self, from_ns: u64) {
        if let Some(waits) = &mut self.waits {
            waits.take_from(from_ns);
        }
    }

    /// Processes that were started by `listed`, and by those, as the records say that were not flushed yet.
    pub(super) fn started_by(&self, listed: &[pid_t]) -> Vec<pid_t> {
        self.events.started_by(listed)
    }

    /// When a selected process started, ended, was named or mapped code last (monotonic clock).
    pub(super) fn changed_ns(&self) -> u64 {
        self.events.changed_ns()
    }
}

/// A thread that runs and has used so much.
fn running(cpu_ns: u64) -> ThreadStatus {
    ThreadStatus { cpu_ns, switches: 0, activity: Activity::Running }
}

#[cfg(test)]
mod tests;
