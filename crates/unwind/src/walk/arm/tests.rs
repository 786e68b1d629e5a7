//! Walks through small pieces of code in both instruction sets, at every instruction.

use super::*;
use crate::addr::Avma;
use crate::arch::Arm;
use crate::walk::frames::{Frames, Method, UnwindMethod};
use crate::walk::text::Text;
use crate::walk::{Input, OtherStack, StackBytes, StackEnd, WalkResult};

const TEXT: u64 = 0x8000;
const STACK: u64 = 0x2000_0000;
/// The caller: after a `bl`.
const CALLER: u64 = TEXT + 4;

/// Code that starts with `bl TEXT + 8` in either instruction set; the callee is one function, unless another
/// follows.
fn t32(halves: &[u16]) -> Text {
    // bl +4; udf; udf
    let all = [&[0xf000, 0xf802, 0xde00, 0xde00], halves].concat();
    let bytes: Vec<u8> = all.iter().flat_map(|half| half.to_le_bytes()).collect();
    Text::new(TEXT, bytes).with_functions(&[8])
}

fn a32(words: &[u32]) -> Text {
    let all = [&[0xeb00_0000, 0xe7f0_00f0], words].concat();
    let bytes: Vec<u8> = all.iter().flat_map(|word: &u32| word.to_le_bytes()).collect();
    Text::new(TEXT, bytes).with_functions(&[8])
}

/// The first two frames, `offset` bytes into the function, with this stack and link register.
fn walk(text: &Text, registers: &Arm, words: &[u32]) -> (Vec<u64>, Vec<Method>, StackEnd) {
    walk_by(UnwindMethod::Auto, text, registers, words)
}

fn walk_by(
    unwind_method: UnwindMethod,
    text: &Text,
    registers: &Arm,
    words: &[u32],
) -> (Vec<u64>, Vec<Method>, StackEnd) {
    let (out, walked) = walk_on_two(unwind_method, text, registers, words, None);
    (out.addresses.iter().map(|address| address.0).collect(), out.methods, walked.ended)
}

/// The complete walk. `other`: the process stack pointer, and the words there.
fn walk_on_two(
    unwind_method: UnwindMethod,
    text: &Text,
    registers: &Arm,
    words: &[u32],
    other: Option<(u64, &[u32])>,
) -> (Frames, WalkResult) {
    let in_bytes = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let (bytes, other_bytes) = (in_bytes(words), in_bytes(other.map_or(&[], |(_, words)| words)));
    let other = other.map(|(base, _)| OtherStack {
        stack: StackBytes { base: Avma(base), bytes: &other_bytes },
        limit: None,
    });
    let input = Input {
        max_depth: 8,
        ..Input::new(StackBytes { base: Avma(registers.r[Arm::SP]), bytes: &bytes }, text)
    };
    let mut out = Frames::default();
    let walked = Unwinder::default().unwind(unwind_method, registers, &input, other, &mut out);
    (out, walked)
}

fn at(offset: u64, is_t32: bool, link: u64) -> Arm {
    let mut registers = Arm { cpsr: Some(u32::from(is_t32) << 5), ..Arm::default() };
    registers.r[Arm::SP] = STACK;
    registers.r[Arm::LR] = link;
    registers.r[Arm::PC] = TEXT + 8 + offset;
    registers
}

#[test]
fn the_caller_is_known_at_every_instruction_of_t32() {
    let text = t32(&[
        0x2800, // +00 cmp r0, #0
        0xbf08, // +02 it eq
        0x4770, // +04 bxeq lr
        0xb580, // +06 push {r7, lr}
        0xb082, // +08 sub sp, #8
        0xaf00, // +0a add r7, sp, #0
        0x3708, // +0c adds r7, #8
        0x46bd, // +0e mov sp, r7
        0xbd80, // +10 pop {r7, pc}
    ]);
    let link = CALLER | T32;
    // Offset, words on the stack, words from the stack pointer to r7.
    for (offset, words, r7) in [
        (0x00, &[][..], None),
        (0x02, &[], None),
        (0x04, &[], None),
        (0x06, &[], None),
        (0x08, &[7, link as u32], None),
        (0x0a, &[1, 2, 7, link as u32], None),
        (0x0c, &[1, 2, 7, link as u32], Some(0)),
        (0x0e, &[1, 2, 7, link as u32], Some(8)),
        (0x10, &[7, link as u32], None),
    ] {
        let stale = if words.is_empty() { link } else { 0xdead };
        let mut registers = at(offset, true, stale);
        registers.r[7] = r7.map_or(7, |bytes| STACK + bytes);
        let (addresses, methods, _) = walk(&text, &registers, words);
        assert_eq!(addresses, [TEXT + 8 + offset, CALLER - 1], "at +{offset:#x}");
        assert_eq!(methods, [Method::Context, Method::Code], "at +{offset:#x}");
    }
}

