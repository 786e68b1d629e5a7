//! What instructions of x86_64 do to the stack pointer and to saved registers.
//!
//! Registers are numbered as in DWARF. What is not known here and has a register as its
//! destination writes it with something unknown; what only reads is left out.
//!
//! Encodings: Intel SDM volume 2, appendix A.

use super::length::{Instruction, VECTOR, decode};
use crate::addr::Avma;
use crate::walk::flow::state::{Effect, Place, State, Value};

/// The frame pointer, by DWARF number.
pub(super) const RBP: u8 = 6;
/// The stack pointer, by DWARF number.
pub(super) const RSP: u8 = 7;
/// Registers by their number in instructions → by DWARF number.
pub(super) const DWARF: [u8; 16] = [0, 2, 1, 3, 7, 6, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15];

/// See [`Processor::step`](crate::walk::processor::Processor::step).
pub(super) fn step(at: Avma, bytes: &[u8], state: &mut State) -> Option<(Effect, u64)> {
    let instruction = decode(bytes)?;
    Some((execute(&instruction, at, state), instruction.length as u64))
}

/// Executes an instruction that stands at `at`.
pub(super) fn execute(instruction: &Instruction, at: Avma, state: &mut State) -> Effect {
    let Instruction { rex, map, opcode, immediate, .. } = *instruction;
    let target = Avma((at + instruction.length as u64).0.wrapping_add_signed(immediate));
    let wide = rex & 8 != 0;
    let (mode, middle, low) = instruction.operands().unwrap_or((0, 0, 0));
    // Without REX the numbers 4 to 7 of a byte are ah, ch, dh and bh.
    let of_byte = |number: u8| if rex == 0 && names_bytes(map, opcode) { number & 3 } else { number };
    let register = DWARF[usize::from(of_byte(middle) | (rex & 4) << 1) & 15];
    let operand = DWARF[usize::from(of_byte(low) | (rex & 1) << 3) & 15];
    let in_opcode = DWARF[usize::from(opcode & 7 | (rex & 1) << 3) & 15];
    let direct = mode == 3;
    if map >= VECTOR {
        execute_vector(
            map - VECTOR,
            opcode,
            [register, operand, DWARF[usize::from(instruction.second) & 15]],
            direct,
            state,
        );
        return Effect::Plain;
    }
    match (map, opcode) {
        (0, 0x50..=0x57) => push(state, state.get(in_opcode)),
        (0, 0x68 | 0x6a) => {
            push(state, Value::Unknown);
            state.zero = if immediate == 0 { state.place(RSP) } else { state.zero };
        }
        (0, 0x9c) => push(state, Value::Unknown),
        (0, 0x9d) => drop(pop(state)),
        (0, 0x58..=0x5f) => {
            let value = pop(state);
            state.set(in_opcode, value);
        }
        (0, 0x8f) => {
            let value = pop(state);
            if direct {
                state.set(operand, value);
            }
        }
        (0, 0xc9) => {
            state.set(RSP, state.sum(RBP, 0));
            let value = pop(state);
            state.set(RBP, value);
        }
        (0, 0xc8) => return Effect::Ends,
        (0, 0xc2 | 0xc3) => return Effect::Returns,
        (0, 0xcc | 0xf4) | (1, 0x0b) => return Effect::Ends,
        (0, 0xe9 | 0xeb) => return Effect::Jumps(target),
        (0, 0xe8) => return Effect::Calls(Some(target)),
        (0, 0x70..=0x7f | 0xe0..=0xe3) | (1, 0x80..=0x8f) => return Effect::MayJump(target),
        (0, 0xff) => match middle {
            2 | 3 => return Effect::Calls(None),
            4 => return Effect::JumpsAnywhere,
            5 | 7 => return Effect::Ends,
            6 => push(state, if direct { state.get(operand) } else { Value::Unknown }),
            _ if direct => state.set(operand, Value::Unknown),
            _ => {}
        },
        // add, sub, cmp of a register and a number
        (0, 0x81 | 0x83) if direct => match middle {
            0 if wide => state.set(operand, state.sum(operand, immediate)),
            5 if wide => state.set(operand, state.sum(operand, immediate.wrapping_neg())),
            7 => {}
            _ => state.set(operand, Value::Unknown),
        },
        // sub of a number that was put into a register: frames larger than a page
        (0, 0x29) if direct && wide => {
            let value = match state.get(register) {
                Value::Number(number) => state.sum(operand, number.cast_signed().wrapping_neg()),
                _ => Value::Unknown,
            };
            state.set(operand, value);
        }
        // lea
        (0, 0x8d) => {
            let at = if wide { address(instruction, state) } else { None };
            state.set(register, at.map_or(Value::Unknown, Value::At));
        }
        // mov
        (0, 0x89) if direct => state.set(operand, if wide { state.get(register) } else { Value::Unknown }),
        (0, 0x8b) if direct => state.set(register, if wide { state.get(operand) } else { Value::Unknown }),
        (0, 0x89) => {
            let value = if wide { state.get(register) } else { Value::Unknown };
            state.store(address(instruction, state), value);
        }
        (0, 0x8b) => {
            let value = if wide { state.load(address(instruction, state), RSP) } else { Value::Unknown };
            state.set(register, value);
        }
        // mov $N
        (0, 0xb8..=0xbf) => {
            let number =
                if wide { immediate.cast_unsigned() } else { immediate.cast_unsigned() & 0xffff_ffff };
            state.set(in_opcode, Value::Number(number));
        }
        // xchg
        (0, 0x90) if rex & 1 == 0 => {}
        (0, 0x90..=0x97) => state.set(in_opcode, Value::Unknown),
        (0, 0x87) => {
            state.set(register, Value::Unknown);
            if direct {
                state.set(operand, Value::Unknown);
            }
        }
        // cmp, test
        (0, 0x38..=0x3d | 0x84 | 0x85 | 0xa8 | 0xa9) => {}
        // others that write what the lower bits name: arithmetic (not cmp $N), rotations, mov $N, setcc
        (0, 0x00 | 0x01 | 0x08..=0x09 | 0x10..=0x11 | 0x18..=0x19 | 0x20..=0x21 | 0x28 | 0x30..=0x31)
        | (0, 0x80 | 0x88 | 0xc0 | 0xc1 | 0xc6 | 0xc7 | 0xd0..=0xd3 | 0xfe)
        | (1, 0x90..=0x9f | 0xa4 | 0xa5 | 0xab | 0xac | 0xad | 0xb3 | 0xbb | 0xc0 | 0xc1)
            if direct && (opcode, middle) != (0x80, 7) =>
        {
            state.set(operand, Value::Unknown);
        }
        (0, 0xf6 | 0xf7) if direct && matches!(middle, 2 | 3) => state.set(operand, Value::Unknown),
        // bt only reads; bts, btr, btc by number keep what a frame pointer is, but for a mark
        (1, 0xba) if direct && middle > 4 => {}
        // those that write what the middle bits name
        (
            0,
            0x02 | 0x03 | 0x0a | 0x0b | 0x12 | 0x13 | 0x1a | 0x1b | 0x22 | 0x23 | 0x2a | 0x2b | 0x32 | 0x33,
        )
        | (0, 0x63 | 0x69 | 0x6b | 0x8a)
        | (1, 0x40..=0x4f | 0xaf | 0xb6 | 0xb7 | 0xb8 | 0xbc..=0xbf) => {
            state.set(register, Value::Unknown);
        }
        _ => {}
    }
    Effect::Plain
}

