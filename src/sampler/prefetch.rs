//! Deep stacks without copying them: the few words that a walk reads above the copied bytes are read with each
//! sample, at its own moment.
//!
//! Where a walk leaves the copied bytes, the memory above is read afterwards, and a second walk through both shows
//! which words it reads there. What that walk finds counts for nothing: memory has changed since. The source
//! prefetches these words with the thread's next samples, and their walks go through what stood there then. The
//! outer frames of a thread hardly change, so nearly all words are there; a walk that needs another one is
//! incomplete, as one that leaves the copied bytes is, and shows what else to prefetch. A list that is out of date
//! costs a stack's completeness and never its truth.
//!
//! A walk that goes on on another stack (the one that a handler on an alternate stack interrupted) needs words like any
//! other.
//!
//! Input: walks that left the copied bytes; output: the ranges of memory to prefetch of each thread.

use std::cell::RefCell;

use hashbrown::HashMap;

use super::recorded_process::RecordedProcess;
use super::recorder::Recorder;
use super::sample::Sample;
use crate::addr::Avma;
use crate::images::{CodeMemory, TargetCode};
use crate::sources::pushed::StackUse;
use crate::sources::{Capture, Observed, PREFETCH_RANGE_BYTES, ThreadId};
use crate::walk::{self, Frames, OuterStack, StackBytes, StackEnd, UnwindMethod};

/// Memory is read in pages of so many bytes, at most so many of a stack: more is no stack.
const PAGE_BYTES: u64 = 4096;
const PAGES_MAX: usize = 1024;
/// The part of the copied bytes whose words are prefetched all the same: deeper samples have them above theirs.
const UNCOPIED_PARTS: usize = 4;

/// The bytes of a capture, and the memory above as it is now; notes what is read.
struct LaterStack<'a> {
    capture: &'a Capture,
    memory: RefCell<Memory<'a>>,
}

struct Memory<'a> {
    process: &'a mut dyn Observed,
    pages: HashMap<u64, Vec<u8>>,
    /// Address and size of each word.
    read: Vec<(u64, usize)>,
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

