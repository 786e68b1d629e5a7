//! The stack stage: how many bytes of each stack the kernel copies, and how copies are completed.
//!
//! Input: samples as in their records, and the stack use of their walks. Output: samples with the red zone, the
//! stack tail and the prefetched ranges of the same moment, and the options for the next samples. Missing pages
//! are faulted in for later copies.

use std::io;
use std::os::fd::RawFd;

use hashbrown::HashMap;
use libc::pid_t;

use super::super::events::options::{EventOptions, STACK_BYTES_MAX, SwitchOptions};
use super::super::ring::pressure::Pressure;
use super::super::ring::record::{Sample, SampleId};
use super::backlog::Backlog;
use super::memory::TargetMemory;
use super::missing_pages::MissingPages;
use super::prefetch::BpfPrefetch;
use super::read_ahead::ReadAhead;
use super::red_zone::{self, RedZone};
use super::stack_size::EventStackSize;
use super::stack_tail::StackTail;
use crate::addr::{Avma, CodeAddress};
use crate::sources::Capture;
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
pub(in crate::sources::linux::perf) struct Stacks {
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
    pub(in crate::sources::linux::perf) fn new(kernel_frames: bool, size: EventStackSize) -> Stacks {
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
    pub(in crate::sources::linux::perf) fn stack_bytes(&self) -> u32 {
        self.sizes.stack.bytes()
    }

    /// Copies a sample into a buffer.
    pub(in crate::sources::linux::perf) fn copy(
        &mut self,
        id: SampleId,
        sample: &Sample<'_>,
        capture: &mut Capture,
    ) {
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
    pub(in crate::sources::linux::perf) fn read(&mut self) -> usize {
        let ProgramCopies { tail, prefetch, red_zone } = &mut self.copies;
        let freed = tail.as_mut().map_or(0, StackTail::read);
        self.ahead.add_tails(tail.as_ref().map_or(0, StackTail::read_bytes));
        freed + prefetch.as_mut().map_or(0, BpfPrefetch::read) + red_zone.as_mut().map_or(0, RedZone::read)
    }

    /// Whether rings this full are read while a batch is walked.
    pub(in crate::sources::linux::perf) fn reads_ahead(&self, fill_per_mille: u32) -> bool {
        self.ahead.reads(fill_per_mille)
    }

    /// Fill level of the rings, or of the samples read ahead, whichever is higher.
    pub(in crate::sources::linux::perf) fn pressure(&self, rings: Pressure) -> Pressure {
        rings.with(self.ahead.stacks_per_mille())
    }

    /// Begins a batch: all samples read so far are handed over.
    pub(in crate::sources::linux::perf) fn begin_batch(&mut self) {
        self.ahead.clear();
    }

    /// Completes a sample of a process that runs this program.
    pub(in crate::sources::linux::perf) fn complete(
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
    pub(in crate::sources::linux::perf) fn complete_at_switch(
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
    pub(in crate::sources::linux::perf) fn forget_process(&mut self, pid: pid_t) {
        self.missing_pages.remove(&pid);
    }

    /// Prepares the programs needed by `options`, as many as possible; returns the options without the others.
    /// `may_copy`: events may have a program that copies. `load` loads one into the kernel.
    pub(in crate::sources::linux::perf) fn prepare(
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
    pub(in crate::sources::linux::perf) fn reopened(&mut self, since_ns: u64) {
        self.sizes.number = self.sizes.number.wrapping_add(1);
        self.sizes.since_ns = since_ns;
    }

    /// Notes that events could not be reopened and keep these options.
    pub(in crate::sources::linux::perf) fn keep(&mut self, options: EventOptions) {
        self.sizes.stack.pin(options.stack_bytes);
        self.sizes.backlog.stays();
        if let Some(SwitchOptions { stack_bytes, .. }) = options.switches {
            self.sizes.at_switch.pin(stack_bytes);
        }
    }

    /// Evaluates the fill level of the rings. Returns the options that there is room for, if they changed.
    pub(in crate::sources::linux::perf) fn relieve(
        &mut self,
        pressure: Pressure,
        options: EventOptions,
    ) -> Option<EventOptions> {
        if !self.sizes.backlog.read(pressure, options.stack_bytes) {
            return None;
        }
        let stack_bytes = self.sizes.backlog.limit(self.sizes.stack.bytes());
        (stack_bytes != options.stack_bytes).then_some(EventOptions { stack_bytes, ..options })
    }

    /// Records a walk's use of a stack that was copied with the size of this number. Returns the options for the
    /// next samples, if they changed.
    pub(in crate::sources::linux::perf) fn walked(
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
        let red_zone = options.red_zone || needed.needs_red_zone && red_zone::HERE && may_copy;
        let next = EventOptions { stack_bytes, red_zone, ..options };
        (next != options).then_some(next)
    }

    /// Records a walk's use of a stack at a context switch, like [`Stacks::walked`].
    pub(in crate::sources::linux::perf) fn wait_walked(
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
    pub(in crate::sources::linux::perf) fn prefetches(&self) -> bool {
        self.copies.prefetch.is_some()
    }

    /// Whether ranges of stacks are prefetched.
    pub(in crate::sources::linux::perf) fn has_prefetched(&self) -> bool {
        self.copies.prefetch.as_ref().is_some_and(BpfPrefetch::has_lists)
    }

    /// Sets the ranges to prefetch with a thread's samples.
    pub(in crate::sources::linux::perf) fn prefetch(&mut self, tid: pid_t, ranges: &[u64]) {
        if let Some(prefetch) = &mut self.copies.prefetch {
            prefetch.set(tid, ranges);
        }
    }

    /// Records a walk of a thread's sample, of which the record held `usual_bytes` and the copy
    /// `copied_bytes`.
    pub(in crate::sources::linux::perf) fn note_tail(
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
    pub(in crate::sources::linux::perf) fn give_back(&mut self, capture: &mut Capture) {
        if let Some(tail) = &mut self.copies.tail {
            tail.give_back(capture);
        }
    }

    /// Drops an exited thread.
    pub(in crate::sources::linux::perf) fn forget_thread(&mut self, tid: pid_t) {
        if let Some(tail) = &mut self.copies.tail {
            tail.forget(tid);
        }
    }

    /// A descriptor that is readable while stacks of new threads wait; `None` while others have tails, too.
    pub(in crate::sources::linux::perf) fn new_stacks(&self) -> Option<RawFd> {
        let tail = self.copies.tail.as_ref().filter(|tail| !tail.is_needed_for_long())?;
        Some(tail.descriptor())
    }

    /// Whether a program copies the tails of all stacks of some thread.
    pub(in crate::sources::linux::perf) fn copies_tails(&self) -> bool {
        self.copies.tail.as_ref().is_some_and(StackTail::is_needed_for_long)
    }

    /// Size of the ring of tails, bytes.
    pub(in crate::sources::linux::perf) fn ring_bytes(&self) -> u64 {
        self.copies.tail.as_ref().map_or(0, StackTail::ring_bytes)
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
