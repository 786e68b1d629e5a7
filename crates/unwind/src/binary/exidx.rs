//! Unwind tables of 32-bit Arm: the rule for a caller in the body of a function. Input: file bytes and a stated
//! address, all hostile. Output: the bounds of the entry there and a [`ExidxEntry`].
//!
//! Found by program header, by section, or by the symbols that linker scripts define around the table. `Machine`
//! interprets the instructions of an entry. Not for: prologues and epilogues, which these tables do not describe,
//! and landing pads of exceptions.
//!
//! Source: "Exception Handling ABI for the Arm Architecture" (IHI 0038), 5 to 7 and 10.

#[cfg(test)]
pub(crate) mod tests;

use std::ops::Range;

use object::elf;

use super::elf::file::{File, ProgramHeader, Sections};
use super::elf::{ARM, SEGMENTS_MAX};
use super::frame_rule::{ARM_COLUMNS, Cfa, Column, RowArm};
use crate::addr::Svma;
use crate::binary::frame_rule::ExidxEntry;
use crate::leb128::Leb128;

/// Program header and section of the table (ELF for the Arm Architecture, 5.3.3 and 6.1).
const PT_ARM_EXIDX: u32 = 0x7000_0001;
const SHT_ARM_EXIDX: u32 = 0x7000_0001;
/// Size of an entry: the address of the function, and its content or the address of that.
const ENTRY_BYTES: usize = 8;
/// Entry word for "no caller can be found" (IHI 0038, 5).
const CANTUNWIND: u32 = 1;

/// The table of a file.
#[derive(Clone, Debug)]
pub struct Exidx {
    /// The table in the file.
    table: Range<usize>,
    /// Its stated address.
    svma: u32,
    /// Loaded parts of the file: stated address and file range.
    segments: Vec<(u32, Range<usize>)>,
}

/// The entry for an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// From its first instruction to that of the next entry. Linkers drop entries equal to the preceding one, so
    /// these may be several functions.
    pub function: Range<Svma>,
    /// Its content.
    pub said: ExidxEntry,
}

impl Exidx {
    /// Finds the table; `None` if the file has none, or is no little-endian ELF file for 32-bit Arm.
    #[must_use]
    pub fn find(bytes: &[u8]) -> Option<Exidx> {
        let file = File::parse(bytes).ok().filter(|file| !file.is_64() && file.machine() == ARM)?;
        let headers = file.program_headers().ok();
        let of_type = |kind| headers.clone().into_iter().flatten().filter(move |header| header.kind == kind);
        let place =
            |header: ProgramHeader| Some((u32::try_from(header.svma).ok()?, file.part(&header.file)?));
        let segments: Vec<_> = of_type(elf::PT_LOAD.0).filter_map(place).take(SEGMENTS_MAX).collect();
        let sections = file.sections().ok();
        let by_section = || {
            let is_table = |name: &[u8], kind| kind == SHT_ARM_EXIDX || name == b".ARM.exidx";
            let section = sections?.iter().find(|section| is_table(section.name, section.kind))?;
            Some((u32::try_from(section.svma).ok()?, file.part(&section.file)?))
        };
        let (svma, table) = of_type(PT_ARM_EXIDX)
            .find_map(place)
            .or_else(by_section)
            .or_else(|| by_symbols(sections?, &segments))?;
        (table.len() >= ENTRY_BYTES).then_some(Exidx { table, svma, segments })
    }

    /// The entry for an address; `bytes` are those passed to [`Exidx::find`]. `None` before the first one.
    #[must_use]
    pub fn entry(&self, bytes: &[u8], at: Svma) -> Option<Entry> {
        let table = bytes.get(self.table.clone())?.as_chunks::<ENTRY_BYTES>().0;
        let at = u32::try_from(at.0).ok()?;
        let index = self.last(table, at)?;
        let start = self.start_of(table, index)?;
        // The last entry has no end; linkers emit one at the end of the code.
        let end = self.start_of(table, index + 1).unwrap_or(u32::MAX);
        let said = match self.instructions(bytes, table, index) {
            Instructions::CannotUnwind => ExidxEntry::CannotUnwind,
            Instructions::These(code) => match row(&code) {
                Some(row) => ExidxEntry::Row(Box::new(row)),
                None => ExidxEntry::Refused,
            },
            Instructions::Damaged => ExidxEntry::Refused,
        };
        Some(Entry { function: Svma(start.into())..Svma(end.into()), said })
    }

