//! Names of PLT stubs: the code through which a file calls functions of others.
//!
//! Input: an ELF file, hostile, and addresses. Output: the name of the function that the stub at an address jumps
//! to. No symbol names stubs; each jumps through a slot of the GOT, and the relocation of that slot has the name.
//! Decoding the jump instead of counting stubs supports all linker layouts (`.plt`, `.plt.sec`, `.plt.got`; with
//! or without IBT or BTI).
//!
//! Format: "System V ABI, AMD64 Architecture Processor Supplement", figures 5.2 and 12.2; "System V ABI, Intel386
//! Architecture Processor Supplement", figures 5-7 and 5-8; "ELF for the Arm 64-bit Architecture",
//! `R_AARCH64_JUMP_SLOT`.

use std::ops::Range;

use hashbrown::HashMap;

use super::sections::{self, Section};
use super::table::NAME_BYTES_MAX;
use crate::binary::elf::Elf;
use crate::binary::object::name_at;
use crate::images::Image;

/// The stubs of a file.
#[derive(Debug)]
pub struct Stubs<'a> {
    sections: Vec<Section<'a>>,
    machine: u16,
    /// The symbols that relocations refer to, and their names.
    tables: Vec<(&'a [u8], &'a [u8])>,
    /// Symbols by slot address, and by relocation number in `.rela.plt`.
    slots: HashMap<u64, Symbol>,
    lazy: Vec<Symbol>,
    /// Base of slots in position-independent code (`.got.plt`, or `.got`); i386.
    got: u64,
}

/// The stub sections of an ELF image, by stated address.
#[must_use]
pub(super) fn ranges(image: &Image) -> Vec<Range<u64>> {
    let Ok(bytes) = &image.bytes else { return Vec::new() };
    let sections = sections::all(bytes.bytes()).unwrap_or_default();
    let plts = sections.iter().filter(|section| is_plt(section)).take(SECTIONS_MAX);
    plts.map(|section| section.svma..section.svma.saturating_add(section.size)).collect()
}

fn is_plt(section: &Section<'_>) -> bool {
    section.is_code && section.name.starts_with(".plt")
}

/// Table and symbol index. Names are built only on request: all relocations of a file may refer to one long name.
type Symbol = (u8, u32);

/// Limit on stub sections; linkers create up to three.
const SECTIONS_MAX: usize = 16;
const X86_64: u16 = 62;
const AARCH64: u16 = 183;
const I386: u16 = 3;
/// Size of a relocation (`Elf64_Rela`) and a symbol (`Elf64_Sym`).
const ENTRY_BYTES: usize = 24;
/// Size of a relocation (`Elf32_Rel`) and a symbol (`Elf32_Sym`) of 32-bit files.
const NARROW_RELOCATION_BYTES: usize = 8;
const NARROW_SYMBOL_BYTES: usize = 16;
/// Longest stub: on aarch64 with BTI and pointer authentication.
const STUB_BYTES: usize = 24;

