//! The stack of one thread, as far as captures and walks know it: its top, how much of it is copied, and which words
//! above are read beside that.
//!
//! Input: what each walk needed. Output: what the next capture shall hold.

use super::prefetch_list::PrefetchList;
use super::stack_size::StackSize;
use crate::addr::Avma;
use crate::sources::Capture;
use crate::walk::{StackBytes, StackEnd, Walked};

/// Searches for the top of a stack, at most.
const TOP_SEARCHES: u8 = 8;

/// The stack of one thread.
#[derive(Debug)]
pub(super) struct StackExtent {
    top: Option<Avma>,
    /// Searches for the top that may still be made.
    top_searches_left: u8,
    size: StackSize,
    prefetch: PrefetchList,
}

impl StackExtent {
    /// A stack with this top, where it is known.
    pub(super) fn new(top: Option<Avma>) -> StackExtent {
        StackExtent {
            top,
            top_searches_left: TOP_SEARCHES,
            size: StackSize::new(),
            prefetch: PrefetchList::default(),
        }
    }

    /// Where the stack begins, if that is known.
    pub(super) fn top(&self) -> Option<Avma> {
        self.top
    }

    /// The stack begins here, unless that is known.
    pub(super) fn set_top(&mut self, top: Option<Avma>) {
        self.top = self.top.or(top);
    }

    /// Bytes that the next capture shall hold.
    pub(super) fn bytes(&self) -> usize {
        self.size.bytes()
    }

    /// Asks for so many bytes once, where something above a whole stack is searched for.
    pub(super) fn reach(&mut self, bytes: usize, max_bytes: usize) {
        self.size.reach(bytes, max_bytes);
    }

    /// Which words are read beside the copied bytes.
    pub(super) fn prefetch(&mut self) -> &mut PrefetchList {
        &mut self.prefetch
    }

    /// Fits the stack size to a walk; how many bytes above the stack pointer are to be copied for it.
    /// `stack_max_bytes` is as much as the next capture may copy.
    pub(super) fn fit(
        &mut self,
        capture: &Capture,
        walked: &Walked,
        stack_max_bytes: usize,
        may_prefetch: bool,
    ) -> usize {
        let sp = capture.registers.sp().0;
        let needed = walked.reached.0.saturating_sub(sp) as usize;
        // As much was requested of either stack: the one that was copied in full counts.
        let of_other = capture.other_stack.as_ref().map_or(0, |other| other.bytes.len());
        let stack = StackBytes { base: capture.stack_base, bytes: &capture.stack };
        let copied = (stack.end().0.saturating_sub(sp) as usize).max(of_other);
        // What is prefetched is not to be copied beside that.
        let needed = if capture.prefetched.is_empty() { needed } else { needed.min(copied) };
        let is_left_to_prefetch = walked.ended == StackEnd::DeeperThanCopied
            && may_prefetch
            && self.prefetch.may_complete(&capture.prefetched);
        if !is_left_to_prefetch {
            self.size.fit(walked, needed, copied, stack_max_bytes);
        }
        needed
    }

    /// Searches for the stack top of a thread that existed before the recording, where a walk is incomplete without:
    /// whether it did. `find` searches from an address on.
    pub(super) fn search_top(&mut self, walked: &Walked, find: impl FnOnce(Avma) -> Option<Avma>) -> bool {
        if walked.ended.is_complete() || self.top.is_some() || self.top_searches_left == 0 {
            return false;
        }
        self.top_searches_left -= 1;
        self.top = find(walked.reached);
        true
    }
}