#[test]
fn the_caller_is_known_at_every_instruction_of_a32() {
    let text = a32(&[
        0xe1a0_c00d, // +00 mov ip, sp
        0xe92d_d800, // +04 push {fp, ip, lr, pc}
        0xe24c_b004, // +08 sub fp, ip, #4
        0xe24d_d008, // +0c sub sp, sp, #8
        0xe350_0000, // +10 cmp r0, #0
        0x089d_a800, // +14 ldmeq sp, {fp, sp, pc}: not there, only conditional
        0xe24b_d00c, // +18 sub sp, fp, #12
        0xe89d_a800, // +1c ldm sp, {fp, sp, pc}
    ]);
    let link = CALLER as u32;
    let record = [0xb, STACK as u32 + 16, link, 0x8014];
    for offset in [0x08, 0x0c] {
        let (addresses, ..) = walk(&text, &at(offset, false, 0xdead), &record);
        assert_eq!(addresses, [TEXT + 8 + offset, CALLER - 1], "at +{offset:#x}");
    }
    for offset in [0, 4] {
        let (addresses, ..) = walk(&text, &at(offset, false, CALLER), &[]);
        assert_eq!(addresses, [TEXT + 8 + offset, CALLER - 1], "at +{offset:#x}");
    }
    let mut registers = at(0x10, false, 0xdead);
    registers.r[11] = STACK + 8 + 12;
    let (addresses, ..) = walk(&text, &registers, &[&[1, 2][..], &record].concat());
    assert_eq!(addresses, [TEXT + 8 + 0x10, CALLER - 1]);
}

#[test]
fn without_a_status_register_a_symbol_decides_the_instruction_set() {
    let mut text = a32(&[
        0xe92d_4010, // +00 push {r4, lr}
        0xe3a0_4000, // +04 mov r4, #0
        0xe8bd_8010, // +08 pop {r4, pc}
    ]);
    // The link register is overwritten, and looks like a caller in T32.
    let mut registers = at(4, false, TEXT | T32);
    registers.cpsr = None;
    let words = [4, CALLER as u32];
    let (_, _, ended) = walk(&text, &registers, &words);
    assert!(!ended.is_complete(), "{ended:?}");
    text.is_t32 = Some(false);
    let (addresses, methods, _) = walk(&text, &registers, &words);
    assert_eq!((addresses, methods), (vec![TEXT + 12, CALLER - 1], vec![Method::Context, Method::Code]));
    // The status register has priority.
    registers.cpsr = Some(1 << 5);
    assert_eq!(walk(&text, &registers, &words).1, [Method::Context, Method::Scan]);
}

#[test]
fn an_exception_leads_to_the_interrupted_code() {
    // bx lr
    let text = t32(&[0x4770]);
    let handler = |returns: u64, status: u32| {
        let mut registers = at(0, true, returns);
        registers.m_profile = true;
        registers.cpsr = Some(status);
        registers
    };
    let link = CALLER as u32 | 1;
    let basic = |status: u32| [0, 1, 2, 3, 12, link, TEXT as u32 + 8, status];
    let check = |returns: u64, words: &[u32]| walk(&text, &handler(returns, 1 << 24 | 15), words);
    let found = [TEXT + 8, Avma::exception(15).0, TEXT + 8, CALLER - 1];
    let (addresses, methods, _) = check(0xffff_fff9, &basic(1 << 24));
    assert_eq!(addresses, found);
    assert_eq!(methods[1..3], [Method::Exception; 2]);
    // Followed by VFP registers.
    assert_eq!(check(0xffff_ffe9, &[&basic(1 << 24)[..], &[0; 18]].concat()).0, found);
    // The thread uses the other stack.
    let (addresses, _, ended) = check(0xffff_fffd, &basic(1 << 24));
    assert_eq!((addresses.as_slice(), ended), (&found[..2], StackEnd::OtherStack));
    // Invalid frames.
    assert_eq!(check(0xffff_fff9, &basic(0)).2, StackEnd::BrokenFrameChain);
    assert_eq!(check(0xffff_fff9, &basic(1 << 24)[..5]).2, StackEnd::DeeperThanCopied);
    // Reset
    assert_eq!(check(0xffff_ffff, &[]).2, StackEnd::Root);
}

