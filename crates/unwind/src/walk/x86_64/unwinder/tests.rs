mod endless;

use super::*;
use crate::arch::UNKNOWN_REGISTER;
use crate::binary::frame_rule::{AnyRow, CALLED_FROM_ELSEWHERE, Cfa, Column, RETURN_ADDRESS, Row};
use crate::walk::text::Text;
use crate::walk::{Code, CodeTraits, StackBytes};

pub(super) const TEXT: u64 = 0x40_1000;
pub(super) const STACK: u64 = 0x7fff_0000_1000;

/// Code with unknown bytes.
const JIT_CODE: std::ops::Range<u64> = 0x7e00_0000_0000..0x7e00_0000_1000;

/// Code that consists of `call *%rax`, so that return addresses are TEXT+2, +4, +6, ..., with rows for some offsets.
pub(super) fn calls(rows: impl IntoIterator<Item = (u64, Row)>) -> Text {
    let code = Text { without_bytes: JIT_CODE, ..Text::new(TEXT, [0xff, 0xd0].repeat(256)) };
    rows.into_iter().fold(code, |code, (at, row)| code.row_at(at, row))
}

pub(super) fn row(cfa: Cfa, columns: &[(usize, Column)]) -> Row {
    let mut row: Row = Row { cfa, columns: Default::default(), signal: false };
    row.columns[RETURN_ADDRESS] = Column::At(-8);
    for (register, column) in columns {
        row.columns[*register] = column.clone();
    }
    row
}

fn sp_plus(bytes: i64) -> Row {
    row(Cfa::Register(RSP as u8, bytes), &[])
}

fn first_function() -> Row {
    row(Cfa::Register(RSP as u8, 8), &[(RETURN_ADDRESS, Column::Undefined)])
}

struct Case {
    rows: Vec<(u64, Row)>,
    words: Vec<u64>,
    registers: Vec<(usize, u64)>,
}

impl Case {
    /// Walks from TEXT+0, or from register 16; addresses are relative to TEXT.
    fn walk(&self, unwind_method: UnwindMethod) -> (Vec<u64>, Vec<Method>, StackEnd) {
        let (addresses, methods, walked) = self.walk_below(unwind_method, None, None);
        (addresses, methods, walked.ended)
    }

    fn walk_below(
        &self,
        unwind_method: UnwindMethod,
        stack_top: Option<u64>,
        stack_limit: Option<u64>,
    ) -> (Vec<u64>, Vec<Method>, WalkResult) {
        let mut registers = X86_64 { rip: TEXT, ..X86_64::default() };
        registers.gpr[RSP] = STACK;
        for &(register, value) in &self.registers {
            match register {
                RETURN_ADDRESS => registers.rip = value,
                register => registers.gpr[register] = value,
            }
        }
        let sp = registers.gpr[RSP];
        let is_copied = (STACK..STACK + 8 * self.words.len() as u64).contains(&sp);
        let limits = (stack_top.map(Avma), stack_limit.map(Avma));
        let base = if is_copied { STACK } else { sp };
        walk_from(&calls(self.rows.clone()), unwind_method, &registers, base, &self.words, limits)
    }

    #[track_caller]
    fn check(&self, addresses: &[u64], ended: StackEnd) {
        let (found, _, why) = self.walk(UnwindMethod::Auto);
        assert_eq!((found.as_slice(), why), (addresses, ended));
    }
}

#[test]
fn registers_other_than_the_frame_pointer_can_be_the_base_of_the_cfa() {
    // Like _dl_runtime_resolve: CFA = rbx+32, rbx saved in the frame; its caller has a CFA relative to the
    // restored rbx.
    let case = Case {
        rows: vec![
            (0, row(Cfa::Register(3, 32), &[(3, Column::At(-16))])),
            (9, row(Cfa::Register(3, 16), &[])),
            (19, first_function()),
        ],
        words: vec![1, 2, 3, STACK + 0x20, TEXT + 10, TEXT + 20, 6, 7],
        registers: vec![(3, STACK + 8)],
    };
    // CFA of the leaf: rbx+32 = STACK+0x28; rbx from STACK+0x18 = STACK+0x20, and so on.
    case.check(&[0, 9, 19], StackEnd::Root);
}

