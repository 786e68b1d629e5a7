//! The fake images of a simulated process: where each function is, and a valid ELF file.
//!
//! Input: [`SimImage`]s. Output: ranges of functions and the bytes of a small 64-bit
//! little-endian shared object with a build id and a symbol table. The code itself
//! is filler: nothing executes or disassembles it.

use std::ops::Range;
use std::sync::Arc;

use crate::addr::Avma;
use crate::target::Arch;

use super::config::{FunctionId, SimConfig, SimImage};
use super::rng;

const PAGE_BYTES: u64 = 4096;
const SHT_PROGBITS: u32 = 1;
const SHT_SYMTAB: u32 = 2;
const SHT_STRTAB: u32 = 3;
const SHT_NOTE: u32 = 7;
const SYMBOL_BYTES: u64 = 24;
/// Index of `.text` in the section headers below.
const TEXT_SECTION: u16 = 2;

/// One image, laid out.
#[derive(Clone, Debug)]
pub(super) struct Module {
    /// The mapped executable range.
    pub(super) text: Range<Avma>,
    /// Where the file's first byte is mapped (readable, not executable).
    pub(super) head: Avma,
    /// Device and inode.
    pub(super) identity: (u64, u64),
    /// The whole file.
    pub(super) file: Arc<[u8]>,
    functions: Vec<Range<Avma>>,
    text_offset: u64,
}

impl Module {
    /// Reads its mapped memory at `from`; how many bytes were there.
    pub(super) fn read(&self, from: Avma, into: &mut [u8]) -> Option<usize> {
        let text_bytes = self.text.end - self.text.start;
        for (start, offset, bytes) in
            [(self.text.start, self.text_offset, text_bytes), (self.head, 0, self.text_offset)]
        {
            let at = from - start;
            if at < bytes {
                let count = usize::try_from(bytes - at).unwrap_or(usize::MAX).min(into.len());
                let first = usize::try_from(offset + at).ok()?;
                into[..count].copy_from_slice(self.file.get(first..first + count)?);
                return Some(count);
            }
        }
        None
    }
}

/// All images of a process, with what is needed to pick addresses in them.
#[derive(Debug)]
pub(super) struct Code {
    pub(super) arch: Arch,
    pub(super) modules: Vec<Module>,
    seed: u64,
}

impl Code {
    pub(super) fn new(config: &SimConfig) -> Code {
        let modules =
            (0u64..).zip(&config.images).map(|(index, image)| module(config, index, image)).collect();
        Code { arch: config.arch, modules, seed: config.seed }
    }

    /// Where a function is while its image is mapped.
    pub(super) fn range(&self, id: FunctionId) -> Range<Avma> {
        self.modules[id.image].functions[id.function].clone()
    }

    /// The return address that a call from `caller` to `callee` leaves: the same for
    /// each such call, behind the prologue and the call, and sometimes the first byte
    /// after the caller, as behind a call that does not return.
    pub(super) fn return_address(&self, caller: FunctionId, callee: FunctionId) -> Avma {
        let range = self.range(caller);
        let ids = [caller.image, caller.function, callee.image, callee.function].map(|n| n as u64);
        let random = rng::hash(&[self.seed, ids[0], ids[1], ids[2], ids[3]]);
        let bytes = range.end - range.start;
        if random.is_multiple_of(16) {
            return range.end;
        }
        match self.arch {
            // push rbp; mov rbp,rsp (4 bytes), call rel32 (5 bytes)
            Arch::X86_64 => range.start + 9 + (random >> 8) % (bytes - 9),
            // stp; mov; bl
            Arch::Aarch64 => range.start + 12 + (random >> 8) % ((bytes - 12) / 4) * 4,
        }
    }

    /// A program counter in a function, behind its prologue if it has one.
    pub(super) fn pc(&self, id: FunctionId, frameless: bool, random: u64) -> Avma {
        let range = self.range(id);
        let bytes = range.end - range.start;
        match self.arch {
            Arch::X86_64 => {
                let skip = if frameless { 0 } else { 4 };
                range.start + skip + random % (bytes - skip)
            }
            Arch::Aarch64 => {
                let skip = if frameless { 0 } else { 8 };
                range.start + skip + random % ((bytes - skip) / 4) * 4
            }
        }
    }

    /// The address of some instruction, as stale words on stacks have it.
    pub(super) fn anywhere(&self, random: u64) -> Avma {
        let module = &self.modules[random as usize % self.modules.len()];
        let bytes = module.text.end - module.text.start;
        module.text.start + (random >> 16) % bytes / 4 * 4
    }
}

fn module(config: &SimConfig, index: u64, image: &SimImage) -> Module {
    let mut functions = Vec::with_capacity(image.functions.len());
    // The text does not begin with the first function, as behind a .plt.
    let mut at = 64;
    for function in &image.functions {
        let bytes = function.code_bytes.max(32).next_multiple_of(16);
        functions.push(at..at + bytes);
        at += bytes;
    }
    let text_bytes = at.next_multiple_of(PAGE_BYTES);
    let build_id = rng::hash(&[config.seed, index, 0x6275_696c_6469_6400]);
    let file = elf(config.arch, image, &functions, text_bytes, build_id);
    let start = image.text_avma;
    Module {
        text: start..start + text_bytes,
        head: Avma(start.0 - image.text_svma),
        identity: (0x51, 1000 + index),
        file: file.into(),
        functions: functions.into_iter().map(|f| start + f.start..start + f.end).collect(),
        text_offset: image.text_offset,
    }
}

