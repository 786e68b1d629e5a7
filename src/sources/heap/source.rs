//! Reads the rings of all processes of a command in batches, and reports ordered events.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::HeapOptions;
use super::capture::fill;
use super::directory::Directory;
use super::process::{HeapProcess, RingFiles};
use super::ring::{Record, Ring, RingError};
use super::ring_losses::RingLosses;
use super::shared_memory::RING_PREFIX;
use crate::addr::Avma;
use crate::binary::{Files, ImageBytes, Mapping, OpenError};
use crate::clock::{Clock, RealClock};
use crate::sources::pushed::{
    AllocationLosses, NOT_SAMPLED_AGAIN, PushedSource, SampledAllocation, SampledFree, SourceEvent, StackUse,
    TimedEvent,
};
use crate::sources::{Capture, ExitStatus, Fault, Observed, Process, ThreadId};

/// Longest interval between reads, nanoseconds: a ring of the default size holds the allocations of ten times that.
const BATCH_NS: u64 = 50_000_000;
/// Shortest interval, while much is written.
const BATCH_MIN_NS: u64 = 1_000_000;
/// A ring is read again when this fraction is filled, at the rate of the previous batch.
const RING_SHARE: u64 = 8;
/// Interval at the beginning, while a program loads its libraries and starts others.
const FIRST_BATCHES_NS: u64 = 10_000_000;
const BEGINNING_NS: u64 = 500_000_000;
/// Looking for processes without the shim takes at most one part in this many of the time.
const SCAN_SHARE: u64 = 50;
/// Minimum interval between scans of the directory.
const LIST_NS: u64 = 10_000_000;
/// Most bytes of a ring per batch: the batch then fits into the processor's caches.
const BATCH_BYTES_MAX: u64 = 1 << 20;
/// Images older than this are read at once.
const IMAGES_NS: u64 = 10_000_000;
/// Most processes at one time: anyone who can write to the directory can create files.
const PROCESSES_MAX: usize = 1 << 16;
/// Most distinct threads of a program: a process can write any id.
const THREADS_MAX: usize = 1 << 16;
/// Captures with a long stack that are kept for reuse, and captures in all.
const SPARE_LONG_MAX: usize = 64;
const SPARE_MAX: usize = 4096;
const LONG_BYTES: usize = 4096;

/// A process and its ring.
struct ProcessEntry<P> {
    process: P,
    ring: Option<Ring>,
    is_forked: bool,
    /// Time of its last event, sampler's clock.
    last_ns: u64,
    /// When it was last known to run.
    alive_ns: u64,
    /// Losses of its earlier rings.
    lost: RingLosses,
    /// Its later rings, which are read after this one.
    next: BTreeMap<u32, PathBuf>,
    /// Sequence number of its ring.
    sequence: Option<u32>,
    /// Its end has been reported.
    has_ended: bool,
    /// When the images of its program were last due.
    images_ns: u64,
    /// Threads of its program.
    threads: BTreeSet<u32>,
}

/// Allocations of a command and its descendants.
pub(in crate::sources) struct HeapSource<P> {
    directory: Directory,
    options: HeapOptions,
    main: u32,
    processes: BTreeMap<u32, ProcessEntry<P>>,
    clock: RealClock,
    began_ns: u64,
    /// The monotonic clock at the sampler's 0.
    origin_ns: u64,
    listed_ns: u64,
    /// All events before this time have been reported.
    watermark_ns: u64,
    /// Time of the last read of the rings, and the interval until the next.
    read_ns: u64,
    batch_ns: u64,
    /// More can be read at once.
    is_more: bool,
    ended: bool,
    finished: bool,
    exit_status: Option<ExitStatus>,
    /// Name of the main process at its end.
    end_name: Option<String>,
    /// What continues unrecorded after the end of the recording.
    unrecorded: Option<String>,
    /// When processes without the shim are looked for next, and once at the end.
    scan_due_ns: u64,
    /// Of exited processes.
    lost: RingLosses,
    losses: AllocationLosses,
    records: Vec<Record>,
    #[allow(clippy::vec_box, reason = "samples are handed on in their boxes")]
    spare: Vec<Box<Capture>>,
}

