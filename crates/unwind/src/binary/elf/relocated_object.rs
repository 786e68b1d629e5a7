//! Links an object file that a JIT compiler registered through GDB's JIT interface.
//!
//! Input: 64-bit ELF, hostile: an object with load addresses in its section headers (LLVM's `RuntimeDyld`), or one
//! that describes one range of memory (QEMU). Output: the same bytes with absolute symbols, relocated sections,
//! and a segment for each code section, as in an executable. Not for: the code itself, which is relocated only in
//! the target's memory.
//!
//! Formats: System V ABI (gABI), "Relocation"; System V AMD64 ABI 4.4; ELF for the Arm 64-bit Architecture 5.7.

use std::ops::Range;

use object::LittleEndian;
use object::elf::{self, FileHeader64, Rela64, SectionHeader64, Sym64};
use object::pod::slice_from_all_bytes;
use object::read::elf::{FileHeader, Sym};

use super::SEGMENTS_MAX;
use super::file::{File, SectionHeader};
use crate::addr::Avma;

type Header = FileHeader64<LittleEndian>;
/// Size of a section header.
const SECTION_BYTES: usize = size_of::<SectionHeader64<LittleEndian>>();

/// Size of a program header, and offsets of the patched fields (gABI, "ELF Header").
const PHDR_BYTES: u16 = 56;
const E_TYPE_AT: usize = 16;
const E_PHOFF_AT: usize = 32;
const E_PHENTSIZE_AT: usize = 54;
const E_PHNUM_AT: usize = 56;
/// `sh_size` in a section header, `st_value` in a symbol.
const SH_SIZE_AT: usize = 32;
const ST_VALUE_AT: usize = 8;

/// A registered object file in linked form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelocatedObject {
    /// The file. The offset of a code byte is its address, since the file does not contain the code.
    pub bytes: Vec<u8>,
    /// Address ranges of the code; at most [`SEGMENTS_MAX`], none empty.
    pub code: Vec<Range<Avma>>,
}

/// Links a registered file; `None` if it is invalid, or describes no code.
#[must_use]
pub fn link(mut bytes: Vec<u8>) -> Option<RelocatedObject> {
    let Plan { code, changes } = plan(&bytes)?;
    for change in changes {
        change.make(&mut bytes)?;
    }
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    let headers_at = bytes.len() as u64;
    for range in &code {
        let (start, size) = (range.start.0, range.end.0 - range.start.0);
        bytes.extend([elf::PT_LOAD.0, elf::PF_R.0 | elf::PF_X.0].map(u32::to_le_bytes).concat());
        // Offset, address, physical address, size in the file and in memory, alignment.
        bytes.extend([start, start, start, size, size, 1].map(u64::to_le_bytes).concat());
    }
    for change in [
        Patch { at: E_TYPE_AT, value: elf::ET_EXEC.0.into(), width: 2 },
        Patch { at: E_PHOFF_AT, value: headers_at, width: 8 },
        Patch { at: E_PHENTSIZE_AT, value: PHDR_BYTES.into(), width: 2 },
        Patch { at: E_PHNUM_AT, value: code.len() as u64, width: 2 },
    ] {
        change.make(&mut bytes)?;
    }
    Some(RelocatedObject { bytes, code })
}

/// The file header and section headers of a file of this many bytes, which contain the code's addresses. `read`
/// fills a buffer from an offset, and returns whether it could.
pub fn headers_of(file_bytes: u64, read: &mut dyn FnMut(u64, &mut [u8]) -> bool) -> Option<Vec<u8>> {
    let mut headers = vec![0; size_of::<Header>()];
    if !read(0, &mut headers) {
        return None;
    }
    let header = Header::parse(headers.as_slice()).ok()?;
    let (start, count) = (header.e_shoff(header.endian().ok()?), header.e_shnum(LittleEndian));
    let bytes = usize::from(count) * SECTION_BYTES;
    let mut sections = vec![0; bytes];
    if start.checked_add(bytes as u64)? > file_bytes || !read(start, &mut sections) {
        return None;
    }
    headers.extend(sections);
    Some(headers)
}

