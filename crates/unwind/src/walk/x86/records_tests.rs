//! Walks on i386: stacks built word by word over code that consists of calls, with rows.

use super::super::frames::{Frames, Method, UnwindMethod};
use super::super::text::Text;
use super::super::{Input, StackBytes, StackEnd};
use crate::addr::Avma;
use crate::arch::{Registers, X86};
use crate::binary::frame_rule::{Cfa, Column, RowX86, X86_RETURN_ADDRESS};
use crate::walk;

const TEXT: u64 = 0x0804_8000;
const STACK: u64 = 0xffff_0000;
const EBX: usize = 3;
const ESP: usize = X86::ESP;
const EBP: usize = X86::EBP;

/// Every two bytes are `call *%eax`, except the signal trampoline at +0x300: mov $119,%eax; int $0x80.
fn calls(rows: &[(u64, RowX86)]) -> Text {
    let code = Text::new(TEXT, [0xff, 0xd0].repeat(0x400));
    let code = code.with_pieces(&[(0x300, &[0xb8, 119, 0, 0, 0, 0xcd, 0x80])]);
    rows.iter().fold(code, |code, (at, row)| code.row_at(*at, row.clone()))
}

/// A row with the return address right below the CFA.
fn row(cfa: (usize, i64), columns: &[(usize, Column)]) -> RowX86 {
    let mut row = RowX86::new(Cfa::Register(cfa.0 as u8, cfa.1));
    row.columns[X86_RETURN_ADDRESS] = Column::At(-4);
    for (register, column) in columns {
        row.columns[*register] = column.clone();
    }
    row
}

fn outermost() -> RowX86 {
    row((ESP, 4), &[(X86_RETURN_ADDRESS, Column::Undefined)])
}

/// The frames of a walk from +0x40, by offset, with their methods, and the end.
fn found(
    unwind_method: UnwindMethod,
    rows: &Text,
    ebp: u64,
    words: &[u64],
    stack_top: Option<u64>,
) -> (Vec<(u64, Method)>, StackEnd) {
    let bytes: Vec<u8> = words.iter().flat_map(|word| (*word as u32).to_le_bytes()).collect();
    let mut registers = X86 { eip: TEXT + 0x40, ..X86::default() };
    (registers.gpr[ESP], registers.gpr[EBP]) = (STACK, ebp);
    let input = Input {
        stack_top: stack_top.map(Avma),
        max_depth: 8,
        ..Input::new(StackBytes { base: Avma(STACK), bytes: &bytes }, rows)
    };
    let (mut unwinder, mut out) = (walk::Unwinder::default(), Frames::default());
    let registers = Registers::X86(registers);
    let walked = walk::unwind(unwind_method, &registers, &input, &mut unwinder, &mut out)
        .expect("all code is in images");
    let frames: Vec<_> = out.addresses.iter().map(|at| at.0 - TEXT).zip(out.methods.clone()).collect();
    // Cached facts lead to the same frames.
    let again = walk::unwind(unwind_method, &registers, &input, &mut unwinder, &mut out)
        .expect("all code is in images");
    assert_eq!((walked, out.addresses.len()), (again, frames.len()));
    (frames, walked.ended)
}

const LEAF: (u64, Method) = (0x40, Method::Context);

