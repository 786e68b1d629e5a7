//! Rings are read between the records of a batch, too: it may take long to work through one, with images of programs
//! that nobody has read yet, and longest on a machine that is loaded.
//!
//! What is read so waits in this process for the next batch, and counts as rings that fill up do: less of each stack is
//! copied. It has a bound, behind which rings are left as they are.

use super::super::sys;
use super::{Backlog, PerfSource, read_rings};

impl PerfSource {
    /// See the top of this file.
    pub(super) fn catch_up(&mut self) {
        if self.disabled || self.over || !self.backlog.is_due(sys::monotonic_ns()) {
            return;
        }
        self.file_pages.bound();
        if !Backlog::reads_within_batch(self.events.fill_per_mille(), self.told.held_in_all_per_mille()) {
            return;
        }
        read_rings(&mut self.events, &mut self.scratch, &mut self.told);
        self.freed_bytes += self.told.read_copies();
        self.relieve();
    }
}
