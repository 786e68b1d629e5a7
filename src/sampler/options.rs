//! Recording options.

use crate::walk::UnwindMethod;

/// Recording options.
#[derive(Clone, Debug)]
pub struct Options {
    /// After a requested stop, how long to wait for the process to end, nanoseconds.
    pub linger_ns: u64,
    /// Ticks per second.
    pub hz: u32,
    /// Duration of the recording; `None`: until the process ends or a stop is requested.
    pub duration_ns: Option<u64>,
    /// Also record waiting threads: weights are wall-clock time.
    pub idle: bool,
    /// Record only waiting threads, if the source reports waits.
    pub off_cpu: bool,
    /// Keep the stacks of each thread apart. Otherwise all threads share one root, so memory does not grow with
    /// the number of short-lived threads.
    pub threads: bool,
    /// Memory for sample times, bytes; 0 keeps none.
    pub timeline_bytes: usize,
    /// Maximum frames kept per stack.
    pub max_depth: usize,
    /// How stacks are walked.
    pub unwind: UnwindMethod,
    /// Seed of the ticks' jitter.
    pub seed: u64,
    /// Maximum share of time that the target may be stopped: 0.02 is 2 %, 1 or more no limit.
    pub max_stop: f64,
    /// Allocated blocks count as in use at the end if they are at least this old, nanoseconds.
    pub block_age_min_ns: u64,
}
