//! Requested stops and their outcomes, and how many threads are copied in one.

use std::collections::VecDeque;

use hashbrown::HashMap;

use crate::sources::{Capture, Outcome, ThreadId};

/// Most threads that are copied in one stop.
const AT_ONCE: usize = 1024;

/// A stop is not to be longer, nanoseconds: where copies take long, fewer are made in one.
const STAND_NS: u64 = 50_000_000;

/// A requested stop.
#[derive(Clone, Copy, Debug)]
pub(super) struct StopRequest {
    pub(super) thread: ThreadId,
    pub(super) stack_bytes: usize,
    pub(super) keep_waiting: bool,
}

/// What came of it.
pub(super) struct StopResult {
    pub(super) thread: ThreadId,
    pub(super) outcome: Outcome,
    pub(super) capture: Capture,
}

/// The stops of a target, requested and made.
#[derive(Default)]
pub(super) struct Stops {
    pub(super) asked: VecDeque<StopRequest>,
    pub(super) made: VecDeque<StopResult>,
    pub(super) spare: Vec<Capture>,
    /// Count so far, which distinguishes the polls of a thread.
    pub(super) count: u64,
    /// What one thread in a stop takes, by the last one, nanoseconds.
    pub(super) copy_ns: u64,
    /// Whether threads wait at a place in code.
    pub(super) places: HashMap<u64, bool>,
    /// When the target was last continued; 0 before.
    pub(super) ran_since_ns: u64,
    /// Stopped time for other purposes that is not reported yet, nanoseconds.
    pub(super) stood_ns: u64,
    /// When mappings were requested last, and that they are wanted.
    pub(super) maps_ns: u64,
    pub(super) maps_wanted: bool,
}

impl Stops {
    /// Threads to copy in one stop.
    pub(super) fn at_once(&self) -> usize {
        let fit = STAND_NS.checked_div(self.copy_ns).unwrap_or(u64::MAX);
        usize::try_from(fit).unwrap_or(AT_ONCE).clamp(1, AT_ONCE)
    }

    /// Other code is there: what was learned of places does not hold.
    pub(super) fn forget_places(&mut self) {
        self.places.clear();
    }

    pub(super) fn buffer(&mut self) -> Capture {
        let mut capture = self.spare.pop().unwrap_or_else(|| Capture::with_capacity(0));
        capture.reset();
        capture
    }

    /// A stop that came to nothing.
    pub(super) fn failed(&mut self, thread: ThreadId, why: &'static str) {
        let capture = self.buffer();
        self.made.push_back(StopResult { thread, outcome: Outcome::Unreadable(why), capture });
    }
}
