//! Requested stops and their outcomes, and the number of threads to copy in one stop.

use std::collections::VecDeque;

use hashbrown::HashMap;

use crate::sources::{Capture, StopOutcome, ThreadId};

/// Most threads copied in one stop.
const AT_ONCE: usize = 1024;

/// Target for the length of a stop, nanoseconds: fewer threads are copied in one if copies take long.
const STAND_NS: u64 = 50_000_000;

/// A requested stop.
#[derive(Clone, Copy, Debug)]
pub(super) struct StopRequest {
    pub(super) thread: ThreadId,
    pub(super) stack_bytes: usize,
    pub(super) keep_waiting: bool,
}

/// Its result.
pub(super) struct StopResult {
    pub(super) thread: ThreadId,
    pub(super) outcome: StopOutcome,
    pub(super) capture: Capture,
}

/// Requested and completed stops of a target.
#[derive(Default)]
pub(super) struct Stops {
    pub(super) asked: VecDeque<StopRequest>,
    pub(super) made: VecDeque<StopResult>,
    pub(super) spare: Vec<Capture>,
    /// Number of stops so far, which distinguishes the polls of a thread.
    pub(super) count: u64,
    /// Time per thread in the last stop, nanoseconds.
    pub(super) copy_ns: u64,
    /// Whether threads wait at a code address.
    pub(super) places: HashMap<u64, bool>,
    /// When the target was last continued; 0 before.
    pub(super) ran_since_ns: u64,
    /// Time stopped for other purposes, not yet reported, nanoseconds.
    pub(super) stopped_ns: u64,
    /// Time of the last request for mappings, and whether a new one is due.
    pub(super) maps_ns: u64,
    pub(super) maps_wanted: bool,
}

impl Stops {
    /// Number of threads to copy in one stop.
    pub(super) fn at_once(&self) -> usize {
        let fit = STAND_NS.checked_div(self.copy_ns).unwrap_or(u64::MAX);
        usize::try_from(fit).unwrap_or(AT_ONCE).clamp(1, AT_ONCE)
    }

    /// Forgets waiting places, because the code changed.
    pub(super) fn forget_places(&mut self) {
        self.places.clear();
    }

    pub(super) fn buffer(&mut self) -> Capture {
        let mut capture = self.spare.pop().unwrap_or_else(|| Capture::with_capacity(0));
        capture.reset();
        capture
    }

    /// Records a stop without a capture.
    pub(super) fn failed(&mut self, thread: ThreadId, why: &'static str) {
        let capture = self.buffer();
        self.made.push_back(StopResult { thread, outcome: StopOutcome::Unreadable(why), capture });
    }
}
