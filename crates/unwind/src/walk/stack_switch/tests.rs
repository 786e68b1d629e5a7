//! Walks over two and more stacks in simulated memory: one is copied, of the others some words are known.

use std::collections::{BTreeMap, HashSet};

use super::*;
use crate::arch::{Aarch64, Registers, X86_64};
use crate::binary::frame_rule::{Cfa, Column, RETURN_ADDRESS, Row, RowAarch64};
use crate::walk::text::Text;
use crate::walk::{self, Frames, OuterStack, UnwindMethod, Unwinder, WalkResult};

const TEXT: u64 = 0x40_1000;
/// The copied stack: an alternate stack.
const ALT: u64 = 0x10_0000;
const ALT_BYTES: u64 = 0x4000;
/// The stack of the thread.
const STACK: u64 = 0x7fff_0000_8000;
/// Signals blocked in a handler of SIGUSR1, and before.
const IN_HANDLER: u64 = 1 << 9 | 1;
const BEFORE: u64 = 1;

/// Functions: the leaf, the signal trampoline, the interrupted one, the first of the thread, and one that calls on
/// another stack. Return addresses are even.
const TRAMPOLINE: u64 = 0x300;
const INTERRUPTED: u64 = 0x40;
const FIRST: u64 = 0x60;
const ON_STACK: u64 = 0x200;
/// push %rbp; mov %rsp,%rbp; mov %rcx,%rsp; call *%rdx; mov %rbp,%rsp; pop %rbp; ret
const CALLS_ON_STACK: [u8; 14] =
    [0x55, 0x48, 0x89, 0xe5, 0x48, 0x89, 0xcc, 0xff, 0xd2, 0x48, 0x89, 0xec, 0x5d, 0xc3];
const RETURN_ON_STACK: u64 = ON_STACK + 9;

/// The code alone.
fn code() -> Text {
    let code = Text {
        described: Some(TEXT + ON_STACK..TEXT + ON_STACK + CALLS_ON_STACK.len() as u64),
        // The interrupted code is functions of 8 bytes.
        functions: (TEXT + INTERRUPTED..TEXT + FIRST).step_by(8).map(|at| at..at + 8).collect(),
        ..Text::new(TEXT, [[0xff, 0xd0].repeat(0x180), vec![0; 0x100]].concat())
    };
    // mov $15,%rax; syscall
    let trampoline = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
    code.with_pieces(&[(ON_STACK, &CALLS_ON_STACK), (TRAMPOLINE, &trampoline)])
}

fn program() -> Text {
    let mut first = row(7, 8);
    first.columns[RETURN_ADDRESS] = Column::Undefined;
    let mut on_stack = row(6, 16);
    on_stack.columns[6] = Column::At(-16);
    let code = code().row_at(0, row(7, 8)).row_at(INTERRUPTED, row(7, 16));
    code.row_at(FIRST - 1, first).row_at(RETURN_ON_STACK - 1, on_stack)
}

/// A row with the CFA this many bytes above a register, and the return address below the CFA.
fn row(register: u8, bytes: i64) -> Row {
    let mut row: Row = Row::new(Cfa::Register(register, bytes));
    row.columns[RETURN_ADDRESS] = Column::At(-8);
    row
}

/// Words by address.
#[derive(Clone, Default)]
struct Memory(BTreeMap<u64, u64>);

impl Memory {
    fn put(&mut self, at: u64, words: &[u64]) {
        self.0.extend((at..).step_by(8).zip(words.iter().copied()));
    }

    /// Puts a signal frame of a handler on the alternate stack at `at`, where the trampoline finds it, with the
    /// interrupted registers.
    fn put_signal_frame(&mut self, at: u64, sp: u64, pc: u64, blocked: u64) {
        self.put(at, &[0; 40]);
        self.put(at + 16, &[ALT, 0, ALT_BYTES]);
        self.put(at + 40 + 15 * 8, &[sp, TEXT + pc]);
        self.put(at + 40 + 256, &[blocked]);
    }

    /// Copies bytes from an address.
    fn copy(&self, from: u64, bytes: u64) -> Vec<u8> {
        let words = (from..from + bytes).step_by(8);
        words.flat_map(|at| self.0.get(&at).copied().unwrap_or(0).to_le_bytes()).collect()
    }
}

impl OuterStack for Memory {
    fn word(&self, at: Avma, _: usize) -> Option<u64> {
        self.0.get(&at.0).copied()
    }
}

