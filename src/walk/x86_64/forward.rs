//! The caller of a function without unwind information, by its instructions: they are
//! followed from the program counter to the return, and what they do to the stack pointer
//! tells where the return address is. Input: code; output: a [`Row`], or that the code
//! ends its thread. Not for: anything that executes, or reads the stack.
//!
//! Such functions are `_init`, `_fini` and `__do_global_dtors_aux` of every program, the
//! child's side of `clone`, all of musl, and hand-written code.

use std::ops::Range;

use hashbrown::HashMap;

use super::length::{Instruction, decode};
use crate::addr::{Avma, CodeAddress};
use crate::binary::frame_rule::{Cfa, Column, RETURN_ADDRESS, Row};
use crate::walk::{Code, root};

const RBP: usize = 6;
const RSP: u8 = 7;
/// Registers by their number in instructions → by DWARF number.
const DWARF: [usize; 16] = [0, 2, 1, 3, 7, 6, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15];

/// Most instructions that are followed, over all branches.
const INSTRUCTIONS_MAX: u32 = 2048;
/// Most branches that are remembered to be followed later.
const BRANCHES_MAX: usize = 64;

/// Most instructions of start code.
const START_INSTRUCTIONS_MAX: u32 = 48;

/// Most instructions that are followed once one way has led to a return: the others are to
/// agree with it.
const OTHERS_MAX: u32 = 256;

/// What the code from an address on leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Leads {
    /// To a return: the row at that address.
    Back(Box<Row>, Proof),
    /// To the end of the thread: nothing called this function.
    ToExit,
}

/// How far a row that was read from instructions can be relied on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Proof {
    /// The code is sure to run so.
    #[default]
    Certain,
    /// The way passes a call, or where one has just come back to: if that does not return, what
    /// follows belongs to another way or another function. Something else must lead to the
    /// same caller.
    Wanted,
}

/// An address as a register at the start plus bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    on_rbp: bool,
    offset: i64,
}

#[derive(Clone, Copy, Debug)]
enum Rbp {
    /// As at the start.
    Initial,
    /// It points there.
    Is(Place),
    /// It was loaded from there.
    From(Place),
    Unknown,
}

#[derive(Clone, Copy, Debug)]
struct State {
    sp: Place,
    rbp: Rbp,
    /// Where rbx, r12 to r15 were loaded from.
    loaded: [Option<Place>; 16],
    /// A call was passed.
    called: bool,
}

/// Follows the code from `pc` on; `returned`: a call has just come back there.
pub(super) fn follow(pc: Avma, returned: bool, code: &dyn Code) -> Option<Leads> {
    if let Some(row) = code.code(pc).and_then(interpreter_of_hotspot).filter(|_| returned) {
        return Some(Leads::Back(Box::new(row), Proof::Certain));
    }
    let mut ways = Found::default();
    if follow_ways(pc, returned, code, &mut ways) {
        return Some(Leads::ToExit);
    }
    // What comes between that and the return may not be understood: in builtins of V8 it takes
    // off as many arguments as there are.
    let by_record = ways.leaves_record.then(|| Leads::Back(Box::new(record()), Proof::Certain));
    let wanted = |row| Leads::Back(row, Proof::Wanted);
    match ways.row {
        Some(row) if ways.is_certain && !ways.differ => Some(Leads::Back(row, Proof::Certain)),
        Some(row) => by_record.or(Some(wanted(row))),
        None => by_record.or_else(|| ways.tail_call.map(wanted)),
    }
}

/// What ways show.
#[derive(Default)]
struct Found {
    /// The row that the first way tells which leads to a return.
    row: Option<Box<Row>>,
    /// A way tells it that passes no call, and does not begin behind one; or it counts from rbp
    /// as it is, which the next function's prologue would have changed.
    is_certain: bool,
    /// Another way to a return, or to an instruction on the first one, tells another row.
    differ: bool,
    /// One takes the frame off that rbp pointed to all along: then rbp points to the function's
    /// frame record, which no caller's can be mistaken for.
    leaves_record: bool,
    /// The row if a jump to a place not known is a tail call.
    tail_call: Option<Box<Row>>,
}