impl<P: HeapProcess> HeapSource<P> {
    /// A source for a running command.
    pub(in crate::sources) fn new(
        directory: Directory,
        options: HeapOptions,
        main: P,
        clock: RealClock,
    ) -> HeapSource<P> {
        let began_ns = clock.now_ns();
        let (pid, ring_ns) = (main.process().pid, main.ring_clock_ns());
        let main = ProcessEntry::new(main);
        HeapSource {
            directory,
            options,
            main: pid,
            processes: BTreeMap::from([(pid, main)]),
            origin_ns: ring_ns.saturating_sub(began_ns),
            clock,
            began_ns,
            listed_ns: 0,
            watermark_ns: 0,
            read_ns: began_ns,
            batch_ns: BATCH_NS,
            is_more: false,
            ended: false,
            finished: false,
            exit_status: None,
            end_name: None,
            unrecorded: None,
            scan_due_ns: 0,
            lost: RingLosses::default(),
            losses: AllocationLosses::default(),
            records: Vec::new(),
            spare: Vec::new(),
        }
    }

    fn main(&self) -> &ProcessEntry<P> {
        let main = self.processes.get(&self.main);
        main.unwrap_or_else(|| unreachable!("the main process is kept"))
    }

    fn main_mut(&mut self) -> &mut P {
        let main = self.processes.get_mut(&self.main);
        let main = main.unwrap_or_else(|| unreachable!("the main process is kept"));
        &mut main.process
    }

    fn wait(&self, until_ns: u64) {
        let now_ns = self.clock.now_ns();
        let is_new = now_ns < self.began_ns + BEGINNING_NS;
        let batch_ns = self.batch_ns.min(if is_new { FIRST_BATCHES_NS } else { BATCH_NS });
        std::thread::sleep(Duration::from_nanos(batch_ns.min(until_ns.saturating_sub(now_ns))));
    }

    /// Scans for new rings, and for processes that will have none.
    fn list(&mut self) {
        let now_ns = self.clock.now_ns();
        if self.exit_status.is_none() && now_ns >= self.scan_due_ns {
            let shim = self.directory.shim();
            self.main_mut().scan_without_shim(&shim);
            self.scan_due_ns = now_ns + (self.clock.now_ns() - now_ns) * SCAN_SHARE;
        }
        for (pid, sequence, path) in self.directory.rings() {
            // Numbers that are no pids.
            if i32::try_from(pid).is_err() {
                continue;
            }
            if !self.processes.contains_key(&pid) {
                if self.processes.len() >= PROCESSES_MAX {
                    self.directory.remove_ring(pid, sequence);
                    self.losses.malformed += 1;
                    continue;
                }
                let new = ProcessEntry::new(self.main().process.new_for(pid));
                self.processes.insert(pid, new);
            }
            let Some(recorded) = self.processes.get_mut(&pid) else { continue };
            if recorded.sequence.is_none_or(|current| sequence > current) {
                recorded.next.entry(sequence).or_insert(path);
            }
        }
    }

    /// Reads all rings; returns whether there is more.
    fn read(&mut self, into: &mut Vec<TimedEvent>) -> bool {
        self.forget_ended();
        let now_ns = self.clock.now_ns();
        if self.is_draining() || now_ns >= self.listed_ns + LIST_NS {
            self.listed_ns = now_ns;
            self.list();
        }
        // Later events may follow in a new ring, and ends of processes may not have been noticed yet.
        self.watermark_ns = self.listed_ns;
        let passed_ns = now_ns.saturating_sub(self.read_ns);
        self.read_ns = now_ns;
        let (mut fastest_ns, mut is_more) = (u64::MAX, false);
        let pids: Vec<u32> = self.processes.keys().copied().collect();
        for pid in pids {
            let read = self.read_process(pid, into).unwrap_or_default();
            // Time to fill the part of a ring that triggers a read.
            let fills_ns = (passed_ns.saturating_mul(read.ring_bytes / RING_SHARE)).checked_div(read.bytes);
            fastest_ns = fastest_ns.min(fills_ns.unwrap_or(u64::MAX));
            is_more |= read.is_more;
        }
        // Slows down step by step, because allocations come in bursts.
        let slower_ns = self.batch_ns.saturating_mul(2).min(BATCH_NS);
        self.batch_ns = fastest_ns.min(slower_ns).max(BATCH_MIN_NS);
        is_more
    }

