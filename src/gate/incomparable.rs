//! Why runs must not be compared: one line for people that names the run and the next step.

use std::error::Error;
use std::fmt;

use crate::profile::{RING_FULL, SAMPLES};

/// Least number of samples of a run. A smaller run has sampled only the program's start; it is refused rather
/// than passed.
pub const SAMPLES_MIN: u64 = 20;

/// Runs that cannot be compared, and why. They are named by their files.
#[derive(Clone, Debug, PartialEq)]
pub enum Incomparable {
    /// One side has no runs.
    NoRuns,
    /// A run counts no CPU time.
    OtherUnit {
        /// The run.
        run: String,
        /// Its unit.
        unit: String,
    },
    /// A heap profile shows numbers of allocations, with an unknown sampling error.
    NoSpace {
        /// The run.
        run: String,
        /// Its value type.
        kind: String,
    },
    /// A heap profile has too few bytes for its sampling rate.
    FewBytes {
        /// The run.
        run: String,
        /// Its bytes.
        bytes: u64,
        /// Bytes per sample on average.
        every: u64,
    },
    /// Two runs differ in kind: one is not a heap profile, shows another value type or has another sampling
    /// rate.
    HeapKinds {
        /// A run.
        one: String,
        /// Another one.
        other: String,
    },
    /// A run has only stacks of waiting threads.
    OnlyWaiting(String),
    /// A run has no samples.
    Empty(String),
    /// A run has fewer than [`SAMPLES_MIN`].
    TooFew {
        /// The run.
        run: String,
        /// Its samples.
        samples: u64,
    },
    /// A run lost more than [`LOST_MAX`](crate::diff::loss::LOST_MAX).
    Lost {
        /// The run.
        run: String,
        /// Fraction of its samples (of a heap profile: bytes) that it lost, 0 to 1.
        part: f64,
        /// The main cause.
        why: String,
        /// It is a heap profile.
        is_heap: bool,
    },
    /// Two runs have different sampling rates.
    Rates {
        /// A run and its rate, Hz.
        one: (String, u32),
        /// Another one.
        other: (String, u32),
    },
    /// One run has a sampling rate, the other has none.
    RateUnknown {
        /// The run without a rate.
        without: String,
        /// The run with a rate.
        with: String,
    },
    /// Two runs are of different programs.
    Programs {
        /// A run and its process names.
        one: (String, Vec<String>),
        /// Another one.
        other: (String, Vec<String>),
    },
    /// One run is of a whole command, the other of a part of a process's life.
    Extents {
        /// A run, and whether it is of a whole command.
        one: (String, bool),
        /// Another one.
        other: (String, bool),
    },
    /// The commands of two runs ended differently.
    Exits {
        /// A run, and how its command ended.
        one: (String, String),
        /// Another one.
        other: (String, String),
    },
    /// Two files hold one recording.
    OneRecording {
        /// A file.
        one: String,
        /// Another one.
        other: String,
    },
    /// A run may be a part of a process's life, of unknown duration.
    DurationUnknown(String),
    /// A run was cut out of a recording.
    Cut(String),
    /// A run has less than [`TRUNCATED_BELOW`](super::measurements::TRUNCATED_BELOW) of the median.
    CutShort {
        /// The run.
        run: String,
        /// Its samples.
        samples: u64,
        /// The median of its side.
        median: u64,
    },
}

impl fmt::Display for Incomparable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Incomparable::NoRuns => {
                f.write_str("there are no runs to compare; give files for --base and for --new")
            }
            Incomparable::OtherUnit { run, unit } => {
                write!(f, "{run} counts {unit}; expected {SAMPLES} of CPU time")
            }
            Incomparable::NoSpace { run, kind } => {
                write!(f, "{run} shows {kind}; bytes can be judged: --type inuse_space or --type alloc_space")
            }
            Incomparable::FewBytes { run, bytes, every } => write!(
                f,
                "{run} has {bytes} bytes, and one sample in {every}: chance decides; record with a smaller --every"
            ),
            Incomparable::HeapKinds { one, other } => write!(
                f,
                "{one} and {other} are of different kinds; record both with stackprof heap and the same --every and --peak, or both without, and give one --type"
            ),
            Incomparable::OnlyWaiting(run) => {
                write!(f, "{run} holds only waiting threads; record without --idle")
            }
            Incomparable::Empty(run) => write!(f, "{run} is empty; record it again"),
            Incomparable::TooFew { run, samples } => write!(
                f,
                "{run} has only {samples} samples, fewer than {SAMPLES_MIN}; record a longer run or with a higher --hz"
            ),
            Incomparable::Lost { run, part, why, is_heap: false } => write!(
                f,
                "{run} lost {:.0}% of its samples ({why}), so its CPU time is not known; record it again",
                100.0 * part
            ),
            Incomparable::Lost { run, part, why, is_heap: true } => write!(
                f,
                "{run} lost about {:.0}% of its bytes ({why}), so its memory is not known; record it {}",
                100.0 * part,
                if why == RING_FULL { "with a larger --every" } else { "again" }
            ),
            Incomparable::Rates { one: (a, ours), other: (b, theirs) } => {
                write!(f, "{a} was recorded at {ours} Hz and {b} at {theirs} Hz; use one --hz for all")
            }
            Incomparable::RateUnknown { without, with } => write!(
                f,
                "{without} has no sampling rate but {with} has; record all runs in one format (.pb.gz keeps it)"
            ),
            Incomparable::Programs { one: (a, of_a), other: (b, of_b) } => write!(
                f,
                "{a} is of {} and {b} of {}; if they are the same program, add --allow-different-names",
                of_a.join(", "),
                of_b.join(", ")
            ),
            Incomparable::Extents { one: (a, a_whole), other: (b, b_whole) } => {
                let of = |whole: &bool| if *whole { "a whole command" } else { "a part of a process's life" };
                write!(
                    f,
                    "{a} is a recording of {} and {b} of {}; record all in one way",
                    of(a_whole),
                    of(b_whole)
                )
            }
            Incomparable::Exits { one: (a, ours), other: (b, theirs) } => write!(
                f,
                "the command of {a} ended with {ours}, that of {b} with {theirs}: they did not do the same work; record runs that end alike"
            ),
            Incomparable::OneRecording { one, other } => {
                write!(f, "{one} and {other} are the same recording; record each run by itself")
            }
            Incomparable::DurationUnknown(run) => write!(
                f,
                "{run} has no duration, so its CPU time cannot be compared; record all runs as .pb.gz"
            ),
            Incomparable::Cut(run) => write!(
                f,
                "{run} is a part of the time of a recording (--from, --to); give the whole recording"
            ),
            Incomparable::CutShort { run, samples, median } => write!(
                f,
                "{run} has {samples} samples where its side's median is {median}; it may be cut short; record it again"
            ),
        }
    }
}

impl Error for Incomparable {}
