//! Builds Mach-O files for tests, byte by byte.
//!
//! Input: the content. Output: the bytes of a file in a linker's layout: header and commands, zero bytes of "code"
//! for each section, then `__LINKEDIT`. Also included by tests/files/hostile.rs, so it refers to nothing in the
//! crate.
#![allow(dead_code, missing_docs, unreachable_pub, reason = "each test needs another part")]

/// Section flags of compiled code (`S_ATTR_PURE_INSTRUCTIONS | S_ATTR_SOME_INSTRUCTIONS`).
pub const CODE: u32 = 0x8000_0400;
pub const X86_64: u32 = 0x0100_0007;
pub const ARM64: u32 = 0x0100_000c;

/// `n_type`: defined in a section, external or not; private external.
pub const EXT: u8 = 0x0f;
pub const LOCAL: u8 = 0x0e;
pub const PRIVATE: u8 = 0x1e;
/// `N_FUN`, a debugging symbol.
pub const STAB_FUN: u8 = 0x24;

/// Start of a program's `__TEXT`.
pub const TEXT: u64 = 0x1_0000_0000;

/// A section of `__TEXT`.
#[derive(Clone, Debug)]
pub struct Section {
    pub name: &'static str,
    pub flags: u32,
    /// Offset from the start of `__TEXT`.
    pub offset: u64,
    pub size: u64,
}

/// A symbol of the symbol table.
#[derive(Clone, Debug)]
pub struct Nlist {
    pub name: Vec<u8>,
    pub kind: u8,
    pub section: u8,
    pub desc: u16,
    /// Offset from the start of `__TEXT`.
    pub offset: u64,
}

pub fn nlist(name: &str, kind: u8, offset: u64) -> Nlist {
    Nlist { name: name.as_bytes().to_vec(), kind, section: 1, desc: 0, offset }
}

/// The content of a file. `..File::default()`: an arm64 program with 0x1000 bytes of code in `__text` at `TEXT +
/// 0x1000`, 0x100 in `__stubs`, and a `__const` without code.
#[derive(Clone, Debug)]
pub struct File {
    pub cpu: u32,
    pub subtype: u32,
    pub file_type: u32,
    pub uuid: Option<[u8; 16]>,
    pub text: u64,
    pub text_size: u64,
    pub sections: Vec<Section>,
    pub nlists: Vec<Nlist>,
    /// Offsets from the start of `__TEXT`, ascending.
    pub function_starts: Vec<u64>,
    /// The exports trie, built by [`trie`].
    pub trie: Vec<u8>,
    /// Whether the trie is in `LC_DYLD_INFO_ONLY`, as before macOS 12.
    pub dyld_info: bool,
    /// `LC_MAIN`: offset from the start of `__TEXT`.
    pub entry: Option<u64>,
}

impl Default for File {
    fn default() -> File {
        File {
            cpu: ARM64,
            subtype: 0,
            file_type: 2,
            uuid: Some(*b"0123456789abcdef"),
            text: TEXT,
            text_size: 0x4000,
            sections: vec![
                Section { name: "__text", flags: CODE, offset: 0x1000, size: 0x1000 },
                Section { name: "__stubs", flags: CODE | 8, offset: 0x2000, size: 0x100 },
                Section { name: "__const", flags: 0, offset: 0x2100, size: 0x1000 },
            ],
            nlists: Vec::new(),
            function_starts: Vec::new(),
            trie: Vec::new(),
            dyld_info: false,
            entry: None,
        }
    }
}

