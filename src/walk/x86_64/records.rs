//! When a walk by frame pointers is complete. A chain of frame records that ends near the
//! thread's first stack pointer proves nothing: a function without one leaves rbp alone, or uses it for
//! something else, and its caller or all others are missing. Input: registers, stack, rows;
//! output: the frames of a chain in which every function is known to keep a record, to the
//! thread's first function or to another stack.
//!
//! Not for: a way around functions without frame records, which is `UnwindMethod::Auto`.

use super::frame::Frame;
use super::rule::{Rule, RuleKind};
use super::unwinder::{Unwinder, by_ordinary};
use super::{RBP, RSP, syscall};
use crate::arch::X86_64;
use crate::walk::bounds::Failure;
use crate::walk::frames::{Frames, Method, UnwindMethod};
use crate::walk::words::Words;
use crate::walk::{Input, StackEnd, Walked};

/// Frames of start code, which C libraries build without frame pointers: `_start`,
/// `__libc_start_main`, `__libc_start_call_main`; `clone3`, `start_thread`. They are walked
/// by their rows.
const START_FRAMES_MAX: usize = 4;

impl Unwinder {
    /// Walks by records that are all known to be there, to the thread's first function.
    /// `None` if that is not known of one function; `out` then has some of the frames.
    pub(super) fn by_kept_records(
        &mut self,
        registers: &X86_64,
        input: &Input<'_>,
        out: &mut Frames,
    ) -> Option<Walked> {
        let mut frame = Frame::new(registers, input.code_mask);
        out.clear();
        out.push(frame.address, Method::Context);
        let mut reached = frame.sp();
        loop {
            if out.len() >= input.max_depth {
                return None;
            }
            let rule = self.rule_of(&frame, input);
            if rule.kind() == RuleKind::Root {
                return Some(Walked { ended: StackEnd::Root, reached });
            }
            let is_sure = out.len() == 1 && is_sure_leaf(rule);
            if !is_sure && !keeps_record(rule) {
                break;
            }
            let next = frame.step(rule, &mut self.cache, input).ok()?;
            frame = match self.check(&frame, next, Method::FramePointer, input) {
                Ok((next, _)) => next,
                // In code that threads begin in, which keeps a record, too.
                Err(Failure::First) => return Some(Walked { ended: StackEnd::Root, reached }),
                Err(_) => return None,
            };
            reached = frame.sp();
            out.push(frame.address, Method::FramePointer);
        }
        let limit = input.max_depth.min(out.len() + START_FRAMES_MAX);
        // What a signal interrupted on another stack is no start code.
        let input = Input { max_depth: limit, blocked_signals: None, ..*input };
        let walked = self.go_on(UnwindMethod::Cfi, &mut frame, &input, out);
        // A handler of a signal whose callers are on a stack that was not copied.
        matches!(walked.ended, StackEnd::Root | StackEnd::Fiber | StackEnd::OtherStack).then_some(walked)
    }

    /// Walks by records where all rules on the way, those of the start code too, are ordinary: other
    /// registers than rsp and rbp need not be carried. `None` decides nothing.
    pub(super) fn by_ordinary_records(
        &mut self,
        registers: &X86_64,
        input: &Input<'_>,
        out: &mut Frames,
    ) -> Option<Walked> {
        let start = syscall::leaf(registers, input.code);
        let (sp, frame_pointer) = (registers.gpr[RSP], registers.gpr[RBP]);
        let words: Words<'_> = Words::new(input.stack);
        out.clear();
        out.push(syscall::shown(start, registers), Method::Context);
        let run = self.run(start, sp, frame_pointer, words, input, out, |rule, is_leaf| {
            // A rule of `RuleKind::Marked` is none of those that a run follows.
            let is_sure = rule.is_record() || is_leaf && is_sure_leaf(rule);
            is_sure.then_some(Method::FramePointer)
        });
        if run.rule.kind() == RuleKind::Root {
            return Some(Walked { ended: StackEnd::Root, reached: run.sp });
        }
        let limit = input.max_depth.min(out.len() + START_FRAMES_MAX);
        let input = Input { max_depth: limit, ..*input };
        let run = self.run(run.address, run.sp.0, run.frame_pointer, words, &input, out, by_ordinary);
        (run.rule.kind() == RuleKind::Root).then_some(Walked { ended: StackEnd::Root, reached: run.sp })
    }
}

/// Whether the caller of a leaf can be relied on: rules that are not certain are unusual ones.
fn is_sure_leaf(rule: Rule) -> bool {
    rule.is_ordinary()
}

/// Whether unwind information, or the code itself, says that rbp points to the frame record of
/// the function.
fn keeps_record(rule: Rule) -> bool {
    rule.is_record() || rule.kind() == RuleKind::Marked
}
