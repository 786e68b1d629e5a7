//! The stack of one thread as known to captures and walks: its top, the size to copy, and the words above to
//! prefetch.
//!
//! Input: what each walk needed. Output: the size and ranges of the next capture.

use super::prefetch_list::PrefetchList;
use super::stack_size::StackSize;
use crate::addr::Avma;
use crate::sources::Capture;
use crate::walk::{StackBytes, StackEnd, WalkResult};

/// Maximum number of searches for the top of a stack.
const TOP_SEARCHES: u8 = 8;

/// The stack of one thread.
#[derive(Debug)]
pub(super) struct StackExtent {
    top: Option<Avma>,
    /// Remaining searches for the top.
    top_searches_left: u8,
    size: StackSize,
    prefetch: PrefetchList,
}

impl StackExtent {
    /// A stack with this top, if known.
    pub(super) fn new(top: Option<Avma>) -> StackExtent {
        StackExtent {
            top,
            top_searches_left: TOP_SEARCHES,
            size: StackSize::new(),
            prefetch: PrefetchList::default(),
        }
    }

    /// The top of the stack, if known.
    pub(super) fn top(&self) -> Option<Avma> {
        self.top
    }

    /// Sets the top, unless it is already known.
    pub(super) fn set_top(&mut self, top: Option<Avma>) {
        self.top = self.top.or(top);
    }

    /// Size of the next capture.
    pub(super) fn bytes(&self) -> usize {
        self.size.bytes()
    }

    /// Requests this many bytes once, for a search above a whole stack.
    pub(super) fn reach(&mut self, bytes: usize, max_bytes: usize) {
        self.size.reach(bytes, max_bytes);
    }

    /// The words to prefetch in addition to the copied bytes.
    pub(super) fn prefetch(&mut self) -> &mut PrefetchList {
        &mut self.prefetch
    }

    /// Adjusts the stack size after a walk; returns how many bytes above the stack pointer it needed.
    /// `stack_max_bytes`: maximum size of the next capture.
    pub(super) fn fit(
        &mut self,
        capture: &Capture,
        walked: &WalkResult,
        stack_max_bytes: usize,
        may_prefetch: bool,
    ) -> usize {
        let sp = capture.registers.sp().0;
        let needed = walked.reached.0.saturating_sub(sp) as usize;
        // The same size was requested of both stacks: the one copied in full counts.
        let of_other = capture.other_stack.as_ref().map_or(0, |other| other.bytes.len());
        let stack = StackBytes { base: capture.stack_base, bytes: &capture.stack };
        let copied = (stack.end().0.saturating_sub(sp) as usize).max(of_other);
        // Prefetched words need no copy.
        let needed = if capture.has_outer() { needed.min(copied) } else { needed };
        let is_left_to_prefetch = walked.ended == StackEnd::DeeperThanCopied
            && may_prefetch
            && self.prefetch.may_complete(&capture.prefetched);
        if !is_left_to_prefetch {
            self.size.fit(walked, needed, copied, stack_max_bytes);
        }
        needed
    }

    /// Searches for the stack top of a thread that existed before the recording, if its walk is incomplete without
    /// it; returns whether it searched. `find` searches from an address on.
    pub(super) fn search_top(
        &mut self,
        walked: &WalkResult,
        find: impl FnOnce(Avma) -> Option<Avma>,
    ) -> bool {
        if walked.ended.is_complete() || self.top.is_some() || self.top_searches_left == 0 {
            return false;
        }
        self.top_searches_left -= 1;
        self.top = find(walked.reached);
        true
    }
}
