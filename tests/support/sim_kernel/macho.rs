//! Mach-O images of the simulated kernel: header, load commands and `__LINKEDIT` pieces.
//!
//! An image has the same bytes on disk and in its own memory; an image of the shared cache shares
//! `__LINKEDIT` and the pool of names with the others (dyld, cache_builder). Format: `<mach-o/loader.h>`,
//! `<mach-o/nlist.h>`.

use stackprof::arch::Arch;

use super::code::{Code, FIRST};
use super::spec::{Role, SimImage, Symbols};

const TEXT_SECTION: u8 = 1;
const DATA_SECTION: u8 = 3;

/// A segment: stated address, bytes in memory, offset in its file.
#[derive(Clone, Copy, Debug, Default)]
pub struct Segment {
    pub svma: u64,
    pub size: u64,
    pub offset: u64,
}

/// `__LINKEDIT` of an image, without the names.
#[derive(Clone, Debug, Default)]
pub struct Pieces {
    pub starts: Vec<u8>,
    pub trie: Vec<u8>,
    pub nlists: Vec<u8>,
}

/// File offsets of the pieces and of the pool of names.
#[derive(Clone, Copy, Debug, Default)]
pub struct Offsets {
    pub starts: u64,
    pub trie: u64,
    pub nlists: u64,
    pub strings: u64,
    pub strings_size: u64,
}

/// All values in the commands.
#[derive(Clone, Copy, Debug)]
pub struct Stated {
    pub text: Segment,
    pub data: Option<Segment>,
    pub linkedit: Segment,
    pub at: Offsets,
    pub uuid: [u8; 16],
}

/// The pieces of an image; its names are added to `pool`.
pub fn pieces(image: &SimImage, code: &Code, text: u64, data: Option<u64>, pool: &mut Vec<u8>) -> Pieces {
    let mut pieces = Pieces { starts: function_starts(code), ..Pieces::default() };
    let mut exports: Vec<(String, u64)> = Vec::new();
    let mut nlist = |name: &str, section: u8, svma: u64| {
        exports.push((format!("_{name}"), svma.wrapping_sub(text)));
        if image.symbols == Symbols::All {
            let strx = pool.len() as u32;
            pool.extend(format!("_{name}\0").as_bytes());
            pieces.nlists.extend(strx.to_le_bytes());
            pieces.nlists.extend([0x0f, section, 0, 0]); // N_SECT | N_EXT
            pieces.nlists.extend(svma.to_le_bytes());
        }
    };
    for function in &code.functions {
        nlist(&function.name, TEXT_SECTION, text + function.range.start);
    }
    let mut at = data.unwrap_or(0);
    for (name, bytes) in &image.data {
        nlist(name, DATA_SECTION, at);
        at = (at + bytes.len() as u64).next_multiple_of(8);
    }
    if image.symbols != Symbols::Stripped {
        exports.sort();
        let names: Vec<(&[u8], u64)> = exports.iter().map(|(name, at)| (name.as_bytes(), *at)).collect();
        node(&names, &mut pieces.trie);
    }
    pieces
}

/// The bytes of a data segment.
pub fn data(image: &SimImage) -> Vec<u8> {
    let mut out = Vec::new();
    for (_, bytes) in &image.data {
        out.extend_from_slice(bytes);
        out.resize(out.len().next_multiple_of(8), 0);
    }
    out
}

/// Header and load commands.
pub fn head(image: &SimImage, code: &Code, stated: &Stated, pieces: &Pieces) -> Vec<u8> {
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let text_section =
        Section { name: "__text", offset: FIRST, size: code.end() - FIRST, flags: 0x8000_0400 };
    let unwind =
        Section { name: "__unwind_info", offset: code.end(), size: code.unwind_info.len() as u64, flags: 0 };
    let mut commands = Vec::new();
    if image.role == Role::Main {
        let zero = Segment { size: stated.text.svma, ..Segment::default() };
        commands.push(segment("__PAGEZERO", &zero, 0, &[]));
    }
    commands.push(segment("__TEXT", &stated.text, 5, &[text_section, unwind]));
    if let Some(data) = &stated.data {
        let section = Section { name: "__data", offset: 0, size: data.size, flags: 0 };
        commands.push(segment("__DATA", data, 3, &[section]));
    }
    commands.push(segment("__LINKEDIT", &stated.linkedit, 1, &[]));
    let at = stated.at;
    let (symbols, count) = (at.nlists as u32, pieces.nlists.len() as u32 / 16);
    commands.push(words(&[0x2, 24, symbols, count, at.strings as u32, at.strings_size as u32]));
    commands.push(words(&[0x26, 16, at.starts as u32, pieces.starts.len() as u32]));
    commands.push(words(&[0x8000_0033, 16, at.trie as u32, pieces.trie.len() as u32]));
    commands.push([words(&[0x1b, 24]).as_slice(), &stated.uuid].concat());
    if image.role == Role::Main {
        commands.push(words(&[0x8000_0028, 24, FIRST as u32, 0, 0, 0]));
    }
    let (cpu, subtype) = match (code.arch, image.cached) {
        (Arch::X86_64 | Arch::X86, false) => (0x0100_0007, 3),
        (Arch::X86_64 | Arch::X86, true) => (0x0100_0007, 8),
        (Arch::Aarch64 | Arch::Arm, false) => (0x0100_000c, 0),
        (Arch::Aarch64 | Arch::Arm, true) => (0x0100_000c, 0x8000_0002), // arm64e
    };
    let file_type = match image.role {
        Role::Main => 2,
        Role::Dylib => 6,
        Role::Dyld => 7,
    };
    let flags = if image.cached { 0x8000_0085 } else { 0x0020_0085 };
    let (count, commands) = (commands.len() as u32, commands.concat());
    let mut out = words(&[0xfeed_facf, cpu, subtype, file_type, count, commands.len() as u32, flags, 0]);
    out.extend(commands);
    assert!(out.len() as u64 <= FIRST, "the commands end before the code");
    out
}

