//! Quotes the disassembly; each instruction has the distance from the stack pointer to the CFA, and the place of
//! the return address.

use super::*;
use crate::arch::{Aarch64, X86_64};
use crate::binary::frame_rule::{Cfa, Column, Columns, RETURN_ADDRESS, Row, RowAarch64};
use crate::rng::Rng;
use crate::walk::text::Text;

const TEXT: u64 = 0x1_0000_4000;

/// A short row: CFA from sp (or from fp: marked), return address and frame pointer from the CFA, if they are on
/// the stack.
type Short = (u8, i64, Option<i64>, Option<i64>);

fn short<C: Columns>(row: &Row<C>, link: usize, frame_pointer: usize) -> Short {
    let Cfa::Register(register, offset) = row.cfa else { panic!("{row:?}") };
    let at = |column: &Column| match column {
        Column::At(at) => Some(*at),
        Column::Same => None,
        other => panic!("{other:?}"),
    };
    (register, offset, at(&row.columns[link]), at(&row.columns[frame_pointer]))
}

fn arm64(words: &[u32], functions: &'static [u64]) -> Text {
    Text::of_words(TEXT, words).with_functions(functions)
}

/// By both directions, which must not contradict each other.
fn arm64_rows(text: &Text, at: u64, entry: u64) -> [Option<Short>; 2] {
    let short = |row: RowAarch64| short(&row, 30, 29);
    let (at, entry) = (Avma(TEXT + at), Avma(TEXT + entry));
    [
        before_return::<Aarch64>(at, false, text).map(short),
        since_entry::<Aarch64>(entry, at, false, text).map(short),
    ]
}

#[test]
fn arm64_prologues_and_epilogues_are_followed_in_both_directions() {
    let text = arm64(
        &[
            0xd503_237f, // +00 pacibsp
            0xa9bd_57f6, // +04 stp x22, x21, [sp, #-48]!
            0xa901_4ff4, // +08 stp x20, x19, [sp, #16]
            0xa902_7bfd, // +0c stp x29, x30, [sp, #32]
            0x9100_83fd, // +10 add x29, sp, #32
            0xb400_0060, // +14 cbz x0, +20
            0xd63f_0000, // +18 blr x0
            0xaa00_03f3, // +1c mov x19, x0
            0xa942_7bfd, // +20 ldp x29, x30, [sp, #32]
            0xa941_4ff4, // +24 ldp x20, x19, [sp, #16]
            0xa8c3_57f6, // +28 ldp x22, x21, [sp], #48
            0xd65f_0fff, // +2c retab
        ],
        &[0],
    );
    for at in [0x00, 0x04, 0x2c] {
        assert_eq!(arm64_rows(&text, at, 0), [Some((31, 0, None, None)); 2], "at +{at:#x}");
    }
    for at in [0x08, 0x0c] {
        assert_eq!(arm64_rows(&text, at, 0), [Some((31, 48, None, None)); 2], "at +{at:#x}");
    }
    // From the entry, the frame pointer is known to lead to the CFA, and all stores are known.
    let in_memory = Some((31, 48, Some(-8), Some(-16)));
    for at in [0x14, 0x18, 0x1c, 0x20] {
        let rows = arm64_rows(&text, at, 0);
        assert_eq!(rows[1], Some((29, 16, Some(-8), Some(-16))), "at +{at:#x}");
        // Both paths out have the same result: only the one with the call proves that lr is stale.
        assert_eq!(rows[0], in_memory, "at +{at:#x}");
    }
    for at in [0x24, 0x28] {
        assert_eq!(arm64_rows(&text, at, 0)[0], Some((31, 48, None, None)), "at +{at:#x}");
    }
}