    /// Whether no more records will follow those that exist.
    fn is_draining(&self) -> bool {
        self.ended || self.exit_status.is_some()
    }

    /// What continues unrecorded, after the command or in its place.
    fn why_unrecorded(&self) -> Option<String> {
        self.exit_status?;
        if self.directory.programs() == 0 {
            return self.main().process.why_not_loaded();
        }
        let survivors = self.directory.survivors().len();
        if survivors > 0 {
            let (processes, run) = if survivors == 1 { ("process", "runs") } else { ("processes", "run") };
            return Some(format!(
                "the command has ended, and {survivors} {processes} that it started {run} on; keep it in the foreground"
            ));
        }
        // It did not reach its end in the shim, and has another name: it executed a program that did not load the shim.
        let name =
            self.end_name.as_deref().filter(|name| !self.main().process.process().name.starts_with(name))?;
        let is_noted = |sequence| self.directory.maps(self.main, sequence)[1].exists();
        let is_other = self.directory.programs() == 1 && !self.main().sequence.is_some_and(is_noted);
        let why = self.main().process.why_without_shim();
        is_other.then(|| {
            let why =
                why.unwrap_or("linked statically, setuid, or started with another LD_PRELOAD (env -i, sudo)");
            format!("it became `{name}`, which did not load the heap shim: {why}")
        })
    }

    /// Removes the files of ended processes whose events have all been processed: their images were read from them.
    fn forget_ended(&mut self) {
        let (main, watermark_ns) = (self.main, self.watermark_ns);
        let is_over = |pid: u32, recorded: &ProcessEntry<P>| {
            let is_complete = recorded.next.is_empty() && recorded.last_ns < watermark_ns;
            pid != main && recorded.has_ended && is_complete
        };
        let of = self.processes.iter().filter(|(pid, recorded)| is_over(**pid, recorded));
        let ended: Vec<u32> = of.map(|(pid, _)| *pid).collect();
        for pid in ended {
            let Some(recorded) = self.processes.remove(&pid) else { continue };
            self.lost.merge(&recorded.lost);
            if let Some(sequence) = recorded.sequence {
                self.directory.remove_ring(pid, sequence);
            }
        }
    }

