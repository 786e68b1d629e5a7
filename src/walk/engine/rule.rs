//! The rule for the caller of a frame, packed, so that a table of many addresses is small. Input: rows; output:
//! [`Rule`]. x86_64 packs tighter (`x86_64/rule.rs`).

use crate::binary::frame_rule::{Cfa, Column, Columns};
use crate::walk::frames::Method;
use crate::walk::processor::{Processor, RowOf};

/// An ordinary row saves at most x19 to x29 of aarch64; the return address is separate.
const SAVED_MAX: usize = 11;

/// A row with a CFA of register plus offset and saved registers below it. The caller's stack pointer is the CFA;
/// offsets of saved registers are in words from it. For a function with a frame record that is `(pc, sp, fp) =
/// (fp[1], fp + 2 words, fp[0])`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::walk) struct OrdinaryRow {
    pub cfa_offset: i32,
    pub cfa_register: u8,
    saved: u8,
    /// Offset of the return address; `None`: it is in the link register.
    pub return_words: Option<i16>,
    registers: [(u8, i16); SAVED_MAX],
}

impl OrdinaryRow {
    /// The saved registers with their offsets from the CFA in words.
    pub(super) fn saved(&self) -> &[(u8, i16)] {
        self.registers.get(..self.saved.into()).unwrap_or_default()
    }

    /// Packs a row; `None` if it is unusual.
    pub(super) fn pack<P: Processor>(row: &RowOf<P>) -> Option<OrdinaryRow> {
        let word = P::POINTER_BYTES.cast_signed();
        let words = |bytes: i64| i16::try_from(bytes / word).ok().filter(|_| bytes % word == 0);
        let Cfa::Register(cfa_register, offset) = row.cfa else { return None };
        let (pc, cfa_offset) = (P::Columns::COUNT - 1, i32::try_from(offset).ok()?);
        if row.signal || usize::from(cfa_register) >= pc {
            return None;
        }
        let mut packed = OrdinaryRow { cfa_offset, cfa_register, ..OrdinaryRow::default() };
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

/// How to find the caller of a frame at an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::walk) enum RuleKind {
    OrdinaryRow(OrdinaryRow, Method),
    /// Index of a row of another form, or of an unreliable one.
    Unusual(u16),
    /// The thread's first function.
    Root,
    /// The return address of a fiber's first function; `not_called`: nothing has returned there yet.
    Fiber {
        not_called: bool,
    },
    /// Neither unwind information nor decodable code.
    #[default]
    Unknown,
}

/// Facts about a code address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::walk) struct Rule {
    pub kind: RuleKind,
    /// For a return address: a call precedes it, or signal handlers return there.
    pub returns: bool,
}

const _: () = assert!(size_of::<Rule>() <= 64);
