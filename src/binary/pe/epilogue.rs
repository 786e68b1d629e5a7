//! Epilogues of PE code for x86_64, which unwind information does not describe: the row at an instruction that
//! pops registers, returns, or jumps to another function.
//!
//! Input: the function table, a stated address, hostile. Output: a [`Row`], or nothing if the row of the
//! function's body applies, as it does at the first instruction of an epilogue, which has undone nothing yet.
//!
//! An epilogue is `add $n,%rsp` or `lea n(%reg),%rsp`, then pops, then a return or a jump ("x64 prolog and
//! epilog", Microsoft). It pops registers in the reverse order of the prologue's pushes: code that pops others is
//! no epilogue.

use super::Pe;
use super::entry::Entry;
use super::unwind::Functions;
use super::unwind_info::{DWARF_NUMBERS, Step, UnwindInfo};
use crate::addr::Svma;
use crate::binary::frame_rule::{Cfa, Column, RETURN_ADDRESS, Row};

const RSP: u8 = 7;

/// The end of an epilogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// A return.
    Return,
    /// A jump that always leads to another function: through memory, as to imports, or with a REX.W that no other
    /// jump has.
    JumpAway,
    /// A jump to a relative address.
    JumpTo(u32),
}

/// The row at a stated address after the first instruction of an epilogue.
#[must_use]
pub fn row(pe: &Pe, functions: &Functions<'_>, at: Svma) -> Option<Row> {
    let rva = pe.rva(at)?;
    let entry = functions.entry(rva)?;
    let infos = functions.infos(entry)?;
    let is_in_prologue = infos.first().is_some_and(|info| rva - entry.begin < info.prologue_bytes.into());
    if is_in_prologue || infos.iter().all(UnwindInfo::is_empty) {
        return None;
    }
    let (popped, end) = instructions(functions.code(rva), rva)?;
    let leaves = match end {
        End::Return | End::JumpAway => true,
        End::JumpTo(target) => leaves(functions, entry, target, popped.is_empty()),
    };
    if !leaves || !is_tail_of_pushes(&infos, &popped)? {
        return None;
    }
    let cfa = 8 * (popped.len() as i64 + 1);
    let mut row: Row = Row::new(Cfa::Register(RSP, cfa));
    for (slot, register) in popped.into_iter().enumerate() {
        row.columns[usize::from(register)] = Column::At(8 * slot as i64 - cfa);
    }
    row.columns[RETURN_ADDRESS] = Column::At(-8);
    Some(row)
}

/// The registers popped from here on, by DWARF number, and the end of the epilogue.
fn instructions(code: &[u8], at: u32) -> Option<(Vec<u8>, End)> {
    let (mut left, mut popped) = (code, Vec::new());
    loop {
        let from = at.wrapping_add((code.len() - left.len()) as u32);
        let target =
            |behind: u32, distance: i32| End::JumpTo(from.wrapping_add(behind).wrapping_add_signed(distance));
        let (register, rest) = match left {
            [low @ 0x58..=0x5f, rest @ ..] => (low - 0x58, rest),
            // With a REX prefix, of which only B matters here.
            [rex @ 0x40..=0x4f, low @ 0x58..=0x5f, rest @ ..] => (low - 0x58 + 8 * (rex & 1), rest),
            [0xc3 | 0xc2, ..] | [0xf3, 0xc3, ..] => return Some((popped, End::Return)),
            [0xeb, distance, ..] => return Some((popped, target(2, i32::from(distance.cast_signed())))),
            [0xe9, rest @ ..] => {
                let distance = i32::from_le_bytes(*rest.first_chunk()?);
                return Some((popped, target(5, distance)));
            }
            // jmp *n(%rip), with or without REX.W.
            [0xff, 0x25, ..] | [0x48, 0xff, 0x25, ..] => return Some((popped, End::JumpAway)),
            // Other jumps without REX.W may belong to a switch.
            [0x48..=0x4f, 0xff, operand, ..] if operand >> 3 & 7 == 4 => {
                return Some((popped, End::JumpAway));
            }
            [0xff, operand, ..] | [0x40..=0x47, 0xff, operand, ..]
                if operand >> 3 & 7 == 4 && !popped.is_empty() =>
            {
                return Some((popped, End::JumpAway));
            }
            _ => return None,
        };
        if popped.len() >= DWARF_NUMBERS.len() {
            return None;
        }
        popped.push(DWARF_NUMBERS[usize::from(register)]);
        left = rest;
    }
}

/// Whether a jump leaves the function. After pops any address in another function is enough; without pops it must
/// be an entry: the frame may still exist, and the target be a part of the function.
fn leaves(functions: &Functions<'_>, entry: Entry, target: u32, is_bare: bool) -> bool {
    let is_inside = (entry.begin..entry.end).contains(&target);
    // A jump to the function's own first instruction is a recursive tail call.
    if is_inside {
        target == entry.begin && functions.is_entry(target)
    } else {
        !is_bare || functions.is_entry(target)
    }
}

/// Whether registers are the first that the prologue pushed, in reverse order; `None` for malformed codes.
fn is_tail_of_pushes(infos: &[UnwindInfo<'_>], popped: &[u8]) -> Option<bool> {
    let mut pushed = Vec::new();
    for info in infos {
        for step in info.steps() {
            if let (_, Step::Push(register)) = step? {
                pushed.push(register);
            }
        }
    }
    Some(pushed.ends_with(popped))
}
