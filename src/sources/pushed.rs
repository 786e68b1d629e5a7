//! Samples that the kernel takes and delivers in batches, without a stop.
//!
//! The counterpart of [`Target`](super::Target): a [`PushedSource`] returns [`TimedEvent`]s, which carry their times
//! since they arrive late. What is done with them is up to `sampler::pushed`.

use super::{Capture, ExitStatus, Fault, Observed, ThreadId, ThreadStatus};
use crate::addr::Avma;

/// Why CPU time is lost that was used in the kernel, if only user mode may be sampled.
pub const IN_KERNEL: &str = "in the kernel, which may not be sampled";

/// Why samples are lost that the kernel did not take since it throttled their event.
pub const THROTTLED: &str = "throttled by kernel.perf_event_max_sample_rate";

/// Why CPU time after the last sample is lost.
pub const NOT_SAMPLED_AGAIN: &str = "not sampled again before the end";

/// An event of a thread or process, and its time.
#[derive(Debug)]
pub struct TimedEvent {
    /// Nanoseconds of the engine's clock.
    pub at_ns: u64,
    /// Its process.
    pub process: u32,
    /// Its thread.
    pub thread: ThreadId,
    /// The event.
    pub event: SourceEvent,
}

/// What a source reports, in order.
#[derive(Debug)]
pub enum SourceEvent {
    /// First event of this thread.
    ThreadStarted {
        /// Stack pointer at its first instruction, where that is known.
        stack_top: Option<Avma>,
        /// Its CPU time so far.
        status: ThreadStatus,
        /// It ran already when the recording began.
        preexisting: bool,
        /// When it started, where the source saw that; nanoseconds of the source's clock.
        started_ns: Option<u64>,
    },
    /// Its registers and stack bytes; `status` in it is what it had used by then.
    Sample(Box<Capture>),
    /// A thread waits here; [`SourceEvent::Wait`] without a stack follows at the end, with the length.
    WaitStarted(Box<Capture>),
    /// A thread waited, or was ready without a CPU, until now.
    Wait {
        /// Nanoseconds.
        ns: u64,
        /// Where; `None`: where its last [`SourceEvent::WaitStarted`] was.
        stack: Option<Box<Capture>>,
    },
    /// A thread waited; its stack, or how much of this time it waited, is unknown.
    WaitLost {
        /// Nanoseconds.
        ns: u64,
        /// Why not.
        reason: &'static str,
    },
    /// The thread allocated memory, and that was sampled: where.
    Allocation(SampledAllocation, Box<Capture>),
    /// Sampled memory was freed.
    Free(SampledFree),
    /// The last [`SourceEvent::Free`] of this address is taken back: `realloc` failed, and the memory is still there.
    Restore {
        /// The block.
        pointer: u64,
    },
    /// A sample that could not be taken, for this reason.
    Missed(ThreadStatus, &'static str),
    /// It ended, or the recording did.
    ThreadEnded {
        /// All that it used, where that is known, nanoseconds.
        cpu_ns: Option<u64>,
        /// Why the rest of it is lost.
        reason: &'static str,
        /// When it exited, if the source saw that: it is reported after its last sample.
        exited_ns: Option<u64>,
    },
    /// First event of this process.
    ProcessStarted {
        /// The name that it has now, under which its stacks are shown.
        name: String,
    },
    /// The thread, which has been reported, has this name from now on.
    ThreadNamed {
        /// Its name.
        name: String,
    },
    /// The process runs another program; all other threads have ended.
    Exec {
        /// The name that its stacks are shown under from now on; `None`: as before.
        name: Option<String>,
    },
    /// The process has ended; others may continue.
    ProcessEnded {
        /// When its last thread exited, if the source saw that.
        exited_ns: Option<u64>,
    },
    /// The images of the process changed: they are read now.
    ImagesChanged,
    /// The images of the process may have changed: they are read again when that is cheap.
    ImagesMayHaveChanged,
    /// The kernel dropped this many samples, for this reason.
    Dropped(u64, &'static str),
    /// Late ticks. A stopping source drops them; a pushing source keeps those that carry CPU time.
    Late(u64),
    /// The process that the recording is of has ended, and the recording does.
    Exited(ExitStatus),
}

/// A sampled allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampledAllocation {
    /// The block.
    pub pointer: u64,
    /// Bytes that the program asked for.
    pub bytes: u64,
    /// Its free will not be reported.
    pub untracked: bool,
}

/// A free of sampled memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampledFree {
    /// The block.
    pub pointer: u64,
    /// The process was forked: the block may be a copy of its parent's.
    pub may_be_inherited: bool,
}

