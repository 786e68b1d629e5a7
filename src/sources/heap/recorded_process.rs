//! A process of a command: its rings, one for each program that it runs, and their events.
//!
//! `RecordedProcess` reads; `HeapProcess` is what each system answers about a process; `ImageLists` says which
//! images it had at a sample.
//!
//! Input: rings, in order of their sequence numbers. Output: events with times that increase.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::directory::Directory;
use super::ring::{Progress, Record, Ring, RingClock, RingError, fill};
use super::shared_memory::RING_PREFIX;
use super::source::{BoxPool, RingLosses};
use crate::binary::Mapping;
use crate::sources::pushed::{
    NOT_SAMPLED_AGAIN, SampledAllocation, SampledFree, SourceEvent, TimedEvent, UnseenAllocator,
};
use crate::sources::{Capture, ExitStatus, Fault, Observed, Process, ThreadId};

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
                let mut capture = captures.take().unwrap_or_default();
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

    fn inner(&mut self) -> Option<&mut dyn Observed> {
        Some(&mut self.process)
    }

    fn mappings(&mut self, out: &mut Vec<Mapping>) -> Result<(), Fault> {
        let (ring, closed) = (&self.ring, self.unloads);
        let unloads = || ring.as_ref().map_or(closed, Ring::unloads);
        self.lists.mappings(&mut self.process, &unloads, out)
    }
}

// ---- What the source of a command's allocations asks of a system about one process: each system implements it.

/// Size limit of an image list, bytes: a process can write anything there.
const LIST_BYTES_MAX: u64 = 32 << 20;

/// The files of a ring.
#[derive(Debug)]
pub(crate) struct RingFiles {
    /// The name of the ring.
    #[cfg_attr(
        not(target_os = "linux"),
        allow(dead_code, reason = "only Linux tells which files a process maps")
    )]
    pub(crate) name: String,
    /// The image lists that the shim wrote, from the creation of the ring on and from the exit.
    pub(crate) images: [PathBuf; 2],
}

/// A process with a ring, or one that will have one.
pub(crate) trait HeapProcess: Observed {
    /// A process started by this one or by a similar one.
    fn new_for(&self, pid: u32) -> Self;

    /// Sets the ring of the process, created by a thread with this name: it runs its own program.
    fn set_ring(&mut self, thread_name: &str, ring: RingFiles);

    /// The list of images that the shim made before an unload, or when it made the ring; false if there is none. What
    /// [`Observed::mappings`] returns is what is mapped now, or was at the exit.
    fn listed(&mut self, before_unload: Option<u32>, out: &mut Vec<Mapping>) -> bool;

    /// A list is not needed any more.
    fn forget_list(&mut self, _before_unload: u32) {}

    /// Whether it has exited.
    fn has_exited(&self) -> bool;

    /// Whether it runs another program than that of its ring. That is noticed after a delay, or at once if `is_last`.
    fn has_left_program(&mut self, now_ns: u64, is_last: bool) -> bool;

    /// Looks for processes started by this one, directly or not, that did not load the shim.
    fn scan_without_shim(&mut self, _shim: &Path) {}

    /// How many were found, by reason: one that ends between two scans is not.
    fn without_shim(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Why this process itself runs a program without the shim, if that was found.
    fn why_without_shim(&self) -> Option<&'static str> {
        None
    }

    /// Allocators of this process that calls do not leave for the shim, read at its end.
    fn unseen_allocators(&mut self) -> Vec<UnseenAllocator> {
        Vec::new()
    }

    /// Memory of no file that was resident at most when processes without the shim were looked for, bytes.
    fn resident_bytes(&self) -> Option<u64> {
        None
    }

    /// Number of other processes that use this directory or pass its path on, or may do so.
    fn survivors(&self, directory: &Path) -> usize;

    /// Exit status of a process that this one started; `None` while it runs.
    fn child_end(&mut self) -> Option<ExitStatus>;

    /// Name of the program that a started process ran last; of one that has ended, before another call reaps it.
    fn last_name(&self) -> Option<String>;

    /// Forwards a signal that this process got to a process that it started. The command decides how it reacts; the
    /// recording ends when it ends.
    fn forward_signal(&self) {}

    /// Why a started process did not load the shim, and the next step, if the system knows.
    fn why_not_loaded(&self) -> Option<String> {
        None
    }

    /// The clock of the times in rings.
    fn ring_clock_ns(&self) -> u64;
}

/// Reads an image list that the shim wrote. Must not block: the process can put anything in its place.
pub(crate) fn read_image_list(path: &Path) -> io::Result<Vec<u8>> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut text = Vec::new();
    file.take(LIST_BYTES_MAX).read_to_end(&mut text)?;
    Ok(text)
}