/// Follows all ways; whether they end the thread.
fn follow_ways(pc: Avma, returned: bool, code: &dyn Code, found: &mut Found) -> bool {
    let sp = Place { on_rbp: false, offset: 0 };
    let start = State { sp, rbp: Rbp::Initial, loaded: [None; 16], called: returned };
    let function = function_around(if returned { Avma(pc.0.wrapping_sub(1)) } else { pc }, code);
    let is_outside = |at: Avma| function.as_ref().is_some_and(|function| !function.contains(&at));
    let mut branches = vec![(pc, start)];
    let mut visited: HashMap<u64, Place> = HashMap::new();
    let mut left = INSTRUCTIONS_MAX;
    // Only straight code is sure to end the thread: of others a way may come back.
    let mut is_straight = true;
    while let Some((mut at, mut state)) = branches.pop() {
        loop {
            // What is known of one instruction holds on every way to it.
            if let Some(sp) = visited.insert(at.0, state.sp) {
                found.differ |= sp != state.sp;
                break;
            }
            let Some(fewer) = left.checked_sub(1) else { return false };
            left = fewer;
            let Some(bytes) = code.code(at) else { break };
            // Behind its end is another function.
            if is_outside(at) {
                break;
            }
            if root::ends_thread(bytes) {
                if is_straight {
                    return true;
                }
                break;
            }
            let Some(instruction) = decode(bytes) else { break };
            let next = at + instruction.length as u64;
            let target = Avma(next.0.wrapping_add_signed(instruction.immediate));
            found.leaves_record |=
                matches!(state.rbp, Rbp::Initial) && takes_frame_off(&instruction, next, code);
            let effect = effect(&instruction, &mut state);
            is_straight &= matches!(effect, Effect::Plain | Effect::Jumps);
            match effect {
                Effect::Plain => at = next,
                Effect::JumpsAnywhere if binds(at, code) => {
                    // The dynamic linker takes off the two words of the procedure linkage table.
                    state.sp.offset = state.sp.offset.wrapping_add(16);
                    left = found.returns(&state, left);
                    break;
                }
                Effect::JumpsAnywhere => {
                    found.tail_call = found.tail_call.take().or_else(|| row(&state).map(Box::new));
                    break;
                }
                Effect::Returns => {
                    left = found.returns(&state, left);
                    break;
                }
                // A tail call: the other function returns in the place of this one.
                Effect::Jumps if is_outside(target) && is_entry(target, code) => {
                    left = found.returns(&state, left);
                    break;
                }
                Effect::Jumps => at = target,
                Effect::MayJump => {
                    if branches.len() < BRANCHES_MAX {
                        branches.push((target, state));
                    }
                    at = next;
                }
                Effect::Ends => break,
            }
        }
    }
    false
}

fn function_around(at: Avma, code: &dyn Code) -> Option<Range<Avma>> {
    code.function(at).filter(|function| function.contains(&at))
}

fn is_entry(at: Avma, code: &dyn Code) -> bool {
    code.function(at).is_some_and(|function| function.start == at)
}

impl Found {
    /// A way has come to a return; how many instructions may be followed on.
    fn returns(&mut self, state: &State, left: u32) -> u32 {
        let Some(found) = row(state) else { return left };
        let is_certain = !state.called || state.sp.on_rbp;
        match &self.row {
            Some(first) => {
                self.differ |= first.cfa != found.cfa || first.columns[RBP] != found.columns[RBP];
                self.is_certain |= is_certain;
            }
            None => (self.row, self.is_certain) = (Some(Box::new(found)), is_certain),
        }
        left.min(OTHERS_MAX)
    }
}

/// Whether the jump at `at` is that of the first entry of a procedure linkage table, to the
/// dynamic linker's resolver: behind `push GOT+8(%rip)` (System V AMD64 ABI, figure 5.2).
fn binds(at: Avma, code: &dyn Code) -> bool {
    let is_jump = |code: &[u8]| code.starts_with(&[0xff, 0x25]) || code.starts_with(&[0xf2, 0xff, 0x25]);
    code.code(at).is_some_and(is_jump)
        && at
            .0
            .checked_sub(6)
            .is_some_and(|push| code.code(Avma(push)).is_some_and(|code| code.starts_with(&[0xff, 0x35])))
}

/// Whether an address is in the code at an image's entry point up to the call of the first
/// function, which nothing called and which may do without unwind information.
///
/// Sources: glibc sysdeps/x86_64/dl-machine.h (`RTLD_START`, which goes on behind the call),
/// musl arch/x86_64/crt_arch.h.
pub(super) fn is_start(entry: Avma, address: CodeAddress, code: &dyn Code) -> bool {
    const MOV_RAX_R12: &[u8] = &[0x49, 0x89, 0xc4];
    let (CodeAddress::Pc(at) | CodeAddress::Return(at)) = address;
    let (mut here, mut goes_on) = (entry, false);
    for _ in 0..START_INSTRUCTIONS_MAX {
        if here >= at {
            return here == at;
        }
        let Some(instruction) = code.code(here).and_then(decode) else { return false };
        here = here + instruction.length as u64;
        let operation = instruction.operands().map_or(0, |(_, operation, _)| operation);
        match (instruction.map, instruction.opcode) {
            (0, 0xc2 | 0xc3 | 0xe9 | 0xeb | 0xf4) | (1, 0x0b) => return false,
            (0, 0xff) if operation == 4 => return false,
            (0, 0xe8 | 0xff) if !goes_on => {
                if address == CodeAddress::Return(here) {
                    return true;
                }
                goes_on = code.code(here).is_some_and(|next| next.starts_with(MOV_RAX_R12));
                if !goes_on {
                    return false;
                }
            }
            _ => {}
        }
    }
    false
}

