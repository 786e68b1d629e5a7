//! `UNWIND_INFO`: the operations of a function's prologue → the row at an address in it or after it.
//!
//! Input: the bytes of the information, hostile. Output: [`UnwindInfo`], a [`Row`]. Not for: epilogues, and
//! exception handlers, which follow the codes.
//!
//! Format: "x64 exception handling" (Microsoft), "struct UNWIND_INFO"; for version 2, with epilogue codes that are
//! skipped here: `EPILOG` of LLVM, include/llvm/Support/Win64EH.h.

use super::entry::Entry;
use crate::binary::frame_rule::{Cfa, Column, RETURN_ADDRESS, Row};

/// Flag of an entry that is chained to another one.
const CHAINED: u8 = 4;

/// Operation codes, the low half of their second byte.
const PUSH_NONVOL: u8 = 0;
const ALLOC_LARGE: u8 = 1;
const ALLOC_SMALL: u8 = 2;
const SET_FPREG: u8 = 3;
const SAVE_NONVOL: u8 = 4;
const SAVE_NONVOL_FAR: u8 = 5;
const EPILOG: u8 = 6;
const SAVE_XMM128: u8 = 8;
const SAVE_XMM128_FAR: u8 = 9;
const PUSH_MACHFRAME: u8 = 10;

/// Register number in instructions → DWARF number.
pub(super) const DWARF_NUMBERS: [u8; 16] = [0, 2, 1, 3, 7, 6, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15];
const RSP: usize = 7;

/// `DW_OP_breg0`.
const BREG0: u8 = 0x70;

/// The unwind information of a function, or of a piece of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnwindInfo<'a> {
    /// Size of the prologue.
    pub prologue_bytes: u8,
    /// The frame register by DWARF number, and its distance from the stack pointer at the time it was set.
    pub frame: Option<(u8, i64)>,
    /// Two bytes each, last instruction of the prologue first.
    slots: &'a [[u8; 2]],
    /// The entry that it is chained to.
    pub chained: Option<Entry>,
}

/// An operation of a prologue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A register, by DWARF number, was pushed.
    Push(u8),
    /// The stack pointer was decremented by bytes.
    Allocate(i64),
    /// The frame register was set.
    SetFrame,
    /// A register was stored at an offset from the frame's base.
    Save(u8, i64),
    /// The processor pushed a machine frame, with an error code or without.
    Interrupt(bool),
    /// Irrelevant for rows: a vector register was stored.
    Nothing,
}

impl<'a> UnwindInfo<'a> {
    /// Reads the header and finds the codes; `None` for unknown versions.
    #[must_use]
    pub fn read(bytes: &'a [u8]) -> Option<UnwindInfo<'a>> {
        let (&[version, prologue_bytes, count, frame], rest) = bytes.split_first_chunk::<4>()?;
        let (slots, _) = rest.as_chunks::<2>();
        let count = usize::from(count);
        let slots = slots.get(..count)?;
        let slots = match version & 7 {
            1 => slots,
            2 => without_epilogues(slots),
            _ => return None,
        };
        let chained = match version >> 3 & CHAINED {
            0 => None,
            // After an even number of codes.
            _ => Some(Entry::read(rest.get(2 * count.next_multiple_of(2)..)?)?),
        };
        let register = DWARF_NUMBERS[usize::from(frame & 15)];
        let frame = (frame & 15 != 0).then_some((register, 16 * i64::from(frame >> 4)));
        Some(UnwindInfo { prologue_bytes, frame, slots, chained })
    }

    /// Whether it has no codes: the function does not move the stack pointer.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The operations, last one first, each with its end offset in the function. An item is `None` if codes are
    /// malformed or unknown.
    pub fn steps(&self) -> impl Iterator<Item = Option<(u8, Step)>> + '_ {
        let mut left = self.slots;
        std::iter::from_fn(move || {
            let (&[done_at, code], rest) = left.split_first()?;
            let info = code >> 4;
            let half = |index: usize| rest.get(index).map(|slot| i64::from(u16::from_le_bytes(*slot)));
            let word = || Some(half(0)? | half(1)? << 16);
            let register = DWARF_NUMBERS[usize::from(info)];
            let (step, operands) = match (code & 15, info) {
                (PUSH_NONVOL, _) => (Some(Step::Push(register)), 0),
                (ALLOC_LARGE, 0) => (half(0).map(|size| Step::Allocate(8 * size)), 1),
                (ALLOC_LARGE, 1) => (word().map(Step::Allocate), 2),
                (ALLOC_SMALL, _) => (Some(Step::Allocate(8 * i64::from(info) + 8)), 0),
                (SET_FPREG, _) => (Some(Step::SetFrame), 0),
                (SAVE_NONVOL, _) => (half(0).map(|at| Step::Save(register, 8 * at)), 1),
                (SAVE_NONVOL_FAR, _) => (word().map(|at| Step::Save(register, at)), 2),
                (SAVE_XMM128, _) => (half(0).map(|_| Step::Nothing), 1),
                (SAVE_XMM128_FAR, _) => (word().map(|_| Step::Nothing), 2),
                (PUSH_MACHFRAME, 0 | 1) => (Some(Step::Interrupt(info == 1)), 0),
                _ => (None, 0),
            };
            // The length of an unknown code is unknown, so nothing can follow.
            left = if step.is_some() { rest.get(operands..).unwrap_or_default() } else { &[] };
            Some(step.map(|step| (done_at, step)))
        })
    }
}