#[test]
fn arm64_outlined_pieces_are_followed() {
    let text = arm64(
        &[
            0xa9bf_7bfd, // +00 stp x29, x30, [sp, #-16]!
            0x9400_0004, // +04 bl +14: the end of the prologue
            0xd63f_0000, // +08 blr x0
            0x1400_0005, // +0c b +20: the epilogue
            0xd420_0020, // +10 brk #1
            0x9100_03fd, // +14 mov x29, sp
            0xd100_43ff, // +18 sub sp, sp, #16
            0xd65f_03c0, // +1c ret
            0x9100_43ff, // +20 add sp, sp, #16
            0xa8c1_7bfd, // +24 ldp x29, x30, [sp], #16
            0xd65f_03c0, // +28 ret
        ],
        &[0, 0x14, 0x20],
    );
    let framed = [Some((31, 32, Some(-8), Some(-16))), Some((29, 16, Some(-8), Some(-16)))];
    assert_eq!(arm64_rows(&text, 0x08, 0), framed);
    // In the piece: its caller is the function, with the stack pointer that the piece leaves.
    let row = before_return::<Aarch64>(Avma(TEXT + 0x14), false, &text).expect("a row");
    assert_eq!((&row.cfa, &row.columns[29]), (&Cfa::Register(31, -16), &Column::Is(16)));
}

#[test]
fn arm64_code_without_records_is_followed() {
    let text = arm64(
        &[
            0xf81f_0ffe, // +00 str x30, [sp, #-16]!
            0xd63f_0000, // +04 blr x0
            0xf841_07fe, // +08 ldr x30, [sp], #16
            0xd61f_0020, // +0c br x1
            0xd284_0010, // +10 mov x16, #8192
            0xcb30_63ff, // +14 sub sp, sp, x16
            0x9140_0bff, // +18 add sp, sp, #2, lsl #12
            0xd65f_03c0, // +1c ret
        ],
        &[0, 0x10],
    );
    assert_eq!(arm64_rows(&text, 0x04, 0)[0], Some((31, 16, Some(-16), None)));
    assert_eq!(arm64_rows(&text, 0x08, 0)[0], Some((31, 16, Some(-16), None)));
    // A jump through a register may be one through a table; the paths from the entry decide.
    assert_eq!(arm64_rows(&text, 0x0c, 0), [None, Some((31, 0, None, None))]);
    assert_eq!(arm64_rows(&text, 0x18, 0x10), [Some((31, 8192, None, None)); 2]);
    // After a call the link register is stale.
    let returned = |at| before_return::<Aarch64>(Avma(TEXT + at), true, &text);
    assert_eq!(returned(0x1c), None);
    assert!(returned(0x08).is_some());
}

#[test]
fn x86_64_frames_of_every_kind_are_followed() {
    const CODE: &[(&[u8], i64)] = &[
        (&[0x41, 0x56], 8),                              // +00 push %r14
        (&[0x53], 16),                                   // +02 push %rbx
        (&[0xb8, 0, 0x20, 0, 0], 24),                    // +03 mov $8192,%eax
        (&[0x48, 0x29, 0xc4], 24),                       // +08 sub %rax,%rsp
        (&[0x85, 0xff], 24 + 8192),                      // +0b test %edi,%edi
        (&[0x74, 0x02], 24 + 8192),                      // +0d je +11
        (&[0xff, 0xd6], 24 + 8192),                      // +0f call *%rsi
        (&[0x48, 0x81, 0xc4, 0, 0x20, 0, 0], 24 + 8192), // +11 add $8192,%rsp
        (&[0x5b], 24),                                   // +18 pop %rbx
        (&[0x41, 0x5e], 16),                             // +19 pop %r14
        (&[0xc3], 8),                                    // +1b ret
    ];
    let bytes: Vec<u8> = CODE.iter().flat_map(|(bytes, _)| bytes.iter().copied()).collect();
    let text = Text::new(TEXT, bytes).with_functions(&[0]);
    let mut at = 0;
    for (bytes, cfa) in CODE {
        let pc = Avma(TEXT + at);
        let expected = Some((7, *cfa, Some(-8), None));
        let short = |row: Row| short(&row, RETURN_ADDRESS, 6);
        let entry = since_entry::<X86_64>(Avma(TEXT), pc, false, &text).map(short);
        let back = before_return::<X86_64>(pc, false, &text).map(short);
        // The number in `sub %rax,%rsp` is unknown after the instruction that sets it.
        let expected_back = if at == 8 { None } else { expected };
        assert_eq!((entry, back), (expected, expected_back), "at +{at:#x}");
        at += bytes.len() as u64;
    }
    let row = since_entry::<X86_64>(Avma(TEXT), Avma(TEXT + 0xf), false, &text).expect("a row");
    assert_eq!((&row.columns[14], &row.columns[3]), (&Column::At(-16), &Column::At(-24)));
}