enum Effect {
    Plain,
    Returns,
    /// Through memory or a register: a tail call, or through a table. What lies at the stack
    /// pointer then is checked like any return address.
    JumpsAnywhere,
    Jumps,
    MayJump,
    /// Nothing is known from here on.
    Ends,
}

fn effect(instruction: &Instruction, state: &mut State) -> Effect {
    let Instruction { rex, map, opcode, immediate, displacement, .. } = *instruction;
    let wide = rex & 8 != 0;
    let (mode, register, operand) = instruction.operands().unwrap_or((0, 0, 0));
    let register = register | (rex & 4) << 1;
    let operand = operand | (rex & 1) << 3;
    let direct = mode == 3;
    match (map, opcode) {
        (0, 0x50..=0x57 | 0x68 | 0x6a | 0x9c) => state.sp.offset -= 8,
        (0, 0x9d) => state.sp.offset += 8,
        (0, 0xe8) => state.called = true,
        (0, 0x58..=0x5f) => pop(state, (opcode & 7 | (rex & 1) << 3).into()),
        (0, 0x8f) => state.sp.offset += 8,
        (0, 0xc9) => {
            match state.rbp {
                Rbp::Initial => state.sp = Place { on_rbp: true, offset: 0 },
                Rbp::Is(place) => state.sp = place,
                _ => return Effect::Ends,
            }
            pop(state, 5);
        }
        (0, 0xc2 | 0xc3) => return Effect::Returns,
        (0, 0xcc | 0xf4) | (1, 0x0b) => return Effect::Ends,
        (0, 0xe9 | 0xeb) => return Effect::Jumps,
        (0, 0x70..=0x7f | 0xe0..=0xe3) | (1, 0x80..=0x8f) => return Effect::MayJump,
        (0, 0xff) => match instruction.operands().map_or(0, |(_, register, _)| register) {
            4 => return Effect::JumpsAnywhere,
            5 | 7 => return Effect::Ends,
            2 | 3 => state.called = true,
            6 => state.sp.offset -= 8,
            _ => {}
        },
        // add, sub, cmp of rsp and a number
        (0, 0x81 | 0x83) if direct && operand == 4 => match register & 7 {
            0 if wide => state.sp.offset = state.sp.offset.wrapping_add(immediate),
            5 if wide => state.sp.offset = state.sp.offset.wrapping_sub(immediate),
            7 => {}
            _ => return Effect::Ends,
        },
        (0, 0x81 | 0x83) if direct && operand == 5 && register & 7 != 7 => state.rbp = Rbp::Unknown,
        // lea N(%rsp),%rsp; lea N(%rbp),%rsp
        (0, 0x8d) if register == 4 => match (mode, operand, instruction.sib) {
            (1 | 2, 4, 0x24) => state.sp.offset += i64::from(displacement),
            (1 | 2, 5, _) => {
                let Some(sp) = rbp_plus(state, displacement) else { return Effect::Ends };
                state.sp = sp;
            }
            _ => return Effect::Ends,
        },
        // mov %rbp,%rsp; mov %rsp,%rbp
        (0, 0x89) if direct && wide && (register, operand) == (5, 4) => {
            let Some(sp) = rbp_plus(state, 0) else { return Effect::Ends };
            state.sp = sp;
        }
        (0, 0x8b) if direct && wide && (register, operand) == (4, 5) => {
            let Some(sp) = rbp_plus(state, 0) else { return Effect::Ends };
            state.sp = sp;
        }
        (0, 0x89) if direct && wide && (register, operand) == (4, 5) => state.rbp = Rbp::Is(state.sp),
        (0, 0x8b) if direct && wide && (register, operand) == (5, 4) => state.rbp = Rbp::Is(state.sp),
        // Any other change of the two.
        (0, 0x01 | 0x09 | 0x21 | 0x29 | 0x31 | 0x89 | 0x87) if direct && operand == 4 => return Effect::Ends,
        (0, 0x03 | 0x0b | 0x23 | 0x2b | 0x33 | 0x8b | 0x87) if register == 4 => return Effect::Ends,
        (0, 0x01 | 0x09 | 0x21 | 0x29 | 0x31 | 0x89 | 0x87) if direct && operand == 5 => {
            state.rbp = Rbp::Unknown;
        }
        (0, 0x03 | 0x0b | 0x23 | 0x2b | 0x33 | 0x8b | 0x8d | 0x87) if register == 5 => {
            state.rbp = Rbp::Unknown;
        }
        (0, 0xb8..=0xbf) if opcode & 7 == 5 && rex & 1 == 0 => state.rbp = Rbp::Unknown,
        (0, 0xc8 | 0x94) => return Effect::Ends,
        _ => {}
    }
    Effect::Plain
}

