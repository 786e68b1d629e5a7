use super::*;
use crate::arch::X86_64;
use crate::binary::frame_rule::{CfaBase, FrameRule};
use crate::walk::CodeTraits;
use crate::walk::text::Text;

fn follow(pc: Avma, returned: bool, code: &dyn Code) -> Option<CodeEnd<X86_64>> {
    super::follow::<X86_64>(pc, returned, code, &mut Callees::default())
}

fn text(code: &[u8]) -> Text {
    Text::new(0x1000, code)
}

#[track_caller]
fn check(code: &'static [u8], expected: &[(u64, CfaBase, i64, Option<i64>)]) {
    for &(at, base, cfa_offset, frame_pointer_at) in expected {
        let Some(CodeEnd::Returns(row, _)) = follow(Avma(0x1000 + at), false, &text(code)) else {
            panic!("+{at:#x}")
        };
        let rule = FrameRule { base, cfa_offset, frame_pointer_at, return_at: Some(-8) };
        assert_eq!(row.ordinary(), Some(rule), "at +{at:#x}");
    }
}

use CfaBase::{FramePointer, StackPointer};

#[test]
fn init_of_every_program() {
    const INIT: &[u8] = &[
        0x48, 0x83, 0xec, 0x08, //                   +00 sub $8,%rsp
        0x48, 0x8b, 0x05, 0xc5, 0x2f, 0x00, 0x00, // +04 mov __gmon_start__(%rip),%rax
        0x48, 0x85, 0xc0, //                         +0b test %rax,%rax
        0x74, 0x02, //                               +0e je +12
        0xff, 0xd0, //                               +10 call *%rax
        0x48, 0x83, 0xc4, 0x08, //                   +12 add $8,%rsp
        0xc3, //                                     +16 ret
    ];
    check(INIT, &[(0, StackPointer, 8, None), (0x16, StackPointer, 8, None)]);
    for at in [4, 0xb, 0xe, 0x10, 0x12] {
        check(INIT, &[(at, StackPointer, 16, None)]);
    }
}

#[test]
fn do_global_dtors_aux_of_every_program() {
    const DTORS: &[u8] = &[
        0x80, 0x3d, 0x29, 0x2f, 0, 0, 0, //    +00 cmpb $0,completed(%rip)
        0x75, 0x13, //                         +07 jne +1c
        0x55, //                               +09 push %rbp
        0x48, 0x89, 0xe5, //                   +0a mov %rsp,%rbp
        0xe8, 0x74, 0xff, 0xff, 0xff, //       +0d call deregister_tm_clones
        0xc6, 0x05, 0x10, 0x2f, 0, 0, 1,    //    +12 movb $1,completed(%rip)
        0x5d, //                               +19 pop %rbp
        0xc3, //                               +1a ret
        0x90, //                               +1b nop
        0xc3, //                               +1c ret
    ];
    for at in [0, 7, 9, 0x1a, 0x1b, 0x1c] {
        check(DTORS, &[(at, StackPointer, 8, None)]);
    }
    for at in [0xa, 0xd, 0x12, 0x19] {
        check(DTORS, &[(at, StackPointer, 16, Some(-16))]);
    }
}

#[test]
fn a_frame_of_unknown_size_is_removed_by_its_frame_pointer() {
    const LEAVES: &[u8] = &[
        0x48, 0x29, 0xc4, //       +0 sub %rax,%rsp (alloca)
        0xe8, 0, 0, 0, 0, //       +3 call
        0x48, 0x8d, 0x65, 0xf8, // +8 lea -8(%rbp),%rsp
        0x5b, //                   +c pop %rbx
        0xc9, //                   +d leave
        0xc3, //                   +e ret
    ];
    check(LEAVES, &[(3, FramePointer, 16, Some(-16)), (0xd, FramePointer, 16, Some(-16))]);
}

