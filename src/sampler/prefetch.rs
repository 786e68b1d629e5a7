//! Deep stacks without copying them: each sample also captures the few words above the copied bytes that a walk
//! needs.
//!
//! `LaterStack` is the memory read afterwards, `PrefetchList` the ranges to prefetch of a thread, `CapturedOuter`
//! the words that a sample brought.
//!
//! When a walk leaves the copied bytes, the memory above is read afterwards, and a second walk through both shows
//! which words it reads there. The result of that walk is discarded, since the memory has changed. The source
//! prefetches these words with the thread's next samples, whose walks then see values from the moment of the
//! sample. The outer frames of a thread rarely change, so nearly all words are present. A walk that needs another
//! one is incomplete, like one that leaves the copied bytes, and shows what else to prefetch. An outdated list
//! makes a stack incomplete, never wrong.
//!
//! A walk that continues on another stack (the one interrupted by a handler on an alternate stack) needs words in
//! the same way.
//!
//! Input: walks that left the copied bytes; output: each thread's ranges of memory to prefetch.

#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};

use hashbrown::HashMap;

use crate::addr::Avma;
use crate::sources::pushed::StackUse;
use crate::sources::{Capture, Observed, PREFETCH_RANGE_BYTES, PREFETCH_RANGES_MAX, PrefetchedWords};
use crate::walk::{OuterStack, STACK_BYTES_MAX, StackBytes};

/// Memory is read in pages of this size; no real stack has more of them than the maximum.
const PAGE_BYTES: u64 = 4096;
const PAGES_MAX: usize = 1024;

/// Bytes below the lowest word of another stack that are prefetched, too, and between two words of one stack.
const BELOW_BYTES: u64 = 4 << 10;
const GAP_BYTES: u64 = 4 << 10;

/// Address and size of a word.
pub(super) type Word = (u64, usize);

/// The bytes of a capture plus the current memory above them; records which words are read.
pub(super) struct LaterStack<'a> {
    capture: &'a Capture,
    memory: RefCell<Memory<'a>>,
}

impl<'a> LaterStack<'a> {
    /// The stack of a capture from this process.
    pub(super) fn new(capture: &'a Capture, process: &'a mut dyn Observed) -> LaterStack<'a> {
        let memory = Memory { process, pages: HashMap::new(), read: Vec::new() };
        LaterStack { capture, memory: RefCell::new(memory) }
    }

    /// Reads memory, of code or of the stack, without recording it.
    pub(super) fn read(&self, at: Avma, into: &mut [u8]) -> usize {
        self.memory.borrow_mut().process.read_memory(at, into).unwrap_or(0)
    }

    /// Clears the recorded words, for another walk.
    pub(super) fn forget_words(&self) {
        self.memory.borrow_mut().read.clear();
    }

    /// The recorded words.
    pub(super) fn take_words(&self) -> Vec<Word> {
        std::mem::take(&mut self.memory.borrow_mut().read)
    }
}

/// The inner part of a capture, where words are not prefetched.
pub(super) fn inner_part(capture: &Capture) -> StackBytes<'_> {
    // Keeps the alignment of the base address.
    let inner_bytes = (capture.usual_bytes() / UNCOPIED_PARTS).next_multiple_of(16);
    let bytes = capture.stack.get(..inner_bytes).unwrap_or(&capture.stack);
    StackBytes { base: capture.stack_base, bytes }
}

struct Memory<'a> {
    process: &'a mut dyn Observed,
    pages: HashMap<u64, Vec<u8>>,
    read: Vec<Word>,
}

impl Memory<'_> {
    fn byte(&mut self, at: u64) -> Option<u8> {
        let start = at & !(PAGE_BYTES - 1);
        if !self.pages.contains_key(&start) {
            if self.pages.len() >= PAGES_MAX {
                return None;
            }
            let mut page = vec![0; PAGE_BYTES as usize];
            let read = self.process.read_memory(Avma(start), &mut page).unwrap_or(0);
            page.truncate(read);
            self.pages.insert(start, page);
        }
        self.pages.get(&start)?.get((at - start) as usize).copied()
    }
}

