//! How the caller of a frame is found, packed, so that a table of many addresses is small. Input:
//! rows; output: [`Rule`]. x86_64 packs tighter (`x86_64/rule.rs`).

use crate::binary::frame_rule::{Cfa, Column, Columns};
use crate::walk::frames::Method;
use crate::walk::processor::{Processor, RowOf};

/// An ordinary row saves at most x19 to x29 of aarch64; the return address is apart.
const SAVED_MAX: usize = 11;

/// A row whose CFA is a register plus a number and whose registers lie below it. The stack pointer of the caller is
/// the CFA; where registers are saved is counted from it in words. Where a function keeps a frame record that is
/// `(pc, sp, fp) = (fp[1], fp + 2 words, fp[0])`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::walk) struct Ordinary {
    pub cfa_offset: i32,
    pub cfa_register: u8,
    saved: u8,
    /// Where the return address is; `None`: in the link register.
    pub return_words: Option<i16>,
    registers: [(u8, i16); SAVED_MAX],
}

impl Ordinary {
    /// The saved registers, and where they are, in words from the CFA.
    pub(super) fn saved(&self) -> &[(u8, i16)] {
        self.registers.get(..self.saved.into()).unwrap_or_default()
    }

    /// A row in its ordinary form, if it has that.
    pub(super) fn pack<P: Processor>(row: &RowOf<P>) -> Option<Ordinary> {
        let word = P::POINTER_BYTES.cast_signed();
        let words = |bytes: i64| i16::try_from(bytes / word).ok().filter(|_| bytes % word == 0);
        let Cfa::Register(cfa_register, offset) = row.cfa else { return None };
        let (pc, cfa_offset) = (P::Columns::COUNT - 1, i32::try_from(offset).ok()?);
        if row.signal || usize::from(cfa_register) >= pc {
            return None;
        }
        let mut packed = Ordinary { cfa_offset, cfa_register, ..Ordinary::default() };
        for (register, column) in row.columns.as_ref().iter().enumerate() {
            match column {
                Column::At(at) if register == P::RETURN_COLUMN => packed.return_words = Some(words(*at)?),
                // The stack pointer is the CFA in every row.
                Column::Is(0) if register == usize::from(P::STACK_POINTER) => {}
                Column::Same | Column::Undefined if register < pc => {}
                Column::Same if register != P::RETURN_COLUMN => {}
                Column::At(at) if register < pc && register != usize::from(P::STACK_POINTER) => {
                    let place = packed.registers.get_mut(usize::from(packed.saved))?;
                    *place = (register as u8, words(*at)?);
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
pub(in crate::walk) enum RuleKind {
    Ordinary(Ordinary, Method),
    /// Index of a row of another form, or of one that is not to be relied on.
    Unusual(u16),
    /// The thread's first function.
    Root,
    /// What the first function of a fiber returns to; `not_called`: has not returned to yet.
    Fiber {
        not_called: bool,
    },
    /// Neither unwind information nor understandable code.
    #[default]
    Unknown,
}

/// What is known about a code address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::walk) struct Rule {
    pub kind: RuleKind,
    /// For a return address: a call is in front of it, or handlers of signals return there.
    pub returns: bool,
}

const _: () = assert!(size_of::<Rule>() <= 64);
