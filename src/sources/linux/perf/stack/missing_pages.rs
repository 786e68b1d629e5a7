//! Stack pages that are not resident. The kernel copies a stack in an interrupt, where pages cannot be faulted in
//! (kernel/events/core.c, `perf_output_sample_ustack`: `__copy_from_user_inatomic`), so a copy ends at the first
//! page that was never touched, as in a large frame, or was swapped out. Reading one from outside faults it in,
//! like the next use would, for later copies.
//!
//! Input: the end of a copy. Effect: a zero page, or the page's own content, is mapped there.

use hashbrown::HashSet;
use libc::pid_t;

use super::memory::TargetMemory;
use crate::sources::Capture;

/// Page sizes on all Linux architectures are multiples of this.
const PAGE_BYTES: u64 = 4096;
/// Maximum number of stack ends kept: beyond it, all are dropped, including those of exited threads.
const ENDS_MAX: usize = 4096;

/// Ends of the stacks of one program.
#[derive(Debug, Default)]
pub(in crate::sources::linux::perf) struct MissingPages {
    /// Unmapped addresses: stacks and their copies end there.
    ends: HashSet<u64>,
    scratch: Vec<u8>,
}

impl MissingPages {
    /// Faults in pages missing from a copy of the stack of thread `tid`, up to its `most_bytes`.
    pub(in crate::sources::linux::perf) fn bring_in(
        &mut self,
        tid: pid_t,
        capture: &Capture,
        most_bytes: u32,
        memory: &dyn TargetMemory,
    ) {
        let bytes = capture.stack.len() as u64;
        let end = capture.stack_base.0.wrapping_add(bytes);
        // A copy of the requested size ends anywhere; a truncated one, at a page boundary.
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
