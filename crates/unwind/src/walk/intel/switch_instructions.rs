//! Instructions at which a thread's registers belong partly to one frame and partly to another: longjmp, a context
//! switch, the installation of an exception's landing pad. Input: an address, its row, code; output:
//! [`FrameSwitch`], whether the caller found there is reliable. Not for: recognizing functions by name. Unwind
//! information describes this code as if the change were complete or had not begun.

use super::Intel;
use super::instructions::{Instruction, decode_of};
use crate::addr::{Avma, CodeAddress};
use crate::binary::frame_rule::{Cfa, Column};
use crate::walk::Code;
use crate::walk::engine::FrameSwitch;
use crate::walk::processor::{RowOf, row};

/// Instruction numbers of rax and rdx. Only functions that install a landing pad save them: they pass the
/// exception in them (System V AMD64 ABI 3.7, `__builtin_eh_return_data_regno`).
const LANDING_PAD_DATA: [usize; 2] = [0, 2];
/// Limit on instructions followed to the jump to the landing pad.
const INSTRUCTIONS_MAX: u32 = 96;
/// Bytes decoded first to synchronize with instruction boundaries.
const IN_STEP_BYTES: u64 = 32;
/// Bytes before an address in which the stack pointer may have been loaded: the rest of `swapcontext` and of
/// `setcontext` after that is shorter.
const BEHIND_BYTES: u64 = 64;

/// The registers or saved words that are being replaced at `address` with the row `row`.
pub(crate) fn at<P: Intel>(address: CodeAddress, row: &RowOf<P>, code: &dyn Code) -> FrameSwitch {
    let at = address.at();
    let switched = |yes: bool| if yes { FrameSwitch::Registers } else { FrameSwitch::No };
    if row.signal {
        return FrameSwitch::No;
    }
    if goes_to_landing_pad::<P>(at, code) {
        return FrameSwitch::Registers;
    }
    if LANDING_PAD_DATA
        .iter()
        .all(|number| matches!(row.columns[usize::from(P::DWARF[*number])], Column::At(_)))
    {
        return match calls_to_landing_pad::<P>(at, code) {
            Some(0) => FrameSwitch::Registers,
            // The call of `_Unwind_DebugHook` (libgcc, unwind.inc, `uw_install_context`).
            Some(1) => FrameSwitch::LandingPad,
            _ => switched(stack_was_loaded::<P>(at, code)),
        };
    }
    // A row relative to another register is right whatever the stack pointer is.
    let on_stack_pointer = matches!(row.cfa, Cfa::Register(register, _) if register == P::STACK_POINTER);
    switched(states_stack_pointer::<P>(row) || on_stack_pointer && stack_was_loaded::<P>(at, code))
}

/// `__longjmp`, `setcontext`: the row describes the target frame, with a saved stack pointer. In ordinary rows the
/// stack pointer is the CFA.
fn states_stack_pointer<P: Intel>(row: &RowOf<P>) -> bool {
    !matches!(row.columns[usize::from(P::STACK_POINTER)], Column::Same | Column::Undefined | Column::Is(0))
}

/// Whether `at` is one of `mov %rcx,%rsp; pop %rcx; jmp *%rcx`: the row may already describe the landing pad's
/// frame.
fn goes_to_landing_pad<P: Intel>(at: Avma, code: &dyn Code) -> bool {
    let switch: &[u8] = if P::IS_LONG { &SWITCH } else { &SWITCH[1..] };
    let before = [0, switch.len() - 3, switch.len() - 2];
    // Rejects most code by one byte.
    let Some([first, ..]) = code.code(at) else { return false };
    before.iter().any(|before| {
        let start = at.0.checked_sub(*before as u64);
        switch[*before] == *first
            && start.and_then(|start| code.code(Avma(start))).is_some_and(|code| code.starts_with(switch))
    })
}

/// For 64-bit mode; 32-bit mode omits the first byte.
const SWITCH: [u8; 6] = [0x48, 0x89, 0xcc, 0x59, 0xff, 0xe1];

