//! The stack stage: how many bytes of each stack the kernel copies, and how copies are completed.
//!
//! `Stacks` is the stage; `ReadAhead` limits the samples read during walks, `Backlog` reacts to full rings,
//! `MissingPages` faults pages in, `TargetMemory` reads memory.
//!
//! Input: samples as in their records, and the stack use of their walks. Output: samples with the red zone, the
//! stack tail and the prefetched ranges of the same moment, and the options for the next samples. Missing pages
//! are faulted in for later copies.

use std::io;
use std::os::fd::RawFd;

use hashbrown::{HashMap, HashSet};
use libc::pid_t;

use super::prefetch::{self, BpfPrefetch, RedZone};
use super::stack_size::EventStackSize;
use super::stack_tail::StackTail;
use crate::addr::{Avma, CodeAddress};
use crate::sources::Capture;
use crate::sources::linux::perf::events::attributes::{
    EventOptions, STACK_BYTES, STACK_BYTES_MAX, SwitchOptions,
};
use crate::sources::linux::perf::ring::{Pressure, Sample, SampleId};
use crate::sources::linux::sys;
use crate::sources::pushed::StackUse;

/// Copies made by BPF programs in addition to the records.
#[derive(Debug, Default)]
struct ProgramCopies {
    tail: Option<StackTail>,
    prefetch: Option<BpfPrefetch>,
    red_zone: Option<RedZone>,
}

/// The sizes of stack copies.
#[derive(Debug)]
struct Sizes {
    stack: EventStackSize,
    /// Size of stacks at which threads leave their CPUs.
    at_switch: EventStackSize,
    /// Limit imposed by the rings.
    backlog: Backlog,
    /// Number of the current size, and the time since which it applies (monotonic clock).
    number: u32,
    since_ns: u64,
}

/// The state of the stage.
#[derive(Debug)]
pub(crate) struct Stacks {
    /// Whether kernel frames are recorded.
    kernel_frames: bool,
    copies: ProgramCopies,
    sizes: Sizes,
    /// Samples read ahead of their batch.
    ahead: ReadAhead,
    /// By process: its program, and the missing pages of its stacks.
    missing_pages: HashMap<pid_t, (u64, MissingPages)>,
}

impl Stacks {
    /// With this initial stack size.
    pub(crate) fn new(kernel_frames: bool, size: EventStackSize) -> Stacks {
        Stacks {
            kernel_frames,
            copies: ProgramCopies::default(),
            sizes: Sizes {
                stack: size,
                at_switch: EventStackSize::for_switches(),
                backlog: Backlog::default(),
                number: 0,
                since_ns: 0,
            },
            ahead: ReadAhead::default(),
            missing_pages: HashMap::new(),
        }
    }

    /// The current stack size, bytes.
    pub(crate) fn stack_bytes(&self) -> u32 {
        self.sizes.stack.bytes()
    }

    /// Copies a sample into a buffer.
    pub(crate) fn copy(&mut self, id: SampleId, sample: &Sample<'_>, capture: &mut Capture) {
        capture.reset();
        capture.cpu = Some(id.cpu);
        // Rings still hold copies of the previous size.
        capture.stack_size_index =
            self.sizes.number.wrapping_sub(u32::from(id.time_ns < self.sizes.since_ns));
        capture.stack.extend_from_slice(sample.stack);
        self.ahead.add(sample.stack.len());
        // All but the innermost are return addresses, looked up at the call. The kernel counts an emulated entry
        // point called by a program among its own frames.
        let frames = sample.kernel().map(Avma).filter(|at| at.is_kernel());
        let frames = frames.enumerate().map(|(depth, at)| match depth {
            0 => CodeAddress::Pc(at),
            _ => CodeAddress::Return(at),
        });
        capture.kernel.extend(frames.map(CodeAddress::lookup));
        // In the middle of an exec there are registers, but no program yet.
        capture.only_kernel = sample.registers.is_none_or(|registers| registers.pc() == Avma(0));
        capture.registers = sample.registers.unwrap_or_default();
        capture.stack_base = capture.registers.sp();
    }

