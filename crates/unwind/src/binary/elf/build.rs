//! Builds ELF files for tests, byte by byte.
//!
//! Input: the content. Output: the bytes of a file: headers, a page of "code" in `.text`, the other sections. Also
//! included by tests/memory/hostile_work.rs, so it refers to nothing in the crate.
#![allow(dead_code, missing_docs, unreachable_pub, reason = "each test needs another part")]

pub const X86_64: u16 = 62;
pub const AARCH64: u16 = 183;

/// `sh_type`.
pub const PROGBITS: u32 = 1;
pub const SYMTAB: u32 = 2;
pub const STRTAB: u32 = 3;
pub const RELA: u32 = 4;
pub const DYNSYM: u32 = 11;

/// `sh_flags` of code.
pub const CODE: u64 = 6;

/// Offset and address of `.text`; also its size.
pub const TEXT: u64 = 0x1000;

/// The number of the first section in the list.
pub const FIRST: u32 = 2;

/// A section.
#[derive(Clone, Debug)]
pub struct Section {
    pub name: String,
    pub kind: u32,
    pub flags: u64,
    pub svma: u64,
    pub content: Vec<u8>,
    pub link: u32,
}

/// A section that is not loaded.
pub fn section(name: &str, kind: u32, content: Vec<u8>, link: u32) -> Section {
    Section { name: name.to_owned(), kind, flags: 0, svma: 0, content, link }
}

/// A symbol table entry for a function in `.text`: offset of its name, address, size.
pub fn function(name: u32, svma: u64, size: u64) -> Vec<u8> {
    // STB_GLOBAL, STT_FUNC, section 1
    [&name.to_le_bytes()[..], &[0x12, 0, 1, 0], &svma.to_le_bytes(), &size.to_le_bytes()].concat()
}

/// The symbol table with entries of [`function`], and its string table.
pub fn symbols(symbols: &[Vec<u8>], names: Vec<u8>) -> [Section; 2] {
    let symbols = [vec![0; 24], symbols.concat()].concat();
    [section(".symtab", SYMTAB, symbols, FIRST + 1), section(".strtab", STRTAB, names, 0)]
}

/// The bytes of a library.
pub fn file(machine: u16, sections: &[Section]) -> Vec<u8> {
    let text = Section {
        name: ".text".to_owned(),
        kind: PROGBITS,
        flags: CODE,
        svma: TEXT,
        content: vec![0x90; TEXT as usize],
        link: 0,
    };
    let mut all = vec![section("", 0, Vec::new(), 0), text];
    all.extend_from_slice(sections);
    all.push(section(".shstrtab", STRTAB, Vec::new(), 0));
    let mut names = Vec::new();
    let at_name: Vec<u32> = all
        .iter()
        .map(|section| {
            names.extend_from_slice(section.name.as_bytes());
            names.push(0);
            (names.len() - 1 - section.name.len()) as u32
        })
        .collect();
    let last = all.len() - 1;
    all[last].content = names;

    let mut bytes = vec![0; TEXT as usize];
    let mut headers = Vec::new();
    for (section, name) in all.iter().zip(at_name) {
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let (offset, size) = (bytes.len() as u64, section.content.len() as u64);
        headers.extend([name, section.kind].map(u32::to_le_bytes).concat());
        headers.extend([section.flags, section.svma, offset, size].map(u64::to_le_bytes).concat());
        headers.extend([section.link, 0].map(u32::to_le_bytes).concat());
        headers.extend([8u64, 0].map(u64::to_le_bytes).concat());
        bytes.extend_from_slice(&section.content);
    }
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    let at_headers = bytes.len() as u64;
    bytes.extend(headers);

    let mut head = b"\x7fELF\x02\x01\x01".to_vec();
    head.resize(16, 0);
    head.extend([3, machine].map(u16::to_le_bytes).concat()); // ET_DYN
    head.extend(1u32.to_le_bytes());
    head.extend([TEXT, 64, at_headers].map(u64::to_le_bytes).concat());
    head.extend(0u32.to_le_bytes());
    head.extend([64, 56, 1, 64, all.len() as u16, last as u16].map(u16::to_le_bytes).concat());
    // PT_LOAD of headers and code, readable and executable
    head.extend([1u32, 5].map(u32::to_le_bytes).concat());
    head.extend([0, 0, 0, 2 * TEXT, 2 * TEXT, 0x1000].map(u64::to_le_bytes).concat());
    bytes[..head.len()].copy_from_slice(&head);
    bytes
}
