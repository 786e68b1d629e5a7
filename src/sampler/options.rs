//! How to record.

use crate::walk::UnwindMethod;

/// How to record.
#[derive(Clone, Debug)]
pub struct Options {
    /// After the wish to stop, how long the end of the process is waited for, nanoseconds.
    pub linger_ns: u64,
    /// Ticks per second.
    pub hz: u32,
    /// End after this long; `None`: when the process ends or the wish to stop comes.
    pub duration_ns: Option<u64>,
    /// Also record waiting threads: weights are wall-clock time.
    pub idle: bool,
    /// Record waiting threads alone, where the source tells of waits.
    pub off_cpu: bool,
    /// Keep the stacks of each thread apart. Otherwise all threads share one root: memory
    /// then does not grow with the number of threads that come and go.
    pub threads: bool,
    /// Memory for the times of samples, bytes; 0 to keep none.
    pub timeline_bytes: usize,
    /// Frames kept per stack.
    pub max_depth: usize,
    /// How stacks are walked.
    pub unwind: UnwindMethod,
    /// Seed of the ticks' jitter.
    pub seed: u64,
    /// Share of its time that the target may stand still: 0.02 is 2 %, 1 or more no limit.
    pub max_stop: f64,
}
