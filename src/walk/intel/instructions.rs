//! The effects of instructions on the stack pointer and saved registers.
//!
//! Registers are numbered as in DWARF. Unknown instructions write an unknown value to their destination register;
//! read-only ones are ignored.
//!
//! Encodings: Intel SDM volume 2, appendix A.

use super::Intel;
use super::length::{Instruction, VECTOR, decode};
use crate::addr::Avma;
use crate::walk::flow::state::{Effect, FlowState, RegisterOffset, Value};

/// Implements [`Processor::step`](crate::walk::processor::Processor::step).
pub(in crate::walk) fn step<P: Intel>(
    at: Avma,
    bytes: &[u8],
    state: &mut FlowState,
) -> Option<(Effect, u64)> {
    let decoded = decode_of::<P>(bytes);
    let instruction = decoded.as_ref()?;
    Some((execute::<P>(instruction, at, state), instruction.length as u64))
}

/// Decodes the instruction at the start of `code`, of the processor's mode.
pub(in crate::walk) fn decode_of<P: Intel>(code: &[u8]) -> Option<Instruction> {
    if P::IS_LONG { decode::<true>(code) } else { decode::<false>(code) }
}

/// Executes the instruction at `at`.
pub(in crate::walk) fn execute<P: Intel>(
    instruction: &Instruction,
    at: Avma,
    state: &mut FlowState,
) -> Effect {
    let Instruction { rex, map, opcode, immediate, wide, .. } = *instruction;
    let target = P::from(at + instruction.length as u64, immediate);
    let (stack_pointer, frame_pointer) = (P::STACK_POINTER, P::FRAME_POINTER);
    let operands = Operands::of::<P>(instruction);
    let Operands { register, operand, in_opcode, middle, direct } = operands;
    if map >= VECTOR {
        let second = P::DWARF[usize::from(instruction.second) & 15];
        execute_vector(map - VECTOR, opcode, [register, operand, second], direct, state);
        return Effect::Plain;
    }
    if !P::IS_LONG
        && let Some(effect) = execute_in_32_bits::<P>(instruction, state)
    {
        return effect;
    }
    match (map, opcode) {
        (0, 0x50..=0x57) => push::<P>(state, state.get(in_opcode)),
        (0, 0x68 | 0x6a) => {
            push::<P>(state, Value::Unknown);
            state.zero = if immediate == 0 { state.place(stack_pointer) } else { state.zero };
        }
        (0, 0x9c) => push::<P>(state, Value::Unknown),
        (0, 0x9d) => drop(pop::<P>(state)),
        (0, 0x58..=0x5f) => {
            let value = pop::<P>(state);
            state.set(in_opcode, value);
        }
        (0, 0x8f) => {
            let value = pop::<P>(state);
            if direct {
                state.set(operand, value);
            }
        }
        (0, 0xc9) => {
            state.set(stack_pointer, state.sum(frame_pointer, 0));
            let value = pop::<P>(state);
            state.set(frame_pointer, value);
        }
        (0, 0xc2 | 0xc3) => return Effect::Returns,
        (0, 0xc8 | 0xcc | 0xf4) | (1, 0x0b) => return Effect::Ends,
        (0, 0xe9 | 0xeb) => return Effect::Jumps(target),
        (0, 0xe8) => return Effect::Calls(Some(target)),
        (0, 0x70..=0x7f | 0xe0..=0xe3) | (1, 0x80..=0x8f) => return Effect::MayJump(target),
        (0, 0xff) => match middle {
            2 | 3 => return Effect::Calls(None),
            4 => return Effect::JumpsAnywhere,
            5 | 7 => return Effect::Ends,
            6 => push::<P>(state, if direct { state.get(operand) } else { Value::Unknown }),
            _ if direct => state.set(operand, Value::Unknown),
            _ => {}
        },
        (0, 0x81 | 0x83) if direct => add_number(instruction, operands, state),
        (0, 0x29) if direct && wide => subtract(operands, state),
        // lea
        (0, 0x8d) => {
            let at = if wide { address::<P>(instruction, state) } else { None };
            state.set(register, at.map_or(Value::Unknown, Value::At));
        }
        (0, 0x89 | 0x8b) => execute_mov::<P>(instruction, operands, state),
        // mov $N
        (0, 0xb8..=0xbf) => {
            let number =
                if wide { immediate.cast_unsigned() } else { immediate.cast_unsigned() & 0xffff_ffff };
            state.set(in_opcode, Value::Number(number));
        }
        // nop
        (0, 0x90) if rex & 1 == 0 => {}
        // cmp, test
        (0, 0x38..=0x3d | 0x84 | 0x85 | 0xa8 | 0xa9) => {}
        _ => overwrite(map, opcode, operands, state),
    }
    Effect::Plain
}