impl File {
    pub fn build(&self) -> Vec<u8> {
        let linkedit = self.text_size;
        let mut data = Vec::new();
        let mut place = |bytes: &[u8]| {
            let at = linkedit + data.len() as u64;
            data.extend_from_slice(bytes);
            (at as u32, bytes.len() as u32)
        };
        let (nlists, strings) = self.symtab();
        let starts = place(&function_starts(&self.function_starts));
        let trie = place(&self.trie);
        let (symbols, count) = (place(&nlists).0, self.nlists.len() as u32);
        let pool = place(&strings);

        let mut commands: Vec<Vec<u8>> = vec![
            segment("__PAGEZERO", 0, self.text, 0, 0, 0, &[]),
            segment("__TEXT", self.text, self.text_size, 0, self.text_size, 5, &self.sections),
            segment("__LINKEDIT", self.text + 0x10_0000, 0x4000, linkedit, data.len() as u64, 1, &[]),
        ];
        let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        commands.push(words(&[0x2, 24, symbols, count, pool.0, pool.1]));
        commands.push(words(&[0x26, 16, starts.0, starts.1]));
        if self.dyld_info {
            let mut info = vec![0x8000_0022, 48];
            info.extend([0; 8]); // rebase, bind, weak bind, lazy bind
            info.extend([trie.0, trie.1]);
            commands.push(words(&info));
        } else {
            commands.push(words(&[0x8000_0033, 16, trie.0, trie.1]));
        }
        if let Some(uuid) = self.uuid {
            commands.push([words(&[0x1b, 24]).as_slice(), &uuid].concat());
        }
        if let Some(entry) = self.entry {
            commands.push(words(&[0x8000_0028, 24, entry as u32, 0, 0, 0]));
        }
        let (count, commands) = (commands.len() as u32, commands.concat());
        let mut file = words(&[
            0xfeed_facf,
            self.cpu,
            self.subtype,
            self.file_type,
            count,
            commands.len() as u32,
            0x0020_0085,
            0,
        ]);
        file.extend(commands);
        assert!(file.len() as u64 <= linkedit, "the commands fit before the code");
        file.resize(linkedit as usize, 0);
        file.extend(data);
        file
    }

    /// The `nlist_64` entries and their string pool, which begins with an empty name.
    pub fn symtab(&self) -> (Vec<u8>, Vec<u8>) {
        let (mut nlists, mut strings) = (Vec::new(), vec![0]);
        for nlist in &self.nlists {
            let strx = if nlist.name.is_empty() { 0 } else { strings.len() as u32 };
            nlists.extend(strx.to_le_bytes());
            nlists.extend([nlist.kind, nlist.section]);
            nlists.extend(nlist.desc.to_le_bytes());
            nlists.extend((self.text.wrapping_add(nlist.offset)).to_le_bytes());
            strings.extend_from_slice(&nlist.name);
            strings.push(0);
        }
        (nlists, strings)
    }
}

fn segment(
    name: &str,
    svma: u64,
    size: u64,
    offset: u64,
    file_size: u64,
    protection: u32,
    sections: &[Section],
) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend(0x19u32.to_le_bytes());
    out.extend((72 + 80 * sections.len() as u32).to_le_bytes());
    out.extend(name16(name));
    for word in [svma, size, offset, file_size] {
        out.extend(word.to_le_bytes());
    }
    for word in [protection, protection, sections.len() as u32, 0] {
        out.extend(word.to_le_bytes());
    }
    for section in sections {
        out.extend(name16(section.name));
        out.extend(name16(name));
        out.extend((svma + section.offset).to_le_bytes());
        out.extend(section.size.to_le_bytes());
        for word in [(offset + section.offset) as u32, 2, 0, 0, section.flags, 0, 0, 0] {
            out.extend(word.to_le_bytes());
        }
    }
    out
}

/// Names of 16 bytes have no NUL.
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

fn function_starts(offsets: &[u64]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut before = 0;
    for offset in offsets {
        out.extend(uleb(offset - before));
        before = *offset;
    }
    out.push(0);
    out.resize(out.len().next_multiple_of(8), 0);
    out
}

/// An exports trie of names with their terminal data (see [`at`]), branching where the names differ. Offsets of
/// nodes are padded to four bytes, as some linkers do.
pub fn trie(exports: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut out = Vec::new();
    let all: Vec<(&[u8], &[u8])> =
        exports.iter().map(|(name, terminal)| (name.as_bytes(), terminal.as_slice())).collect();
    node(&all, &mut out);
    out
}

/// The terminal data of an export: flags, then numbers.
pub fn at(flags: u64, numbers: &[u64]) -> Vec<u8> {
    let numbers = numbers.iter().flat_map(|number| uleb(*number));
    uleb(flags).into_iter().chain(numbers).collect()
}

