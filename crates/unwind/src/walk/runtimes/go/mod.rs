//! The runtime of Go: goroutines (`x86_64.rs`, `aarch64.rs`), and its calls of the vDSO on another stack (`row`).

pub(crate) mod aarch64;
pub(crate) mod x86_64;

use crate::addr::Avma;
use crate::arch::X86_64;
use crate::binary::frame_rule::{CALLED_FROM_ELSEWHERE, Cfa, RETURN_ADDRESS, Row};
use crate::walk::flow::{self, Effect, FlowState, RegisterOffset};
use crate::walk::frames::Frame;
use crate::walk::input::is_on_other_stack;
use crate::walk::intel::instructions;
use crate::walk::processor::{self, Processor};
use crate::walk::{Code, Input};

// ---- The stack pointer saved in r12 while a function runs on another stack: `nanotime1` and `walltime` of Go's
// runtime call the vDSO on an aligned stack, or on that of `g0`, and switch back by `mov %r12,%rsp`. Their rows do
// not describe this.
//
// Source: Go, src/runtime/sys_linux_amd64.s.

/// DWARF number of r12, and the instruction `mov %r12,%rsp`.
const R12: u8 = 12;
const BACK: [u8; 3] = [0x4c, 0x89, 0xe4];
/// Limits on its distance, in bytes and in instructions.
const BYTES_MAX: usize = 64;
const INSTRUCTIONS_MAX: usize = 16;

/// The row relative to r12, if the code at `at` leads straight to `mov %r12,%rsp`; `row` is the unwind information
/// at `at`.
pub(crate) fn row(at: Avma, row: &Row, code: &dyn Code) -> Option<Row> {
    let counts_from_sp =
        matches!(row.cfa, Cfa::Register(register, _) if usize::from(register) == X86_64::RSP);
    let ahead = code.code(at).filter(|_| counts_from_sp && !row.signal)?;
    // Nearly all code lacks it, and this check is cheaper than decoding.
    memchr::memmem::find(&ahead[..ahead.len().min(BYTES_MAX)], &BACK)?;
    let (mut at, mut state) = (at, FlowState::new());
    for _ in 0..INSTRUCTIONS_MAX {
        let (effect, bytes) = instructions::step::<X86_64>(at, code.code(at)?, &mut state)?;
        at = at + bytes;
        match effect {
            Effect::Plain | Effect::MayJump(_) => {}
            Effect::Calls(_) => flow::after_call::<X86_64>(&mut state),
            _ => return None,
        }
        if state.place(X86_64::STACK_POINTER) == Some(RegisterOffset { register: R12, offset: 0 }) {
            let mut behind = processor::row::<X86_64>(code, at)?;
            let Cfa::Register(register, offset) = behind.cfa else { return None };
            behind.cfa = Cfa::Register(R12, offset);
            return (usize::from(register) == X86_64::RSP).then_some(behind);
        }
    }
    None
}

/// Whether a frame with a row relative to r12 has its stack pointer on another stack than the copied one: a
/// goroutine called from its own stack, and its callee runs on that of `g0`. Or whether its row says that it was
/// entered from another stack.
pub(crate) fn returns_to_other_stack(row: &Row, frame: &Frame<X86_64>, input: &Input<'_>) -> bool {
    if row.columns[RETURN_ADDRESS] == CALLED_FROM_ELSEWHERE {
        return true;
    }
    let kept = Avma(frame.registers[usize::from(R12)]);
    matches!(row.cfa, Cfa::Register(R12, _)) && is_on_other_stack(kept, input)
}

#[cfg(test)]
mod vdso_call_tests {
    use super::*;
    use crate::binary::frame_rule::Column;
    use crate::walk::text::Text;

    const TEXT: u64 = 0x40_1000;

    /// `nanotime1`, shortened.
    const CODE: &[&[u8]] = &[
        &[0x48, 0x83, 0xec, 0x10],       // +00 sub $16,%rsp
        &[0x49, 0x89, 0xe4],             // +04 mov %rsp,%r12
        &[0x75, 0x04],                   // +07 jne +0d
        &[0x48, 0x8b, 0x62, 0x38],       // +09 mov 0x38(%rdx),%rsp
        &[0x48, 0x83, 0xec, 0x10],       // +0d sub $16,%rsp
        &[0x48, 0x83, 0xe4, 0xf0],       // +11 and $-16,%rsp
        &[0xff, 0xd0],                   // +15 call *%rax
        &[0x48, 0x8b, 0x04, 0x24],       // +17 mov (%rsp),%rax
        &[0x4c, 0x89, 0xe4],             // +1b mov %r12,%rsp
        &[0x48, 0x83, 0xc4, 0x10, 0xc3], // +1e add $16,%rsp; ret
    ];

    fn text(code: &[&[u8]]) -> Text {
        let row_of = |at| {
            let mut row: Row = Row::new(Cfa::Register(X86_64::RSP as u8, if at < 4 { 8 } else { 24 }));
            row.columns[RETURN_ADDRESS] = Column::At(-8);
            Some(row.into())
        };
        Text { row_of: Some(row_of), ..Text::new(TEXT, code.concat()) }
    }

    fn cfa(at: u64, code: &[&[u8]]) -> Option<Cfa> {
        let text = text(code);
        let stated = processor::row::<X86_64>(&text, Avma(TEXT + at)).expect("a row");
        row(Avma(TEXT + at), &stated, &text).map(|row| row.cfa)
    }

    #[test]
    fn between_switch_and_return_r12_locates_the_frame() {
        for at in [7, 9, 0xd, 0x11, 0x15, 0x17, 0x1b] {
            assert_eq!(cfa(at, CODE), Some(Cfa::Register(R12, 24)), "{at:#x}");
        }
        for at in [0, 4, 0x1e] {
            assert_eq!(cfa(at, CODE), None, "{at:#x}: the stack pointer is the function's own");
        }
    }

    #[test]
    fn other_code_is_unchanged() {
        let mut other = CODE.to_vec();
        // mov %rax,%r12: another value is restored.
        other[7] = &[0x49, 0x89, 0xc4];
        assert_eq!(cfa(0x17, &other), None);
        // jmp
        other[7] = &[0xeb, 0x02];
        assert_eq!(cfa(0x17, &other), None);
        // A row relative to another register is right whatever the stack pointer is.
        let text = text(CODE);
        assert_eq!(row(Avma(TEXT + 0x17), &Row::new(Cfa::Register(6, 16)), &text), None);
        for at in [0, TEXT + CODE.concat().len() as u64, u64::MAX] {
            assert_eq!(row(Avma(at), &Row::new(Cfa::Register(X86_64::RSP as u8, 8)), &text), None, "{at:#x}");
        }
    }
}