// ---- Which images a process had when a sample was taken: libraries are unloaded, and others take their addresses.

/// Lists that are kept parsed: of threads that record at once, each may name another one.
const PARSED_MAX: usize = 8;
/// Lists whose files are kept: a thread that is preempted while it records names an older one.
const FILES_MAX: usize = 256;

/// The lists of a process, in the order of its samples.
#[derive(Debug, Default)]
pub(super) struct ImageLists {
    /// The list from a time on, for times that have not come.
    due: VecDeque<(u64, u32)>,
    /// The list at the time of the current event, and the one of the last sample that was read.
    current: u32,
    last: u32,
    /// Lists that samples have named and that have files, the latest last.
    named: VecDeque<u32>,
    parsed: VecDeque<(u32, Vec<Mapping>)>,
    /// The latest list that was certain, and its number.
    known: (u32, Vec<Mapping>),
    /// What is in the first list of the program and in each one that was certain since; `None` before there was one.
    in_all: Option<Vec<Mapping>>,
}

impl ImageLists {
    /// Whether a sample names another list than the previous one.
    pub(super) fn is_new(&self, images: u32) -> bool {
        self.last != images
    }

    /// From this time on, samples name this list.
    pub(super) fn begin_list(&mut self, at_ns: u64, images: u32) {
        self.last = images;
        self.due.push_back((at_ns, images));
    }

    /// From this time on, it runs another program.
    pub(super) fn begin_program(&mut self, at_ns: u64) {
        self.begin_list(at_ns, 0);
        (self.known, self.in_all) = ((0, Vec::new()), None);
        self.named.clear();
        self.parsed.clear();
    }

    /// Sets the time of the current event.
    pub(super) fn set_time(&mut self, at_ns: u64, process: &mut impl HeapProcess) {
        while let Some((_, list)) = self.due.front().copied().filter(|(from_ns, _)| *from_ns <= at_ns) {
            self.due.pop_front();
            self.current = list;
            if !self.named.contains(&list) {
                self.named.push_back(list);
            }
            if self.named.len() > FILES_MAX
                && let Some(oldest) = self.named.pop_front()
            {
                process.forget_list(oldest);
            }
        }
    }

    /// The mappings that are certain at the current time. `unloads`: how many the process has begun now.
    ///
    /// # Errors
    /// Nothing is known.
    pub(super) fn mappings(
        &mut self,
        process: &mut impl HeapProcess,
        unloads: &dyn Fn() -> u64,
        out: &mut Vec<Mapping>,
    ) -> Result<(), Fault> {
        let number = self.current;
        // What is mapped now, if nothing was unloaded since, or else as the shim listed it.
        let is_current = || unloads() <= u64::from(number);
        let mut read = Err(Fault::Gone);
        if is_current() {
            read = process.mappings(out);
        }
        // Asked again: what was read may be newer.
        let is_certain = if is_current() { read.is_ok() } else { self.listed(number, process, out) };
        if is_certain {
            self.known.0 = number;
            self.known.1.clone_from(out);
            let mut in_all = self.in_all.take().unwrap_or_else(|| {
                let mut first = Vec::new();
                process.listed(None, &mut first);
                first
            });
            in_all.retain(|mapping| has(out, mapping));
            self.in_all = Some(in_all);
            return Ok(());
        }
        let (known, list) = &self.known;
        if *known == number && !list.is_empty() {
            out.clone_from(list);
            return Ok(());
        }
        // The process had no room for the list, or ended before it was read: images that it had in all others and has now.
        let mut now = Vec::new();
        let is_read = process.mappings(&mut now).is_ok();
        match &self.in_all {
            Some(in_all) => out.clone_from(in_all),
            None if process.listed(None, out) => {}
            None => out.clear(),
        }
        out.retain(|mapping| !is_read || has(&now, mapping));
        if out.is_empty() { read.and(Err(Fault::Gone)) } else { Ok(()) }
    }

    /// The list that the shim made with a number; false if there is none.
    fn listed(&mut self, number: u32, process: &mut impl HeapProcess, out: &mut Vec<Mapping>) -> bool {
        if let Some((_, list)) = self.parsed.iter().find(|(parsed, _)| *parsed == number) {
            out.clone_from(list);
            return true;
        }
        let is_listed = process.listed(Some(number), out);
        if is_listed {
            if self.parsed.len() == PARSED_MAX {
                self.parsed.pop_front();
            }
            self.parsed.push_back((number, out.clone()));
        }
        is_listed
    }
}

/// Whether a sorted list has a mapping.
fn has(list: &[Mapping], mapping: &Mapping) -> bool {
    let found = list.binary_search_by_key(&mapping.avma.start, |other| other.avma.start);
    found.is_ok_and(|index| list[index] == *mapping)
}
