//! x86_64: whether rbp points to the frame record of the function at a program counter, and if not, the slot of the
//! return address (`unframed_return_slot`); and whether a walk by frame pointers is complete. Input: mapped code,
//! and function bounds if known (they are in Mach-O images). Not for: unwind information, which has priority (see
//! `leaf.rs`).
//!
//! x86_64 code cannot be decoded backward, and forward only by an instruction decoder. So these are patterns of
//! compiler output; if none matches, rbp is assumed to point to the record.

use std::ops::Range;

use super::cache::{Rule, RuleKind};
use super::unwinder::{Frame, Unwinder, by_ordinary};
use super::{RBP, RSP, leaf};
use crate::addr::Avma;
use crate::arch::X86_64;
use crate::walk::frames::{Frames, Method, UnwindMethod};
use crate::walk::input::{StepError, Words};
use crate::walk::{Code, Input, StackEnd, WalkResult};

/// Limit on bytes of a function searched for its prologue.
const FUNCTION_BYTES_MAX: usize = 4096;

/// The stack slot of the return address if the leaf has no frame record at `pc`, or `None` if rbp points to its
/// record (or the code is unknown).
///
/// ```text
/// at                    return address in
/// some functions        see slot_in_function, where bounds are known
/// endbr64               [rsp]      function entry
/// push %rbp             [rsp]      entry, followed by mov %rsp,%rbp
/// mov %rsp,%rbp         [rsp+8]    rbp was pushed, not yet set
/// ret                   [rsp]      rbp was popped
/// jmp *mem(%rip)        [rsp]      PLT stub, tail call through a pointer
/// jmp function          [rsp]      tail call, where bounds are known
/// pop %rbp; jmp *any    [rsp]      tail call
/// btr $60,%rbp          [rsp]      Swift's async epilogue, after pop %rbp
/// ```
pub(crate) fn unframed_return_slot(pc: Avma, sp: Avma, code: &dyn Code) -> Option<Avma> {
    const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
    const PUSH_RBP: u8 = 0x55;
    const POP_RBP: u8 = 0x5d;
    let at = code.code(pc)?;
    let function = code.function(pc).filter(|function| function.contains(&pc));
    if let Some(function) = &function
        && let Some(bytes) = function_bytes(function, code)
        && let Some(slot) = slot_in_function(pc - function.start, sp, bytes)
    {
        return Some(slot);
    }
    let before = || code.code(Avma(pc.0.wrapping_sub(1)))?.first().copied();
    let moves_rsp_to_rbp =
        |code: &[u8]| code.starts_with(&[0x48, 0x89, 0xe5]) || code.starts_with(&[0x48, 0x8b, 0xec]);
    match at {
        _ if at.starts_with(&ENDBR64) => Some(sp),
        [PUSH_RBP, rest @ ..] if moves_rsp_to_rbp(rest) => Some(sp),
        _ if moves_rsp_to_rbp(at) && before()? == PUSH_RBP => Some(sp + 8),
        // ret; repz ret; ret imm16; bnd ret
        [0xc3 | 0xc2, ..] | [0xf2 | 0xf3, 0xc3, ..] => Some(sp),
        // jmp *mem(%rip), with or without bnd
        [0xff, 0x25, ..] | [0xf2, 0xff, 0x25, ..] => Some(sp),
        // jmp *register or *mem, with or without REX; a jump through a table has no pop before it
        [0xff, modrm, ..] | [0x40..=0x4f, 0xff, modrm, ..] if modrm >> 3 & 7 == 4 => {
            (before()? == POP_RBP).then_some(sp)
        }
        [0xe9, a, b, c, d, ..] => {
            let distance = i32::from_le_bytes([*a, *b, *c, *d]);
            is_tail_call(pc + 5, distance.into(), &function?, code).then_some(sp)
        }
        [0xeb, distance, ..] => {
            is_tail_call(pc + 2, i64::from(*distance as i8), &function?, code).then_some(sp)
        }
        // btr $60,%rbp
        _ if at.starts_with(&[0x48, 0x0f, 0xba, 0xf5, 0x3c]) => Some(sp),
        _ => None,
    }
}