/// A leaf on the alternate stack, in a handler that interrupted the thread's stack: the word at its stack pointer
/// is the trampoline.
fn in_handler() -> Memory {
    let mut memory = Memory::default();
    memory.put(ALT + 0x1000, &[TEXT + TRAMPOLINE]);
    memory.put_signal_frame(ALT + 0x1008, STACK, INTERRUPTED, BEFORE);
    memory.put(STACK, &[7, TEXT + FIRST]);
    memory
}

struct Case<'a> {
    memory: &'a Memory,
    program: Text,
    blocked_signals: Option<u64>,
    registers: X86_64,
}

impl Case<'_> {
    fn new(memory: &Memory) -> Case<'_> {
        let mut registers = X86_64 { rip: TEXT, ..X86_64::default() };
        registers.gpr[X86_64::RSP] = ALT + 0x1000;
        Case { memory, program: program(), blocked_signals: Some(IN_HANDLER), registers }
    }

    fn walk(&self, unwind_method: UnwindMethod) -> (Vec<u64>, WalkResult) {
        let bytes = self.memory.copy(ALT + 0x1000, 0x400);
        let stack = StackBytes { base: Avma(ALT + 0x1000), bytes: &bytes };
        let input = Input {
            outer: Some(self.memory),
            blocked_signals: self.blocked_signals,
            ..Input::new(stack, &self.program)
        };
        let (mut unwinder, mut out) = (Unwinder::default(), Frames::default());
        let registers = Registers::X86_64(self.registers);
        let walked = walk::unwind(unwind_method, &registers, &input, &mut unwinder, &mut out)
            .expect("all code is in images");
        (out.addresses.iter().map(|at| at.0.wrapping_sub(TEXT)).collect(), walked)
    }

    #[track_caller]
    fn check(&self, addresses: &[u64], ended: StackEnd) {
        for unwind_method in [UnwindMethod::Auto, UnwindMethod::Cfi] {
            let (found, walked) = self.walk(unwind_method);
            assert_eq!((found.as_slice(), walked.ended), (addresses, ended), "{unwind_method:?}");
            // Other stacks do not count for the reach of the copy.
            assert!(walked.reached.0 < ALT + 0x2000, "{walked:?}");
        }
    }
}

const TO_INTERRUPTED: [u64; 3] = [0, TRAMPOLINE, INTERRUPTED];

#[test]
fn a_handler_on_the_alternate_stack_leads_to_the_interrupted_code() {
    Case::new(&in_handler()).check(&[0, TRAMPOLINE, INTERRUPTED, FIRST - 1], StackEnd::Root);
}

#[test]
fn a_handler_that_has_returned_leads_nowhere() {
    // A coroutine created by a signal runs on the alternate stack with the signal mask of its resumer.
    for blocked in [BEFORE, 0, 1 << 9, IN_HANDLER & !BEFORE] {
        let memory = in_handler();
        let case = Case { blocked_signals: Some(blocked), ..Case::new(&memory) };
        case.check(&TO_INTERRUPTED, StackEnd::OtherStack);
    }
    let memory = in_handler();
    Case { blocked_signals: None, ..Case::new(&memory) }.check(&TO_INTERRUPTED, StackEnd::OtherStack);
}

#[test]
fn unknown_words_of_the_other_stack_do_not_end_as_a_small_copy() {
    let mut memory = in_handler();
    memory.0.remove(&(STACK + 8));
    Case::new(&memory).check(&TO_INTERRUPTED, StackEnd::OtherStack);
    // A known word that is no return address means an inconsistent stack.
    memory.put(STACK + 8, &[0x1234]);
    Case::new(&memory).check(&TO_INTERRUPTED, StackEnd::BrokenFrameChain);
}

#[test]
fn a_frame_off_the_alternate_stack_is_no_switch() {
    let mut memory = in_handler();
    // SS_DISABLE
    memory.put(ALT + 0x1018, &[0, 2, 0]);
    Case::new(&memory).check(&TO_INTERRUPTED, StackEnd::OtherStack);
    // The handler interrupted code on the same stack.
    let mut memory = in_handler();
    memory.put_signal_frame(ALT + 0x1008, ALT + 0x1200, INTERRUPTED, BEFORE);
    memory.put(ALT + 0x1200, &[7, TEXT + FIRST]);
    Case { blocked_signals: Some(0), ..Case::new(&memory) }
        .check(&[0, TRAMPOLINE, INTERRUPTED, FIRST - 1], StackEnd::Root);
}