    /// Reads the programs' copies so far, after the rings of samples, so that those of all samples are included.
    /// Returns the number of freed buffer bytes.
    pub(crate) fn read(&mut self) -> usize {
        let ProgramCopies { tail, prefetch, red_zone } = &mut self.copies;
        let freed = tail.as_mut().map_or(0, StackTail::read);
        self.ahead.add_tails(tail.as_ref().map_or(0, StackTail::read_bytes));
        freed + prefetch.as_mut().map_or(0, BpfPrefetch::read) + red_zone.as_mut().map_or(0, RedZone::read)
    }

    /// Whether rings this full are read while a batch is walked.
    pub(crate) fn reads_ahead(&self, fill_per_mille: u32) -> bool {
        self.ahead.reads(fill_per_mille)
    }

    /// Fill level of the rings, or of the samples read ahead, whichever is higher.
    pub(crate) fn pressure(&self, rings: Pressure) -> Pressure {
        rings.with(self.ahead.stacks_per_mille())
    }

    /// Begins a batch: all samples read so far are handed over.
    pub(crate) fn begin_batch(&mut self) {
        self.ahead.clear();
    }

    /// Completes a sample of a process that runs this program.
    pub(crate) fn complete(
        &mut self,
        id: SampleId,
        program: u64,
        capture: &mut Capture,
        memory: &dyn TargetMemory,
    ) {
        if let Some(tail) = &mut self.copies.tail {
            tail.complete(id, capture);
        }
        if let Some(prefetch) = &mut self.copies.prefetch {
            prefetch.complete(id, capture);
        }
        // Missing pages do not end a tail.
        if capture.tail_bytes == 0 && capture.upper_stack.is_empty() {
            self.bring_in(id.pid, id.tid, program, capture, memory);
        }
        if let Some(red_zone) = &mut self.copies.red_zone {
            red_zone.complete(id, capture);
        }
        if !self.kernel_frames {
            capture.kernel.clear();
        }
    }

    /// Completes a stack at which a thread left its CPU.
    pub(crate) fn complete_at_switch(
        &mut self,
        (pid, tid): (pid_t, pid_t),
        program: Option<u64>,
        capture: &mut Capture,
        memory: &dyn TargetMemory,
    ) {
        if let Some(program) = program {
            self.bring_in(pid, tid, program, capture, memory);
        }
        if !self.kernel_frames {
            capture.kernel.clear();
        }
    }

    /// Faults in pages missing from the copy of this thread's stack, for the next one.
    fn bring_in(
        &mut self,
        pid: pid_t,
        tid: pid_t,
        program: u64,
        capture: &Capture,
        memory: &dyn TargetMemory,
    ) {
        if capture.stack.is_empty() {
            return;
        }
        let (of_program, pages) = self.missing_pages.entry(pid).or_default();
        if *of_program != program {
            // The memory of another program is unknown.
            (*of_program, *pages) = (program, MissingPages::default());
        }
        pages.bring_in(tid, capture, STACK_BYTES_MAX, memory);
    }

    /// Drops a process that is no longer sampled.
    pub(crate) fn forget_process(&mut self, pid: pid_t) {
        self.missing_pages.remove(&pid);
    }