    /// The last entry with a function that begins at or before an address.
    fn last(&self, table: &[[u8; ENTRY_BYTES]], at: u32) -> Option<usize> {
        // Sorted by the linker. A malformed table may give any entry, which its bounds show.
        let (mut low, mut high) = (0, table.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.start_of(table, middle)? <= at { low = middle + 1 } else { high = middle }
        }
        low.checked_sub(1)
    }

    /// The address of the function of an entry, without the T32 bit.
    fn start_of(&self, table: &[[u8; ENTRY_BYTES]], index: usize) -> Option<u32> {
        let [a, b, c, d, ..] = *table.get(index)?;
        let place = self.place_of(index)?;
        Some(place.wrapping_add_signed(prel31(u32::from_le_bytes([a, b, c, d]))) & !1)
    }

    /// The stated address of an entry.
    fn place_of(&self, index: usize) -> Option<u32> {
        self.svma.checked_add(u32::try_from(index.checked_mul(ENTRY_BYTES)?).ok()?)
    }

    fn instructions(&self, bytes: &[u8], table: &[[u8; ENTRY_BYTES]], index: usize) -> Instructions {
        let Some([.., a, b, c, d]) = table.get(index) else { return Instructions::Damaged };
        let word = u32::from_le_bytes([*a, *b, *c, *d]);
        if word == CANTUNWIND {
            return Instructions::CannotUnwind;
        }
        if word >> 31 == 1 {
            // Inline: three bytes, for personality routine 0 only.
            return match word.to_be_bytes() {
                [0x80, code @ ..] => Instructions::These(code.to_vec()),
                _ => Instructions::Damaged,
            };
        }
        let place = self.place_of(index).and_then(|place| place.checked_add(4));
        let there = place.map(|place| place.wrapping_add_signed(prel31(word)));
        let code = there.and_then(|there| compact(self.loaded(bytes, there)?));
        code.map_or(Instructions::Damaged, Instructions::These)
    }

    /// The bytes of the file from a stated address.
    fn loaded<'a>(&self, bytes: &'a [u8], at: u32) -> Option<&'a [u8]> {
        self.segments.iter().find_map(|(svma, range)| {
            let into = usize::try_from(at.checked_sub(*svma)?).ok()?;
            bytes.get(range.clone())?.get(into..).filter(|rest| !rest.is_empty())
        })
    }
}

enum Instructions {
    CannotUnwind,
    These(Vec<u8>),
    Damaged,
}

/// The unwind instructions of an entry of `.ARM.extab`: in words, highest byte first.
fn compact(entry: &[u8]) -> Option<Vec<u8>> {
    let mut words = entry.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
    let mut first = words.next()?;
    // A custom personality routine (like `__gxx_personality_v0`): the compiler's tables begin with a word of three
    // instructions and the number of further words, since all routines known to GCC and LLVM call
    // `__gnu_unwind_frame` (libgcc config/arm/unwind-arm.c).
    let (further, count) = if first >> 31 == 0 {
        first = words.next()?;
        ((first >> 24) as usize, 3)
    } else {
        match first >> 24 {
            0x80 => (0, 3),
            // Personality routines 1 and 2: the number of words, and two instructions.
            0x81 | 0x82 => ((first >> 16 & 0xff) as usize, 2),
            _ => return None,
        }
    };
    let mut code = first.to_be_bytes()[4 - count..].to_vec();
    for _ in 0..further {
        code.extend(words.next()?.to_be_bytes());
    }
    Some(code)
}

