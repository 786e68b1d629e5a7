//! Programs for the kernel that say yes to the samples of some processes: the samples of others
//! then cost them nothing but the look of a timer that ticks anyway.
//!
//! One says yes to one process; the other one no to those of a set, so that a process that nobody
//! has heard of yet is sampled.
//!
//! Input: processes as they are numbered in our PID namespace; output: eBPF instructions
//! (Documentation/bpf/standardization/instruction-set.rst). In the first namespace the running
//! thread has a number whatever namespace it is in itself (helper 14,
//! `bpf_get_current_pid_tgid`); in others, those of containers, only the threads of the very same
//! one are told (helper 120, `bpf_get_ns_current_pid_tgid`).

/// An instruction: operation, destination and source register, offset, value.
const fn op(code: u8, dst: u8, src: u8, offset: i16, value: i32) -> u64 {
    code as u64
        | (dst as u64) << 8
        | (src as u64) << 12
        | ((offset as u16) as u64) << 16
        | ((value as u32) as u64) << 32
}

/// Inode of the first PID namespace (`PROC_PID_INIT_INO` in include/linux/proc_ns.h).
const FIRST_NAMESPACE: u64 = 0xefff_fffc;

const LOAD_64: u8 = 0x18;
const MOVE: u8 = 0xb7;
const MOVE_REGISTER: u8 = 0xbf;
const ADD: u8 = 0x07;
const SHIFT_RIGHT: u8 = 0x77;
const STORE_WORD: u8 = 0x63;
const CALL: u8 = 0x85;
const JUMP_IF_EQUAL: u8 = 0x15;
const JUMP_UNLESS_EQUAL: u8 = 0x55;
const MAP_LOOKUP: i32 = 1;
/// As the source register of [`LOAD_64`]: the value is the descriptor of a map.
const IS_MAP: u8 = 1;
const LOAD_WORD: u8 = 0x61;
const EXIT: u8 = 0x95;
const GET_CURRENT_PID_TGID: i32 = 14;
const GET_NS_CURRENT_PID_TGID: i32 = 120;

/// `r = value`, which takes two instructions.
const fn load(register: u8, value: u64) -> [u64; 2] {
    [op(LOAD_64, register, 0, 0, value as i32), op(0, 0, 0, 0, (value >> 32) as i32)]
}

/// Whether threads of all namespaces have a number in this one.
pub(super) fn numbers_all(namespace: (u64, u64)) -> bool {
    namespace.1 == FIRST_NAMESPACE
}

/// Puts the process of the running thread into r6 and at r10 - 4, or says no to one that is not of
/// our namespace (device and inode of `/proc/self/ns/pid`).
fn process(namespace: (u64, u64)) -> Vec<u64> {
    if numbers_all(namespace) {
        return vec![
            op(CALL, 0, 0, 0, GET_CURRENT_PID_TGID),
            op(MOVE_REGISTER, 6, 0, 0, 0),
            op(SHIFT_RIGHT, 6, 0, 0, 32),
            op(STORE_WORD, 10, 6, -4, 0),
        ];
    }
    let (device, inode) = (load(1, namespace.0), load(2, namespace.1));
    vec![
        device[0],
        device[1],
        inode[0],
        inode[1],
        // r3 = &info, 8 bytes at r10 - 8: pid, then tgid.
        op(MOVE_REGISTER, 3, 10, 0, 0),
        op(ADD, 3, 0, 0, -8),
        op(MOVE, 4, 0, 0, 8),
        op(CALL, 0, 0, 0, GET_NS_CURRENT_PID_TGID),
        op(MOVE_REGISTER, 6, 0, 0, 0),
        op(MOVE, 0, 0, 0, 0),
        op(JUMP_IF_EQUAL, 6, 0, 1, 0),
        op(EXIT, 0, 0, 0, 0),
        op(LOAD_WORD, 6, 10, -4, 0),
    ]
}

/// Says no when the jump before it skips two instructions, else yes.
const VERDICT: [u64; 4] =
    [op(MOVE, 0, 0, 0, 1), op(EXIT, 0, 0, 0, 0), op(MOVE, 0, 0, 0, 0), op(EXIT, 0, 0, 0, 0)];

/// Says yes when the running thread is of process `tgid`, as numbered in this namespace.
pub(super) fn of_process(tgid: i32, namespace: (u64, u64)) -> Vec<u64> {
    let mut program = process(namespace);
    program.push(op(JUMP_UNLESS_EQUAL, 6, 0, 2, tgid));
    program.extend(VERDICT);
    program
}