#[test]
fn a_return_address_in_a_register_does_not_move_the_stack_pointer() {
    // vfork: popq %rdi; syscall. CFA = rsp, the return address in rdi.
    let case = |rdi| Case {
        rows: vec![
            (0, row(Cfa::Register(RSP as u8, 0), &[(RETURN_ADDRESS, Column::In(5))])),
            (9, sp_plus(16)),
            (19, first_function()),
        ],
        words: vec![1, TEXT + 20, 3],
        registers: vec![(5, rdi)],
    };
    case(TEXT + 10).check(&[0, 9, 19], StackEnd::Root);
    case(TEXT + 11).check(&[0], StackEnd::BrokenFrameChain);
    // Not if the word below the stack pointer happens to be a return address.
    let mut below = case(0);
    below.rows[0].1 = row(Cfa::Register(RSP as u8, 0), &[]);
    below.words = vec![TEXT + 10, 1, TEXT + 20, 3];
    below.registers = vec![(RSP, STACK + 8)];
    assert_eq!(below.walk(UnwindMethod::Cfi).0, [0]);
}

#[test]
fn a_realigned_stack_is_unwound_by_reading_memory() {
    // lea 8(%rsp),%r10; and $-32,%rsp; push -8(%r10); push %rbp; mov %rsp,%rbp; push %r10:
    // CFA = *(rbp-8), rbp = *rbp.
    let deref = |offset: u8| Cfa::Expression([0x76, offset, 0x06].into());
    let rbp = Column::AtExpression([0x76, 0].into());
    let case = Case {
        rows: vec![
            (0, row(deref(0x78), &[(RBP, rbp)])),
            (9, row(Cfa::Register(6, 16), &[])),
            (19, first_function()),
        ],
        words: vec![
            STACK + 0x28, // the CFA
            STACK + 0x28, // <- rbp: the caller's
            TEXT + 10,    // a copy of the return address
            0,
            TEXT + 10, // the return address itself
            0x1234,    // <- CFA
            TEXT + 20,
        ],
        registers: vec![(RBP, STACK + 8)],
    };
    case.check(&[0, 9, 19], StackEnd::Root);
    assert_eq!(case.walk(UnwindMethod::Auto).1, [Method::Context, Method::Cfi, Method::Cfi]);
}

#[test]
fn interrupted_code_is_no_call_and_has_all_its_registers() {
    let mut frame = row(Cfa::Register(RSP as u8, 0), &[]);
    frame.signal = true;
    frame.columns[RSP] = Column::At(0x10);
    frame.columns[3] = Column::At(0x18);
    frame.columns[RETURN_ADDRESS] = Column::At(0x20);
    let case = Case {
        rows: vec![
            (0, sp_plus(8)),
            (9, frame),
            // Interrupted at +31, which follows no call; its row is that of +31, not +30.
            (31, row(Cfa::Register(3, 8), &[])),
            (39, first_function()),
        ],
        words: vec![TEXT + 10, 0, 0, STACK + 0x28, STACK + 0x30, TEXT + 31, TEXT + 40, 0, 0],
        registers: vec![],
    };
    case.check(&[0, 9, 31, 39], StackEnd::Root);
}

/// The frames of a walk, relative to TEXT, with words from `base` on; `limits` are the stack's top and end.
fn walk_from(
    code: &dyn Code,
    unwind_method: UnwindMethod,
    registers: &X86_64,
    base: u64,
    words: &[u64],
    (stack_top, stack_limit): (Option<Avma>, Option<Avma>),
) -> (Vec<u64>, Vec<Method>, WalkResult) {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let stack = StackBytes { base: Avma(base), bytes: &bytes };
    let input = Input { stack_top, stack_limit, max_depth: 16, ..Input::new(stack, code) };
    let (mut unwinder, mut out) = (Unwinder::default(), Frames::default());
    let walked = unwinder.walk(unwind_method, registers, &input, &mut out);
    (out.addresses.iter().map(|address| address.0.wrapping_sub(TEXT)).collect(), out.methods, walked)
}

