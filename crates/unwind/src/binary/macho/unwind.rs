//! The unwind information of a Mach-O image: the rule for the caller in the body of the function at an address.
//!
//! `Unwind` searches both sections; `Entry` and `CompactRow` are an entry of compact unwind information and what it
//! means.
//!
//! Input: a summary and the bytes it was read from (a file, or an image in memory, including one of a shared
//! cache: the sections are in `__TEXT`). Output: a [`Body`]. `__unwind_info` refers to `__eh_frame` for some
//! functions; files without the former are searched in the latter.

#[cfg(test)]
mod unwind_info_tests;

use std::ops::Range;

use super::{CPU_ARM64, CPU_X86_64, MachO};
use crate::addr::Svma;
use crate::binary::ImageBytes;
use crate::binary::cfi::Entries;
use crate::binary::frame_rule::{
    AARCH64_COLUMNS, Body, COLUMNS, Cfa, Column, Columns, RETURN_ADDRESS, Row, RowAarch64,
};

/// The location of the sections.
#[derive(Clone, Debug)]
pub struct Unwind {
    /// Offsets in the file.
    unwind_info: Option<Range<u64>>,
    eh_frame: Option<(Range<u64>, Entries)>,
}

impl Unwind {
    /// Finds the sections; `None` if the image has neither.
    #[must_use]
    pub fn find(macho: &MachO) -> Option<Unwind> {
        let range = |svma: &Range<Svma>| {
            let start = macho.file_offset_of(svma.start)?;
            Some(start..start.checked_add(svma.end - svma.start)?)
        };
        let unwind_info = macho.unwind_info.as_ref().and_then(range);
        let eh_frame = macho
            .eh_frame
            .as_ref()
            .and_then(|svma| Some((range(svma)?, Entries::new(svma.start, macho.text.start))));
        (unwind_info.is_some() || eh_frame.is_some()).then_some(Unwind { unwind_info, eh_frame })
    }

    /// The unwind information for the body of the function at a stated address.
    #[must_use]
    pub fn body(&self, macho: &MachO, bytes: &ImageBytes, at: Svma) -> Option<Body> {
        match macho.cpu_type {
            CPU_X86_64 => {
                let decode = |encoding, start: u32| {
                    let function = macho.file_offset_of(macho.text.start + u64::from(start))?;
                    x86_64(encoding, bytes.from_offset(function))
                };
                let (row, compact) = self.row::<[Column; COLUMNS]>(macho, bytes, at, decode)?;
                Some(Body { row: row.into(), compact })
            }
            CPU_ARM64 => {
                let decode = |encoding, _| arm64(encoding);
                let (row, compact): (RowAarch64, bool) = self.row(macho, bytes, at, decode)?;
                Some(Body { row: row.into(), compact })
            }
            _ => None,
        }
    }

    /// The bounds of the function at a stated address by `__eh_frame`. Not by `__unwind_info`: linkers merge equal
    /// entries of neighbors.
    pub(crate) fn function(&self, bytes: &ImageBytes, at: Svma) -> Option<Range<Svma>> {
        let (range, entries) = self.eh_frame.as_ref()?;
        entries.function(section(bytes, range), at)
    }

    fn row<C: Columns>(
        &self,
        macho: &MachO,
        bytes: &ImageBytes,
        at: Svma,
        decode: impl Fn(u32, u32) -> Option<CompactRow<C>>,
    ) -> Option<(Row<C>, bool)> {
        let section = |range: &Range<u64>| section(bytes, range);
        let dwarf = |offset: Option<u32>| {
            let (range, entries) = self.eh_frame.as_ref()?;
            let row = match offset.filter(|offset| *offset != 0) {
                Some(offset) => entries.row(section(range), usize::try_from(offset).ok()?, at),
                None => entries.search(section(range), at),
            };
            row.map(|row| (row, false))
        };
        let Some(range) = &self.unwind_info else { return dwarf(None) };
        let offset = u32::try_from(at.0.checked_sub(macho.text.start.0)?).ok()?;
        let entry = find(section(range), offset)?;
        match decode(entry.encoding, entry.start)? {
            CompactRow::Row(row) => Some((row, true)),
            CompactRow::Dwarf(offset) => dwarf(Some(offset)),
        }
    }
}