#[test]
fn a_nearby_stack_is_another_one_by_the_kernels_record() {
    // Less far above than the maximum stack size.
    let near = ALT + 0x8000;
    let mut memory = Memory::default();
    memory.put(ALT + 0x1000, &[TEXT + TRAMPOLINE]);
    memory.put_signal_frame(ALT + 0x1008, near, INTERRUPTED, BEFORE);
    Case::new(&memory).check(&TO_INTERRUPTED, StackEnd::OtherStack);
    memory.put(near, &[7, TEXT + FIRST]);
    Case::new(&memory).check(&[0, TRAMPOLINE, INTERRUPTED, FIRST - 1], StackEnd::Root);
}

#[test]
fn nested_handlers_lead_from_stack_to_stack() {
    // A handler on the alternate stack, disabled and set again by it, was interrupted by another one.
    let mut memory = in_handler();
    memory.put_signal_frame(ALT + 0x1008, 0x20_0000, 0, BEFORE);
    memory.put(0x20_0000, &[TEXT + TRAMPOLINE]);
    memory.put_signal_frame(0x20_0008, STACK, INTERRUPTED, BEFORE);
    memory.put(0x20_0008 + 16, &[0x1f_0000, 0, 0x2_0000]);
    Case::new(&memory).check(&[0, TRAMPOLINE, 0, TRAMPOLINE, INTERRUPTED, FIRST - 1], StackEnd::Root);
}

#[test]
fn a_cycle_of_two_stacks_ends() {
    let mut memory = Memory::default();
    memory.put(ALT + 0x1000, &[TEXT + TRAMPOLINE]);
    memory.put_signal_frame(ALT + 0x1008, STACK, 0, BEFORE);
    memory.put(STACK, &[TEXT + TRAMPOLINE]);
    memory.put_signal_frame(STACK + 8, ALT + 0x1000, 0, BEFORE);
    memory.put(STACK + 8 + 16, &[STACK - 0x1000, 0, 0x2000]);
    let (found, walked) = Case::new(&memory).walk(UnwindMethod::Auto);
    assert_eq!(walked.ended, StackEnd::BrokenFrameChain);
    assert!(found.len() < 20, "{} frames", found.len());
}

#[test]
fn switches_without_a_cycle_are_bounded() {
    let program = program();
    let mut input = Input::new(StackBytes { base: Avma(0), bytes: &[] }, &program);
    let mut switches = StackSwitches::new(&input);
    let mut seen = HashSet::new();
    while switches.go_to(Avma(STACK + 64 * seen.len() as u64), &mut input).is_ok() {
        seen.insert(input.stack.base);
    }
    assert_eq!(seen.len(), SWITCHES_MAX as usize);
}

#[test]
fn the_raiser_of_a_signal_must_match_the_calls_on_the_stack() {
    let memory = in_handler();
    // syscall before the interrupted code, and the call before the return to the first function.
    let check_with = |jump: &[u8], system_call: bool, target: u64, frames: usize, ended| {
        let mut case = Case::new(&memory);
        let code = &mut case.program.bytes;
        code[INTERRUPTED as usize..][..16].fill(0x90);
        code[INTERRUPTED as usize + 8..][..jump.len()].copy_from_slice(jump);
        case.registers.rip = TEXT;
        if system_call {
            code[INTERRUPTED as usize - 2..][..2].copy_from_slice(&[0x0f, 0x05]);
        }
        let distance = (target.wrapping_sub(FIRST) as u32).to_le_bytes();
        code[FIRST as usize - 5] = 0xe8;
        code[FIRST as usize - 4..][..4].copy_from_slice(&distance);
        // A PLT stub of the dynamic linker.
        code[0x20..0x22].copy_from_slice(&[0xff, 0x25]);
        case.check(&[0, TRAMPOLINE, INTERRUPTED, FIRST - 1][..frames], ended);
    };
    let check = |system_call, target, frames, ended| check_with(&[], system_call, target, frames, ended);
    check(true, INTERRUPTED, 4, StackEnd::Root);
    check(true, 0x20, 4, StackEnd::Root);
    check(true, INTERRUPTED + 8, 3, StackEnd::OtherStack);
    // It continues in the first by a jump, or may.
    check_with(&[0xeb, 0xf6], true, INTERRUPTED + 8, 4, StackEnd::Root);
    check_with(&[0xff, 0xe0], true, INTERRUPTED + 8, 4, StackEnd::Root);
    check_with(&[0xeb, 0xfe], true, INTERRUPTED + 8, 3, StackEnd::OtherStack);
    // A timer is raised by no call, so its handler cannot be one that created a coroutine.
    check(false, INTERRUPTED + 8, 4, StackEnd::Root);
}