/// Number of calls between `at` and gcc's code for `__builtin_eh_return`: `mov %rcx,%rsp; pop %rcx; jmp *%rcx`;
/// `None` if the code does not end with it.
fn calls_to_landing_pad<P: Intel>(mut at: Avma, code: &dyn Code) -> Option<u32> {
    let to_sp: &[u8] = if P::IS_LONG { &[0x48, 0x89, 0xcc] } else { &[0x89, 0xcc] };
    let move_bytes = to_sp.len() as u64;
    let is_behind = |bytes: u64| {
        let start = at.0.checked_sub(bytes).and_then(|start| code.code(Avma(start)));
        start.is_some_and(|code| code.starts_with(to_sp))
    };
    if is_behind(move_bytes) || is_behind(move_bytes + 1) {
        return Some(0);
    }
    let mut calls = 0;
    for _ in 0..INSTRUCTIONS_MAX {
        let bytes = code.code(at)?;
        if bytes.starts_with(to_sp) {
            return Some(calls);
        }
        let instruction = decode_of::<P>(bytes)?;
        let next = at + instruction.length as u64;
        match (instruction.map, instruction.opcode) {
            (0, 0xc2 | 0xc3 | 0xcc | 0xf4) | (1, 0x0b) => return None,
            (0, 0xe9 | 0xeb) => at = P::from(next, instruction.immediate),
            (0, 0xe8) => {
                calls += 1;
                at = next;
            }
            _ => at = next,
        }
    }
    None
}

/// Whether the straight code before `at` has loaded the stack pointer, in contradiction to the row.
fn stack_was_loaded<P: Intel>(at: Avma, code: &dyn Code) -> bool {
    // The start of the mapping may be nearer.
    let most = if P::IS_LONG { BEHIND_BYTES } else { BEHIND_BYTES + IN_STEP_BYTES };
    let behind = (1..=most).rev().find_map(|from| {
        let bytes = code.code(Avma(at.0.checked_sub(from)?))?;
        Some((at.0 - from, bytes.get(..from as usize)?))
    });
    let Some((start, before)) = behind else { return false };
    (before.len().saturating_sub(BEHIND_BYTES as usize)..before.len()).any(|offset| {
        // Most bytes are no such instruction, and this check is cheaper than decoding.
        match before[offset..] {
            [0x48..=0x4f, 0x89 | 0x8b, ..] if P::IS_LONG => {}
            [0x89 | 0x8b, ..] if !P::IS_LONG => {}
            _ => return false,
        }
        let place = Avma(start + offset as u64);
        before.get(offset..).and_then(decode_of::<P>).is_some_and(|instruction| {
            let loaded_from = stack_pointer_source::<P>(&instruction);
            loaded_from.is_some_and(|source| !counts_from::<P>(source, place, code))
                && runs_straight_on::<P>(before, offset, &instruction)
                && (P::IS_LONG || may_begin_at::<P>(before, offset))
        })
    })
}

/// Whether an instruction may begin at an offset of the code before an address. Without a REX prefix the load has
/// two bytes, which may be part of another instruction (a `call` with a displacement that ends in `89`). Decoding
/// from any offset soon synchronizes with the instructions: the first offset from which it reaches the address
/// decides.
fn may_begin_at<P: Intel>(before: &[u8], offset: usize) -> bool {
    for first in 0..before.len().min(IN_STEP_BYTES as usize).min(offset) {
        let (mut at, mut begins) = (first, false);
        while at < before.len() {
            begins |= at == offset;
            let Some(instruction) = before.get(at..).and_then(decode_of::<P>) else { break };
            at += instruction.length;
        }
        if at == before.len() {
            return begins;
        }
    }
    true
}

/// The source of a `mov` to the stack pointer.
#[derive(Clone, Copy)]
enum StackPointerSource {
    /// Memory, but not relative to rsp or rbp.
    Memory,
    /// A register, by DWARF number.
    Register(u8),
}

/// The source from which an instruction loads the stack pointer; `None` if it does not.
fn stack_pointer_source<P: Intel>(instruction: &Instruction) -> Option<StackPointerSource> {
    let Instruction { wide, rex, map, opcode, .. } = *instruction;
    let (mode, register, operand) = instruction.operands()?;
    let register = register | (rex & 4) << 1;
    let operand = operand | (rex & 1) << 3;
    if map != 0 || !wide {
        return None;
    }
    match (opcode, mode) {
        (0x89, 3) if operand == 4 => {
            Some(StackPointerSource::Register(*P::DWARF.get(usize::from(register))?))
        }
        (0x8b, 3) if register == 4 => {
            Some(StackPointerSource::Register(*P::DWARF.get(usize::from(operand))?))
        }
        (0x8b, _) if register == 4 && !matches!(operand, 4 | 5) => Some(StackPointerSource::Memory),
        _ => None,
    }
}

/// Whether the row at the load itself is relative to that register: then the load moves the stack pointer within
/// its frame.
fn counts_from<P: Intel>(source: StackPointerSource, at: Avma, code: &dyn Code) -> bool {
    let StackPointerSource::Register(register) = source else { return false };
    match row::<P>(code, at) {
        Some(row) => matches!(row.cfa, Cfa::Register(from, _) if from == register),
        None => register == P::FRAME_POINTER,
    }
}

