//! The caller of a function without unwind information, by its instructions: they are
//! followed from the program counter to the return, and what they do to the stack pointer
//! tells where the return address is. Input: code; output: a [`Row`], or that the code
//! ends its thread. Not for: anything that executes, or reads the stack.
//!
//! Such functions are `_init`, `_fini` and `__do_global_dtors_aux` of every program, the
//! child's side of `clone`, all of musl, and hand-written code.

use super::length::{Instruction, decode};
use crate::addr::{Avma, CodeAddress};
use crate::frame_rule::{Cfa, Column, RETURN_ADDRESS, Row};
use crate::walk::{Code, root};

const RBP: usize = 6;
const RSP: u8 = 7;
/// Registers by their number in instructions → by DWARF number.
const DWARF: [usize; 16] = [0, 2, 1, 3, 7, 6, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15];

/// Most instructions that are followed, over all branches.
const INSTRUCTIONS_MAX: u32 = 512;
/// Most branches that are remembered to be followed later.
const BRANCHES_MAX: usize = 16;

/// Most instructions of start code.
const START_INSTRUCTIONS_MAX: u32 = 48;

/// What the code from an address on leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Leads {
    /// To a return: the row at that address.
    Back(Box<Row>),
    /// To the end of the thread: nothing called this function.
    ToExit,
}

/// An address as a register at the start plus bytes.
#[derive(Clone, Copy, Debug)]
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
}

