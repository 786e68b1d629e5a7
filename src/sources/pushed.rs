//! Samples that somebody else takes: what a kernel tells of a process, in batches that come late.
//!
//! The counterpart of [`Target`](super::Target) for sources that nobody has to stop: [`TimedEvent`]s
//! with their times, and [`PushedSource`], which gives them out.

use super::{Capture, ExitStatus, Fault, Observed, ThreadId, ThreadStatus};
use crate::addr::Avma;

/// Why time is lost that was used in the kernel where only user mode may be sampled.
pub const IN_KERNEL: &str = "in the kernel, which may not be sampled";

/// Why time is lost that was used after the last sample.
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
    /// A thread was seen first.
    ThreadStarted {
        /// Stack pointer at its first instruction, where that is known.
        stack_top: Option<Avma>,
        /// What it had used by then.
        status: ThreadStatus,
        /// It ran already when the recording began.
        preexisting: bool,
        /// When it started, where the source saw that; nanoseconds of the source's clock.
        started_ns: Option<u64>,
    },
    /// Its registers and stack bytes; `status` in it is what it had used by then.
    Sample(Box<Capture>),
    /// A thread has gone to wait here, and waits on: [`SourceEvent::Wait`] without a stack tells how long.
    WaitStarted(Box<Capture>),
    /// A thread waited, or was ready without a CPU, for so long: at the end of that.
    Wait {
        /// Nanoseconds.
        ns: u64,
        /// Where; `None`: where its last [`SourceEvent::WaitStarted`] was.
        stack: Option<Box<Capture>>,
    },
    /// A thread waited for so long, and where is not known, or for how much of it.
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
    /// It ended, or the recording did; all that it used, where that is known, and for what
    /// reason the rest of it is lost.
    ThreadEnded(Option<u64>, &'static str),
    /// The process is told of for the first time.
    ProcessStarted {
        /// The name that it has now, under which its stacks are shown.
        name: String,
    },
    /// The thread, which was told of, has this name from now on.
    ThreadNamed {
        /// Its name.
        name: String,
    },
    /// The process runs another program; all other threads have ended.
    Exec {
        /// The name that its stacks are shown under from now on; `None`: as before.
        name: Option<String>,
    },
    /// The process has ended; others may go on.
    ProcessEnded,
    /// The images of the process are to be read now: it had others before.
    ImagesChanged,
    /// The images of the process may have changed: they are read again when that is cheap.
    ImagesMayHaveChanged,
    /// So many samples were dropped before anybody saw them, for this reason.
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
    /// Records that were not understood.
    pub malformed: u64,
    /// Programs that the allocations could have been reported of.
    pub programs: u64,
    /// Processes that had no memory to report by, by reason.
    pub refused: Vec<(&'static str, u64)>,
}

/// How much of the copied stack a walk used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackUse {
    /// Bytes above the stack pointer that the walk read.
    pub bytes: usize,
    /// It led beyond what was copied.
    pub truncated: bool,
    /// It led below the stack pointer, of which nothing was copied.
    pub needs_red_zone: bool,
    /// It led beyond what was copied, and out of the memory of the stack: no size is enough.
    pub unbounded: bool,
}

/// Processes whose samples are pushed. What it is itself, as [`Observed`], is the first of them, or
/// what stands for all.
pub trait PushedSource: Observed {
    /// What can be asked of a process that events were of; `None` for one that was never told of.
    fn observed(&mut self, process: u32) -> Option<&mut dyn Observed>;

    /// Appends the events that are there, waiting for some until `until_ns` of the engine's
    /// clock at the latest. Events of one thread are in their order. Gives the time up to which
    /// nothing more will come, or `None` at the end.
    ///
    /// # Errors
    /// [`Fault::Gone`] when the process has ended, others when the source fails.
    fn next_batch(&mut self, until_ns: u64, into: &mut Vec<TimedEvent>) -> Result<Option<u64>, Fault>;

    /// Called before each event of a batch is worked on, which may take long: makes room for those to come.
    fn drain_rings(&mut self) {}

    /// Images and names are asked as they were at this time, from now on.
    fn go_to(&mut self, at_ns: u64);

    /// Takes no more samples. What was taken is still told; then [`PushedSource::next_batch`]
    /// gives `None`.
    fn end(&mut self) {}

    /// After [`PushedSource::end`]: how the process ended, if it does before `until_ns` of the
    /// engine's clock. Waits for that.
    fn exit_before(&mut self, _until_ns: u64) -> Option<ExitStatus> {
        None
    }

    /// A sample was walked; its buffers are given back.
    fn walked(&mut self, _capture: Box<Capture>, _needed: StackUse) {}

    /// Whether samples can have [`Capture::prefetched`].
    fn prefetches(&self) -> bool {
        false
    }

    /// Has each sample of a thread from now on hold these ranges of its memory, too: the address of the first byte
    /// of each, ascending.
    fn prefetch(&mut self, _thread: ThreadId, _ranges: &[u64]) {}

    /// The stack of a wait was walked, or was not needed; its buffers are given back.
    fn wait_walked(&mut self, _capture: Box<Capture>, _needed: Option<StackUse>) {}

    /// Of a whole machine: the share of the time of its CPUs in which they had nothing to do.
    fn machine_idle(&self) -> Option<f64> {
        None
    }

    /// Bytes of the rings that samples come through, and of the most stacks that one batch had.
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

    /// CPU time that the processes used while recorded, nanoseconds, where the system tells it
    /// beside the samples.
    fn target_cpu_ns(&self) -> Option<u64> {
        None
    }
}
