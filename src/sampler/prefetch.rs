//! Deep stacks without copying them: each sample also captures the few words above the copied bytes that a walk
//! needs.
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

use std::cell::RefCell;

use hashbrown::HashMap;

use super::prefetch_list::UNCOPIED_PARTS;
use crate::addr::Avma;
use crate::sources::{Capture, Observed, PREFETCH_RANGE_BYTES, PREFETCH_RANGES_MAX};
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

#[cfg(test)]
mod tests;
