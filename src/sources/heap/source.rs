//! Reads the rings of all processes of a command in batches, and reports ordered events (`HeapSource`).
//! `BatchInterval` decides when the rings are read next, `BoxPool` reuses buffers, `RingLosses` adds up records
//! that did not fit.

// With processes of Linux.
#[cfg(all(test, target_os = "linux"))]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use super::directory::Directory;
use super::recorded_process::{HeapProcess, ReadContext, RecordedProcess};
use super::ring::{Record, Ring, RingClock};
use crate::clock::{Clock, RealClock};
use crate::sources::pushed::{
    AllocationLosses, PushedSource, SourceEvent, StackUse, TimedEvent, UnseenAllocator,
};
use crate::sources::{Capture, ExitStatus, Fault, HeapOptions, Observed, Process, ThreadId};

/// Looking for processes without the shim takes at most one part in this many of the time.
const SCAN_SHARE: u64 = 50;
/// Minimum interval between scans of the directory.
const LIST_NS: u64 = 10_000_000;
/// Most processes at one time: anyone who can write to the directory can create files.
const PROCESSES_MAX: usize = 1 << 16;

/// Allocations of a command and its descendants.
pub(crate) struct HeapSource<P> {
    directory: Directory,
    options: HeapOptions,
    /// Process id of the command.
    main: u32,
    /// Time of the current event.
    event_ns: u64,
    processes: BTreeMap<u32, RecordedProcess<P>>,
    clock: RingClock,
    /// When the directory was listed last.
    listed_ns: u64,
    /// All events before this time have been reported, but for what was behind a record that a thread had reserved and
    /// not committed.
    watermark_ns: u64,
    /// When processes without the shim are looked for next, and once at the end.
    scan_due_ns: u64,
    interval: BatchInterval,
    /// More can be read at once.
    has_more: bool,
    stage: Stage,
    exit: Option<CommandExit>,
    /// Allocators of the command that the shim does not see.
    unseen: Vec<UnseenAllocator>,
    /// Of exited processes.
    lost: RingLosses,
    captures: BoxPool<Capture>,
    /// Empty between reads.
    records: Vec<Record>,
}

/// What is still to be reported.
#[derive(Debug, PartialEq, Eq)]
enum Stage {
    /// What comes.
    Recording,
    /// What was written until the end was requested.
    Draining,
    /// Nothing.
    Finished {
        /// What continues unrecorded.
        ended_early: Option<String>,
    },
}

/// The exit of the command.
struct CommandExit {
    status: ExitStatus,
    /// Name of the program that it ran last.
    name: Option<String>,
}

impl<P: HeapProcess> HeapSource<P> {
    /// A source for a running command.
    pub(crate) fn new(
        directory: Directory,
        options: HeapOptions,
        main: P,
        clock: RealClock,
    ) -> HeapSource<P> {
        let now_ns = clock.now_ns();
        let (pid, ring_ns) = (main.process().pid, main.ring_clock_ns());
        HeapSource {
            directory,
            options,
            main: pid,
            event_ns: 0,
            processes: BTreeMap::from([(pid, RecordedProcess::new(main, true))]),
            clock: RingClock::new(clock, ring_ns),
            listed_ns: 0,
            watermark_ns: 0,
            scan_due_ns: 0,
            interval: BatchInterval::new(now_ns),
            has_more: false,
            stage: Stage::Recording,
            exit: None,
            unseen: Vec::new(),
            lost: RingLosses::default(),
            captures: BoxPool::new(),
            records: Vec::new(),
        }
    }

    fn main(&self) -> &RecordedProcess<P> {
        let main = self.processes.get(&self.main);
        main.unwrap_or_else(|| unreachable!("the main process is kept"))
    }

    fn main_mut(&mut self) -> &mut P {
        let main = self.processes.get_mut(&self.main);
        let main = main.unwrap_or_else(|| unreachable!("the main process is kept"));
        main.process_mut()
    }

    fn wait(&self, until_ns: u64) {
        std::thread::sleep(Duration::from_nanos(self.interval.wait_ns(self.clock.now_ns(), until_ns)));
    }

