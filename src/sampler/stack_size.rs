//! The stack of one thread as known to captures and walks (`StackExtent`): its top, the words to prefetch, and how
//! many bytes are copied at a stop (`StackSize`): as many as its stacks need, within the limit of a stop. Input:
//! what each walk needed; output: the next stack size.
//!
//! The size grows when a stack is deeper, and stays large only if a walk went further for it: stacks deeper than
//! any size (a switched stack, a chain into the heap) would otherwise make each stop copy megabytes for nothing.
//! After growth in vain, later attempts back off. The size shrinks in small steps, because depth recurs.

use super::prefetch::PrefetchList;
use crate::addr::Avma;
use crate::arch::Registers;
use crate::sources::{Capture, Observed};
use crate::walk::{StackBytes, StackEnd, WalkResult};

/// Size of a thread's first capture; growth reaches at least this size again.
pub(super) const FIRST_STACK_BYTES: usize = 32 << 10;
/// Granularity of sizes, so that small changes of depth have no effect.
const STEP_BYTES: usize = 4 << 10;
/// Consecutive samples that needed less before the size shrinks by a step.
const SHRINK_AFTER: u8 = 16;
/// Deeper stacks after growth in vain before the next attempt; doubled each time.
const FIRST_PATIENCE: u32 = 64;
const PATIENCE_MAX: u32 = 1 << 14;

/// The stack size of one thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct StackSize {
    bytes: usize,
    needed_less: u8,
    /// Size before the growth, until a walk needed more than that.
    grown_from: Option<usize>,
    /// Truncated stacks to skip before the size grows again.
    patience: u32,
    next_patience: u32,
}

impl StackSize {
    pub(super) fn new() -> StackSize {
        StackSize {
            bytes: FIRST_STACK_BYTES,
            needed_less: 0,
            grown_from: None,
            patience: 0,
            next_patience: FIRST_PATIENCE,
        }
    }

    /// Bytes to copy at the next stop.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adjusts the size after a walk that `needed` this many bytes above the stack pointer of the `copied` ones.
    /// `max_bytes`: current limit of a stop.
    pub(super) fn fit(&mut self, walked: &WalkResult, needed: usize, copied: usize, max_bytes: usize) {
        if walked.ended == StackEnd::DeeperThanCopied {
            // Fewer bytes than requested: the memory ends there, and nothing is above.
            if copied >= self.bytes {
                self.ran_out(max_bytes);
            }
        } else {
            self.was_enough(needed.saturating_add(STEP_BYTES).next_multiple_of(STEP_BYTES));
        }
        if self.bytes > max_bytes {
            self.bytes = max_bytes;
        }
    }

    /// Requests this many bytes once, for a search above a whole stack.
    pub(super) fn reach(&mut self, bytes: usize, max_bytes: usize) {
        self.bytes = self.bytes.max(bytes.min(max_bytes).next_multiple_of(STEP_BYTES));
    }

    fn ran_out(&mut self, max_bytes: usize) {
        self.needed_less = 0;
        if self.patience > 0 {
            self.patience -= 1;
            return;
        }
        let larger = self.bytes.saturating_mul(4).min(max_bytes);
        if larger > self.bytes {
            self.grown_from.get_or_insert(self.bytes);
            self.bytes = larger;
        } else {
            self.give_up();
        }
    }

    fn was_enough(&mut self, needed: usize) {
        if let Some(before) = self.grown_from
            && needed > before
        {
            self.grown_from = None;
            self.next_patience = FIRST_PATIENCE;
        }
        if needed >= self.bytes {
            self.needed_less = 0;
            return;
        }
        self.needed_less += 1;
        if self.needed_less >= SHRINK_AFTER {
            self.needed_less = 0;
            self.bytes -= STEP_BYTES;
            if self.grown_from.is_some_and(|before| self.bytes <= before) {
                self.give_up();
            }
        }
    }

    /// Reverts growth that did not help.
    fn give_up(&mut self) {
        self.bytes = self.grown_from.take().unwrap_or(self.bytes).min(self.bytes);
        self.patience = self.next_patience;
        self.next_patience = self.next_patience.saturating_mul(2).min(PATIENCE_MAX);
    }
}

