//! The ranges to prefetch of a thread's stack, and how long they are kept.

use std::cell::Cell;

use crate::addr::Avma;
use crate::sources::pushed::StackUse;
use crate::sources::{Capture, PREFETCH_RANGES_MAX, PrefetchedWords};
use crate::walk::OuterStack;

/// Number of searches for which an unused range stays on the list.
const SEARCHES_KEPT: u32 = 8;

/// One part in this many of the copied bytes is not prefetched; words in the rest are, since deeper samples have
/// them above their copied bytes.
pub(super) const UNCOPIED_PARTS: usize = 4;

/// Samples without any range, taken before the list was sent, that are tolerated before it is sent again; doubled
/// each time.
const FIRST_UNSERVED: u32 = 128;

/// Maximum number of samples to skip after a search in vain; doubles up to this.
const PATIENCE_MAX: u32 = 1 << 7;

/// The ranges to prefetch of a thread's stack.
#[derive(Debug, Default)]
pub(super) struct PrefetchList {
    /// Start address of each range, and the last search that used it.
    ranges: Vec<(u64, u32)>,
    /// Start addresses, ascending.
    list: Vec<u64>,
    /// A range that is new in this list.
    newest: Option<u64>,
    searches: u32,
    /// Whether the list is still to be sent.
    is_new: bool,
    /// Samples without ranges since the list was sent, and how many are tolerated.
    unserved: u32,
    unserved_max: u32,
    /// Truncated stacks to skip before the next search.
    patience: u32,
    next_patience: u32,
    /// Whether the last search left all readable memory.
    unbounded: bool,
    /// Whether it needed more ranges than a list holds.
    too_many: bool,
    /// Whether a walk went through ranges since the last search.
    served: bool,
}

impl PrefetchList {
    /// Whether ranges may complete a stack truncated despite these, so that the stack size can stay.
    pub(super) fn may_complete(&self, ranges: &PrefetchedWords) -> bool {
        !self.unbounded && !self.too_many && !self.is_current(ranges)
    }

    /// Whether these ranges come from the current list, not an earlier one.
    fn is_current(&self, ranges: &PrefetchedWords) -> bool {
        !ranges.is_empty() && self.newest.is_none_or(|start| ranges.word(start, size_of::<u64>()).is_some())
    }

    /// The ranges to prefetch, if they changed.
    pub(super) fn take_new(&mut self) -> Option<&[u64]> {
        std::mem::take(&mut self.is_new).then_some(&*self.list)
    }

    /// Records a walk that stayed within the copied bytes; returns how much of them it needed.
    pub(super) fn record_enough(&mut self, capture: &Capture, needed: StackUse) -> StackUse {
        if capture.prefetched.is_empty() {
            return needed;
        }
        self.was_enough();
        // Words above that part are on the list and need no copy.
        StackUse { bytes: needed.bytes.min(capture.usual_bytes() / UNCOPIED_PARTS), ..needed }
    }

    /// What a truncated walk requests for later stacks: ranges, if these may complete them, or else `bytes`.
    pub(super) fn request_for_truncated(
        &self,
        capture: &Capture,
        needed: StackUse,
        bytes: usize,
    ) -> StackUse {
        if self.unbounded {
            return StackUse { truncated: false, unbounded: true, ..needed };
        }
        if self.may_complete(&capture.prefetched) {
            // Until all ranges are present, the size to copy is unknown: start with half of it.
            let bytes = needed.bytes.max(capture.usual_bytes() / 8);
            return StackUse { truncated: false, bytes, ..needed };
        }
        StackUse { bytes, ..needed }
    }

    /// Records a complete walk with ranges.
    fn was_enough(&mut self) {
        self.served = true;
        (self.patience, self.next_patience, self.unserved) = (0, 0, 0);
    }

    /// Whether to search after a truncated stack.
    pub(super) fn shall_search(&mut self, has_prefetched: bool) -> bool {
        if !has_prefetched && !self.list.is_empty() {
            // Taken before the list existed; or the source has dropped the list.
            self.unserved += 1;
            if self.unserved > self.unserved_max {
                (self.unserved, self.is_new) = (0, true);
                self.unserved_max = self.unserved_max.saturating_mul(2);
                self.newest = None;
            }
            return false;
        }
        if self.patience > 0 {
            self.patience -= 1;
            return false;
        }
        true
    }

