//! Walks of captures with the images and code of their process, and searches for words above the copied bytes.
//!
//! Input: a capture with its process and thread. Output: frames, why the walk ended, and how much of the stack it
//! needed. Images are read again if a stack leads to code in none.

use super::Options;
use super::budget::JitBudget;
use super::prefetch::{CapturedOuter, LaterStack, Word, cover_stacks, inner_part};
use super::processes::{ProcessCode, Processes};
use super::recorder::ThreadAccount;
use super::stack_size::{lacks_red_zone, with_red_zone};
use crate::addr::Avma;
use crate::clock::Clock;
use crate::images::{CodeMemory, TargetCode};
use crate::sources::pushed::StackUse;
use crate::sources::{Capture, Observed, Process};
use crate::walk::{
    self, Frames, Method, OtherStack, OuterStack, StackBytes, StackEnd, UnwindMethod, WalkResult,
};

/// Walks the stacks of a recording.
pub(super) struct StackWalker<'a> {
    clock: &'a dyn Clock,
    method: UnwindMethod,
    max_depth: usize,
    /// Whether captures can include prefetched ranges.
    may_prefetch: bool,
    jit_budget: JitBudget,
    /// Frames of walks made only to find the words they read.
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

    /// Removes the limit on following JIT code, for one-off work.
    pub(super) fn follow_all_jit_code(&mut self) {
        self.jit_budget = JitBudget::unlimited();
    }

    /// Sets whether captures can include prefetched ranges.
    pub(super) fn set_may_prefetch(&mut self, may: bool) {
        self.may_prefetch = may;
    }

    /// Walks a capture into `frames`, reading images as needed. Returns why it ended and how much of the stack it
    /// needed; `None` for a thread of an unknown process. If it left the copied bytes, searches
    /// for the ranges it lacked. `stack_max_bytes`: maximum size of the next capture.
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
        // What only the tail has is prefetched for later samples.
        let leaves = needed.truncated || ended == StackEnd::OtherStack || needs_tail(capture, needed);
        Some((ended, self.search_above(processes, account, process, capture, needed, leaves)))
    }

    /// Walks a capture into `frames`, reading images as needed.
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
        let with_red_zone_need =
            |(ended, needed), needs_red_zone| Some((ended, StackUse { needs_red_zone, ..needed }));
        let mut walk =
            |processes: &mut Processes, process: &mut dyn Observed, capture: &Capture, frames: &mut _| {
                self.walk_with_known_images(processes, account, process, capture, stack_max_bytes, frames)
            };
        let walked = walk(processes, process, capture, frames)?;
        let ended = walked.0;
        if ended == StackEnd::BrokenFrameChain
            && frames.addresses.len() == 1
            && let Some(fuller) = with_red_zone(process, capture)
        {
            processes.set_red_zone_read_later(of, true);
            let walked = walk(processes, process, &fuller, frames);
            processes.set_red_zone_read_later(of, false);
            return with_red_zone_need(walked?, true);
        }
        // Scanning also bridges a row that could not read the red zone.
        let needs_red_zone = frames.methods.get(1) == Some(&Method::Scan) && lacks_red_zone(capture);
        // Either a torn chain or a recently loaded library.
        if matches!(ended, StackEnd::BrokenFrameChain | StackEnd::NoUnwindInfo | StackEnd::StackScan)
            && processes.retry_images(of, process, clock)
        {
            let walked = walk(processes, process, capture, frames)?;
            return with_red_zone_need(walked, needs_red_zone);
        }
        with_red_zone_need(walked, needs_red_zone)
    }

    /// Walks a capture into `frames` with the known images. Returns why it ended and how much of the stack it
    /// needed.
    pub(super) fn walk_with_known_images(
        &mut self,
        processes: &mut Processes,
        account: &mut ThreadAccount,
        process: &mut dyn Observed,
        capture: &Capture,
        stack_max_bytes: usize,
        frames: &mut Frames,
    ) -> Option<(StackEnd, StackUse)> {
        let whole = StackBytes { base: capture.stack_base, bytes: &capture.stack };
        let stack = StackBytes { bytes: capture.usual_stack(), ..whole };
        let outer = CapturedOuter::new(capture);
        let other = capture.other_stack.as_deref().map(|other| OtherStack {
            stack: StackBytes { base: other.base, bytes: &other.bytes },
            limit: other.limit,
        });
        let memory = WalkedMemory {
            stack,
            other,
            outer: capture.has_outer().then_some(&outer),
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
        // Repeats until no JIT bytes are missing and the stack top was found or given up.
        loop {
            outer.begin_round();
            let Some(mut walked) = rounds.walk(capture, &memory, extent.top(), &mut read, frames) else {
                continue;
            };
            if rounds.end_round() {
                walked.ended = StackEnd::TooMuchJitCode;
            }
            let bytes = extent.fit(capture, &walked, stack_max_bytes, may_prefetch);
            let searched =
                extent.search_top(&walked, |reached| rounds.find_stack_top(capture, whole, reached));
            if searched && extent.top().is_some() {
                continue;
            }
            if searched {
                extent.reach(bytes.saturating_add(walk::SEARCH_BYTES as usize), stack_max_bytes);
            }
            let truncated = walked.ended == StackEnd::DeeperThanCopied;
            let besides_ranges = (!truncated).then(|| outer.bytes_besides_ranges(bytes));
            let needed =
                StackUse { bytes, truncated, missed: truncated, besides_ranges, ..StackUse::default() };
            return Some((walked.ended, needed));
        }
    }

    /// Records what the walk of a capture needed. A walk that was truncated or went to another stack (`leaves`)
    /// may show what to prefetch instead: then it requests no more bytes.
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
            return account.stack.prefetch().record_enough(capture, needed);
        }
        let mut bytes = needed.bytes;
        if account.stack.prefetch().shall_search(has_prefetched) {
            let above = self.words_above(processes, account, process, capture);
            let ranges = above.map(|words| {
                // The copied bytes that would have sufficed beside these ranges.
                let lacked = |(at, bytes): &&Word| capture.prefetched.word(*at, *bytes).is_none();
                let end =
                    words.iter().filter(lacked).map(|(at, bytes)| at.saturating_add(*bytes as u64)).max();
                let from_sp = end.unwrap_or(0).saturating_sub(capture.registers.sp().0);
                bytes = bytes.max(usize::try_from(from_sp).unwrap_or(usize::MAX));
                cover_stacks(words, capture)
            });
            account.stack.prefetch().found(ranges);
        }
        // No number of bytes reaches another stack.
        if !needed.truncated {
            return needed;
        }
        account.stack.prefetch().request_for_truncated(capture, needed, bytes)
    }

    /// Words that a walk of a capture reads above its inner part, as far as current memory shows; `None` if it
    /// leaves that, too.
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
        // The sample's own walk already used its budget; the rest is left to another search.
        rounds.set_time(0);
        let stack = inner_part(capture);
        let later = LaterStack::new(capture, process);
        let memory = WalkedMemory {
            stack,
            other: None,
            outer: Some(&later),
            // The search's frames are discarded. Without a signal mask a handler counts as not returned.
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
            address_mask: process.address_mask,
            max_depth: self.max_depth,
            may_prefetch: self.may_prefetch,
            jit_budget: &mut self.jit_budget,
            spent: 0,
        }
    }
}