/// A change to bytes of the file.
#[derive(Clone, Copy, Debug)]
struct Patch {
    at: usize,
    value: u64,
    width: usize,
}

impl Patch {
    fn make(self, bytes: &mut [u8]) -> Option<()> {
        let field = bytes.get_mut(self.at..self.at.checked_add(self.width)?)?;
        field.copy_from_slice(self.value.to_le_bytes().get(..self.width)?);
        Some(())
    }
}

struct Plan {
    code: Vec<Range<Avma>>,
    changes: Vec<Patch>,
}

/// A file being linked.
struct Object<'a> {
    file: File<'a>,
    sections: Vec<SectionHeader<'a>>,
    machine: elf::Machine,
    /// Symbol values are relative to the start of their section.
    is_relocatable: bool,
}

fn plan(bytes: &[u8]) -> Option<Plan> {
    let header = Header::parse(bytes).ok()?;
    let endian = header.endian().ok()?;
    let file = File::parse(bytes).ok()?;
    let object = Object {
        file,
        sections: file.sections().ok()?.iter().collect(),
        machine: header.e_machine(endian),
        is_relocatable: header.e_type(endian) == elf::ET_REL,
    };
    let sections = &object.sections;
    let code: Vec<_> = sections.iter().filter_map(code_of).take(SEGMENTS_MAX).collect();
    if code.is_empty() {
        return None;
    }
    let mut changes = Vec::new();
    let headers_at = usize::try_from(header.e_shoff(endian)).ok()?;
    let size_at = |section: usize| {
        let at = headers_at.checked_add(section.checked_mul(SECTION_BYTES)?)?;
        at.checked_add(SH_SIZE_AT)
    };
    let is_code = |section: &&SectionHeader<'_>| code_of(section).is_some();
    if sections.iter().filter(is_code).all(|section| section.kind == elf::SHT_NOBITS.0) {
        // The symbol and the debug information of a whole buffer name nothing in it.
        let is_name = |section: &&SectionHeader<'_>| {
            section.kind == elf::SHT_SYMTAB.0 || section.name == b".debug_info"
        };
        let names = sections.iter().enumerate().filter(|(_, section)| is_name(section));
        let sizes: Option<Vec<_>> = names.map(|(number, _)| size_at(number)).collect();
        changes.extend(sizes?.into_iter().map(|at| Patch { at, value: 0, width: 8 }));
    }
    if object.is_relocatable {
        for section in sections.iter().filter(|section| section.kind == elf::SHT_SYMTAB.0) {
            object.place_symbols(section, &mut changes);
        }
        for section in sections.iter().filter(|section| section.kind == elf::SHT_RELA.0) {
            let target = section.info as usize;
            let before = changes.len();
            if object.relocate(section, target, &mut changes).is_none() {
                // A partly relocated section would describe wrong addresses.
                changes.truncate(before);
                changes.push(Patch { at: size_at(target)?, value: 0, width: 8 });
            }
        }
    }
    Some(Plan { code, changes })
}

/// The addresses of a loaded code section.
fn code_of(section: &SectionHeader<'_>) -> Option<Range<Avma>> {
    let start = section.svma;
    let end = start.checked_add(section.size)?;
    (section.is_code() && start != 0 && start < end).then_some(Avma(start)..Avma(end))
}

