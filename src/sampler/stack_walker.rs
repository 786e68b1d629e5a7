//! Walks of captures, with the images and the code of their process, and searches for the words above the copied bytes.
//!
//! Input: a capture, the process and the thread it is of. Output: frames, why the walk ended, and how much of the stack
//! it needed. Images are read again where a stack leads to code in none.

use super::jit_budget::JitBudget;
use super::options::Options;
use super::prefetch::{LaterStack, Word, cover, inner_part};
use super::prefetch_list::Prefetched;
use super::processes::{ProcessCode, Processes};
use super::red_zone::{lacks_red_zone, with_red_zone};
use super::thread::ThreadAccount;
use crate::addr::Avma;
use crate::clock::Clock;
use crate::images::{CodeMemory, TargetCode};
use crate::sources::pushed::StackUse;
use crate::sources::{Capture, Observed, Process};
use crate::walk::{self, Frames, Method, OtherStack, OuterStack, StackBytes, StackEnd, UnwindMethod, Walked};

/// Walks the stacks of a recording.
pub(super) struct StackWalker<'a> {
    clock: &'a dyn Clock,
    method: UnwindMethod,
    max_depth: usize,
    /// Captures can have ranges of stacks beside the bytes that are copied.
    may_prefetch: bool,
    jit_budget: JitBudget,
    /// Frames of walks that only show where stacks lead.
    outer_frames: Frames,
}