    /// Reads the records of a process, or continues with its next program.
    fn read_process(&mut self, pid: u32, into: &mut Vec<TimedEvent>) -> Option<RingRead> {
        let is_main = pid == self.main;
        let is_draining = self.is_draining();
        let now_ns = self.clock.now_ns();
        let recorded = self.processes.get_mut(&pid)?;
        if recorded.ring.is_none() {
            let before = recorded.process.process().name.clone();
            let program = recorded.open_next(&self.directory, &mut self.losses.malformed)?;
            recorded.start_program(self.origin_ns, now_ns);
            let name = recorded.process.process().name.clone();
            recorded.end_threads(pid, into);
            let event = match program {
                // It is known under its name, unless it has executed another program since.
                Program::First if is_main && name == before => None,
                Program::First if !is_main => Some(SourceEvent::ProcessStarted { name }),
                Program::First | Program::Other => Some(SourceEvent::Exec { name: Some(name) }),
            };
            into.extend(event.map(|event| recorded.process_event(pid, event)));
        }
        let ring = recorded.ring.as_mut()?;
        let ring_bytes = ring.header().data_size;
        // Asked before its records are read: no more will follow.
        let has_exited = !is_main && recorded.process.has_exited();
        let mut read = ring.take(has_exited, BATCH_BYTES_MAX, &mut self.records);
        let is_silent = matches!(&read, Ok(progress) if progress.bytes == 0);
        let ended = has_exited
            || is_silent
                && (!recorded.next.is_empty()
                    || (is_main && self.exit_status.is_some())
                    || recorded.process.has_left_program(now_ns, is_draining));
        if ended && !has_exited {
            // Records that it wrote before it ended.
            read = ring.take(true, BATCH_BYTES_MAX, &mut self.records);
        }
        self.losses.malformed += u64::from(read.is_err());
        let is_broken = read.is_err();
        let progress = read.unwrap_or_default();
        if self.records.iter().any(|record| matches!(record, Record::Allocation(_))) {
            // The list is read after the ring, so that it has all code in these stacks.
            let is_new = now_ns >= recorded.images_ns + IMAGES_NS || ended;
            recorded.images_ns = if is_new { now_ns } else { recorded.images_ns };
            let event = if is_new { SourceEvent::ImagesChanged } else { SourceEvent::ImagesMayHaveChanged };
            into.push(recorded.process_event(pid, event));
        }
        // Read again: records may be newer than the last clock value.
        let read_ns = self.clock.now_ns();
        for record in self.records.drain(..) {
            into.push(recorded.event(pid, record, self.origin_ns, read_ns, &mut self.spare));
        }
        let mut is_more = progress.left > 0;
        if !ended {
            recorded.alive_ns = now_ns;
        }
        if is_broken || (ended && progress.left == 0) {
            recorded.close_ring(self.origin_ns, read_ns);
            is_more = !recorded.next.is_empty();
            if !is_more && !is_main {
                recorded.has_ended = true;
                recorded.end_threads(pid, into);
                into.push(recorded.process_event(pid, SourceEvent::ProcessEnded { exited_ns: None }));
            }
        }
        let is_more = is_more || (is_draining && progress.bytes > 0);
        Some(RingRead { bytes: progress.bytes, ring_bytes, is_more })
    }
}

/// Result of one read of a ring.
#[derive(Clone, Copy, Debug, Default)]
struct RingRead {
    bytes: u64,
    /// Capacity of the ring.
    ring_bytes: u64,
    /// More can be read at once.
    is_more: bool,
}

/// Relation of a ring to its process's programs.
enum Program {
    First,
    Other,
}

impl<P: HeapProcess> ProcessEntry<P> {
    fn new(process: P) -> ProcessEntry<P> {
        ProcessEntry {
            process,
            ring: None,
            is_forked: false,
            last_ns: 0,
            alive_ns: 0,
            lost: RingLosses::default(),
            next: BTreeMap::new(),
            sequence: None,
            has_ended: false,
            images_ns: 0,
            threads: BTreeSet::new(),
        }
    }

    /// Reports the end of all threads of its program.
    fn end_threads(&mut self, pid: u32, into: &mut Vec<TimedEvent>) {
        for tid in std::mem::take(&mut self.threads) {
            let event = self.process_event(
                pid,
                SourceEvent::ThreadEnded { cpu_ns: None, reason: NOT_SAMPLED_AGAIN, exited_ns: None },
            );
            into.push(TimedEvent { thread: ThreadId(tid.into()), ..event });
        }
    }

    /// An event of the process, after all its previous events.
    fn process_event(&mut self, pid: u32, event: SourceEvent) -> TimedEvent {
        self.last_ns += 1;
        TimedEvent { at_ns: self.last_ns, process: pid, thread: ThreadId(pid.into()), event }
    }

