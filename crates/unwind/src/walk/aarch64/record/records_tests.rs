//! Stacks built word by word over code that consists of calls and rows.

use super::super::LR;
use super::*;
use crate::addr::Avma;
use crate::binary::frame_rule::{AARCH64_PC, Cfa, Column, RowAarch64};
use crate::walk::frames::Method;
use crate::walk::text::Text;
use crate::walk::{self, StackBytes};

const FP: usize = Aarch64::FP;
const TEXT: u64 = 0x1_0000_4000;
const STACK: u64 = 0x1_6fdf_0000;
/// Bits of a signature, and Swift's async mark.
const SIGNED: u64 = 0xabcd_8000_0000_0000;

/// Every word is `bl`, except the signal trampoline at +0x800.
fn calls() -> Text {
    // mov x8, #139; svc #0
    let trampoline = [0xd280_1168u32, 0xd400_0001].map(u32::to_le_bytes).concat();
    Text::of_words(TEXT, &[0x9400_0000; 0x400]).with_pieces(&[(0x800, &trampoline)])
}

fn row(cfa: (u8, i64), columns: &[(usize, Column)]) -> RowAarch64 {
    let mut row = RowAarch64::new(Cfa::Register(cfa.0, cfa.1));
    for (register, column) in columns {
        row.columns[*register] = column.clone();
    }
    row
}

/// CFA = x29 + 16.
fn framed() -> RowAarch64 {
    row((29, 16), &[(FP, Column::At(-16)), (LR, Column::At(-8))])
}

#[track_caller]
fn check(
    rows: &Text,
    set: &[(usize, u64)],
    words: &[u64],
    expected: &[(u64, Method)],
    ended: StackEnd,
) -> WalkResult {
    check_by(UnwindMethod::Cfi, rows, set, words, expected, ended)
}

#[track_caller]
fn check_by(
    unwind_method: UnwindMethod,
    rows: &Text,
    set: &[(usize, u64)],
    words: &[u64],
    expected: &[(u64, Method)],
    ended: StackEnd,
) -> WalkResult {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut registers = Aarch64 { pc: TEXT + 0x40, sp: STACK, ..Aarch64::default() };
    for (register, value) in set {
        registers.x[*register] = *value;
    }
    let input = Input {
        fp_always: rows.fp_always,
        max_depth: 8,
        address_mask: (1 << 47) - 1,
        ..Input::new(StackBytes { base: Avma(STACK), bytes: &bytes }, rows)
    };
    let mut unwinder = walk::Unwinder::default();
    let mut out = Frames::default();
    let registers = walk_registers(registers);
    for again in [false, true] {
        let walked = walk::unwind(unwind_method, &registers, &input, &mut unwinder, &mut out)
            .expect("all code is in images");
        let found: Vec<_> = out.addresses.iter().map(|at| at.0 - TEXT).zip(out.methods.clone()).collect();
        assert_eq!((found.as_slice(), walked.ended), (expected, ended), "again: {again}");
        if again {
            return walked;
        }
    }
    unreachable!()
}

fn walk_registers(registers: Aarch64) -> crate::arch::Registers {
    crate::arch::Registers::Aarch64(registers)
}

const LEAF: (u64, Method) = (0x40, Method::Context);

#[test]
fn only_the_leafs_caller_is_in_the_link_register() {
    // A leaf without a frame; its caller has one, and the row of that frame's caller wrongly refers to lr.
    let rows =
        calls().row_at(0x40, row((31, 16), &[])).row_at(0x103, framed()).row_at(0x203, row((31, 0), &[]));
    let words = [0, 0, 0, TEXT + 0x204, 0];
    let set = [(LR, SIGNED | (TEXT + 0x104)), (FP, STACK + 16)];
    check(
        &rows,
        &set,
        &words,
        &[LEAF, (0x103, Method::Cfi), (0x203, Method::Cfi)],
        StackEnd::BrokenFrameChain,
    );
}

