//! Functions that call on another stack. Some keep the caller's in rbp, which their rows are relative to: libgcc's
//! `__morestack`, which calls a function with split stacks on a new segment, and `rust_psm_on_stack` (the crates
//! `psm` and `stacker`). Others keep it in another register, or in memory, which the expressions of their rows read:
//! OCaml 5 runs its own functions on stacks of fibers and those in C on that of the thread (`caml_c_call`,
//! `caml_call_gc`, `caml_start_program`, `caml_runstack`; calls that allocate nothing are inline and keep it in rbx).
//! Input: a frame, its row, code; output: the lowest word that the row reads, if it is on the caller's stack.
//!
//! Source: libgcc/config/i386/morestack.S; psm, src/arch/x86_64.s; OCaml, runtime/amd64.S.

use crate::addr::{Avma, CodeAddress};
use crate::arch::{UNKNOWN_REGISTER, X86_64};
use crate::binary::frame_rule::{Cfa, Column, Row};
use crate::walk::bounds::is_on_other_stack;
use crate::walk::frame::Frame;
use crate::walk::intel::length;
use crate::walk::processor::row;
use crate::walk::stack_switch::is_outside_copy;
use crate::walk::{Code, Input};

/// Limit on bytes of a function examined before an address. In a larger one only the code just before it is.
const BYTES_MAX: u64 = 512;
const NEAR_BYTES: usize = 32;
/// mov %rax,%fs:0x70: the limit of a split stack's segment.
const SETS_SEGMENT: [u8; 9] = [0x64, 0x48, 0x89, 0x04, 0x25, 0x70, 0, 0, 0];

/// The lowest word on the caller's stack that the row of a frame reads, if rbp points there; `None` if all words
/// were copied. `cfa_offset`: from rbp, by unwind information.
pub(super) fn lowest_word(frame: &Frame<X86_64>, cfa_offset: i64, input: &Input<'_>) -> Option<Avma> {
    let base = frame.registers[X86_64::RBP];
    if base == UNKNOWN_REGISTER || !base.is_multiple_of(8) {
        return None;
    }
    let cfa = base.wrapping_add_signed(cfa_offset);
    let last = Avma(cfa.checked_sub(8)?);
    if last >= frame.sp() && !is_outside_copy(last, input) {
        return None;
    }
    match stack_of_callee(frame.address, input.code)? {
        Callee::OnSegment => {}
        // A function with variable-length arrays also loads its stack pointer: its frame is above.
        Callee::OnStack if last < frame.sp() || is_on_other_stack(last, input) => {}
        Callee::OnStack => return None,
    }
    lowest_of_row(&row::<X86_64>(input.code, frame.address.lookup().at())?, cfa)
}

/// The CFA on the caller's stack by a row with the caller's stack pointer in memory or any register, and the lowest
/// word that the row reads there; `is_switched`: the frame is on another stack than the copied one.
pub(super) fn of_row(
    frame: &Frame<X86_64>,
    row: &Row,
    is_switched: bool,
    input: &Input<'_>,
) -> Option<(u64, Avma)> {
    let by_sp = matches!(row.cfa, Cfa::Register(register, _) if usize::from(register) == X86_64::RSP);
    if row.signal || by_sp {
        return None;
    }
    let cfa = frame.cfa(row, input).ok()?;
    // From another stack even what is not far above may be the first one.
    let is_uncopied = is_switched && is_outside_copy(Avma(cfa.saturating_sub(8)), input);
    if Avma(cfa) > frame.sp() && !is_on_other_stack(Avma(cfa), input) && !is_uncopied {
        return None;
    }
    stack_of_callee(frame.address, input.code)?;
    Some((cfa, lowest_of_row(row, cfa)?))
}

/// The lowest word that a row with this CFA reads.
fn lowest_of_row(row: &Row, cfa: u64) -> Option<Avma> {
    let offsets = row.columns.iter().filter_map(|column| match column {
        Column::At(offset) => Some(*offset),
        _ => None,
    });
    Some(Avma(cfa.wrapping_add_signed(offsets.min()?)))
}

/// The stack that a function called on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Callee {
    /// A segment of a split stack.
    OnSegment,
    /// A stack with a stack pointer that the function loaded.
    OnStack,
}

