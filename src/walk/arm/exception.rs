//! Exceptions of M-profile cores: their handlers return to addresses that are none, and what was
//! interrupted lies on the stack. Input: a frame whose caller is such an address; output: the frame that
//! was interrupted, with its registers.
//!
//! Source: Armv7-M Architecture Reference Manual (DDI 0403), B1.5.6 to B1.5.8; Armv8-M (DDI 0553), B3.18.

use super::frame::Frame;
use super::{PC, SP, T32};
use crate::addr::{Avma, CodeAddress};
use crate::arch::Arm;
use crate::walk::bounds::Failure;
use crate::walk::{Ended, Input};

/// Words of the basic frame: r0 to r3, r12, lr, the return address, xPSR.
const BASIC_BYTES: u64 = 32;
/// What an extended one has behind them: s0 to s15, FPSCR, and a reserved word.
const VFP_BYTES: u64 = 72;
/// The registers of the basic frame by number, but the last.
const BASIC: [usize; 7] = [0, 1, 2, 3, 12, Arm::LR, Arm::PC];
/// xPSR: the number of the exception, the bit of T32, and whether a word was left out for alignment.
const NUMBER: u32 = 0x1ff;
const IS_T32: u32 = 1 << 24;
const IS_ALIGNED: u32 = 1 << 9;

/// Whether a return address is what a handler of an exception returns to.
pub(super) fn is_return(address: u64) -> bool {
    // Bit 1 is 0 in all of them; all ones is what the link register holds at reset.
    address >> 32 == 0 && address & 0xffff_ff82 == 0xffff_ff80
}

/// The number of the exception that a frame's code handles, by its status register; 0: none.
pub(super) fn number(status: u32) -> u32 {
    status & NUMBER
}

/// The frame that was interrupted. `at_entry` has the registers that the handler was entered with, as
/// far as they are known; `address` is what it returns to.
///
/// # Errors
/// [`Ended::OtherStack`] if what was interrupted is on the stack of the process stack pointer while the
/// handler runs on that of the main one; else why the words cannot be read.
pub(super) fn interrupted(at_entry: &Frame, address: u64, input: &Input<'_>) -> Result<Frame, Ended> {
    let is_on_process_stack = address & 1 << 2 != 0;
    // A handler runs on the main stack, a thread may run on either.
    if is_on_process_stack {
        return Err(Ended::OtherStack);
    }
    // Secure code stacked more than this.
    if address & 1 << 5 == 0 {
        return Err(Ended::BadFrame);
    }
    let sp = at_entry.registers[usize::from(SP)];
    let word = |index: u64| {
        let at = Avma(sp.wrapping_add(4 * index));
        at_entry.inner().word(at, input).map_err(Failure::ended)
    };
    let mut next = *at_entry;
    for (index, register) in (0..).zip(BASIC) {
        next.registers[register] = word(index)?;
    }
    let status = word(BASIC.len() as u64)? as u32;
    let mut bytes = BASIC_BYTES;
    if address & 1 << 4 == 0 {
        bytes += VFP_BYTES;
    }
    if status & IS_ALIGNED != 0 {
        bytes += 4;
    }
    next.registers[usize::from(SP)] = sp.wrapping_add(bytes);
    let pc = next.registers[usize::from(PC)] & !T32;
    // There is no other instruction set, and the words are no frame if they say so.
    if status & IS_T32 == 0 || !input.code.is_code(Avma(pc)) {
        return Err(Ended::BadFrame);
    }
    next.registers[usize::from(PC)] = pc;
    next.address = CodeAddress::Pc(Avma(pc));
    next.is_t32 = true;
    next.status = status;
    Ok(next)
}
