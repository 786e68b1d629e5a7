//! Result of a sampler: weighted stacks by address, their images, and counters of all events and losses.

mod frame;
mod pause;
pub mod timeline;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::binary::{FileUser, Files};
use crate::heap::HeapModel;
use crate::images::Images;
use crate::sources::pushed::AllocationLosses;
use crate::sources::{ExitStatus, Process};
use crate::trie::Trie;
use crate::walk::Method;

pub use frame::{Frame, Root};
pub use pause::PauseHistogram;
pub use timeline::Timeline;

/// A program that a process ran; stacks are shown under it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The process.
    pub pid: u32,
    /// The process name at that time.
    pub name: String,
}

/// Group of stacks: a program, or one of its threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackGroup {
    /// Index into [`Recording::programs`].
    pub program: u32,
    /// `None` for the stacks of all its threads.
    pub thread: Option<Thread>,
}

/// A thread seen during the recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// The system's number.
    pub id: u64,
    /// Its name; empty if it had none.
    pub name: String,
}

/// A finished recording.
pub struct Recording {
    /// The process, or the placeholder for several.
    pub process: Process,
    /// Requested ticks per second. One count in the trie is 1/hz seconds.
    pub hz: u32,
    /// Weighted stacks.
    pub trie: Trie<Frame>,
    /// Images of the process, over time.
    pub images: Images,
    /// Programs, in the order in which they were first seen.
    pub programs: Vec<Program>,
    /// Programs or their threads, in the order in which they were first seen; [`Root::group`]
    /// points here.
    pub stack_groups: Vec<StackGroup>,
    /// Access to the files of processes with JIT code, with the number from [`Images::process_of`].
    pub files: Vec<(u32, Arc<dyn Files>)>,
    /// The users as whom the recorded processes opened files; empty if the system has none.
    pub users: BTreeSet<FileUser>,
    /// Times of samples, if recorded.
    pub timeline: Option<Timeline>,
    /// For a recording of allocations: the allocations, by node of the trie.
    pub heap: Option<HeapRecording>,
    /// Counters, and losses.
    pub stats: Stats,
}

/// Sampled allocations.
pub struct HeapRecording {
    /// By node of the trie.
    pub model: HeapModel,
    /// Losses of the source.
    pub losses: AllocationLosses,
}

impl std::fmt::Debug for Recording {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Profile")
            .field("process", &self.process)
            .field("hz", &self.hz)
            .field("programs", &self.programs)
            .field("stack_groups", &self.stack_groups)
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}

impl Recording {
    /// The thread of stacks with this root, if threads are kept apart.
    #[must_use]
    pub fn thread(&self, root: Root) -> Option<&Thread> {
        self.stack_groups.get(root.group as usize)?.thread.as_ref()
    }

    /// The threads with separate stacks, in the order in which they were first seen.
    pub fn threads(&self) -> impl Iterator<Item = &Thread> {
        self.stack_groups.iter().filter_map(|group| group.thread.as_ref())
    }
}

/// Counters of a recording, with all losses by cause.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Start, nanoseconds of the sampler's clock.
    pub begun_ns: u64,
    /// Start, nanoseconds since 1970 (UTC); `None` if unknown.
    pub begun_unix_ns: Option<u64>,
    /// From the first tick to the end, nanoseconds.
    pub duration_ns: u64,
    /// Time the profiler was suspended (Ctrl-Z), nanoseconds; not part of `duration_ns`.
    pub suspended_ns: u64,
    /// Ticks. For pushed samples: the ticks of a thread that runs all the time.
    pub ticks: u64,
    /// Late ticks. A stopping source drops them; a pushing source keeps those that get CPU time: they share
    /// what those on time leave of it.
    pub ticks_late: u64,
    /// Late ticks due to late wakeups of the sampler; the others passed while it worked. `None` if unknown.
    pub ticks_late_wakeup: Option<u64>,
    /// Ticks at which no thread was stopped, to keep within `--max-stop`.
    pub ticks_skipped: u64,
    /// Samples taken by the kernel, without a stop.
    pub samples_pushed: u64,
    /// Waits that the kernel reported, including lost ones.
    pub waits: u64,
    /// Number of stops.
    pub stops: u64,
    /// Stops of threads that were released at once because they had begun to wait: their time is in their
    /// next sample.
    pub stops_released_waiting: u64,
    /// Stops of threads that were released at once because they were ready, but on no CPU.
    pub stops_not_on_cpu: u64,
    /// Time that threads were stopped, nanoseconds: each stop from when it was noticed.
    pub stopped_ns: u64,
    /// The part of `stopped_ns` by which rare stops exceed long usual ones, nanoseconds: the machine ran
    /// something else in between. `--max-stop` does not count it, up to as much again.
    pub held_up_ns: u64,
    /// Counts in the trie: periods of 1/hz.
    pub samples: u64,
    /// Counts of waiting threads with a stack that was taken once and reused.
    pub samples_idle_reused: u64,
    /// Effective sample size (Kish), rounded: small if single samples weigh much more than others.
    pub samples_effective: u64,
    /// Threads seen.
    pub threads_seen: u64,
    /// Processes seen.
    pub processes_seen: u64,
    /// Stacks walked to their thread's root.
    pub stacks_complete: u64,
    /// Stacks that ended early, by reason.
    pub stacks_incomplete: BTreeMap<&'static str, u64>,
    /// Frames of the walked stacks by how they were found, in the order of [`Method::ALL`].
    pub frames_by_method: [u64; Method::ALL.len()],
    /// Counts (periods of 1/hz) missing in the profile, by reason.
    pub samples_lost: BTreeMap<&'static str, u64>,
    /// Durations of stops.
    pub pause: PauseHistogram,
    /// CPU time of the target during the recording, nanoseconds.
    pub target_cpu_ns: u64,
    /// With `-a`: the idle share of the CPUs' time.
    pub machine_idle: Option<f64>,
    /// Bytes of the rings that the kernel writes samples into.
    pub rings_bytes: u64,
    /// The most stack bytes that were copied and not yet walked.
    pub stacks_bytes: u64,
    /// Exit status of the process, if it exited during the recording.
    pub exit_status: Option<ExitStatus>,
    /// Why the recording ended early, if the connection to the target was lost.
    pub cut_short: Option<String>,
}

/// Least ticks or samples for a rate: with fewer, chance alone changes it by a tenth and more.
pub const RATE_COUNT_MIN: u64 = 100;

impl Stats {
    /// Achieved ticks per second, if enough were counted.
    #[must_use]
    pub fn achieved_hz(&self) -> Option<f64> {
        // For pushed samples, ticks are derived from them.
        let counted = if self.samples_pushed > 0 { self.samples_pushed } else { self.ticks };
        let is_reliable = counted >= RATE_COUNT_MIN && self.duration_ns > 0;
        is_reliable.then(|| self.ticks as f64 * 1e9 / self.duration_ns as f64)
    }
}