/// The fewest ranges that hold all these words, where no range shall touch a page without need: one that is not
/// there would take the whole range with it.
fn cover(mut words: Vec<(u64, usize)>) -> Vec<u64> {
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

impl Recorder<'_> {
    /// Takes a sample of a source that prefetches. Why its walk ended, if it is there, and the ranges that are to be
    /// prefetched of the thread from now on, if they have changed; `frames` is replaced by what the walk found.
    pub fn take_prefetched(
        &mut self,
        process: &mut dyn Observed,
        sample: Sample,
        stack_max_bytes: usize,
        frames: &mut Frames,
    ) -> (Option<StackEnd>, Option<&[u64]>) {
        let id = sample.thread;
        self.may_prefetch = true;
        let taken = self.take(process, sample, 1, stack_max_bytes, frames);
        (taken.stack.map(|(_, ended)| ended), self.new_ranges(id))
    }

    /// The ranges that are to be prefetched of a thread, if they have changed.
    pub(super) fn new_ranges(&mut self, id: ThreadId) -> Option<&[u64]> {
        let prefetch = &mut self.threads.get_mut(&id)?.prefetch;
        std::mem::take(&mut prefetch.is_new).then_some(&*prefetch.list)
    }

    /// Takes in what a walk needed of a capture. Where it ran out or went to another stack (`leaves`), it may show
    /// what to prefetch of the stacks to come: then it is not one that asks for more bytes.
    pub(super) fn search_above(
        &mut self,
        process: &mut dyn Observed,
        id: ThreadId,
        capture: &Capture,
        needed: StackUse,
        leaves: bool,
    ) -> StackUse {
        let Some(account) = self.threads.get_mut(&id) else { return needed };
        let has_prefetched = !capture.prefetched.is_empty();
        if !leaves {
            if has_prefetched {
                account.prefetch.was_enough();
            }
            // The words above that part are on the list, and are not to be copied beside it.
            let most = if has_prefetched { capture.stack.len() / UNCOPIED_PARTS } else { usize::MAX };
            return StackUse { bytes: needed.bytes.min(most), ..needed };
        }
        let mut bytes = needed.bytes;
        if account.prefetch.shall_search(has_prefetched) {
            let above = self.words_above(process, id, capture);
            let ranges = above.map(|words| {
                // As many copied bytes would have been enough beside the ranges that there were.
                let lacked = |(at, bytes): &&(u64, usize)| capture.prefetched.word(*at, *bytes).is_none();
                let end =
                    words.iter().filter(lacked).map(|(at, bytes)| at.saturating_add(*bytes as u64)).max();
                let from_sp = end.unwrap_or(0).saturating_sub(capture.registers.sp().0);
                bytes = bytes.max(usize::try_from(from_sp).unwrap_or(usize::MAX));
                cover(words)
            });
            if let Some(account) = self.threads.get_mut(&id) {
                account.prefetch.found(ranges);
            }
        }
        let Some(prefetch) = self.threads.get(&id).map(|account| &account.prefetch) else { return needed };
        // Of another stack no number of bytes holds anything.
        if !needed.truncated {
            return needed;
        }
        if prefetch.unbounded {
            return StackUse { truncated: false, unbounded: true, ..needed };
        }
        match prefetch.may_complete(&capture.prefetched) {
            // Until all ranges are there nothing shows how much is to be copied: half of it, as a beginning.
            true => StackUse { truncated: false, bytes: needed.bytes.max(capture.stack.len() / 8), ..needed },
            false => StackUse { bytes, ..needed },
        }
    }

    /// The words that a walk of a capture reads above its inner part, address and size, as far as the memory of now
    /// tells; `None` if it leads out of that, too.
    fn words_above(
        &mut self,
        process: &mut dyn Observed,
        id: ThreadId,
        capture: &Capture,
    ) -> Option<Vec<(u64, usize)>> {
        let account = self.threads.get_mut(&id)?;
        let recorded = self.processes.get_mut(account.process.0 as usize)?;
        let images = self.images.of(recorded.image_space_id);
        let RecordedProcess { jit, unwinder, .. } = recorded;
        let described = process.process();
        let (fp_always, code_mask) = (described.fp_always, described.code_mask);
        let how = if described.cfi { self.options.unwind } else { UnwindMethod::FramePointer };
        // What begins at an odd address stays aligned.
        let inner_bytes = (capture.stack.len() / UNCOPIED_PARTS).next_multiple_of(16);
        let inner = capture.stack.get(..inner_bytes).unwrap_or(&capture.stack);
        let stack = StackBytes { base: capture.stack_base, bytes: inner };
        let memory = Memory { process, pages: HashMap::new(), read: Vec::new() };
        let later = LaterStack { capture, memory: RefCell::new(memory) };
        let frames = &mut self.outer_frames;
        // What the sample's own walk learned is known; of more there is another search.
        jit.begin_walk(self.jit_budget.left(0));
        let mut spent = 0;
        loop {
            later.memory.borrow_mut().read.clear();
            let mut read_code =
                |at, into: &mut [u8]| later.memory.borrow_mut().process.read_memory(at, into).unwrap_or(0);
            let code_memory = CodeMemory::new(&mut read_code);
            let code = TargetCode { images, jit, memory: Some(&code_memory) };
            let input = walk::Input {
                stack,
                stack_top: account.stack_top,
                stack_limit: capture.stack_limit,
                fp_always,
                max_depth: self.options.max_depth,
                code_mask,
                code: &code,
                outer: Some(&later),
                // What the search finds counts for nothing: without knowing, a handler counts as not returned.
                blocked_signals: capture.prefetched.blocked_signals.or(Some(u64::MAX)),
            };
            let found = walk::unwind(how, &capture.registers, &input, unwinder, frames);
            let mut memory = later.memory.borrow_mut();
            let mut read = |at, into: &mut [u8]| memory.process.read_memory(at, into).unwrap_or(0);
            let walked = match found {
                Ok(walked) => walked,
                Err(needs) => {
                    jit.read(needs, &mut read);
                    continue;
                }
            };
            if matches!(walked.ended, StackEnd::DeeperThanCopied | StackEnd::OtherStack) {
                return None;
            }
            let (instructions, _) = jit.end_round();
            self.jit_budget.spend(instructions - spent);
            spent = instructions;
            let searched = account.search_stack_top(&walked, |reached| {
                let mut above = vec![0; walk::SEARCH_BYTES as usize];
                let bytes = read(reached, &mut above);
                above.truncate(bytes);
                let above = StackBytes { base: reached, bytes: &above };
                walk::find_stack_top(capture.registers.arch(), above, reached, &images)
            });
            if searched && account.stack_top.is_some() {
                continue;
            }
            return Some(std::mem::take(&mut memory.read));
        }
    }
}

#[cfg(test)]
mod tests;