impl OuterStack for LaterStack<'_> {
    fn word(&self, at: Avma, word_bytes: usize) -> Option<u64> {
        let mut memory = self.memory.borrow_mut();
        if let Some(word) = self.capture.upper_stack.word(at.0, word_bytes) {
            memory.read.push((at.0, word_bytes));
            return Some(word);
        }
        let mut word = 0;
        for byte in (0..word_bytes as u64).rev() {
            let address = at.0.checked_add(byte)?;
            let copied = address.checked_sub(self.capture.stack_base.0);
            let copied = copied.and_then(|offset| self.capture.stack.get(usize::try_from(offset).ok()?));
            let byte = match copied {
                Some(byte) => *byte,
                None => memory.byte(address)?,
            };
            word = word << 8 | u64::from(byte);
        }
        memory.read.push((at.0, word_bytes));
        Some(word)
    }
}

/// Covers the words of a walk: those of the capture's own stack with the fewest ranges, those of other stacks with
/// the memory between and below them, as far as a list has room. There nothing is copied: what a walk leads to is the
/// innermost part of that stack, which is elsewhere in the next sample (OCaml's functions below those in C).
pub(super) fn cover_stacks(words: Vec<Word>, capture: &Capture) -> Vec<u64> {
    let own = capture.stack_base
        ..capture.stack_limit.unwrap_or(Avma(capture.stack_base.0.saturating_add(STACK_BYTES_MAX)));
    let (own, mut other): (Vec<Word>, Vec<Word>) =
        words.into_iter().partition(|(at, _)| own.contains(&Avma(*at)));
    let of_own = cover(own);
    let few = cover(other.clone());
    other.sort_unstable();
    let room = PREFETCH_RANGES_MAX.saturating_sub(of_own.len());
    // Ranges at multiples of their size touch one page each.
    const RANGE: u64 = PREFETCH_RANGE_BYTES as u64;
    let filled = [BELOW_BYTES, 0].into_iter().find_map(|below| {
        let mut ranges = Vec::new();
        let mut end = 0;
        for (at, bytes) in &other {
            let is_far = at.saturating_sub(end) > GAP_BYTES;
            let first = if is_far { at.saturating_sub(below) } else { end } & !(RANGE - 1);
            end = at.saturating_add(*bytes as u64);
            ranges.extend((first..end).step_by(RANGE as usize).take(PREFETCH_RANGES_MAX + 1));
            ranges.dedup();
            if ranges.len() > room {
                return None;
            }
        }
        Some(ranges)
    });
    let mut ranges = [of_own, filled.unwrap_or(few)].concat();
    ranges.sort_unstable();
    ranges.dedup();
    ranges
}

/// Covers these words with the fewest ranges. No range touches a page without need: a missing page would fail the
/// whole range.
pub(super) fn cover(mut words: Vec<Word>) -> Vec<u64> {
    words.sort_unstable();
    let mut ranges = Vec::new();
    let mut words = words.into_iter().peekable();
    while let Some((first, bytes)) = words.next() {
        let mut end = first.saturating_add(bytes as u64);
        while let Some((at, bytes)) = words.peek() {
            let further = at.saturating_add(*bytes as u64);
            if further.saturating_sub(first) > PREFETCH_RANGE_BYTES as u64 {
                break;
            }
            end = end.max(further);
            words.next();
        }
        let page = |at: u64| at & !(PAGE_BYTES - 1);
        let leads_on = page(first.saturating_add(PREFETCH_RANGE_BYTES as u64 - 1)) != page(end - 1);
        ranges.push(if leads_on { end.saturating_sub(PREFETCH_RANGE_BYTES as u64) } else { first });
    }
    ranges.sort_unstable();
    ranges.dedup();
    ranges
}

// ---- The ranges to prefetch of a thread's stack, and how long they are kept.

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
mod prefetch_list_tests {
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