#[test]
fn x86_64_jumps_through_tables_do_not_leave_a_frame() {
    // push %rbx; jmp *%rax; pop %rbx; jmp *%rcx
    let text = Text::new(TEXT, [0x53, 0xff, 0xe0, 0x5b, 0xff, 0xe1]).with_functions(&[0]);
    let row = |at| before_return::<X86_64>(Avma(TEXT + at), false, &text).map(|row| row.cfa);
    assert_eq!(row(1), None);
    assert_eq!(row(3), Some(Cfa::Register(7, 16)));
}

#[test]
fn numbers_changed_by_32_bit_arithmetic_are_unknown() {
    // add, or, adc, sbb, and, sub, xor: %ecx to %eax, in both forms
    for opcode in [0x01, 0x09, 0x11, 0x19, 0x21, 0x29, 0x31] {
        for (opcode, operands) in [(opcode, 0xc8), (opcode + 2, 0xc1)] {
            let bytes = vec![
                0xb8, 0, 0x20, 0, 0, // +00 mov $8192,%eax
                opcode, operands, // +05
                0x48, 0x29, 0xc4, // +07 sub %rax,%rsp
                0xc3, // +0a ret
            ];
            let text = Text::new(TEXT, bytes).with_functions(&[0]);
            let row = |at| since_entry::<X86_64>(Avma(TEXT), Avma(TEXT + at), false, &text);
            assert!(row(7).is_some());
            assert_eq!(row(0x0a), None, "opcode {opcode:#x}");
        }
    }
}

#[test]
fn frames_larger_than_any_number_have_no_row() {
    const LOWEST: u64 = 1 << 63;
    let [a, b, c, d, e, f, g, h] = LOWEST.to_le_bytes();
    // +00 movabs $LOWEST,%rax; +0a sub %rax,%rsp; +0d ret
    let bytes = vec![0x48, 0xb8, a, b, c, d, e, f, g, h, 0x48, 0x29, 0xc4, 0xc3];
    let text = Text::new(TEXT, bytes).with_functions(&[0]);
    let row = |at| since_entry::<X86_64>(Avma(TEXT), Avma(TEXT + at), false, &text);
    assert!(row(0x0a).is_some());
    assert_eq!(row(0x0d), None);
    // The stack pointer is unchanged, and rbp is stored equally far away.
    let bytes = vec![
        0x48, 0x89, 0xe1, // +00 mov %rsp,%rcx
        0x48, 0xb8, a, b, c, d, e, f, g, h, // +03 movabs $LOWEST,%rax
        0x48, 0x29, 0xc1, // +0d sub %rax,%rcx
        0x48, 0x89, 0x29, // +10 mov %rbp,(%rcx)
        0xc3, // +13 ret
    ];
    let text = Text::new(TEXT, bytes).with_functions(&[0]);
    let row = |at| since_entry::<X86_64>(Avma(TEXT), Avma(TEXT + at), false, &text);
    assert_eq!(
        row(0x13).map(|row| row.columns[6].clone()),
        Some(Column::Same),
        "that is no place to save it"
    );
    let text = arm64(
        &[
            0xd2f0_0009, // +00 mov x9, #LOWEST
            0xcb29_63ff, // +04 sub sp, sp, x9, uxtx
            0xf900_03fd, // +08 str x29, [sp]
            0xd65f_03c0, // +0c ret
        ],
        &[0],
    );
    for at in [0x08, 0x0c] {
        assert_eq!(arm64_rows(&text, at, 0)[1], None, "at +{at:#x}");
    }
}

#[test]
fn any_bytes_are_followed_within_the_limits() {
    let mut random = Rng::new(1);
    for round in 0..2000 {
        let bytes: Vec<u8> = (0..4096 / 8)
            .flat_map(|_| {
                // Every other round has short jumps and calls.
                let word = random.next();
                if round % 2 == 0 { word } else { word & 0x00ff_00ff_00ff_00ff | 0x0f70_0fe8_5474_1400 }
                    .to_le_bytes()
            })
            .collect();
        let functions: &[u64] = if round % 3 == 0 { &[] } else { &[0, 0x400, 0x800] };
        let text = Text::new(TEXT, bytes).with_functions(functions);
        for at in [0, 0x100, 0x404, 0xff0] {
            let (at, entry) = (Avma(TEXT + at), Avma(TEXT));
            let _ = before_return::<X86_64>(at, false, &text);
            let _ = since_entry::<X86_64>(entry, at, true, &text);
            let _ = before_return::<Aarch64>(at, true, &text);
            let _ = since_entry::<Aarch64>(entry, at, false, &text);
        }
    }
}