impl<'a> StackWalker<'a> {
    pub(super) fn new(clock: &'a dyn Clock, options: &Options) -> StackWalker<'a> {
        StackWalker {
            clock,
            method: options.unwind,
            max_depth: options.max_depth,
            may_prefetch: false,
            jit_budget: JitBudget::default(),
            outer_frames: Frames::default(),
        }
    }

    /// Follows JIT code without a limit, for what is done once.
    pub(super) fn follow_all_jit_code(&mut self) {
        self.jit_budget = JitBudget::unlimited();
    }

    /// Whether captures can have ranges of stacks from now on.
    pub(super) fn set_may_prefetch(&mut self, may: bool) {
        self.may_prefetch = may;
    }

    /// Walks a capture into `frames`, with the images it needs. Why it ended, and how many bytes above the stack
    /// pointer it needed; `None` for a thread of a process that is not known. Where it left what was copied, the ranges
    /// of the stack that it lacked are looked for. `stack_max_bytes` is as much as the next capture may copy.
    pub(super) fn walk(
        &mut self,
        processes: &mut Processes,
        account: &mut ThreadAccount,
        process: &mut dyn Observed,
        capture: &Capture,
        stack_max_bytes: usize,
        frames: &mut Frames,
    ) -> Option<(StackEnd, StackUse)> {
        let (ended, needed) = if capture.only_kernel {
            frames.clear();
            (StackEnd::Root, StackUse::default())
        } else {
            self.walk_capture(processes, account, process, capture, stack_max_bytes, frames)?
        };
        if !self.may_prefetch {
            return Some((ended, needed));
        }
        let leaves = needed.truncated || ended == StackEnd::OtherStack;
        Some((ended, self.search_above(processes, account, process, capture, needed, leaves)))
    }

    /// Walks a capture into `frames`, with the images it needs.
    fn walk_capture(
        &mut self,
        processes: &mut Processes,
        account: &mut ThreadAccount,
        process: &mut dyn Observed,
        capture: &Capture,
        stack_max_bytes: usize,
        frames: &mut Frames,
    ) -> Option<(StackEnd, StackUse)> {
        let (of, clock) = (account.process, self.clock);
        processes.note_walked(of);
        if !processes.images_of(of)?.contains(capture.registers.pc()) {
            processes.retry_images(of, process, clock);
        }
        let needed = |(ended, bytes), needs_red_zone| {
            let truncated = ended == StackEnd::DeeperThanCopied;
            Some((ended, StackUse { bytes, truncated, needs_red_zone, unbounded: false }))
        };
        let mut walk =
            |processes: &mut Processes, process: &mut dyn Observed, capture: &Capture, frames: &mut _| {
                self.walk_with_known_images(processes, account, process, capture, stack_max_bytes, frames)
            };
        let (ended, bytes) = walk(processes, process, capture, frames)?;
        if ended == StackEnd::BadFrame
            && frames.addresses.len() == 1
            && let Some(fuller) = with_red_zone(process, capture)
        {
            processes.set_red_zone_read_later(of, true);
            let walked = walk(processes, process, &fuller, frames);
            processes.set_red_zone_read_later(of, false);
            return needed(walked?, true);
        }
        // A row that could not read there is bridged, too.
        let needs_red_zone = frames.methods.get(1) == Some(&Method::Scan) && lacks_red_zone(capture);
        // A torn chain, or a library that was loaded since?
        if matches!(ended, StackEnd::BadFrame | StackEnd::Undescribed | StackEnd::Scanned)
            && processes.retry_images(of, process, clock)
        {
            let walked = walk(processes, process, capture, frames)?;
            return needed(walked, needs_red_zone);
        }
        needed((ended, bytes), needs_red_zone)
    }

    /// Walks a capture into `frames`, with the images that are known. Why it ended, and how many bytes above the stack
    /// pointer it needed.
    pub(super) fn walk_with_known_images(
        &mut self,
        processes: &mut Processes,
        account: &mut ThreadAccount,
        process: &mut dyn Observed,
        capture: &Capture,
        stack_max_bytes: usize,
        frames: &mut Frames,
    ) -> Option<(StackEnd, usize)> {
        let stack = StackBytes { base: capture.stack_base, bytes: &capture.stack };
        let outer = Prefetched(&capture.prefetched);
        let other = capture.other_stack.as_deref().map(|other| OtherStack {
            stack: StackBytes { base: other.base, bytes: &other.bytes },
            limit: other.limit,
        });
        let memory = WalkedMemory {
            stack,
            other,
            outer: (!capture.prefetched.is_empty()).then_some(&outer),
            blocked_signals: capture.prefetched.blocked_signals,
        };
        let now_ns = self.clock.now_ns();
        let (extent, code) = (&mut account.stack, processes.code(account.process)?);
        let mut rounds = self.begin(code, process.process());
        let may_prefetch = rounds.may_prefetch;
        let mut read = |at, into: &mut [u8]| process.read_memory(at, into).unwrap_or(0);
        let ProcessCode { jit, unwinder, .. } = &mut rounds.code;
        jit.check(now_ns, &mut read, |is_gone| unwinder.forget(is_gone));
        rounds.set_time(now_ns);
        // Repeats until the walk lacks no JIT bytes and the stack top was found or given up.
        loop {
            let Some(mut walked) = rounds.walk(capture, &memory, extent.top(), &mut read, frames) else {
                continue;
            };
            if rounds.end_round() {
                walked.ended = StackEnd::JitBudget;
            }
            let needed = extent.fit(capture, &walked, stack_max_bytes, may_prefetch);
            if !extent.search_top(&walked, |reached| rounds.find_stack_top(capture, stack, reached)) {
                return Some((walked.ended, needed));
            }
            if extent.top().is_none() {
                extent.reach(needed.saturating_add(walk::SEARCH_BYTES as usize), stack_max_bytes);
                return Some((walked.ended, needed));
            }
        }
    }

    /// Takes in what a walk needed of a capture. Where it ran out or went to another stack (`leaves`), it may show
    /// what to prefetch of the stacks to come: then it is not one that asks for more bytes.
    pub(super) fn search_above(
        &mut self,
        processes: &mut Processes,
        account: &mut ThreadAccount,
        process: &mut dyn Observed,
        capture: &Capture,
        needed: StackUse,
        leaves: bool,
    ) -> StackUse {
        let has_prefetched = !capture.prefetched.is_empty();
        if !leaves {
            return account.stack.prefetch().take_enough(capture, needed);
        }
        let mut bytes = needed.bytes;
        if account.stack.prefetch().shall_search(has_prefetched) {
            let above = self.words_above(processes, account, process, capture);
            let ranges = above.map(|words| {
                // As many copied bytes would have been enough beside the ranges that there were.
                let lacked = |(at, bytes): &&Word| capture.prefetched.word(*at, *bytes).is_none();
                let end =
                    words.iter().filter(lacked).map(|(at, bytes)| at.saturating_add(*bytes as u64)).max();
                let from_sp = end.unwrap_or(0).saturating_sub(capture.registers.sp().0);
                bytes = bytes.max(usize::try_from(from_sp).unwrap_or(usize::MAX));
                cover(words)
            });
            account.stack.prefetch().found(ranges);
        }
        // Of another stack no number of bytes holds anything.
        if !needed.truncated {
            return needed;
        }
        account.stack.prefetch().take_truncated(capture, needed, bytes)
    }

    /// The words that a walk of a capture reads above its inner part, as far as the memory of now tells; `None` if it
    /// leads out of that, too.
    fn words_above(
        &mut self,
        processes: &mut Processes,
        account: &mut ThreadAccount,
        process: &mut dyn Observed,
        capture: &Capture,
    ) -> Option<Vec<Word>> {
        let (extent, code) = (&mut account.stack, processes.code(account.process)?);
        let mut frames = std::mem::take(&mut self.outer_frames);
        let mut rounds = self.begin(code, process.process());
        // What the sample's own walk learned is known; of more there is another search.
        rounds.set_time(0);
        let stack = inner_part(capture);
        let later = LaterStack::new(capture, process);
        let memory = WalkedMemory {
            stack,
            other: None,
            outer: Some(&later),
            // What the search finds counts for nothing: without knowing, a handler counts as not returned.
            blocked_signals: capture.prefetched.blocked_signals.or(Some(u64::MAX)),
        };
        let mut read = |at, into: &mut [u8]| later.read(at, into);
        let words = loop {
            later.forget_words();
            let Some(walked) = rounds.walk(capture, &memory, extent.top(), &mut read, &mut frames) else {
                continue;
            };
            if matches!(walked.ended, StackEnd::DeeperThanCopied | StackEnd::OtherStack) {
                break None;
            }
            rounds.end_round();
            let searched = extent.search_top(&walked, |reached| {
                let mut above = vec![0; walk::SEARCH_BYTES as usize];
                let bytes = later.read(reached, &mut above);
                let above = StackBytes { base: reached, bytes: above.get(..bytes).unwrap_or(&above) };
                rounds.find_stack_top(capture, above, reached)
            });
            if !searched || extent.top().is_none() {
                break Some(later.take_words());
            }
        };
        self.outer_frames = frames;
        words
    }

    fn begin<'w>(&'w mut self, code: ProcessCode<'w>, process: &Process) -> WalkRounds<'w> {
        WalkRounds {
            code,
            method: if process.cfi { self.method } else { UnwindMethod::FramePointer },
            fp_always: process.fp_always,
            code_mask: process.code_mask,
            max_depth: self.max_depth,
            may_prefetch: self.may_prefetch,
            jit_budget: &mut self.jit_budget,
            spent: 0,
        }
    }
}

/// The stack that a walk goes through.
struct WalkedMemory<'w> {
    stack: StackBytes<'w>,
    /// See [`walk::unwind_on_two`].
    other: Option<OtherStack<'w>>,
    /// Words above the stack.
    outer: Option<&'w dyn OuterStack>,
    /// See [`walk::Input::blocked_signals`].
    blocked_signals: Option<u64>,
}

