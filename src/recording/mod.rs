//! Result of a sampler: weighted stacks by address, their images, and counters of all events and losses.
//! `Recording` and `HeapRecording` are what it hands over, `Stats` the counters, `Frame` and `Root` the frames of a
//! stack, `PauseHistogram` the durations of stops.

pub mod timeline;

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::addr::LookupAvma;
use crate::binary::{FileUser, Files};
use crate::heap::HeapModel;
use crate::images::Images;
use crate::sources::pushed::AllocationLosses;
use crate::sources::{ExitStatus, Process};
use crate::trie::{FrameWords, Key, StackKey, Trie};
use crate::walk::Method;

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
    pub thread: Option<RecordedThread>,
}

/// A thread seen during the recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedThread {
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
    pub fn thread(&self, root: Root) -> Option<&RecordedThread> {
        self.stack_groups.get(root.group as usize)?.thread.as_ref()
    }

    /// The threads with separate stacks, in the order in which they were first seen.
    pub fn threads(&self) -> impl Iterator<Item = &RecordedThread> {
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

// ---- The frames of recorded stacks: a root, then code by address.

/// Root of a stack: its program or thread, whether stacks below reached the thread's root, and whether the
/// thread waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Root {
    /// Index into [`Recording::stack_groups`](Recording::stack_groups).
    pub group: u32,
    /// False for stacks that are shown under `[incomplete]`.
    pub complete: bool,
    /// True for stacks of fibers, which are shown under `[fiber]`.
    pub fiber: bool,
    /// True for stacks of a waiting thread (`--idle`).
    pub waiting: bool,
}

impl Root {
    /// The root with this [`Root::number`].
    fn of(number: u64) -> Root {
        let is_set = |bit: u64| number >> bit & 1 == 1;
        let group = (number >> 3) as u32;
        Root { group, fiber: is_set(2), waiting: is_set(1), complete: !is_set(0) }
    }

    /// Packs the root into one number with the order of roots: by group, complete before incomplete ones,
    /// then waiting ones and fibers.
    fn number(self) -> u32 {
        self.group << 3
            | u32::from(self.fiber) << 2
            | u32::from(self.waiting) << 1
            | u32::from(!self.complete)
    }
}

impl Ord for Root {
    fn cmp(&self, other: &Root) -> Ordering {
        self.number().cmp(&other.number())
    }
}

impl PartialOrd for Root {
    fn partial_cmp(&self, other: &Root) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A frame of a recorded stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Frame {
    /// The outermost frame.
    Root(Root),
    /// Code: a look-up address in one of the target's address spaces over time (a new space begins when an
    /// image is unmapped or replaced, or at `exec`).
    Code {
        /// Number of the address space.
        space: u32,
        /// Look-up address.
        address: LookupAvma,
    },
}

/// Marks a root in place of an address space number.
const ROOT: u64 = u64::MAX;

impl Key for Frame {
    #[inline]
    fn words(self) -> FrameWords {
        match self {
            Frame::Root(root) => (ROOT, root.number().into()),
            Frame::Code { space, address } => (space.into(), address.0),
        }
    }

    #[inline]
    fn from_words((place, number): FrameWords) -> Frame {
        match place {
            ROOT => Frame::Root(Root::of(number)),
            space => Frame::Code { space: space as u32, address: LookupAvma(number) },
        }
    }
}

impl StackKey for Frame {
    /// The root, and the number of the address space.
    type Head = (Root, u32);
    type Word = LookupAvma;

    #[inline]
    fn head((root, _): (Root, u32)) -> Frame {
        Frame::Root(root)
    }

    #[inline]
    fn word((_, space): (Root, u32), address: LookupAvma) -> Frame {
        Frame::Code { space, address }
    }

    #[inline]
    fn bits((root, space): (Root, u32)) -> u64 {
        u64::from(root.number()) << 32 | u64::from(space)
    }
}

// ---- Durations of stops.

/// Stop durations in log-spaced buckets: constant memory, quantiles within 7 %.
#[derive(Clone)]
pub struct PauseHistogram {
    counts: Box<[u64; PauseHistogram::BUCKETS]>,
    count: u64,
    total_ns: u64,
    max_ns: u64,
}

impl PauseHistogram {
    /// 16 buckets for each power of two from 1 ns on; the first 16 values have one each.
    const SUB_BITS: u32 = 4;
    const BUCKETS: usize = (64 - Self::SUB_BITS as usize + 1) << Self::SUB_BITS;