impl<'a> Stubs<'a> {
    /// Reads the relocations, if any address is in a PLT.
    #[must_use]
    pub fn read(data: &'a [u8], mut addresses: impl Iterator<Item = u64>) -> Option<Stubs<'a>> {
        let sections = sections::all(data).ok()?;
        let plts = sections.iter().filter(|section| is_plt(section));
        let plts: Vec<Section<'a>> = plts.take(SECTIONS_MAX).cloned().collect();
        if !addresses.any(|address| plts.iter().any(|section| section.holds(address))) {
            return None;
        }
        let elf = Elf::parse(data).ok().filter(|elf| elf.is_64 || elf.machine == I386)?;
        let got = [".got.plt", ".got"].into_iter();
        let got = got.into_iter().find_map(|name| sections.iter().find(|section| section.name == name));
        let mut stubs = Stubs {
            sections: plts,
            machine: elf.machine,
            tables: Vec::new(),
            slots: HashMap::new(),
            lazy: Vec::new(),
            got: got.map_or(0, |section| section.svma),
        };
        let names = if elf.is_64 { [".rela.plt", ".rela.dyn"] } else { [".rel.plt", ".rel.dyn"] };
        for name in names {
            let Some(relocations) = sections.iter().find(|section| section.name == name) else { continue };
            let Some(symbols) = sections.get(relocations.link as usize) else { continue };
            let Some(strings) = sections.get(symbols.link as usize) else { continue };
            let table = stubs.tables.len() as u8;
            stubs.tables.push((symbols.bytes, strings.bytes));
            let wide = |entry: &[u8; ENTRY_BYTES]| (word(entry, 0), (word(entry, 8) >> 32) as u32);
            // r_offset; the symbol number is the upper 24 bits of r_info
            let narrow = |entry: &[u8; NARROW_RELOCATION_BYTES]| {
                let both = u64::from_le_bytes(*entry);
                (both & u64::from(u32::MAX), (both >> 40) as u32)
            };
            let entries: Vec<(u64, u32)> = match elf.is_64 {
                true => relocations.bytes.as_chunks().0.iter().map(wide).collect(),
                false => relocations.bytes.as_chunks().0.iter().map(narrow).collect(),
            };
            for (slot, index) in entries {
                // 0 means no symbol.
                if index != 0 {
                    stubs.slots.entry(slot).or_insert((table, index));
                }
                if name == names[0] {
                    stubs.lazy.push((table, index));
                }
            }
        }
        Some(stubs)
    }

    /// The function that the stub at an address jumps to.
    #[must_use]
    pub fn name(&self, address: u64) -> Option<&'a [u8]> {
        let section = self.sections.iter().find(|section| section.holds(address))?;
        let into = usize::try_from(address - section.svma).ok()?;
        let (table, index) = match self.machine {
            X86_64 => self.x86_64(section, into),
            I386 => self.i386(section, into),
            AARCH64 => self.aarch64(section, into),
            _ => None,
        }?;
        let (symbols, strings) = self.tables.get(usize::from(table))?;
        let bytes = if self.machine == I386 { NARROW_SYMBOL_BYTES } else { ENTRY_BYTES };
        let symbol = symbols.chunks_exact(bytes).nth(index as usize)?;
        let name = u32::from_le_bytes(*symbol.first_chunk()?);
        Some(name_at(strings, name, NAME_BYTES_MAX)).filter(|name| !name.is_empty())
    }

    fn i386(&self, section: &Section<'a>, into: usize) -> Option<Symbol> {
        let size = if section.name == ".plt.got" && !section.bytes.starts_with(&[0xf3, 0x0f, 0x1e]) {
            8
        } else {
            16
        };
        let start = into - into % size;
        let stub = section.bytes.get(start..(start + size).min(section.bytes.len()))?;
        let operand = |at: usize| Some(u32::from_le_bytes(*stub.get(at..)?.first_chunk()?));
        for at in 0..stub.len() {
            match stub.get(at..)? {
                // jmp *slot; jmp *slot@GOT(%ebx)
                [0xff, 0x25, ..] => return self.slots.get(&u64::from(operand(at + 2)?)).copied(),
                [0xff, 0xa3, ..] => {
                    let slot = (self.got as u32).wrapping_add(operand(at + 2)?);
                    return self.slots.get(&u64::from(slot)).copied();
                }
                // push $offset in .rel.plt, with IBT the only content of a stub's lazy half.
                [0x68, ..] => {
                    let number = usize::try_from(operand(at + 1)?).ok()? / NARROW_RELOCATION_BYTES;
                    return self.lazy.get(number).copied();
                }
                _ => {}
            }
        }
        None
    }

