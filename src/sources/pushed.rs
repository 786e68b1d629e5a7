//! Samples that arrive in batches: of the kernel without a stop, of the heap shim, of breakpoints at an allocator.
//!
//! The counterpart of [`Target`](super::Target): a [`PushedSource`] returns [`TimedEvent`]s, with their times
//! because they arrive late. `sampler::pushed` processes them.

use super::{Capture, ExitStatus, Fault, Observed, ThreadId, ThreadStatus};
use crate::addr::Avma;

/// Reason for lost CPU time: it was used in the kernel, and only user mode may be sampled.
pub const IN_KERNEL: &str = "in the kernel, which may not be sampled";

/// Reason for lost samples: the kernel throttled their event.
pub const THROTTLED: &str = "throttled by kernel.perf_event_max_sample_rate";

/// Reason for lost CPU time: it was used after the last sample.
pub const NOT_SAMPLED_AGAIN: &str = "not sampled again before the end";

/// An event of a thread or process, and its time.
#[derive(Debug)]
pub struct TimedEvent {
    /// Nanoseconds of the sampler's clock.
    pub at_ns: u64,
    /// Its process.
    pub process: u32,
    /// Its thread.
    pub thread: ThreadId,
    /// The event.
    pub event: SourceEvent,
}

/// Event of a pushed source, in order.
#[derive(Debug)]
pub enum SourceEvent {
    /// First event of this thread.
    ThreadStarted {
        /// Stack pointer at its first instruction, where that is known.
        stack_top: Option<Avma>,
        /// CPU time used so far.
        status: ThreadStatus,
        /// It was running before the recording began.
        preexisting: bool,
        /// Start time, if the source saw it; nanoseconds of the sampler's clock.
        started_ns: Option<u64>,
    },
    /// Registers and stack bytes; its `status` has the CPU time used by then.
    Sample(Box<Capture>),
    /// A thread began to wait here; a [`SourceEvent::Wait`] without a stack follows at the end, with the
    /// duration.
    WaitStarted(Box<Capture>),
    /// A thread waited, or was ready without a CPU, until now.
    Wait {
        /// Nanoseconds.
        ns: u64,
        /// Stack of the wait; `None`: that of its last [`SourceEvent::WaitStarted`].
        stack: Option<Box<Capture>>,
    },
    /// A thread waited, but its stack or the waiting part of this time is unknown.
    WaitLost {
        /// Nanoseconds.
        ns: u64,
        /// The cause.
        reason: &'static str,
    },
    /// A sampled allocation of the thread, and its stack.
    Allocation(SampledAllocation, Box<Capture>),
    /// Sampled memory was freed.
    Free(SampledFree),
    /// A part of sampled memory was freed.
    Shrink {
        /// The block.
        block: u64,
        /// Freed bytes.
        bytes: u64,
    },
    /// The last [`SourceEvent::Free`] of this address is revoked: `realloc` failed, and the memory still
    /// exists.
    Restore {
        /// The block.
        block: u64,
    },
    /// A sample that could not be taken, and the cause.
    Missed(ThreadStatus, &'static str),
    /// The thread exited, or the recording ended.
    ThreadEnded {
        /// Its total CPU time, if known, nanoseconds.
        cpu_ns: Option<u64>,
        /// Why the remaining CPU time is lost.
        reason: &'static str,
        /// Exit time, if the source saw it: it is reported after the last sample.
        exited_ns: Option<u64>,
    },
    /// First event of this process.
    ProcessStarted {
        /// Its current name, under which its stacks are shown.
        name: String,
    },
    /// A thread that was already reported changed its name.
    ThreadNamed {
        /// Its name.
        name: String,
    },
    /// The process executed a new program; all its other threads have ended.
    Exec {
        /// New name to show its stacks under; `None`: unchanged.
        name: Option<String>,
    },
    /// The process has ended; others may continue.
    ProcessEnded {
        /// Exit time of its last thread, if the source saw it.
        exited_ns: Option<u64>,
    },
    /// The images of the process changed: read them now.
    ImagesChanged,
    /// The images of the process may have changed: read them again when that is cheap.
    ImagesMayHaveChanged,
    /// The kernel dropped this many samples, for this cause.
    Dropped(u64, &'static str),
    /// Late ticks. A stopping source drops them; a pushing source keeps those that carry CPU time.
    Late(u64),
    /// The recorded process has exited, and the recording ends.
    Exited(ExitStatus),
}

/// A sampled allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampledAllocation {
    /// The block.
    pub block: u64,
    /// Requested bytes.
    pub bytes: u64,
    /// Its free will not be reported.
    pub untracked: bool,
}

/// A free of sampled memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampledFree {
    /// The block.
    pub block: u64,
    /// The process was forked: the block may be a copy of its parent's.
    pub may_be_inherited: bool,
}

