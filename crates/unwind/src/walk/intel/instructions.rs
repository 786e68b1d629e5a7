//! The effects of instructions on the stack pointer and saved registers.
//!
//! `step` and `execute` apply them to a state; `Instruction` is a decoded one.
//!
//! Registers are numbered as in DWARF. Unknown instructions write an unknown value to their destination register;
//! read-only ones are ignored.
//!
//! Encodings: Intel SDM volume 2, appendix A.

use super::Intel;
use crate::addr::Avma;
use crate::walk::flow::paths::{Effect, FlowState, RegisterOffset, Value};

/// Implements [`Processor::step`](crate::walk::processor::Processor::step).
pub(crate) fn step<P: Intel>(at: Avma, bytes: &[u8], state: &mut FlowState) -> Option<(Effect, u64)> {
    let decoded = decode_of::<P>(bytes);
    let instruction = decoded.as_ref()?;
    Some((execute::<P>(instruction, at, state), instruction.length as u64))
}

/// Decodes the instruction at the start of `code`, of the processor's mode.
pub(crate) fn decode_of<P: Intel>(code: &[u8]) -> Option<Instruction> {
    if P::IS_LONG { decode::<true>(code) } else { decode::<false>(code) }
}

/// Executes the instruction at `at`.
pub(crate) fn execute<P: Intel>(instruction: &Instruction, at: Avma, state: &mut FlowState) -> Effect {
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

// ---- Decodes the length and the parts of an instruction in 64-bit or 32-bit mode.
//
// Source: Intel SDM volume 2, chapter 2 and the opcode maps of appendix A.

/// An instruction's parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instruction {
    /// Length of all its bytes.
    pub length: usize,
    /// The operand has pointer size: by REX.W in 64-bit mode, without the 16-bit prefix in 32-bit mode.
    pub wide: bool,
    /// The last REX prefix, or 0, as always in 32-bit mode; for VEX and EVEX the register extension bits.
    pub rex: u8,
    /// Opcode map. 0: one-byte opcodes; 1: 0f; 2: 0f 38; 3: 0f 3a; the maps of VEX and EVEX start at [`VECTOR`],
    /// since equal opcodes are other instructions there.
    pub map: u8,
    /// Opcode within its map.
    pub opcode: u8,
    /// The ModRM byte, if there is one.
    pub modrm: Option<u8>,
    /// Relative target or immediate at the end of the instruction, sign-extended; 0 without one.
    pub immediate: i64,
    /// Displacement of the memory operand.
    pub displacement: i32,
    /// The SIB byte, or 0.
    pub sib: u8,
    /// The register in `vvvv` of VEX and EVEX, or 0.
    pub second: u8,
}

/// The first map number of VEX and EVEX.
pub(crate) const VECTOR: u8 = 0x20;

impl Instruction {
    /// `modrm` as mode, register and operand, without the bits in REX.
    pub(crate) fn operands(&self) -> Option<(u8, u8, u8)> {
        self.modrm.map(|modrm| (modrm >> 6, modrm >> 3 & 7, modrm & 7))
    }
}

/// The prefixes of an instruction.
struct Prefixes {
    /// Offset of the opcode.
    at: usize,
    rex: u8,
    /// 16-bit operands, addresses of half the size.
    short: bool,
    short_address: bool,
}

/// Reads the prefixes at the start of `code`.
#[inline(always)]
fn prefixes<const IS_LONG: bool>(code: &[u8]) -> Option<Prefixes> {
    let mut read = Prefixes { at: 0, rex: 0, short: false, short_address: false };
    loop {
        match *code.get(read.at)? {
            0x66 => read.short = true,
            0x67 => read.short_address = true,
            0xf0 | 0xf2 | 0xf3 | 0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65 => {}
            byte @ 0x40..=0x4f if IS_LONG => {
                read.rex = byte;
                read.at += 1;
                break;
            }
            _ => break,
        }
        read.at += 1;
    }
    Some(read)
}

/// A memory or register operand, after the opcode.
struct Operand {
    modrm: u8,
    sib: u8,
    displacement: i32,
}