fn function_bytes<'a>(function: &Range<Avma>, code: &'a dyn Code) -> Option<&'a [u8]> {
    let length = usize::try_from(function.end - function.start).ok()?;
    let bytes = code.code(function.start)?;
    Some(&bytes[..length.min(bytes.len())])
}

/// The slot at offset `offset` of a function, by all its code.
///
/// ```text
/// system call stub of libsystem_kernel        Swift's async prologue
/// mov  $N,%eax          [rsp]                 bts  $60,%rbp         [rsp]
/// mov  %rcx,%r10        [rsp]                 push %rbp             [rsp]
/// syscall               [rsp]                 push %r14             [rsp+8]
/// jae  1f, ret, ...     [rsp]                 lea  8(%rsp),%rbp     [rsp+16]
/// ```
/// Sources: xnu libsyscall/custom/SYS.h and osfmk/mach/i386/syscall_sw.h; LLVM
/// X86FrameLowering.cpp, emitPrologue.
fn slot_in_function(offset: u64, sp: Avma, function: &[u8]) -> Option<Avma> {
    const PROLOGUE: [u8; 4] = [0x55, 0x48, 0x89, 0xe5];
    const ASYNC: [u8; 13] = [0x48, 0x0f, 0xba, 0xed, 0x3c, 0x55, 0x41, 0x56, 0x48, 0x8d, 0x6c, 0x24, 0x08];
    match (offset, function) {
        // At its first instruction a function has only its return address.
        (0, _)
        | (_, [0xb8, _, _, _, _, 0x49, 0x89, 0xca, 0x0f, 0x05, ..])
        | (_, [0x49, 0x89, 0xca, 0xb8, _, _, _, _, 0x0f, 0x05, ..]) => return Some(sp),
        _ if function.starts_with(&PROLOGUE) => return None,
        _ if function.starts_with(&ASYNC) => {
            return match offset {
                5 => Some(sp),
                6 => Some(sp + 8),
                8 => Some(sp + 16),
                _ => None,
            };
        }
        _ => {}
    }
    let searched = &function[..function.len().min(FUNCTION_BYTES_MAX)];
    match searched.windows(PROLOGUE.len()).position(|bytes| bytes == PROLOGUE) {
        // Compilers delay the frame to the branch that needs it, and do not touch the stack before.
        Some(prologue) => (offset <= prologue as u64).then_some(sp),
        None => (function.len() == searched.len() && leaves_stack_alone(function)).then_some(sp),
    }
}

/// Whether no instruction can be a push, a call, or a computation of rsp: no byte of the function looks like one,
/// at any instruction boundary.
fn leaves_stack_alone(function: &[u8]) -> bool {
    let pushes_or_calls = |byte: &u8| matches!(byte, 0x50..=0x57 | 0x68 | 0x6a | 0x9c | 0xc8 | 0xe8);
    // add, sub, and, lea, mov to rsp; call *mem and push *mem (ff /2, ff /3, ff /6)
    let changes = |pair: &[u8]| match pair {
        [0x83 | 0x81, modrm] => matches!(modrm, 0xc4 | 0xec | 0xe4),
        [0x8d, modrm] => modrm >> 3 & 7 == 4,
        [0x89, modrm] => modrm & 0xc7 == 0xc4,
        [0x8b, modrm] => modrm >> 3 & 7 == 4,
        [0xff, modrm] => matches!(modrm >> 3 & 7, 2 | 3 | 6),
        _ => false,
    };
    !function.iter().any(pushes_or_calls) && !function.windows(2).any(changes)
}

/// Whether a jump leads to the start of a function (including its own), or to a stub. Hand-written code has
/// several labels, so a jump into the middle of another function proves nothing.
fn is_tail_call(next: Avma, distance: i64, function: &Range<Avma>, code: &dyn Code) -> bool {
    let target = Avma(next.0.wrapping_add_signed(distance));
    if function.contains(&target) {
        return function.start == target;
    }
    code.is_code(target) && code.function(target).is_none_or(|other| other.start == target)
}