#[test]
fn the_childs_side_of_clone_is_the_end_of_the_stack() {
    const CLONE: &[u8] = &[
        0x31, 0xed, //             xor %ebp,%ebp
        0x58, 0x5f, //             pop %rax; pop %rdi
        0xff, 0xd0, //             call *%rax
        0x48, 0x89, 0xc7, 0xb8, 0x3c, 0, 0, 0, 0x0f, 0x05, // exit(rax)
    ];
    for at in [0, 2, 3, 4, 6] {
        assert_eq!(follow(Avma(0x1000 + at), false, &text(CLONE)), Some(CodeEnd::ExitsThread));
    }
}

#[test]
fn start_code_ends_where_another_function_may_begin() {
    const LINKER: &[u8] = &[
        0x48, 0x89, 0xe7, //    +00 mov %rsp,%rdi
        0xe8, 0xf8, 0x0b, 0, 0, // +03 call _dl_start
        0x49, 0x89, 0xc4, //    +08 mov %rax,%r12
        0xe8, 0xf8, 0x0b, 0, 0, // +0b call _dl_init
        0x4c, 0x89, 0xec, //    +10 mov %r13,%rsp
        0x41, 0xff, 0xe4, //    +13 jmp *%r12
        0x53, //                +16 the next function
    ];
    const PROGRAM: &[u8] = &[
        0x31, 0xed, //                   +00 xor %ebp,%ebp
        0xff, 0x15, 0x74, 0x2f, 0, 0,    // +02 call *__libc_start_main
        0xf4, //                         +08 hlt
        0x48, 0x8d, 0x3d, 0, 0, 0, 0, // +09 deregister_tm_clones: lea
        0xc3,
    ];
    let is_start = |code: &'static [u8], address: fn(Avma) -> CodeAddress, at: u64| {
        super::is_start::<X86_64>(Avma(0x1000), address(Avma(0x1000 + at)), &text(code))
    };
    for at in [0, 3, 8, 0xb, 0x10, 0x13] {
        assert!(is_start(LINKER, CodeAddress::Pc, at), "{at:#x}");
    }
    assert!(is_start(LINKER, CodeAddress::Return, 8) && is_start(LINKER, CodeAddress::Return, 0x10));
    assert!(!is_start(LINKER, CodeAddress::Pc, 0x16) && !is_start(LINKER, CodeAddress::Pc, 1));
    assert!(is_start(PROGRAM, CodeAddress::Pc, 2) && is_start(PROGRAM, CodeAddress::Return, 8));
    assert!(!is_start(PROGRAM, CodeAddress::Pc, 9) && !is_start(PROGRAM, CodeAddress::Pc, 0x10));
    // A call before it does not return there.
    assert!(!is_start(LINKER, CodeAddress::Return, 0) && !is_start(PROGRAM, CodeAddress::Return, 0));
}

/// A program without symbols; its first function begins at 0x1005.
fn stripped(code: &[u8]) -> Text {
    text(code).with_entry(0x1005)
}

#[test]
fn a_function_after_a_noreturn_call_does_not_end_its_thread() {
    const CODE: &[u8] = &[
        0xe8, 0x20, 0, 0, 0, // +00 noreturn call
        0x89, 0xc7, 0xb8, 0x3c, 0, 0, 0, 0x0f, 0x05, // +05 mov %eax,%edi; mov $60,%eax; syscall
    ];
    let leads = |at: u64, returned: bool, code: &dyn Code| follow(Avma(0x1000 + at), returned, code);
    assert_eq!(leads(5, true, &text(CODE)), Some(CodeEnd::ExitsThread));
    assert_eq!(leads(0, false, &text(CODE)), Some(CodeEnd::ExitsThread));
    // The first function of a stripped program.
    assert_eq!(leads(5, true, &stripped(CODE)), None);
    assert_eq!(leads(0, false, &stripped(CODE)), None);
    assert_eq!(leads(5, false, &stripped(CODE)), Some(CodeEnd::ExitsThread));
    // A function that calls and then ends its thread.
    const START: &[u8] = &[
        0xe8, 0x20, 0, 0, 0, // +00 noreturn call
        0x31, 0xed, //                                  +05 xor %ebp,%ebp
        0x5f, //                                        +07 pop %rdi
        0xff, 0xd0, //                                  +08 call *%rax
        0x89, 0xc7, 0xb8, 0x3c, 0, 0, 0, 0x0f, 0x05, // +0a mov %eax,%edi; mov $60,%eax; syscall
    ];
    assert_eq!(leads(5, true, &text(START)), None);
    assert_eq!(leads(0, false, &text(START)), None);
    assert_eq!(leads(5, false, &text(START)), Some(CodeEnd::ExitsThread));
    assert_eq!(leads(0xa, true, &text(START)), Some(CodeEnd::ExitsThread));
}