/// Reads the operand at `at`, and advances `at`.
#[inline(always)]
fn operand<const IS_LONG: bool>(code: &[u8], at: &mut usize, short_address: bool) -> Option<Operand> {
    let modrm = *code.get(*at)?;
    *at += 1;
    let (mode, rm) = (modrm >> 6, modrm & 7);
    // 16-bit addressing has other forms, which no compiler emits.
    if !IS_LONG && short_address && mode != 3 {
        return None;
    }
    let mut sib = 0;
    if mode != 3 && rm == 4 {
        sib = *code.get(*at)?;
        *at += 1;
    }
    let bytes = match mode {
        0 if rm == 5 || (rm == 4 && sib & 7 == 5) => 4,
        1 => 1,
        2 => 4,
        _ => 0,
    };
    let displacement = i32::try_from(signed(code.get(*at..*at + bytes)?)).ok()?;
    *at += bytes;
    Some(Operand { modrm, sib, displacement })
}

/// Decodes the instruction at the start of `code`, in 64-bit or 32-bit mode.
pub(crate) fn decode<const IS_LONG: bool>(code: &[u8]) -> Option<Instruction> {
    // Instructions have at most 15 bytes.
    let code = &code[..code.len().min(15)];
    let Prefixes { mut at, mut rex, short, short_address } = prefixes::<IS_LONG>(code)?;
    let (map, vector) = match *code.get(at)? {
        0x0f => match *code.get(at + 1)? {
            0x38 => (2, 2),
            0x3a => (3, 2),
            _ => (1, 1),
        },
        // In 32-bit mode these are `lds`, `les` and `bound` if a memory operand follows.
        0xc4 | 0xc5 | 0x62 if !IS_LONG && code.get(at + 1)? >> 6 != 3 => (0, 0),
        0xc5 => (1, 2),
        0xc4 => (code.get(at + 1)? & 0x1f, 3),
        0x62 => (code.get(at + 1)? & 7, 4),
        _ => (0, 0),
    };
    let prefix = *code.get(at)?;
    let is_vector = matches!(prefix, 0xc4 | 0xc5 | 0x62) && vector > 0;
    let mut second = 0;
    if is_vector {
        // The bits are inverted: R, X and B are the highest of the first byte, or R alone; `vvvv` is in the last
        // byte, or in the second of EVEX.
        let extensions = !*code.get(at + 1)? >> 5;
        rex = if prefix == 0xc5 { extensions & 4 } else { extensions };
        second = !*code.get(at + if prefix == 0xc5 { 1 } else { 2 })? >> 3 & 15;
        if !IS_LONG {
            (rex, second) = (0, second & 7);
        }
    }
    at += vector;
    let opcode = *code.get(at)?;
    at += 1;
    let has_modrm = match map {
        0 => has_modrm(opcode) || !IS_LONG && matches!(opcode, 0x62 | 0x82 | 0xc4 | 0xc5),
        1 if is_vector => opcode != 0x77,
        1 => !matches!(opcode, 0x05..=0x09 | 0x0b | 0x0e | 0x30..=0x37 | 0x77 | 0x80..=0x8f
            | 0xa0..=0xa2 | 0xa8..=0xaa | 0xc8..=0xcf),
        2..=7 => true,
        _ => return None,
    };
    let operand = match has_modrm {
        true => Some(operand::<IS_LONG>(code, &mut at, short_address)?),
        false => None,
    };
    let modrm = operand.as_ref().map(|operand| operand.modrm);
    let (sib, displacement) = operand.map_or((0, 0), |operand| (operand.sib, operand.displacement));
    let immediate_bytes = match map {
        0 => immediate::<IS_LONG>(opcode, modrm, rex, short, short_address)?,
        1 if !is_vector && matches!(opcode, 0x80..=0x8f) => 4,
        1 => usize::from(matches!(opcode, 0x0f | 0x70..=0x73 | 0xa4 | 0xac | 0xba | 0xc2 | 0xc4..=0xc6)),
        3 => 1,
        _ => 0,
    };
    let immediate = signed(code.get(at..at + immediate_bytes)?);
    at += immediate_bytes;
    let map = if is_vector { VECTOR + map } else { map };
    let wide = if IS_LONG { rex & 8 != 0 } else { !short };
    Some(Instruction { length: at, wide, rex, map, opcode, modrm, immediate, displacement, sib, second })
}

fn has_modrm(opcode: u8) -> bool {
    match opcode {
        0x00..=0x3f => opcode & 7 < 4,
        0x63 | 0x69 | 0x6b | 0x80..=0x8f | 0xc0 | 0xc1 | 0xc6 | 0xc7 | 0xd0..=0xd3 | 0xd8..=0xdf => true,
        0xf6 | 0xf7 | 0xfe | 0xff => true,
        _ => false,
    }
}