    /// Scans for new rings, and for processes that will have none.
    fn list(&mut self) {
        let now_ns = self.clock.now_ns();
        if self.exit.is_none() && now_ns >= self.scan_due_ns {
            let shim = self.directory.shim().to_owned();
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
                    self.lost.malformed_rings += 1;
                    continue;
                }
                let new = RecordedProcess::new(self.main().process().new_for(pid), false);
                self.processes.insert(pid, new);
            }
            if let Some(process) = self.processes.get_mut(&pid) {
                process.add_ring(sequence, path);
            }
        }
    }

    /// Reads all rings; returns whether there is more.
    fn read(&mut self, into: &mut Vec<TimedEvent>) -> bool {
        self.forget_ended();
        let now_ns = self.clock.now_ns();
        // A read takes a part of a full ring; what it leaves is older than the next listing.
        let is_behind = self.is_behind();
        if self.is_draining() || (!is_behind && now_ns >= self.listed_ns + LIST_NS) {
            self.list();
            if !is_behind {
                self.listed_ns = now_ns;
                self.processes.values_mut().for_each(RecordedProcess::reset_unread);
            }
        }
        self.interval.begin(now_ns);
        self.directory.show_life();
        let (is_draining, has_command_exited) = (self.is_draining(), self.exit.is_some());
        let mut has_more = false;
        for process in self.processes.values_mut() {
            let context = ReadContext {
                directory: &self.directory,
                clock: &self.clock,
                captures: &mut self.captures,
                records: &mut self.records,
                is_draining,
                has_command_exited,
            };
            let read = process.read(context, into).unwrap_or_default();
            self.interval.note_ring(read.bytes, read.ring_bytes);
            has_more |= read.has_more;
        }
        self.interval.finish();
        // Later events may follow in a new ring, and ends of processes may not have been noticed yet.
        if !self.is_behind() {
            self.watermark_ns = self.listed_ns;
        }
        has_more
    }

    /// Whether events before the last listing have not been read yet.
    fn is_behind(&self) -> bool {
        self.processes.values().any(RecordedProcess::is_behind)
    }

    /// Whether no more records will follow those that exist.
    fn is_draining(&self) -> bool {
        self.stage != Stage::Recording || self.exit.is_some()
    }

    /// What continues unrecorded, after the command or in its place.
    fn why_ended_early(&self) -> Option<String> {
        let exit = self.exit.as_ref()?;
        if self.directory.programs() == 0 {
            return self.main().process().why_not_loaded();
        }
        let survivors = self.main().process().survivors(self.directory.path());
        if survivors > 0 {
            let (processes, run) = if survivors == 1 { ("process", "runs") } else { ("processes", "run") };
            return Some(format!(
                "the command has ended, and {survivors} {processes} that it started {run} on; keep it in the foreground"
            ));
        }
        // It did not reach its end in the shim, and has another name: it executed a program that did not load the shim.
        let main = self.main();
        let name = exit.name.as_deref().filter(|name| !main.process().process().name.starts_with(name))?;
        let is_noted = |sequence| self.directory.maps(self.main, sequence)[1].exists();
        let is_other = self.directory.programs() == 1 && !main.sequence().is_some_and(is_noted);
        let why = main.process().why_without_shim();
        is_other.then(|| {
            let why =
                why.unwrap_or("linked statically, setuid, or started with another LD_PRELOAD (env -i, sudo)");
            format!("it became `{name}`, which did not load the heap shim: {why}")
        })
    }

    /// Removes the files of ended processes whose events have all been processed: their images were read from them.
    fn forget_ended(&mut self) {
        self.processes.retain(|pid, process| {
            let is_over = process.is_over(self.watermark_ns);
            if is_over {
                self.lost.merge(&process.losses());
                if let Some(sequence) = process.sequence() {
                    self.directory.remove_ring(*pid, sequence);
                }
            }
            !is_over
        });
    }
}

impl<P: HeapProcess> Observed for HeapSource<P> {
    fn process(&self) -> &Process {
        self.main().process().process()
    }

    fn inner(&mut self) -> Option<&mut dyn Observed> {
        self.processes.get_mut(&self.main).map(|main| main as &mut dyn Observed)
    }
}

impl<P: HeapProcess> PushedSource for HeapSource<P> {
    fn observed(&mut self, process: u32) -> Option<&mut dyn Observed> {
        let process = self.processes.get_mut(&process)?;
        process.set_time(self.event_ns);
        Some(process)
    }