/// A signal frame: rsp and the return address at these words from the stack pointer.
fn signal_frame(sp: i64, pc: i64) -> Row {
    let mut frame = row(Cfa::Register(RSP as u8, 0), &[(RSP, Column::At(sp * 8))]);
    frame.signal = true;
    frame.columns[RETURN_ADDRESS] = Column::At(pc * 8);
    frame
}

#[test]
fn a_signal_trampoline_called_nothing() {
    // Its row begins one byte before it, at +10, like glibc's.
    let case = |trampoline| Case {
        rows: vec![(0, sp_plus(8)), (trampoline - 1, signal_frame(0, 1)), (31, first_function())],
        words: vec![TEXT + trampoline, STACK + 24, TEXT + 31],
        registers: vec![],
    };
    case(11).check(&[0, 11, 31], StackEnd::Root);
    // macOS's trampoline called the handler.
    case(10).check(&[0, 9, 31], StackEnd::Root);
    // The walk ends there, or is cut off.
    let mut torn = case(11);
    torn.words.truncate(2);
    assert_eq!(torn.walk(UnwindMethod::Cfi).0, [0, 11]);
}

#[test]
fn a_handler_on_a_separate_stack_is_distinguished_from_a_broken_stack() {
    const FAR: u64 = 9 << 20;
    let check = |sp: u64, stack_top, stack_limit, ended| {
        let case = Case {
            rows: vec![(0, sp_plus(8)), (10, signal_frame(0, 1)), (31, sp_plus(16))],
            words: vec![TEXT + 11, sp, TEXT + 31, 0],
            registers: vec![],
        };
        for unwind_method in [UnwindMethod::Auto, UnwindMethod::Cfi] {
            let (addresses, _, walked) = case.walk_below(unwind_method, stack_top, stack_limit);
            assert_eq!((addresses.as_slice(), walked.ended), (&[0, 11, 31][..], ended), "{sp:#x}");
            // Other stacks do not count for the reach of the copy.
            assert!(ended != StackEnd::OtherStack || walked.reached == Avma(STACK + 8), "{walked:?}");
        }
    };
    check(STACK - 0x100, None, None, StackEnd::OtherStack);
    // Alternate stacks in program memory are far below the interrupted one.
    check(STACK + FAR, None, None, StackEnd::OtherStack);
    check(STACK + FAR, Some(STACK + FAR + 0x1000), None, StackEnd::OtherStack);
    check(STACK + 0x2000, None, Some(STACK + 0x1000), StackEnd::OtherStack);
    check(STACK + 0x2000, Some(STACK + 0x1000), None, StackEnd::OtherStack);
    check(u64::MAX - 3, None, None, StackEnd::OtherStack);
    // It may be this stack, with too little copied.
    check(STACK + 0x1000, None, None, StackEnd::DeeperThanCopied);
    check(STACK + 0x1000, Some(STACK + 0x2000), Some(STACK + 0x2000), StackEnd::DeeperThanCopied);
    // In the copied bytes, without a caller.
    check(STACK + 16, None, None, StackEnd::BrokenFrameChain);
}

#[test]
fn a_record_followed_from_unknown_code_is_no_proof() {
    let pc = JIT_CODE.start + 0x10;
    let check = |words: &[u64], record: u64| {
        let case = Case {
            rows: vec![(9, first_function()), (19, first_function())],
            words: words.to_vec(),
            registers: vec![(RETURN_ADDRESS, pc), (RBP, record)],
        };
        case.check(&[pc.wrapping_sub(TEXT), 19], StackEnd::UnverifiedFrameRecord);
    };
    // rbp is the caller's, and its own return address is in the record: it returns to +10.
    check(&[TEXT + 10, 0, STACK + 64, TEXT + 20], STACK + 16);
    // After push %rbp, before mov %rsp,%rbp.
    check(&[STACK + 16, TEXT + 10, 0, TEXT + 20], STACK + 16);
    // Or rbp is the function's own: both look the same.
    check(&[7, TEXT + 10, 0, TEXT + 20], STACK + 16);
    check(&[0, TEXT + 20], STACK);
}