/// The rounds of one walk: another one where bytes of JIT code lacked, or where a stack top was found.
struct WalkRounds<'w> {
    code: ProcessCode<'w>,
    method: UnwindMethod,
    fp_always: bool,
    code_mask: u64,
    max_depth: usize,
    may_prefetch: bool,
    jit_budget: &'w mut JitBudget,
    /// Instructions of JIT code that the rounds so far have looked at.
    spent: u64,
}

impl WalkRounds<'_> {
    /// The walk is of a sample of this time, which is what may be spent on it.
    fn set_time(&mut self, now_ns: u64) {
        self.code.jit.begin_walk(self.jit_budget.left(now_ns));
    }

    /// Walks into `frames`; `None` where that lacked bytes of JIT code, which are read for the next round.
    fn walk(
        &mut self,
        capture: &Capture,
        memory: &WalkedMemory<'_>,
        stack_top: Option<Avma>,
        read: &mut dyn FnMut(Avma, &mut [u8]) -> usize,
        frames: &mut Frames,
    ) -> Option<Walked> {
        let ProcessCode { images, jit, unwinder } = &mut self.code;
        let code_memory = CodeMemory::new(read);
        let code = TargetCode { images: *images, jit, memory: Some(&code_memory) };
        let input = walk::Input {
            stack: memory.stack,
            stack_top,
            stack_limit: capture.stack_limit,
            fp_always: self.fp_always,
            max_depth: self.max_depth,
            code_mask: self.code_mask,
            code: &code,
            outer: memory.outer,
            blocked_signals: memory.blocked_signals,
        };
        let (method, registers) = (self.method, &capture.registers);
        let found = walk::unwind_on_two(method, registers, &input, memory.other, unwinder, frames);
        found.map_err(|needs| jit.read(needs, read)).ok()
    }

    /// Charges a round that lacked nothing; whether the budget for JIT code was used up in it.
    fn end_round(&mut self) -> bool {
        let (instructions, is_over_budget) = self.code.jit.end_round();
        self.jit_budget.spend(instructions - self.spent);
        self.spent = instructions;
        is_over_budget
    }

    /// The stack pointer that the thread of a capture began with, in these bytes of its stack.
    fn find_stack_top(&self, capture: &Capture, stack: StackBytes<'_>, from: Avma) -> Option<Avma> {
        walk::find_stack_top(capture.registers.arch(), stack, from, &self.code.images)
    }
}