/// Whether a function has loaded its stack pointer from a register other than rbp, or from memory, before an
/// address.
fn stack_of_callee(address: CodeAddress, code: &dyn Code) -> Option<Callee> {
    let at = address.at();
    let function = code.described_function(address.lookup().at())?;
    let bytes = at.0.checked_sub(function.start.0)?;
    if bytes <= BYTES_MAX {
        return callee_after(code.code(function.start)?.get(..bytes as usize)?);
    }
    // Right after a load the instructions before are irrelevant.
    let before = code.code(Avma(at.0 - NEAR_BYTES as u64))?.get(..NEAR_BYTES)?;
    (0..NEAR_BYTES).find_map(|from| {
        let loads = matches!(before.get(from..from + 2), Some([0x48..=0x4f, 0x89 | 0x8b]));
        if loads { callee_after(&before[from..]) } else { None }
    })
}

/// The stack that code has loaded at its end.
fn callee_after(before: &[u8]) -> Option<Callee> {
    let (mut from, mut callee) = (0, None);
    while from < before.len() {
        let rest = &before[from..];
        let instruction = length::decode::<true>(rest)?;
        if callee.is_some() && rest.starts_with(&SETS_SEGMENT) {
            return Some(Callee::OnSegment);
        }
        if let (0, 0x89 | 0x8b, Some((mode, register, operand))) =
            (instruction.map, instruction.opcode, instruction.operands())
        {
            let register = usize::from(register | (instruction.rex & 4) << 1);
            let operand = usize::from(operand | (instruction.rex & 1) << 3);
            // Instruction numbers, not DWARF: 4 is rsp, 5 rbp.
            let loads = match instruction.opcode {
                0x89 => mode == 3 && operand == 4 && register != 5,
                _ => register == 4 && (mode < 3 || operand != 5),
            };
            if loads && instruction.wide {
                callee = Some(Callee::OnStack);
            }
        }
        from += instruction.length;
    }
    callee.filter(|_| from == before.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::walk::text::Text;

    const TEXT: u64 = 0x40_1000;

    fn callee(code: &[&[u8]], instructions: usize) -> Option<Callee> {
        let text = Text::new(TEXT, code.concat()).described();
        let bytes: usize = code[..instructions].iter().map(|code| code.len()).sum();
        stack_of_callee(CodeAddress::Return(Avma(TEXT + bytes as u64)), &text)
    }

    const PUSH: &[u8] = &[0x55]; //                          push %rbp
    const RECORD: &[u8] = &[0x48, 0x89, 0xe5]; //            mov %rsp,%rbp
    const CALL: &[u8] = &[0x41, 0xff, 0xd2]; //              call *%r10
    const BACK: &[u8] = &[0x48, 0x89, 0xec, 0x5d, 0xc3]; //  mov %rbp,%rsp; pop %rbp; ret

    #[test]
    fn a_function_that_loads_its_stack_pointer_calls_on_another_stack() {
        for load in
            [&[0x48, 0x89, 0xcc][..], &[0x4c, 0x89, 0xdc], &[0x48, 0x8b, 0x62, 0x38], &[0x48, 0x8b, 0xe1]]
        {
            let code = [PUSH, RECORD, load, CALL, BACK];
            assert_eq!(callee(&code, 4), Some(Callee::OnStack), "{load:x?}");
            assert_eq!(callee(&code, 2), None, "not yet");
        }
        // From rbp, and a 32-bit move.
        for load in [&[0x48, 0x89, 0xec][..], &[0x48, 0x8b, 0xe5], &[0x89, 0xcc], &[0x48, 0x83, 0xec, 0x10]] {
            assert_eq!(callee(&[PUSH, RECORD, load, CALL, BACK], 4), None, "{load:x?}");
        }
    }

    #[test]
    fn morestack_sets_the_limit_of_its_segment() {
        let load: &[u8] = &[0x48, 0x89, 0xc4];
        assert_eq!(callee(&[PUSH, RECORD, load, &SETS_SEGMENT, CALL, BACK], 5), Some(Callee::OnSegment));
        assert_eq!(callee(&[PUSH, RECORD, &SETS_SEGMENT, CALL, BACK], 4), None, "it stays where it is");
    }
}