#[test]
fn the_words_of_a_procedure_linkage_table_are_not_the_return_address() {
    const PLT: &[u8] = &[
        0xff, 0x35, 2, 0x2f, 0, 0, // +00 push GOT+8(%rip)
        0xff, 0x25, 4, 0x2f, 0, 0, // +06 jmp *GOT+16(%rip)
        0x0f, 0x1f, 0x40, 0, // +0c nop
        0xff, 0x25, 2, 0x2f, 0, 0, // +10 jmp *GOT+24(%rip)
        0x68, 0, 0, 0, 0, // +16 push $0
        0xe9, 0xe0, 0xff, 0xff, 0xff, // +1b jmp +00
    ];
    let rows = [(0x10, 8), (0x16, 8), (0x1b, 16), (0, 16), (6, 24)];
    check(PLT, &rows.map(|(at, cfa)| (at, StackPointer, cfa, None)));
}

#[test]
fn byte_registers_other_than_bpl_are_no_frame_pointer() {
    // and $0xf7,%ch; leave; ret. With REX the register is the lowest byte of rbp.
    check(&[0x80, 0xe5, 0xf7, 0xc9, 0xc3], &[(0, FramePointer, 16, Some(-16))]);
    assert_eq!(follow(Avma(0x1000), false, &text(&[0x40, 0x80, 0xe5, 0xf7, 0xc9, 0xc3])), None);
    // seta %ah; pop %rbp; ret
    check(&[0x0f, 0x97, 0xc4, 0x5d, 0xc3], &[(0, StackPointer, 16, Some(-16))]);
}

#[test]
fn undecodable_code_has_no_row() {
    for code in [
        &[0x48, 0x83, 0xe4, 0xf0, 0xc3][..], // and $-16,%rsp; ret
        &[0x48, 0x8b, 0x67, 0x30, 0xc3],     // mov 0x30(%rdi),%rsp; ret
        &[0xeb, 0xfe],                       // a loop
        &[0xf4],
        &[0x0f],
        &[0x90, 0x90],
    ] {
        let code: &'static [u8] = code;
        assert_eq!(follow(Avma(0x1000), false, &text(code)), None, "{code:x?}");
    }
}

/// Checks the proof at `at`, where a call has just returned or not.
#[track_caller]
fn proof(code: &'static [u8], at: u64, returned: bool, expected: Proof) {
    let found = follow(Avma(0x1000 + at), returned, &text(code));
    let Some(CodeEnd::Returns(_, proof)) = found else { panic!("+{at:#x}: {found:?}") };
    assert_eq!(proof, expected, "+{at:#x}");
}

#[test]
fn a_path_after_a_call_is_certain_only_if_it_removes_the_frame_by_rbp() {
    const CALLS: &[u8] = &[
        0xe8, 0, 0, 0, 0, //       +0 call
        0x85, 0xc0, //             +5 test %eax,%eax
        0x48, 0x83, 0xc4, 0x08, // +7 add $8,%rsp
        0xc3, //                   +b ret
    ];
    proof(CALLS, 0, false, Proof::NeedsConfirmation);
    proof(CALLS, 5, true, Proof::NeedsConfirmation);
    proof(CALLS, 5, false, Proof::Certain);
    // leave; ret
    proof(&[0xe8, 0, 0, 0, 0, 0xc9, 0xc3], 0, false, Proof::Certain);
    proof(&[0x90, 0xc9, 0xc3], 0, true, Proof::Certain);
}

