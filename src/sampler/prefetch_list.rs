//! What is prefetched of a thread's stack, and how long it is kept.

use crate::addr::Avma;
use crate::sources::{PREFETCH_RANGES_MAX, PrefetchedWords};
use crate::walk::OuterStack;

/// Searches in which a range that is not used stays on the list.
pub(super) const SEARCHES_KEPT: u32 = 8;

/// Samples that come without any range after a list was given out: they were taken before. Then it is given out
/// again; doubled each time.
const FIRST_UNSERVED: u32 = 128;

/// Samples without a search after one in vain, doubled each time.
const PATIENCE_MAX: u32 = 1 << 7;

/// What is prefetched of a thread's stack.
#[derive(Debug, Default)]
pub(super) struct Prefetch {
    /// The address of the first byte of each range, and the search that used it last.
    pub(super) ranges: Vec<(u64, u32)>,
    /// The addresses, ascending.
    pub(super) list: Vec<u64>,
    /// A range that the list before this one did not have.
    pub(super) newest: Option<u64>,
    pub(super) searches: u32,
    /// The list is to be given out.
    pub(super) is_new: bool,
    /// Samples without ranges since then, and how many are no wonder.
    pub(super) unserved: u32,
    pub(super) unserved_max: u32,
    /// Stacks that may run out before the next search.
    pub(super) patience: u32,
    pub(super) next_patience: u32,
    /// The last search led out of all memory.
    pub(super) unbounded: bool,
    /// It needed more ranges than a list holds.
    pub(super) too_many: bool,
    /// A walk went through ranges since the last search.
    pub(super) served: bool,
}

impl Prefetch {
    /// Whether a stack that ran out with these ranges is one that ranges are to complete: the stack size stays.
    pub(super) fn may_complete(&self, ranges: &PrefetchedWords) -> bool {
        !self.unbounded && !self.too_many && !self.is_current(ranges)
    }

    /// Whether ranges were read by the list as it is, and not by one from before.
    pub(super) fn is_current(&self, ranges: &PrefetchedWords) -> bool {
        !ranges.is_empty() && self.newest.is_none_or(|start| ranges.word(start, size_of::<u64>()).is_some())
    }

    /// A walk with ranges did not run out.
    pub(super) fn was_enough(&mut self) {
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
