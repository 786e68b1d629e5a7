//! The state of an allocation's caller, from the record of the shim.
//!
//! Input: a record; output: a capture to walk.

use super::ring::{AllocationRecord, Processor};
use super::shared_memory::{aarch64_register, x86_64_register};
use crate::addr::Avma;
use crate::arch::{Aarch64, Registers, UNKNOWN_REGISTER, X86_64};
use crate::sources::Capture;

/// Fills a capture with the registers and the stack of an allocation; the program counter is the allocator's
/// return address.
pub(super) fn fill(capture: &mut Capture, record: &mut AllocationRecord, processor: Processor) {
    capture.reset();
    let known = &record.registers;
    capture.registers = match processor {
        Processor::Aarch64 => {
            use aarch64_register::{PC, SP, X19, X30};
            let mut x = [UNKNOWN_REGISTER; 31];
            x[19..30].copy_from_slice(&known[X19..X19 + 11]);
            x[30] = known[X30];
            Registers::Aarch64(Aarch64 { x, sp: known[SP], pc: known[PC] })
        }
        Processor::X86_64 => {
            use x86_64_register::{PC, R12, RBP, RBX, SP};
            let mut gpr = [UNKNOWN_REGISTER; 16];
            // rbx is number 3 in DWARF's order.
            (gpr[3], gpr[X86_64::RBP], gpr[X86_64::RSP]) = (known[RBX], known[RBP], known[SP]);
            gpr[12..16].copy_from_slice(&known[R12..R12 + 4]);
            Registers::X86_64(X86_64 { gpr, rip: known[PC], fs_base: 0 })
        }
    };
    capture.stack_base = capture.registers.sp();
    let end = Avma(capture.stack_base.0.saturating_add(record.stack.len() as u64));
    capture.stack_limit = record.stack_ends.then_some(end);
    // The capture's buffer is reused for a later record.
    std::mem::swap(&mut capture.stack, &mut record.stack);
}