// ---- Completeness of walks by frame pointers. A chain of frame records that ends near the thread's initial stack
// pointer proves nothing: a function without a record leaves rbp unchanged, or uses it otherwise, so that its
// caller or all others are missing.

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
                Err(StepError::FirstFunction) => return Some(WalkResult { ended: StackEnd::Root, reached }),
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
        let start = leaf::leaf(registers, input.code);
        let (sp, frame_pointer) = (registers.gpr[RSP], registers.gpr[RBP]);
        let words: Words<'_> = Words::new(input.stack);
        out.clear();
        out.push(leaf::shown(start, registers), Method::Context);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::walk::text::Text;

    const TEXT: u64 = 0x1_0000_4000;
    const SP: u64 = 0x7ff7_b000_1000;

    /// Checks instructions with the distance of the return address from rsp, if it is not in a record.
    #[track_caller]
    fn check(functions: &[u64], code: &[(&[u8], Option<u64>)]) {
        let bytes: Vec<u8> = code.iter().flat_map(|(bytes, _)| bytes.iter().copied()).collect();
        let text = Text::new(TEXT, bytes).with_functions(functions);
        let mut at = 0;
        for (bytes, expected) in code {
            let slot = unframed_return_slot(Avma(TEXT + at), Avma(SP), &text).map(|slot| slot - Avma(SP));
            assert_eq!(slot, *expected, "at +{at:#x}");
            at += bytes.len() as u64;
        }
    }

    #[test]
    fn tail_calls_have_no_record_and_loops_do() {
        check(
            &[0, 0x19, 0x20],
            &[
                (&[0x55], Some(0)),                         // +00 push %rbp
                (&[0x48, 0x89, 0xe5], Some(8)),             // +01 mov  %rsp,%rbp
                (&[0xeb, 0x00], None),                      // +04 jmp  +06
                (&[0xe9, 0xf9, 0xff, 0xff, 0xff], None),    // +06 jmp  +04
                (&[0xff, 0xe1], None),                      // +0b jmp  *%rcx
                (&[0x5d], None),                            // +0d pop  %rbp
                (&[0xff, 0xe1], Some(0)),                   // +0e jmp  *%rcx
                (&[0xe9, 0xeb, 0xff, 0xff, 0xff], Some(0)), // +10 jmp  +00: itself again
                (&[0xeb, 0x02], Some(0)),                   // +15 jmp  +19: the next function
                (&[0xeb, 0x01], None),                      // +17 jmp  +1a: into the middle of it
                (&[0xe8, 0, 0, 0, 0], Some(0)),             // +19 call
                (&[0x90], None),                            // +1e nop
                (&[0xc3], Some(0)),                         // +1f ret
            ],
        );
    }

    #[test]
    fn a_delayed_prologue_does_not_move_the_return_address() {
        check(
            &[0],
            &[
                (&[0x48, 0x85, 0xff], Some(0)),          // +00 test %rdi,%rdi
                (&[0x74, 0x0b], Some(0)),                // +03 je   +10
                (&[0x55], Some(0)),                      // +05 push %rbp
                (&[0x48, 0x89, 0xe5], Some(8)),          // +06 mov  %rsp,%rbp
                (&[0xe8, 0xf2, 0xff, 0xff, 0xff], None), // +09 call +00
                (&[0x5d], None),                         // +0e pop  %rbp
                (&[0xc3], Some(0)),                      // +0f ret
                (&[0xc3], Some(0)),                      // +10 ret
            ],
        );
    }

    #[test]
    fn a_function_that_cannot_touch_the_stack_has_its_return_address_on_top() {
        let leaf: [(&[u8], _); 3] = [
            (&[0x48, 0x8d, 0x04, 0x7f], Some(0)), // +00 lea (%rdi,%rdi,2),%rax
            (&[0x48, 0xff, 0xc0], Some(0)),       // +04 inc %rax
            (&[0xc3], Some(0)),                   // +07 ret
        ];
        check(&[0], &leaf);
        // Without bounds it may be the middle of a function with a record.
        check(&[], &[(leaf[0].0, None), (leaf[1].0, None), (leaf[2].0, Some(0))]);
        let pushes: [(&[u8], _); 4] = [
            (&[0x53], Some(0)),          // +00 push %rbx
            (&[0x48, 0x89, 0xfb], None), // +01 mov  %rdi,%rbx
            (&[0x5b], None),             // +04 pop  %rbx
            (&[0xc3], Some(0)),          // +05 ret
        ];
        check(&[0], &pushes);
        let moves: [(&[u8], _); 3] = [
            (&[0x48, 0x83, 0xec, 0x18], Some(0)), // +00 sub $0x18,%rsp
            (&[0x48, 0x89, 0xf8], None),          // +04 mov %rdi,%rax
            (&[0x48, 0x83, 0xc4, 0x18], None),    // +07 add $0x18,%rsp
        ];
        check(&[0], &moves);
    }

    #[test]
    fn system_call_stubs_have_no_frame() {
        // libsystem_kernel: read, and mach_msg2_trap.
        let read: [(&[u8], _); 6] = [
            (&[0xb8, 0x03, 0, 0, 2], Some(0)), // mov  $0x2000003,%eax
            (&[0x49, 0x89, 0xca], Some(0)),    // mov  %rcx,%r10
            (&[0x0f, 0x05], Some(0)),          // syscall
            (&[0x73, 0x08], Some(0)),          // jae  1f
            (&[0x48, 0x89, 0xc7], Some(0)),    // mov  %rax,%rdi
            (&[0xe9, 0, 0x10, 0, 0], Some(0)), // jmp  cerror
        ];
        check(&[0], &read);
        let trap: [(&[u8], _); 4] = [
            (&[0x49, 0x89, 0xca], Some(0)),    // mov  %rcx,%r10
            (&[0xb8, 0x2f, 0, 0, 1], Some(0)), // mov  $0x100002f,%eax
            (&[0x0f, 0x05], Some(0)),          // syscall
            (&[0xc3], Some(0)),                // ret
        ];
        check(&[0], &trap);
    }

    #[test]
    fn the_prologue_of_swift_async_functions_is_recognized() {
        check(
            &[0],
            &[
                (&[0x48, 0x0f, 0xba, 0xed, 0x3c], Some(0)),  // bts  $60,%rbp
                (&[0x55], Some(0)),                          // push %rbp
                (&[0x41, 0x56], Some(8)),                    // push %r14
                (&[0x48, 0x8d, 0x6c, 0x24, 0x08], Some(16)), // lea 8(%rsp),%rbp
                (&[0x48, 0x83, 0xec, 0x10], None),           // sub  $16,%rsp
                (&[0x48, 0x83, 0xc4, 0x10], None),           // add  $16,%rsp
                (&[0x5d], None),                             // pop  %rbp
                (&[0x48, 0x0f, 0xba, 0xf5, 0x3c], Some(0)),  // btr  $60,%rbp
                (&[0xc3], Some(0)),                          // ret
            ],
        );
    }

    #[test]
    fn hostile_code_and_bounds_do_not_panic() {
        for code in [&[][..], &[0xe9], &[0xeb], &[0xff], &[0x40, 0xff], &[0xe9, 0xff, 0xff, 0xff, 0x7f]] {
            for functions in [&[][..], &[0]] {
                let text = Text::new(TEXT, code).with_functions(functions);
                for at in [TEXT, TEXT + 1, 0, u64::MAX] {
                    let slot = unframed_return_slot(Avma(at), Avma(u64::MAX), &text);
                    assert!(slot.is_none_or(|slot| slot == Avma(u64::MAX)), "{code:x?} at {at:#x}");
                }
            }
        }
    }
}
