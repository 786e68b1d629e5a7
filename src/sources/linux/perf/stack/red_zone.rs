//! The red zone: an event copies a stack from the stack pointer up. Leaf functions of x86_64 may keep words in the
//! 128 bytes below (System V ABI for x86_64, 3.2.2), and unwind rows of some locate the caller's stack pointer
//! there (OpenSSL's SHA-512 by AVX). A BPF program copies these bytes in the same interrupt, into its own ring.
//!
//! The program sees the registers of the interrupted code, so only samples in user mode have a red zone: rows need
//! nothing below the stack pointer of a thread in a system call.
//!
//! Input: samples. Output: these samples with the bytes below their stack pointer.

use std::io;

use super::super::bpf::bpf_sys::ProgramRing;
use super::super::bpf::filter_program::CONTEXT;
use super::super::bpf::instructions::{ADD, AND, JUMP_UNLESS_EQUAL, LOAD_DOUBLE, STORE_VALUE_DOUBLE, op};
use super::super::bpf::memory_copies::{ADDRESS_IN_R7, Copies, CopyProgram, HEADER_BYTES, LEN};
use super::super::ring::record::SampleId;
use crate::sources::Capture;

/// Size of a copy.
const RED_ZONE_BYTES: usize = 128;
/// Some 6,000 copies: seconds.
const RING_BYTES: usize = 1 << 20;
/// Offsets of code segment and stack pointer in `struct pt_regs` (arch/x86/include/uapi/asm/ptrace.h).
const CS: i16 = 17 * 8;
const SP: i16 = 19 * 8;
/// The privilege level bits in the code segment, and their value for user mode.
const LEVEL: i32 = 3;

/// Whether this processor has a red zone in use.
pub(in crate::sources::linux::perf) const HERE: bool = cfg!(target_arch = "x86_64");

/// Copies the red zone. `ring` is the descriptor of a [`ProgramRing`].
fn copy_program(ring: i32) -> Vec<u64> {
    let mut program = CopyProgram::default();
    program.extend([op(LOAD_DOUBLE, 1, CONTEXT, CS, 0), op(AND, 1, 0, 0, LEVEL)]);
    program.end_by(op(JUMP_UNLESS_EQUAL, 1, 0, 0, LEVEL));
    // r7: the address.
    program.extend([op(LOAD_DOUBLE, 7, CONTEXT, SP, 0), op(ADD, 7, 0, 0, -(RED_ZONE_BYTES as i32))]);
    program.take_time();
    program.reserve(ring, RED_ZONE_BYTES, ADDRESS_IN_R7);
    program.read(HEADER_BYTES, RED_ZONE_BYTES, 7);
    program.extend([
        op(JUMP_UNLESS_EQUAL, 0, 0, 1, 0),
        op(STORE_VALUE_DOUBLE, 8, 0, LEN, RED_ZONE_BYTES as i32),
    ]);
    program.submit();
    program.end()
}

/// Copies of red zones.
#[derive(Debug)]
pub(in crate::sources::linux::perf) struct RedZone {
    ring: ProgramRing,
    copies: Copies,
}

