//! The caller of a function without unwind information, by its instructions: they are
//! followed from the program counter to the return, and what they do to the stack pointer
//! tells where the return address is. Input: code; output: a [`Row`], or that the code
//! ends its thread. Not for: anything that executes, or reads the stack.
//!
//! Such functions are `_init`, `_fini` and `__do_global_dtors_aux` of every program, the
//! child's side of `clone`, all of musl, and hand-written code.

use hashbrown::HashMap;

use super::instructions::{self, RBP, RSP};
use super::length::{Instruction, decode};
use crate::addr::{Avma, CodeAddress};
use crate::arch::X86_64;
use crate::binary::frame_rule::{COLUMNS, Cfa, Column, RETURN_ADDRESS, Row};
use crate::walk::Code;
use crate::walk::flow::{self, Effect, Place, State, Value};
use crate::walk::processor::Processor;

/// Column of rbp.
const FRAME_POINTER: usize = RBP as usize;
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

/// A way that is still to be followed.
struct Way {
    at: Avma,
    state: State,
    /// A call was passed, or one has come back to where it began.
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
    let function = flow::function_around(if returned { Avma(pc.0.wrapping_sub(1)) } else { pc }, code);
    let is_outside = |at: Avma| function.as_ref().is_some_and(|function| !function.contains(&at));
    let mut branches = vec![Way { at: pc, state: State::new(), called: returned }];
    let mut visited: HashMap<u64, Option<Place>> = HashMap::new();
    let mut left = INSTRUCTIONS_MAX;
    // Only straight code is sure to end the thread: of others a way may come back.
    let mut is_straight = true;
    while let Some(Way { mut at, mut state, mut called }) = branches.pop() {
        loop {
            // What is known of one instruction holds on every way to it.
            let sp = stack_pointer(&state);
            if let Some(before) = visited.insert(at.0, sp) {
                found.differ |= before != sp;
                break;
            }
            let Some(fewer) = left.checked_sub(1) else { return false };
            left = fewer;
            let Some(bytes) = code.code(at) else { break };
            // Behind its end is another function.
            if is_outside(at) {
                break;
            }
            if X86_64::ends_thread(bytes) {
                if is_straight {
                    return true;
                }
                break;
            }
            let Some(instruction) = decode(bytes) else { break };
            let next = at + instruction.length as u64;
            found.leaves_record |=
                state.get(RBP) == Value::First(RBP) && takes_frame_off(&instruction, next, code);
            let mut effect = instructions::execute(&instruction, at, &mut state);
            // A stack pointer that is computed, or loaded: nothing is known from here on.
            if stack_pointer(&state).is_none() {
                effect = Effect::Ends;
            }
            is_straight &= matches!(effect, Effect::Plain | Effect::Calls(_) | Effect::Jumps(_));
            match effect {
                Effect::Plain => at = next,
                Effect::Calls(_) => {
                    called = true;
                    state = flow::after_call::<X86_64, COLUMNS>(state);
                    at = next;
                }
                // What lies at the stack pointer then is checked like any return address.
                Effect::JumpsAnywhere if binds(at, code) => {
                    // The dynamic linker takes off the two words of the procedure linkage table.
                    state.set(RSP, state.sum(RSP, 16));
                    left = found.returns(&state, called, left);
                    break;
                }
                Effect::JumpsAnywhere => {
                    found.tail_call = found.tail_call.take().or_else(|| row(&state).map(Box::new));
                    break;
                }
                Effect::Returns => {
                    left = found.returns(&state, called, left);
                    break;
                }
                // A tail call: the other function returns in the place of this one.
                Effect::Jumps(target) if is_outside(target) && is_entry(target, code) => {
                    left = found.returns(&state, called, left);
                    break;
                }
                Effect::Jumps(target) => at = target,
                Effect::MayJump(target) => {
                    if branches.len() < BRANCHES_MAX {
                        branches.push(Way { at: target, state, called });
                    }
                    at = next;
                }
                Effect::Ends | Effect::MayReturn => break,
            }
        }
    }
    false
}

/// Where the stack pointer is, counted from what it or rbp was at the start.
fn stack_pointer(state: &State) -> Option<Place> {
    state.place(RSP).filter(|place| matches!(place.register, RSP | RBP))
}

fn is_entry(at: Avma, code: &dyn Code) -> bool {
    code.function(at).is_some_and(|function| function.start == at)
}

impl Found {
    /// A way has come to a return; how many instructions may be followed on.
    fn returns(&mut self, state: &State, called: bool, left: u32) -> u32 {
        // Parts of hand-written functions, which call nothing, use rbp as any register and do not give
        // it back: who calls them has saved it, and its own row does not count from it.
        let mut state = *state;
        if !called && state.get(RBP) == Value::Unknown {
            state.set(RBP, Value::First(RBP));
        }
        let Some(found) = row(&state) else { return left };
        let is_certain = !called || stack_pointer(&state).is_some_and(|sp| sp.register == RBP);
        match &self.row {
            Some(first) => {
                self.differ |=
                    first.cfa != found.cfa || first.columns[FRAME_POINTER] != found.columns[FRAME_POINTER];
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
    let at = address.at();
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
        row.columns[FRAME_POINTER] = Column::AtExpression([0x76, 0].into());
        row
    })
}

/// The row of a function whose frame record rbp points to.
fn record() -> Row {
    let mut row = Row::new(Cfa::Register(RBP, 16));
    row.columns[RETURN_ADDRESS] = Column::At(-8);
    row.columns[FRAME_POINTER] = Column::At(-16);
    row
}

/// The row at the start, when the stack pointer has reached the return address. Of other registers
/// than rbp it says only where they were saved. None where that is below the stack pointer of the
/// start: such a way came into other code, behind a call that does not return.
fn row(state: &State) -> Option<Row> {
    if stack_pointer(state).is_none_or(|sp| sp.register == RSP && sp.offset < 0) {
        return None;
    }
    let mut row = flow::row_at_return::<X86_64, COLUMNS>(state)?;
    let is_given_back = |column: &Column| matches!(column, Column::Same | Column::At(_));
    if !is_given_back(&row.columns[FRAME_POINTER]) {
        return None;
    }
    for column in row.columns[..RETURN_ADDRESS].iter_mut().filter(|column| !is_given_back(column)) {
        *column = Column::Same;
    }
    Some(row)
}

#[cfg(test)]
mod tests;