#[test]
fn signatures_and_swifts_mark_are_stripped_and_undefined_ends_the_walk() {
    let end = row((31, 0), &[(LR, Column::Undefined)]);
    let rows = calls().row_at(0x40, framed()).row_at(0x103, framed()).row_at(0x203, end);
    // fp → {marked fp, signed return address} → {0, signed}
    let words = [1 << 60 | (STACK + 32), SIGNED | (TEXT + 0x104), 7, 8, 0, SIGNED | (TEXT + 0x204)];
    let found = [LEAF, (0x103, Method::Cfi), (0x203, Method::Cfi)];
    let walked = check(&rows, &[(FP, STACK)], &words, &found, StackEnd::Root);
    assert_eq!(walked.reached, Avma(STACK + 48));
}

#[test]
fn goroutines_end_at_the_second_instruction_of_goexit() {
    // With the row of Go's linker, and without one.
    for described in [true, false] {
        let mut rows = calls().row_at(0x40, framed());
        rows.bytes[0x300..0x304].copy_from_slice(&0xaa00_03e0u32.to_le_bytes()); // mov x0, x0; bl goexit1
        rows.bytes[0x308..0x310].fill(0);
        if described {
            rows = rows.row_at(0x303, row((31, 0), &[(LR, Column::Undefined)]));
        }
        let words = [0, TEXT + 0x304];
        check(&rows, &[(FP, STACK)], &words, &[LEAF, (0x303, Method::Cfi)], StackEnd::Root);
        // Another function that begins like this continues after its call.
        rows.bytes[0x308..0x30c].copy_from_slice(&0xd65f_03c0u32.to_le_bytes());
        check(&rows, &[(FP, STACK)], &words, &[LEAF], StackEnd::BrokenFrameChain);
    }
}

#[test]
fn rows_may_refer_to_other_registers_than_the_frame_pointer() {
    // The first saves x19, which is the base of the second's CFA.
    let saves = row((31, 32), &[(LR, Column::At(-8)), (19, Column::At(-32))]);
    let counts = row((19, 24), &[(LR, Column::At(-8))]);
    let end = row((31, 0), &[(LR, Column::Undefined)]);
    let rows = calls().row_at(0x40, saves).row_at(0x103, counts).row_at(0x203, end);
    let words = [STACK + 64, 0, 0, TEXT + 0x104, 5, 6, 7, 8, 9, 10, TEXT + 0x204];
    check(&rows, &[], &words, &[LEAF, (0x103, Method::Cfi), (0x203, Method::Cfi)], StackEnd::Root);
}

#[test]
fn a_signal_frame_restores_every_register_and_an_exact_program_counter() {
    // The handler returns to the trampoline; the context is at the stack pointer.
    let end = row((31, 0), &[(LR, Column::Undefined)]);
    let interrupted = row((28, 32), &[(LR, Column::At(-8))]);
    let rows = calls().row_at(0x40, row((31, 0), &[])).row_at(0x300, interrupted).row_at(0x203, end);
    let mut words = vec![0; 120];
    let registers = (128 + 184) / 8;
    words[registers + 28] = STACK + 100 * 8;
    words[registers + 31] = STACK + 90 * 8;
    words[registers + 32] = TEXT + 0x300;
    words[103] = TEXT + 0x204;
    // The trampoline is not called, whatever precedes it.
    let found = [LEAF, (0x800, Method::Cfi), (0x300, Method::Code), (0x203, Method::Cfi)];
    check(&rows, &[(LR, TEXT + 0x800)], &words, &found, StackEnd::Root);
    // With the interrupted code on a separate stack.
    for sp in [STACK - 64, STACK + (9 << 20)] {
        words[registers + 28] = sp;
        words[registers + 31] = sp;
        let walked = check(&rows, &[(LR, TEXT + 0x800)], &words, &found[..3], StackEnd::OtherStack);
        assert_eq!(walked.reached, Avma(STACK));
    }
    words[registers + 28] = STACK + 0x2000;
    words[registers + 31] = STACK + 0x1000;
    check(&rows, &[(LR, TEXT + 0x800)], &words, &found[..3], StackEnd::DeeperThanCopied);
    // The caller of an interrupted leaf is in its link register.
    let rows = rows.row_at(0x400, row((31, 0), &[])).row_at(0x103, framed());
    words[registers + 30] = TEXT + 0x104;
    words[registers + 31] = STACK - 64;
    words[registers + 32] = TEXT + 0x400;
    let found = [LEAF, found[1], (0x400, Method::Code), (0x103, Method::Cfi)];
    check(&rows, &[(LR, TEXT + 0x800)], &words, &found, StackEnd::OtherStack);
}