/// Whether the code from an instruction reaches its end without a jump and without a push: context switches return
/// to an address that they push last.
fn runs_straight_on<P: Intel>(code: &[u8], offset: usize, first: &Instruction) -> bool {
    let mut offset = offset + first.length;
    while offset < code.len() {
        let Some(instruction) = code.get(offset..).and_then(decode_of::<P>) else { return false };
        let goes_elsewhere = match (instruction.map, instruction.opcode) {
            (0, 0x50..=0x57 | 0xc2 | 0xc3 | 0xcc | 0xe8 | 0xe9 | 0xeb | 0xf4) | (1, 0x0b) => true,
            // call, jmp of a register or memory
            (0, 0xff) => matches!(instruction.operands(), Some((_, 2..=5, _))),
            _ => false,
        };
        if goes_elsewhere {
            return false;
        }
        offset += instruction.length;
    }
    offset == code.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::{X86, X86_64};
    use crate::binary::frame_rule::{AnyRow, RETURN_ADDRESS, Row, RowX86, X86_RETURN_ADDRESS};
    use crate::walk::text::Text;

    const RSP: usize = X86_64::RSP;

    const TEXT: u64 = 0x40_1000;

    /// Code with one row for all of it.
    fn text(code: &[u8], row: Option<Row>) -> Text {
        Text::new(TEXT, code).with_row(row.map(AnyRow::from))
    }

    fn row(register: usize, columns: &[(usize, Column)]) -> Row {
        let mut row: Row =
            Row { cfa: Cfa::Register(register as u8, 8), columns: Default::default(), signal: false };
        row.columns[RETURN_ADDRESS] = Column::At(-8);
        for (register, column) in columns {
            row.columns[*register] = column.clone();
        }
        row
    }

    /// The offsets at which the caller of `code` is unreliable, and whether by registers.
    fn switching(code: &[&[u8]], row: Option<Row>) -> Vec<(u64, bool)> {
        let bytes = code.concat();
        // Without unwind information the row is derived from the code.
        let used = row.clone().unwrap_or_else(|| self::row(RSP, &[]));
        let text = text(&bytes, row);
        let mut found = Vec::new();
        let mut offset = 0;
        for instruction in code {
            let address = CodeAddress::Pc(Avma(TEXT + offset));
            match super::at::<X86_64>(address, &used, &text) {
                FrameSwitch::No => {}
                switch => found.push((offset, switch == FrameSwitch::Registers)),
            }
            offset += instruction.len() as u64;
        }
        found
    }

    #[test]
    fn a_row_that_restores_the_stack_pointer_belongs_to_another_frame() {
        // __longjmp, after the saved registers are unmangled.
        let longjmp = row(5, &[(RSP, Column::In(8)), (RETURN_ADDRESS, Column::In(1))]);
        assert_eq!(switching(&[&[0x48, 0x8b, 0x1f]], Some(longjmp.clone())), [(0, true)]);
        assert!(switching(&[&[0x90]], Some(row(RSP, &[(RSP, Column::Is(0))]))).is_empty());
        let signal = Row { signal: true, ..longjmp };
        assert!(switching(&[&[0x90]], Some(signal)).is_empty());
    }

    #[test]
    fn between_installed_registers_and_landing_pad_nothing_is_reliable() {
        let saves_data = row(6, &[(0, Column::At(-64)), (1, Column::At(-56))]);
        let resume: [&[u8]; 12] = [
            &[0xe8, 0, 0, 0, 0],       // +00 call uw_init_context
            &[0x90],                   // +05 nop
            &[0xe8, 0, 0, 0, 0],       // +06 call uw_install_context
            &[0x31, 0xd2],             // +0b xor %edx,%edx
            &[0xe8, 0, 0, 0, 0],       // +0d call _Unwind_DebugHook
            &[0x74, 0x02],             // +12 je +16
            &[0x89, 0xc1],             // +14 mov %eax,%ecx
            &[0x48, 0x8b, 0x45, 0xc8], // +16 mov -0x38(%rbp),%rax
            &[0x48, 0x89, 0xcc],       // +1a mov %rcx,%rsp
            &[0x59],                   // +1d pop %rcx
            &[0xff, 0xe1],             // +1e jmp *%rcx
            &[0x90],                   // +20 nop
        ];
        let expected = [0x12, 0x14, 0x16, 0x1a, 0x1d, 0x1e].map(|offset| (offset, true));
        let found = switching(&resume, Some(saves_data));
        assert_eq!(found[..2], [(0xb, false), (0xd, false)]);
        assert_eq!(found[2..], expected);
        assert!(switching(&resume[..9], Some(row(6, &[]))).is_empty());
        // The stack pointer is, or is about to be, that of the landing pad; the row is unchanged.
        assert_eq!(switching(&resume, Some(row(RSP, &[]))), [0x1a, 0x1d, 0x1e].map(|offset| (offset, true)));
    }

    #[test]
    fn swapcontext_switches_stacks_before_it_has_its_return_address() {
        let swap: [&[u8]; 6] = [
            &[0x48, 0x8b, 0xa2, 0xa0, 0, 0, 0], // +00 mov 0xa0(%rdx),%rsp
            &[0x48, 0x8b, 0x6a, 0x78],          // +07 mov 0x78(%rdx),%rbp
            &[0x51],                            // +0b push %rcx
            &[0x31, 0xc0],                      // +0c xor %eax,%eax
            &[0xc3],                            // +0e ret
            &[0x90],                            // +0f the next function
        ];
        let expected = [7, 0xb].map(|offset| (offset, true));
        assert_eq!(switching(&swap, Some(row(RSP, &[]))), expected);
        assert_eq!(switching(&swap, None), expected);
        assert!(switching(&swap, Some(row(6, &[]))).is_empty(), "counts from rbp");
    }

    #[test]
    fn functions_may_move_their_own_stack_pointer() {
        // _dl_runtime_resolve: mov %rbx,%rsp, with a row relative to rbx.
        let leave: [&[u8]; 2] = [&[0x48, 0x89, 0xdc], &[0x48, 0x8b, 0x1c, 0x24]];
        let bytes = leave.concat();
        let text = text(&bytes, Some(row(3, &[])));
        let address = CodeAddress::Pc(Avma(TEXT + 3));
        assert_eq!(super::at::<X86_64>(address, &row(RSP, &[]), &text), FrameSwitch::No);
        // mov -0x48(%rbp),%rsp; mov %rbp,%rsp without a row.
        assert!(switching(&[&[0x48, 0x8b, 0x65, 0xb8], &[0x90]], Some(row(RSP, &[]))).is_empty());
        assert!(switching(&[&[0x48, 0x89, 0xec], &[0x5d]], None).is_empty());
    }

    #[test]
    fn in_32_bit_mode_a_part_of_another_instruction_is_no_load() {
        let row = {
            let mut row = RowX86::new(Cfa::Register(X86::ESP as u8, 16));
            row.columns[X86_RETURN_ADDRESS] = Column::At(-4);
            row
        };
        let switch = |code: &[&[u8]]| {
            let bytes = code.concat();
            let at = TEXT + bytes.len() as u64 - 1;
            super::at::<X86>(CodeAddress::Return(Avma(at)), &row, &text(&bytes, None))
        };
        let nops: [u8; 48] = [0x90; 48];
        // call with a displacement that starts like mov %esi,%esp; then the byte after it
        assert_eq!(
            switch(&[&nops, &[0x31, 0xc0], &[0xe8, 0x89, 0xf4, 0xff, 0xff], &[0x90]]),
            FrameSwitch::No
        );
        // mov 0x30(%eax),%esp; mov 0x24(%eax),%edi
        assert_eq!(
            switch(&[&nops, &[0x8b, 0x60, 0x30], &[0x8b, 0x78, 0x24], &[0x90]]),
            FrameSwitch::Registers
        );
    }

    #[test]
    fn a_jump_to_a_landing_pad_is_found_whatever_the_row() {
        let row = {
            let mut row = RowX86::new(Cfa::Register(1, 4));
            row.columns[X86_RETURN_ADDRESS] = Column::At(-4);
            row
        };
        let code = [0x8b, 0x6d, 0, 0x89, 0xcc, 0x59, 0xff, 0xe1, 0x90];
        let switches = |offset: u64| {
            let address = CodeAddress::Pc(Avma(TEXT + offset));
            super::at::<X86>(address, &row, &text(&code, None)) == FrameSwitch::Registers
        };
        assert_eq!([0, 3, 5, 6, 8].map(switches), [false, true, true, true, false]);
    }

    #[test]
    fn hostile_code_is_followed_up_to_a_limit() {
        let saves_data = row(6, &[(0, Column::At(-64)), (1, Column::At(-56))]);
        assert!(switching(&[&[0xeb, 0xfe]], Some(saves_data)).is_empty(), "a loop");
        for at in [0, 1, TEXT - 1, TEXT + 1, u64::MAX] {
            let text = text(&[0x48, 0x8b], None);
            assert_eq!(
                super::at::<X86_64>(CodeAddress::Return(Avma(at)), &row(RSP, &[]), &text),
                FrameSwitch::No
            );
        }
    }
}