/// Says yes when the running thread is of a process of this namespace that is not in the set (the
/// descriptor of a map whose keys are numbers of processes).
pub(super) fn unless_in(set: i32, namespace: (u64, u64)) -> Vec<u64> {
    let mut program = process(namespace);
    program.extend([
        op(LOAD_64, 1, IS_MAP, 0, set),
        0,
        op(MOVE_REGISTER, 2, 10, 0, 0),
        op(ADD, 2, 0, 0, -4),
        op(CALL, 0, 0, 0, MAP_LOOKUP),
        op(JUMP_UNLESS_EQUAL, 0, 0, 2, 0),
    ]);
    program.extend(VERDICT);
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of the only map.
    const SET: i32 = 33;
    const CONTAINER: (u64, u64) = (4, 0xf000_0000_1234_5678);
    const FIRST: (u64, u64) = (4, FIRST_NAMESPACE);

    /// What the program answers for a thread of process `tgid`, run as the kernel would: only
    /// the instructions that it uses. The map has the numbers of `set`.
    fn run(program: &[u64], tgid: u32, namespace: (u64, u64), set: &[u32]) -> u64 {
        const STACK: u64 = 0x1000;
        let mut registers = [0u64; 11];
        registers[10] = STACK;
        let mut info = [0u32; 2];
        let mut at = 0;
        for _ in 0..100 {
            let word = program[at];
            let (code, dst, src) = (word as u8, (word >> 8 & 15) as usize, (word >> 12 & 15) as usize);
            let (offset, value) = ((word >> 16) as u16 as i16, (word >> 32) as u32 as i32);
            at += 1;
            let jumps = match code {
                JUMP_UNLESS_EQUAL => registers[dst] != value as i64 as u64,
                JUMP_IF_EQUAL => registers[dst] == value as i64 as u64,
                _ => false,
            };
            match code {
                LOAD_64 if src == usize::from(IS_MAP) => {
                    assert_eq!(value, SET);
                    registers[dst] = u64::MAX;
                    at += 1;
                }
                LOAD_64 => {
                    registers[dst] = u64::from(value as u32) | program[at] & 0xffff_ffff_0000_0000;
                    at += 1;
                }
                MOVE => registers[dst] = value as i64 as u64,
                MOVE_REGISTER => registers[dst] = registers[src],
                ADD => registers[dst] = registers[dst].wrapping_add(value as i64 as u64),
                SHIFT_RIGHT => registers[dst] >>= value,
                STORE_WORD => info[((offset + 8) / 4) as usize] = registers[src] as u32,
                CALL if value == MAP_LOOKUP => {
                    // The key is the tgid on the stack.
                    assert_eq!((registers[1], registers[2]), (u64::MAX, STACK - 4));
                    registers[0] = u64::from(set.contains(&info[1]));
                }
                CALL if value == GET_CURRENT_PID_TGID => registers[0] = u64::from(tgid) << 32 | 77,
                CALL => {
                    assert_eq!((value, registers[3], registers[4]), (GET_NS_CURRENT_PID_TGID, STACK - 8, 8));
                    let known = (registers[1], registers[2]) == namespace;
                    info = if known { [77, tgid] } else { [0; 2] };
                    registers[0] = if known { 0 } else { (-22i64) as u64 };
                }
                LOAD_WORD => registers[dst] = info[((offset + 8) / 4) as usize].into(),
                JUMP_UNLESS_EQUAL | JUMP_IF_EQUAL if jumps => at = at.wrapping_add_signed(offset.into()),
                JUMP_UNLESS_EQUAL | JUMP_IF_EQUAL => {}
                EXIT => return registers[0],
                _ => panic!("{code:#x}"),
            }
        }
        panic!("no end");
    }

    #[test]
    fn only_threads_of_the_process_are_sampled() {
        for namespace in [CONTAINER, FIRST] {
            let program = of_process(4242, namespace);
            assert_eq!(run(&program, 4242, namespace, &[]), 1);
            assert_eq!(run(&program, 4243, namespace, &[]), 0);
        }
        assert_eq!(run(&of_process(4242, CONTAINER), 4242, (4, 5), &[]), 0, "of another namespace");
        assert_eq!(run(&of_process(4242, FIRST), 4242, (4, 5), &[]), 1, "it has a number here");
    }

    #[test]
    fn all_are_sampled_but_those_of_the_set() {
        for namespace in [CONTAINER, FIRST] {
            let program = unless_in(SET, namespace);
            assert_eq!(run(&program, 4242, namespace, &[1, 2]), 1);
            assert_eq!(run(&program, 2, namespace, &[1, 2]), 0);
        }
        assert_eq!(run(&unless_in(SET, CONTAINER), 4242, (4, 5), &[]), 0, "of another namespace");
    }
}