#[test]
fn a_return_address_without_a_preceding_call_is_refused() {
    let case = |word| Case {
        rows: vec![(0, sp_plus(8)), (9, first_function()), (10, first_function())],
        words: vec![word, 0, 0, 0],
        registers: vec![],
    };
    case(TEXT + 10).check(&[0, 9], StackEnd::Root);
    case(TEXT + 11).check(&[0], StackEnd::BrokenFrameChain);
    case(0x1234).check(&[0], StackEnd::BrokenFrameChain);
    case(0).check(&[0], StackEnd::BrokenFrameChain);
}

#[test]
fn the_stack_pointer_must_rise() {
    for bytes in [0, -8, 4] {
        let case = Case {
            rows: vec![(0, sp_plus(bytes)), (9, first_function())],
            words: vec![TEXT + 10; 4],
            registers: vec![],
        };
        let (_, methods, ended) = case.walk(UnwindMethod::Cfi);
        assert_eq!((methods.len(), ended), (1, StackEnd::BrokenFrameChain), "{bytes}");
    }
}

/// The frames from +45, where the walk is stuck, with these words above the stack pointer. Functions have no rows,
/// except the two callers: `f` at +40, which nothing leads out of, is called from +00 through a jump at +50; `h` at
/// +60 from +05. +0a calls through a register.
fn stuck(words: &[u64]) -> (Vec<u64>, StackEnd) {
    let code = Text {
        functions: [0, 0x40, 0x50, 0x60].map(|at| TEXT + at..TEXT + at + 0x10).into(),
        row_of: Some(|at| (at < 0x40).then(|| first_function().into())),
        ..Text::new(TEXT, [0xf4; 0x70])
    };
    let code = code.with_pieces(&[
        (0x00, &[0xe8, 0x4b, 0, 0, 0]),                // call +50
        (0x05, &[0xe8, 0x56, 0, 0, 0]),                // call +60
        (0x0a, &[0xff, 0xd0]),                         // call *%rax
        (0x40, &[0x53, 0x48, 0x8b, 0x67, 0x30, 0xf4]), // push %rbx; mov 0x30(%rdi),%rsp
        (0x50, &[0xf3, 0x0f, 0x1e, 0xfa, 0xeb, 0xea]), // endbr64; jmp +40
        (0x60, &[0xc3]),
    ]);
    let mut registers = X86_64 { rip: TEXT + 0x45, ..X86_64::default() };
    registers.gpr[RSP] = STACK;
    let (found, _, walked) = walk_from(&code, UnwindMethod::Auto, &registers, STACK, words, (None, None));
    (found, walked.ended)
}

#[test]
fn a_scan_finds_only_the_caller_of_the_stuck_function() {
    let (stale, indirect, live) = (TEXT + 0x0a, TEXT + 0x0c, TEXT + 0x05);
    assert_eq!(stuck(&[7, stale, indirect, live]), (vec![0x45, 4], StackEnd::StackScan));
    assert_eq!(stuck(&[7, stale, indirect]), (vec![0x45], StackEnd::NoUnwindInfo));
}

#[test]
fn walks_end_at_the_end_of_the_address_space() {
    for bytes in [0, 3, 7, 8, 15] {
        let base = u64::MAX - bytes;
        let registers = vec![(RSP, base), (RBP, u64::MAX - 15)];
        let framed = row(Cfa::Register(RBP as u8, 16), &[(RBP, Column::At(-16))]);
        for rows in [vec![], vec![(0, framed)]] {
            let case = Case { rows, words: vec![0, TEXT + 10], registers: registers.clone() };
            let ended = case.walk(UnwindMethod::Auto).2;
            assert!(
                matches!(ended, StackEnd::BrokenFrameChain | StackEnd::NoUnwindInfo),
                "{bytes}: {ended:?}"
            );
        }
    }
}

#[test]
fn a_stack_beyond_the_copy_is_distinguished_from_garbage() {
    let case = |bytes| Case { rows: vec![(0, sp_plus(bytes))], words: vec![0; 4], registers: vec![] };
    case(0x1000).check(&[0], StackEnd::DeeperThanCopied);
    case(1 << 40).check(&[0], StackEnd::BrokenFrameChain);
}