#[test]
fn paths_that_differ_are_not_certain() {
    // je +6; add $8,%rsp; ret
    proof(&[0x74, 0x04, 0x48, 0x83, 0xc4, 0x08, 0xc3], 0, false, Proof::NeedsConfirmation);
    // je +4; ret; nop; ret
    proof(&[0x74, 0x02, 0xc3, 0x90, 0xc3], 0, false, Proof::Certain);
}

#[test]
fn a_tail_call_or_a_jump_through_a_table_is_not_certain() {
    // jmp *%rax
    proof(&[0xff, 0xe0], 0, false, Proof::NeedsConfirmation);
}

#[test]
fn a_branch_that_ends_the_thread_does_not_make_a_first_function() {
    const MAY_EXIT: &[u8] = &[
        0x85, 0xc0, //                                       +0 test %eax,%eax
        0x74, 0x0a, //                                       +2 je +e
        0x48, 0x89, 0xc7, 0xb8, 0x3c, 0, 0, 0, 0x0f, 0x05, // +4 exit(rax)
        0xc3, //                                             +e ret
    ];
    check(MAY_EXIT, &[(0, StackPointer, 8, None)]);
}

/// Like the end of builtins of V8: pops a variable number of arguments.
const TAKES_ARGUMENTS_OFF: &[u8] = &[
    0x49, 0xff, 0xc1, //       +00 inc %r9
    0x75, 0x02, //             +03 jne +07
    0xff, 0xe1, // +05 jmp *%rcx, after which nothing is known
    0xc9, //                   +07 leave
    0x59, //                   +08 pop %rcx
    0x48, 0x01, 0xdc, //       +09 add %rbx,%rsp
    0x51, //                   +0c push %rcx
    0xc3, //                   +0d ret
];

#[test]
fn removing_the_frame_by_the_frame_pointer_proves_a_record() {
    for at in [7, 3] {
        check(&TAKES_ARGUMENTS_OFF[at..], &[(0, FramePointer, 16, Some(-16))]);
    }
    // mov %rbp,%rsp; pop %rbp; then an undecodable instruction.
    check(&[0x48, 0x89, 0xec, 0x5d, 0xf4], &[(0, FramePointer, 16, Some(-16))]);
    for code in [
        // Without the pop, and with another rbp: written, or of a frame created here.
        &[0x48, 0x89, 0xec, 0xf4][..],
        &[0x48, 0x8b, 0x2f, 0xc9, 0xf4],
        &[0x55, 0x48, 0x89, 0xe5, 0xc9, 0xf4],
    ] {
        assert_eq!(follow(Avma(0x1000), false, &text(code)), None, "{code:x?}");
    }
}

#[test]
fn every_instruction_is_followed_once() {
    // 600 branches, each over one instruction, to the end of the frame: each separate path through them would be
    // too long.
    let mut code: Vec<u8> = [0x75, 0x01, 0x90].repeat(600);
    code.extend([0xc9, 0x59, 0x48, 0x01, 0xdc, 0x51, 0xc3]);
    check(code.leak(), &[(0, FramePointer, 16, Some(-16))]);
}

#[test]
fn a_tail_called_function_restores_what_it_pushes() {
    const CODE: &[u8] = &[
        0x48, 0x89, 0xef, // +0 mov %rbp,%rdi
        0x5b, //             +3 pop %rbx
        0x5d, //             +4 pop %rbp
        0xeb, 0x01, //       +5 jmp +8
        0x90, //             +7
        0x55, //             +8 push %rbp
        0x53, //             +9 push %rbx
        0x5b, //             +a pop %rbx
        0x5d, //             +b pop %rbp
        0xc3, //             +c ret
    ];
    check(CODE, &[(0, StackPointer, 24, Some(-16)), (4, StackPointer, 16, Some(-16))]);
}

