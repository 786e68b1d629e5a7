//! Completeness of walks by frame pointers. A chain of frame records that ends near the thread's initial stack
//! pointer proves nothing: a function without a record leaves rbp unchanged, or uses it otherwise, so that its
//! caller or all others are missing. Input: registers, stack, rows; output: the frames of a chain in which every
//! function is known to keep a record, up to the thread's first function or another stack.
//!
//! Not for: unwinding functions without frame records, which `UnwindMethod::Auto` does.

use super::frame::Frame;
use super::rule::{Rule, RuleKind};
use super::unwinder::{Unwinder, by_ordinary};
use super::{RBP, RSP, syscall};
use crate::arch::X86_64;
use crate::walk::bounds::Failure;
use crate::walk::frames::{Frames, Method, UnwindMethod};
use crate::walk::words::Words;
use crate::walk::{Input, StackEnd, WalkResult};

/// Limit on frames of start code, which C libraries build without frame pointers: `_start`, `__libc_start_main`,
/// `__libc_start_call_main`; `clone3`, `start_thread`. They are walked by their rows.
const START_FRAMES_MAX: usize = 4;

impl Unwinder {
    /// Walks by records that are all known to exist, to the thread's first function. `None` if one function is not
    /// known to keep a record; `out` then has some of the frames.
    pub(super) fn by_kept_records(
        &mut self,
        registers: &X86_64,
        input: &Input<'_>,
        out: &mut Frames,
    ) -> Option<WalkResult> {
        let mut frame = Frame::new(registers, input.address_mask);
        out.clear();
        out.push(frame.address, Method::Context);
        let mut reached = frame.sp();
        loop {
            if out.len() >= input.max_depth {
                return None;
            }
            let rule = self.rule_of(&frame, input);
            if rule.kind() == RuleKind::Root {
                return Some(WalkResult { ended: StackEnd::Root, reached });
            }
            let is_sure = out.len() == 1 && is_sure_leaf(rule);
            if !is_sure && !keeps_record(rule) {
                break;
            }
            let next = frame.step(rule, &mut self.cache, input).ok()?;
            frame = match self.check(&frame, next, Method::FramePointer, input) {
                Ok((next, _)) => next,
                // In code where threads begin, which also keeps a record.
                Err(Failure::First) => return Some(WalkResult { ended: StackEnd::Root, reached }),
                Err(_) => return None,
            };
            reached = frame.sp();
            out.push(frame.address, Method::FramePointer);
        }
        let limit = input.max_depth.min(out.len() + START_FRAMES_MAX);
        // Code interrupted by a signal on another stack is no start code.
        let input = Input { max_depth: limit, blocked_signals: None, ..*input };
        let walked = self.go_on(UnwindMethod::Cfi, &mut frame, &input, out);
        // A signal handler with callers on a stack that was not copied.
        matches!(walked.ended, StackEnd::Root | StackEnd::Fiber | StackEnd::OtherStack).then_some(walked)
    }

    /// Walks by records if all rules on the way are ordinary, including those of start code: only rsp and rbp are
    /// needed. `None` decides nothing.
    pub(super) fn by_ordinary_records(
        &mut self,
        registers: &X86_64,
        input: &Input<'_>,
        out: &mut Frames,
    ) -> Option<WalkResult> {
        let start = syscall::leaf(registers, input.code);
        let (sp, frame_pointer) = (registers.gpr[RSP], registers.gpr[RBP]);
        let words: Words<'_> = Words::new(input.stack);
        out.clear();
        out.push(syscall::shown(start, registers), Method::Context);
        let run = self.run(start, sp, frame_pointer, words, input, out, |rule, is_leaf| {
            // Runs do not follow rules of `RuleKind::Marked`.
            let is_sure = rule.is_record() || is_leaf && is_sure_leaf(rule);
            is_sure.then_some(Method::FramePointer)
        });
        if run.rule.kind() == RuleKind::Root {
            return Some(WalkResult { ended: StackEnd::Root, reached: run.sp });
        }
        let limit = input.max_depth.min(out.len() + START_FRAMES_MAX);
        let input = Input { max_depth: limit, ..*input };
        let run = self.run(run.address, run.sp.0, run.frame_pointer, words, &input, out, by_ordinary);
        (run.rule.kind() == RuleKind::Root).then_some(WalkResult { ended: StackEnd::Root, reached: run.sp })
    }
}

/// Whether the caller of a leaf is reliable: uncertain rules are unusual ones.
fn is_sure_leaf(rule: Rule) -> bool {
    rule.is_ordinary()
}

/// Whether unwind information, or the code itself, shows that rbp points to the frame record of the function.
fn keeps_record(rule: Rule) -> bool {
    rule.is_record() || rule.kind() == RuleKind::Marked
}
