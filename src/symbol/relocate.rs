//! The addresses of symbols put where a Mach-O object file leaves them to the linker.
//!
//! Input: an object file, hostile, and the content of one of its debug sections. Output: the
//! content as it is when every section stays where the object file says. Not for: code, for
//! which there are many more kinds of relocations.
//!
//! A relocation without symbol needs nothing: what is there already is the address in the
//! object file. Format: `<mach-o/reloc.h>`, `<mach-o/arm64/reloc.h>`, `<mach-o/x86_64/reloc.h>`
//! of xnu.

use std::borrow::Cow;

use object::LittleEndian;
use object::macho::{
    ARM64_RELOC_SUBTRACTOR, ARM64_RELOC_UNSIGNED, CPU_TYPE_ARM64, CPU_TYPE_X86_64, MH_OBJECT, MachHeader64,
    Relocation, X86_64_RELOC_SUBTRACTOR, X86_64_RELOC_UNSIGNED,
};
use object::read::ReadRef;
use object::read::macho::MachHeader as _;

use super::nlist::Nlists;

/// Where the relocations of a section are in its file.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Relocations {
    pub offset: u64,
    pub count: u32,
}

/// Puts the addresses of symbols into the content of a section. What is damaged is left as
/// it is.
pub(super) fn apply<'a>(data: &'a [u8], at: Relocations, content: Cow<'a, [u8]>) -> Cow<'a, [u8]> {
    if at.count == 0 {
        return content;
    }
    match relocated(data, at, &content) {
        Some(relocated) => Cow::Owned(relocated),
        None => content,
    }
}

/// The new content; `None` if nothing in it changes.
fn relocated(data: &[u8], at: Relocations, content: &[u8]) -> Option<Vec<u8>> {
    let header = MachHeader64::<LittleEndian>::parse(data, 0).ok()?;
    let cpu = header.cputype(LittleEndian);
    let (unsigned, subtractor) = match cpu {
        CPU_TYPE_ARM64 => (ARM64_RELOC_UNSIGNED, ARM64_RELOC_SUBTRACTOR),
        CPU_TYPE_X86_64 => (X86_64_RELOC_UNSIGNED, X86_64_RELOC_SUBTRACTOR),
        _ => return None,
    };
    let relocations: &[Relocation<LittleEndian>] =
        data.read_slice_at(at.offset, at.count as usize).ok().filter(|_| {
            // In what is linked, relocations are the loader's.
            header.filetype(LittleEndian) == MH_OBJECT
        })?;
    let is_external = |entry: &&Relocation<LittleEndian>| {
        !entry.r_scattered(LittleEndian, cpu) && entry.info(LittleEndian).r_extern
    };
    relocations.iter().find(is_external)?;
    let symbols = Nlists::read(data)?.symbols;
    let mut out = content.to_vec();
    for entry in relocations.iter().filter(is_external) {
        let info = entry.info(LittleEndian);
        let symbol = symbols.get(info.r_symbolnum as usize).map(|symbol| symbol.n_value.get(LittleEndian));
        let Some(symbol) = symbol.filter(|_| !info.r_pcrel) else { continue };
        // The two of a difference stand one after the other at one address: each is added.
        let change = match info.r_type {
            kind if kind == unsigned => symbol,
            kind if kind == subtractor => symbol.wrapping_neg(),
            _ => continue,
        };
        let Some(field) = out.get_mut(info.r_address as usize..) else { continue };
        match info.r_length {
            2 => {
                if let Some(field) = field.first_chunk_mut::<4>() {
                    *field = u32::from_le_bytes(*field).wrapping_add(change as u32).to_le_bytes();
                }
            }
            3 => {
                if let Some(field) = field.first_chunk_mut::<8>() {
                    *field = u64::from_le_bytes(*field).wrapping_add(change).to_le_bytes();
                }
            }
            _ => {}
        }
    }
    Some(out)
}