struct Section {
    name: &'static str,
    offset: u64,
    size: u64,
    flags: u32,
}

fn segment(name: &str, at: &Segment, protection: u32, sections: &[Section]) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend(0x19u32.to_le_bytes());
    out.extend((72 + 80 * sections.len() as u32).to_le_bytes());
    out.extend(name16(name));
    let file_size = if name == "__PAGEZERO" { 0 } else { at.size };
    for word in [at.svma, at.size, at.offset, file_size] {
        out.extend(word.to_le_bytes());
    }
    for word in [protection, protection, sections.len() as u32, 0] {
        out.extend(word.to_le_bytes());
    }
    for section in sections {
        out.extend(name16(section.name));
        out.extend(name16(name));
        out.extend((at.svma + section.offset).to_le_bytes());
        out.extend(section.size.to_le_bytes());
        for word in [(at.offset + section.offset) as u32, 2, 0, 0, section.flags, 0, 0, 0] {
            out.extend(word.to_le_bytes());
        }
    }
    out
}

fn name16(name: &str) -> [u8; 16] {
    let mut out = [0; 16];
    out[..name.len()].copy_from_slice(name.as_bytes());
    out
}

pub fn uleb(mut value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    loop {
        let more = value > 0x7f;
        out.push((value & 0x7f) as u8 | u8::from(more) << 7);
        value >>= 7;
        if !more {
            return out;
        }
    }
}

fn function_starts(code: &Code) -> Vec<u8> {
    let mut out = Vec::new();
    let mut before = 0;
    for function in &code.functions {
        out.extend(uleb(function.range.start - before));
        before = function.range.start;
    }
    out.push(0);
    out.resize(out.len().next_multiple_of(8), 0);
    out
}

/// A node of the exports trie, branching at differences; offsets of children are padded to four bytes, as
/// some linkers do.
fn node(names: &[(&[u8], u64)], out: &mut Vec<u8>) {
    let terminal = names.iter().find(|(name, _)| name.is_empty());
    let terminal = terminal.map_or(Vec::new(), |(_, at)| [uleb(0), uleb(*at)].concat());
    out.extend(uleb(terminal.len() as u64));
    out.extend(terminal);
    let mut firsts: Vec<u8> = names.iter().filter_map(|(name, _)| name.first().copied()).collect();
    firsts.dedup();
    out.push(firsts.len() as u8);
    let mut children = Vec::new();
    for first in firsts {
        let group: Vec<(&[u8], u64)> =
            names.iter().filter(|(name, _)| name.first() == Some(&first)).copied().collect();
        let same = |length: &usize| group.iter().all(|(n, _)| n.get(..*length) == group[0].0.get(..*length));
        let common = (1..=group[0].0.len()).take_while(same).last().unwrap_or(1);
        out.extend_from_slice(&group[0].0[..common]);
        out.push(0);
        let offset_at = out.len();
        out.extend([0; 4]);
        children.push((offset_at, common, group));
    }
    for (offset_at, common, group) in children {
        let child = out.len();
        for (index, byte) in out[offset_at..offset_at + 4].iter_mut().enumerate() {
            *byte = (child >> (7 * index) & 0x7f) as u8 | if index < 3 { 0x80 } else { 0 };
        }
        let rest: Vec<(&[u8], u64)> = group.iter().map(|(name, at)| (&name[common..], *at)).collect();
        node(&rest, out);
    }
}
