//! PE: COFF symbols and the export table → one name per address.
//!
//! Input: the bytes of a file, hostile. Output: a [`SymbolTable`]. Symbols have no sizes: each extends to the next
//! one or to the end of its section, and unwind information shows code of other functions in between. In files
//! without symbols, which export few names, a function without unwind information ends at its padding. Not for:
//! names in a PDB.
//!
//! Format: "PE Format" (Microsoft), "COFF Symbol Table", "The .edata Section".

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use object::LittleEndian;
use object::elf::EM_X86_64;
use object::pe::{
    IMAGE_SYM_CLASS_EXTERNAL, IMAGE_SYM_CLASS_STATIC, IMAGE_SYM_CLASS_WEAK_EXTERNAL,
    IMAGE_SYM_DTYPE_FUNCTION, ImageNtHeaders32, ImageNtHeaders64, ImageSymbol,
};
use object::read::coff::Symbol as _;
use object::read::pe::ImageNtHeaders;

use super::{Entry, NONE, OPEN_ENDED, Strings, SymbolTable, compared_bytes, name_at};
use crate::addr::Svma;
use crate::binary::elf::SYMBOLS_MAX;
use crate::binary::pe::unwind::Functions;
use crate::binary::pe::{self, Pe};
use crate::binary::{FormatError, ImageBytes};
use crate::symbol::{Why, table};

/// Limit on symbols of exports.
const EXPORTS_MAX: usize = 1 << 16;
/// Size of a symbol, and of its first field, which contains names of up to eight letters.
const SYMBOL_BYTES: usize = 18;
const SHORT_NAME_BYTES: usize = 8;
/// Set in [`Entry::name`] of a name in the symbol itself, which may lack a NUL.
const SHORT: u32 = 1 << 31;

/// The rank of a name for its address, lower is better.
const RANK_FUNCTION: u32 = 0;
const RANK_EXPORT: u32 = 1;
const RANK_LOCAL_FUNCTION: u32 = 2;
const RANK_LABEL: u32 = 3;

/// Whether a file has symbols besides its exports.
pub(crate) fn has_symbols(bytes: &[u8]) -> bool {
    Pe::parse(bytes).and_then(|pe| symbols(bytes, &pe)).is_ok_and(|symbols| !symbols.is_empty())
}

pub(super) fn parse(bytes: &ImageBytes) -> Result<SymbolTable, Why> {
    let data = bytes.bytes();
    let pe = Pe::parse(data)?;
    let names = Names(bytes.clone());
    let mut entries = symbols(data, &pe)?;
    let has_symbols = !entries.is_empty();
    entries.extend(exports(data, &pe));
    if entries.is_empty() {
        return Err(Why::NoSymbols);
    }
    entries.sort_unstable_by_key(|entry| (entry.start, entry.link, entry.name));
    choose(&mut entries, &names);
    for index in 0..entries.len() {
        let next = entries.get(index + 1).map_or(u64::MAX, |entry| entry.start);
        let entry = &mut entries[index];
        (entry.end, entry.link) = (entry.end.min(next), NONE | OPEN_ENDED);
    }
    if !has_symbols && let Some(functions) = Functions::find(&pe, data) {
        end_at_returns(&mut entries, &pe, &functions, data);
    }
    Ok(SymbolTable::new(entries, Arc::new(names)))
}

/// The symbols that name code.
///
/// # Errors
/// There are more than [`SYMBOLS_MAX`].
fn symbols(data: &[u8], pe: &Pe) -> Result<Vec<Entry>, FormatError> {
    let found = match pe.is_64 {
        true => symbols_of::<ImageNtHeaders64>(data, pe),
        false => symbols_of::<ImageNtHeaders32>(data, pe),
    };
    found.unwrap_or_else(|| Ok(Vec::new()))
}

fn symbols_of<H: ImageNtHeaders>(data: &[u8], pe: &Pe) -> Option<Result<Vec<Entry>, FormatError>> {
    let (headers, _, offset) = pe::headers::<H>(data).ok()?;
    let sections = headers.sections(data, offset).ok()?;
    let table = headers.symbols(data).ok()?;
    if table.len() > SYMBOLS_MAX {
        return Some(Err(FormatError::TooManySymbols));
    }
    let first = headers.file_header().pointer_to_symbol_table.get(LittleEndian);
    let strings = u64::from(first).checked_add((table.len() as u64).checked_mul(SYMBOL_BYTES as u64)?)?;
    let entry = |(index, symbol): (object::SymbolIndex, &ImageSymbol)| {
        let name_at = match symbol.raw_name() {
            [0, 0, 0, 0, offset @ ..] => strings.checked_add(u32::from_le_bytes(*offset).into())?,
            _ => u64::from(first).checked_add(index.0 as u64 * SYMBOL_BYTES as u64)? | u64::from(SHORT),
        };
        let is_function = symbol.derived_type() == IMAGE_SYM_DTYPE_FUNCTION;
        let link = match (symbol.storage_class(), is_function) {
            (IMAGE_SYM_CLASS_EXTERNAL | IMAGE_SYM_CLASS_WEAK_EXTERNAL, true) => RANK_FUNCTION,
            (IMAGE_SYM_CLASS_STATIC, true) => RANK_LOCAL_FUNCTION,
            // Functions in assembly. Static ones are sections and jump targets.
            (IMAGE_SYM_CLASS_EXTERNAL, false) => RANK_LABEL,
            _ => return None,
        };
        let section = sections.section(symbol.section()?).ok()?;
        let rva = section.virtual_address.get(LittleEndian).checked_add(symbol.value())?;
        place(pe, rva, u32::try_from(name_at).ok()?, link)
    };
    Some(Ok(table.iter().filter_map(entry).collect()))
}

