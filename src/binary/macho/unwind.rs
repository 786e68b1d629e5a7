//! The unwind information of a Mach-O image: the rule for the caller in the body of the function at an address.
//!
//! Input: a summary and the bytes it was read from (a file, or an image in memory, including one of a shared
//! cache: the sections are in `__TEXT`). Output: a [`Body`]. `__unwind_info` refers to `__eh_frame` for some
//! functions; files without the former are searched in the latter.

use super::unwind_info::{self, CompactRow};
use super::{CPU_ARM64, CPU_X86_64, MachO};
use crate::addr::Svma;
use crate::binary::ImageBytes;
use crate::binary::cfi::Entries;
use crate::binary::frame_rule::{Body, COLUMNS, Column, Columns, Row, RowAarch64};
use std::ops::Range;

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
                    unwind_info::x86_64(encoding, bytes.from_offset(function))
                };
                let (row, compact) = self.row::<[Column; COLUMNS]>(macho, bytes, at, decode)?;
                Some(Body { row: row.into(), compact })
            }
            CPU_ARM64 => {
                let decode = |encoding, _| unwind_info::arm64(encoding);
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
        let entry = unwind_info::find(section(range), offset)?;
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