/// The slots after the epilogue codes, which version 2 has first: an even number, padded with zeros.
fn without_epilogues(slots: &[[u8; 2]]) -> &[[u8; 2]] {
    let epilogues = slots.iter().take_while(|slot| slot[1] & 15 == EPILOG).count();
    let filled = epilogues % 2 == 1 && slots.get(epilogues) == Some(&[0, 0]);
    slots.get(epilogues + usize::from(filled)..).unwrap_or_default()
}

/// A position in the frame: an offset from the stack pointer, or from the frame register.
#[derive(Clone, Copy, Debug)]
struct FrameOffset {
    /// By DWARF number.
    register: u8,
    offset: i64,
}

impl FrameOffset {
    fn behind(self, bytes: i64) -> Option<FrameOffset> {
        Some(FrameOffset { offset: self.offset.checked_add(bytes)?, ..self })
    }
}

/// The row at an address `into` bytes after the start of the first of `infos`, which is chained to the others.
/// `None` if they have none, or one that is unknown.
#[must_use]
pub fn row(infos: &[UnwindInfo<'_>], into: u32) -> Option<Row> {
    let mut sp = FrameOffset { register: RSP as u8, offset: 0 };
    let mut saved: [Option<FrameOffset>; 16] = [None; 16];
    let mut interrupt = None;
    for (number, info) in infos.iter().enumerate() {
        // The prologues of chained entries are complete.
        let is_done =
            |done_at: u8| number > 0 || into >= info.prologue_bytes.into() || into >= done_at.into();
        let mut is_set = info.frame.is_some();
        for step in info.steps() {
            if let (done_at, Step::SetFrame) = step? {
                is_set &= is_done(done_at);
            }
        }
        let frame = match info.frame.filter(|_| is_set) {
            Some((register, above)) => FrameOffset { register, offset: -above },
            None => FrameOffset { register: RSP as u8, offset: 0 },
        };
        for step in info.steps() {
            let (done_at, step) = step?;
            // Nothing is pushed before the machine frame.
            if interrupt.is_some() {
                return None;
            }
            if !is_done(done_at) {
                continue;
            }
            match step {
                Step::Push(register) => {
                    saved[usize::from(register)] = Some(sp);
                    sp = sp.behind(8)?;
                }
                Step::Allocate(bytes) => sp = sp.behind(bytes)?,
                Step::SetFrame if info.frame.is_none() => return None,
                Step::SetFrame => sp = frame,
                Step::Save(register, at) => saved[usize::from(register)] = Some(frame.behind(at)?),
                Step::Interrupt(error_code) => interrupt = Some(sp.behind(if error_code { 8 } else { 0 })?),
                Step::Nothing => {}
            }
        }
    }
    let cfa = match interrupt {
        // rip, cs, rflags, rsp, ss
        Some(frame) => frame.behind(40)?,
        None => sp.behind(8)?,
    };
    let mut row: Row = Row::new(Cfa::Register(cfa.register, cfa.offset));
    for (column, place) in row.columns.iter_mut().zip(saved) {
        *column = match place {
            None => Column::Same,
            Some(place) if place.register == cfa.register => Column::At(place.offset - cfa.offset),
            Some(place) => Column::AtExpression(based(place)),
        };
    }
    // The stack pointer is the CFA, whatever was pushed.
    row.columns[RSP] = Column::Same;
    row.columns[RETURN_ADDRESS] = Column::At(-8);
    if interrupt.is_some() {
        row.signal = true;
        (row.columns[RSP], row.columns[RETURN_ADDRESS]) = (Column::At(-16), Column::At(-40));
    }
    Some(row)
}

/// The DWARF expression of a place.
fn based(place: FrameOffset) -> Box<[u8]> {
    let mut code = vec![BREG0 + place.register];
    let mut left = place.offset;
    loop {
        let byte = (left & 0x7f) as u8;
        left >>= 7;
        if left == 0 && byte & 0x40 == 0 || left == -1 && byte & 0x40 != 0 {
            code.push(byte);
            return code.into();
        }
        code.push(byte | 0x80);
    }
}