impl Object<'_> {
    /// The symbols of a table, and the file offset of the first.
    fn symbols(&self, table: &SectionHeader<'_>) -> Option<(&[Sym64<LittleEndian>], usize)> {
        let part = self.file.part(&table.file)?;
        Some((slice_from_all_bytes(&self.file.bytes[part.clone()]).ok()?, part.start))
    }

    /// The load address of a symbol; `None` if the file does not define it.
    fn address_of(&self, symbol: &Sym64<LittleEndian>) -> Option<u64> {
        let value = symbol.st_value(LittleEndian);
        match symbol.st_shndx(LittleEndian) {
            elf::SHN_ABS => Some(value),
            elf::SHN_UNDEF => None,
            section => {
                let section = self.sections.get(usize::from(section.0))?;
                Some(section.svma.wrapping_add(value))
            }
        }
    }

    fn place_symbols(&self, table: &SectionHeader<'_>, changes: &mut Vec<Patch>) {
        let Some((symbols, first_at)) = self.symbols(table) else { return };
        for (index, symbol) in symbols.iter().enumerate() {
            if let Some(value) = self.address_of(symbol) {
                let at = first_at + index * size_of::<Sym64<LittleEndian>>() + ST_VALUE_AT;
                changes.push(Patch { at, value, width: 8 });
            }
        }
    }

    /// Applies relocations to section number `target`, if it describes code; `None` if that fails.
    fn relocate(
        &self,
        relocations: &SectionHeader<'_>,
        target: usize,
        changes: &mut Vec<Patch>,
    ) -> Option<()> {
        let Some(section) = self.sections.get(target) else { return Some(()) };
        if section.name != b".eh_frame" && !section.name.starts_with(b".debug_") {
            return Some(());
        }
        let content = self.file.part(&section.file)?;
        let (symbols, _) = self.symbols(self.sections.get(relocations.link as usize)?)?;
        let entries = self.file.content(&relocations.file);
        let entries: &[Rela64<LittleEndian>] = slice_from_all_bytes(entries).ok()?;
        for entry in entries {
            let symbol = symbols.get(entry.r_sym(LittleEndian, false) as usize)?;
            // Personality routines and other external symbols, which are not needed.
            let Some(symbol) = self.address_of(symbol) else { continue };
            let offset = entry.r_offset.get(LittleEndian);
            let absolute = symbol.wrapping_add_signed(entry.r_addend.get(LittleEndian));
            let relative = absolute.wrapping_sub(section.svma).wrapping_sub(offset).cast_signed();
            let (value, width) = match kind_of(self.machine, entry.r_type(LittleEndian, false))? {
                Relocation::Absolute(width) => (absolute, width),
                Relocation::Relative(8) => (relative.cast_unsigned(), 8),
                Relocation::Relative(width) => {
                    (i64::from(i32::try_from(relative).ok()?).cast_unsigned(), width)
                }
            };
            let at = content.start.checked_add(usize::try_from(offset).ok()?)?;
            if at.checked_add(width)? > content.end {
                return None;
            }
            changes.push(Patch { at, value, width });
        }
        Some(())
    }
}

/// The kind of a relocation, with its size in bytes.
enum Relocation {
    /// Symbol plus addend.
    Absolute(usize),
    /// Symbol plus addend, relative to the relocated place.
    Relative(usize),
}

fn kind_of(machine: elf::Machine, relocation: elf::RelocationType) -> Option<Relocation> {
    Some(match (machine, relocation) {
        (elf::EM_X86_64, elf::R_X86_64_64) | (elf::EM_AARCH64, elf::R_AARCH64_ABS64) => {
            Relocation::Absolute(8)
        }
        (elf::EM_X86_64, elf::R_X86_64_32 | elf::R_X86_64_32S) | (elf::EM_AARCH64, elf::R_AARCH64_ABS32) => {
            Relocation::Absolute(4)
        }
        (elf::EM_X86_64, elf::R_X86_64_PC64) | (elf::EM_AARCH64, elf::R_AARCH64_PREL64) => {
            Relocation::Relative(8)
        }
        (elf::EM_X86_64, elf::R_X86_64_PC32) | (elf::EM_AARCH64, elf::R_AARCH64_PREL32) => {
            Relocation::Relative(4)
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