    /// Prepares the programs needed by `options`, as many as possible; returns the options without the others.
    /// `may_copy`: events may have a program that copies. `load` loads one into the kernel.
    pub(crate) fn prepare(
        &mut self,
        mut options: EventOptions,
        may_copy: bool,
        mut load: impl FnMut(&[u64]) -> io::Result<()>,
    ) -> EventOptions {
        let copies = &mut self.copies;
        if options.red_zone && may_copy && copies.red_zone.is_none() {
            copies.red_zone = RedZone::new().ok();
        }
        // Before the first samples: they show most.
        if options.prefetch && may_copy && copies.prefetch.is_none() {
            copies.prefetch = BpfPrefetch::new().ok();
            copies.tail = StackTail::new().ok();
        }
        // First the one that uses the program's argument; last the slowest, since copies are matched by their
        // times.
        let red_zone: Vec<u64> =
            copies.red_zone.iter().filter(|_| options.red_zone).flat_map(RedZone::program).collect();
        let prefetch: Vec<u64> = copies.prefetch.iter().flat_map(BpfPrefetch::program).collect();
        let tail: Vec<u64> = copies.tail.iter().flat_map(StackTail::program).collect();
        if load(&[&red_zone[..], &prefetch, &tail].concat()).is_err() {
            // An older kernel may accept the rest.
            copies.tail = None;
            if load(&[&red_zone[..], &prefetch].concat()).is_err() {
                copies.prefetch = None;
                if load(&red_zone).is_err() {
                    copies.red_zone = None;
                }
            }
        }
        options.prefetch = copies.prefetch.is_some();
        options
    }

    /// Notes that events sample with other options since this time (monotonic clock).
    pub(crate) fn reopened(&mut self, since_ns: u64) {
        self.sizes.number = self.sizes.number.wrapping_add(1);
        self.sizes.since_ns = since_ns;
    }

    /// Notes that events could not be reopened and keep these options.
    pub(crate) fn keep(&mut self, options: EventOptions) {
        self.sizes.stack.pin(options.stack_bytes);
        self.sizes.backlog.stays();
        if let Some(SwitchOptions { stack_bytes, .. }) = options.switches {
            self.sizes.at_switch.pin(stack_bytes);
        }
    }

    /// Evaluates the fill level of the rings. Returns the options that there is room for, if they changed.
    pub(crate) fn relieve(&mut self, pressure: Pressure, options: EventOptions) -> Option<EventOptions> {
        if !self.sizes.backlog.read(pressure, options.stack_bytes) {
            return None;
        }
        let stack_bytes = self.sizes.backlog.limit(self.sizes.stack.bytes());
        (stack_bytes != options.stack_bytes).then_some(EventOptions { stack_bytes, ..options })
    }

    /// Records a walk's use of a stack that was copied with the size of this number. Returns the options for the
    /// next samples, if they changed.
    pub(crate) fn walked(
        &mut self,
        stack_size_index: u32,
        needed: StackUse,
        options: EventOptions,
        may_copy: bool,
    ) -> Option<EventOptions> {
        // Copies of other sizes do not show whether this one fits.
        let is_current = stack_size_index == self.sizes.number;
        let stack_bytes = is_current.then(|| self.sizes.stack.walked(needed)).flatten();
        let stack_bytes = stack_bytes.map(|bytes| self.sizes.backlog.limit(bytes));
        let stack_bytes = stack_bytes.unwrap_or(options.stack_bytes);
        let red_zone = options.red_zone || needed.needs_red_zone && prefetch::HERE && may_copy;
        let next = EventOptions { stack_bytes, red_zone, ..options };
        (next != options).then_some(next)
    }

    /// Records a walk's use of a stack at a context switch, like [`Stacks::walked`].
    pub(crate) fn wait_walked(
        &mut self,
        stack_size_index: u32,
        needed: StackUse,
        options: EventOptions,
    ) -> Option<EventOptions> {
        let switches = options.switches.filter(|_| stack_size_index == self.sizes.number)?;
        let stack_bytes = self.sizes.at_switch.walked(needed)?;
        Some(EventOptions { switches: Some(SwitchOptions { stack_bytes, ..switches }), ..options })
    }

    /// Whether ranges of stacks can be prefetched.
    pub(crate) fn prefetches(&self) -> bool {
        self.copies.prefetch.is_some()
    }

    /// Whether ranges of stacks are prefetched.
    pub(crate) fn has_prefetched(&self) -> bool {
        self.copies.prefetch.as_ref().is_some_and(BpfPrefetch::has_lists)
    }