#[test]
fn rows_lead_through_four_byte_words_to_the_outermost_frame() {
    let rows = calls(&[
        (0x40, row((ESP, 8), &[(EBX, Column::At(-8))])),
        (0x103, row((EBP, 8), &[(EBP, Column::At(-8))])),
        // Relative to ebx, saved by the leaf.
        (0x203, row((EBX, 4), &[])),
        (0x403, outermost()),
    ]);
    // ebx and the return address; a local; the caller's record; its caller's return address.
    let words = [STACK + 0x18, TEXT + 0x104, 9, STACK, TEXT + 0x204, 9, TEXT + 0x404];
    let (frames, ended) = found(UnwindMethod::Cfi, &rows, STACK + 0xc, &words, None);
    let cfi = |at| (at, Method::Cfi);
    assert_eq!((frames, ended), (vec![LEAF, cfi(0x103), cfi(0x203), cfi(0x403)], StackEnd::Root));
    // The record is outside the copy.
    let (frames, ended) = found(UnwindMethod::Cfi, &rows, STACK + 0x40, &words, None);
    assert_eq!((frames, ended), (vec![LEAF, cfi(0x103)], StackEnd::DeeperThanCopied));
    // A word that is no return address.
    let words = [STACK + 0x18, TEXT + 0x105];
    assert_eq!(found(UnwindMethod::Cfi, &rows, 0, &words, None), (vec![LEAF], StackEnd::BrokenFrameChain));
}

#[test]
fn a_signal_restores_the_registers_and_the_exact_program_counter() {
    let rows = calls(&[(0x40, row((ESP, 4), &[])), (0x400, row((EBP, 8), &[])), (0x203, outermost())]);
    let mut words = vec![0; 32];
    words[0] = TEXT + 0x300;
    // struct sigcontext: ebp, esp and eip are words 6, 7 and 14.
    words[1 + 6] = STACK + 0x60;
    words[1 + 7] = STACK + 0x50;
    words[1 + 14] = TEXT + 0x400;
    words[0x64 / 4] = TEXT + 0x204;
    let (frames, ended) = found(UnwindMethod::Cfi, &rows, 0, &words, None);
    let expected = vec![LEAF, (0x300, Method::Cfi), (0x400, Method::Code), (0x203, Method::Cfi)];
    assert_eq!((frames, ended), (expected, StackEnd::Root));
}

#[test]
fn a_null_return_address_ends_a_fiber_but_not_the_threads_own_stack() {
    let rows = calls(&[(0x40, row((ESP, 4), &[])), (0x103, row((ESP, 4), &[]))]);
    let words = [TEXT + 0x104, 0, 7];
    let frames = vec![LEAF, (0x103, Method::Cfi)];
    let by = |stack_top| found(UnwindMethod::Cfi, &rows, 0, &words, stack_top);
    assert_eq!(by(None), (frames.clone(), StackEnd::Fiber));
    assert_eq!(by(Some(STACK + 0x1000)), (frames, StackEnd::BrokenFrameChain));
}

#[test]
fn records_lead_through_unknown_code_and_prove_nothing() {
    let rows = calls(&[]);
    let words = [9, STACK + 0x10, TEXT + 0x104, 9, 0, TEXT + 0x204];
    let by = |unwind_method| found(unwind_method, &rows, STACK + 4, &words, None);
    let record = |at| (at, Method::FramePointer);
    let frames = vec![LEAF, record(0x103), record(0x203)];
    assert_eq!(by(UnwindMethod::Auto), (frames.clone(), StackEnd::NoUnwindInfo));
    assert_eq!(by(UnwindMethod::Cfi), (vec![LEAF], StackEnd::NoUnwindInfo));
    // A null frame pointer is no proof either.
    assert_eq!(by(UnwindMethod::FramePointer), (frames, StackEnd::UnverifiedFrameRecord));
}

#[test]
fn a_chain_of_records_is_complete_if_rows_lead_to_its_frames() {
    let framed = || row((EBP, 8), &[(EBP, Column::At(-8))]);
    let rows = calls(&[(0x40, framed()), (0x103, framed()), (0x203, outermost())]);
    let words = [9, STACK + 0x10, TEXT + 0x104, 9, 0, TEXT + 0x204];
    let (frames, ended) = found(UnwindMethod::FramePointer, &rows, STACK + 4, &words, None);
    let record = |at| (at, Method::FramePointer);
    assert_eq!((frames, ended), (vec![LEAF, record(0x103), record(0x203)], StackEnd::Root));
}
