//! How the caller of a frame is found, packed, so that a table of many addresses is small. Input:
//! rows; output: [`Rule`].

use super::{LR, SP};
use crate::binary::frame_rule::{AARCH64_PC, Cfa, Column, RowAarch64};
use crate::walk::frames::Method;

/// An ordinary row saves at most x19 to x29; the return address is apart.
const SAVED_MAX: usize = 11;

/// A row whose CFA is a register plus a number and whose registers lie below it, in words:
/// `sp = CFA`, `pc = *(CFA + 8 * link_words)` or `lr` where a leaf has not saved that, and for each saved
/// register `x = *(CFA + 8 * words)`. Most are `(pc, sp, fp) = (*(fp + 8), fp + 16, *fp)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ordinary {
    pub cfa_offset: i32,
    pub cfa_register: u8,
    saved: u8,
    /// Where the return address is; `None`: in the link register.
    pub link_words: Option<i16>,
    registers: [(u8, i16); SAVED_MAX],
}

impl Ordinary {
    /// The saved registers, and where they are, in words from the CFA.
    pub(super) fn saved(&self) -> &[(u8, i16)] {
        self.registers.get(..self.saved.into()).unwrap_or_default()
    }

    pub(super) fn pack(row: &RowAarch64) -> Option<Ordinary> {
        let words = |bytes: i64| i16::try_from(bytes / 8).ok().filter(|_| bytes % 8 == 0);
        let Cfa::Register(cfa_register, offset) = row.cfa else { return None };
        if row.signal || usize::from(cfa_register) > SP || row.columns[AARCH64_PC] != Column::Same {
            return None;
        }
        let mut packed =
            Ordinary { cfa_offset: i32::try_from(offset).ok()?, cfa_register, ..Ordinary::default() };
        for (register, column) in row.columns[..=SP].iter().enumerate() {
            match column {
                Column::Same | Column::Undefined => {}
                Column::At(at) if register == LR => packed.link_words = Some(words(*at)?),
                Column::At(at) if register != SP => {
                    *packed.registers.get_mut(usize::from(packed.saved))? = (register as u8, words(*at)?);
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
    /// Index of a row of another form.
    Unusual(u16),
    /// The thread's first function.
    Root,
    /// The same, of a stack that a thread goes to and comes back from.
    Fiber,
    /// Neither unwind information nor understandable code.
    #[default]
    Unknown,
}

/// What is known of a code address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rule {
    pub kind: Kind,
    /// For a return address: a call is in front of it.
    pub returns: bool,
}

const _: () = assert!(size_of::<Rule>() <= 64);