    fn next_batch(&mut self, until_ns: u64, into: &mut Vec<TimedEvent>) -> Result<Option<u64>, Fault> {
        if matches!(self.stage, Stage::Finished { .. }) {
            return Ok(None);
        }
        if !self.is_draining() {
            if !self.has_more {
                self.wait(until_ns);
            }
            self.main().process().forward_signal();
            if let Some(status) = self.main_mut().child_end() {
                self.exit = Some(CommandExit { status, name: self.main().process().last_name() });
                // Its ring, and the list of its images with it, may be gone when all has been read.
                self.unseen = self.main_mut().unseen_allocators();
            }
        }
        self.has_more = self.read(into);
        if self.has_more || !self.is_draining() {
            return Ok(Some(self.watermark_ns));
        }
        self.stage = Stage::Finished { ended_early: self.why_ended_early() };
        if self.unseen.is_empty() {
            self.unseen = self.main_mut().unseen_allocators();
        }
        if let Some(exit) = &self.exit {
            let (at_ns, process, thread) = (self.clock.now_ns(), self.main, ThreadId(0));
            into.push(TimedEvent { at_ns, process, thread, event: SourceEvent::Exited(exit.status) });
        }
        Ok(None)
    }

    fn set_time(&mut self, at_ns: u64) {
        self.event_ns = at_ns;
    }

    fn end(&mut self) {
        self.stage = Stage::Draining;
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
            std::thread::sleep(Duration::from_nanos(FIRST_INTERVAL_NS));
        }
    }

    fn walked(&mut self, _thread: ThreadId, capture: Box<Capture>, _needed: StackUse) {
        let capacity_bytes = capture.stack.capacity();
        self.captures.put(capture, capacity_bytes);
    }

    fn allocation_rate(&self) -> Option<u64> {
        Some(self.options.every_bytes)
    }

    fn allocation_losses(&self) -> AllocationLosses {
        let mut losses = self.lost.clone();
        for process in self.processes.values() {
            losses.merge(&process.losses());
        }
        let RingLosses { allocations, frees, lost_before_ring, no_space, malformed_rings } = losses;
        let ended_early = match &self.stage {
            Stage::Finished { ended_early } => ended_early.clone(),
            Stage::Recording | Stage::Draining => None,
        };
        AllocationLosses {
            allocations,
            frees,
            lost_before_ring,
            no_space,
            malformed_rings,
            programs: self.directory.programs(),
            refused: self.directory.refused(),
            without_shim: self.main().process().without_shim(),
            unseen_libraries: self.directory.unseen_libraries(),
            unseen: self.unseen.clone(),
            resident_bytes: self.main().process().resident_bytes(),
            ended_early,
            still_runs: self.exit.is_none(),
        }
    }
}

// ---- When the rings are read next: soon enough that none overflows, and seldom.

/// Longest interval between reads, nanoseconds: a ring of the default size holds the allocations of ten times that.
const INTERVAL_MAX_NS: u64 = 50_000_000;
/// Shortest interval, while much is written.
const INTERVAL_MIN_NS: u64 = 1_000_000;
/// Longest interval at the beginning, while a program loads its libraries and starts others.
pub(super) const FIRST_INTERVAL_NS: u64 = 10_000_000;
const BEGINNING_NS: u64 = 500_000_000;
/// A ring is read again when this fraction is filled, at the rate of the previous batch.
const RING_SHARE: u64 = 8;

/// The interval between reads of the rings.
pub(super) struct BatchInterval {
    began_ns: u64,
    /// Time of the last read, and of the one before.
    read_ns: u64,
    passed_ns: u64,
    interval_ns: u64,
    /// The shortest time in which one of the rings read since then fills up to [`RING_SHARE`].
    fills_ns: u64,
}

impl BatchInterval {
    pub(super) fn new(now_ns: u64) -> BatchInterval {
        BatchInterval {
            began_ns: now_ns,
            read_ns: now_ns,
            passed_ns: 0,
            interval_ns: INTERVAL_MAX_NS,
            fills_ns: u64::MAX,
        }
    }

    /// Nanoseconds to wait from now on, at most until `until_ns`.
    pub(super) fn wait_ns(&self, now_ns: u64, until_ns: u64) -> u64 {
        let is_new = now_ns < self.began_ns + BEGINNING_NS;
        let interval_ns = self.interval_ns.min(if is_new { FIRST_INTERVAL_NS } else { INTERVAL_MAX_NS });
        interval_ns.min(until_ns.saturating_sub(now_ns))
    }

    /// All rings are read now.
    pub(super) fn begin(&mut self, now_ns: u64) {
        self.passed_ns = now_ns.saturating_sub(self.read_ns);
        self.read_ns = now_ns;
        self.fills_ns = u64::MAX;
    }