#[test]
fn a_walk_that_merely_ends_is_not_complete() {
    // Neither row nor frame record, and rbp is 0: sufficient only with frame pointers.
    let case = Case { rows: vec![], words: vec![0; 4], registers: vec![] };
    case.check(&[0], StackEnd::NoUnwindInfo);
}

#[test]
fn a_threads_first_instruction_has_nothing_above_its_stack_pointer() {
    // The bytes below it are copied, too.
    let registers = vec![(RSP, STACK + 16)];
    let case = Case { rows: vec![], words: vec![0; 8], registers };
    assert_eq!(case.walk_below(UnwindMethod::Auto, Some(STACK + 16), None).2.ended, StackEnd::Root);
    assert_ne!(case.walk_below(UnwindMethod::Auto, Some(STACK), None).2.ended, StackEnd::Root);
}

#[test]
fn a_null_return_address_ends_a_stack_other_than_the_threads_own() {
    let mut case = Case {
        rows: vec![(0, sp_plus(8)), (9, sp_plus(16))],
        words: vec![TEXT + 10, 7, 0, 0],
        registers: vec![],
    };
    let ended = |case: &Case, top| case.walk_below(UnwindMethod::Auto, top, None).2.ended;
    assert_eq!(ended(&case, None), StackEnd::Fiber);
    assert_eq!(ended(&case, Some(STACK - 0x10_0000)), StackEnd::Fiber);
    assert_eq!(ended(&case, Some(STACK + 0x1000)), StackEnd::BrokenFrameChain);
    // In the leaf, with a row that may be wrong at this instruction, it proves nothing.
    case.words[0] = 0;
    assert_eq!(ended(&case, None), StackEnd::BrokenFrameChain);
    // Nor in a frame found by a frame record.
    case.rows = vec![(9, sp_plus(16))];
    case.words = vec![0, TEXT + 10, 7, 0];
    case.registers = vec![(RBP, STACK)];
    assert_ne!(ended(&case, None), StackEnd::Fiber);
}

#[test]
fn depth_is_limited() {
    let case =
        Case { rows: vec![(0, sp_plus(8)), (9, sp_plus(8))], words: vec![TEXT + 10; 40], registers: vec![] };
    let (addresses, _, ended) = case.walk(UnwindMethod::Auto);
    assert_eq!((addresses.len(), ended), (16, StackEnd::DepthLimit));
}

/// A sleeping thread: in a system call, called by a function that keeps a frame pointer, which is unknown.
#[test]
fn an_unknown_frame_pointer_is_derived_from_instructions() {
    const CALLER: u64 = 0x20;
    const FIRST: u64 = 0x40;
    let code = Text {
        functions: [0, CALLER, FIRST].map(|at| TEXT + at..TEXT + at + 0x20).into(),
        row_of: Some(|at| match at {
            ..CALLER => Some(sp_plus(8).into()),
            CALLER..FIRST => Some(row(Cfa::Register(RBP as u8, 16), &[(RBP, Column::At(-16))]).into()),
            _ => Some(first_function().into()),
        }),
        ..Text::new(TEXT, [0xcc; 0x60])
    };
    let code = code.with_pieces(&[
        // syscall; ret
        (0, &[0x0f, 0x05, 0xc3]),
        // push %rbp; mov %rsp,%rbp; sub $0x20,%rsp; call +00; leave; ret
        (CALLER, &[0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 0x20, 0xe8, 0xd3, 0xff, 0xff, 0xff, 0xc9, 0xc3]),
        // call +20
        (FIRST, &[0xe8, 0xdb, 0xff, 0xff, 0xff]),
    ]);
    let words = [TEXT + CALLER + 13, 1, 2, 3, 4, 0x1234, TEXT + FIRST + 5, 0, 0];
    let mut registers = X86_64 { gpr: [UNKNOWN_REGISTER; 16], rip: TEXT + 2, ..X86_64::default() };
    registers.gpr[RSP] = STACK;
    let (found, _, walked) = walk_from(&code, UnwindMethod::Auto, &registers, STACK, &words, (None, None));
    assert_eq!(found, [2, CALLER + 12, FIRST + 4]);
    assert_eq!(walked.ended, StackEnd::Root);
    // A known one is used.
    registers.gpr[RBP] = STACK + 8;
    let (found, _, walked) = walk_from(&code, UnwindMethod::Cfi, &registers, STACK, &words, (None, None));
    assert_eq!((found.len(), walked.ended), (2, StackEnd::BrokenFrameChain));
}