/// The file's exports.
fn exports(data: &[u8], pe: &Pe) -> Vec<Entry> {
    let Some(table) = pe::exports(data) else { return Vec::new() };
    let entry = |(pointer, index)| {
        let rva = table.address_by_index(index).ok().filter(|rva| !table.is_forward(*rva))?;
        let name_at = pe.file_offset_of(pe.image_base.checked_add(u64::from(pointer))?)?;
        place(pe, rva, u32::try_from(name_at).ok().filter(|at| *at < SHORT)?, RANK_EXPORT)
    };
    table.name_iter().take(EXPORTS_MAX).filter_map(entry).collect()
}

/// A symbol in code, with the end of its section.
fn place(pe: &Pe, rva: u32, name: u32, link: u32) -> Option<Entry> {
    let section = pe.sections.iter().find(|section| section.executable && section.rva.contains(&rva))?;
    let at = |rva: u32| pe.image_base.checked_add(rva.into()).map(|svma| svma.0);
    Some(Entry { start: at(rva)?, end: at(section.rva.end)?, name, link })
}

/// Leaves one entry per address: of the best rank with a name, with the fewest leading underscores, then the
/// shortest, then the alphabetically first. Sorts them by address and rank.
fn choose(entries: &mut Vec<Entry>, names: &Names) {
    let chosen = entries.chunk_by(|a, b| a.start == b.start).filter_map(|aliases| {
        if let [only] = aliases {
            return Some(*only);
        }
        let bytes_max = compared_bytes(aliases.len());
        let key = |entry: &&Entry| {
            let name = names.name(entry.name, bytes_max);
            let underscores = name.iter().take_while(|&&byte| byte == b'_').count();
            (name.is_empty(), entry.link, underscores, name.len(), name)
        };
        aliases.iter().min_by(|a, b| key(a).cmp(&key(b))).copied()
    });
    *entries = chosen.collect();
}

/// Ends functions without unwind information after their last return.
fn end_at_returns(entries: &mut [Entry], pe: &Pe, functions: &Functions<'_>, data: &[u8]) {
    for entry in entries.iter_mut() {
        let range: Range<u64> = entry.start..entry.end;
        let Some(rva) = pe.rva(Svma(entry.start)).filter(|rva| functions.entry(*rva).is_none()) else {
            continue;
        };
        let Some(code) = pe.bytes_at(data, rva) else { continue };
        let length = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        if let Some(end) = table::of(&code[..length.min(code.len())], range.start, EM_X86_64.0) {
            entry.end = end;
        }
    }
}

/// The file; names are at their offsets.
#[derive(Debug)]
struct Names(ImageBytes);

impl Strings for Names {
    fn name(&self, offset: u32, max_bytes: usize) -> Cow<'_, [u8]> {
        let bytes = self.0.bytes();
        let name = match offset & SHORT {
            0 => name_at(bytes, offset, max_bytes),
            _ => name_at(bytes, offset & !SHORT, max_bytes.min(SHORT_NAME_BYTES)),
        };
        Cow::Borrowed(name)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::binary::pe::build::{BASE, File, Function, Symbol, TEXT};

    fn table(file: &File) -> Result<SymbolTable, Why> {
        SymbolTable::parse(&ImageBytes::new(file.build()))
    }

    fn name(table: &SymbolTable, into: u64) -> Option<String> {
        let symbol = table.lookup(Svma(BASE + u64::from(TEXT) + into)).ok()?;
        Some(String::from_utf8_lossy(&symbol.name).into_owned())
    }

    fn symbol(name: &'static str, value: u32, is_function: bool, is_external: bool) -> Symbol {
        Symbol { name, value, is_function, is_external }
    }

    #[test]
    fn symbols_name_functions_and_the_best_one_an_address() {
        let file = File {
            code: vec![0x90; 0x100],
            exports: vec![("also", TEXT), ("exported", TEXT + 0x80)],
            symbols: vec![
                symbol(".text", 0, false, false),
                symbol("a_function_of_many_letters", 0, true, true),
                symbol("eightlet", 0x20, true, false),
                symbol("assembly", 0x40, false, true),
                symbol("outside", 0x1000, true, true),
            ],
            ..File::default()
        };
        let table = table(&file).unwrap();
        let expected =
            [(0, "a_function_of_many_letters"), (0x20, "eightlet"), (0x5f, "assembly"), (0x80, "exported")];
        for (into, wanted) in expected {
            assert_eq!(name(&table, into).as_deref(), Some(wanted), "{into:#x}");
        }
        assert_eq!((name(&table, 0x100), has_symbols(&file.build())), (None, true));
    }

    #[test]
    fn exports_do_not_name_the_following_functions() {
        // ret, padding; then a function that is not exported and has unwind information.
        let mut code = vec![0xcc; 0x40];
        code[0] = 0xc3;
        let info = vec![1, 4, 1, 0, 4, 0x02, 0, 0];
        let functions = vec![Function { begin: TEXT + 0x20, end: TEXT + 0x30, info }];
        let file = File {
            code,
            functions,
            exports: vec![("leaf", TEXT), ("second", TEXT + 0x20)],
            ..File::default()
        };
        let table = table(&file).unwrap();
        assert_eq!((name(&table, 0).as_deref(), name(&table, 1)), (Some("leaf"), None));
        assert_eq!(name(&table, 0x2f).as_deref(), Some("second"));
        assert!(!has_symbols(&file.build()));
    }

    #[test]
    fn a_file_without_names_is_reported() {
        let bare = File { code: vec![0x90; 16], ..File::default() };
        assert_eq!(table(&bare).unwrap_err(), Why::NoSymbols);
    }
}