    /// A ring of this capacity had this many bytes.
    pub(super) fn note_ring(&mut self, bytes: u64, ring_bytes: u64) {
        let fills_ns = self.passed_ns.saturating_mul(ring_bytes / RING_SHARE).checked_div(bytes);
        self.fills_ns = self.fills_ns.min(fills_ns.unwrap_or(u64::MAX));
    }

    /// All rings were read.
    pub(super) fn finish(&mut self) {
        // Slows down step by step, because allocations come in bursts.
        let slower_ns = self.interval_ns.saturating_mul(2).min(INTERVAL_MAX_NS);
        self.interval_ns = self.fills_ns.min(slower_ns).max(INTERVAL_MIN_NS);
    }
}

// ---- Boxes with a buffer, for reuse: samples and records are handed on in their boxes.

/// Boxes with a long buffer that are kept, and boxes in all.
const LONG_MAX: usize = 64;
const BOXES_MAX: usize = 4096;
const LONG_BYTES: usize = 4096;

/// Boxes for reuse.
#[derive(Debug)]
#[allow(clippy::vec_box, reason = "they are handed on in their boxes")]
pub(crate) struct BoxPool<T>(Vec<Box<T>>);

impl<T> BoxPool<T> {
    pub(crate) const fn new() -> BoxPool<T> {
        BoxPool(Vec::new())
    }

    pub(crate) fn take(&mut self) -> Option<Box<T>> {
        self.0.pop()
    }

    /// Takes one back whose buffer has this capacity, unless there are enough.
    pub(crate) fn put(&mut self, item: Box<T>, capacity_bytes: usize) {
        let is_short = capacity_bytes <= LONG_BYTES;
        if self.0.len() < if is_short { BOXES_MAX } else { LONG_MAX } {
            self.0.push(item);
        }
    }
}

// ---- Records that did not fit into the rings of a command.
//
// Input: counters of rings; output: their sums.

/// Losses of one or several rings.
#[derive(Clone, Debug, Default)]
pub(super) struct RingLosses {
    pub(super) allocations: Vec<(u64, u64)>,
    pub(super) frees: u64,
    pub(super) lost_before_ring: u64,
    pub(super) no_space: u64,
    /// Rings that could not be read further.
    pub(super) malformed_rings: u64,
}

impl RingLosses {
    /// Adds those of another ring.
    pub(super) fn merge(&mut self, other: &RingLosses) {
        self.allocations.extend(&other.allocations);
        self.frees = self.frees.saturating_add(other.frees);
        self.lost_before_ring = self.lost_before_ring.saturating_add(other.lost_before_ring);
        self.no_space = self.no_space.saturating_add(other.no_space);
        self.malformed_rings = self.malformed_rings.saturating_add(other.malformed_rings);
    }

    /// Adds those of a ring.
    pub(super) fn add(&mut self, ring: &Ring) {
        self.allocations.extend(ring.lost_allocations());
        self.frees = self.frees.saturating_add(ring.lost_frees());
        self.lost_before_ring = self.lost_before_ring.saturating_add(ring.lost_before_ring());
        self.no_space = self.no_space.saturating_add(ring.no_space());
    }
}

#[cfg(test)]
mod batch_interval_tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_fastest_ring_sets_the_interval_and_silence_doubles_it() {
        let mut interval = BatchInterval::new(0);
        assert_eq!(interval.wait_ns(0, u64::MAX), 10 * MS, "at the beginning");
        assert_eq!(interval.wait_ns(600 * MS, u64::MAX), 50 * MS);
        assert_eq!(interval.wait_ns(600 * MS, 603 * MS), 3 * MS);
        interval.begin(600 * MS);
        interval.finish();
        // An eighth of 8000 bytes in 40 ms, and of 16 bytes in less than the least interval.
        for (rings, expected) in [
            (&[(0, 8000), (1000, 8000)][..], 40 * MS),
            (&[(1000, 16), (1000, 8000)], MS),
            (&[], 2 * MS),
            (&[(0, 8000)], 4 * MS),
        ] {
            let now_ns = interval.read_ns + 40 * MS;
            interval.begin(now_ns);
            for (bytes, ring_bytes) in rings {
                interval.note_ring(*bytes, *ring_bytes);
            }
            interval.finish();
            assert_eq!(interval.wait_ns(now_ns, u64::MAX), expected, "{rings:?}");
        }
    }
}
