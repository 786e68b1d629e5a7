//! Compiler output, and the instructions at which fp points to the function's own record.

use super::*;
use crate::rng::Rng;
use crate::walk::text::Text;

const TEXT: u64 = 0x1_0000_4000;

/// `expected` has one character per instruction, `R` with a record and `.` without.
#[track_caller]
fn check(functions: &[u64], code: &[u32], expected: &str) {
    let text = Text::of_words(TEXT, code).with_functions(functions);
    let own = (0..code.len()).map(|index| is_own(Avma(TEXT + index as u64 * 4), &text));
    let own: String = own.map(|own| if own == Some(true) { 'R' } else { '.' }).collect();
    assert_eq!(own, expected);
}

#[test]
fn a_frame_in_one_arm_only() {
    // clang -O2, recursion.c, down:
    let code = [
        0xb400_00e0, // +00 cbz x0, +1c
        0xa9bf_7bfd, // +04 stp x29, x30, [sp, #-16]!
        0x9100_03fd, // +08 mov x29, sp
        0xd100_0400, // +0c sub x0, x0, #1
        0x97ff_fffc, // +10 bl down
        0x9100_0400, // +14 add x0, x0, #1
        0xa8c1_7bfd, // +18 ldp x29, x30, [sp], #16
        0xd65f_03c0, // +1c ret
    ];
    check(&[0], &code, "...RRRR.");
    check(&[], &code, "...RRRR.");
}

#[test]
fn tail_calls_after_the_epilogue_have_no_record_unless_the_epilogue_is_outlined() {
    let code = [
        0x9400_0006, // +00 bl +18
        0x1400_0003, // +04 b +10
        0x1400_0004, // +08 b +18
        0xd503_201f, // +0c nop
        0xa8c1_7bfd, // +10 ldp x29, x30, [sp], #16
        0xd65f_03c0, // +14 ret
        0xa9bf_7bfd, // +18 stp x29, x30, [sp, #-16]!
        0x9100_03fd, // +1c mov x29, sp
        0xd65f_03c0, // +20 ret
    ];
    check(&[0, 8, 0x10, 0x18], &code, "RR..R....");
}

#[test]
fn the_end_of_a_prologue_may_be_outlined() {
    // clang -Oz, tail.c, hop:
    let code = [
        0xa9be_4ff4, // +00 stp x20, x19, [sp, #-32]!
        0xa901_7bfd, // +04 stp x29, x30, [sp, #16]
        0x9400_0004, // +08 bl OUTLINED_FUNCTION_0
        0x9400_0006, // +0c bl +24
        0xa941_7bfd, // +10 ldp x29, x30, [sp, #16]
        0xa8c2_4ff4, // +14 ldp x20, x19, [sp], #32, and then
        // OUTLINED_FUNCTION_0
        0x9100_43fd, // +18 add x29, sp, #16
        0xaa01_03f3, // +1c mov x19, x1
        0xd65f_03c0, // +20 ret
        0xd65f_03c0, // +24 ret
    ];
    check(&[0, 0x18, 0x24], &code, "...RR.....");
}

#[test]
fn an_endless_loop_is_decided_by_the_path_to_it() {
    let code = [
        0xa9bf_7bfd, // +00 stp x29, x30, [sp, #-16]!
        0x9100_03fd, // +04 mov x29, sp
        0x1400_0003, // +08 b +14
        0xd503_201f, // +0c nop
        0x1400_0001, // +10 b +14
        0x9100_0400, // +14 add x0, x0, #1
        0x17ff_fffe, // +18 b +10
        // the same without a frame
        0x9100_0400, // +1c add x0, x0, #1
        0x17ff_ffff, // +20 b +1c
    ];
    check(&[0, 0x1c], &code, "..R.RRR..");
    // The start of the function is unknown: at least the link register is checked.
    check(&[], &code, "..R......");
}

#[test]
fn a_trap_is_decided_by_the_branch_to_it() {
    let code = [
        0xa9bf_7bfd, // +00 stp x29, x30, [sp, #-16]!
        0x9100_03fd, // +04 mov x29, sp
        0xb400_0080, // +08 cbz x0, +18
        0xa8c1_7bfd, // +0c ldp x29, x30, [sp], #16
        0xb400_0061, // +10 cbz x1, +1c
        0xd65f_03c0, // +14 ret
        0xd420_0020, // +18 brk #1
        0xd420_0020, // +1c brk #1
    ];
    check(&[0], &code, "..RR..R.");
}

#[test]
fn blocks_reached_through_a_table_are_like_the_jump_through_it() {
    let code = [
        0xa9bf_7bfd, // +00 stp x29, x30, [sp, #-16]!
        0x9100_03fd, // +04 mov x29, sp
        0xf940_07e8, // +08 ldr x8, [sp, #8]
        0xd61f_0100, // +0c br x8
        0x9100_0c00, // +10 add x0, x0, #3
        0x17ff_fffd, // +14 b +08
        // a leaf with a table
        0xf860_7908, // +18 ldr x8, [x8, x0, lsl #3]
        0xd61f_0100, // +1c br x8
        0x9100_0c00, // +20 add x0, x0, #3
        0x17ff_fffd, // +24 b +18
        // a stub: in no list of functions
        0xb000_0010, // +28 adrp x16, ..
        0xf940_0210, // +2c ldr x16, [x16]
        0xd61f_0200, // +30 br x16
    ];
    check(&[0, 0x18], &code[..10], "..RRRR....");
    check(&[], &code[10..], "...");
}