/// Losses of a source of allocations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllocationLosses {
    /// Sampled allocations that did not fit, by size: count and bytes.
    pub allocations: Vec<(u64, u64)>,
    /// Frees that did not fit: freed memory that is reported as in use.
    pub frees: u64,
    /// Allocations that threads lost while their process prepared for its first record.
    pub lost_before_ring: u64,
    /// Allocations and frees of these that were lost after the file system was full.
    pub no_space: u64,
    /// Rings that could not be read further.
    pub malformed_rings: u64,
    /// Programs that loaded the shim.
    pub programs: u64,
    /// Processes without a ring, by reason.
    pub refused: Vec<(&'static str, u64)>,
    /// Processes of the command that were seen to run without the shim, by reason: at least as many.
    pub without_shim: Vec<(&'static str, u64)>,
    /// Libraries whose calls of the allocator are not seen, and the peak memory of the largest process that loaded one, if
    /// that is known.
    pub unseen_libraries: (u64, Option<u64>),
    /// Allocators of the processes whose calls the source does not see.
    pub unseen: Vec<UnseenAllocator>,
    /// Memory of no file that the main process had resident at most since the recording began, as far as it was seen,
    /// bytes.
    pub resident_bytes: Option<u64>,
    /// Why the source stopped before the recording ended, or what goes on after it.
    pub ended_early: Option<String>,
    /// The command runs on: the recording ended before it.
    pub still_runs: bool,
}

impl AllocationLosses {
    /// Number of sampled allocations that did not fit. A program can write any numbers into its ring.
    #[must_use]
    pub fn allocation_count(&self) -> u64 {
        self.allocations.iter().fold(0, |sum, (count, _)| sum.saturating_add(*count))
    }
}

/// Functions of an allocator whose calls a source does not see, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnseenAllocator {
    /// The functions and their file: `malloc of the program itself`.
    pub functions: String,
    /// Why, or the next step.
    pub next: String,
}

/// Stack bytes that a walk used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackUse {
    /// Bytes above the stack pointer that it read.
    pub bytes: usize,
    /// It needed bytes above the copy.
    pub truncated: bool,
    /// It did, even if prefetching may bring them next time.
    pub missed: bool,
    /// It needed bytes below the stack pointer, which were not copied.
    pub needs_red_zone: bool,
    /// It needed bytes above the copy and outside of the stack: no size is enough.
    pub unbounded: bool,
    /// Bytes above the stack pointer that it read besides the ranges prefetched with it, if known.
    pub besides_ranges: Option<usize>,
}

/// Processes with pushed samples. As [`Observed`] it is the main process, or a placeholder for several.
pub trait PushedSource: Observed {
    /// Returns a process; `None` if it had no events.
    fn observed(&mut self, process: u32) -> Option<&mut dyn Observed>;

    /// Appends the events that have arrived; waits for some, until `until_ns` of the sampler's clock at the
    /// latest. Events of one thread are in order. Returns the watermark (all events before it have arrived),
    /// or `None` at the end.
    ///
    /// # Errors
    /// [`Fault::Gone`] when the process has exited, others when the source fails.
    fn next_batch(&mut self, until_ns: u64, into: &mut Vec<TimedEvent>) -> Result<Option<u64>, Fault>;

    /// Makes room for new samples. Called before each event of a batch is processed, which may take long.
    fn drain_rings(&mut self) {}

    /// Later queries about images and names refer to this time.
    fn set_time(&mut self, at_ns: u64);

    /// Stops sampling. [`PushedSource::next_batch`] returns the samples that were taken, then `None`.
    fn end(&mut self) {}

    /// After [`PushedSource::end`]: the exit status of the process, if it exits before `until_ns` of the
    /// sampler's clock. Waits for that.
    fn exit_before(&mut self, _until_ns: u64) -> Option<ExitStatus> {
        None
    }

    /// Takes back the buffers of a thread's sample after its walk.
    fn walked(&mut self, _thread: ThreadId, _capture: Box<Capture>, _needed: StackUse) {}

    /// Whether samples can have [`Capture::prefetched`].
    fn prefetches(&self) -> bool {
        false
    }

    /// Adds these ranges of memory to each later sample of a thread: the address of the first byte of each,
    /// ascending.
    fn prefetch(&mut self, _thread: ThreadId, _ranges: &[u64]) {}

    /// Takes back the buffers of a wait, whether its stack was walked or not needed.
    fn wait_walked(&mut self, _capture: Box<Capture>, _needed: Option<StackUse>) {}

    /// With `-a`: the idle share of the CPUs' time.
    fn machine_idle(&self) -> Option<f64> {
        None
    }

    /// Bytes of the rings, and the most stack bytes of one batch.
    fn memory_bytes(&self) -> (u64, u64) {
        (0, 0)
    }

    /// For a source of allocations: bytes per sample on average.
    fn allocation_rate(&self) -> Option<u64> {
        None
    }

    /// For a source of allocations: its losses.
    fn allocation_losses(&self) -> AllocationLosses {
        AllocationLosses::default()
    }

    /// CPU time of the processes during the recording, nanoseconds, if the system reports it separately from
    /// the samples.
    fn target_cpu_ns(&self) -> Option<u64> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_counts_do_not_overflow() {
        let losses = AllocationLosses { allocations: vec![(u64::MAX, 1), (2, 1)], ..Default::default() };
        assert_eq!(losses.allocation_count(), u64::MAX);
    }
}