/// The row at `at` by all paths from the entry of the first function.
fn on_all_paths(text: &Text, at: u64, returned: bool) -> Option<Short> {
    let row = since_entry_on_all_paths::<X86_64>(Avma(TEXT), Avma(TEXT + at), returned, text)?;
    Some(short(&row, RETURN_ADDRESS, 6))
}

/// Like the output of HotSpot's C2 with everything inlined: 20 KB with hundreds of branches.
#[test]
fn functions_of_many_branches_are_followed_up_to_a_limit() {
    let at_the_end = |branches: u64, behind: &[u8]| {
        let mut bytes = vec![0x55, 0x48, 0x89, 0xe5]; // push %rbp; mov %rsp,%rbp
        for _ in 0..branches {
            bytes.extend([0x74, 1, 0x90]); // je over a nop
        }
        let at = bytes.len() as u64;
        bytes.extend(behind);
        on_all_paths(&Text::new(TEXT, bytes), at, false)
    };
    let (loops, inlined) = (&[0xeb, 0xfe][..], Some((6, 16, Some(-8), Some(-16))));
    for branches in [1, 200, 300, 2000] {
        assert_eq!(at_the_end(branches, loops), inlined, "{branches} branches");
    }
    assert_eq!(at_the_end(3000, loops), None);
}

#[test]
fn a_noreturn_function_is_followed_from_its_entry() {
    // gcc -O2 -fno-unwind-tables: for (;;) leaf(n)
    let bytes = vec![
        0x53, //                   +0 push %rbx
        0x89, 0xfb, //             +1 mov %edi,%ebx
        0x48, 0x83, 0xec, 0x10, // +3 sub $16,%rsp
        0x89, 0xdf, //             +7 mov %ebx,%edi
        0xe8, 0, 0, 0, 0, //       +9 call leaf
        0xeb, 0xf7, //             +e jmp +7
    ];
    let text = Text::new(TEXT, bytes).with_functions(&[0]);
    assert_eq!(on_all_paths(&text, 0xe, true), Some((7, 32, Some(-8), None)));
    assert_eq!(on_all_paths(&text, 1, false), Some((7, 16, Some(-8), None)));
    assert_eq!(before_return::<X86_64>(Avma(TEXT + 0xe), true, &text), None);
    // With the call as the last instruction.
    let text = Text::new(TEXT, &text.bytes()[..0xe]).with_functions(&[0, 0xe]);
    assert_eq!(on_all_paths(&text, 0xe, true), Some((7, 32, Some(-8), None)));
}

#[test]
fn an_aligned_stack_pointer_leads_back_by_the_register_that_keeps_the_former_one() {
    // A kernel of OpenBLAS (sgemm_kernel_PRESCOTT), with a loop that has no end.
    let bytes = vec![
        0x48, 0x83, 0xec, 0x40, //                         +00 sub $64,%rsp
        0x48, 0x89, 0x1c, 0x24, //                         +04 mov %rbx,(%rsp)
        0x48, 0x89, 0x6c, 0x24, 0x08, //                   +08 mov %rbp,8(%rsp)
        0x48, 0x89, 0xe3, //                               +0d mov %rsp,%rbx
        0x48, 0x81, 0xec, 0x80, 0x20, 0, 0, //             +10 sub $0x2080,%rsp
        0x48, 0x81, 0xe4, 0x00, 0xf0, 0xff, 0xff, //       +17 and $-4096,%rsp
        0x48, 0x89, 0xf5, //                               +1e mov %rsi,%rbp
        0x48, 0xff, 0xcd, //                               +21 dec %rbp
        0x75, 0xfb, //                                     +24 jne +21
        0xeb, 0xf9, //                                     +26 jmp +21
    ];
    let text = Text::new(TEXT, bytes.clone()).with_functions(&[0]);
    for (at, base, cfa) in
        [(4, 7, 0x48), (0x10, 7, 0x48), (0x17, 7, 0x20c8), (0x1e, 3, 0x48), (0x26, 3, 0x48)]
    {
        let row =
            since_entry_on_all_paths::<X86_64>(Avma(TEXT), Avma(TEXT + at), false, &text).expect("a row");
        assert_eq!(row.cfa, Cfa::Register(base, cfa), "+{at:#x}");
        // Unchanged where it is certainly not yet overwritten, and the stack pointer unknown.
        let saved = if matches!(at, 4 | 0x1e) { Column::Same } else { Column::At(-0x40) };
        assert_eq!(row.columns[6], saved, "+{at:#x}");
    }
    // Only one of two paths keeps it there: je over mov %rsp,%rbx, with rsp in r12.
    let mut one_path = vec![0x49, 0x89, 0xe4, 0x74, 0x03, 0x48, 0x89, 0xe3];
    one_path.extend([0x48, 0x81, 0xe4, 0x00, 0xf0, 0xff, 0xff, 0xeb, 0xfe]);
    assert_eq!(on_all_paths(&Text::new(TEXT, one_path).with_functions(&[0]), 0xf, false), None);
    // Without the bounds of the function, and with the register overwritten: lea (%rax),%rbx.
    assert_eq!(on_all_paths(&Text::new(TEXT, bytes.clone()), 0x26, false), None);
    let mut overwritten = bytes;
    overwritten[0x1e..0x21].copy_from_slice(&[0x48, 0x8d, 0x18]);
    assert_eq!(on_all_paths(&Text::new(TEXT, overwritten).with_functions(&[0]), 0x26, false), None);
}