/// Decodes a place-relative 31-bit offset (IHI 0038, 5).
fn prel31(word: u32) -> i32 {
    (word << 1).cast_signed() >> 1
}

/// The table between `__exidx_start` and `__exidx_end`, which linker scripts define for libgcc
/// (`__gnu_Unwind_Find_exidx`): some put it into a section with other data.
fn by_symbols(sections: Sections<'_>, segments: &[(u32, Range<usize>)]) -> Option<(u32, Range<usize>)> {
    let symbols = sections.symbols(elf::SHT_SYMTAB).ok()?;
    let value = |wanted: &[u8]| {
        let symbol =
            symbols.iter().find(|symbol| !symbol.is_undefined() && symbols.name(symbol) == wanted)?;
        u32::try_from(symbol.value).ok()
    };
    let (start, end) = (value(b"__exidx_start")?, value(b"__exidx_end")?);
    let length = usize::try_from(end.checked_sub(start)?).ok()?;
    let table = segments.iter().find_map(|(svma, range)| {
        let from = range.start.checked_add(usize::try_from(start.checked_sub(*svma)?).ok()?)?;
        let to = from.checked_add(length)?;
        (to <= range.end).then_some(from..to)
    })?;
    Some((start, table))
}

// ---- Interprets the instructions of an unwind table entry: bytes in, a row out. Bounded by their number; an
// instruction can only increase the virtual stack pointer.
//
// Source: IHI 0038, 10.3, table 4; B4 and B5 of the Armv8.1-M pointer authentication in release 2020Q4.

/// Register numbers (AADWARF32, 4.1).
const SP: u8 = 13;
const LR: usize = 14;
const PC: usize = 15;

/// `DW_OP_breg0`, `DW_OP_deref`, `DW_OP_plus_uconst`, `DW_OP_consts`, `DW_OP_plus`.
const BREG0: u8 = 0x70;
const DEREF: u8 = 0x06;
const CONSTS: u8 = 0x11;
const PLUS: u8 = 0x22;

/// A memory slot: a register of the frame plus bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    register: u8,
    offset: i64,
}

/// The base of the virtual stack pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Base {
    /// A register of the frame.
    Register(u8),
    /// A word that was popped.
    Word(Slot),
}

struct Machine {
    base: Base,
    /// Bytes from the base to the virtual stack pointer.
    offset: i64,
    popped: [Option<Slot>; ARM_COLUMNS],
}

impl Machine {
    /// Pops the registers of a mask, lowest first.
    fn pop(&mut self, mask: u16) -> Option<()> {
        // After popping the stack pointer itself, nothing can be popped.
        let Base::Register(register) = self.base else { return None };
        let mut loaded = None;
        for number in (0..ARM_COLUMNS).filter(|number| mask >> number & 1 == 1) {
            let slot = Slot { register, offset: self.offset };
            self.popped[number] = Some(slot);
            self.offset += 4;
            if number == usize::from(SP) {
                loaded = Some(slot);
            }
        }
        if let Some(slot) = loaded {
            (self.base, self.offset) = (Base::Word(slot), 0);
        }
        Some(())
    }

    /// Sets the virtual stack pointer to the current value of a register.
    fn set(&mut self, register: u8) {
        let popped = self.popped.get(usize::from(register)).copied().flatten();
        self.base = popped.map_or(Base::Register(register), Base::Word);
        self.offset = 0;
    }

    fn row(&self) -> Option<RowArm> {
        let cfa = match self.base {
            Base::Register(register) => Cfa::Register(register, self.offset),
            Base::Word(slot) => {
                let mut code = breg(slot);
                code.extend([DEREF, CONSTS]);
                sleb(self.offset, &mut code);
                code.push(PLUS);
                Cfa::Expression(code.into())
            }
        };
        let mut row = RowArm::new(cfa);
        for (number, slot) in self.popped.iter().enumerate() {
            let Some(slot) = slot else { continue };
            if number == usize::from(SP) {
                continue;
            }
            // The return address is the saved program counter, if there is one.
            let column = if number == PC { LR } else { number };
            row.columns[column] = match self.base {
                Base::Register(register) if register == slot.register => {
                    Column::At(slot.offset.checked_sub(self.offset)?)
                }
                _ => Column::AtExpression(breg(*slot).into()),
            };
        }
        Some(row)
    }
}

