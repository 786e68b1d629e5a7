//! Entry points of an ELF file's functions, by name.
//!
//! Input: the bytes of a file, hostile. Output: stated addresses and sizes. For 32-bit Arm, the lowest bit of an
//! address marks a T32 function (ELF for the Arm Architecture, 5.5.3). Not for: names of addresses (see
//! `symbol::table`).

use object::LittleEndian;
use object::elf::{self, FileHeader32, FileHeader64};
use object::read::elf::{FileHeader, Sym};

use super::{Class, class, symbols};
use crate::addr::Svma;
use crate::binary::FormatError;

/// The entry point of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its stated address.
    pub svma: Svma,
    /// Size of the function, 0 if the symbol has none.
    pub bytes: u64,
}

/// The entry of each of these functions, `None` if the file defines none with that name, or several. The static
/// symbol table comes first, then the dynamic one, which stripped files still have.
#[must_use]
pub fn find(bytes: &[u8], names: &[&str]) -> Vec<Option<Entry>> {
    let mut entries = vec![None; names.len()];
    for kind in [elf::SHT_SYMTAB, elf::SHT_DYNSYM] {
        let found = match class(bytes) {
            Ok(Class::Elf32) => collect::<FileHeader32<LittleEndian>>(bytes, kind, names),
            Ok(Class::Elf64) => collect::<FileHeader64<LittleEndian>>(bytes, kind, names),
            Err(_) => return entries,
        };
        let found = found.unwrap_or_default();
        for (index, entry) in entries.iter_mut().enumerate().filter(|(_, entry)| entry.is_none()) {
            let mut all = found.iter().filter(|(of, _)| *of == index).map(|(_, entry)| *entry);
            let first = all.next();
            *entry = first.filter(|first| all.all(|other| other.svma == first.svma));
        }
    }
    entries
}

/// Whether the file calls one of these functions of another file.
#[must_use]
pub fn imports(bytes: &[u8], names: &[&str]) -> bool {
    let found = match class(bytes) {
        Ok(Class::Elf32) => imports_in::<FileHeader32<LittleEndian>>(bytes, names),
        Ok(Class::Elf64) => imports_in::<FileHeader64<LittleEndian>>(bytes, names),
        Err(why) => Err(why),
    };
    found.unwrap_or(false)
}

fn imports_in<H: FileHeader<Endian = LittleEndian>>(
    data: &[u8],
    names: &[&str],
) -> Result<bool, FormatError> {
    let header = H::parse(data)?;
    let endian = header.endian()?;
    let table = symbols(&header.sections(endian, data)?, data, elf::SHT_DYNSYM)?;
    Ok(table.iter().any(|symbol| {
        let name = table.symbol_name(endian, symbol).unwrap_or_default();
        symbol.is_undefined(endian) && names.iter().any(|wanted| wanted.as_bytes() == name)
    }))
}

fn collect<H: FileHeader<Endian = LittleEndian>>(
    data: &[u8],
    kind: elf::SectionType,
    names: &[&str],
) -> Result<Vec<(usize, Entry)>, FormatError> {
    let header = H::parse(data)?;
    let endian = header.endian()?;
    let table = symbols(&header.sections(endian, data)?, data, kind)?;
    let mut found = Vec::new();
    for symbol in table.iter() {
        if symbol.st_type() != elf::STT_FUNC || symbol.is_undefined(endian) {
            continue;
        }
        let name = table.symbol_name(endian, symbol).unwrap_or_default();
        let index = names.iter().position(|wanted| wanted.as_bytes() == name);
        let entry =
            Entry { svma: Svma(symbol.st_value(endian).into()), bytes: symbol.st_size(endian).into() };
        found.extend(index.map(|index| (index, entry)));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn functions_are_found_by_name() {
        assert_eq!(find(b"\x7fELF", &["main"]), [None]);
        let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        if class(&program).is_err() {
            // A program of macOS.
            return;
        }
        let found = find(&program, &["main", "no such function"]);
        assert!(found[0].is_some_and(|main| main.svma.0 != 0) && found[1].is_none());
    }
}