#[test]
fn code_after_a_noreturn_call_gets_no_row_or_the_right_one() {
    let bytes = vec![
        0x85, 0xff, //             +00 test %edi,%edi
        0x74, 0x09, //             +02 je +0d
        0x48, 0x83, 0xec, 0x08, // +04 sub $8,%rsp
        0xe8, 0, 0, 0, 0, //       +08 call abort
        0x31, 0xc0, //             +0d xor %eax,%eax
        0xc3, //                   +0f ret
    ];
    let text = Text::new(TEXT, bytes).with_functions(&[0]);
    // Only the call leads to its return address.
    assert_eq!(on_all_paths(&text, 0xd, true), Some((7, 16, Some(-8), None)));
    // As a plain instruction it is reached by the jump, and by a path that is never taken.
    assert_eq!(on_all_paths(&text, 0xd, false), None);
    assert_eq!(on_all_paths(&text, 0xf, false), None);
    assert_eq!(on_all_paths(&text, 8, false), Some((7, 16, Some(-8), None)));
}

#[test]
fn a_zero_pushed_under_the_record_ends_the_chain() {
    let ends = |bytes: &[u8], at: u64| {
        let text = Text::new(TEXT, bytes).with_functions(&[0]);
        ends_chain::<X86_64>(Avma(TEXT), Avma(TEXT + at), true, &text)
    };
    // thread_start: push $0; push %rbp; mov %rsp,%rbp; sub $16,%rsp; call; +15
    let thread_start = [0x6a, 0, 0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 16, 0xe8, 0, 0, 0, 0, 0x0f, 0x0b];
    assert!(ends(&thread_start, 15));
    assert!(!ends(&thread_start, 2), "it has made no record yet");
    // Older version: the return address is the word at the initial stack pointer.
    let older = [0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 24, 0xe8, 0, 0, 0, 0, 0xc9, 0xc3];
    assert!(!ends(&older, 13));
    // __dyld_start: pop %rdi; push $0; mov %rsp,%rbp; and $-16,%rsp; call
    let dyld = [0x5f, 0x6a, 0, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xe4, 0xf0, 0xe8, 0, 0, 0, 0, 0x0f, 0x0b];
    assert!(ends(&dyld, 15));
    // push $1; a zero elsewhere than under the record; an overwritten zero.
    let mut other = thread_start;
    other[1] = 1;
    assert!(!ends(&other, 15));
    let below = [0x55, 0x48, 0x89, 0xe5, 0x6a, 0, 0xe8, 0, 0, 0, 0, 0x0f, 0x0b];
    assert!(!ends(&below, 11));
    let overwritten = [0x6a, 0, 0x48, 0x89, 0x3c, 0x24, 0x55, 0x48, 0x89, 0xe5, 0xe8, 0, 0, 0, 0, 0x0f, 0x0b];
    assert!(!ends(&overwritten, 15));
}
