//! The stack stage: how many bytes of each stack the kernel copies, and what completes a copy.
//!
//! Input: samples as their records hold them, and what their walks needed. Output: samples with the red zone, the
//! stack tail and the prefetched ranges of the same moment, and the options for the next samples. Missing pages are
//! brought in for later copies.

use std::io;

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
use super::stack_tail::{StackTail, TAIL_BYTES};
use crate::addr::{Avma, CodeAddress};
use crate::sources::Capture;
use crate::sources::pushed::StackUse;

/// What programs in the kernel copy beside the records.
#[derive(Debug, Default)]
struct ProgramCopies {
    tail: Option<StackTail>,
    prefetch: Option<BpfPrefetch>,
    red_zone: Option<RedZone>,
    /// The kernel takes no program that reads ranges of stacks.
    prefetch_refused: bool,
}

/// The size by which stacks are copied.
#[derive(Debug)]
struct Sizes {
    stack: EventStackSize,
    /// Of the stacks at which threads leave their CPUs.
    at_switch: EventStackSize,
    /// What rings have room for.
    backlog: Backlog,
    /// The number of sizes so far, and since when stacks are copied by this one (monotonic clock).
    number: u32,
    since_ns: u64,
}

/// The state of the stage.
#[derive(Debug)]
pub(in crate::sources::linux::perf) struct Stacks {
    /// Frames in the kernel are recorded.
    kernel_frames: bool,
    copies: ProgramCopies,
    sizes: Sizes,
    /// What was read of rings and is not handed over yet.
    ahead: ReadAhead,
    /// Of each process: the program that it runs, and where its stacks end.
    missing_pages: HashMap<pid_t, (u64, MissingPages)>,
}

impl Stacks {
    /// With stacks of this size at first.
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

    /// Fills a buffer with a sample.
    pub(in crate::sources::linux::perf) fn copy(
        &mut self,
        id: SampleId,
        sample: &Sample<'_>,
        capture: &mut Capture,
    ) {
        capture.reset();
        capture.cpu = Some(id.cpu);
        // Rings still hold what was copied by the size before.
        capture.size_number = self.sizes.number.wrapping_sub(u32::from(id.time_ns < self.sizes.since_ns));
        capture.stack.extend_from_slice(sample.stack);
        let has_tail = self.copies.tail.is_some() && sample.stack.len() >= STACK_BYTES_MAX as usize;
        self.ahead.add(sample.stack.len(), if has_tail { TAIL_BYTES as usize } else { 0 });
        // All but the innermost are return addresses, looked up at the call. If a program called an emulated entry
        // point, the kernel counts that among its own.
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

    /// Reads what programs copied so far: after the rings of samples, so that all of theirs is there. The bytes that are
    /// freed of buffers for it.
    pub(in crate::sources::linux::perf) fn read(&mut self) -> usize {
        let ProgramCopies { tail, prefetch, red_zone, .. } = &mut self.copies;
        tail.as_mut().map_or(0, StackTail::read)
            + prefetch.as_mut().map_or(0, BpfPrefetch::read)
            + red_zone.as_mut().map_or(0, RedZone::read)
    }

    /// Whether rings that are so full are read while a batch is walked.
    pub(in crate::sources::linux::perf) fn reads_ahead(&self, fill_per_mille: u32) -> bool {
        self.ahead.reads(fill_per_mille)
    }

    /// How full rings were, or what was read of them.
    pub(in crate::sources::linux::perf) fn pressure(&self, rings: Pressure) -> Pressure {
        rings.with(self.ahead.stacks_per_mille())
    }

    /// All that was read is handed over.
    pub(in crate::sources::linux::perf) fn begin_batch(&mut self) {
        self.ahead.clear();
    }

    /// Completes a sample, of a process that runs this program.
    pub(in crate::sources::linux::perf) fn complete(
        &mut self,
        id: SampleId,
        program: u64,
        capture: &mut Capture,
        memory: &dyn TargetMemory,
    ) {
        let mut most_bytes = STACK_BYTES_MAX;
        if let Some(tail) = &mut self.copies.tail {
            tail.complete(id, capture);
            most_bytes += TAIL_BYTES;
        }
        if let Some(prefetch) = &mut self.copies.prefetch {
            prefetch.complete(id, capture);
        }
        self.bring_in(id.pid, id.tid, program, capture, most_bytes, memory);
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
            self.bring_in(pid, tid, program, capture, STACK_BYTES_MAX, memory);
        }
        if !self.kernel_frames {
            capture.kernel.clear();
        }
    }

    /// What the copy of the stack of this thread lacked is there for the next one.
    fn bring_in(
        &mut self,
        pid: pid_t,
        tid: pid_t,
        program: u64,
        capture: &Capture,
        most_bytes: u32,
        memory: &dyn TargetMemory,
    ) {
        if capture.stack.is_empty() {
            return;
        }
        let (of_program, pages) = self.missing_pages.entry(pid).or_default();
        if *of_program != program {
            // Nothing is known of the memory of another program.
            (*of_program, *pages) = (program, MissingPages::default());
        }
        pages.bring_in(tid, capture, most_bytes, memory);
    }

    /// A process is no longer sampled.
    pub(in crate::sources::linux::perf) fn forget_process(&mut self, pid: pid_t) {
        self.missing_pages.remove(&pid);
    }

