//! Frame records of a noreturn function, and proofs that their caller called it.

use super::*;

/// At +10 is a function without rows that keeps a record and never returns: push %rbp; lea (%rsp),%rbp; call *%rax;
/// jmp.
#[test]
fn a_record_is_certain_if_the_call_leads_to_the_function_that_keeps_it() {
    let walk = |call: &[u8]| {
        let returned = call.len() as u64;
        let code =
            Text::new(TEXT, [0xf4; 0x40]).row_at(0x30, sp_plus(8)).row_at(returned - 1, first_function());
        let code =
            code.with_pieces(&[(0, call), (0x10, &[0x55, 0x48, 0x8d, 0x2c, 0x24, 0xff, 0xd0, 0xeb, 0xfc])]);
        // Above the return address is the caller's frame.
        let words = [TEXT + 0x17, STACK + 64, TEXT + returned, 0, TEXT + 0x10];
        let mut registers = X86_64 { rip: TEXT + 0x30, ..X86_64::default() };
        (registers.gpr[RSP], registers.gpr[RBP]) = (STACK, STACK + 8);
        registers.gpr[3] = TEXT + 0x10;
        let (_, methods, walked) =
            walk_from(&code, UnwindMethod::Auto, &registers, STACK, &words, (None, None));
        (methods.last().copied(), walked.ended)
    };
    let check = |call: &[u8], ended| assert_eq!(walk(call), (Some(Method::FramePointer), ended), "{call:x?}");
    // call +10; mov 8(%rsp),%rax; call *%rax; nop; call *%rbx
    check(&[0xe8, 0x0b, 0, 0, 0], StackEnd::Root);
    check(&[0x48, 0x8b, 0x44, 0x24, 8, 0xff, 0xd0], StackEnd::Root);
    check(&[0x90, 0x90, 0x90, 0x90, 0x90, 0xff, 0xd3], StackEnd::Root);
    // call *%rcx; call +14, into the middle of it; another word of the frame; another register
    check(&[0x90, 0x90, 0x90, 0x90, 0x90, 0xff, 0xd1], StackEnd::UnverifiedFrameRecord);
    check(&[0xe8, 0x0f, 0, 0, 0], StackEnd::UnverifiedFrameRecord);
    check(&[0x48, 0x8b, 0x44, 0x24, 0, 0xff, 0xd0], StackEnd::UnverifiedFrameRecord);
    check(&[0x48, 0x8b, 0x4c, 0x24, 8, 0xff, 0xd0], StackEnd::UnverifiedFrameRecord);
    check(&[0x90, 0x90, 0x90, 0x90, 0x41, 0xff, 0xd4], StackEnd::UnverifiedFrameRecord);
}