/// Whether a walk used bytes that its record and the prefetched ranges do not have.
fn needs_tail(capture: &Capture, needed: StackUse) -> bool {
    let below = capture.registers.sp().0.saturating_sub(capture.stack_base.0) as usize;
    needed.besides_ranges.is_some_and(|bytes| bytes.saturating_add(below) > capture.usual_bytes())
}

/// The stack memory of a walk.
struct WalkedMemory<'w> {
    stack: StackBytes<'w>,
    /// The second stack of a processor with two.
    other: Option<OtherStack<'w>>,
    /// Memory above the record, of the same moment.
    outer: Option<&'w dyn OuterStack>,
    /// The signals that the thread blocks, one bit each; `None` if unknown.
    blocked_signals: Option<u64>,
}

/// Rounds of one walk: repeated when JIT bytes are missing or a stack top was found.
struct WalkRounds<'w> {
    code: ProcessCode<'w>,
    method: UnwindMethod,
    fp_always: bool,
    address_mask: u64,
    max_depth: usize,
    may_prefetch: bool,
    jit_budget: &'w mut JitBudget,
    /// Instructions of JIT code examined in earlier rounds.
    spent: u64,
}

impl WalkRounds<'_> {
    /// Sets the sample's time, which determines the budget for JIT code.
    fn set_time(&mut self, now_ns: u64) {
        self.code.jit.begin_walk(self.jit_budget.left(now_ns));
    }

    /// Walks into `frames`; `None` if bytes of JIT code are missing, which are then read for the next round.
    fn walk(
        &mut self,
        capture: &Capture,
        memory: &WalkedMemory<'_>,
        stack_top: Option<Avma>,
        read: &mut dyn FnMut(Avma, &mut [u8]) -> usize,
        frames: &mut Frames,
    ) -> Option<WalkResult> {
        let ProcessCode { images, jit, unwinder } = &mut self.code;
        let code_memory = CodeMemory::new(read);
        let code = TargetCode { images: *images, jit, memory: Some(&code_memory) };
        let input = walk::Input {
            stack: memory.stack,
            stack_top,
            stack_limit: capture.stack_limit,
            fp_always: self.fp_always,
            max_depth: self.max_depth,
            address_mask: self.address_mask,
            code: &code,
            outer: memory.outer,
            blocked_signals: memory.blocked_signals,
        };
        let (method, registers) = (self.method, &capture.registers);
        let found = walk::unwind_with_other_stack(method, registers, &input, memory.other, unwinder, frames);
        found.map_err(|needs| jit.read(needs, read)).ok()
    }

    /// Charges a complete round; returns whether it exhausted the budget for JIT code.
    fn end_round(&mut self) -> bool {
        let (instructions, is_over_budget) = self.code.jit.end_round();
        self.jit_budget.spend(instructions - self.spent);
        self.spent = instructions;
        is_over_budget
    }

    /// Searches these stack bytes for the initial stack pointer of a capture's thread.
    fn find_stack_top(&self, capture: &Capture, stack: StackBytes<'_>, from: Avma) -> Option<Avma> {
        walk::find_stack_top(capture.registers.arch(), stack, from, &self.code.images)
    }
}
