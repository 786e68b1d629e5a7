//! A process of a command: its rings, one for each program that it runs, and their events.
//!
//! Input: rings, in order of their sequence numbers. Output: events with times that increase.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::box_pool::BoxPool;
use super::capture::fill;
use super::directory::Directory;
use super::image_lists::ImageLists;
use super::process::{HeapProcess, RingFiles};
use super::ring::{Progress, Record, Ring, RingError};
use super::ring_clock::RingClock;
use super::ring_losses::RingLosses;
use super::shared_memory::RING_PREFIX;
use crate::addr::Avma;
use crate::binary::{Files, ImageBytes, Mapping, OpenError};
use crate::sources::pushed::{NOT_SAMPLED_AGAIN, SampledAllocation, SampledFree, SourceEvent, TimedEvent};
use crate::sources::{Capture, Fault, Observed, Process, ThreadId};

/// Most bytes of a ring per read: they then fit into the processor's caches.
pub(super) const READ_BYTES_MAX: u64 = 1 << 20;
/// Images older than this are read at once.
const IMAGES_NS: u64 = 10_000_000;
/// Most distinct threads of a program: a process can write any id.
const THREADS_MAX: usize = 1 << 16;

/// A process and its rings.
pub(super) struct RecordedProcess<P> {
    process: P,
    /// It is the command, whose exit status the source awaits.
    is_command: bool,
    /// The ring of its program.
    ring: Option<Ring>,
    /// Bytes that its ring had when it was first read after a reset, without those read since. `None`: not read after
    /// that reset.
    unread_bytes: Option<u64>,
    /// A later ring was listed, and is read when this one ends.
    is_next_due: bool,
    /// Sequence number of its last ring.
    sequence: Option<u32>,
    /// Its later rings, which are read after this one.
    next: BTreeMap<u32, PathBuf>,
    is_forked: bool,
    /// Time of its last event, sampler's clock.
    last_ns: u64,
    /// When it was last known to run.
    alive_ns: u64,
    /// Its end has been reported.
    has_ended: bool,
    /// When the images of its program were last due.
    images_ns: u64,
    /// Threads of its program.
    threads: BTreeSet<u32>,
    /// Losses of its earlier rings.
    lost: RingLosses,
    lists: ImageLists,
    /// Unloads of images in its ring when images were last due, or in the last ring that was closed.
    unloads: u64,
}

/// What a read of a ring uses and needs to know.
pub(super) struct ReadContext<'a> {
    pub(super) directory: &'a Directory,
    pub(super) clock: &'a RingClock,
    pub(super) captures: &'a mut BoxPool<Capture>,
    pub(super) records: &'a mut Vec<Record>,
    /// The recording ends: what was written until now is the rest.
    pub(super) is_draining: bool,
    pub(super) has_command_exited: bool,
}

/// Result of one read of a ring.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RingRead {
    pub(super) bytes: u64,
    /// Capacity of the ring.
    pub(super) ring_bytes: u64,
    /// More can be read at once.
    pub(super) has_more: bool,
}

/// Relation of a ring to its process's programs.
enum Program {
    First,
    Other,
}

impl<P: HeapProcess> RecordedProcess<P> {
    /// A process without a ring yet.
    pub(super) fn new(process: P, is_command: bool) -> RecordedProcess<P> {
        RecordedProcess {
            process,
            is_command,
            ring: None,
            unread_bytes: Some(0),
            is_next_due: false,
            sequence: None,
            next: BTreeMap::new(),
            is_forked: false,
            last_ns: 0,
            alive_ns: 0,
            has_ended: false,
            images_ns: 0,
            threads: BTreeSet::new(),
            lost: RingLosses::default(),
            lists: ImageLists::default(),
            unloads: 0,
        }
    }

    pub(super) fn process(&self) -> &P {
        &self.process
    }

    pub(super) fn process_mut(&mut self) -> &mut P {
        &mut self.process
    }

    /// When it was last known to run.
    #[cfg(all(test, target_os = "linux"))]
    pub(super) fn alive_ns(&self) -> u64 {
        self.alive_ns
    }

    /// Sequence number of the ring that was opened last.
    pub(super) fn sequence(&self) -> Option<u32> {
        self.sequence
    }

    /// Adds a ring that was found, unless it was opened before.
    pub(super) fn add_ring(&mut self, sequence: u32, path: PathBuf) {
        if self.sequence.is_none_or(|current| sequence > current) {
            self.next.entry(sequence).or_insert(path);
        }
    }

    /// What its rings hold now is not known until they are read, and until that is read it
    /// [`is_behind`](RecordedProcess::is_behind).
    pub(super) fn reset_unread(&mut self) {
        self.unread_bytes = None;
        self.is_next_due = self.ring.is_some() && !self.next.is_empty();
    }

    /// Whether its rings still have records that they had at the last reset.
    pub(super) fn is_behind(&self) -> bool {
        self.is_next_due || self.unread_bytes != Some(0)
    }

    /// Sets the time of the current event, for which [`Observed::mappings`] is asked.
    pub(super) fn set_time(&mut self, at_ns: u64) {
        self.lists.set_time(at_ns, &mut self.process);
    }