#[test]
fn a_record_of_code_that_may_keep_none_proves_nothing() {
    // Neither the leaf nor its caller at +103 has a row; that of +203 is marked outermost.
    let end = row((31, 0), &[(LR, Column::Undefined)]);
    let words = [STACK + 16, TEXT + 0x104, 0, TEXT + 0x204];
    let found = [LEAF, (0x103, Method::FramePointer), (0x203, Method::FramePointer)];
    for describes_frames in [false, true] {
        let rows = Text { describes_frames, ..calls() }.row_at(0x203, end.clone());
        check_by(UnwindMethod::Auto, &rows, &[(FP, STACK)], &words, &found, StackEnd::UnverifiedFrameRecord);
        // The chain ends with the mark of the deepest frame, or with a register that happens to be 0.
        let rows = Text { describes_frames, ..calls() };
        check_by(UnwindMethod::Auto, &rows, &[(FP, STACK)], &words, &found, StackEnd::BrokenFrameChain);
    }
}

#[test]
fn neither_link_register_nor_record_of_a_jit_leaf_is_proof() {
    let end = row((31, 0), &[(LR, Column::Undefined)]);
    let rows = Text { without_bytes: TEXT + 0x40..TEXT + 0x41, ..calls() }.row_at(0x203, end);
    let words = [0, TEXT + 0x204];
    let by_record = [LEAF, (0x203, Method::FramePointer)];
    let by_link = [LEAF, (0x103, Method::FramePointer), by_record[1]];
    let check = |link, found: &[_], ended| {
        check_by(UnwindMethod::Auto, &rows, &[(FP, STACK), (LR, link)], &words, found, ended);
    };
    check(TEXT + 0x104, &by_link, StackEnd::UnverifiedFrameRecord);
    check(TEXT + 0x204, &by_record, StackEnd::UnverifiedFrameRecord);
    check(7, &by_record, StackEnd::UnverifiedFrameRecord);
}

#[test]
fn frame_pointer_walks_are_complete_if_unwind_information_agrees() {
    let end = row((31, 0), &[(LR, Column::Undefined)]);
    let words = [STACK + 16, TEXT + 0x104, 0, TEXT + 0x204, 0, TEXT + 0x304];
    let found = [(0x40, Method::Context), (0x103, Method::FramePointer), (0x203, Method::FramePointer)];
    let check_if = |fp_always, rows: Text, ended| {
        let rows = Text { fp_always, ..rows };
        check_by(UnwindMethod::FramePointer, &rows, &[(FP, STACK)], &words, &found, ended);
    };
    let described = || Text { describes_frames: true, ..calls() };
    let framed_all = || described().row_at(0x40, framed()).row_at(0x103, framed());
    // The function keeps no record: its caller is missing from the chain.
    let bare = || row((31, 32), &[(LR, Column::At(-8))]);
    for promised in [false, true] {
        check_if(promised, calls(), if promised { StackEnd::Root } else { StackEnd::UnverifiedFrameRecord });
        check_if(promised, framed_all().row_at(0x203, end.clone()), StackEnd::Root);
        check_if(
            promised,
            described().row_at(0x40, framed()).row_at(0x103, bare()),
            StackEnd::UnverifiedFrameRecord,
        );
    }
    // Without unwind information, the guarantee of the ABI decides.
    check_if(false, framed_all(), StackEnd::UnverifiedFrameRecord);
    check_if(true, framed_all(), StackEnd::Root);
    check_if(false, framed_all().row_at(0x203, bare()), StackEnd::UnverifiedFrameRecord);
}

