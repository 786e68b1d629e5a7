//! Exceptions of M-profile cores: their handlers return to special values (EXC_RETURN), and what was
//! interrupted lies on the stack. Input: a frame whose caller is such an address; output: the frame that
//! was interrupted, with its registers, and the stack that it is on: a core has two (B1.4.1), of which
//! handlers are on the main one.
//!
//! Source: Armv7-M Architecture Reference Manual (DDI 0403), B1.5.6 to B1.5.8; Armv8-M (DDI 0553), B3.18.

use super::frame::Frame;
use super::{PC, SP, T32};
use crate::addr::{Avma, CodeAddress};
use crate::arch::Arm;
use crate::walk::bounds::Failure;
use crate::walk::{Input, OtherStack, StackEnd};

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

/// What a handler returns to (EXC_RETURN): the stack of what was interrupted is the process stack, that
/// is a thread and no handler, the words of floating point were not made room for, the registers were
/// stacked as always.
const ON_PROCESS_STACK: u64 = 1 << 2;
const TO_THREAD: u64 = 1 << 3;
const BASIC_FRAME: u64 = 1 << 4;
const USUAL_STACKING: u64 = 1 << 5;
/// On cores with the security extension: the stack is the secure one (S), and the handler is secure (ES). Both are ones
/// on Armv7-M, and zeros on Armv8-M without the extension (DDI 0553, D1.2.95).
const SECURE_STACK_SHIFT: u32 = 6;
const SECURE_HANDLER: u64 = 1;

/// Whether a return address is what a handler of an exception returns to.
pub(super) fn is_return(address: u64) -> bool {
    // Bit 1 is 0 in all of them; all ones is what the link register holds at reset.
    address >> 32 == 0 && address & 0xffff_ff82 == 0xffff_ff80
}

/// The number of the exception that a frame's code handles, by its status register; 0: none.
pub(super) fn number(status: u32) -> u32 {
    status & NUMBER
}

/// Goes to the stack that what was interrupted is on: the stack pointer of `at_entry`, and the stack of
/// `input`. Whether that is the `other` one, which is taken then: a thread returns to no other stack.
///
/// # Errors
/// [`StackEnd::OtherStack`] if it is on one that was not copied.
pub(super) fn change_stack<'a>(
    at_entry: &mut Frame,
    address: u64,
    input: &mut Input<'a>,
    other: &mut Option<OtherStack<'a>>,
) -> Result<bool, StackEnd> {
    // Each world has both stacks.
    if (address >> SECURE_STACK_SHIFT ^ address) & SECURE_HANDLER != 0 {
        return Err(StackEnd::OtherStack);
    }
    if address & ON_PROCESS_STACK == 0 {
        return Ok(false);
    }
    let process = other.take().ok_or(StackEnd::OtherStack)?;
    at_entry.registers[usize::from(SP)] = process.stack.base.0;
    input.stack = process.stack;
    (input.stack_top, input.stack_limit) = (None, process.limit);
    Ok(true)
}

/// The frame that was interrupted. `at_entry` has the registers that the handler was entered with, as
/// far as they are known, but the stack pointer of what was interrupted; `address` is what it returns to.
///
/// # Errors
/// Why the words cannot be read, or are no frame.
pub(super) fn interrupted(at_entry: &Frame, address: u64, input: &Input<'_>) -> Result<Frame, StackEnd> {
    // Secure code stacked more than this.
    if address & USUAL_STACKING == 0 {
        return Err(StackEnd::BadFrame);
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
    if address & BASIC_FRAME == 0 {
        bytes += VFP_BYTES;
    }
    if status & IS_ALIGNED != 0 {
        bytes += 4;
    }
    next.registers[usize::from(SP)] = sp.wrapping_add(bytes);
    let pc = next.registers[usize::from(PC)] & !T32;
    // A thread handles no exception, and a processor refuses to return otherwise (DDI 0403,
    // B1.5.8). There is no other instruction set either.
    let is_thread = number(status) == 0;
    if is_thread != (address & TO_THREAD != 0) || status & IS_T32 == 0 || !input.code.is_code(Avma(pc)) {
        return Err(StackEnd::BadFrame);
    }
    next.registers[usize::from(PC)] = pc;
    next.address = CodeAddress::Pc(Avma(pc));
    next.is_t32 = true;
    next.status = status;
    Ok(next)
}