#[test]
fn a_return_far_below_the_frame_belongs_to_other_code() {
    const CODE: &[u8] = &[
        0x74, 0x05, //                   +0 je +7
        0xe8, 0, 0, 0, 0, //             +2 call abort
        0x48, 0x83, 0xc4, 0x08, //       +7 add $8,%rsp
        0xc3, //                         +b ret
    ];
    check(CODE, &[(0, StackPointer, 16, None)]);
    const DEEPER: &[u8] = &[
        0x74, 0x0a, //                   +0 je +c
        0xe8, 0, 0, 0, 0, //             +2 call abort
        0x48, 0x83, 0xec, 0x18, //       +7 sub $24,%rsp: another function
        0xc3, //                         +b ret
        0x48, 0x83, 0xc4, 0x08, //       +c add $8,%rsp
        0xc3, //                         +10 ret
    ];
    check(DEEPER, &[(0, StackPointer, 16, None)]);
}

#[test]
fn mask_registers_are_no_stack_pointer() {
    const CODE: &[u8] = &[
        0xc4, 0xe1, 0xe4, 0x4b, 0xe2, // kunpckdq %k2,%k3,%k4
        0xc3, //                         ret
    ];
    check(CODE, &[(0, StackPointer, 8, None)]);
}

#[test]
fn subroutines_may_use_the_frame_pointer_as_any_register() {
    // _x86_64_AES_encrypt_compact of OpenSSL: movzbl %dh,%ebp; ret
    check(&[0x0f, 0xb6, 0xee, 0xc3], &[(0, StackPointer, 8, None), (3, StackPointer, 8, None)]);
    // A value loaded from elsewhere belongs to another frame: mov 0x78(%rdx),%rbp; ret
    assert_eq!(follow(Avma(0x1000), false, &text(&[0x48, 0x8b, 0x6a, 0x78, 0xc3])), None);
}

/// The proof of the row after a call of `part` in a function.
#[track_caller]
fn behind_a_call_of(part: &[u8]) -> Proof {
    const BODY: [u8; 16] = [
        0x48, 0x83, 0xec, 0x18, //       +00 sub $0x18,%rsp
        0xe8, 0x07, 0x00, 0x00, 0x00, // +04 call +10
        0x90, //                         +09 nop
        0x48, 0x83, 0xc4, 0x18, //       +0a add $0x18,%rsp
        0xc3, //                         +0e ret
        0x90, //                         +0f nop
    ];
    let code: &'static [u8] = [&BODY, part].concat().leak();
    let Some(CodeEnd::Returns(row, behind)) = follow(Avma(0x1009), true, &text(code)) else { panic!() };
    assert_eq!(row.ordinary().map(|rule| rule.cfa_offset), Some(0x20));
    let Some(CodeEnd::Returns(_, before)) = follow(Avma(0x1004), false, &text(code)) else { panic!() };
    assert_eq!(before, behind, "in front of the call and behind it");
    behind
}

#[test]
fn code_after_a_returning_call_is_certain() {
    for (part, comes_back) in [
        (&[0xc3][..], true),
        // A loop, and a restored stack pointer.
        (&[0x50, 0xff, 0xc8, 0x75, 0xfc, 0x59, 0xc3], true),
        // call of the `ret` after it.
        (&[0xe8, 1, 0, 0, 0, 0xc3, 0xc3], true),
        // Recursion: conditional, then unconditional.
        (&[0x74, 5, 0xe8, 0xf9, 0xff, 0xff, 0xff, 0xc3], true),
        (&[0xe8, 0xfb, 0xff, 0xff, 0xff, 0xc3], false),
        // Never returns; the next function follows.
        (&[0xeb, 0xfe, 0xc3], false),
        (&[0x0f, 0x0b, 0xc3], false),
        (&[0xff, 0xd0, 0xc3], false),
        (&[0xff, 0xe0, 0xc3], false),
        (&[0xe8, 1, 0, 0, 0, 0xc3, 0xeb, 0xfe], false),
        // A word is left on the stack, or popped.
        (&[0x50, 0xc3], false),
        (&[0x58, 0xc3], false),
        (&[0xc2, 8, 0], false),
    ] {
        let proof = behind_a_call_of(part);
        assert_eq!(proof == Proof::Certain, comes_back, "{part:02x?}");
    }
}

