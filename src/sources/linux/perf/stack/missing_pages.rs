//! Pages of stacks that are not in memory. The kernel copies a stack in an interrupt, where no page can be brought in
//! (kernel/events/core.c, `perf_output_sample_ustack`: `__copy_from_user_inatomic`), so a copy ends at the first page
//! that was never touched, as in a large frame, or was swapped out. Reading one from outside brings it in, as the
//! next use would, for later copies.
//!
//! Input: the end of a copy. Effect: a page of zeroes, or the page's own content, is mapped there.

use hashbrown::HashSet;
use libc::pid_t;

use super::memory::TargetMemory;
use crate::sources::Capture;

/// Pages of all processors that Linux runs on are multiples of this.
const PAGE_BYTES: u64 = 4096;
/// Most ends of stacks that are kept: those of threads that come and go are forgotten together.
const ENDS_MAX: usize = 4096;

/// Where the stacks of one program end.
#[derive(Debug, Default)]
pub(in crate::sources::linux::perf) struct MissingPages {
    /// Where nothing is mapped: stacks end there, and copies with them.
    ends: HashSet<u64>,
    scratch: Vec<u8>,
}

impl MissingPages {
    /// Brings in what a copy of the stack of thread `tid` lacked, up to `most_bytes` of it.
    pub(in crate::sources::linux::perf) fn bring_in(
        &mut self,
        tid: pid_t,
        capture: &Capture,
        most_bytes: u32,
        memory: &dyn TargetMemory,
    ) {
        let bytes = capture.stack.len() as u64;
        let end = capture.stack_base.0.wrapping_add(bytes);
        // A copy of the size that was requested ends anywhere; one that was cut, between pages.
        let most_bytes = u64::from(most_bytes);
        if !end.is_multiple_of(PAGE_BYTES) || end == 0 || bytes >= most_bytes || self.ends.contains(&end) {
            return;
        }
        let missing_bytes = (most_bytes - bytes) as usize;
        let read = memory.read(tid, end, missing_bytes, &mut self.scratch);
        if !read.is_ok_and(|bytes| bytes > 0) {
            if self.ends.len() >= ENDS_MAX {
                self.ends.clear();
            }
            self.ends.insert(end);
        }
    }
}