/// What a source of allocations could not report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllocationLosses {
    /// Sampled allocations that did not fit, by size: how many, and their bytes together.
    pub allocations: Vec<(u64, u64)>,
    /// Frees that did not fit: memory that is called in use, and is not.
    pub frees: u64,
    /// How many of the lost allocations threads lost while their process prepared for its first record.
    pub early: u64,
    /// How many of the lost allocations and frees were lost since the file system was full.
    pub no_space: u64,
    /// Records that were not understood.
    pub malformed: u64,
    /// Programs that the allocations could have been reported of.
    pub programs: u64,
    /// Processes that had no memory to report by, by reason.
    pub refused: Vec<(&'static str, u64)>,
    /// Records of samples or frees that did not fit, where it is not known which.
    pub records: u64,
    /// Why the source stopped before the recording ended, or what goes on after it.
    pub ended_early: Option<String>,
    /// The command runs on: the recording ended before it.
    pub still_runs: bool,
}

impl AllocationLosses {
    /// Sampled allocations that did not fit. A program can write any numbers into its ring.
    #[must_use]
    pub fn allocation_count(&self) -> u64 {
        self.allocations.iter().fold(0, |sum, (count, _)| sum.saturating_add(*count))
    }
}

/// How much of the copied stack a walk used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackUse {
    /// Bytes above the stack pointer that the walk read.
    pub bytes: usize,
    /// It needed bytes above the copy.
    pub truncated: bool,
    /// It needed bytes below the stack pointer, which were not copied.
    pub needs_red_zone: bool,
    /// It needed bytes above the copy and outside of the stack: no size is enough.
    pub unbounded: bool,
}

/// Processes whose samples are pushed. As [`Observed`] it is the main process, or a placeholder for several.
pub trait PushedSource: Observed {
    /// A process that had events; `None` if it had none.
    fn observed(&mut self, process: u32) -> Option<&mut dyn Observed>;

    /// Appends the events that have arrived; waits for some, until `until_ns` of the engine's clock at the latest.
    /// Events of one thread are in order. Returns the time before which all events have arrived, or `None` at the
    /// end.
    ///
    /// # Errors
    /// [`Fault::Gone`] when the process has ended, others when the source fails.
    fn next_batch(&mut self, until_ns: u64, into: &mut Vec<TimedEvent>) -> Result<Option<u64>, Fault>;

    /// Makes room for new samples. Called before each event of a batch is processed, which may take long.
    fn drain_rings(&mut self) {}

    /// Later queries about images and names refer to this time.
    fn set_time(&mut self, at_ns: u64);

    /// Stops sampling. [`PushedSource::next_batch`] returns the samples that were taken, then `None`.
    fn end(&mut self) {}

    /// After [`PushedSource::end`]: how the process ended, if it does before `until_ns` of the engine's clock. Waits
    /// for that.
    fn exit_before(&mut self, _until_ns: u64) -> Option<ExitStatus> {
        None
    }

    /// A sample was walked: takes its buffers back.
    fn walked(&mut self, _capture: Box<Capture>, _needed: StackUse) {}

    /// Whether samples can have [`Capture::prefetched`].
    fn prefetches(&self) -> bool {
        false
    }

    /// Adds these ranges of memory to each later sample of a thread: the address of the first byte of each,
    /// ascending.
    fn prefetch(&mut self, _thread: ThreadId, _ranges: &[u64]) {}

    /// The stack of a wait was walked, or was not needed: takes its buffers back.
    fn wait_walked(&mut self, _capture: Box<Capture>, _needed: Option<StackUse>) {}

    /// With `-a`: the idle share of the CPUs' time.
    fn machine_idle(&self) -> Option<f64> {
        None
    }

    /// Bytes of the rings, and the most bytes of stacks of one batch.
    fn memory_bytes(&self) -> (u64, u64) {
        (0, 0)
    }

    /// Of a source of allocations: bytes per sample on average.
    fn allocation_rate(&self) -> Option<u64> {
        None
    }

    /// Of a source of allocations: what could not be reported.
    fn allocation_losses(&self) -> AllocationLosses {
        AllocationLosses::default()
    }

    /// CPU time of the processes while they were recorded, nanoseconds, if the system reports it separately from the
    /// samples.
    fn target_cpu_ns(&self) -> Option<u64> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_that_a_program_wrote_do_not_overflow() {
        let losses = AllocationLosses { allocations: vec![(u64::MAX, 1), (2, 1)], ..Default::default() };
        assert_eq!(losses.allocation_count(), u64::MAX);
    }
}
