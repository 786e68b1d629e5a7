//! The fake images of a simulated process: the address of each function, and a valid ELF file.
//!
//! Input: [`SimImage`]s. Output: ranges of functions and the bytes of a small 64-bit little-endian shared object
//! with a build id and a symbol table. Functions have a prologue and an epilogue, by which a walker decides
//! whether the leaf has a frame record; the code in between is filler and is never executed.

use std::ops::Range;
use std::sync::Arc;

use crate::addr::Avma;
use crate::arch::Arch;

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

/// One image with its layout.
#[derive(Clone, Debug)]
pub(super) struct Module {
    /// The mapped executable range.
    pub(super) text: Range<Avma>,
    /// Address of the file's first byte (readable, not executable).
    pub(super) head: Avma,
    /// Device and inode.
    pub(super) identity: (u64, u64),
    /// The whole file.
    pub(super) file: Arc<[u8]>,
    functions: Vec<Function>,
    text_offset: u64,
}

/// One function with its layout.
#[derive(Clone, Debug)]
struct Function {
    range: Range<Avma>,
    /// Never creates a frame record: always a leaf without one (aarch64).
    bare: bool,
}

impl Module {
    /// Reads its mapped memory at `from`. Returns the number of bytes read.
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

/// All images of a process, with data for picking addresses in them.
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
        Code { arch: config.simulated_arch(), modules, seed: config.seed }
    }

    /// The range of a function while its image is mapped.
    pub(super) fn range(&self, id: FunctionId) -> Range<Avma> {
        self.modules[id.image].functions[id.function].range.clone()
    }

    /// The return address of a call from `caller` to `callee`: equal for all of these calls, after the prologue
    /// and a call, and sometimes the first byte after the caller, like after a noreturn call. On x86_64 the body
    /// consists of calls, since a walk by unwind information requires one.
    pub(super) fn return_address(&self, caller: FunctionId, callee: FunctionId) -> Avma {
        let range = self.range(caller);
        let ids = [caller.image, caller.function, callee.image, callee.function].map(|n| n as u64);
        let random = rng::hash(&[self.seed, ids[0], ids[1], ids[2], ids[3]]);
        let bytes = range.end - range.start;
        if random.is_multiple_of(16) {
            return range.end;
        }
        match self.arch {
            // push rbp; mov rbp,rsp; jne (10 bytes), calls of 2 bytes; leave; ret; call
            Arch::X86_64 | Arch::X86 => range.start + 12 + (random >> 8) % ((bytes - 16) / 2) * 2,
            // stp; mov; bl
            Arch::Aarch64 | Arch::Arm => range.start + 12 + (random >> 8) % ((bytes - 12) / 4) * 4,
        }
    }

    /// A program counter in a function, at an instruction where its frame record exists or, `frameless`, where it
    /// does not: the first one or the `ret`, and anywhere in a function that never creates one.
    pub(super) fn pc(&self, id: FunctionId, frameless: bool, random: u64) -> Avma {
        let Function { range, bare } = &self.modules[id.image].functions[id.function];
        let bytes = range.end - range.start;
        let (step, ret) = match self.arch {
            Arch::X86_64 | Arch::X86 => (1, 3), // ret; call
            Arch::Aarch64 | Arch::Arm => (4, 4),
        };
        let at = match (frameless, self.arch) {
            (true, _) if *bare => random % (bytes / step) * step,
            (true, _) => random % 2 * (bytes - ret),
            // push rbp; mov rbp,rsp; jne; call … leave; ret; call
            (false, Arch::X86_64 | Arch::X86) => 10 + random % ((bytes - 11 - ret) / 2) * 2,
            // stp; mov … ret
            (false, Arch::Aarch64 | Arch::Arm) => 8 + random % ((bytes - 8 - ret) / 4) * 4,
        };
        range.start + at
    }

    /// The address of some instruction, like in stale words on stacks.
    pub(super) fn anywhere(&self, random: u64) -> Avma {
        let module = &self.modules[random as usize % self.modules.len()];
        let bytes = module.text.end - module.text.start;
        module.text.start + (random >> 16) % bytes / 4 * 4
    }
}

