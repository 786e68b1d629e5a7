//! Rings that fill up while a batch is walked are read between its records.

use super::super::clocks::monotonic_ns;
use super::{PerfSource, read_rings};

impl PerfSource {
    /// Reads rings that fill up while a batch is walked.
    pub(super) fn catch_up(&mut self) {
        if self.disabled || self.over || !self.catch_up.is_due(monotonic_ns()) {
            return;
        }
        self.memory.file_pages.bound();
        if self.pipeline.stacks.reads_ahead(self.events.fill_per_mille()) {
            read_rings(&mut self.events, &mut self.scratch, &mut self.pipeline);
            self.memory.freed_bytes += self.pipeline.stacks.read();
            self.relieve();
        }
    }
}
