//! Reads rings between the events of a batch: a walk may take long, with images not yet read, and longest on a
//! loaded machine.
//!
//! Input: time. Output: records in the queue of the next batch (`stack/read_ahead.rs` limits them), and resident
//! pages of files within their bound.

use super::super::clocks::monotonic_ns;
use super::{PerfSource, read_rings};

impl PerfSource {
    /// Reads rings that fill up while a batch is walked, if due.
    pub(super) fn read_ahead(&mut self) {
        if self.is_disabled() || self.finished || !self.read_ahead.is_due(monotonic_ns()) {
            return;
        }
        self.memory.file_pages.bound();
        if self.pipeline.reads_ahead(self.events.fill_per_mille()) {
            read_rings(&mut self.events, &mut self.scratch, &mut self.pipeline);
            self.memory.freed_bytes += self.pipeline.read_stacks();
            self.reduce_load();
        }
    }
}