#[test]
fn a_function_that_calls_on_another_stack_leads_back_by_its_row() {
    let on_stack = |back: u64| {
        let mut memory = Memory::default();
        memory.put(ALT + 0x1000, &[TEXT + RETURN_ON_STACK]);
        memory.put(back, &[0, TEXT + FIRST]);
        memory
    };
    let walk = |memory: &Memory, back: u64, program: Text| {
        let mut case = Case { program, blocked_signals: None, ..Case::new(memory) };
        case.registers.gpr[X86_64::RBP] = back;
        case.walk(UnwindMethod::Cfi)
    };
    // Far above and below.
    for back in [STACK, 0x8_0000] {
        let mut memory = on_stack(back);
        let (found, walked) = walk(&memory, back, program());
        let expected = [0, RETURN_ON_STACK - 1, FIRST - 1];
        assert_eq!((found.as_slice(), walked.ended), (&expected[..], StackEnd::Root), "{back:#x}");
        memory.0.remove(&(back + 8));
        let (found, walked) = walk(&memory, back, program());
        assert_eq!((found.as_slice(), walked.ended), (&expected[..2], StackEnd::OtherStack), "{back:#x}");
    }
    // A function that does not load its stack pointer has an invalid frame pointer.
    let mut program = program();
    // nop
    program.bytes[ON_STACK as usize + 4..][..3].copy_from_slice(&[0x0f, 0x1f, 0x00]);
    let (found, walked) = walk(&on_stack(0x8_0000), 0x8_0000, program);
    assert_eq!((found.len(), walked.ended), (2, StackEnd::BrokenFrameChain));
}

/// The row of a function that has called on another stack and has the caller's stack pointer in memory, by this
/// expression; marked as a signal frame, as OCaml does.
fn row_in_memory(expression: &[u8]) -> Row {
    let mut row: Row = Row::new(Cfa::Expression(expression.into()));
    row.columns[RETURN_ADDRESS] = Column::At(-8);
    row.signal = true;
    row
}

/// caml_c_call: breg7 8; deref; plus_uconst 8
const C_CALL: [u8; 5] = [0x77, 8, 0x06, 0x23, 8];

#[test]
fn functions_that_keep_the_callers_stack_pointer_in_memory_lead_from_stack_to_stack() {
    let other = 0x8_0000;
    for other in [STACK, other] {
        // From the thread's stack to that of a fiber, and back.
        let mut copied = Memory::default();
        copied.put(ALT + 0x1000, &[TEXT + RETURN_ON_STACK, 0, other]);
        copied.put(ALT + 0x1100, &[TEXT + FIRST]);
        let bytes = copied.copy(ALT + 0x1000, 0x400);
        let mut outer = Memory::default();
        outer.put(other, &[TEXT + RETURN_ON_STACK, 0, ALT + 0x1100]);
        let walk = |outer: &Memory, program: &Text| {
            let input = Input {
                outer: Some(outer),
                ..Input::new(StackBytes { base: Avma(ALT + 0x1000), bytes: &bytes }, program)
            };
            let mut out = Frames::default();
            let mut registers = X86_64 { rip: TEXT, ..X86_64::default() };
            registers.gpr[X86_64::RSP] = ALT + 0x1000;
            let registers = Registers::X86_64(registers);
            let walked =
                walk::unwind(UnwindMethod::Cfi, &registers, &input, &mut Unwinder::default(), &mut out)
                    .expect("all code is in images");
            (out.addresses.iter().map(|at| at.0.wrapping_sub(TEXT)).collect::<Vec<_>>(), walked.ended)
        };
        let mut program = program().row_at(RETURN_ON_STACK - 1, row_in_memory(&C_CALL));
        let expected = [0, RETURN_ON_STACK - 1, RETURN_ON_STACK - 1, FIRST - 1];
        assert_eq!(walk(&outer, &program), (expected.to_vec(), StackEnd::Root), "{other:#x}");
        let mut unknown = outer.clone();
        unknown.0.remove(&other);
        assert_eq!(walk(&unknown, &program), (expected[..2].to_vec(), StackEnd::OtherStack));
        // No call returns there.
        unknown.put(other, &[TEXT + 0x301]);
        assert_eq!(walk(&unknown, &program), (expected[..2].to_vec(), StackEnd::BrokenFrameChain));
        // The function never loads its stack pointer: nop.
        program.bytes[ON_STACK as usize + 4..][..3].copy_from_slice(&[0x0f, 0x1f, 0x00]);
        let (found, ended) = walk(&outer, &program);
        assert_eq!(found, expected[..2]);
        assert_ne!(ended, StackEnd::Root);
    }
}