impl RedZone {
    /// Creates a ring in the kernel.
    ///
    /// # Errors
    /// Errors of bpf(2), or an error if this processor has no red zone.
    pub(in crate::sources::linux::perf) fn new() -> io::Result<RedZone> {
        if !HERE {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(RedZone {
            ring: ProgramRing::create(RING_BYTES, HEADER_BYTES + RED_ZONE_BYTES)?,
            copies: Copies::default(),
        })
    }

    /// The program for samples that pass the filter.
    pub(in crate::sources::linux::perf) fn program(&self) -> Vec<u64> {
        copy_program(self.ring.descriptor())
    }

    /// Reads the copies so far, after the rings of samples, so that those of all samples are included. Returns the
    /// number of freed buffer bytes.
    pub(in crate::sources::linux::perf) fn read(&mut self) -> usize {
        let freed = self.copies.end_batch();
        let RedZone { ring, copies } = self;
        ring.drain(|record| copies.take(record));
        freed
    }

    /// Prepends the bytes copied at the moment of a sample to its stack.
    pub(in crate::sources::linux::perf) fn complete(&mut self, id: SampleId, capture: &mut Capture) {
        prepend(&mut self.copies, id, capture);
    }
}

fn prepend(copies: &mut Copies, id: SampleId, capture: &mut Capture) {
    let Some(copy) = copies.of_sample(id) else { return };
    if copy.from.checked_add(copy.bytes.len() as u64) == Some(capture.stack_base.0)
        && !capture.stack.is_empty()
    {
        capture.stack.splice(..0, copy.bytes.iter().copied());
        capture.stack_base.0 = copy.from;
    }
    copies.give_back(copy);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::super::bpf::filter_program::{self, FilterRule};
    use super::super::super::bpf::instructions::machine::Machine;
    use super::*;
    use crate::addr::Avma;

    const RING: i32 = 6;
    const FIRST: (u64, u64) = (4, 0xefff_fffc);
    const SP_NOW: u64 = 0x7000_0100;

    /// A thread 77 with memory around its stack pointer, interrupted in code of this privilege level.
    fn machine(level: u64) -> Machine {
        let mut machine = Machine::new(77, 70, FIRST);
        machine.ring = RING;
        machine.memory = (SP_NOW - 0x100, (0..0x200).map(|at| at as u8).collect());
        machine.context = (0..21)
            .flat_map(|word| {
                match word * 8 {
                    CS => 0x30 | level,
                    SP => SP_NOW,
                    _ => 0xdead,
                }
                .to_le_bytes()
            })
            .collect();
        machine
    }

    fn completed(machine: &Machine, time_ns: u64) -> Capture {
        let mut copies = Copies::default();
        machine.records.iter().for_each(|record| copies.take(record));
        let mut capture = Capture::with_capacity(0);
        capture.stack_base = Avma(SP_NOW);
        capture.stack.extend_from_slice(&machine.memory.1[0x100..0x140]);
        prepend(&mut copies, SampleId { pid: 70, tid: 77, time_ns, cpu: 0 }, &mut capture);
        capture
    }

    fn program() -> Vec<u64> {
        filter_program::program(FilterRule::OfProcess(70), FIRST, &copy_program(RING))
    }

    #[test]
    fn the_red_zone_is_prepended() {
        let mut machine = machine(3);
        assert_eq!(machine.run(&program()), 1);
        let capture = completed(&machine, machine.time_ns + 900);
        assert_eq!(capture.stack_base, Avma(SP_NOW - RED_ZONE_BYTES as u64));
        assert_eq!(capture.stack, machine.memory.1[0x80..0x140]);
        let capture = completed(&machine, machine.time_ns + 500_000);
        assert_eq!(capture.stack_base, Avma(SP_NOW), "of another sample");
    }

    #[test]
    fn nothing_is_copied_in_kernel_mode_without_room_or_if_unmapped() {
        for (level, room, from) in [(0, 9, 0x100), (3, 0, 0x100), (3, 9, 0x40)] {
            let mut machine = machine(level);
            machine.room = room;
            machine.memory.0 = SP_NOW - from;
            assert_eq!(machine.run(&program()), 1);
            let mut copies = Copies::default();
            machine.records.iter().for_each(|record| copies.take(record));
            let mut capture = Capture::with_capacity(0);
            capture.stack_base = Avma(SP_NOW);
            capture.stack.push(7);
            prepend(
                &mut copies,
                SampleId { pid: 70, tid: 77, time_ns: machine.time_ns, cpu: 0 },
                &mut capture,
            );
            assert_eq!(
                (capture.stack_base, capture.stack),
                (Avma(SP_NOW), vec![7]),
                "{level} {room} {from:x}"
            );
        }
    }
}