/// A section's bytes, clipped to the available ones.
fn section<'a>(bytes: &'a ImageBytes, range: &Range<u64>) -> &'a [u8] {
    let from = bytes.from_offset(range.start);
    let length = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
    &from[..length.min(from.len())]
}

// ---- Compact unwind information: the section `__unwind_info` → the entry of an address, and an entry → the row in
// its function's body.
//
// Each look-up is two binary searches in the bytes; nothing is cached.
//
// Not the crate `macho-unwind-info`: it indexes tables by unchecked numbers from the file, so malformed files make
// it panic. Tests compare the two.
//
// Format: LLVM libunwind, include/mach-o/compact_unwind_encoding.h; semantics: src/CompactUnwinder.hpp.

/// Kinds of second-level pages.
const REGULAR: u32 = 2;
const COMPRESSED: u32 = 3;

/// Size of a first-level entry: function offset, page offset, LSDA offset.
const INDEX_BYTES: usize = 12;

/// `UNWIND_X86_64_MODE_*` and `UNWIND_ARM64_MODE_*`, shifted by 24 bits.
const RBP_FRAME: u32 = 1;
const STACK_IMMEDIATE: u32 = 2;
const STACK_INDIRECT: u32 = 3;
const X86_64_DWARF: u32 = 4;
const ARM64_FRAMELESS: u32 = 2;
const ARM64_DWARF: u32 = 3;
const ARM64_FRAME: u32 = 4;

/// Frame and stack pointer of x86_64 by DWARF number.
const RBP: u8 = 6;
const RSP: u8 = 7;

/// Frame pointer, link register and stack pointer of aarch64 by DWARF number.
const FP: u8 = 29;
const LR: u8 = 30;
const SP: u8 = 31;

/// The entry for the functions in a range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Offset of the range's first function from the image's header. Linkers merge equal entries of neighbors, so
    /// it need not be the requested function.
    pub start: u32,
    /// Offset of the next range.
    pub end: u32,
    /// `compact_unwind_encoding_t`; 0 means no information.
    pub encoding: u32,
}

/// The rule for the callers of a range of functions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompactRow<C: Columns> {
    /// This row.
    Row(Row<C>),
    /// The entry of `__eh_frame` at this offset; 0 if it does not fit into 24 bits.
    Dwarf(u32),
}

/// Finds an offset from the image's header in the content of `__unwind_info`. `None` without an entry, or if the
/// section is malformed.
#[must_use]
pub fn find(section: &[u8], offset: u32) -> Option<Entry> {
    let word = |at: usize| word(section, at);
    // version, then offset and count of: common encodings, personalities, index
    if word(0)? != 1 {
        return None;
    }
    let (common, common_count) = (word(4)? as usize, word(8)? as usize);
    let (index, index_count) = (word(20)? as usize, word(24)? as usize);
    let first = |number: usize| word(index.checked_add(number.checked_mul(INDEX_BYTES)?)?);
    let number = last_not_above(index_count, offset, first)?;
    // The last first-level entry only marks the end of the functions.
    let page_end = first(number.checked_add(1)?).filter(|_| number + 1 < index_count)?;
    let page_start = first(number)?;
    let page = word(index + number * INDEX_BYTES + 4)? as usize;
    let half =
        |at: usize| section.get(page.checked_add(at)?..)?.first_chunk().map(|b| u16::from_le_bytes(*b));
    let count = usize::from(half(6)?);
    let entries = page.checked_add(usize::from(half(4)?))?;
    let (start, end, encoding) = match word(page)? {
        REGULAR => {
            let start = |number: usize| word(entries.checked_add(number.checked_mul(8)?)?);
            let number = last_not_above(count, offset, start)?;
            let end = if number + 1 < count { start(number + 1)? } else { page_end };
            (start(number)?, end, word(entries + number * 8 + 4)?)
        }
        COMPRESSED => {
            let entry = |number: usize| word(entries.checked_add(number.checked_mul(4)?)?);
            let start = |number: usize| page_start.checked_add(entry(number)? & 0xff_ffff);
            let number = last_not_above(count, offset, start)?;
            let end = if number + 1 < count { start(number + 1)? } else { page_end };
            let encoding = entry(number)? as usize >> 24;
            let encoding = match encoding.checked_sub(common_count) {
                None => word(common.checked_add(encoding * 4)?)?,
                Some(own) if own < usize::from(half(10)?) => {
                    word(page.checked_add(usize::from(half(8)?))?.checked_add(own * 4)?)?
                }
                Some(_) => return None,
            };
            (start(number)?, end, encoding)
        }
        _ => return None,
    };
    (start <= offset && offset < end).then_some(Entry { start, end, encoding })
}