/// Executes an instruction that VEX or EVEX begins: a few write general registers, which are
/// named as in the match below. None keeps the address that one held.
fn execute_vector(
    map: u8,
    opcode: u8,
    [register, operand, second]: [u8; 3],
    direct: bool,
    state: &mut State,
) {
    match (map, opcode) {
        // vcvttss2si, vcvtss2si, vmovmskps, kmov, vpextrw, vpmovmskb
        (1, 0x2c | 0x2d | 0x50 | 0x93 | 0xc5 | 0xd7)
        // andn, bzhi, pdep, pext, bextr, shlx, sarx, shrx
        | (2, 0xf2 | 0xf5 | 0xf7)
        // rorx
        | (3, 0xf0) => state.set(register, Value::Unknown),
        // blsr, blsmsk, blsi
        (2, 0xf3) => state.set(second, Value::Unknown),
        // mulx
        (2, 0xf6) => {
            state.set(register, Value::Unknown);
            state.set(second, Value::Unknown);
        }
        // vpextrb, vpextrw, vpextrd, vextractps
        (3, 0x14..=0x17) if direct => state.set(operand, Value::Unknown),
        _ => {}
    }
}

/// Whether an instruction's operands are bytes.
fn names_bytes(map: u8, opcode: u8) -> bool {
    match map {
        0 if opcode < 0x40 => matches!(opcode & 7, 0 | 2),
        0 => matches!(opcode, 0x80 | 0x84 | 0x86 | 0x88 | 0x8a | 0xc0 | 0xc6 | 0xd0 | 0xd2 | 0xf6 | 0xfe),
        1 => matches!(opcode, 0x90..=0x9f | 0xb0 | 0xc0),
        _ => false,
    }
}

fn push(state: &mut State, value: Value) {
    state.set(RSP, state.sum(RSP, -8));
    state.store(state.place(RSP), value);
}

fn pop(state: &mut State) -> Value {
    let value = state.load(state.place(RSP), RSP);
    state.set(RSP, state.sum(RSP, 8));
    value
}

/// The address of a memory operand that is a register plus a number.
fn address(instruction: &Instruction, state: &State) -> Option<Place> {
    let (mode, _, low) = instruction.operands()?;
    let rex = instruction.rex;
    let base = match (mode, low) {
        (3, _) | (0, 5) => return None,
        (_, 4) => {
            let (index, base) = (instruction.sib >> 3 & 7 | (rex & 2) << 2, instruction.sib & 7);
            if index != 4 || (mode == 0 && base == 5) {
                return None;
            }
            base
        }
        _ => low,
    };
    let base = *DWARF.get(usize::from(base | (rex & 1) << 3))?;
    Some(state.place(base)?.plus(instruction.displacement.into()))
}