    /// Whether it has ended, and all its events are before this time.
    pub(super) fn is_over(&self, watermark_ns: u64) -> bool {
        self.has_ended && self.next.is_empty() && self.last_ns < watermark_ns
    }

    /// Losses of all its rings.
    pub(super) fn losses(&self) -> RingLosses {
        let mut losses = self.lost.clone();
        if let Some(ring) = &self.ring {
            losses.add(ring);
        }
        losses
    }

    /// Reads the records of its ring, or continues with its next program.
    pub(super) fn read(&mut self, context: ReadContext<'_>, into: &mut Vec<TimedEvent>) -> Option<RingRead> {
        let ReadContext { directory, clock, captures, records, is_draining, has_command_exited } = context;
        let now_ns = clock.now_ns();
        if self.ring.is_none() {
            // Without a ring that can be read, nothing is unread.
            self.unread_bytes = Some(0);
            let before = self.process.process().name.clone();
            let program = self.open_next(directory)?;
            self.reset_unread();
            self.start_program(clock, now_ns);
            self.lists.begin_program(self.last_ns + 1);
            let name = self.process.process().name.clone();
            self.end_threads(into);
            let event = match program {
                // It is known under its name, unless it has executed another program since.
                Program::First if self.is_command && name == before => None,
                Program::First if !self.is_command => Some(SourceEvent::ProcessStarted { name }),
                Program::First | Program::Other => Some(SourceEvent::Exec { name: Some(name) }),
            };
            into.extend(event.map(|event| self.process_event(event)));
        }
        let ring = self.ring.as_mut()?;
        let ring_bytes = ring.header().data_size;
        // Asked before its records are read: no more will follow.
        let has_exited = !self.is_command && self.process.has_exited();
        let mut read = ring.take(has_exited, READ_BYTES_MAX, records);
        let is_silent = matches!(&read, Ok(progress) if progress.bytes == 0);
        let ended = has_exited
            || is_silent
                && (!self.next.is_empty()
                    || (self.is_command && has_command_exited)
                    || self.process.has_left_program(now_ns, is_draining));
        if ended && !has_exited {
            // Records that it wrote before it ended.
            read = ring.take(true, READ_BYTES_MAX, records);
        }
        self.lost.malformed_rings += u64::from(read.is_err());
        let is_broken = read.is_err();
        let progress = read.unwrap_or_default();
        let unloads = ring.unloads();
        self.count_unread(progress, ended);
        let first = records.iter().find_map(|record| match record {
            Record::Allocation(record) => Some(record.images),
            _ => None,
        });
        if first.is_some_and(|images| !self.lists.is_new(images)) {
            // The list is read after the ring, so that it has all code in these stacks. What was mapped when it was last read
            // may lack what was loaded before the unload that it was made for.
            let is_new = now_ns >= self.images_ns + IMAGES_NS || ended || unloads != self.unloads;
            self.unloads = unloads;
            self.images_ns = if is_new { now_ns } else { self.images_ns };
            let event = if is_new { SourceEvent::ImagesChanged } else { SourceEvent::ImagesMayHaveChanged };
            into.push(self.process_event(event));
        }
        // Read again: records may be newer than the last clock value.
        let read_ns = clock.now_ns();
        for record in records.drain(..) {
            if let Record::Allocation(record) = &record
                && self.lists.is_new(record.images)
            {
                let event = self.process_event(SourceEvent::ImagesChanged);
                self.lists.begin_list(event.at_ns, record.images);
                into.push(event);
            }
            into.push(self.event(record, clock, read_ns, captures));
        }
        let mut has_more = progress.left > 0;
        if !ended {
            self.alive_ns = now_ns;
        }
        if is_broken || (ended && progress.left == 0) {
            self.close_ring(clock, read_ns);
            has_more = !self.next.is_empty();
            (self.is_next_due, self.unread_bytes) = (false, if has_more { None } else { Some(0) });
            if !has_more && !self.is_command {
                self.has_ended = true;
                self.end_threads(into);
                into.push(self.process_event(SourceEvent::ProcessEnded { exited_ns: None }));
            }
        }
        let has_more = has_more || (is_draining && progress.bytes > 0);
        Some(RingRead { bytes: progress.bytes, ring_bytes, has_more })
    }

    /// `ended`: nothing more is written to its ring.
    fn count_unread(&mut self, read: Progress, ended: bool) {
        self.unread_bytes = Some(match self.unread_bytes {
            None => read.left,
            Some(_) if ended => read.left,
            // A record that is reserved and not committed stops the read.
            Some(_) if read.bytes == 0 => 0,
            Some(0) => {
                // More was written after the listing: its program was not followed by another then.
                self.is_next_due = false;
                0
            }
            Some(unread) => unread.saturating_sub(read.bytes),
        });
    }

    /// Reports the end of all threads of its program.
    fn end_threads(&mut self, into: &mut Vec<TimedEvent>) {
        for tid in std::mem::take(&mut self.threads) {
            let event = self.process_event(SourceEvent::ThreadEnded {
                cpu_ns: None,
                reason: NOT_SAMPLED_AGAIN,
                exited_ns: None,
            });
            into.push(TimedEvent { thread: ThreadId(tid.into()), ..event });
        }
    }

