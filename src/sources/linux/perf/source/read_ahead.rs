//! Rings are read between the events of a batch, too: to walk one may take long, with images of programs that nobody has
//! read yet, and longest on a machine that is loaded.
//!
//! Input: time; output: records in the queue of the next batch (`stack/read_ahead.rs`: how many), and resident pages
//! of files within their bound.

use super::super::clocks::monotonic_ns;
use super::{PerfSource, read_rings};

/// While a batch is walked rings are polled this often, nanoseconds.
const POLL_NS: u64 = 2_000_000;

/// When rings were polled.
#[derive(Debug, Default)]
pub(super) struct ReadAheadTimer {
    polled_ns: u64,
}

impl ReadAheadTimer {
    /// Whether it is time to poll rings.
    pub(super) fn is_due(&mut self, now_ns: u64) -> bool {
        let is_due = now_ns.saturating_sub(self.polled_ns) >= POLL_NS;
        if is_due {
            self.polled_ns = now_ns;
        }
        is_due
    }
}

impl PerfSource {
    /// Reads rings that fill up while a batch is walked, if it is time.
    pub(super) fn read_ahead(&mut self) {
        if self.disabled || self.finished || !self.read_ahead.is_due(monotonic_ns()) {
            return;
        }
        self.memory.file_pages.bound();
        if self.pipeline.stacks.reads_ahead(self.events.fill_per_mille()) {
            read_rings(&mut self.events, &mut self.scratch, &mut self.pipeline);
            self.memory.freed_bytes += self.pipeline.stacks.read();
            self.reduce_load();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_are_polled_at_intervals() {
        let mut timer = ReadAheadTimer::default();
        let polls = (1..=1_000).filter(|at| timer.is_due(POLL_NS + at * POLL_NS / 10)).count();
        assert_eq!(polls, 100);
    }
}