// ---- The stack of one thread as known to captures and walks: its top, the size to copy, and the words above to
// prefetch.

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

// ---- The red zone of a capture: bytes below the stack pointer that code may keep words in (System V ABI, AMD64
// supplement, 3.2.2).

/// A copy of a capture with the bytes currently below the stack pointer, if it lacks them: rows of unwind
/// information may refer to words there.
pub(super) fn with_red_zone(process: &mut dyn Observed, capture: &Capture) -> Option<Capture> {
    let below = capture.registers.arch().red_zone_bytes_max();
    let base = capture.registers.sp().0.checked_sub(below).filter(|_| lacks_red_zone(capture))?;
    let mut stack = vec![0; below as usize];
    let read = process.read_memory(Avma(base), &mut stack).ok()?;
    if read < stack.len() {
        return None;
    }
    stack.extend_from_slice(&capture.stack);
    Some(Capture { stack, stack_base: Avma(base), ..capture.clone() })
}

/// Whether the capture lacks bytes below the stack pointer, where rows may read.
pub(super) fn lacks_red_zone(capture: &Capture) -> bool {
    matches!(capture.registers, Registers::X86_64(_)) && capture.stack_base == capture.registers.sp()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Avma;

    const MAX: usize = 1 << 20;

    fn walked(ended: StackEnd) -> WalkResult {
        WalkResult { ended, reached: Avma(0) }
    }

    fn ran_out(stack_size: &mut StackSize) {
        let bytes = stack_size.bytes();
        stack_size.fit(&walked(StackEnd::DeeperThanCopied), bytes, bytes, MAX);
    }

    #[test]
    fn a_stack_size_grows_at_once_and_shrinks_slowly() {
        let mut stack_size = StackSize::new();
        ran_out(&mut stack_size);
        assert_eq!(stack_size.bytes(), 4 * FIRST_STACK_BYTES);
        stack_size.fit(&walked(StackEnd::Root), 3 * FIRST_STACK_BYTES, stack_size.bytes(), MAX);
        assert_eq!(stack_size.bytes(), 4 * FIRST_STACK_BYTES, "the deep stack may come back");
        for _ in 0..16 * 40 {
            stack_size.fit(&walked(StackEnd::Root), 100, stack_size.bytes(), MAX);
        }
        assert_eq!(stack_size.bytes(), 2 * STEP_BYTES);
    }

    #[test]
    fn a_stack_deeper_than_any_size_makes_no_stop_long() {
        let mut stack_size = StackSize::new();
        let (mut copied, mut largest) = (0, 0);
        for _ in 0..100_000 {
            copied += stack_size.bytes();
            largest = largest.max(stack_size.bytes());
            ran_out(&mut stack_size);
        }
        assert_eq!(largest, MAX, "it is tried");
        assert!(copied / 100_000 < FIRST_STACK_BYTES * 11 / 10, "{} bytes on average", copied / 100_000);
    }

    #[test]
    fn growth_that_other_stacks_did_not_need_is_reverted() {
        let mut stack_size = StackSize::new();
        ran_out(&mut stack_size);
        for _ in 0..16 * 24 {
            stack_size.fit(&walked(StackEnd::BrokenFrameChain), 100, stack_size.bytes(), MAX);
        }
        assert_eq!(stack_size.bytes(), FIRST_STACK_BYTES);
        ran_out(&mut stack_size);
        assert_eq!(stack_size.bytes(), FIRST_STACK_BYTES, "not again at once");
    }

    #[test]
    fn memory_beyond_its_end_is_not_requested_again() {
        let mut stack_size = StackSize::new();
        stack_size.fit(&walked(StackEnd::DeeperThanCopied), 5_000, 5_000, MAX);
        assert_eq!(stack_size.bytes(), FIRST_STACK_BYTES);
    }

    #[test]
    fn a_smaller_limit_shrinks_the_stack_size_at_once() {
        let mut stack_size = StackSize::new();
        ran_out(&mut stack_size);
        stack_size.fit(&walked(StackEnd::Root), 100_000, stack_size.bytes(), 64 << 10);
        assert_eq!(stack_size.bytes(), 64 << 10);
    }
}