#[test]
fn a_noreturn_function_is_no_evidence_about_the_next() {
    let code = [
        0xa9bf_7bfd, // +00 stp x29, x30, [sp, #-16]!
        0x9100_03fd, // +04 mov x29, sp
        0x9400_0003, // +08 bl stop
        // another function, right after the noreturn call
        0x9100_0400, // +0c add x0, x0, #1
        0xd65f_03c0, // +10 ret
        0xd503_201f, // +14 nop: stop runs on into the next function
        0x9400_0000, // +18 bl +18
    ];
    check(&[0, 0xc, 0x14, 0x18], &code, "..R...R");
}

#[test]
fn memory_addressed_by_fp_counts_without_other_evidence() {
    let code = [
        0xd65f_03c0, // +00 ret
        0xb85c_03a8, // +04 ldur w8, [x29, #-64]: nothing leads here
        0x17ff_ffff, // +08 b +04
        0x1400_0000, // +0c b +0c
        // OUTLINED_FUNCTION_1 of py-spy 0.4 for macOS: called with a record, has none itself
        0x9100_2008, // +10 add x8, x0, #8
        0xd100_07a9, // +14 sub x9, x29, #1
        0xa900_27e8, // +18 stp x8, x9, [sp]
        0xd65f_03c0, // +1c ret
    ];
    check(&[0, 0x10], &code, ".RR.....");
    // ldr x8, +0 has no base register, only bits in its place; stur x29, [x8] uses another.
    assert_eq!(kind(0x5800_03a8, Avma(TEXT)), RecordEffect::Plain);
    assert_eq!(kind(0xf800_011d, Avma(TEXT)), RecordEffect::Plain);
}

#[test]
fn a_call_that_checks_a_large_frame_has_no_record() {
    // clang -O0, OpenSSL 3.5 for macOS, bn_mul_comba8:
    let code = [
        0xa9bf_6ffc, // +00 stp x28, x27, [sp, #-16]!
        0xf81f_0ffe, // +04 str x30, [sp, #-16]!
        0xd63f_0200, // +08 blr x16: ___chkstk_darwin
        0xf841_07fe, // +0c ldr x30, [sp], #16
        0xd140_07ff, // +10 sub sp, sp, #1, lsl #12
        0x1400_0000, // +14 b +14
    ];
    check(&[0], &code, "......");
}

#[test]
fn signed_functions_are_like_others() {
    let code = [
        0xd503_237f, // +00 pacibsp
        0xa9bf_7bfd, // +04 stp x29, x30, [sp, #-16]!
        0x9100_03fd, // +08 mov x29, sp
        0xd73f_0909, // +0c blraa x8, x9
        0xa8c1_7bfd, // +10 ldp x29, x30, [sp], #16
        0xd65f_0fff, // +14 retab
    ];
    check(&[0], &code, "...RR.");
}

#[test]
fn branch_targets_are_decoded_with_their_sign() {
    let jump = |word| kind(word, Avma(TEXT));
    assert_eq!(jump(0x17ff_ffff), RecordEffect::Jump(Avma(TEXT - 4)));
    assert_eq!(jump(0x15ff_ffff), RecordEffect::Jump(Avma(TEXT + 0x7ff_fffc)));
    assert_eq!(jump(0x54ff_ffe0), RecordEffect::Branch(Avma(TEXT - 4)));
    assert_eq!(jump(0xb400_0080), RecordEffect::Branch(Avma(TEXT + 16)));
    assert_eq!(jump(0x3707_ffe0), RecordEffect::Branch(Avma(TEXT - 4)));
    assert_eq!(jump(0x9400_0002), RecordEffect::Calls(Some(Avma(TEXT + 8))));
}

/// Any bytes with any function bounds are decided within the limits.
#[test]
fn random_code_is_decided_within_bounds() {
    let seed = 1;
    let mut rng = Rng::new(seed);
    let mut random = move || rng.next() >> 16;
    // Relevant instructions in the random code: jumps near and far, pairs, traps.
    let known = [
        0x1400_0000u64,
        0x17ff_ff80,
        0x5400_0000,
        0xb400_0000,
        0x3600_0000,
        0xd61f_0100,
        0xd420_0020,
        0xa9bf_7bfd,
        0x9100_03fd,
        0xa8c1_7bfd,
        0x9400_0000,
        0xd503_201f,
        0,
    ];
    let (mut with, mut without) = (0, 0);
    for _ in 0..2000 {
        let length = 1 + random() % 64;
        let words = (0..length).map(|_| {
            let word = known[(random() % known.len() as u64) as usize];
            if random() % 8 == 0 { random() as u32 } else { (word | (random() & 0x1f) << 5) as u32 }
        });
        let mut bytes: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
        bytes.truncate(bytes.len() - (random() % 4) as usize);
        let mut functions: Vec<u64> = (0..random() % 4).map(|_| random() % (length * 4)).collect();
        functions.sort_unstable();
        let text = Text::new(TEXT, bytes).with_functions(&functions);
        for at in 0..length * 4 {
            match is_own(Avma(TEXT + at), &text) {
                Some(true) => with += 1,
                Some(false) => without += 1,
                None => assert!(text.code(Avma(TEXT + at)).is_none(), "seed {seed:#x}"),
            }
        }
    }
    assert!(with > 1000 && without > 1000, "{with} {without}, seed {seed:#x}");
}
