//! Applies relocations of symbols in debug sections of a Mach-O object file.
//!
//! Input: an object file, hostile, and the content of one of its debug sections. Output: the content with every
//! section at its address in the object file. Not for: code, which has many more kinds of relocations.
//!
//! A relocation without a symbol needs no change: the content is already the address in the object file. Format:
//! `<mach-o/reloc.h>`, `<mach-o/arm64/reloc.h>`, `<mach-o/x86_64/reloc.h>` of xnu.

use std::borrow::Cow;

use object::LittleEndian;
use object::macho::{
    ARM64_RELOC_SUBTRACTOR, ARM64_RELOC_UNSIGNED, CPU_TYPE_ARM64, CPU_TYPE_X86_64, MH_OBJECT, MachHeader64,
    Relocation, X86_64_RELOC_SUBTRACTOR, X86_64_RELOC_UNSIGNED,
};
use object::read::ReadRef;
use object::read::macho::MachHeader as _;

use super::nlist::Nlists;

/// The relocations of a section in its file.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Relocations {
    pub offset: u64,
    pub count: u32,
}

/// Adds the addresses of symbols to the content of a section. Malformed relocations are ignored.
pub(super) fn apply<'a>(data: &'a [u8], at: Relocations, content: Cow<'a, [u8]>) -> Cow<'a, [u8]> {
    if at.count == 0 {
        return content;
    }
    match relocated(data, at, &content) {
        Some(relocated) => Cow::Owned(relocated),
        None => content,
    }
}

/// The new content; `None` if nothing changes.
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
            // In linked files, relocations are for the loader.
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
        // The two parts of a difference are adjacent relocations at one address: each is added.
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

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER_BYTES: usize = 32;
    const SYMTAB_BYTES: usize = 24;
    const RELOCATIONS_AT: usize = HEADER_BYTES + SYMTAB_BYTES;

    /// An object file with two symbols, at 0x1000 and 0x20, and relocations.
    fn object(cpu: u32, kind: u32, relocations: &[[u32; 2]]) -> (Vec<u8>, Relocations) {
        let symbols_at = (RELOCATIONS_AT + relocations.len() * 8) as u32;
        // Magic, processor, subtype, file type, commands, their size, flags, reserved.
        let header = [0xfeed_facf, cpu, 0, kind, 1, SYMTAB_BYTES as u32, 0, 0];
        // LC_SYMTAB: entries, their count, strings, their size.
        let symtab = [2, SYMTAB_BYTES as u32, symbols_at, 2, symbols_at, 0];
        let symbols = [[0u32, 0x0100_000e_u32.swap_bytes(), 0x1000, 0], [0, 0, 0x20, 0]];
        let words = header.into_iter().chain(symtab).chain(relocations.iter().flatten().copied());
        let bytes = words.chain(symbols.into_iter().flatten()).flat_map(u32::to_le_bytes).collect();
        (bytes, Relocations { offset: RELOCATIONS_AT as u64, count: relocations.len() as u32 })
    }

    const ARM64: u32 = 0x0100_000c;
    const X86_64: u32 = 0x0100_0007;
    const EIGHT_BYTES: u32 = 3 << 25;
    const FOUR_BYTES: u32 = 2 << 25;
    const EXTERNAL: u32 = 1 << 27;

    fn check(cpu: u32, kind: u32, relocations: &[[u32; 2]], expected: [u64; 2]) {
        let (file, at) = object(cpu, kind, relocations);
        let content = [5u64, 7].map(u64::to_le_bytes).concat();
        let found = apply(&file, at, Cow::Borrowed(&content));
        assert_eq!(*found, *expected.map(u64::to_le_bytes).concat(), "{relocations:x?}");
        let changes = expected != [5, 7];
        assert_eq!(matches!(found, Cow::Owned(_)), changes, "copied only if it must be");
    }

    #[test]
    fn addresses_of_symbols_are_added() {
        let (object, dsym) = (1, 10);
        for (cpu, subtractor) in [(ARM64, 1 << 28), (X86_64, 5 << 28)] {
            check(cpu, object, &[[0, EXTERNAL | EIGHT_BYTES]], [0x1005, 7]);
            check(cpu, object, &[[8, EXTERNAL | EIGHT_BYTES | 1]], [5, 0x27]);
            check(cpu, object, &[[8, EXTERNAL | FOUR_BYTES | 1]], [5, 0x27]);
            // A difference: the first symbol minus the second.
            let minus = [0, EXTERNAL | EIGHT_BYTES | subtractor | 1];
            check(cpu, object, &[minus, [0, EXTERNAL | EIGHT_BYTES]], [0xfe5, 7]);
            // Of a section: the address is already there.
            check(cpu, object, &[[0, EIGHT_BYTES | 1]], [5, 7]);
            // In linked files they are ignored.
            check(cpu, dsym, &[[0, EXTERNAL | EIGHT_BYTES]], [5, 7]);
        }
        check(0x0100_0012, object, &[[0, EXTERNAL | EIGHT_BYTES]], [5, 7]);
    }

    #[test]
    fn malformed_relocations_are_ignored() {
        let good = [0, EXTERNAL | EIGHT_BYTES];
        // No such symbol; beyond the end; across it; another kind; pc-relative.
        for bad in [
            [8, EXTERNAL | EIGHT_BYTES | 2],
            [16, EXTERNAL | EIGHT_BYTES],
            [9, EXTERNAL | EIGHT_BYTES],
            [0x7fff_fff0, EXTERNAL | EIGHT_BYTES],
            [8, EXTERNAL | EIGHT_BYTES | 9 << 28],
            [8, EXTERNAL | EIGHT_BYTES | 1 << 24],
            [8, EXTERNAL],
        ] {
            check(ARM64, 1, &[good, bad], [0x1005, 7]);
        }
        let (file, at) = object(ARM64, 1, &[good]);
        let content = [0; 8];
        for at in [Relocations { count: 1 << 30, ..at }, Relocations { offset: u64::MAX, ..at }] {
            assert_eq!(*apply(&file, at, Cow::Borrowed(&content)), content);
        }
        assert_eq!(*apply(&file[..40], at, Cow::Borrowed(&content)), content);
    }
}
