//! Addresses of variables of an ELF file, by name.
//!
//! Input: the bytes of a file, hostile. Output: address and size. Suffixes by which the linker made a name unique
//! (`name.lto_priv.0`, `name.123`) are ignored. Not for: functions (see `functions`), names of addresses (see
//! `symbol::table`).

use object::LittleEndian;
use object::elf::{self, FileHeader32, FileHeader64};
use object::read::elf::{FileHeader, Sym};

use super::{Class, class, symbols};
use crate::addr::Svma;
use crate::binary::FormatError;

/// A variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its stated address.
    pub svma: Svma,
    /// Its size, 0 if the symbol has none.
    pub bytes: u64,
}

/// The variables with these names; `None` if there is none, or several.
#[must_use]
pub fn find(bytes: &[u8], names: &[&str]) -> Vec<Option<Variable>> {
    let found = match class(bytes) {
        Ok(Class::Elf32) => collect::<FileHeader32<LittleEndian>>(bytes, names),
        Ok(Class::Elf64) => collect::<FileHeader64<LittleEndian>>(bytes, names),
        Err(_) => return vec![None; names.len()],
    };
    let found = found.unwrap_or_default();
    let one = |index: usize| {
        let mut all = found.iter().filter(|(of, _)| *of == index).map(|(_, variable)| *variable);
        let first = all.next()?;
        all.all(|other| other.svma == first.svma).then_some(first)
    };
    (0..names.len()).map(one).collect()
}

/// The address of the variable with this name and size, by its static or dynamic symbol.
#[must_use]
pub fn of_size(bytes: &[u8], name: &str, size: u64) -> Option<Svma> {
    match class(bytes).ok()? {
        Class::Elf32 => of_size_in::<FileHeader32<LittleEndian>>(bytes, name, size),
        Class::Elf64 => of_size_in::<FileHeader64<LittleEndian>>(bytes, name, size),
    }
}

/// The exported variable with this name.
#[must_use]
pub fn exported(bytes: &[u8], name: &str) -> Option<Variable> {
    // Of 64-bit files.
    let header = FileHeader64::<LittleEndian>::parse(bytes).ok()?;
    let endian = header.endian().ok()?;
    let table = header.sections(endian, bytes).ok()?.symbols(endian, bytes, elf::SHT_DYNSYM).ok()?;
    let mut variables =
        table.iter().filter(|symbol| symbol.st_type() == elf::STT_OBJECT && !symbol.is_undefined(endian));
    let found = variables
        .find(|symbol| table.symbol_name(endian, symbol).is_ok_and(|found| found == name.as_bytes()))?;
    Some(Variable { svma: Svma(found.st_value(endian)), bytes: found.st_size(endian) })
}

fn of_size_in<H: FileHeader<Endian = LittleEndian>>(data: &[u8], name: &str, size: u64) -> Option<Svma> {
    let header = H::parse(data).ok()?;
    let endian = header.endian().ok()?;
    let sections = header.sections(endian, data).ok()?;
    [elf::SHT_DYNSYM, elf::SHT_SYMTAB].into_iter().find_map(|kind| {
        let table = symbols(&sections, data, kind).ok()?;
        // By size first: names are scattered over the file.
        let of_size = table.iter().filter(|symbol| {
            symbol.st_size(endian).into() == size
                && symbol.st_type() == elf::STT_OBJECT
                && !symbol.is_undefined(endian)
        });
        let mut named = of_size
            .filter(|symbol| table.symbol_name(endian, symbol).is_ok_and(|told| told == name.as_bytes()));
        named.next().map(|symbol| Svma(symbol.st_value(endian).into()))
    })
}

fn collect<H: FileHeader<Endian = LittleEndian>>(
    data: &[u8],
    names: &[&str],
) -> Result<Vec<(usize, Variable)>, FormatError> {
    let header = H::parse(data)?;
    let endian = header.endian()?;
    let table = symbols(&header.sections(endian, data)?, data, elf::SHT_SYMTAB)?;
    let mut found = Vec::new();
    for symbol in table.iter() {
        // gcc for Arm emits local variables without type but with size if it does not optimize.
        let is_variable = match symbol.st_type() {
            elf::STT_OBJECT => true,
            elf::STT_NOTYPE => symbol.st_size(endian).into() != 0,
            _ => false,
        };
        if !is_variable || symbol.is_undefined(endian) {
            continue;
        }
        let name = table.symbol_name(endian, symbol).unwrap_or_default();
        let name = name.split(|byte| *byte == b'.').next().unwrap_or_default();
        let index = names.iter().position(|wanted| wanted.as_bytes() == name);
        let variable =
            Variable { svma: Svma(symbol.st_value(endian).into()), bytes: symbol.st_size(endian).into() };
        found.extend(index.map(|index| (index, variable)));
    }
    Ok(found)
}