/// The last of `count` ascending numbers that does not exceed `wanted`.
fn last_not_above(count: usize, wanted: u32, number: impl Fn(usize) -> Option<u32>) -> Option<usize> {
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low + (high - low) / 2;
        if number(middle)? <= wanted {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low.checked_sub(1)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|word| u32::from_le_bytes(*word))
}

/// The row of an x86_64 encoding. `function` is the code from the function's first instruction: large frame sizes
/// are only there.
///
/// ```text
/// RBP_FRAME         CFA = rbp + 16; registers below rbp - 8 * offset
/// STACK_IMMEDIATE   CFA = rsp + 8 * size
/// STACK_INDIRECT    CFA = rsp + number in `sub $N,%rsp` + 8 * adjustment
/// ```
#[must_use]
pub fn x86_64(encoding: u32, function: &[u8]) -> Option<CompactRow<[Column; COLUMNS]>> {
    let bits = |from: u32, count: u32| encoding >> from & ((1 << count) - 1);
    let frameless = |cfa: i64| {
        let mut row: Row = Row::new(Cfa::Register(RSP, cfa));
        row.columns[RETURN_ADDRESS] = Column::At(-8);
        let registers = permutation(bits(10, 3), bits(0, 10))?;
        // The last register pushed is the first one listed.
        for (words, register) in (2..).zip(registers.into_iter().flatten().rev()) {
            row.columns[usize::from(register)] = Column::At(-8 * words);
        }
        Some(row)
    };
    let row = match bits(24, 4) {
        RBP_FRAME => {
            let mut row: Row = Row::new(Cfa::Register(RBP, 16));
            row.columns[RETURN_ADDRESS] = Column::At(-8);
            row.columns[usize::from(RBP)] = Column::At(-16);
            let below = i64::from(bits(16, 8));
            for number in 0..5 {
                let register = register(bits(3 * number, 3)).ok()?;
                if let Some(register) = register.filter(|register| *register != RBP) {
                    let at = -16 - 8 * (below - i64::from(number));
                    row.columns[usize::from(register)] = Column::At(at);
                }
            }
            row
        }
        STACK_IMMEDIATE => frameless(8 * i64::from(bits(16, 8)))?,
        STACK_INDIRECT => {
            let size = word(function, bits(16, 8) as usize)?;
            frameless(i64::from(size) + 8 * i64::from(bits(13, 3)))?
        }
        X86_64_DWARF => return Some(CompactRow::Dwarf(bits(0, 24))),
        _ => return None,
    };
    Some(CompactRow::Row(row))
}

/// A number outside `UNWIND_X86_64_REG_*`.
struct UnknownRegister;

/// `UNWIND_X86_64_REG_*` → DWARF number; `None` for `UNWIND_X86_64_REG_NONE`.
fn register(number: u32) -> Result<Option<u8>, UnknownRegister> {
    const NUMBERS: [Option<u8>; 7] = [None, Some(3), Some(12), Some(13), Some(14), Some(15), Some(6)];
    NUMBERS.get(number as usize).copied().ok_or(UnknownRegister)
}

/// The registers of a frameless function, in pop order: `number` is the index of the permutation of `count` of the
/// six (Lehmer code).
fn permutation(count: u32, number: u32) -> Option<[Option<u8>; 6]> {
    let count = usize::try_from(count).ok().filter(|count| *count <= 6)?;
    let mut left: Vec<u32> = (1..=6).collect();
    let mut rest = number;
    let mut registers = [None; 6];
    for (index, place) in registers.iter_mut().enumerate().take(count) {
        // Number of permutations of the remaining registers: 6 registers have as many as 5.
        let after: u32 = (index + 1..count).map(|later| 6 - later as u32).product();
        let chosen = rest / after;
        rest %= after;
        if chosen as usize >= left.len() {
            return None;
        }
        *place = register(left.remove(chosen as usize)).ok()?;
    }
    Some(registers)
}