/// The row of these instructions; `None` if they refuse to unwind, are reserved, or truncated.
fn row(code: &[u8]) -> Option<RowArm> {
    let mut machine = Machine { base: Base::Register(SP), offset: 0, popped: [None; ARM_COLUMNS] };
    let mut bytes = code.iter().copied();
    while let Some(byte) = bytes.next() {
        let low = i64::from(byte & 0x3f);
        match byte {
            0x00..=0x3f => machine.offset += (low << 2) + 4,
            0x40..=0x7f => machine.offset -= (low << 2) + 4,
            0x80..=0x8f => {
                let mask = u16::from(byte & 0xf) << 12 | u16::from(bytes.next()?) << 4;
                // Refuse to unwind.
                if mask == 0 {
                    return None;
                }
                machine.pop(mask)?;
            }
            // Reserved for moves between registers.
            0x9d | 0x9f => return None,
            0x90..=0x9e => machine.set(byte & 0xf),
            0xa0..=0xaf => {
                // r4 to r[4+n], and r14.
                let mask = ((2u16 << (byte & 7)) - 1) << 4;
                machine.pop(mask | u16::from(byte >> 3 & 1) << 14)?;
            }
            // Finish.
            0xb0 => break,
            0xb1 => {
                let mask = bytes.next()?;
                if mask == 0 || mask > 0xf {
                    return None;
                }
                machine.pop(mask.into())?;
            }
            0xb2 => machine.offset += 0x204 + (uleb(&mut bytes)? << 2),
            // VFP registers saved by FSTMX: one word more.
            0xb3 => machine.offset += registers(bytes.next()?) * 8 + 4,
            // The return address authentication code.
            0xb4 => machine.offset += 4,
            // The stack pointer at this point is the signing modifier.
            0xb5 => {}
            0xb8..=0xbf => machine.offset += (i64::from(byte & 7) + 1) * 8 + 4,
            // WMMX registers: data, then control.
            0xc0..=0xc5 => machine.offset += (i64::from(byte & 7) + 1) * 8,
            0xc6 => machine.offset += registers(bytes.next()?) * 8,
            0xc7 => {
                let mask = bytes.next()?;
                if mask == 0 || mask > 0xf {
                    return None;
                }
                machine.offset += i64::from(mask.count_ones()) * 4;
            }
            // VFP registers saved by VPUSH: from d16, d0 or d8.
            0xc8 | 0xc9 => machine.offset += registers(bytes.next()?) * 8,
            0xd0..=0xd7 => machine.offset += (i64::from(byte & 7) + 1) * 8,
            _ => return None,
        }
    }
    machine.row()
}

/// The number of registers from a byte with the first register and the count minus one.
fn registers(byte: u8) -> i64 {
    i64::from(byte & 0xf) + 1
}

/// An unsigned number of at most 32 bits.
fn uleb(bytes: &mut impl Iterator<Item = u8>) -> Option<i64> {
    Leb128::read(bytes, 5).map(|number| number.bits.cast_signed())
}

fn breg(slot: Slot) -> Vec<u8> {
    let mut code = vec![BREG0 + slot.register];
    sleb(slot.offset, &mut code);
    code
}

fn sleb(mut value: i64, into: &mut Vec<u8>) {
    loop {
        let byte = (value & 0x7f) as u8;
        value >>= 7;
        if value == 0 && byte & 0x40 == 0 || value == -1 && byte & 0x40 != 0 {
            into.push(byte);
            return;
        }
        into.push(byte | 0x80);
    }
}