    /// Records the result of a search: the ranges of a stack, or `None` if it left all readable memory.
    pub(super) fn found(&mut self, ranges: Option<Vec<u64>>) {
        self.searches += 1;
        if !std::mem::take(&mut self.served) {
            self.patience = self.next_patience;
            self.next_patience = (self.next_patience * 2 + 1).min(PATIENCE_MAX);
        }
        self.unbounded = ranges.is_none();
        self.too_many = ranges.as_ref().is_some_and(|ranges| ranges.len() > PREFETCH_RANGES_MAX);
        let Some(ranges) = ranges.filter(|ranges| ranges.len() <= PREFETCH_RANGES_MAX) else { return };
        let now = self.searches;
        self.newest = ranges.iter().find(|start| self.list.binary_search(start).is_err()).copied();
        self.ranges
            .retain(|(start, used)| now - used <= SEARCHES_KEPT && ranges.binary_search(start).is_err());
        self.ranges.sort_by_key(|(_, used)| std::cmp::Reverse(*used));
        self.ranges.truncate(PREFETCH_RANGES_MAX - ranges.len());
        self.ranges.extend(ranges.into_iter().map(|start| (start, now)));
        self.list.clear();
        self.list.extend(self.ranges.iter().map(|(start, _)| *start));
        self.list.sort_unstable();
        (self.is_new, self.unserved) = (true, 0);
        self.unserved_max = self.unserved_max.max(FIRST_UNSERVED);
    }
}

/// What was read at the moment of a capture above the bytes that each sample has.
#[derive(Debug)]
pub(super) struct CapturedOuter<'a> {
    capture: &'a Capture,
    /// End of the highest word that was in no prefetched range; 0 if all were.
    besides_ranges_end: Cell<u64>,
}

impl<'a> CapturedOuter<'a> {
    pub(super) fn new(capture: &'a Capture) -> CapturedOuter<'a> {
        CapturedOuter { capture, besides_ranges_end: Cell::new(0) }
    }

    /// Forgets what earlier rounds of the walk read.
    pub(super) fn begin_round(&self) {
        self.besides_ranges_end.set(0);
    }

    /// Bytes above the stack pointer that a walk read besides prefetched ranges, if it read up to this many in all.
    pub(super) fn bytes_besides_ranges(&self, bytes: usize) -> usize {
        let above = self.besides_ranges_end.get().saturating_sub(self.capture.registers.sp().0);
        (above as usize).max(bytes.min(self.capture.usual_bytes()))
    }
}

impl OuterStack for CapturedOuter<'_> {
    fn word(&self, at: Avma, word_bytes: usize) -> Option<u64> {
        let capture = self.capture;
        if let Some(word) = capture.prefetched.word(at.0, word_bytes) {
            return Some(word);
        }
        let of_tail = || {
            let from = usize::try_from(at.0.checked_sub(capture.stack_base.0)?).ok()?;
            let bytes = capture.stack.get(from..from.checked_add(word_bytes)?)?;
            Some(bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)))
        };
        let word = of_tail().or_else(|| capture.upper_stack.word(at.0, word_bytes))?;
        self.besides_ranges_end
            .set(self.besides_ranges_end.get().max(at.0.saturating_add(word_bytes as u64)));
        Some(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_keep_recently_used_ranges_and_failed_searches_back_off() {
        let mut prefetch = PrefetchList::default();
        assert!(prefetch.shall_search(false));
        prefetch.found(Some(vec![0x1000, 0x2000]));
        assert!(prefetch.is_new && prefetch.list == [0x1000, 0x2000]);
        assert!(!prefetch.shall_search(false), "taken before the list was");
        prefetch.was_enough();
        assert!(prefetch.shall_search(true));
        prefetch.found(Some(vec![0x1800, 0x2000]));
        assert_eq!(prefetch.list, [0x1000, 0x1800, 0x2000]);
        for _ in 0..=SEARCHES_KEPT {
            prefetch.found(Some(vec![0x1800]));
        }
        assert_eq!(prefetch.list, [0x1800]);
        prefetch.found(Some((0..PREFETCH_RANGES_MAX as u64 + 1).map(|number| number * 64).collect()));
        assert!(prefetch.list == [0x1800] && !prefetch.may_complete(&PrefetchedWords::default()));
        let mut prefetch = PrefetchList::default();
        let mut searches = 0;
        for _ in 0..10_000 {
            if prefetch.shall_search(false) {
                searches += 1;
                prefetch.found(None);
            }
        }
        assert!(searches < 100 && prefetch.unbounded, "{searches}");
    }
}