    fn x86_64(&self, section: &Section<'a>, into: usize) -> Option<Symbol> {
        // Stubs have 16 bytes; those of `.plt.got` have 8 without IBT.
        let size = if section.name == ".plt.got" && !section.bytes.starts_with(&[0xf3, 0x0f, 0x1e]) {
            8
        } else {
            16
        };
        let start = into - into % size;
        let stub = section.bytes.get(start..(start + size).min(section.bytes.len()))?;
        let operand = |at: usize| Some(i32::from_le_bytes(*stub.get(at..)?.first_chunk()?));
        for at in 0..stub.len() {
            match stub.get(at..)? {
                // jmp *slot(%rip)
                [0xff, 0x25, ..] => {
                    let next = section.svma.wrapping_add((start + at + 6) as u64);
                    let slot = next.wrapping_add_signed(operand(at + 2)?.into());
                    return self.slots.get(&slot).copied();
                }
                // push $number, with IBT the only content of a stub's lazy half.
                [0x68, ..] => {
                    let number = usize::try_from(operand(at + 1)?).ok()?;
                    return self.lazy.get(number).copied();
                }
                _ => {}
            }
        }
        None
    }

    fn aarch64(&self, section: &Section<'a>, into: usize) -> Option<Symbol> {
        // The jump of this stub is the first at or after the address, its `adrp` at most a stub before.
        let instruction = |at: usize| Some(u32::from_le_bytes(*section.bytes.get(at..)?.first_chunk()?));
        let at = into - into % 4;
        let end = (at..at + STUB_BYTES).step_by(4).find(|at| is_jump(instruction(*at).unwrap_or(0)))?;
        // A jump before this one ends the preceding stub.
        for at in (end.saturating_sub(STUB_BYTES)..end).rev().filter(|at| at % 4 == 0) {
            let adrp = instruction(at)?;
            if is_jump(adrp) {
                return None;
            }
            // adrp x16, page; ldr x17, [x16, #offset]
            if adrp & 0x9f00_001f == 0x9000_0010 {
                let ldr = instruction(at + 4).filter(|ldr| ldr & 0xffc0_03ff == 0xf940_0211)?;
                let pages = (adrp >> 5 & 0x7_ffff) << 2 | (adrp >> 29 & 3);
                let pages = i64::from((pages << 11) as i32 >> 11);
                let page = (section.svma.wrapping_add(at as u64) & !0xfff).wrapping_add_signed(pages << 12);
                let slot = page.wrapping_add(u64::from(ldr >> 10 & 0xfff) * 8);
                return self.slots.get(&slot).copied();
            }
        }
        None
    }
}

/// `br x17`, also with pointer authentication (`braa x17, x16`).
fn is_jump(instruction: u32) -> bool {
    matches!(instruction, 0xd61f_0220 | 0xd71f_0a30)
}