    /// Opens its next ring, if there is one.
    fn open_next(&mut self, directory: &Directory, malformed: &mut u64) -> Option<Program> {
        let (sequence, path) =
            self.next.first_key_value().map(|(sequence, path)| (*sequence, path.clone()))?;
        let pid = self.process.process().pid;
        let ring = match Ring::open(&path) {
            Ok(None) => return None,
            Ok(Some(ring)) if (ring.header().pid, ring.header().sequence) == (pid, sequence) => Some(ring),
            Err(RingError::System(error)) if error.kind() == io::ErrorKind::NotFound => {
                // The process had no space for it, counted that, and removed it.
                self.next.remove(&sequence);
                return None;
            }
            Ok(Some(_)) | Err(_) => None,
        };
        let before = self.sequence.replace(sequence);
        self.next.remove(&sequence);
        let Some(ring) = ring else {
            *malformed += 1;
            return None;
        };
        let header = ring.header();
        self.is_forked = header.is_forked;
        let files = RingFiles {
            name: format!("{RING_PREFIX}{pid}.{sequence}"),
            images: directory.maps(pid, sequence),
        };
        self.process.set_ring(&header.name, files);
        self.images_ns = 0;
        self.ring = Some(ring);
        let is_first = before.is_none() || self.has_ended;
        self.has_ended = false;
        Some(if is_first { Program::First } else { Program::Other })
    }

    /// The end of its previous program is not earlier than the ring of the next one.
    fn start_program(&mut self, origin_ns: u64, now_ns: u64) {
        let start_ns = self.ring.as_ref().map_or(0, |ring| ring.header().start_ns);
        self.last_ns = self.last_ns.max(start_ns.saturating_sub(origin_ns).min(now_ns));
    }

    /// Closes its ring. What follows is after its end: when it began to exit, or else when it was last known to run.
    fn close_ring(&mut self, origin_ns: u64, now_ns: u64) {
        if let Some(ring) = self.ring.take() {
            self.lost.add(&ring);
            let exited_ns = ring.end_ns().map(|end_ns| end_ns.saturating_sub(origin_ns));
            // The next program's ring has its own start.
            let end_ns = exited_ns.or(self.next.is_empty().then_some(self.alive_ns)).unwrap_or(0);
            self.last_ns = self.last_ns.max(end_ns.min(now_ns));
        }
    }

    /// Converts a record to an event. Times are the process's, but monotonic and not in the future.
    #[allow(clippy::vec_box, reason = "samples are handed on in their boxes")]
    fn event(
        &mut self,
        pid: u32,
        record: Record,
        origin_ns: u64,
        now_ns: u64,
        spare: &mut Vec<Box<Capture>>,
    ) -> TimedEvent {
        let (time_ns, tid, event) = match record {
            Record::Allocation(mut record) => {
                let allocation = SampledAllocation {
                    pointer: record.address,
                    bytes: record.size,
                    untracked: record.untracked,
                };
                let mut capture = spare.pop().unwrap_or_else(|| Box::new(Capture::with_capacity(0)));
                let (time_ns, tid) = (record.time_ns, record.tid);
                if let Some(ring) = &mut self.ring {
                    fill(&mut capture, &mut record, ring.header().processor);
                    ring.recycle(record);
                }
                (time_ns, tid, SourceEvent::Allocation(allocation, capture))
            }
            Record::Free { time_ns, address, tid } => {
                let free = SampledFree { pointer: address, may_be_inherited: self.is_forked };
                (time_ns, tid, SourceEvent::Free(free))
            }
            Record::Shrink { time_ns, address, tid, bytes } => {
                (time_ns, tid, SourceEvent::Shrink { pointer: address, bytes })
            }
            Record::Restore { time_ns, address, tid } => {
                (time_ns, tid, SourceEvent::Restore { pointer: address })
            }
        };
        let tid = if self.threads.len() < THREADS_MAX { tid } else { pid };
        self.threads.insert(tid);
        // Each later than the previous one: the sampler sorts by time.
        let at_ns = time_ns.saturating_sub(origin_ns).min(now_ns).max(self.last_ns + 1);
        self.last_ns = at_ns;
        TimedEvent { at_ns, process: pid, thread: ThreadId(tid.into()), event }
    }
}