/// Size of the immediate of a one-byte opcode; `None` for opcodes that are invalid in this mode or not used in
/// programs.
fn immediate<const IS_LONG: bool>(
    opcode: u8,
    modrm: Option<u8>,
    rex: u8,
    short: bool,
    short_address: bool,
) -> Option<usize> {
    let full = if short { 2 } else { 4 };
    let test = modrm.is_some_and(|modrm| modrm >> 3 & 7 < 2);
    Some(match opcode {
        0x9a | 0xce | 0xd6 | 0xea => return None,
        0x82 if !IS_LONG => 1,
        0xd4 | 0xd5 if !IS_LONG => 1,
        0x06 | 0x07 | 0x0e | 0x16 | 0x17 | 0x1e | 0x1f | 0x27 | 0x2f | 0x37 | 0x3f if IS_LONG => return None,
        0x60..=0x61 | 0x82 | 0xd4 | 0xd5 if IS_LONG => return None,
        0x00..=0x3f if opcode & 7 == 4 => 1,
        0x00..=0x3f if opcode & 7 == 5 => full,
        0x68 | 0x69 | 0x81 | 0xa9 | 0xc7 => full,
        0x6a | 0x6b | 0x70..=0x7f | 0x80 | 0x83 | 0xa8 | 0xb0..=0xb7 | 0xc0 | 0xc1 | 0xc6 | 0xcd => 1,
        0xa0..=0xa3 => match (IS_LONG, short_address) {
            (true, false) => 8,
            (true, true) | (false, false) => 4,
            (false, true) => 2,
        },
        0xb8..=0xbf => {
            if rex & 8 != 0 {
                8
            } else {
                full
            }
        }
        0xc2 => 2,
        0xc8 => 3,
        0xe0..=0xe7 | 0xeb => 1,
        0xe8 | 0xe9 => 4,
        0xf6 if test => 1,
        0xf7 if test => full,
        _ => 0,
    })
}

/// A little-endian number of up to 4 bytes, or of 8, sign-extended.
fn signed(bytes: &[u8]) -> i64 {
    match *bytes {
        [] => 0,
        [byte] => byte.cast_signed().into(),
        [low, high] => i16::from_le_bytes([low, high]).into(),
        [a, b, c] => (i32::from_le_bytes([0, a, b, c]) >> 8).into(),
        [a, b, c, d] => i32::from_le_bytes([a, b, c, d]).into(),
        _ => bytes.first_chunk().map_or(0, |bytes| i64::from_le_bytes(*bytes)),
    }
}

#[cfg(test)]
mod length_tests {
    use super::*;

    #[test]
    fn lengths_match_the_disassembler() {
        for code in [
            &[0x90][..],
            &[0xf3, 0x0f, 0x1e, 0xfa],                      // endbr64
            &[0x48, 0x83, 0xec, 0x08],                      // sub $8,%rsp
            &[0x48, 0x8b, 0x05, 1, 2, 3, 4],                // mov 0x4030201(%rip),%rax
            &[0x48, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8],          // movabs
            &[0x66, 0xb8, 1, 2],                            // mov $0x201,%ax
            &[0x80, 0x3d, 1, 2, 3, 4, 0],                   // cmpb $0,0x4030201(%rip)
            &[0x64, 0x48, 0x8b, 0x04, 0x25, 0x28, 0, 0, 0], // mov %fs:0x28,%rax
            &[0xc7, 0x44, 0x24, 0x0c, 1, 0, 0, 0],          // movl $1,0xc(%rsp)
            &[0xf7, 0xc7, 1, 0, 0, 0],                      // test $1,%edi
            &[0xf7, 0xd8],                                  // neg %eax
            &[0x0f, 0x84, 1, 0, 0, 0],                      // je
            &[0x0f, 0xba, 0xe0, 5],                         // bt $5,%eax
            &[0x66, 0x0f, 0x3a, 0x0f, 0xc1, 8],             // palignr $8,%xmm1,%xmm0
            &[0x66, 0x0f, 0x38, 0x00, 0xc1],                // pshufb
            &[0xc5, 0xf8, 0x77],                            // vzeroupper
            &[0xc5, 0xfd, 0xd7, 0xc1],                      // vpmovmskb
            &[0xc4, 0xe3, 0x7d, 0x39, 0xc1, 1],             // vextracti128 $1
            &[0x62, 0xf1, 0x7e, 0x28, 0x6f, 0x07],          // vmovdqu8 (%rdi),%ymm0
            &[0x42, 0xff, 0x14, 0xc5, 0, 1, 0, 0],          // call *0x100(,%r8,8)
            &[0xc8, 1, 0, 0],                               // enter
        ] {
            let mut longer = code.to_vec();
            longer.extend([0x90; 8]);
            assert_eq!(decode::<true>(&longer).map(|i| i.length), Some(code.len()), "{code:x?}");
            for cut in 0..code.len() {
                assert_eq!(decode::<true>(&code[..cut]), None, "{code:x?} cut to {cut}");
            }
        }
    }