    /// Prepares the programs that `options` need, as many as can be had: the options without the others. `may_copy`:
    /// events may have a program that copies. `load` has the kernel take one.
    pub(in crate::sources::linux::perf) fn prepare(
        &mut self,
        mut options: EventOptions,
        may_copy: bool,
        mut load: impl FnMut(&[u64]) -> io::Result<()>,
    ) -> EventOptions {
        let is_large = options.needs_stack_tail();
        let copies = &mut self.copies;
        if is_large && may_copy && copies.tail.is_none() {
            copies.tail = StackTail::new().ok();
        }
        if options.red_zone && may_copy && copies.red_zone.is_none() {
            copies.red_zone = RedZone::new().ok();
        }
        if options.prefetch && may_copy && copies.prefetch.is_none() {
            copies.prefetch = BpfPrefetch::new().ok();
        }
        // First what uses the program's argument; last what takes longest, since copies are found by their times.
        let red_zone: Vec<u64> =
            copies.red_zone.iter().filter(|_| options.red_zone).flat_map(RedZone::program).collect();
        let prefetch: Vec<u64> = copies.prefetch.iter().flat_map(BpfPrefetch::program).collect();
        let tail: Vec<u64> = copies.tail.iter().filter(|_| is_large).flat_map(StackTail::program).collect();
        if load(&[&red_zone[..], &prefetch, &tail].concat()).is_err() {
            // An older kernel may take the rest.
            copies.prefetch = None;
            if prefetch.is_empty() || load(&[&red_zone[..], &tail].concat()).is_err() {
                (copies.tail, copies.red_zone) = (None, None);
            }
        }
        options.prefetch = copies.prefetch.is_some();
        if is_large && copies.tail.is_none() {
            self.sizes.stack.limit_to_record();
            options.stack_bytes = options.record_stack_bytes();
        }
        options
    }

    /// Events sample by other options since this time (monotonic clock).
    pub(in crate::sources::linux::perf) fn reopened(&mut self, since_ns: u64) {
        self.sizes.number = self.sizes.number.wrapping_add(1);
        self.sizes.since_ns = since_ns;
    }

    /// What the events before these wrote was read.
    pub(in crate::sources::linux::perf) fn drained(&mut self, options: EventOptions) {
        if !options.needs_stack_tail() {
            self.copies.tail = None;
        }
    }

    /// Events could not be reopened: they keep these options.
    pub(in crate::sources::linux::perf) fn keep(&mut self, options: EventOptions) {
        self.sizes.stack.pin(options.stack_bytes);
        self.sizes.backlog.stays();
        if let Some(SwitchOptions { stack_bytes, .. }) = options.switches {
            self.sizes.at_switch.pin(stack_bytes);
        }
    }

    /// Reads how full the rings were. Returns the options that there is room for, if they changed.
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

    /// Reads what a walk needed of a stack, which was copied with the size of this number. Returns the options for
    /// the next samples, if they changed.
    pub(in crate::sources::linux::perf) fn walked(
        &mut self,
        size_number: u32,
        needed: StackUse,
        options: EventOptions,
        may_copy: bool,
    ) -> Option<EventOptions> {
        // Others say nothing of what this size is good for.
        let is_current = size_number == self.sizes.number;
        let stack_bytes = is_current.then(|| self.sizes.stack.walked(needed)).flatten();
        let stack_bytes = stack_bytes.map(|bytes| self.sizes.backlog.limit(bytes));
        let stack_bytes = stack_bytes.unwrap_or(options.stack_bytes);
        let red_zone = options.red_zone || needed.needs_red_zone && red_zone::HERE && may_copy;
        let next = EventOptions { stack_bytes, red_zone, ..options };
        (next != options).then_some(next)
    }

    /// Reads what a walk needed of a stack at a context switch, like [`Stacks::walked`].
    pub(in crate::sources::linux::perf) fn wait_walked(
        &mut self,
        size_number: u32,
        needed: StackUse,
        options: EventOptions,
    ) -> Option<EventOptions> {
        let switches = options.switches.filter(|_| size_number == self.sizes.number)?;
        let stack_bytes = self.sizes.at_switch.walked(needed)?;
        Some(EventOptions { switches: Some(SwitchOptions { stack_bytes, ..switches }), ..options })
    }

    /// Whether ranges of stacks can be read.
    pub(in crate::sources::linux::perf) fn may_prefetch(&self) -> bool {
        !self.copies.prefetch_refused
    }

    /// Whether ranges of stacks are read.
    pub(in crate::sources::linux::perf) fn prefetches(&self) -> bool {
        self.copies.prefetch.is_some()
    }

    /// Events were opened that should read ranges of stacks: whether they do.
    pub(in crate::sources::linux::perf) fn note_prefetch(&mut self) {
        self.copies.prefetch_refused = self.copies.prefetch.is_none();
    }

    /// Has the samples of a thread hold these ranges from now on.
    pub(in crate::sources::linux::perf) fn prefetch(&mut self, tid: pid_t, ranges: &[u64]) {
        if let Some(prefetch) = &mut self.copies.prefetch {
            prefetch.set(tid, ranges);
        }
    }

    /// Whether a program copies the upper parts of large stacks.
    pub(in crate::sources::linux::perf) fn copies_tails(&self) -> bool {
        self.copies.tail.is_some()
    }

    /// Bytes of the ring that such a program writes to.
    pub(in crate::sources::linux::perf) fn ring_bytes(&self) -> u64 {
        self.copies.tail.as_ref().map_or(0, StackTail::ring_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What rings still hold from before says nothing of a new size.
    #[test]
    fn each_stack_says_by_which_size_it_was_copied() {
        let mut stacks = Stacks::new(true, EventStackSize::new());
        for since_ns in [10, 50, 100] {
            stacks.reopened(since_ns);
        }
        let numbers = [50, 99, 100, 150].map(|time_ns| {
            let mut capture = Capture::with_capacity(0);
            stacks.copy(SampleId { time_ns, ..SampleId::default() }, &Sample::EMPTY, &mut capture);
            capture.size_number
        });
        assert_eq!(numbers, [2, 2, 3, 3]);
    }
}