    /// Sets the ranges to prefetch with a thread's samples.
    pub(crate) fn prefetch(&mut self, tid: pid_t, ranges: &[u64]) {
        if let Some(prefetch) = &mut self.copies.prefetch {
            prefetch.set(tid, ranges);
        }
    }

    /// Records a walk of a thread's sample, of which the record held `usual_bytes` and the copy
    /// `copied_bytes`.
    pub(crate) fn note_tail(
        &mut self,
        tid: pid_t,
        usual_bytes: usize,
        copied_bytes: usize,
        needed: StackUse,
    ) {
        if let Some(tail) = &mut self.copies.tail {
            tail.note(tid, usual_bytes, copied_bytes, needed);
        }
    }

    /// Takes back the buffers of a capture that are not those of its record.
    pub(crate) fn give_back(&mut self, capture: &mut Capture) {
        if let Some(tail) = &mut self.copies.tail {
            tail.give_back(capture);
        }
    }

    /// Drops an exited thread.
    pub(crate) fn forget_thread(&mut self, tid: pid_t) {
        if let Some(tail) = &mut self.copies.tail {
            tail.forget(tid);
        }
    }

    /// A descriptor that is readable while stacks of new threads wait; `None` while others have tails, too.
    pub(crate) fn new_stacks(&self) -> Option<RawFd> {
        let tail = self.copies.tail.as_ref().filter(|tail| !tail.is_needed_for_long())?;
        Some(tail.descriptor())
    }

    /// Whether a program copies the tails of all stacks of some thread.
    pub(crate) fn copies_tails(&self) -> bool {
        self.copies.tail.as_ref().is_some_and(StackTail::is_needed_for_long)
    }

    /// Size of the ring of tails, bytes.
    pub(crate) fn ring_bytes(&self) -> u64 {
        self.copies.tail.as_ref().map_or(0, StackTail::ring_bytes)
    }
}

// ---- Samples read from rings while a batch is walked. They wait in this process, so that rings have room, and
// count like rings that fill up: less of each stack is copied.

/// Fill level at which rings are read ahead.
const READ_PER_MILLE: u32 = 400;
/// Maximum number of waiting bytes.
const BYTES_MAX: usize = 16 << 20;
/// Size of a sample without its stack.
const SAMPLE_BYTES: usize = 512;

/// Samples read but not yet processed.
#[derive(Debug, Default)]
pub(super) struct ReadAhead {
    stack_bytes: usize,
    tail_bytes: usize,
}

impl ReadAhead {
    /// Adds a sample with this many bytes of a stack.
    pub(super) fn add(&mut self, stack_bytes: usize) {
        self.stack_bytes += stack_bytes + SAMPLE_BYTES;
    }

    /// Adds this many bytes of stack tails.
    pub(super) fn add_tails(&mut self, bytes: usize) {
        self.tail_bytes += bytes;
    }

    /// Called when all have been processed.
    pub(super) fn clear(&mut self) {
        *self = ReadAhead::default();
    }

    /// Whether to read rings this full.
    pub(super) fn reads(&self, fill_per_mille: u32) -> bool {
        fill_per_mille >= READ_PER_MILLE && self.stack_bytes.saturating_add(self.tail_bytes) < BYTES_MAX
    }

    /// Waiting bytes, per mille of the limit: only those in records, which can be made smaller.
    pub(super) fn stacks_per_mille(&self) -> u32 {
        (self.stack_bytes.saturating_mul(1000) / BYTES_MAX).min(1000) as u32
    }
}

// ---- Reacts to rings that fill up: the reader gets priority, and less of each stack is copied, so that no sample
// is lost while stack bytes can be saved.
//
// The criterion is the fill level, not time: the delay of the reader depends on the machine.