fn node(names: &[(&[u8], &[u8])], out: &mut Vec<u8>) {
    let terminal = names.iter().find(|(name, _)| name.is_empty()).map_or(&[][..], |(_, terminal)| terminal);
    out.extend(uleb(terminal.len() as u64));
    out.extend_from_slice(terminal);
    let mut firsts: Vec<u8> = names.iter().filter_map(|(name, _)| name.first().copied()).collect();
    firsts.dedup();
    out.push(firsts.len() as u8);
    let mut children = Vec::new();
    for first in firsts {
        let group = names.iter().filter(|(name, _)| name.first() == Some(&first));
        let group: Vec<(&[u8], &[u8])> = group.copied().collect();
        let common = (1..=group[0].0.len())
            .take_while(|length| {
                group.iter().all(|(name, _)| name.get(..*length) == group[0].0.get(..*length))
            })
            .last()
            .unwrap_or(1);
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
        let rest: Vec<(&[u8], &[u8])> =
            group.iter().map(|(name, terminal)| (&name[common..], *terminal)).collect();
        node(&rest, out);
    }
}

/// A fat file: `(cputype, cpusubtype, bytes)` for each image, aligned to 0x4000.
pub fn fat(images: &[(u32, u32, Vec<u8>)], wide: bool) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend(if wide { 0xcafe_babf_u32 } else { 0xcafe_babe }.to_be_bytes());
    out.extend((images.len() as u32).to_be_bytes());
    let mut at = 0x4000u64;
    for (cpu, subtype, bytes) in images {
        out.extend(cpu.to_be_bytes());
        out.extend(subtype.to_be_bytes());
        for number in [at, bytes.len() as u64] {
            let number = number.to_be_bytes();
            out.extend_from_slice(if wide { &number } else { &number[4..] });
        }
        out.extend(14u32.to_be_bytes());
        out.extend_from_slice(if wide { &[0; 4] } else { &[] });
        at = (at + bytes.len() as u64).next_multiple_of(0x4000);
    }
    for (_, _, bytes) in images {
        out.resize(out.len().next_multiple_of(0x4000), 0);
        out.extend_from_slice(bytes);
    }
    out
}

/// An i386 program with the functions `start` and `main`, of 8 bytes each from 0x2000, in ld64's layout: `__TEXT`
/// with one section, the symbol table, function starts, and the first thread's registers. Source:
/// `<mach-o/loader.h>`.
pub fn i386() -> Vec<u8> {
    const COMMANDS: u32 = 56 + 68 + 24 + 16 + 80;
    let words = |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
    let name = |name: &str| {
        let mut bytes = name.as_bytes().to_vec();
        bytes.resize(16, 0);
        bytes
    };
    let (nlists, strings, starts) = (28 + COMMANDS, 28 + COMMANDS + 24, 28 + COMMANDS + 24 + 14);
    // ULEB128: 0x1000, 8, and the end.
    let starts_content = [0x80, 0x20, 8, 0];
    let mut thread = [0; 16];
    thread[10] = 0x2000;
    [
        // magic, CPU_TYPE_I386, CPU_SUBTYPE_I386_ALL, MH_EXECUTE, commands, their size, flags
        words(&[0xfeed_face, 7, 3, 2, 4, COMMANDS, 0]),
        // LC_SEGMENT
        words(&[1, 56 + 68]),
        name("__TEXT"),
        words(&[0x1000, 0x2000, 0, 0x2000, 7, 5, 1, 0]),
        name("__text"),
        name("__TEXT"),
        // S_ATTR_PURE_INSTRUCTIONS
        words(&[0x2000, 0x10, 0x1000, 0, 0, 0, 0x8000_0000, 0, 0]),
        // LC_SYMTAB
        words(&[2, 24, nlists, 2, strings, 14]),
        // LC_FUNCTION_STARTS
        words(&[0x26, 16, starts, starts_content.len() as u32]),
        // LC_UNIXTHREAD, x86_THREAD_STATE32
        words(&[5, 80, 1, 16]),
        words(&thread),
        // n_strx; n_type N_SECT | N_EXT, n_sect 1, n_desc; n_value
        words(&[1, 0x010f, 0x2000, 8, 0x010f, 0x2008]),
        b"\0_start\0_main\0".to_vec(),
        starts_content.to_vec(),
    ]
    .concat()
}