    /// An event of the process, after all its previous events.
    fn process_event(&mut self, event: SourceEvent) -> TimedEvent {
        let pid = self.process.process().pid;
        self.last_ns += 1;
        TimedEvent { at_ns: self.last_ns, process: pid, thread: ThreadId(pid.into()), event }
    }

    /// Opens its next ring, if there is one.
    fn open_next(&mut self, directory: &Directory) -> Option<Program> {
        let pid = self.process.process().pid;
        let before = self.sequence;
        let (sequence, ring) = loop {
            let (sequence, path) =
                self.next.first_key_value().map(|(sequence, path)| (*sequence, path.clone()))?;
            match Ring::open(&path) {
                Ok(None) => return None,
                // The process had no space for it, counted that, and removed it.
                Err(RingError::System(error)) if error.kind() == io::ErrorKind::NotFound => {}
                Ok(Some(ring)) if (ring.header().pid, ring.header().sequence) == (pid, sequence) => {
                    break (sequence, ring);
                }
                Ok(Some(_)) | Err(_) => {
                    self.lost.malformed_rings += 1;
                    self.sequence = Some(sequence);
                }
            }
            self.next.remove(&sequence);
        };
        self.next.remove(&sequence);
        self.sequence = Some(sequence);
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
    fn start_program(&mut self, clock: &RingClock, now_ns: u64) {
        let start_ns = self.ring.as_ref().map_or(0, |ring| ring.header().start_ns);
        self.last_ns = self.last_ns.max(clock.time_ns(start_ns).min(now_ns));
    }

    /// Closes its ring. What follows is after its end: when it began to exit, or else when it was last known to run.
    fn close_ring(&mut self, clock: &RingClock, now_ns: u64) {
        if let Some(ring) = self.ring.take() {
            self.lost.add(&ring);
            self.unloads = ring.unloads();
            let exited_ns = ring.end_ns().map(|end_ns| clock.time_ns(end_ns));
            // The next program's ring has its own start.
            let end_ns = exited_ns.or(self.next.is_empty().then_some(self.alive_ns)).unwrap_or(0);
            self.last_ns = self.last_ns.max(end_ns.min(now_ns));
        }
    }

    /// Converts a record to an event. Times are the process's, but monotonic and not in the future.
    fn event(
        &mut self,
        record: Record,
        clock: &RingClock,
        now_ns: u64,
        captures: &mut BoxPool<Capture>,
    ) -> TimedEvent {
        let pid = self.process.process().pid;
        let (time_ns, tid, event) = match record {
            Record::Allocation(mut record) => {
                let allocation = SampledAllocation {
                    block: record.address,
                    bytes: record.size,
                    untracked: record.untracked,
                };
                let mut capture = captures.take().unwrap_or_else(|| Box::new(Capture::with_capacity(0)));
                let (time_ns, tid) = (record.time_ns, record.tid);
                if let Some(ring) = &mut self.ring {
                    fill(&mut capture, &mut record, ring.header().processor);
                    ring.recycle(record);
                }
                (time_ns, tid, SourceEvent::Allocation(allocation, capture))
            }
            Record::Free { time_ns, address, tid } => {
                let free = SampledFree { block: address, may_be_inherited: self.is_forked };
                (time_ns, tid, SourceEvent::Free(free))
            }
            Record::Shrink { time_ns, address, tid, bytes } => {
                (time_ns, tid, SourceEvent::Shrink { block: address, bytes })
            }
            Record::Restore { time_ns, address, tid } => {
                (time_ns, tid, SourceEvent::Restore { block: address })
            }
        };
        let tid = if self.threads.len() < THREADS_MAX { tid } else { pid };
        self.threads.insert(tid);
        // Each later than the previous one: the sampler sorts by time.
        let at_ns = clock.time_ns(time_ns).min(now_ns).max(self.last_ns + 1);
        self.last_ns = at_ns;
        TimedEvent { at_ns, process: pid, thread: ThreadId(tid.into()), event }
    }
}

impl<P: HeapProcess> Observed for RecordedProcess<P> {
    fn process(&self) -> &Process {
        self.process.process()
    }

    fn files(&mut self) -> Arc<dyn Files> {
        self.process.files()
    }

    fn thread_name(&mut self, thread: ThreadId) -> Option<String> {
        self.process.thread_name(thread)
    }

    fn mappings(&mut self, out: &mut Vec<Mapping>) -> Result<(), Fault> {
        let (ring, closed) = (&self.ring, self.unloads);
        let unloads = || ring.as_ref().map_or(closed, Ring::unloads);
        self.lists.mappings(&mut self.process, &unloads, out)
    }

    fn image_bytes(&mut self, mapping: &Mapping) -> Result<ImageBytes, OpenError> {
        self.process.image_bytes(mapping)
    }

    fn read_memory(&mut self, from: Avma, into: &mut [u8]) -> Result<usize, Fault> {
        self.process.read_memory(from, into)
    }
}
