//! The raw symbol table of a Mach-O file, including object files: entries, names, and the indirect table.
//!
//! Input: a whole file, hostile. Output: slices of it. Not for: choosing the symbol of an address (see
//! `table::macho`, `stubs`, `debug_map`), images in memory.
//!
//! Format: `<mach-o/nlist.h>` and `<mach-o/loader.h>` of xnu.

use object::macho::{IndirectSymbol, MachHeader64, N_SECT, N_STAB, N_TYPE, Nlist64, SymbolStab};
use object::read::macho::{LoadCommandVariant, MachHeader as _};
use object::{LittleEndian, U32};

use crate::binary::object::name_at;

/// An entry of the table.
pub(super) type Nlist = Nlist64<LittleEndian>;

/// The kind of a debugging symbol (`N_FUN` and others); `None` for other symbols.
pub(super) fn stab(symbol: &Nlist) -> Option<SymbolStab> {
    (symbol.n_type.0 & N_STAB != 0).then_some(SymbolStab(symbol.n_type.0))
}

/// Whether a symbol is defined in a section of its file.
pub(super) fn is_defined(symbol: &Nlist) -> bool {
    stab(symbol).is_none() && symbol.n_type.0 & N_TYPE == N_SECT.0
}

/// The tables of a file; empty if it has none.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Nlists<'a> {
    /// The entries, in the order of the file.
    pub symbols: &'a [Nlist],
    /// Entry indices: the targets of stubs and pointers.
    pub indirect: &'a [U32<LittleEndian, IndirectSymbol>],
    strings: &'a [u8],
}

impl<'a> Nlists<'a> {
    /// Finds the tables; `None` if the file is not 64-bit Mach-O, or has no symbols.
    pub(super) fn read(data: &'a [u8]) -> Option<Nlists<'a>> {
        let header = MachHeader64::<LittleEndian>::parse(data, 0).ok()?;
        let endian = header.endian().ok()?;
        let mut found = Nlists::default();
        let mut commands = header.load_commands(endian, data, 0).ok()?;
        while let Ok(Some(command)) = commands.next() {
            match command.variant() {
                Ok(LoadCommandVariant::Symtab(symtab)) => {
                    let table = symtab.symbols::<MachHeader64<LittleEndian>, _>(endian, data).ok()?;
                    found.symbols = table.symbols();
                    let start = symtab.stroff.get(endian) as usize;
                    let end = start.saturating_add(symtab.strsize.get(endian) as usize).min(data.len());
                    found.strings = data.get(start..end)?;
                }
                Ok(LoadCommandVariant::Dysymtab(dysymtab)) => {
                    found.indirect = dysymtab.indirect_symbols(endian, data).unwrap_or_default();
                }
                _ => {}
            }
        }
        (!found.symbols.is_empty()).then_some(found)
    }

    /// The name at an offset, truncated at `max_bytes`; empty if there is none.
    pub(super) fn name(&self, offset: u32, max_bytes: usize) -> &'a [u8] {
        name_at(self.strings, offset, max_bytes)
    }
}
