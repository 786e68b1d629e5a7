//! Names of Mach-O stubs: the code through which an image calls functions of others.
//!
//! Input: a Mach-O file, hostile, and addresses. Output: the name of the function that the stub at an address
//! jumps to. No symbol names stubs; the section states the size of each and the start of their entries in the
//! indirect symbol table. Not for: images of the shared cache, where nearly all stubs were removed.
//!
//! Format: `<mach-o/loader.h>` of xnu, `S_SYMBOL_STUBS` (`__stubs`, `__auth_stubs`).

use object::LittleEndian;
use object::macho::{INDIRECT_SYMBOL_ABS, INDIRECT_SYMBOL_LOCAL, S_SYMBOL_STUBS};

use super::nlist::Nlists;
use super::sections::{self, Section};
use super::table::NAME_BYTES_MAX;

/// The stubs of a file.
#[derive(Debug)]
pub struct Stubs<'a> {
    sections: Vec<Section<'a>>,
    nlists: Nlists<'a>,
}

impl<'a> Stubs<'a> {
    /// Finds the tables, if any address is in a stub section.
    #[must_use]
    pub fn read(data: &'a [u8], mut addresses: impl Iterator<Item = u64>) -> Option<Stubs<'a>> {
        let mut sections = sections::all(data).ok()?;
        sections.retain(|section| section.kind == u32::from(S_SYMBOL_STUBS.0) && section.info > 0);
        addresses.find(|address| sections.iter().any(|section| section.holds(*address)))?;
        Some(Stubs { sections, nlists: Nlists::read(data)? })
    }

    /// The function that the stub at an address jumps to, by its source name.
    #[must_use]
    pub fn name(&self, address: u64) -> Option<&'a [u8]> {
        let section = self.sections.iter().find(|section| section.holds(address))?;
        let number = (address - section.svma) / u64::from(section.info);
        let at = u64::from(section.link).checked_add(number)?;
        let index = self.nlists.indirect.get(usize::try_from(at).ok()?)?.get(LittleEndian);
        if index.intersects(INDIRECT_SYMBOL_LOCAL | INDIRECT_SYMBOL_ABS) {
            return None;
        }
        let symbol = self.nlists.symbols.get(index.0 as usize)?;
        let name = self.nlists.name(symbol.n_strx.get(LittleEndian), NAME_BYTES_MAX);
        let name = name.strip_prefix(b"_").unwrap_or(name);
        (!name.is_empty()).then_some(name)
    }
}
