//! What a sampler hands over: weighed stacks by address, the images they lie in, and counters of
//! all that happened and all that was lost.

mod frame;
mod pause;
pub mod timeline;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::binary::Files;
use crate::heap::HeapModel;
use crate::images::Images;
use crate::sources::pushed::AllocationLosses;
use crate::sources::{ExitStatus, Process};
use crate::trie::Trie;
use crate::walk::Method;

pub use frame::{Frame, Root};
pub use pause::PauseHistogram;
pub use timeline::Timeline;

/// A program that a process ran, under which stacks are shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The process.
    pub pid: u32,
    /// The name that it had then.
    pub name: String,
}

/// Where stacks are kept together: under a program, or a thread of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Track {
    /// Index into [`Profile::programs`].
    pub program: u32,
    /// `None` for the stacks of all its threads.
    pub thread: Option<Thread>,
}

/// A thread that was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// The system's number.
    pub id: u64,
    /// Its name; empty if it had none.
    pub name: String,
}

/// A finished recording.
pub struct Profile {
    /// The process, or what stands for all of them.
    pub process: Process,
    /// Ticks per second that were asked for. One count in the trie is 1/hz seconds.
    pub hz: u32,
    /// Weighed stacks.
    pub trie: Trie<Frame>,
    /// Images of the process, over time.
    pub images: Images,
    /// Programs, in the order in which they were first seen.
    pub programs: Vec<Program>,
    /// Programs or their threads, in the order in which they were first seen; [`Root::track`]
    /// points here.
    pub tracks: Vec<Track>,
    /// The files of the processes that made code at run time, with the number that
    /// [`Images::process_of`] gives.
    pub files: Vec<(u32, Arc<dyn Files>)>,
    /// When samples were taken, if that was recorded.
    pub timeline: Option<Timeline>,
    /// Of a recording of allocations: what they were, by node of the trie.
    pub heap: Option<HeapRecording>,
    /// Counters, and losses.
    pub stats: Stats,
}

/// Allocations that were sampled.
pub struct HeapRecording {
    /// By node of the trie.
    pub model: HeapModel,
    /// What the source could not report.
    pub losses: AllocationLosses,
}

impl std::fmt::Debug for Profile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Profile")
            .field("process", &self.process)
            .field("hz", &self.hz)
            .field("programs", &self.programs)
            .field("tracks", &self.tracks)
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}

impl Profile {
    /// The thread of stacks with this root, if threads are kept apart.
    #[must_use]
    pub fn thread(&self, root: Root) -> Option<&Thread> {
        self.tracks.get(root.track as usize)?.thread.as_ref()
    }

    /// The threads whose stacks are kept apart, in the order in which they were first seen.
    pub fn threads(&self) -> impl Iterator<Item = &Thread> {
        self.tracks.iter().filter_map(|track| track.thread.as_ref())
    }
}

/// Counters of a recording; everything lost is here by cause.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// When it began, nanoseconds of the engine's clock.
    pub begun_ns: u64,
    /// When that was, nanoseconds since 1970 (UTC); `None` where there is no such time.
    pub begun_unix_ns: Option<u64>,
    /// From the first tick to the end, nanoseconds.
    pub duration_ns: u64,
    /// Time the profiler was suspended (Ctrl-Z), nanoseconds; not part of `duration_ns`.
    pub suspended_ns: u64,
    /// Ticks that happened. For pushed samples: the ticks that a thread that runs all the time would have had.
    pub ticks: u64,
    /// Late ticks. A stopping source drops them; a pushing source keeps those that get CPU time: they share what
    /// those on time leave of it.
    pub ticks_late: u64,
    /// Of these, late wakeups of the sampler; the others passed while it worked. `None` where the source does not
    /// know.
    pub ticks_late_wakeup: Option<u64>,
    /// Ticks at which no thread was stopped, to keep within `--max-stop`.
    pub ticks_skipped: u64,
    /// Samples that the system took, without a stop.
    pub samples_pushed: u64,
    /// Waits that the system reported, lost ones included.
    pub waits: u64,
    /// Times a thread was stopped.
    pub stops: u64,
    /// Of these, threads released at once because they had begun to wait: their time is in their next sample.
    pub stops_released_waiting: u64,
    /// Of these, threads released at once because they were ready, but on no CPU.
    pub stops_not_on_cpu: u64,
    /// Time that threads were stopped, nanoseconds: each stop from when it was noticed.
    pub stopped_ns: u64,
    /// Of this, the excess of rare stops over long usual ones, nanoseconds: the machine ran something else in
    /// between. `--max-stop` does not count it, up to as much again.
    pub held_up_ns: u64,
    /// Counts in the trie: periods of 1/hz.
    pub samples: u64,
    /// Of these, counts of waiting threads whose stack was taken once and used again.
    pub samples_idle_reused: u64,
    /// Effective sample size (Kish), rounded: few, where single samples weigh much more than others.
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
    /// Counts (periods of 1/hz) that are not in the profile, by reason.
    pub samples_lost: BTreeMap<&'static str, u64>,
    /// Each stop's duration.
    pub pause: PauseHistogram,
    /// CPU time the target used while recorded, nanoseconds.
    pub target_cpu_ns: u64,
    /// With `-a`: the idle share of the CPUs' time.
    pub machine_idle: Option<f64>,
    /// Bytes of the rings that the system writes samples into.
    pub rings_bytes: u64,
    /// The most bytes of stacks that were copied and not walked yet.
    pub stacks_bytes: u64,
    /// How the process ended, if it did while recorded.
    pub exit_status: Option<ExitStatus>,
    /// Why the recording ended early, if the connection to the target was lost.
    pub cut_short: Option<String>,
}

/// Least ticks or samples for a rate: with fewer, chance alone changes it by a tenth and more.
pub const RATE_COUNT_MIN: u64 = 100;

impl Stats {
    /// Ticks per second that were reached, if enough were counted.
    #[must_use]
    pub fn achieved_hz(&self) -> Option<f64> {
        // The ticks of samples that the system takes are computed from these.
        let counted = if self.samples_pushed > 0 { self.samples_pushed } else { self.ticks };
        let is_reliable = counted >= RATE_COUNT_MIN && self.duration_ns > 0;
        is_reliable.then(|| self.ticks as f64 * 1e9 / self.duration_ns as f64)
    }
}