/// Follows the code from `pc` on.
pub(super) fn follow(pc: Avma, code: &dyn Code) -> Option<Leads> {
    let start = State { sp: Place { on_rbp: false, offset: 0 }, rbp: Rbp::Initial, loaded: [None; 16] };
    let mut branches = vec![(pc, start)];
    let mut seen = vec![pc];
    let mut left = INSTRUCTIONS_MAX;
    while let Some((mut at, mut state)) = branches.pop() {
        loop {
            left = left.checked_sub(1)?;
            let Some(bytes) = code.code(at) else { break };
            if root::ends_thread(bytes) {
                return Some(Leads::ToExit);
            }
            let Some(instruction) = decode(bytes) else { break };
            let next = at + instruction.length as u64;
            let target = Avma(next.0.wrapping_add_signed(instruction.immediate));
            match effect(&instruction, &mut state) {
                Effect::Plain => at = next,
                Effect::Returns if binds(at, code) => {
                    // The dynamic linker takes off the two words of the procedure linkage table.
                    state.sp.offset = state.sp.offset.wrapping_add(16);
                    return row(&state).map(|row| Leads::Back(Box::new(row)));
                }
                Effect::Returns => return row(&state).map(|row| Leads::Back(Box::new(row))),
                Effect::Jumps if seen.contains(&target) || seen.len() > BRANCHES_MAX => break,
                Effect::Jumps => {
                    seen.push(target);
                    at = target;
                }
                Effect::MayJump => {
                    if seen.len() <= BRANCHES_MAX && !seen.contains(&target) {
                        seen.push(target);
                        branches.push((target, state));
                    }
                    at = next;
                }
                Effect::Ends => break,
            }
        }
    }
    None
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
        (0, 0x50..=0x57 | 0x68 | 0x6a) => state.sp.offset -= 8,
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
            // A jump through memory or a register that is no table: a tail call. What lies
            // at the stack pointer then is checked like any return address.
            4 => return Effect::Returns,
            5 | 7 => return Effect::Ends,
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
mod tests {
    use super::*;
    use crate::frame_rule::{CfaBase, FrameRule};

    struct Text(&'static [u8]);
    impl Code for Text {
        fn is_code(&self, at: Avma) -> bool {
            self.code(at).is_some()
        }
        fn code(&self, at: Avma) -> Option<&[u8]> {
            self.0.get(usize::try_from(at.0.checked_sub(0x1000)?).ok()?..).filter(|code| !code.is_empty())
        }
    }

    #[track_caller]
    fn check(code: &'static [u8], expected: &[(u64, CfaBase, i64, Option<i64>)]) {
        for &(at, base, cfa_offset, frame_pointer_at) in expected {
            let Some(Leads::Back(row)) = follow(Avma(0x1000 + at), &Text(code)) else { panic!("+{at:#x}") };
            let rule = FrameRule { base, cfa_offset, frame_pointer_at, return_at: Some(-8) };
            assert_eq!(row.ordinary(), Some(rule), "at +{at:#x}");
        }
    }

    use CfaBase::{FramePointer, StackPointer};

    #[test]
    fn init_of_every_program() {
        const INIT: &[u8] = &[
            0x48, 0x83, 0xec, 0x08, //                   +00 sub $8,%rsp
            0x48, 0x8b, 0x05, 0xc5, 0x2f, 0x00, 0x00, // +04 mov __gmon_start__(%rip),%rax
            0x48, 0x85, 0xc0, //                         +0b test %rax,%rax
            0x74, 0x02, //                               +0e je +12
            0xff, 0xd0, //                               +10 call *%rax
            0x48, 0x83, 0xc4, 0x08, //                   +12 add $8,%rsp
            0xc3, //                                     +16 ret
        ];
        check(INIT, &[(0, StackPointer, 8, None), (0x16, StackPointer, 8, None)]);
        for at in [4, 0xb, 0xe, 0x10, 0x12] {
            check(INIT, &[(at, StackPointer, 16, None)]);
        }
    }

    #[test]
    fn do_global_dtors_aux_of_every_program() {
        const DTORS: &[u8] = &[
            0x80, 0x3d, 0x29, 0x2f, 0, 0, 0, //    +00 cmpb $0,completed(%rip)
            0x75, 0x13, //                         +07 jne +1c
            0x55, //                               +09 push %rbp
            0x48, 0x89, 0xe5, //                   +0a mov %rsp,%rbp
            0xe8, 0x74, 0xff, 0xff, 0xff, //       +0d call deregister_tm_clones
            0xc6, 0x05, 0x10, 0x2f, 0, 0, 1,    //    +12 movb $1,completed(%rip)
            0x5d, //                               +19 pop %rbp
            0xc3, //                               +1a ret
            0x90, //                               +1b nop
            0xc3, //                               +1c ret
        ];
        for at in [0, 7, 9, 0x1a, 0x1b, 0x1c] {
            check(DTORS, &[(at, StackPointer, 8, None)]);
        }
        for at in [0xa, 0xd, 0x12, 0x19] {
            check(DTORS, &[(at, StackPointer, 16, Some(-16))]);
        }
    }

    #[test]
    fn a_frame_of_unknown_size_ends_by_its_frame_pointer() {
        const LEAVES: &[u8] = &[
            0x48, 0x29, 0xc4, //       +0 sub %rax,%rsp (alloca)
            0xe8, 0, 0, 0, 0, //       +3 call
            0x48, 0x8d, 0x65, 0xf8, // +8 lea -8(%rbp),%rsp
            0x5b, //                   +c pop %rbx
            0xc9, //                   +d leave
            0xc3, //                   +e ret
        ];
        check(LEAVES, &[(3, FramePointer, 16, Some(-16)), (0xd, FramePointer, 16, Some(-16))]);
    }

    #[test]
    fn the_childs_side_of_clone_is_the_end_of_the_stack() {
        const CLONE: &[u8] = &[
            0x31, 0xed, //             xor %ebp,%ebp
            0x58, 0x5f, //             pop %rax; pop %rdi
            0xff, 0xd0, //             call *%rax
            0x48, 0x89, 0xc7, 0xb8, 0x3c, 0, 0, 0, 0x0f, 0x05, // exit(rax)
        ];
        for at in [0, 2, 3, 4, 6] {
            assert_eq!(follow(Avma(0x1000 + at), &Text(CLONE)), Some(Leads::ToExit));
        }
    }

    #[test]
    fn start_code_ends_where_another_function_may_begin() {
        const LINKER: &[u8] = &[
            0x48, 0x89, 0xe7, //    +00 mov %rsp,%rdi
            0xe8, 0xf8, 0x0b, 0, 0, // +03 call _dl_start
            0x49, 0x89, 0xc4, //    +08 mov %rax,%r12
            0xe8, 0xf8, 0x0b, 0, 0, // +0b call _dl_init
            0x4c, 0x89, 0xec, //    +10 mov %r13,%rsp
            0x41, 0xff, 0xe4, //    +13 jmp *%r12
            0x53, //                +16 the next function
        ];
        const PROGRAM: &[u8] = &[
            0x31, 0xed, //                   +00 xor %ebp,%ebp
            0xff, 0x15, 0x74, 0x2f, 0, 0,    // +02 call *__libc_start_main
            0xf4, //                         +08 hlt
            0x48, 0x8d, 0x3d, 0, 0, 0, 0, // +09 deregister_tm_clones: lea
            0xc3,
        ];
        let is_start = |code: &'static [u8], address: fn(Avma) -> CodeAddress, at: u64| {
            is_start(Avma(0x1000), address(Avma(0x1000 + at)), &Text(code))
        };
        for at in [0, 3, 8, 0xb, 0x10, 0x13] {
            assert!(is_start(LINKER, CodeAddress::Pc, at), "{at:#x}");
        }
        assert!(is_start(LINKER, CodeAddress::Return, 8) && is_start(LINKER, CodeAddress::Return, 0x10));
        assert!(!is_start(LINKER, CodeAddress::Pc, 0x16) && !is_start(LINKER, CodeAddress::Pc, 1));
        assert!(is_start(PROGRAM, CodeAddress::Pc, 2) && is_start(PROGRAM, CodeAddress::Return, 8));
        assert!(!is_start(PROGRAM, CodeAddress::Pc, 9) && !is_start(PROGRAM, CodeAddress::Pc, 0x10));
    }

    #[test]
    fn the_words_of_a_procedure_linkage_table_are_not_the_return_address() {
        const PLT: &[u8] = &[
            0xff, 0x35, 2, 0x2f, 0, 0, // +00 push GOT+8(%rip)
            0xff, 0x25, 4, 0x2f, 0, 0, // +06 jmp *GOT+16(%rip)
            0x0f, 0x1f, 0x40, 0, // +0c nop
            0xff, 0x25, 2, 0x2f, 0, 0, // +10 jmp *GOT+24(%rip)
            0x68, 0, 0, 0, 0, // +16 push $0
            0xe9, 0xe0, 0xff, 0xff, 0xff, // +1b jmp +00
        ];
        let rows = [(0x10, 8), (0x16, 8), (0x1b, 16), (0, 16), (6, 24)];
        check(PLT, &rows.map(|(at, cfa)| (at, StackPointer, cfa, None)));
    }

    #[test]
    fn what_is_not_understood_has_no_row() {
        for code in [
            &[0x48, 0x83, 0xe4, 0xf0, 0xc3][..], // and $-16,%rsp; ret
            &[0x48, 0x8b, 0x67, 0x30, 0xc3],     // mov 0x30(%rdi),%rsp; ret
            &[0xeb, 0xfe],                       // a loop
            &[0xf4],
            &[0x0f],
            &[0x90, 0x90],
        ] {
            let code: &'static [u8] = code;
            assert_eq!(follow(Avma(0x1000), &Text(code)), None, "{code:x?}");
        }
    }
}