/// The registers that an instruction may refer to, by DWARF number.
#[derive(Clone, Copy)]
struct Operands {
    /// From the middle bits (reg) and the lower bits (r/m) of ModRM.
    register: u8,
    operand: u8,
    /// From the lower bits of the opcode.
    in_opcode: u8,
    /// The middle bits of ModRM, if they extend the opcode.
    middle: u8,
    /// The lower bits denote a register rather than memory.
    direct: bool,
}

impl Operands {
    #[inline(always)]
    fn of<P: Intel>(instruction: &Instruction) -> Operands {
        let Instruction { rex, map, opcode, .. } = *instruction;
        let (mode, middle, low) = instruction.operands().unwrap_or((0, 0, 0));
        // Without REX, byte registers 4 to 7 are ah, ch, dh and bh.
        let of_byte = |number: u8| if rex == 0 && names_bytes(map, opcode) { number & 3 } else { number };
        Operands {
            register: P::DWARF[usize::from(of_byte(middle) | (rex & 4) << 1) & 15],
            operand: P::DWARF[usize::from(of_byte(low) | (rex & 1) << 3) & 15],
            in_opcode: P::DWARF[usize::from(opcode & 7 | (rex & 1) << 3) & 15],
            middle,
            direct: mode == 3,
        }
    }
}

/// Executes `mov` between registers, to memory (0x89) or from memory (0x8b).
#[inline(always)]
fn execute_mov<P: Intel>(
    instruction: &Instruction,
    Operands { register, operand, direct, .. }: Operands,
    state: &mut FlowState,
) {
    let wide = |value: Value| if instruction.wide { value } else { Value::Unknown };
    match (instruction.opcode, direct) {
        (0x89, true) => state.set(operand, wide(state.get(register))),
        (0x89, false) => {
            let value = wide(state.get(register));
            state.store(address::<P>(instruction, state), value);
        }
        (_, true) => state.set(register, wide(state.get(operand))),
        (_, false) if instruction.wide => {
            let value = state.load(address::<P>(instruction, state), P::STACK_POINTER);
            state.set(register, value);
        }
        (_, false) => state.set(register, Value::Unknown),
    }
}

/// Executes add, sub, cmp and others with a register and an immediate.
#[inline(always)]
fn add_number(instruction: &Instruction, Operands { operand, middle, .. }: Operands, state: &mut FlowState) {
    match middle {
        0 if instruction.wide => state.set(operand, state.sum(operand, instruction.immediate)),
        5 if instruction.wide => state.set(operand, state.sum(operand, instruction.immediate.wrapping_neg())),
        7 => {}
        _ => state.set(operand, Value::Unknown),
    }
}

/// Executes a sub of a register that holds a number: frames larger than a page.
#[inline(always)]
fn subtract(Operands { register, operand, .. }: Operands, state: &mut FlowState) {
    let value = match state.get(register) {
        Value::Number(number) => state.sum(operand, number.cast_signed().wrapping_neg()),
        _ => Value::Unknown,
    };
    state.set(operand, value);
}

