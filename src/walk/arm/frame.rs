//! The step from a frame to its caller by a row, and the state of a 32-bit Arm frame besides its registers. Input:
//! a frame, a row; output: the caller's frame, not yet checked.

use super::{LR, PC, SP, T32};
use crate::addr::{Avma, CodeAddress};
use crate::arch::{Arm, UNKNOWN_REGISTER};
use crate::binary::frame_rule::{ARM_COLUMNS, Column, RowArm};
use crate::walk::Input;
use crate::walk::bounds::Failure;

/// T32 bit of the program status register.
const STATUS_T32: u32 = 1 << 5;

/// A frame: its registers as they are while it is the leaf, or while its callee runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    /// Without the T32 bit.
    pub address: CodeAddress,
    pub registers: [u64; ARM_COLUMNS],
    pub is_t32: bool,
    /// xPSR of this code, on an M-profile core: the exception that it handles.
    pub status: u32,
    pub is_m_profile: bool,
}

/// The result of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caller {
    pub frame: Frame,
    /// The return address as found, including its lowest bit.
    pub raw: u64,
}

impl Frame {
    /// The leaf's instruction set by the status register, if known.
    pub(super) fn status_is_t32(registers: &Arm) -> Option<bool> {
        let by_status = registers.cpsr.map(|status| status & STATUS_T32 != 0);
        if registers.m_profile { Some(true) } else { by_status }
    }

    /// The leaf, in this instruction set.
    pub(super) fn new(registers: &Arm, is_t32: bool) -> Frame {
        let mut all = registers.r;
        let pc = all[usize::from(PC)] & !T32;
        all[usize::from(PC)] = pc;
        Frame {
            address: CodeAddress::Pc(Avma(pc)),
            registers: all,
            is_t32,
            status: registers.cpsr.filter(|_| registers.m_profile).unwrap_or(0),
            is_m_profile: registers.m_profile,
        }
    }

    pub(super) fn sp(&self) -> Avma {
        Avma(self.registers[usize::from(SP)])
    }

    /// Its address with the T32 bit.
    pub(super) fn code_address(&self) -> Avma {
        Avma(self.address.at().0 | u64::from(self.is_t32))
    }

    /// The frame in the form shared by all processors.
    pub(super) fn inner(&self) -> crate::walk::frame::Frame<Arm> {
        crate::walk::frame::Frame::of(self.address, self.registers)
    }

    /// The caller by a row.
    pub(super) fn by_row(&self, row: &RowArm, input: &Input<'_>) -> Result<Caller, Failure> {
        let mut next = {
            let inner = self.inner();
            inner.by_row(row, inner.cfa(row, input)?, input)?
        };
        for (register, column) in next.registers.iter_mut().zip(&row.columns) {
            if *column == Column::Undefined {
                *register = UNKNOWN_REGISTER;
            }
        }
        if row.signal {
            let pc = next.registers[usize::from(PC)];
            let mut frame = Frame { registers: next.registers, ..*self };
            frame.registers[usize::from(PC)] = pc & !T32;
            frame.address = CodeAddress::Pc(Avma(pc & !T32));
            return Ok(Caller { frame, raw: pc });
        }
        let raw = match (&row.columns[usize::from(LR)], self.address) {
            (Column::Same | Column::Undefined, CodeAddress::Pc(_)) => self.registers[usize::from(LR)],
            // A call has overwritten it.
            (Column::Same | Column::Undefined, CodeAddress::Return(_)) => return Err(Failure::Refused),
            _ => next.registers[usize::from(LR)],
        };
        Ok(self.called_from(raw, next.registers))
    }

    /// The caller at a return address, with these registers.
    pub(super) fn called_from(&self, raw: u64, mut registers: [u64; ARM_COLUMNS]) -> Caller {
        let at = raw & !T32;
        registers[usize::from(LR)] = UNKNOWN_REGISTER;
        registers[usize::from(PC)] = at;
        let is_t32 = self.is_m_profile || raw & T32 != 0;
        let frame = Frame { address: CodeAddress::Return(Avma(at)), registers, is_t32, ..*self };
        Caller { frame, raw }
    }
}
