//! Exceptions of M-profile cores: handlers return to special values (EXC_RETURN), and the interrupted registers
//! are on the stack. Input: a frame with EXC_RETURN as return address; output: the interrupted frame with its
//! registers, and its stack: a core has two (B1.4.1), of which handlers use the main one.
//!
//! Source: Armv7-M Architecture Reference Manual (DDI 0403), B1.5.6 to B1.5.8; Armv8-M (DDI 0553), B3.18.

use super::frame::Frame;
use super::{PC, SP, T32};
use crate::addr::{Avma, CodeAddress};
use crate::arch::Arm;
use crate::walk::bounds::Failure;
use crate::walk::{Input, OtherStack, StackEnd};

/// Size of the basic frame: r0 to r3, r12, lr, the return address, xPSR.
const BASIC_BYTES: u64 = 32;
/// Additional size of the extended frame: s0 to s15, FPSCR, and a reserved word.
const VFP_BYTES: u64 = 72;
/// Registers of the basic frame by number, except xPSR.
const BASIC: [usize; 7] = [0, 1, 2, 3, 12, Arm::LR, Arm::PC];
/// Fields of xPSR: exception number, T32 bit, and whether a word was skipped for alignment.
const NUMBER: u32 = 0x1ff;
const IS_T32: u32 = 1 << 24;
const IS_ALIGNED: u32 = 1 << 9;

/// Bits of EXC_RETURN: the interrupted code used the process stack, it was in thread mode, the frame has no
/// floating-point registers, the stacking was the default.
const ON_PROCESS_STACK: u64 = 1 << 2;
const TO_THREAD: u64 = 1 << 3;
const BASIC_FRAME: u64 = 1 << 4;
const USUAL_STACKING: u64 = 1 << 5;
/// On cores with the security extension: the stack is secure (S), and the handler is secure (ES). Both are one on
/// Armv7-M, and zero on Armv8-M without the extension (DDI 0553, D1.2.95).
const SECURE_STACK_SHIFT: u32 = 6;
const SECURE_HANDLER: u64 = 1;

/// Whether a return address is an EXC_RETURN value.
pub(super) fn is_return(address: u64) -> bool {
    // Bit 1 is 0 in all of them; the link register is all ones at reset.
    address >> 32 == 0 && address & 0xffff_ff82 == 0xffff_ff80
}

/// The number of the exception that a frame's code handles, from its status register; 0: none.
pub(super) fn number(status: u32) -> u32 {
    status & NUMBER
}

/// Switches `at_entry` and `input` to the stack of the interrupted code. Returns whether that is the `other` one,
/// which is then consumed: a thread returns to no other stack.
///
/// # Errors
/// [`StackEnd::OtherStack`] if that stack was not copied.
pub(super) fn change_stack<'a>(
    at_entry: &mut Frame,
    address: u64,
    input: &mut Input<'a>,
    other: &mut Option<OtherStack<'a>>,
) -> Result<bool, StackEnd> {
    // Each security state has both stacks.
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

/// The interrupted frame. `at_entry` has the known registers at the handler's entry, with the stack pointer of the
/// interrupted code; `address` is the handler's EXC_RETURN.
///
/// # Errors
/// The words cannot be read, or are no valid frame.
pub(super) fn interrupted(at_entry: &Frame, address: u64, input: &Input<'_>) -> Result<Frame, StackEnd> {
    // Secure code stacked additional registers.
    if address & USUAL_STACKING == 0 {
        return Err(StackEnd::BrokenFrameChain);
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
    // A thread handles no exception, and the processor faults on other combinations (DDI 0403, B1.5.8). T32 is the
    // only instruction set.
    let is_thread = number(status) == 0;
    if is_thread != (address & TO_THREAD != 0) || status & IS_T32 == 0 || !input.code.is_code(Avma(pc)) {
        return Err(StackEnd::BrokenFrameChain);
    }
    next.registers[usize::from(PC)] = pc;
    next.address = CodeAddress::Pc(Avma(pc));
    next.is_t32 = true;
    next.status = status;
    Ok(next)
}
