//! What a sampler hands over: weighed stacks by address, the images they lie in, and counters of
//! all that happened and all that was lost.

mod pause;

use std::collections::BTreeMap;

use crate::images::Images;
use crate::sources::{ExitStatus, Process};
use crate::trie::Trie;
use crate::walk::Method;

pub use pause::PauseHistogram;

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
}