/// Little-endian fields, one after the other.
#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn u16(&mut self, values: &[u16]) {
        values.iter().for_each(|value| self.0.extend_from_slice(&value.to_le_bytes()));
    }
    fn u32(&mut self, values: &[u32]) {
        values.iter().for_each(|value| self.0.extend_from_slice(&value.to_le_bytes()));
    }
    fn u64(&mut self, values: &[u64]) {
        values.iter().for_each(|value| self.0.extend_from_slice(&value.to_le_bytes()));
    }
    fn pad_to(&mut self, offset: u64) {
        self.0.resize(usize::try_from(offset).unwrap_or(usize::MAX).max(self.0.len()), 0);
    }
    fn offset(&self) -> u64 {
        self.0.len() as u64
    }
}

/// A string table, which begins with the empty string.
struct Strings(Vec<u8>);

impl Strings {
    fn new() -> Strings {
        Strings(vec![0])
    }
    fn add(&mut self, text: &str) -> u32 {
        let at = self.0.len() as u32;
        self.0.extend_from_slice(text.as_bytes());
        self.0.push(0);
        at
    }
}

/// The file, in order: header and 3 segments, build id, text, symbols, names, 6 sections.
fn elf(arch: Arch, image: &SimImage, functions: &[Range<u64>], text_bytes: u64, build_id: u64) -> Vec<u8> {
    let note_offset = 64 + 3 * 56;
    let note_bytes = 16 + 8;
    let (machine, filler): (u16, [u8; 4]) = match arch {
        Arch::X86_64 => (62, [0x90; 4]),                       // nop
        Arch::Aarch64 => (183, 0xd503_201f_u32.to_le_bytes()), // nop
    };

    let mut names = Strings::new();
    let mut symbols = Writer::default();
    symbols.pad_to(SYMBOL_BYTES); // the null symbol
    for (function, range) in image.functions.iter().zip(functions) {
        symbols.u32(&[names.add(&function.name)]);
        symbols.0.extend_from_slice(&[1 << 4 | 2, 0]); // STB_GLOBAL, STT_FUNC; STV_DEFAULT
        symbols.u16(&[TEXT_SECTION]);
        symbols.u64(&[image.text_svma + range.start, range.end - range.start]);
    }

    let symbols_offset = image.text_offset + text_bytes;
    let names_offset = symbols_offset + symbols.offset();
    let section_names_offset = names_offset + names.0.len() as u64;
    let mut section_names = Strings::new();
    let [note, text, symtab, strtab, shstrtab] =
        [".note.gnu.build-id", ".text", ".symtab", ".strtab", ".shstrtab"]
            .map(|name| section_names.add(name));
    let sections_offset = (section_names_offset + section_names.0.len() as u64).next_multiple_of(8);

    let mut out = Writer::default();
    out.0.extend_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    out.u16(&[3, machine]); // ET_DYN
    out.u32(&[1]);
    out.u64(&[0, 64, sections_offset]);
    out.u32(&[0]);
    out.u16(&[64, 56, 3, 64, 6, 5]);

    // p_type, p_flags, p_offset, p_vaddr, p_paddr, p_filesz, p_memsz, p_align
    let mut segment = |kind: u32, flags: u32, offset: u64, svma: u64, bytes: u64, align: u64| {
        out.u32(&[kind, flags]);
        out.u64(&[offset, svma, svma, bytes, bytes, align]);
    };
    segment(1, 4, 0, 0, note_offset + note_bytes, PAGE_BYTES); // PT_LOAD, R
    segment(1, 5, image.text_offset, image.text_svma, text_bytes, PAGE_BYTES); // PT_LOAD, R+X
    segment(4, 4, note_offset, note_offset, note_bytes, 4); // PT_NOTE, R

    out.u32(&[4, 8, 3]); // NT_GNU_BUILD_ID with 8 bytes
    out.0.extend_from_slice(b"GNU\0");
    out.u64(&[build_id]);

    out.pad_to(image.text_offset);
    for _ in 0..text_bytes / 4 {
        out.0.extend_from_slice(&filler);
    }
    out.0.extend_from_slice(&symbols.0);
    out.0.extend_from_slice(&names.0);
    out.0.extend_from_slice(&section_names.0);
    out.pad_to(sections_offset);

    // sh_name, sh_type, sh_flags, sh_addr, sh_offset, sh_size, sh_link, sh_info, sh_addralign, sh_entsize
    let mut section =
        |name: u32, kind: u32, flags: u64, svma: u64, at: [u64; 2], link: [u32; 2], form: [u64; 2]| {
            out.u32(&[name, kind]);
            out.u64(&[flags, svma, at[0], at[1]]);
            out.u32(&link);
            out.u64(&form);
        };
    let strings = section_names.0.len() as u64;
    section(0, 0, 0, 0, [0, 0], [0, 0], [0, 0]);
    section(note, SHT_NOTE, 2, note_offset, [note_offset, note_bytes], [0, 0], [4, 0]);
    section(text, SHT_PROGBITS, 6, image.text_svma, [image.text_offset, text_bytes], [0, 0], [16, 0]);
    section(symtab, SHT_SYMTAB, 0, 0, [symbols_offset, symbols.offset()], [4, 1], [8, SYMBOL_BYTES]);
    section(strtab, SHT_STRTAB, 0, 0, [names_offset, names.0.len() as u64], [0, 0], [1, 0]);
    section(shstrtab, SHT_STRTAB, 0, 0, [section_names_offset, strings], [0, 0], [1, 0]);
    out.0
}