#[test]
fn a_handler_leads_to_the_process_stack() {
    // bx lr
    let text = t32(&[0x4770]);
    let frame = |status: u32| [0, 1, 2, 3, 12, CALLER as u32 | 1, TEXT as u32 + 8, status];
    let check = |returns: u64, main: &[u32], process: Option<(u64, &[u32])>| {
        let mut registers = at(0, true, returns);
        (registers.m_profile, registers.cpsr) = (true, Some(1 << 24 | 15));
        let (out, walked) = walk_on_two(UnwindMethod::Auto, &text, &registers, main, process);
        (out.addresses.iter().map(|address| address.0).collect::<Vec<u64>>(), walked)
    };
    let thread = frame(1 << 24);
    let found = [TEXT + 8, Avma::exception(15).0, TEXT + 8, CALLER - 1];
    // Above or below the main stack: the reached size counts from each stack's own stack pointer.
    for base in [STACK + 0x800, STACK - 0x800, 0x1000_0000] {
        let (addresses, walked) = check(0xffff_fffd, &[], Some((base, &thread)));
        assert_eq!((addresses.as_slice(), walked.reached), (&found[..], Avma(STACK + 32)), "{base:#x}");
    }
    // A nested handler, on the main stack.
    let handler = frame(1 << 24 | 14);
    let mut nested = handler;
    nested[5] = 0xffff_fffd;
    let (addresses, _) = check(0xffff_fff1, &nested, Some((STACK - 0x800, &thread)));
    assert_eq!(addresses, [&found[..3], &[Avma::exception(14).0], &found[2..]].concat());
    // Armv8-M cores without security states, and a handler in the other security state.
    assert_eq!(check(0xffff_ffbc, &[], Some((STACK - 0x800, &thread))).0, found);
    let (addresses, walked) = check(0xffff_ffbd, &[], Some((STACK - 0x800, &thread)));
    assert_eq!((addresses.as_slice(), walked.ended), (&found[..2], StackEnd::OtherStack));
    // Thread mode with an exception number, and the reverse.
    assert_eq!(check(0xffff_fffd, &[], Some((STACK - 0x800, &handler))).1.ended, StackEnd::BrokenFrameChain);
    assert_eq!(check(0xffff_fff1, &thread, None).1.ended, StackEnd::BrokenFrameChain);
    let (_, walked) = check(0xffff_fffd, &[], Some((STACK - 0x800, &thread[..4])));
    assert_eq!(walked.ended, StackEnd::DeeperThanCopied);
}

#[test]
fn frame_records_lead_through_several_callers() {
    let text = a32(&[
        0xe1a0_c00d, // +00 mov ip, sp
        0xe92d_d800, // +04 push {fp, ip, lr, pc}
        0xe24c_b004, // +08 sub fp, ip, #4
        0xebff_fffb, // +0c bl +00
        0xe24b_d00c, // +10 sub sp, fp, #12
        0xe89d_a800, // +14 ldm sp, {fp, sp, pc}
    ]);
    let stack = STACK as u32;
    let back = TEXT as u32 + 8 + 0x10;
    let record = |number: u32, link: u32| [stack + 16 * number + 28, stack + 16 * number + 16, link, 0x8014];
    let words = [record(0, back), record(1, back), record(2, CALLER as u32)].concat();
    let mut registers = at(0xc, false, 0xdead);
    registers.r[11] = STACK + 12;
    let (addresses, methods, _) = walk_by(UnwindMethod::FramePointer, &text, &registers, &words);
    let back = u64::from(back) - 1;
    assert_eq!(addresses, [TEXT + 8 + 0xc, back, back, CALLER - 1]);
    assert_eq!(methods[2..], [Method::FramePointer; 2]);
}

#[test]
fn an_alloca_in_a_loop_moves_the_stack_pointer_after_the_prologue() {
    let text = a32(&[
        0xe92d_4800, // +00 push {fp, lr}
        0xe1a0_b00d, // +04 mov fp, sp
        0xe1a0_0000, // +08 nop
        0xe04d_d002, // +0c sub sp, sp, r2
        0xe253_3001, // +10 subs r3, r3, #1
        0x1aff_fffb, // +14 bne +08
        0xe1a0_d00b, // +18 mov sp, fp
        0xe8bd_8800, // +1c pop {fp, pc}
    ]);
    for offset in [0x08, 0x0c, 0x10, 0x14, 0x18] {
        let mut registers = at(offset, false, 0xdead);
        registers.r[11] = STACK + 16;
        let (addresses, ..) = walk(&text, &registers, &[1, CALLER as u32 + 1, 3, 4, 11, CALLER as u32]);
        assert_eq!(addresses, [TEXT + 8 + offset, CALLER - 1], "at +{offset:#x}");
    }
}

