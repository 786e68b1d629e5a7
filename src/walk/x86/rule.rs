//! How the caller of a frame is found, packed, so that a table of many addresses is small. Input:
//! rows; output: [`Rule`].

use super::ESP;
use crate::binary::frame_rule::{Cfa, Column, RowX86, X86_RETURN_ADDRESS};
use crate::walk::frames::Method;

/// An ordinary row saves at most all registers but the stack pointer.
const SAVED_MAX: usize = 7;

/// A row whose CFA is a register plus a number and whose registers lie below it, in bytes:
/// `esp = CFA`, `eip = *(CFA + return_at)`, and for each saved register `r = *(CFA + bytes)`. Where a
/// function keeps a frame record that is `(eip, esp, ebp) = (*(ebp + 4), ebp + 8, *ebp)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ordinary {
    pub cfa_offset: i32,
    pub cfa_register: u8,
    saved: u8,
    pub return_at: i16,
    registers: [(u8, i16); SAVED_MAX],
}

impl Ordinary {
    /// The saved registers, and where they are, in bytes from the CFA.
    pub(super) fn saved(&self) -> &[(u8, i16)] {
        self.registers.get(..self.saved.into()).unwrap_or_default()
    }

    pub(super) fn pack(row: &RowX86) -> Option<Ordinary> {
        let Cfa::Register(cfa_register, offset) = row.cfa else { return None };
        let Column::At(return_at) = row.columns[X86_RETURN_ADDRESS] else { return None };
        if row.signal || usize::from(cfa_register) >= X86_RETURN_ADDRESS {
            return None;
        }
        let (cfa_offset, return_at) = (i32::try_from(offset).ok()?, i16::try_from(return_at).ok()?);
        let mut packed = Ordinary { cfa_offset, cfa_register, return_at, ..Ordinary::default() };
        for (register, column) in row.columns[..X86_RETURN_ADDRESS].iter().enumerate() {
            match column {
                Column::Same | Column::Undefined => {}
                // The stack pointer is the CFA in every row.
                Column::Is(0) if register == ESP => {}
                Column::At(at) if register != ESP => {
                    let place = packed.registers.get_mut(usize::from(packed.saved))?;
                    *place = (register as u8, i16::try_from(*at).ok()?);
                    packed.saved += 1;
                }
                _ => return None,
            }
        }
        Some(packed)
    }
}

/// How the caller of a frame at an address is found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    Ordinary(Ordinary, Method),
    /// Index of a row of another form, or of one that is not to be relied on.
    Unusual(u16),
    /// The thread's first function.
    Root,
    /// Neither unwind information nor understandable code.
    #[default]
    Unknown,
}

/// What is known of a code address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rule {
    pub kind: Kind,
    /// For a return address: a call is in front of it, or handlers of signals return there.
    pub returns: bool,
}

const _: () = assert!(size_of::<Rule>() <= 48);