/// Fill level at which less is copied.
const FULL_PER_MILLE: u32 = 500;
/// Fill level at which the reader is late.
const LATE_PER_MILLE: u32 = 400;
/// Fill level below which twice as much may be copied: a reader is woken at a quarter, and the excess doubles.
const ROOMY_PER_MILLE: u32 = 350;
/// Consecutive reads with room before more is copied; doubled each time that rings fill up.
const FIRST_PATIENCE: u32 = 16;
const PATIENCE_MAX: u32 = 4096;

/// The limit, and the recent fill levels.
#[derive(Debug)]
pub(crate) struct Backlog {
    /// Maximum stack size; `u32::MAX`: no limit.
    limit_bytes: u32,
    roomy: u32,
    patience: u32,
}

impl Default for Backlog {
    fn default() -> Backlog {
        Backlog { limit_bytes: u32::MAX, roomy: 0, patience: FIRST_PATIENCE }
    }
}

impl Backlog {
    /// The requested stack size, within the limit.
    pub(crate) fn limit(&self, wanted_bytes: u32) -> u32 {
        wanted_bytes.min(self.limit_bytes)
    }

    /// Whether the reader needs priority.
    pub(crate) fn is_late(pressure: Pressure) -> bool {
        pressure.lost || pressure.fill_per_mille >= LATE_PER_MILLE
    }

    /// Evaluates the fill level with `copied_bytes` per stack. Returns whether the limit changed.
    pub(crate) fn read(&mut self, pressure: Pressure, copied_bytes: u32) -> bool {
        if pressure.lost || pressure.fill_per_mille >= FULL_PER_MILLE {
            self.roomy = 0;
            let smaller = STACK_BYTES.into_iter().rev().filter(|bytes| *bytes < copied_bytes);
            // Losses show that half is not enough.
            let mut smaller = smaller.skip(usize::from(pressure.lost));
            let least = STACK_BYTES[0];
            let next = smaller.next().unwrap_or(least);
            if next < self.limit_bytes && next < copied_bytes {
                self.limit_bytes = next;
                self.patience = (self.patience * 2).min(PATIENCE_MAX);
                return true;
            }
            return false;
        }
        if self.limit_bytes == u32::MAX {
            return false;
        }
        self.roomy = if pressure.fill_per_mille < ROOMY_PER_MILLE { self.roomy + 1 } else { 0 };
        if self.roomy < self.patience {
            return false;
        }
        self.roomy = 0;
        self.limit_bytes =
            STACK_BYTES.into_iter().find(|bytes| *bytes > self.limit_bytes).unwrap_or(u32::MAX);
        true
    }

    /// Restarts counting: the events could not be reopened.
    pub(crate) fn stays(&mut self) {
        self.roomy = 0;
    }
}

// ---- Stack pages that are not resident. The kernel copies a stack in an interrupt, where pages cannot be faulted
// in (kernel/events/core.c, `perf_output_sample_ustack`: `__copy_from_user_inatomic`), so a copy ends at the first
// page that was never touched, as in a large frame, or was swapped out. Reading one from outside faults it in, like
// the next use would, for later copies.
//
// Effect: a zero page, or the page's own content, is mapped there.

/// Page sizes on all Linux architectures are multiples of this.
const PAGE_BYTES: u64 = 4096;
/// Maximum number of stack ends kept: beyond it, all are dropped, including those of exited threads.
const ENDS_MAX: usize = 4096;

/// Ends of the stacks of one program.
#[derive(Debug, Default)]
pub(crate) struct MissingPages {
    /// Unmapped addresses: stacks and their copies end there.
    ends: HashSet<u64>,
    scratch: Vec<u8>,
}