    #[test]
    fn in_32_bit_mode_some_bytes_are_other_instructions() {
        for code in [
            &[0x40][..],                           // inc %eax
            &[0x4c],                               // dec %esp
            &[0x60],                               // pusha
            &[0x1e],                               // push %ds
            &[0xa1, 1, 2, 3, 4],                   // mov 0x4030201,%eax
            &[0x8b, 0x05, 1, 2, 3, 4],             // mov 0x4030201,%eax
            &[0x65, 0xff, 0x15, 0x10, 0, 0, 0],    // call *%gs:0x10
            &[0xc4, 0x00],                         // les (%eax),%eax
            &[0xc5, 0x44, 0x24, 0x08],             // lds 8(%esp),%eax
            &[0xc5, 0xf8, 0x77],                   // vzeroupper
            &[0xc4, 0xe3, 0x7d, 0x39, 0xc1, 1],    // vextracti128 $1
            &[0x62, 0xf1, 0x7e, 0x28, 0x6f, 0x07], // vmovdqu8 (%edi),%ymm0
            &[0x66, 0xb8, 1, 2],                   // mov $0x201,%ax
            &[0xcd, 0x80],                         // int $0x80
            &[0x0f, 0x34],                         // sysenter
            &[0x82, 0xc0, 1],                      // add $1,%al
            &[0xd4, 10],                           // aam
        ] {
            let mut longer = code.to_vec();
            longer.extend([0x90; 8]);
            assert_eq!(decode::<false>(&longer).map(|i| i.length), Some(code.len()), "{code:x?}");
        }
        // jmp far, and a 16-bit address.
        assert_eq!(decode::<false>(&[0xea, 0, 0, 0, 0, 0x33, 0, 0x90]), None);
        assert_eq!(decode::<false>(&[0x67, 0x8b, 0x46, 2, 0x90]), None);
        let wide = |code: &[u8]| decode::<false>(code).map(|i| i.wide);
        assert_eq!((wide(&[0x89, 0xe5]), wide(&[0x66, 0x89, 0xe5])), (Some(true), Some(false)));
    }

    #[test]
    fn operands_are_signed() {
        let jump = decode::<true>(&[0xeb, 0xfe]).map(|i| i.immediate);
        assert_eq!(jump, Some(-2));
        let lea = decode::<true>(&[0x48, 0x8d, 0x65, 0xd8]); // lea -0x28(%rbp),%rsp
        assert_eq!(lea.map(|i| (i.displacement, i.operands())), Some((-0x28, Some((1, 4, 5)))));
    }

    #[test]
    fn vex_registers_are_extended_by_inverted_bits() {
        let parts = |code: &[u8]| {
            decode::<true>(code)
                .map(|i| (i.map - VECTOR, i.opcode, i.rex, i.second, i.operands().map(|o| (o.1, o.2))))
        };
        // shlx %r10,%rdx,%r9
        assert_eq!(parts(&[0xc4, 0x62, 0xa9, 0xf7, 0xca]), Some((2, 0xf7, 4, 10, Some((1, 2)))));
        // kmovd %k1,%r8d
        assert_eq!(parts(&[0xc5, 0x7b, 0x93, 0xc1]), Some((1, 0x93, 4, 0, Some((0, 1)))));
        // blsr %rdx,%rbp
        assert_eq!(parts(&[0xc4, 0xe2, 0xd0, 0xf3, 0xca]), Some((2, 0xf3, 0, 5, Some((1, 2)))));
    }

    #[test]
    fn any_bytes_decode_without_reading_beyond_their_end() {
        let mut random = crate::rng::Rng::new(1);
        for _ in 0..200_000 {
            let state = random.next();
            let bytes = (u128::from(state) << 64 | u128::from(state.rotate_left(29))).to_le_bytes();
            let length = (state >> 60) as usize;
            if let Some(instruction) = decode::<true>(&bytes[..length]) {
                assert!((1..=length).contains(&instruction.length), "{bytes:x?}");
            }
            if let Some(instruction) = decode::<false>(&bytes[..length]) {
                assert!((1..=length).contains(&instruction.length), "{bytes:x?}");
            }
        }
    }
}
