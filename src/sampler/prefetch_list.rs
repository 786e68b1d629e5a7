//! What is prefetched of a thread's stack, and how long it is kept.

use crate::addr::Avma;
use crate::sources::pushed::StackUse;
use crate::sources::{Capture, PREFETCH_RANGES_MAX, PrefetchedWords};
use crate::walk::OuterStack;

/// Searches in which a range that is not used stays on the list.
const SEARCHES_KEPT: u32 = 8;

/// The part of the copied bytes whose words are prefetched all the same: deeper samples have them above theirs.
pub(super) const UNCOPIED_PARTS: usize = 4;

/// Samples that come without any range after a list was given out: they were taken before. Then it is given out
/// again; doubled each time.
const FIRST_UNSERVED: u32 = 128;

/// Samples without a search after one in vain, doubled each time.
const PATIENCE_MAX: u32 = 1 << 7;

/// What is prefetched of a thread's stack.
#[derive(Debug, Default)]
pub(super) struct PrefetchList {
    /// The address of the first byte of each range, and the search that used it last.
    ranges: Vec<(u64, u32)>,
    /// The addresses, ascending.
    list: Vec<u64>,
    /// A range that the list before this one did not have.
    newest: Option<u64>,
    searches: u32,
    /// The list is to be given out.
    is_new: bool,
    /// Samples without ranges since then, and how many are no wonder.
    unserved: u32,
    unserved_max: u32,
    /// Stacks that may run out before the next search.
    patience: u32,
    next_patience: u32,
    /// The last search led out of all memory.
    unbounded: bool,
    /// It needed more ranges than a list holds.
    too_many: bool,
    /// A walk went through ranges since the last search.
    served: bool,
}

impl PrefetchList {
    /// Whether a stack that ran out with these ranges is one that ranges are to complete: the stack size stays.
    pub(super) fn may_complete(&self, ranges: &PrefetchedWords) -> bool {
        !self.unbounded && !self.too_many && !self.is_current(ranges)
    }

    /// Whether ranges were read by the list as it is, and not by one from before.
    fn is_current(&self, ranges: &PrefetchedWords) -> bool {
        !ranges.is_empty() && self.newest.is_none_or(|start| ranges.word(start, size_of::<u64>()).is_some())
    }

    /// The ranges to prefetch from now on, if they have changed.
    pub(super) fn take_new(&mut self) -> Option<&[u64]> {
        std::mem::take(&mut self.is_new).then_some(&*self.list)
    }

    /// Takes in a walk that did not leave what was copied: how much of that it needed.
    pub(super) fn take_enough(&mut self, capture: &Capture, needed: StackUse) -> StackUse {
        if capture.prefetched.is_empty() {
            return needed;
        }
        self.was_enough();
        // The words above that part are on the list, and are not to be copied beside it.
        StackUse { bytes: needed.bytes.min(capture.stack.len() / UNCOPIED_PARTS), ..needed }
    }

    /// What a walk that ran out asks of the stacks to come: ranges, if these may complete them, or so many `bytes`.
    pub(super) fn take_truncated(&self, capture: &Capture, needed: StackUse, bytes: usize) -> StackUse {
        if self.unbounded {
            return StackUse { truncated: false, unbounded: true, ..needed };
        }
        if self.may_complete(&capture.prefetched) {
            // Until all ranges are there nothing shows how much is to be copied: half of it, as a beginning.
            let bytes = needed.bytes.max(capture.stack.len() / 8);
            return StackUse { truncated: false, bytes, ..needed };
        }
        StackUse { bytes, ..needed }
    }

    /// A walk with ranges did not run out.
    fn was_enough(&mut self) {
        self.served = true;
        (self.patience, self.next_patience, self.unserved) = (0, 0, 0);
    }

    /// Whether a stack that ran out is one to search by.
    pub(super) fn shall_search(&mut self, has_prefetched: bool) -> bool {
        if !has_prefetched && !self.list.is_empty() {
            // Taken before there was a list; or the source has forgotten it.
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

    /// Takes in what a search found: the ranges of a stack, or `None` if it led out of all memory.
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

/// What was prefetched, for a walk.
#[derive(Debug)]
pub(super) struct Prefetched<'a>(pub(super) &'a PrefetchedWords);

impl OuterStack for Prefetched<'_> {
    fn word(&self, at: Avma, word_bytes: usize) -> Option<u64> {
        self.0.word(at.0, word_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_keep_what_was_used_of_late_and_searches_in_vain_become_rare() {
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