impl MissingPages {
    /// Faults in pages missing from a copy of the stack of thread `tid`, up to its `most_bytes`.
    pub(crate) fn bring_in(
        &mut self,
        tid: pid_t,
        capture: &Capture,
        most_bytes: u32,
        memory: &dyn TargetMemory,
    ) {
        let bytes = capture.stack.len() as u64;
        let end = capture.stack_base.0.wrapping_add(bytes);
        // A copy of the requested size ends anywhere; a truncated one, at a page boundary.
        let most_bytes = u64::from(most_bytes);
        if !end.is_multiple_of(PAGE_BYTES) || end == 0 || bytes >= most_bytes || self.ends.contains(&end) {
            return;
        }
        let missing_bytes = (most_bytes - bytes) as usize;
        let read = memory.read(tid, end, missing_bytes, &mut self.scratch);
        if !read.is_ok_and(|bytes| bytes > 0) {
            if self.ends.len() >= ENDS_MAX {
                self.ends.clear();
            }
            self.ends.insert(end);
        }
    }
}

// ---- Reads memory of running processes. Input: a thread, an address. Output: bytes.

/// Reads memory of processes.
pub(crate) trait TargetMemory {
    /// Reads up to `len` bytes from this address into a buffer, replacing its content; returns how many.
    ///
    /// # Errors
    /// The system's error if not even the first byte can be read.
    fn read(&self, tid: pid_t, from: u64, len: usize, into: &mut Vec<u8>) -> io::Result<usize>;
}

/// The memory of this machine's processes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SystemMemory;

