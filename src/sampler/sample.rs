//! The state of a thread at one moment.

use crate::images::LibraryCounts;
use crate::sources::{Capture, ThreadId};

/// The state of a thread at one moment.
#[derive(Debug)]
pub struct Sample {
    /// The thread.
    pub thread: ThreadId,
    /// Its registers and stack bytes, boxed because samples are moved often.
    pub capture: Box<Capture>,
    /// Libraries that the process had loaded and unloaded before the capture and after it, where that is known.
    pub libraries: Option<[LibraryCounts; 2]>,
    /// Time of arrival, nanoseconds of the sampler's clock.
    pub at_ns: u64,
    /// Whether the thread was waiting when its stop was requested.
    pub waiting: bool,
    /// Off-CPU part of its weight, if wall-clock time is recorded: ready, or waiting between two polls;
    /// nanoseconds.
    pub off_cpu_ns: u64,
}