fn word(entry: &[u8; ENTRY_BYTES], at: usize) -> u64 {
    entry[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn section(name: &'static str, svma: u64, bytes: &'static [u8]) -> Section<'static> {
        let mut section = Section::named(name);
        (section.is_code, section.svma, section.size, section.bytes) =
            (true, svma, bytes.len() as u64, bytes);
        section
    }

    fn stubs(machine: u16, section: Section<'static>, slots: &[(u64, &'static str)]) -> Stubs<'static> {
        let symbol_bytes = if machine == I386 { NARROW_SYMBOL_BYTES } else { ENTRY_BYTES };
        let (mut symbols, mut strings) = (Vec::new(), Vec::new());
        for name in ["", "first", "second"].iter().chain(slots.iter().map(|(_, name)| name)) {
            symbols.extend((strings.len() as u32).to_le_bytes());
            symbols.extend(vec![0; symbol_bytes - 4]);
            strings.extend([name.as_bytes(), b"\0"].concat());
        }
        let slots = slots.iter().zip(3..).map(|((slot, _), symbol)| (*slot, (0, symbol))).collect();
        let tables: Vec<(&[u8], &[u8])> = vec![(symbols.leak(), strings.leak())];
        Stubs { sections: vec![section], machine, tables, slots, lazy: vec![(0, 1), (0, 2)], got: 0x3ff4 }
    }

    fn check(stubs: &Stubs<'_>, address: u64, expected: Option<&str>) {
        assert_eq!(
            stubs.name(address).map(|name| std::str::from_utf8(name).unwrap()),
            expected,
            "{address:#x}"
        );
    }

    #[test]
    fn stubs_of_x86_64() {
        // push 0x2fe2(%rip); jmp *0x2fe4(%rip); nop  |  jmp *0x2fe2(%rip); push $0; jmp
        let plt = b"\xff\x35\xe2\x2f\0\0\xff\x25\xe4\x2f\0\0\x0f\x1f\x40\0\
                    \xff\x25\xe2\x2f\0\0\x68\0\0\0\0\xe9\xe0\xff\xff\xff";
        let plain = stubs(X86_64, section(".plt", 0x1020, plt), &[(0x4018, "puts")]);
        check(&plain, 0x1030, Some("puts"));
        check(&plain, 0x103f, Some("puts"));
        check(&plain, 0x1020, None);
        check(&plain, 0x1040, None);
        // endbr64; jmp *0x2fb6(%rip); nop
        let sec = b"\xf3\x0f\x1e\xfa\xff\x25\xb6\x2f\0\0\x66\x0f\x1f\x44\0\0";
        check(&stubs(X86_64, section(".plt.sec", 0x1050, sec), &[(0x4010, "exit")]), 0x1058, Some("exit"));
        // endbr64; push $1; jmp
        let lazy = b"\xf3\x0f\x1e\xfa\x68\x01\0\0\0\xe9\xe1\xff\xff\xff\x66\x90";
        check(&stubs(X86_64, section(".plt", 0x1030, lazy), &[]), 0x1034, Some("second"));
        // jmp *0x2fe2(%rip); xchg %ax,%ax
        let got = b"\xff\x25\xe2\x2f\0\0\x66\x90\xff\x25\xe2\x2f\0\0\x66\x90";
        let got = stubs(X86_64, section(".plt.got", 0x1000, got), &[(0x3fe8, "a"), (0x3ff0, "b")]);
        check(&got, 0x1007, Some("a"));
        check(&got, 0x1008, Some("b"));
    }

    #[test]
    fn stubs_of_i386() {
        // push 4(%ebx); jmp *8(%ebx); nop  |  jmp *0xc(%ebx); push $8; jmp
        let plt = b"\xff\xb3\x04\0\0\0\xff\xa3\x08\0\0\0\0\0\0\0\
                    \xff\xa3\x0c\0\0\0\x68\x08\0\0\0\xe9\xe0\xff\xff\xff";
        let anywhere = stubs(I386, section(".plt", 0x1020, plt), &[(0x4000, "puts")]);
        check(&anywhere, 0x1030, Some("puts"));
        check(&anywhere, 0x103f, Some("puts"));
        check(&anywhere, 0x1020, None);
        // jmp *0x804c00c; push $0; jmp
        let fixed = b"\xff\x25\x0c\xc0\x04\x08\x68\0\0\0\0\xe9\xe0\xff\xff\xff";
        let fixed = stubs(I386, section(".plt", 0x0804_9030, fixed), &[(0x0804_c00c, "exit")]);
        check(&fixed, 0x0804_9035, Some("exit"));
        // endbr32; push $8; jmp
        let lazy = b"\xf3\x0f\x1e\xfb\x68\x08\0\0\0\xe9\xe1\xff\xff\xff\x66\x90";
        check(&stubs(I386, section(".plt", 0x1030, lazy), &[]), 0x1034, Some("second"));
    }

    #[test]
    fn stubs_of_aarch64() {
        // adrp x16, 0x1f000; ldr x17, [x16, #0xf98]; add x16, x16, #0xf98; br x17; twice
        let plt = b"\xf0\0\0\xf0\x11\xce\x47\xf9\x10\x62\x3e\x91\x20\x02\x1f\xd6\
                    \xf0\0\0\xf0\x11\xd2\x47\xf9\x10\x82\x3e\x91\x20\x02\x1f\xd6";
        let found = stubs(AARCH64, section(".plt", 0x5d0, plt), &[(0x1ff98, "puts"), (0x1ffa0, "exit")]);
        for (address, name) in [(0x5d0, "puts"), (0x5df, "puts"), (0x5e0, "exit"), (0x5ec, "exit")] {
            check(&found, address, Some(name));
        }
    }
}
