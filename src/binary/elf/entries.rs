//! Entries of functions of an ELF file, by their names.
//!
//! Input: the bytes of a file, hostile. Output: stated addresses. Of 32-bit Arm the last bit says that the function is
//! T32 (ELF for the Arm Architecture, 5.5.3). Not for: names of addresses (see `symbol::table`).

use object::LittleEndian;
use object::elf::{self, FileHeader32, FileHeader64};
use object::read::elf::{FileHeader, Sym};

use super::{Class, class};
use crate::addr::Svma;

/// The entry of each of these functions, `None` where the file defines none of that name, or several.
#[must_use]
pub fn find(bytes: &[u8], names: &[&str]) -> Vec<Option<Svma>> {
    let found = match class(bytes) {
        Ok(Class::Elf32) => collect::<FileHeader32<LittleEndian>>(bytes, names),
        Ok(Class::Elf64) => collect::<FileHeader64<LittleEndian>>(bytes, names),
        Err(_) => return vec![None; names.len()],
    };
    let found = found.unwrap_or_default();
    let one = |index: usize| {
        let mut all = found.iter().filter(|(of, _)| *of == index).map(|(_, svma)| *svma);
        let first = all.next()?;
        all.all(|other| other == first).then_some(first)
    };
    (0..names.len()).map(one).collect()
}

fn collect<H: FileHeader<Endian = LittleEndian>>(
    data: &[u8],
    names: &[&str],
) -> object::read::Result<Vec<(usize, Svma)>> {
    let header = H::parse(data)?;
    let endian = header.endian()?;
    let table = header.sections(endian, data)?.symbols(endian, data, elf::SHT_SYMTAB)?;
    let mut found = Vec::new();
    for symbol in table.iter() {
        if symbol.st_type() != elf::STT_FUNC || symbol.is_undefined(endian) {
            continue;
        }
        let name = table.symbol_name(endian, symbol).unwrap_or_default();
        let index = names.iter().position(|wanted| wanted.as_bytes() == name);
        found.extend(index.map(|index| (index, Svma(symbol.st_value(endian).into()))));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_found_by_name_and_others_are_not() {
        let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        if class(&program).is_err() {
            // A program of macOS.
            return;
        }
        let found = find(&program, &["main", "no such function"]);
        assert!(found[0].is_some_and(|main| main.0 != 0) && found[1].is_none());
        assert_eq!(find(b"\x7fELF", &["main"]), [None]);
    }
}