/// The row of an arm64 encoding.
///
/// ```text
/// FRAME       CFA = x29 + 16; pairs of registers below the record
/// FRAMELESS   CFA = sp + 16 * size; the return address is in x30
/// ```
#[must_use]
pub fn arm64(encoding: u32) -> Option<CompactRow<[Column; AARCH64_COLUMNS]>> {
    let bits = |from: u32, count: u32| encoding >> from & ((1 << count) - 1);
    let (mut row, mut below) = match bits(24, 4) {
        ARM64_FRAMELESS => {
            let size = 16 * i64::from(bits(12, 12));
            (RowAarch64::new(Cfa::Register(SP, size)), 0)
        }
        ARM64_FRAME => {
            let mut row = RowAarch64::new(Cfa::Register(FP, 16));
            row.columns[usize::from(FP)] = Column::At(-16);
            row.columns[usize::from(LR)] = Column::At(-8);
            (row, -16)
        }
        ARM64_DWARF => return Some(CompactRow::Dwarf(bits(0, 24))),
        _ => return None,
    };
    // Pairs x19/x20 to x27/x28; floating-point registers are ignored.
    for pair in (0..5).filter(|pair| bits(*pair, 1) == 1) {
        for register in [19 + 2 * pair, 20 + 2 * pair] {
            below -= 8;
            row.columns[register as usize] = Column::At(below);
        }
    }
    Some(CompactRow::Row(row))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::binary::frame_rule::{Cfa, Column};

    const SECTION: u64 = 0x1_0000_8000;
    const FUNCTION: u64 = 0x1_0000_4000;

    /// `__eh_frame` of one 0x40-byte function: a CIE with `augmentation`, and an FDE with `instructions`.
    fn eh_frame(augmentation: &str, instructions: &[u8]) -> Vec<u8> {
        let entry = |content: Vec<u8>| {
            let mut content = content;
            content.resize(content.len().next_multiple_of(8) + 4, 0);
            [(content.len() as u32).to_le_bytes().as_slice(), &content].concat()
        };
        // CIE id, version 1, augmentation, code alignment 1, data alignment -8, return
        // address x30, FDE pointers pc-relative (0x10); CFA = sp
        let name = [augmentation.as_bytes(), &[0]].concat();
        let cie = entry([&[0, 0, 0, 0, 1], name.as_slice(), &[1, 0x78, 30, 1, 0x10, 0x0c, 31, 0]].concat());
        let start = FUNCTION.wrapping_sub(SECTION + cie.len() as u64 + 8);
        let (back, bytes) = (cie.len() as u32 + 4, 0x40u64);
        let range = [start.to_le_bytes(), bytes.to_le_bytes()].concat();
        let fde = [&back.to_le_bytes(), range.as_slice(), &[0], instructions].concat();
        [cie, entry(fde), vec![0; 4]].concat()
    }

    fn row(section: &[u8], at: u64) -> Option<RowAarch64> {
        Entries::new(Svma(SECTION), Svma(FUNCTION)).search(section, Svma(at))
    }

    #[test]
    fn rows_of_signed_functions_are_read() {
        // advance 4, negate_ra_state, advance 4, CFA = sp + 16, x30 at -8, x29 at -16
        let section = eh_frame("zR", &[0x44, 0x2d, 0x44, 0x0e, 16, 0x9e, 1, 0x9d, 2]);
        assert_eq!(row(&section, FUNCTION - 1), None);
        assert_eq!(row(&section, FUNCTION + 4).unwrap().columns[30], Column::Same);
        let body = row(&section, FUNCTION + 8).unwrap();
        assert_eq!(body.cfa, Cfa::Register(31, 16));
        assert_eq!((&body.columns[30], &body.columns[29]), (&Column::At(-8), &Column::At(-16)));
        assert!(!body.signal);
        assert_eq!(row(&section, FUNCTION + 0x40), None);
    }

    #[test]
    fn entries_of_signal_trampolines_are_marked() {
        assert!(row(&eh_frame("zRS", &[]), FUNCTION).unwrap().signal);
    }

    #[test]
    fn entries_for_return_addresses_signed_with_the_b_key_are_read() {
        // In the form of arm64e code.
        let section = eh_frame("zRB", &[0x44, 0x2d, 0x44, 0x0e, 16, 0x9e, 1]);
        let body = row(&section, FUNCTION + 8).unwrap();
        assert_eq!(
            (body.cfa, &body.columns[30], body.signal),
            (Cfa::Register(31, 16), &Column::At(-8), false)
        );
    }
}