/// Whether a function is always a leaf without a frame record. On x86_64 a walk by frame pointers cannot detect
/// that in the middle of a function, so there all functions create one.
fn is_bare(config: &SimConfig, function: FunctionId) -> bool {
    let scripts = config.threads.iter().map(|thread| &thread.script);
    let mut phases = scripts.chain(config.exec.iter().map(|exec| &exec.script)).flatten();
    config.simulated_arch() == Arch::Aarch64
        && phases.all(|phase| {
            let framed = phase.stack.len() - usize::from(phase.frameless_leaf && phase.stack.len() > 1);
            phase.stack[..framed].iter().all(|frame| frame.function != function)
        })
}

fn module(config: &SimConfig, index: u64, image: &SimImage) -> Module {
    let mut functions = Vec::with_capacity(image.functions.len());
    // The text does not start with the first function, like after a .plt.
    let mut at = 64;
    for function in &image.functions {
        let bytes = function.code_bytes.max(32).next_multiple_of(16);
        functions.push(at..at + bytes);
        at += bytes;
    }
    let text_bytes = at.next_multiple_of(PAGE_BYTES);
    let build_id = rng::hash(&[config.seed, index, 0x6275_696c_6469_6400]);
    let bare: Vec<bool> = (0..functions.len())
        .map(|function| is_bare(config, FunctionId { image: index as usize, function }))
        .collect();
    let text = text(config.simulated_arch(), &functions, &bare, text_bytes);
    let file = elf(config.simulated_arch(), image, &functions, &text, &[], build_id);
    let start = image.text_avma;
    Module {
        text: start..start + text_bytes,
        head: Avma(start.0 - image.text_svma),
        // Processes of one simulation have separate files.
        identity: (0x51, (u64::from(config.pid) << 16) + index),
        file: file.into(),
        functions: functions
            .into_iter()
            .zip(bare)
            .map(|(f, bare)| Function { range: start + f.start..start + f.end, bare })
            .collect(),
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

/// A string table, starting with the empty string.
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

/// The code: functions that create a frame record first and remove it last, or only return.
fn text(arch: Arch, functions: &[Range<u64>], bare: &[bool], text_bytes: u64) -> Vec<u8> {
    let (filler, prologue, epilogue, ret): (&[u8], &[u8], &[u8], &[u8]) = match arch {
        Arch::X86_64 | Arch::X86 => (
            &[0xff, 0xd0],             // call *%rax
            &[0x55, 0x48, 0x89, 0xe5], // push %rbp; mov %rsp,%rbp
            &[0xc9],                   // leave
            &[0xc3, 0xff, 0xd0],       // ret; a call that does not return
        ),
        Arch::Aarch64 | Arch::Arm => (
            &[0x1f, 0x20, 0x03, 0xd5],
            &[0xfd, 0x7b, 0xbf, 0xa9, 0xfd, 0x03, 0x00, 0x91], // stp x29,x30,[sp,#-16]!; mov x29,sp
            &[0xfd, 0x7b, 0xc1, 0xa8],                         // ldp x29,x30,[sp],#16
            &[0xc0, 0x03, 0x5f, 0xd6],
        ),
    };
    let at = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX);
    let mut code: Vec<u8> = filler.iter().copied().cycle().take(at(text_bytes)).collect();
    for (range, bare) in functions.iter().zip(bare) {
        let (start, end) = (at(range.start), at(range.end) - ret.len());
        code[end..end + ret.len()].copy_from_slice(ret);
        if !bare {
            code[start..start + prologue.len()].copy_from_slice(prologue);
            code[end - epilogue.len()..end].copy_from_slice(epilogue);
        }
        if arch == Arch::X86_64 {
            // jne to the call after the return: the path there shows the frame.
            const JNE_BYTES: usize = 6;
            let after = start + prologue.len() + JNE_BYTES;
            let distance = u32::try_from(end + 1 - after).unwrap_or(0);
            code[after - JNE_BYTES..after - 4].copy_from_slice(&[0x0f, 0x85]);
            code[after - 4..after].copy_from_slice(&distance.to_le_bytes());
        }
    }
    code
}

/// The symbol table, a symbol for each function, and its names.
fn symbols(image: &SimImage, functions: &[Range<u64>]) -> (Writer, Strings) {
    let (mut symbols, mut names) = (Writer::default(), Strings::new());
    symbols.pad_to(SYMBOL_BYTES); // the null symbol
    for (function, range) in image.functions.iter().zip(functions) {
        symbols.u32(&[names.add(&function.name)]);
        symbols.0.extend_from_slice(&[1 << 4 | 2, 0]); // STB_GLOBAL, STT_FUNC; STV_DEFAULT
        symbols.u16(&[TEXT_SECTION]);
        symbols.u64(&[image.text_svma + range.start, range.end - range.start]);
    }
    (symbols, names)
}

/// The header of a file with 3 segments and so many sections, the sixth of which has their names.
fn header(out: &mut Writer, arch: Arch, sections_offset: u64, sections: u16) {
    let machine: u16 = match arch {
        Arch::X86_64 | Arch::X86 => 62,
        Arch::Aarch64 | Arch::Arm => 183,
    };
    out.0.extend_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    out.u16(&[3, machine]); // ET_DYN
    out.u32(&[1]);
    out.u64(&[0, 64, sections_offset]);
    out.u32(&[0]);
    out.u16(&[64, 56, 3, 64, sections, 5]);
}

/// The file, in order: header and 3 segments, build id, text, symbols, names, `.eh_frame` unless it is empty, 6 or 7
/// sections.
pub(super) fn elf(
    arch: Arch,
    image: &SimImage,
    functions: &[Range<u64>],
    text: &[u8],
    eh_frame: &[u8],
    build_id: u64,
) -> Vec<u8> {
    let note_offset = 64 + 3 * 56;
    let note_bytes = 16 + 8;
    let text_bytes = text.len() as u64;
    let (symbols, names) = symbols(image, functions);
    let symbols_offset = image.text_offset + text_bytes;
    let names_offset = symbols_offset + symbols.offset();
    let section_names_offset = names_offset + names.0.len() as u64;
    let mut section_names = Strings::new();
    let [note, text_name, symtab, strtab, shstrtab] =
        [".note.gnu.build-id", ".text", ".symtab", ".strtab", ".shstrtab"]
            .map(|name| section_names.add(name));
    let eh_frame_name = (!eh_frame.is_empty()).then(|| section_names.add(".eh_frame"));
    let eh_frame_offset = (section_names_offset + section_names.0.len() as u64).next_multiple_of(8);
    let sections_offset = (eh_frame_offset + eh_frame.len() as u64).next_multiple_of(8);

    let mut out = Writer::default();
    header(&mut out, arch, sections_offset, 6 + u16::from(eh_frame_name.is_some()));

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
    out.0.extend_from_slice(text);
    out.0.extend_from_slice(&symbols.0);
    out.0.extend_from_slice(&names.0);
    out.0.extend_from_slice(&section_names.0);
    out.pad_to(eh_frame_offset);
    out.0.extend_from_slice(eh_frame);
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
    section(text_name, SHT_PROGBITS, 6, image.text_svma, [image.text_offset, text_bytes], [0, 0], [16, 0]);
    section(symtab, SHT_SYMTAB, 0, 0, [symbols_offset, symbols.offset()], [4, 1], [8, SYMBOL_BYTES]);
    section(strtab, SHT_STRTAB, 0, 0, [names_offset, names.0.len() as u64], [0, 0], [1, 0]);
    section(shstrtab, SHT_STRTAB, 0, 0, [section_names_offset, strings], [0, 0], [1, 0]);
    if let Some(name) = eh_frame_name {
        let svma = (image.text_svma + text_bytes).next_multiple_of(PAGE_BYTES) + PAGE_BYTES;
        section(name, SHT_PROGBITS, 2, svma, [eh_frame_offset, eh_frame.len() as u64], [0, 0], [8, 0]);
    }
    out.0
}