    fn bucket(ns: u64) -> usize {
        let sub = Self::SUB_BITS;
        if ns < 1 << sub {
            return ns as usize;
        }
        let exponent = 63 - ns.leading_zeros();
        let mantissa = (ns >> (exponent - sub)) as usize & ((1 << sub) - 1);
        (((exponent - sub + 1) as usize) << sub) + mantissa
    }

    /// The largest value in a bucket.
    fn upper_ns(bucket: usize) -> u64 {
        let sub = Self::SUB_BITS;
        if bucket < 1 << sub {
            return bucket as u64;
        }
        let exponent = (bucket >> sub) as u32 - 1;
        let mantissa = (bucket & ((1 << sub) - 1)) as u64 + (1 << sub);
        // The last bucket ends at 2^64, which wraps to the largest value.
        ((u128::from(mantissa) + 1) << exponent).saturating_sub(1).min(u128::from(u64::MAX)) as u64
    }

    /// Adds one stop.
    pub fn add(&mut self, ns: u64) {
        self.counts[Self::bucket(ns)] += 1;
        self.count += 1;
        self.total_ns = self.total_ns.saturating_add(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// The duration that a fraction `share` (0 to 1) of the stops did not exceed, nanoseconds; 0 without
    /// stops.
    #[must_use]
    pub fn quantile_ns(&self, share: f64) -> u64 {
        let rank = (share.clamp(0.0, 1.0) * self.count as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Self::upper_ns(bucket).min(self.max_ns);
            }
        }
        self.max_ns
    }

    /// The longest stop, nanoseconds.
    #[must_use]
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// Sum of all stops, nanoseconds.
    #[must_use]
    pub fn total_ns(&self) -> u64 {
        self.total_ns
    }

    /// Number of stops.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }
}

impl Default for PauseHistogram {
    fn default() -> PauseHistogram {
        PauseHistogram { counts: Box::new([0; PauseHistogram::BUCKETS]), count: 0, total_ns: 0, max_ns: 0 }
    }
}

impl std::fmt::Debug for PauseHistogram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "PauseHistogram({} stops, p50 {} ns, max {} ns)",
            self.count,
            self.quantile_ns(0.5),
            self.max_ns
        )
    }
}

#[cfg(test)]
mod frame_tests {
    use super::*;

    #[test]
    fn different_roots_have_different_bits_sorted_by_track() {
        let mut roots = Vec::new();
        for group in [0, 1, 77] {
            for fiber in [false, true] {
                for waiting in [false, true] {
                    for complete in [true, false] {
                        roots.push(Root { group, complete, fiber, waiting });
                    }
                }
            }
        }
        assert!(roots.is_sorted());
        let bits: std::collections::BTreeSet<u64> =
            roots.iter().flat_map(|root| [Frame::bits((*root, 0)), Frame::bits((*root, 7))]).collect();
        assert_eq!(bits.len(), 2 * roots.len());
        let code =
            [(0, 0), (u32::MAX, u64::MAX)].map(|(space, at)| Frame::word((roots[0], space), LookupAvma(at)));
        for frame in roots.into_iter().map(Frame::Root).chain(code) {
            assert_eq!(Frame::from_words(frame.words()), frame);
        }
    }
}

#[cfg(test)]
mod pause_tests {
    use super::*;

    #[test]
    fn quantiles_are_accurate_to_a_bucket() {
        let mut pauses = PauseHistogram::default();
        for ns in 1..=10_000u64 {
            pauses.add(ns);
        }
        for (share, truth) in [(0.5, 5_000.0), (0.9, 9_000.0), (0.99, 9_900.0)] {
            let got = pauses.quantile_ns(share) as f64;
            assert!((truth..=truth * 1.07).contains(&got), "p{share}: {got} for {truth}");
        }
        assert_eq!(pauses.max_ns(), 10_000);
        assert_eq!(pauses.total_ns(), 50_005_000);
    }

    #[test]
    fn every_duration_has_a_bucket_with_a_larger_upper_end() {
        for shift in 0..64 {
            for delta in [0u64, 1, 2] {
                let ns = (1u64 << shift).wrapping_sub(1).wrapping_add(delta);
                let bucket = PauseHistogram::bucket(ns);
                assert!(bucket < PauseHistogram::BUCKETS, "{ns}");
                assert!(ns <= PauseHistogram::upper_ns(bucket), "{ns}");
            }
        }
        assert_eq!(PauseHistogram::default().quantile_ns(0.5), 0);
    }
}
