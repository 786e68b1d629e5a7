//! Loading Mach-O files as dyld does: segments at their address plus a slide, pointers fixed.
//!
//! Input: files and slides. Output: bytes to write at addresses, the executable mappings,
//! and the functions that llvm-nm lists: not those that stackprof finds, which is under test.
//! Only what ld64.lld writes for the fixtures: chained fixups of 64-bit pointers
//! (`<mach-o/fixup-chains.h>`).

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

use stackprof::addr::{Avma, Svma};
use stackprof::binary::macho::MachO;
use stackprof::binary::{ImageBytes, Mapping};

use crate::fixtures::{Arch, run};

const LC_DYLD_CHAINED_FIXUPS: u32 = 0x8000_0034;
/// `DYLD_CHAINED_PTR_64`, and the same with targets counted from the header.
const PTR_64: u16 = 2;
const PTR_64_OFFSET: u16 = 6;

pub struct Image {
    pub path: PathBuf,
    pub bytes: Vec<u8>,
    pub slide: u64,
    /// Segments with their content, at their addresses.
    pub segments: Vec<(Range<u64>, Vec<u8>)>,
    pub text: Range<u64>,
    /// Every symbol by its name with the underscore.
    pub symbols: BTreeMap<String, u64>,
    pub functions: Vec<Function>,
}

/// Something with an entry that calls and jumps lead to.
#[derive(Clone, Debug)]
pub struct Function {
    pub start: u64,
    pub name: String,
    pub is_stub: bool,
}

impl Function {
    /// A piece of other functions, made by LLVM's machine outliner: it may end in the
    /// middle of their prologue or do their epilogue.
    pub fn is_outlined(&self) -> bool {
        self.name.starts_with("_OUTLINED_FUNCTION")
    }
}

impl Image {
    pub fn load(path: &Path, slide: u64, arch: Arch, libraries: &[&Image]) -> Image {
        let bytes = std::fs::read(path).unwrap();
        let macho = MachO::parse(&bytes).unwrap();
        let slid = |at: Svma| at.0 + slide;
        let content = |range: &Range<u64>| bytes[range.start as usize..range.end as usize].to_vec();
        let mut segments: Vec<(Range<u64>, Vec<u8>)> = Vec::new();
        for segment in &macho.segments {
            let range = slid(segment.svma.start)..slid(segment.svma.end);
            let mut bytes = if segment.name == "__PAGEZERO" { Vec::new() } else { content(&segment.file) };
            if segment.name != "__PAGEZERO" {
                bytes.resize((range.end - range.start) as usize, 0);
            }
            segments.push((range, bytes));
        }
        let mut symbols = BTreeMap::new();
        for line in run(Command::new("llvm-nm-19").args(["--defined-only"]).arg(path)).lines() {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let [address, _, name] = fields[..] else { panic!("llvm-nm: {line}") };
            symbols.insert(name.to_string(), u64::from_str_radix(address, 16).unwrap() + slide);
        }
        let mut image = Image {
            path: path.to_path_buf(),
            text: slid(macho.text.start)..slid(macho.text.end),
            functions: functions(&macho, &symbols, slide, arch),
            segments,
            symbols,
            slide,
            bytes,
        };
        image.fix(libraries);
        image.segments.retain(|(_, bytes)| !bytes.is_empty());
        image
    }

    /// The mapping of `__TEXT`, as a target reports it.
    pub fn mapping(&self, number: u64) -> Mapping {
        Mapping::of_file(Avma(self.text.start)..Avma(self.text.end), 0, self.path.display().to_string(), (1, number))
    }

    pub fn image_bytes(&self) -> ImageBytes {
        ImageBytes::new(self.bytes.clone())
    }

    /// Rebases and binds the pointers.
    fn fix(&mut self, libraries: &[&Image]) {
        let Some(fixups) = command(&self.bytes, LC_DYLD_CHAINED_FIXUPS) else { return };
        let fixups = u32_at(&self.bytes, fixups + 8) as usize;
        let word = |at: usize| u32_at(&self.bytes, fixups + at);
        let (starts, imports, names) = (word(4) as usize, word(8) as usize, word(12) as usize);
        assert!(word(16) == 0 || word(20) == 1, "DYLD_CHAINED_IMPORT");
        let import = |ordinal: u64| {
            let name = fixups + names + (word(imports + 4 * ordinal as usize) >> 9) as usize;
            let name = self.bytes[name..].split(|byte| *byte == 0).next().unwrap();
            let name = std::str::from_utf8(name).unwrap();
            let mut found = libraries.iter().filter_map(|library| library.symbols.get(name));
            *found.next().unwrap_or_else(|| panic!("{name} is in no library"))
        };
        let mut fixed = Vec::new();
        for index in 0..word(starts) as usize {
            let segment_starts = word(starts + 4 + 4 * index) as usize;
            if segment_starts == 0 {
                continue;
            }
            let at = fixups + starts + segment_starts;
            let (page_bytes, format) = (u16_at(&self.bytes, at + 4), u16_at(&self.bytes, at + 6));
            assert!(matches!(format, PTR_64 | PTR_64_OFFSET), "pointer format {format}");
            for page in 0..usize::from(u16_at(&self.bytes, at + 20)) {
                let first = u16_at(&self.bytes, at + 22 + 2 * page);
                if first == 0xffff {
                    continue;
                }
                let mut offset = page * usize::from(page_bytes) + usize::from(first);
                loop {
                    let pointer = u64_at(&self.segments[index].1, offset);
                    let target = match pointer >> 63 {
                        1 => import(pointer & 0xff_ffff) + (pointer >> 24 & 0xff),
                        _ if format == PTR_64_OFFSET => self.text.start + (pointer & 0xf_ffff_ffff),
                        _ => self.slide + (pointer & 0xf_ffff_ffff),
                    };
                    fixed.push((index, offset, target));
                    let next = (pointer >> 51 & 0xfff) as usize * 4;
                    if next == 0 {
                        break;
                    }
                    offset += next;
                }
            }
        }
        for (index, offset, target) in fixed {
            self.segments[index].1[offset..offset + 8].copy_from_slice(&target.to_le_bytes());
        }
    }
}

/// The symbols in sections with code; a section without any holds stubs.
fn functions(macho: &MachO, symbols: &BTreeMap<String, u64>, slide: u64, arch: Arch) -> Vec<Function> {
    let stub_bytes = if arch == Arch::Arm64 { 12 } else { 6 };
    let mut functions = Vec::new();
    for section in macho.code.iter().flatten() {
        let range = section.start.0 + slide..section.end.0 + slide;
        let here = symbols.iter().filter(|(_, at)| range.contains(*at));
        let count = functions.len();
        functions.extend(here.map(|(name, start)| Function {
            start: *start,
            name: name.clone(),
            is_stub: false,
        }));
        if functions.len() == count {
            let stubs = range.clone().step_by(stub_bytes);
            let name = |at| format!("stub {}", (at - range.start) / stub_bytes as u64);
            functions.extend(stubs.map(|start| Function { start, name: name(start), is_stub: true }));
        }
    }
    functions.sort_by_key(|function| function.start);
    functions
}

/// Offset of a load command.
fn command(bytes: &[u8], wanted: u32) -> Option<usize> {
    let mut at = 32;
    for _ in 0..u32_at(bytes, 16) {
        if u32_at(bytes, at) == wanted {
            return Some(at);
        }
        at += u32_at(bytes, at + 4) as usize;
    }
    None
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}