/// Executes an instruction with an unknown effect on its destination register, if it has one.
#[inline(always)]
fn overwrite(
    map: u8,
    opcode: u8,
    Operands { register, operand, in_opcode, middle, direct }: Operands,
    state: &mut FlowState,
) {
    match (map, opcode) {
        // xchg
        (0, 0x90..=0x97) => state.set(in_opcode, Value::Unknown),
        (0, 0x87) => {
            state.set(register, Value::Unknown);
            if direct {
                state.set(operand, Value::Unknown);
            }
        }
        // write the r/m operand: arithmetic (not cmp $N), rotations, mov $N, setcc
        (
            0,
            0x00 | 0x01 | 0x08..=0x09 | 0x10..=0x11 | 0x18..=0x19 | 0x20..=0x21 | 0x28..=0x29 | 0x30..=0x31,
        )
        | (0, 0x80 | 0x88 | 0xc0 | 0xc1 | 0xc6 | 0xc7 | 0xd0..=0xd3 | 0xfe)
        | (1, 0x90..=0x9f | 0xa4 | 0xa5 | 0xab | 0xac | 0xad | 0xb3 | 0xbb | 0xc0 | 0xc1)
            if direct && (opcode, middle) != (0x80, 7) =>
        {
            state.set(operand, Value::Unknown);
        }
        (0, 0xf6 | 0xf7) if direct && matches!(middle, 2 | 3) => state.set(operand, Value::Unknown),
        // bt only reads; bts, btr, btc by immediate keep a frame pointer except for a mark
        (1, 0xba) if direct && middle > 4 => {}
        // write the reg operand
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
}

/// Executes an instruction that 64-bit mode lacks, or that compilers emit only in 32-bit code. `None` for all
/// others.
fn execute_in_32_bits<P: Intel>(instruction: &Instruction, state: &mut FlowState) -> Option<Effect> {
    let Instruction { map, opcode, immediate, .. } = *instruction;
    let in_opcode = P::DWARF[usize::from(opcode & 7)];
    match (map, opcode) {
        // inc, dec
        (0, 0x40..=0x47) => state.set(in_opcode, state.sum(in_opcode, 1)),
        (0, 0x48..=0x4f) => state.set(in_opcode, state.sum(in_opcode, -1)),
        // push and pop of a segment register
        (0, 0x06 | 0x0e | 0x16 | 0x1e) | (1, 0xa0 | 0xa8) => push::<P>(state, Value::Unknown),
        (0, 0x07 | 0x17 | 0x1f) | (1, 0xa1 | 0xa9) => drop(pop::<P>(state)),
        // pusha
        (0, 0x60) => {
            let values: [Value; 8] = std::array::from_fn(|number| state.get(P::DWARF[number]));
            values.into_iter().for_each(|value| push::<P>(state, value));
        }
        // popa, which does not restore the stack pointer
        (0, 0x61) => {
            for number in (0..8).rev() {
                let value = pop::<P>(state);
                if P::DWARF[number] != P::STACK_POINTER {
                    state.set(P::DWARF[number], value);
                }
            }
        }
        // mov memory,%al; mov memory,%eax; decimal adjustment
        (0, 0xa0 | 0xa1 | 0x27 | 0x2f | 0x37 | 0x3f | 0xd4 | 0xd5) => {
            state.set(P::DWARF[0], Value::Unknown);
        }
        // A call of the next instruction, which pops its own address.
        (0, 0xe8) if immediate == 0 => push::<P>(state, Value::Unknown),
        _ => return None,
    }
    Some(Effect::Plain)
}

/// Executes a VEX or EVEX instruction: only those in the match below write general registers. None keeps an
/// address.
fn execute_vector(
    map: u8,
    opcode: u8,
    [register, operand, second]: [u8; 3],
    direct: bool,
    state: &mut FlowState,
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

fn push<P: Intel>(state: &mut FlowState, value: Value) {
    state.set(P::STACK_POINTER, state.sum(P::STACK_POINTER, -P::POINTER));
    state.store(state.place(P::STACK_POINTER), value);
}

fn pop<P: Intel>(state: &mut FlowState) -> Value {
    let value = state.load(state.place(P::STACK_POINTER), P::STACK_POINTER);
    state.set(P::STACK_POINTER, state.sum(P::STACK_POINTER, P::POINTER));
    value
}

/// The address of a memory operand that is a register plus a number.
fn address<P: Intel>(instruction: &Instruction, state: &FlowState) -> Option<RegisterOffset> {
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
    let base = *P::DWARF.get(usize::from(base | (rex & 1) << 3))?;
    Some(state.place(base)?.plus(instruction.displacement.into()))
}