#[test]
fn a_pointer_on_the_stack_leads_to_a_stack_pointer_elsewhere() {
    // caml_runstack: breg7 8; deref; plus_uconst 16; deref; plus_uconst 8
    let row = row_in_memory(&[0x77, 8, 0x06, 0x23, 16, 0x06, 0x23, 8]);
    let program = program().row_at(RETURN_ON_STACK - 1, row);
    let mut memory = Memory::default();
    memory.put(ALT + 0x1000, &[TEXT + RETURN_ON_STACK, 0, 0x9_0000]);
    memory.put(STACK, &[TEXT + FIRST]);
    let walk = |memory: &Memory, program: Text| {
        Case { program, blocked_signals: None, ..Case::new(memory) }.walk(UnwindMethod::Cfi)
    };
    let (found, walked) = walk(&memory, program.clone());
    assert_eq!((found.len(), walked.ended), (2, StackEnd::OtherStack));
    memory.put(0x9_0000 + 16, &[STACK]);
    let (found, walked) = walk(&memory, program);
    assert_eq!((found, walked.ended), (vec![0, RETURN_ON_STACK - 1, FIRST - 1], StackEnd::Root));
}

#[test]
fn the_red_zone_of_interrupted_code_is_read() {
    let mut memory = in_handler();
    let mut case = Case::new(&memory);
    // Its row reads a word below the stack pointer.
    let mut below = row(7, 16);
    below.columns[RETURN_ADDRESS] = Column::AtExpression([0x77, 0x78].into());
    case.program = program().row_at(INTERRUPTED, below.clone());
    case.check(&TO_INTERRUPTED, StackEnd::OtherStack);
    memory.put(STACK - 8, &[TEXT + FIRST]);
    let mut case = Case::new(&memory);
    case.program = program().row_at(INTERRUPTED, below);
    case.check(&[0, TRAMPOLINE, INTERRUPTED, FIRST - 1], StackEnd::Root);
}

#[test]
fn handlers_of_aarch64_lead_to_the_interrupted_code() {
    const SP: usize = 31;
    const LR: usize = 30;
    let row = |bytes: i64, link: Column| {
        let mut row = RowAarch64::new(Cfa::Register(SP as u8, bytes));
        row.columns[LR] = link;
        row
    };
    // mov x8, #139; svc #0, and bl
    let pieces: [(u64, &[u8]); 2] =
        [(0x100, &[0x68, 0x11, 0x80, 0xd2, 0x01, 0, 0, 0xd4]), (0x11c, &[0, 0, 0, 0x94])];
    let program = code().with_pieces(&pieces).row_at(0, row(0, Column::Same));
    let program =
        program.row_at(INTERRUPTED, row(16, Column::At(-8))).row_at(0x11f, row(0, Column::Undefined));
    let mut memory = Memory::default();
    let at = ALT + 0x1000;
    memory.put(at + 128 + 16, &[ALT, 0, ALT_BYTES]);
    memory.put(at + 128 + 40, &[BEFORE]);
    // `sigcontext`, after the 128-byte mask: fault address, x0 to x30, sp, pc.
    let registers = at + 128 + 176 + 8;
    memory.put(registers, &[0; 31]);
    memory.put(registers + 31 * 8, &[STACK, TEXT + INTERRUPTED]);
    memory.put(STACK, &[7, TEXT + 0x120]);
    let bytes = memory.copy(at, 0x400);
    let mut registers = Aarch64 { pc: TEXT, sp: at, ..Aarch64::default() };
    registers.x[LR] = TEXT + 0x100;
    let expected = [0, 0x100, INTERRUPTED, 0x11f];
    for (blocked_signals, frames, ended) in [
        (Some(IN_HANDLER), 4, StackEnd::Root),
        (Some(BEFORE), 3, StackEnd::OtherStack),
        (None, 3, StackEnd::OtherStack),
    ] {
        let input = Input {
            outer: Some(&memory),
            blocked_signals,
            ..Input::new(StackBytes { base: Avma(at), bytes: &bytes }, &program)
        };
        let (mut unwinder, mut out) = (Unwinder::default(), Frames::default());
        let walked =
            walk::unwind(UnwindMethod::Cfi, &Registers::Aarch64(registers), &input, &mut unwinder, &mut out)
                .expect("all code is in images");
        let found: Vec<u64> = out.addresses.iter().map(|at| at.0 - TEXT).collect();
        assert_eq!((found.as_slice(), walked.ended), (&expected[..frames], ended), "{blocked_signals:?}");
    }
}