fn rbp_plus(state: &State, displacement: i32) -> Option<Place> {
    let base = match state.rbp {
        Rbp::Initial => Place { on_rbp: true, offset: 0 },
        Rbp::Is(place) => place,
        _ => return None,
    };
    Some(Place { offset: base.offset.wrapping_add(displacement.into()), ..base })
}

/// `pop` of a register by its number in instructions.
fn pop(state: &mut State, register: usize) {
    // What was pushed on the way, below the stack pointer of the start, is the register
    // itself: pushes and pops of one function are of the same registers.
    let pushed_on_the_way = !state.sp.on_rbp && state.sp.offset < 0;
    let column = DWARF[register];
    if column == RBP {
        state.rbp = if pushed_on_the_way { Rbp::Initial } else { Rbp::From(state.sp) };
    } else {
        state.loaded[column] = (!pushed_on_the_way).then_some(state.sp);
    }
    state.sp.offset = state.sp.offset.wrapping_add(8);
}

/// `leave`, or `mov %rbp,%rsp; pop %rbp`.
fn takes_frame_off(instruction: &Instruction, next: Avma, code: &dyn Code) -> bool {
    const POP_RBP: u8 = 0x5d;
    let pops = || code.code(next).is_some_and(|next| next.first() == Some(&POP_RBP));
    let (mode, register, operand) = instruction.operands().unwrap_or((0, 0, 0));
    let registers = (mode, register | (instruction.rex & 4) << 1, operand | (instruction.rex & 1) << 3);
    match (instruction.map, instruction.opcode) {
        (0, 0xc9) => true,
        (0, 0x89) => registers == (3, 5, 4) && pops(),
        (0, 0x8b) => registers == (3, 4, 5) && pops(),
        _ => false,
    }
}

/// The row where HotSpot's interpreter goes on after a call: first it takes the stack pointer from
/// its frame, two words below rbp, and clears that word (templateInterpreterGenerator_x86.cpp,
/// `generate_return_entry_for`). The caller's stack pointer is in the word between that and the
/// frame record (frame_x86.hpp, `interpreter_frame_sender_sp_offset`).
fn interpreter_of_hotspot(code: &[u8]) -> Option<Row> {
    // mov -16(%rbp),%rsp; movq $0,-16(%rbp)
    const GOES_ON: &[u8] = &[0x48, 0x8b, 0x65, 0xf0, 0x48, 0xc7, 0x45, 0xf0, 0, 0, 0, 0];
    // DWARF: breg6 -8, deref; breg6 8; breg6 0
    const SENDER_SP: [u8; 3] = [0x76, 0x78, 0x06];
    code.starts_with(GOES_ON).then(|| {
        let mut row = Row::new(Cfa::Expression(SENDER_SP.into()));
        row.columns[RETURN_ADDRESS] = Column::AtExpression([0x76, 8].into());
        row.columns[RBP] = Column::AtExpression([0x76, 0].into());
        row
    })
}

/// The row of a function whose frame record rbp points to.
fn record() -> Row {
    let mut row = Row::new(Cfa::Register(RBP as u8, 16));
    row.columns[RETURN_ADDRESS] = Column::At(-8);
    row.columns[RBP] = Column::At(-16);
    row
}

/// The row at the start, when the stack pointer has reached the return address.
fn row(state: &State) -> Option<Row> {
    let cfa = Place { offset: state.sp.offset.checked_add(8)?, ..state.sp };
    let mut row = Row {
        cfa: Cfa::Register(if cfa.on_rbp { RBP as u8 } else { RSP }, cfa.offset),
        columns: Default::default(),
        signal: false,
    };
    let at =
        |place: Place| (place.on_rbp == cfa.on_rbp).then(|| place.offset.checked_sub(cfa.offset)).flatten();
    row.columns[RETURN_ADDRESS] = Column::At(-8);
    row.columns[RBP] = match state.rbp {
        Rbp::Initial => Column::Same,
        Rbp::From(place) => Column::At(at(place)?),
        Rbp::Is(_) | Rbp::Unknown => return None,
    };
    for column in [3, 12, 13, 14, 15] {
        if let Some(offset) = state.loaded[column].and_then(at) {
            row.columns[column] = Column::At(offset);
        }
    }
    Some(row)
}

#[cfg(test)]
mod tests;
