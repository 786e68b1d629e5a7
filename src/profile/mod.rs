//! The profile: trie + images + losses + metadata, and its saved form.
//!
//! [`Profile`] is what a recording yields: addresses, with the images they lie in. [`Saved`]
//! is whole in itself, with names; outputs are written from it and files are read into it.

pub mod about;
pub mod builder;
pub mod by_name;
pub mod call_tree;
mod children;
pub mod filter;
pub mod firefox;
pub mod folded;
pub mod folded_read;
pub mod from_recording;
mod lists;
pub mod perf_script;
pub mod pprof;
pub mod read;
mod root_names;
pub mod saved;
pub mod speedscope;
mod taker;
pub mod texts;
pub mod threads;

pub use about::{About, SAMPLES};
pub use builder::{Refused, SavedBuilder, Taken};
pub use by_name::{ByName, FIBER, INCOMPLETE, Visited, shown};
pub use call_tree::{CallTree, Direction};
pub use from_recording::Circumstances;
pub use saved::{Frame, Full, Function, Line, Mapping, Saved, StackRoot, UNKNOWN};
pub use texts::{TextId, Texts};

use std::collections::BTreeMap;

use crate::image::Images;
use crate::target::{ExitStatus, Process};
use crate::trie::Trie;
use crate::walk::Method;

/// Most functions of a stack in a file, inlined ones and all others counted alike in every
/// form, so that what is read from one can be read again from each. A recording has up to
/// 65,536 frames; those can be some more functions.
pub const MAX_DEPTH: usize = 1 << 18;

/// A root of the trie, packed into its number: which thread, whether the stacks below
/// reached the thread's root, and whether the thread waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Root {
    /// Index into [`Profile::threads`].
    pub thread: u32,
    /// False for stacks that are shown under `[incomplete]`.
    pub complete: bool,
    /// True for stacks of fibers, which are shown under `[fiber]`.
    pub fiber: bool,
    /// True for stacks of a thread that waited (`--idle`).
    pub waiting: bool,
}

impl Root {
    /// The number that stands for this root in the trie.
    #[must_use]
    pub fn number(self) -> u32 {
        self.thread << 3
            | u32::from(self.fiber) << 2
            | u32::from(self.waiting) << 1
            | u32::from(!self.complete)
    }

    /// The root that a number stands for.
    #[must_use]
    pub fn from_number(number: u32) -> Root {
        let is_set = |bit: u32| number & bit != 0;
        Root { thread: number >> 3, complete: !is_set(1), waiting: is_set(2), fiber: is_set(4) }
    }
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
#[derive(Debug)]
pub struct Profile {
    /// The process.
    pub process: Process,
    /// Ticks per second that were asked for. One count in the trie is 1/hz seconds.
    pub hz: u32,
    /// Weighed stacks.
    pub trie: Trie,
    /// Images of the process, over time.
    pub images: Images,
    /// Threads, in the order in which they were first seen; [`Root::thread`] points here.
    /// Empty if stacks of all threads were merged.
    pub threads: Vec<Thread>,
    /// What happened, and what was lost.
    pub stats: Stats,
}

/// Counters of a recording; everything lost is here by cause.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// From the first tick to the end, nanoseconds.
    pub duration_ns: u64,
    /// Ticks that happened.
    pub ticks: u64,
    /// Ticks dropped because they would have been late.
    pub ticks_late: u64,
    /// Ticks at which no thread was stopped, so that the target stands for no more than it may.
    pub ticks_spared: u64,
    /// Times a thread was stopped.
    pub stops: u64,
    /// Of these, threads let go at once because they had begun to wait: their time is in
    /// their next sample.
    pub stops_let_go: u64,
    /// Of these, threads let go at once because they were ready, but on no CPU.
    pub stops_not_on_cpu: u64,
    /// Time that threads stood, nanoseconds: each stop from when it was seen.
    pub stood_ns: u64,
    /// Of these, what rare stops took beyond what long ones usually do, nanoseconds: the machine
    /// ran something else in between. `--max-stop` is not kept against it.
    pub held_up_ns: u64,
    /// Counts in the trie: periods of 1/hz.
    pub samples: u64,
    /// Of these, counts of waiting threads whose stack was taken once and used again.
    pub samples_idle_reused: u64,
    /// Threads seen.
    pub threads_seen: u64,
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
    /// How the process ended, if it did while recorded.
    pub exit_status: Option<ExitStatus>,
}

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

    /// The largest value that falls into a bucket.
    fn upper_ns(bucket: usize) -> u64 {
        let sub = Self::SUB_BITS;
        if bucket < 1 << sub {
            return bucket as u64;
        }
        let exponent = (bucket >> sub) as u32 - 1;
        let mantissa = (bucket & ((1 << sub) - 1)) as u64 + (1 << sub);
        // The last bucket's end is 2^64, which wraps to the largest value.
        ((u128::from(mantissa) + 1) << exponent).saturating_sub(1).min(u128::from(u64::MAX)) as u64
    }

    /// Adds one stop.
    pub fn add(&mut self, ns: u64) {
        self.counts[Self::bucket(ns)] += 1;
        self.count += 1;
        self.total_ns = self.total_ns.saturating_add(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// The duration that `share` (0 to 1) of the stops did not exceed, nanoseconds; 0 without stops.
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

    /// All stops together, nanoseconds.
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
mod tests {
    use super::*;

    #[test]
    fn roots_round_trip_through_their_number() {
        for root in [
            Root { thread: 0, complete: true, fiber: false, waiting: false },
            Root { thread: 77, complete: false, fiber: false, waiting: false },
            Root { thread: 78, complete: true, fiber: true, waiting: true },
        ] {
            assert_eq!(Root::from_number(root.number()), root);
        }
    }

    #[test]
    fn quantiles_are_within_a_bucket_of_the_truth() {
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
    fn every_duration_has_a_bucket_and_none_exceeds_its_upper_end() {
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