impl<P: HeapProcess> Observed for HeapSource<P> {
    fn process(&self) -> &Process {
        self.main().process.process()
    }

    fn files(&mut self) -> Arc<dyn Files> {
        self.main_mut().files()
    }

    fn thread_name(&mut self, thread: ThreadId) -> Option<String> {
        self.main_mut().thread_name(thread)
    }

    fn mappings(&mut self, out: &mut Vec<Mapping>) -> Result<(), Fault> {
        self.main_mut().mappings(out)
    }

    fn image_bytes(&mut self, mapping: &Mapping) -> Result<ImageBytes, OpenError> {
        self.main_mut().image_bytes(mapping)
    }

    fn read_memory(&mut self, from: Avma, into: &mut [u8]) -> Result<usize, Fault> {
        self.main_mut().read_memory(from, into)
    }
}

impl<P: HeapProcess> PushedSource for HeapSource<P> {
    fn observed(&mut self, process: u32) -> Option<&mut dyn Observed> {
        self.processes.get_mut(&process).map(|recorded| &mut recorded.process as &mut dyn Observed)
    }

    fn next_batch(&mut self, until_ns: u64, into: &mut Vec<TimedEvent>) -> Result<Option<u64>, Fault> {
        if self.finished {
            return Ok(None);
        }
        if !self.is_draining() {
            if !self.is_more {
                self.wait(until_ns);
            }
            self.main().process.pass_signal_on();
            self.exit_status = self.main_mut().child_end();
            if self.exit_status.is_some() {
                self.end_name = self.main().process.last_name();
            }
        }
        self.is_more = self.read(into);
        if self.is_more || !self.is_draining() {
            return Ok(Some(self.watermark_ns));
        }
        self.finished = true;
        self.unrecorded = self.why_unrecorded();
        if let Some(status) = self.exit_status {
            let (at_ns, process, thread) = (self.clock.now_ns(), self.main, ThreadId(0));
            into.push(TimedEvent { at_ns, process, thread, event: SourceEvent::Exited(status) });
        }
        Ok(None)
    }

    fn set_time(&mut self, _at_ns: u64) {}

    fn end(&mut self) {
        self.ended = true;
        self.scan_due_ns = 0;
        self.directory.stop();
    }

    fn exit_before(&mut self, until_ns: u64) -> Option<ExitStatus> {
        loop {
            if let Some(status) = self.main_mut().child_end() {
                return Some(status);
            }
            if self.clock.now_ns() >= until_ns {
                return None;
            }
            std::thread::sleep(Duration::from_nanos(FIRST_BATCHES_NS));
        }
    }

    fn walked(&mut self, capture: Box<Capture>, _needed: StackUse) {
        let is_short = capture.stack.capacity() <= LONG_BYTES;
        if self.spare.len() < if is_short { SPARE_MAX } else { SPARE_LONG_MAX } {
            self.spare.push(capture);
        }
    }

    fn allocation_rate(&self) -> Option<u64> {
        Some(self.options.every_bytes)
    }

    fn allocation_losses(&self) -> AllocationLosses {
        let mut losses = self.lost.clone();
        for recorded in self.processes.values() {
            losses.merge(&recorded.lost);
            if let Some(ring) = &recorded.ring {
                losses.add(ring);
            }
        }
        let RingLosses { allocations, frees, early, no_space } = losses;
        AllocationLosses {
            allocations,
            frees,
            early,
            no_space,
            malformed: self.losses.malformed,
            programs: self.directory.programs(),
            refused: self.directory.refused(),
            unrecorded: self.main().process.without_shim(),
            ended_early: self.unrecorded.clone(),
            still_runs: self.exit_status.is_none(),
            ..AllocationLosses::default()
        }
    }
}

// With processes of Linux.
#[cfg(all(test, target_os = "linux"))]
mod tests;