#[test]
fn after_a_noreturn_call_comes_another_block() {
    let mut text = a32(&[
        0xe350_0000, // +00 cmp r0, #0
        0x1a00_0001, // +04 bne +10
        0xe92d_4010, // +08 push {r4, lr}
        0xeb00_0003, // +0c bl +20
        0xe92d_4070, // +10 push {r4, r5, r6, lr}
        0xe12f_ff33, // +14 blx r3
        0xeaff_fffd, // +18 b +14
        0xe7f0_00f0, // +1c udf
        0xe8b0_5010, // +20 ldm r0!, {r4, ip, lr}
        0xe1a0_d00c, // +24 mov sp, ip
        0xe12f_ff1e, // +28 bx lr
    ]);
    text.functions = vec![TEXT + 8..TEXT + 0x28, TEXT + 0x28..TEXT + 0x34];
    let (addresses, methods, _) = walk(&text, &at(0x18, false, 0xdead), &[4, 5, 6, CALLER as u32]);
    assert_eq!(addresses, [TEXT + 8 + 0x18, CALLER - 1]);
    assert_eq!(methods[1], Method::Code);
}

#[test]
fn an_early_return_of_several_conditional_instructions_is_one_path() {
    let text = a32(&[
        0xe92d_4010, // +00 push {r4, lr}
        0xe24d_d008, // +04 sub sp, sp, #8
        0xe350_0000, // +08 cmp r0, #0
        0x028d_d008, // +0c addeq sp, sp, #8
        0x08bd_8010, // +10 popeq {r4, pc}
        0xe12f_ff33, // +14 blx r3
        0xeaff_fffa, // +18 b +08
    ]);
    for offset in [0x08, 0x0c, 0x14, 0x18] {
        let (addresses, methods, _) = walk(&text, &at(offset, false, 0xdead), &[1, 2, 4, CALLER as u32]);
        assert_eq!((addresses, methods[1]), (vec![TEXT + 8 + offset, CALLER - 1], Method::Code));
    }
    let text = t32(&[
        0xb510, // +00 push {r4, lr}
        0xb082, // +02 sub sp, #8
        0x2800, // +04 cmp r0, #0
        0xbf04, // +06 itt eq
        0xb002, // +08 addeq sp, #8
        0xbd10, // +0a popeq {r4, pc}
        0x4798, // +0c blx r3
        0xe7f9, // +0e b +04
    ]);
    for offset in [0x04, 0x06, 0x0c, 0x0e] {
        let words = [1, 2, 4, CALLER as u32 | 1];
        let (addresses, methods, _) = walk(&text, &at(offset, true, 0xdead), &words);
        assert_eq!((addresses, methods[1]), (vec![TEXT + 8 + offset, CALLER - 1], Method::Code));
    }
}

#[test]
fn a_subroutine_inside_a_function_proves_no_end() {
    let text = a32(&[
        0xe92d_4010, // +00 push {r4, lr}
        0xeb00_0001, // +04 bl +10
        0xea00_0000, // +08 b +10
        0xe1a0_0000, // +0c nop
        0xe350_0000, // +10 cmp r0, #0
        0x08bd_8010, // +14 popeq {r4, pc}
        0xe12f_ff1e, // +18 bx lr
    ]);
    let ended = |link| walk(&text, &at(0x10, false, link), &[4, 0xffff_ffff]).2;
    // Two paths lead to a return from there, with two frames, whatever the link register says.
    assert!(!ended(TEXT + 8 + 8).is_complete());
    assert!(!ended(0xdead).is_complete());
}

/// Like libgcc's `__muldf3`: for a result of 0 the subroutine also returns from the function.
#[test]
fn a_subroutine_that_returns_for_its_caller_proves_no_end_without_symbols() {
    let mut text = t32(&[
        0xb570, // +00 push {r4, r5, r6, lr}
        0x2800, // +02 cmp r0, #0
        0xf000, 0xf803, // +04 bl +0e
        0x1840, // +08 adds r0, r0, r1
        0xbd70, // +0a pop {r4, r5, r6, pc}
        0xbf00, // +0c nop
        0x2900, // +0e cmp r1, #0
        0xd000, // +10 beq +14
        0x4770, // +12 bx lr
        0x2000, // +14 movs r0, #0
        0xbd70, // +16 pop {r4, r5, r6, pc}
    ]);
    text.functions.clear();
    let walk = |link| walk(&text, &at(0x14, true, link), &[4, 5, 6, 0xffff_ffff]);
    assert_eq!(walk(0xdead).2, StackEnd::Root);
    assert_eq!(walk(TEXT + 8 + 8 + 1).2, StackEnd::UnverifiedFrameRecord);
}

#[test]
fn a_jump_after_mov_lr_pc_is_a_call() {
    let text = a32(&[
        0xe92d_4010, // +00 push {r4, lr}
        0xe1a0_e00f, // +04 mov lr, pc
        0xeaff_fffc, // +08 b +00
        0xe8bd_8010, // +0c pop {r4, pc}
    ]);
    let back = TEXT + 8 + 0xc;
    let (addresses, ..) = walk(&text, &at(0, false, back), &[4, CALLER as u32]);
    assert_eq!(addresses, [TEXT + 8, back - 1, CALLER - 1]);
}