#[test]
fn facts_about_callees_are_cached_while_their_code_is_unchanged() {
    // Two functions that call a third, which calls a fourth.
    const CODE: &[u8] = &[
        0xe8, 0x0b, 0, 0, 0, 0xc3, 0x90, 0x90, // +00 call +10; ret
        0xe8, 0x03, 0, 0, 0, 0xc3, 0x90, 0x90, // +08 call +10; ret
        0xe8, 0x03, 0, 0, 0, 0xc3, 0x90, 0x90, // +10 call +18; ret
        0x85, 0xc0, 0x74, 0xfc, 0xc3, //          +18 test; jump back; ret
    ];
    for (made, is_kept) in [(false, true), (true, false)] {
        let code = text(CODE).with_traits(CodeTraits { is_jit: made, ..CodeTraits::default() });
        let mut callees = Callees::default();
        let mut asked = |at| {
            let before = code.asked.get();
            let leads = super::follow::<X86_64>(Avma(at), false, &code, &mut callees);
            assert!(matches!(leads, Some(CodeEnd::Returns(_, Proof::Certain))), "{leads:?}");
            code.asked.get() - before
        };
        let (first, second) = (asked(0x1000), asked(0x1008));
        assert_eq!(second < first, is_kept, "{first} and {second}");
        callees.clear();
        let mut asked = |at| {
            let before = code.asked.get();
            super::follow::<X86_64>(Avma(at), false, &code, &mut callees);
            code.asked.get() - before
        };
        assert_eq!(asked(0x1000), first, "nothing is known any more");
    }
}

/// Like the end of HotSpot's methods: a noreturn call precedes the target of the epilogue's jump.
#[test]
fn code_after_a_noreturn_call_refutes_nothing() {
    const METHOD: &[u8] = &[
        0x74, 0x07, //                     +00 je +09
        0x48, 0x83, 0xc4, 0x18, //         +02 add $0x18,%rsp
        0x77, 0x07, //                     +06 ja +0f
        0xc3, //                           +08 ret
        0xff, 0x15, 0, 0, 0, 0, //         +09 call *0(%rip)
        0x48, 0x89, 0xc1, //               +0f mov %rax,%rcx
        0xff, 0xe1, //                     +12 jmp *%rcx
    ];
    let Some(CodeEnd::Returns(row, proof)) = follow(Avma(0x1000), false, &text(METHOD)) else { panic!() };
    assert_eq!(row.ordinary().map(|rule| rule.cfa_offset), Some(0x20));
    assert_eq!(proof, Proof::Certain);
    // If the path to the return passes a call, nothing is certain.
    let Some(CodeEnd::Returns(_, proof)) = follow(Avma(0x1002), true, &text(METHOD)) else { panic!() };
    assert_eq!(proof, Proof::NeedsConfirmation);
}

#[test]
fn short_searches_leave_the_result_unknown() {
    // 200 nops; ret
    const LONG: &[u8] = &{
        let mut code = [0x90; 201];
        code[200] = 0xc3;
        code
    };
    let mut callees = Callees::default();
    let mut leads = |at: u64, little: bool| {
        callees.follow_little(little);
        super::follow::<X86_64>(Avma(0x1000 + at), false, &text(LONG), &mut callees).is_some()
    };
    assert_eq!((leads(0, false), leads(0, true), leads(150, true)), (true, false, true));
    // je to the end; ret. The path cut off might lead to another row.
    const BRANCH: &[u8] = &{
        let mut code = [0x90; 140];
        (code[0], code[1], code[2]) = (0x74, 0x01, 0xc3);
        code[139] = 0xc3;
        code
    };
    let mut leads = |little: bool| {
        callees.follow_little(little);
        super::follow::<X86_64>(Avma(0x1000), false, &text(BRANCH), &mut callees)
    };
    assert!(matches!(leads(false), Some(CodeEnd::Returns(_, Proof::Certain))));
    assert_eq!(leads(true), None);
}
