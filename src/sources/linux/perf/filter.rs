//! A program for the kernel that says yes to the samples of one process: the samples of others
//! then cost them nothing but the look of a timer that ticks anyway.
//!
//! Input: the process as it is numbered in our PID namespace; output: eBPF instructions
//! (Documentation/bpf/standardization/instruction-set.rst). Helper 120,
//! `bpf_get_ns_current_pid_tgid`, tells the number of the running thread and its process in a
//! namespace, so that it is right in containers, too.

/// An instruction: operation, destination and source register, offset, value.
const fn op(code: u8, dst: u8, src: u8, offset: i16, value: i32) -> u64 {
    code as u64
        | (dst as u64) << 8
        | (src as u64) << 12
        | ((offset as u16) as u64) << 16
        | ((value as u32) as u64) << 32
}

const LOAD_64: u8 = 0x18;
const MOVE: u8 = 0xb7;
const MOVE_REGISTER: u8 = 0xbf;
const ADD: u8 = 0x07;
const CALL: u8 = 0x85;
const JUMP_UNLESS_EQUAL: u8 = 0x55;
const LOAD_WORD: u8 = 0x61;
const EXIT: u8 = 0x95;
const GET_NS_CURRENT_PID_TGID: i32 = 120;

/// `r = value`, which takes two instructions.
const fn load(register: u8, value: u64) -> [u64; 2] {
    [op(LOAD_64, register, 0, 0, value as i32), op(0, 0, 0, 0, (value >> 32) as i32)]
}

/// Says yes when the running thread is of process `tgid`, as numbered in the PID namespace whose
/// file (`/proc/self/ns/pid`) has this device and inode.
pub(super) fn of_process(tgid: i32, namespace: (u64, u64)) -> [u64; 15] {
    let (device, inode) = (load(1, namespace.0), load(2, namespace.1));
    [
        device[0],
        device[1],
        inode[0],
        inode[1],
        // r3 = &info, 8 bytes at r10 - 8: pid, then tgid.
        op(MOVE_REGISTER, 3, 10, 0, 0),
        op(ADD, 3, 0, 0, -8),
        op(MOVE, 4, 0, 0, 8),
        op(CALL, 0, 0, 0, GET_NS_CURRENT_PID_TGID),
        op(JUMP_UNLESS_EQUAL, 0, 0, 4, 0),
        op(LOAD_WORD, 1, 10, -4, 0),
        op(JUMP_UNLESS_EQUAL, 1, 0, 2, tgid),
        op(MOVE, 0, 0, 0, 1),
        op(EXIT, 0, 0, 0, 0),
        op(MOVE, 0, 0, 0, 0),
        op(EXIT, 0, 0, 0, 0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the program answers for a thread of process `tgid`, run as the kernel would: only
    /// the instructions that it uses.
    fn run(program: &[u64], tgid: u32, namespace: (u64, u64)) -> u64 {
        let mut registers = [0u64; 11];
        let mut info = [0u32; 2];
        let mut at = 0;
        for _ in 0..100 {
            let word = program[at];
            let (code, dst, src) = (word as u8, (word >> 8 & 15) as usize, (word >> 12 & 15) as usize);
            let (offset, value) = ((word >> 16) as u16 as i16, (word >> 32) as u32 as i32);
            at += 1;
            match code {
                LOAD_64 => {
                    registers[dst] = u64::from(value as u32) | program[at] & 0xffff_ffff_0000_0000;
                    at += 1;
                }
                MOVE => registers[dst] = value as i64 as u64,
                MOVE_REGISTER => registers[dst] = registers[src],
                ADD => registers[dst] = registers[dst].wrapping_add(value as i64 as u64),
                CALL => {
                    assert_eq!((value, registers[4]), (GET_NS_CURRENT_PID_TGID, 8));
                    let known = (registers[1], registers[2]) == namespace;
                    info = if known { [77, tgid] } else { [0; 2] };
                    registers[0] = if known { 0 } else { (-22i64) as u64 };
                }
                LOAD_WORD => registers[dst] = info[((offset + 8) / 4) as usize].into(),
                JUMP_UNLESS_EQUAL if registers[dst] != value as i64 as u64 => {
                    at = at.wrapping_add_signed(offset.into());
                }
                JUMP_UNLESS_EQUAL => {}
                EXIT => return registers[0],
                _ => panic!("{code:#x}"),
            }
        }
        panic!("no end");
    }

    #[test]
    fn only_threads_of_the_process_are_sampled() {
        let namespace = (4, 0xf000_0000_1234_5678);
        let program = of_process(4242, namespace);
        assert_eq!(run(&program, 4242, namespace), 1);
        assert_eq!(run(&program, 4243, namespace), 0);
        assert_eq!(run(&program, 4242, (4, 5)), 0, "of another namespace");
    }
}