#[test]
fn rows_of_a_signal_trampoline_may_be_expressions() {
    // Like the row of macOS's _sigtramp: registers at offsets from a pointer in x19.
    // DW_OP_drop (the CFA), DW_OP_breg19 0, DW_OP_plus_uconst
    let at = |offset: u8| Column::AtExpression([0x13, 0x83, 0, 0x23, offset].into());
    let mut trampoline = row((31, 0), &[(FP, at(0)), (31, at(16)), (LR, at(8)), (AARCH64_PC, at(24))]);
    // DW_OP_breg19 16, DW_OP_deref
    trampoline.cfa = Cfa::Expression([0x83, 16, 0x06].into());
    trampoline.signal = true;
    let end = row((31, 0), &[(LR, Column::Undefined)]);
    let rows = Text { begins_threads: Some(false), ..calls() };
    let rows = rows.body_at(0x40, trampoline).body_at(0x300, framed()).row_at(0x203, end);
    let words = [0, 0, STACK + 64, TEXT + 0x104, STACK + 56, TEXT + 0x300, 0, 0, 0, TEXT + 0x204];
    let set = [(19, STACK + 16)];
    check(&rows, &set, &words, &[LEAF, (0x300, Method::Compact), (0x203, Method::Compact)], StackEnd::Root);
}

#[test]
fn on_macos_a_walk_is_complete_only_where_threads_begin() {
    for (begins, ended) in [
        (Some(true), StackEnd::Root),
        (Some(false), StackEnd::BrokenFrameChain),
        (None, StackEnd::BrokenFrameChain),
    ] {
        let rows =
            Text { begins_threads: begins, ..calls() }.body_at(0x40, framed()).body_at(0x103, framed());
        // The record of dyld's start is {0, 0}.
        let words = [STACK + 16, TEXT + 0x104, 0, 0];
        let found = [LEAF, (0x103, Method::Compact)];
        check(&rows, &[(FP, STACK)], &words, &found, ended);
        // The record of _pthread_start is {0, thread_start+8}; thread_start has no row.
        let rows = Text { begins_threads: begins, ..calls() }.body_at(0x40, framed());
        check(&rows, &[(FP, STACK)], &[0, TEXT + 0x104], &[LEAF, (0x103, Method::Compact)], ended);
        // Not with a frame pointer.
        let torn = [STACK + 8, TEXT + 0x104];
        check(&rows, &[(FP, STACK)], &torn, &[LEAF, (0x103, Method::Compact)], StackEnd::BrokenFrameChain);
    }
}

#[test]
fn invalid_steps_are_refused() {
    let caller = |columns: &[(usize, Column)]| calls().row_at(0x40, row((31, 16), columns));
    let refused = |rows: Text, words: &[u64]| check(&rows, &[], words, &[LEAF], StackEnd::BrokenFrameChain);
    refused(caller(&[(LR, Column::At(-8))]), &[0, TEXT + 0x9000]);
    refused(caller(&[(LR, Column::At(-8))]), &[0, TEXT + 0x102]);
    refused(caller(&[(LR, Column::In(200))]), &[0, TEXT + 0x104]);
    refused(calls().row_at(0x40, row((31, -16), &[(LR, Column::At(24))])), &[0, TEXT + 0x104]);
    let large = calls().row_at(0x40, row((31, 1 << 20), &[(LR, Column::At(-8))]));
    check(&large, &[], &[0], &[LEAF], StackEnd::DeeperThanCopied);
}