impl TargetMemory for SystemMemory {
    fn read(&self, tid: pid_t, from: u64, len: usize, into: &mut Vec<u8>) -> io::Result<usize> {
        sys::read_memory_into(tid, from, len, into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Earlier copies in the rings are no evidence about a new size.
    #[test]
    fn each_stack_has_the_number_of_its_size() {
        let mut stacks = Stacks::new(true, EventStackSize::new());
        for since_ns in [10, 50, 100] {
            stacks.reopened(since_ns);
        }
        let numbers = [50, 99, 100, 150].map(|time_ns| {
            let mut capture = Capture::with_capacity(0);
            stacks.copy(SampleId { time_ns, ..SampleId::default() }, &Sample::EMPTY, &mut capture);
            capture.stack_size_index
        });
        assert_eq!(numbers, [2, 2, 3, 3]);
    }
}

#[cfg(test)]
mod read_ahead_tests {
    use super::Backlog;
    use super::*;
    use crate::sources::linux::perf::ring::Pressure;

    const RING_BYTES: u32 = 4 << 20;

    /// A busy CPU, and long batches with this many ticks per sample. Returns the number of lost samples, and the
    /// maximum number of waiting bytes outside the ring; `polls`: whether the ring is polled at each tick.
    fn long_batches(ticks_of_sample: u32, polls: bool) -> (u32, usize) {
        let (mut backlog, mut ahead) = (Backlog::default(), ReadAhead::default());
        let (mut lost, mut most_bytes) = (0, 0);
        let (mut in_ring, mut samples_ahead, mut batch) = (0_u32, 0_u32, 0_u32);
        for tick in 0..3_000 {
            let stack_bytes = backlog.limit(60 << 10);
            let fits = RING_BYTES / (stack_bytes + 400);
            lost += u32::from(in_ring >= fits);
            in_ring = fits.min(in_ring + 1);
            let fill_per_mille = in_ring * 1000 / fits;
            // The program starts: each of its first samples takes long. Later the walks catch up.
            if tick >= 1_200 {
                batch = batch.saturating_sub(20);
            } else if tick % ticks_of_sample == 0 {
                batch = batch.saturating_sub(1);
            }
            let ends = batch == 0;
            if ends || polls && ahead.reads(fill_per_mille) {
                (0..in_ring).for_each(|_| ahead.add(stack_bytes as usize));
                samples_ahead += std::mem::take(&mut in_ring);
                most_bytes = most_bytes.max(ahead.stack_bytes);
                if ends {
                    ahead.clear();
                    batch = std::mem::take(&mut samples_ahead);
                }
                let pressure = Pressure { fill_per_mille, lost: false };
                backlog.read(pressure.with(ahead.stacks_per_mille()), stack_bytes);
            }
        }
        (lost, most_bytes)
    }

    #[test]
    fn a_long_batch_loses_no_samples_and_uses_bounded_memory() {
        for ticks_of_sample in [2, 4, 8, 16] {
            let (lost, most_bytes) = long_batches(ticks_of_sample, true);
            assert_eq!(lost, 0, "{ticks_of_sample} ticks a sample");
            assert!(most_bytes <= BYTES_MAX + RING_BYTES as usize, "{most_bytes}");
            let (lost, _) = long_batches(ticks_of_sample, false);
            assert!(lost > 0, "{ticks_of_sample} ticks a sample without reading ahead");
        }
    }

    #[test]
    fn waiting_samples_are_bounded() {
        let mut ahead = ReadAhead::default();
        assert!(ahead.reads(READ_PER_MILLE) && !ahead.reads(READ_PER_MILLE - 1));
        ahead.add(0);
        ahead.add_tails(BYTES_MAX - SAMPLE_BYTES - 1);
        assert!(ahead.reads(READ_PER_MILLE));
        assert_eq!(ahead.stacks_per_mille(), 0, "tails do not give way");
        ahead.add(1);
        assert!(!ahead.reads(1000));
        ahead.clear();
        assert!(ahead.reads(1000));
    }
}

#[cfg(test)]
mod backlog_tests {
    use super::*;
    use crate::rng::Rng;

    const RING_BYTES: u32 = 4 << 20;

    /// Pressure when the reader comes after this many ticks of a busy CPU, with stacks of this size.
    fn pressure(ticks: u32, stack_bytes: u32) -> Pressure {
        let fits = RING_BYTES / (stack_bytes + 400);
        Pressure { fill_per_mille: ticks.min(fits) * 1000 / fits, lost: ticks > fits }
    }

    #[test]
    fn stacks_shrink_before_samples_are_lost() {
        // The reader is increasingly delayed, as more threads are ready.
        let (mut backlog, mut lost) = (Backlog::default(), 0);
        for ticks in 20..850 {
            let stack_bytes = backlog.limit(60 << 10);
            let now = pressure(ticks, stack_bytes);
            lost += u32::from(now.lost);
            backlog.read(now, stack_bytes);
        }
        assert_eq!(lost, 0);
        assert_eq!(backlog.limit(60 << 10), 4 << 10);
    }

    #[test]
    fn a_suddenly_delayed_reader_loses_samples_once() {
        let (mut backlog, mut lost) = (Backlog::default(), 0);
        for _ in 0..1_000 {
            let stack_bytes = backlog.limit(60 << 10);
            let now = pressure(400, stack_bytes);
            lost += u32::from(now.lost);
            backlog.read(now, stack_bytes);
        }
        assert!(lost <= 2, "{lost} reads");
    }

    #[test]
    fn the_full_size_is_restored_with_room_and_retries_back_off() {
        let mut backlog = Backlog::default();
        let mut rng = Rng::new(3);
        let (mut changes, mut whole) = (0, 0);
        for round in 0..40_000u32 {
            let stack_bytes = backlog.limit(32 << 10);
            // A storm at the beginning, and one later.
            let storms = round < 10 || (20_000..20_010).contains(&round);
            let ticks = if storms { 80 } else { rng.within(0, 12) as u32 };
            changes += u32::from(backlog.read(pressure(ticks, stack_bytes), stack_bytes));
            whole += u32::from(backlog.limit(u32::MAX) == u32::MAX);
        }
        assert!(changes < 20, "{changes}");
        assert!(whole > 35_000, "{whole}");
    }

    #[test]
    fn the_minimum_size_does_not_shrink() {
        let mut backlog = Backlog::default();
        let full = Pressure { fill_per_mille: 1000, lost: true };
        assert!(!backlog.read(full, 4 << 10));
        assert!(Backlog::is_late(full) && !Backlog::is_late(Pressure::default()));
    }
}