/// V8's code from TEXT+100 to TEXT+200, which consists of calls; with a count of requests at TEXT+110.
struct OfV8(Text, std::cell::Cell<u32>);

impl Code for OfV8 {
    fn is_code(&self, at: Avma) -> bool {
        self.0.is_code(at)
    }
    fn code(&self, at: Avma) -> Option<&[u8]> {
        self.1.set(self.1.get() + u32::from(at.0 == TEXT + 110));
        self.0.code(at)
    }
    fn row(&self, at: Avma) -> Option<AnyRow> {
        self.0.row(at)
    }
    fn traits(&self, at: Avma) -> CodeTraits {
        let is_jit = (TEXT + 100..TEXT + 200).contains(&at.0);
        CodeTraits { is_jit, keeps_frame_records: is_jit, ..CodeTraits::default() }
    }
}

#[test]
fn code_of_v8_is_followed_only_for_frames_without_a_marker() {
    const TAGGED: u64 = 0x2000_0001;
    const KIND: u64 = 2 << 1;
    let mut asked = Vec::new();
    // Function and context; the type of a non-JavaScript frame; neither.
    for (below, is_marked) in [([TAGGED, TAGGED], true), ([7, KIND], true), ([TAGGED, TAGGED + 1], false)] {
        let code = OfV8(calls([(0, sp_plus(8)), (19, first_function())]), std::cell::Cell::new(0));
        let words = [TEXT + 110, below[0], below[1], 0, TEXT + 20, 0, 0];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut registers = X86_64 { rip: TEXT, ..X86_64::default() };
        (registers.gpr[RSP], registers.gpr[RBP]) = (STACK, STACK + 24);
        let input = Input::new(StackBytes { base: Avma(STACK), bytes: &bytes }, &code);
        let mut unwinder = Unwinder::default();
        for _ in 0..2 {
            // By frame pointers alone, without a marker, the function in between would be missing.
            for unwind_method in
                [UnwindMethod::Auto, UnwindMethod::FramePointer].into_iter().take(1 + usize::from(is_marked))
            {
                let mut out = Frames::default();
                let walked =
                    unwinder.unwind(unwind_method, &registers, &input, &mut Facts::default(), &mut out);
                let addresses: Vec<u64> = out.addresses.iter().map(|address| address.0 - TEXT).collect();
                assert_eq!(addresses, [0, 109, 19], "{below:x?} {unwind_method:?}");
                assert_eq!(out.methods[2], Method::FramePointer);
                assert_eq!(
                    walked.ended == StackEnd::Root,
                    is_marked,
                    "{below:x?} {unwind_method:?} {walked:?}"
                );
            }
        }
        asked.push(code.1.get());
    }
    assert!(asked[0] == asked[1] && asked[0] < asked[2], "{asked:?}");
}

/// Like `__wine_syscall_dispatcher`, which calls on a separate stack, and a callback from there.
#[test]
fn a_caller_on_another_stack_is_reported_during_a_call() {
    const RBX: usize = 3;
    const R12: usize = 12;
    let left = row(Cfa::Register(RBX as u8, 8), &[(RETURN_ADDRESS, Column::In(R12 as u8))]);
    let entered = row(Cfa::Register(RSP as u8, 8), &[(RETURN_ADDRESS, CALLED_FROM_ELSEWHERE)]);
    for outer in [left.clone(), entered] {
        let registers = vec![(RBX, STACK - 0x10_0000), (R12, TEXT + 20)];
        let case = Case { rows: vec![(0, sp_plus(8)), (9, outer)], words: vec![TEXT + 10, 0, 0], registers };
        case.check(&[0, 9], StackEnd::OtherStack);
    }
    // A thread may be about to switch there.
    let registers = vec![(RBX, STACK - 0x10_0000), (R12, TEXT + 20)];
    let leaf = Case { rows: vec![(0, left)], words: vec![0, 0], registers };
    assert_ne!(leaf.walk(UnwindMethod::Auto).2, StackEnd::OtherStack);
}
