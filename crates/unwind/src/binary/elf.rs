//! ELF: the bytes of a file (or of a vDSO) → segments, entry point, build id.
//!
//! `Elf` and `Segment` are the summary, `CodeSections` finds the section of a symbol; the machine numbers are at the
//! end. Headers, sections and symbols of both classes are read by `file::File`.
//!
//! Input: little-endian ELF of either class, from disk or from a target's memory; every byte is hostile. Output: a
//! small owned summary. Not for: symbols (see `symbol::table`), unwind tables, relocations.
//!
//! Format: System V ABI (gABI), chapters "ELF Header", "Program Header", "Note Section".

#[cfg(any(test, feature = "testing"))]
pub mod build;
pub mod file;
pub mod functions;
pub mod relocated_object;

use std::ops::Range;

use object::LittleEndian;
use object::elf::{self, FileHeader64};
use object::read::elf::NoteIterator;

use self::file::{File, Sections};
use super::FormatError;
use crate::addr::Svma;

/// Limit on `PT_LOAD` segments of a file; linkers create about four.
pub const SEGMENTS_MAX: usize = 256;

/// Limit on symbols of a table; a larger one is not read: in a file with a hole it costs its author nothing. The
/// largest browsers with debug information have some five million.
pub const SYMBOLS_MAX: usize = 16 << 20;

/// Limit on the length of a build id, in bytes. Linkers create 8 to 32.
pub const BUILD_ID_BYTES_MAX: usize = 64;

/// Limit on notes searched for a build id, over all note segments of a file.
const NOTES_MAX: usize = 1024;

/// Limit on bytes read of a section's name. The names searched for are far shorter; those of `-ffunction-sections`
/// are longer, and truncated.
pub const SECTION_NAME_BYTES_MAX: usize = 64;

/// The largest page size of the supported architectures (aarch64 with 64 KiB pages): segments are mapped in whole
/// pages, so up to this much around one belongs to it.
const PAGE_BYTES_MAX: u64 = 64 * 1024;

/// A `PT_LOAD` segment: a part of the file and its link-time addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Bytes of the file (`p_offset`, `p_filesz`).
    pub file: Range<u64>,
    /// Stated address of the first byte (`p_vaddr`).
    pub svma: Svma,
    /// Whether it contains code (`PF_X`).
    pub executable: bool,
}

impl Segment {
    /// The stated address of a byte of the file, extrapolated outside [`Segment::file`].
    fn svma_of(&self, file_offset: u64) -> Option<Svma> {
        if file_offset >= self.file.start {
            self.svma.checked_add(file_offset - self.file.start)
        } else {
            self.svma.0.checked_sub(self.file.start - file_offset).map(Svma)
        }
    }

    /// The distance in bytes of a file offset from this segment; 0 inside.
    fn distance(&self, file_offset: u64) -> u64 {
        if file_offset < self.file.start {
            self.file.start - file_offset
        } else if file_offset >= self.file.end {
            (file_offset - self.file.end).saturating_add(1)
        } else {
            0
        }
    }
}

/// The part of an ELF file that is needed to locate addresses in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elf {
    /// `e_machine`, one of the constants `EM_…` below.
    pub machine: u16,
    /// Whether the file has class `ELFCLASS64`.
    pub is_64: bool,
    /// `e_entry`: the entry point of a process; 0 in most libraries.
    pub entry: Svma,
    /// `PT_LOAD` segments in file order, at most [`SEGMENTS_MAX`].
    pub segments: Vec<Segment>,
    /// Descriptor of the `NT_GNU_BUILD_ID` note, if there is one.
    pub build_id: Option<Vec<u8>>,
}

impl Elf {
    /// Reads the headers and the build id.
    ///
    /// # Errors
    /// No ELF file, or invalid headers.
    pub fn parse(bytes: &[u8]) -> Result<Elf, FormatError> {
        let file = File::parse(bytes)?;
        let headers = file.program_headers()?;
        let segment = |segment: file::ProgramHeader| Segment {
            file: segment.file,
            svma: Svma(segment.svma),
            executable: segment.flags & elf::PF_X.0 != 0,
        };
        let loaded = headers.clone().filter(|header| header.kind == elf::PT_LOAD.0);
        // Debug files (`objcopy --only-keep-debug`) may have note segments without their bytes.
        let of_segments = headers.filter(|header| header.kind == elf::PT_NOTE.0);
        let sections = file.sections().into_iter().flat_map(|sections| sections.iter());
        let of_sections = sections.filter(|section| section.kind == elf::SHT_NOTE.0);
        let mut notes = of_segments
            .map(|header| (header.file, header.align))
            .chain(of_sections.map(|section| (section.file, section.align)));
        let mut left = NOTES_MAX;
        Ok(Elf {
            machine: file.machine(),
            is_64: file.is_64(),
            entry: Svma(file.entry()),
            segments: loaded.take(SEGMENTS_MAX).map(segment).collect(),
            build_id: notes.find_map(|(at, align)| build_id(file.content(&at), align, &mut left)),
        })
    }

    /// The stated address of a byte of the file that is mapped as code, or `None` if no segment is near it.
    /// Prefers segments with code: linkers may put the same page of the file into two segments.
    #[must_use]
    pub fn svma_of(&self, file_offset: u64) -> Option<Svma> {
        let inside = |segment: &&Segment| segment.file.contains(&file_offset);
        let code = self.segments.iter().filter(|segment| segment.executable);
        let segment =
            code.clone().find(inside).or_else(|| self.segments.iter().find(inside)).or_else(|| {
                code.filter(|segment| segment.distance(file_offset) <= PAGE_BYTES_MAX)
                    .min_by_key(|segment| segment.distance(file_offset))
            })?;
        segment.svma_of(file_offset)
    }

    /// The offset and the stated address of the first code byte in a part of the file, in the segment that covers
    /// most of it. (Segments of lld share pages of the file, so a mapping begins with bytes of the preceding one.)
    #[must_use]
    pub fn code_in(&self, part: &Range<u64>) -> Option<(u64, Svma)> {
        let shared = |segment: &Segment| {
            let start = segment.file.start.max(part.start);
            let bytes = segment.file.end.min(part.end).checked_sub(start).filter(|bytes| *bytes > 0)?;
            Some((bytes, start, segment.svma_of(start)?))
        };
        let code = self.segments.iter().filter(|segment| segment.executable);
        code.filter_map(shared).max_by_key(|(bytes, ..)| *bytes).map(|(_, start, svma)| (start, svma))
    }

    /// The file offset of a stated address; `None` outside the segments.
    #[must_use]
    pub fn file_offset_of(&self, svma: Svma) -> Option<u64> {
        self.segments.iter().find_map(|segment| {
            let offset = segment.file.start.checked_add(svma.0.checked_sub(segment.svma.0)?)?;
            segment.file.contains(&offset).then_some(offset)
        })
    }

    /// The lowest stated address of the file; 0 without segments.
    #[must_use]
    pub fn base_svma(&self) -> Svma {
        self.segments.iter().map(|segment| segment.svma).min().unwrap_or_default()
    }
}

/// Whether a file is the one that was mapped, by the first bytes of the mapping: ELF header, available program
/// headers, and build id if both have one. For file systems with device numbers that differ between `stat` and the
/// mapping (btrfs, overlayfs).
#[must_use]
pub fn same_file(memory_head: &[u8], file: &[u8]) -> bool {
    let Ok(headers) = File::parse(file) else { return false };
    let header_bytes = if headers.is_64() { 64 } else { 52 };
    let equal_prefix = |start: usize, end: usize| {
        let end = end.min(memory_head.len());
        start >= end || memory_head.get(start..end) == file.get(start..end)
    };
    if memory_head.len() < header_bytes || !equal_prefix(0, header_bytes) {
        return false;
    }
    let Some(ranges) = mapped_headers(headers) else { return false };
    ranges.iter().all(|range| equal_prefix(range.start, range.end))
}

/// The stated addresses of the sections with instructions.
pub struct CodeSections {
    /// By section.
    pub(crate) ranges: Vec<Option<Range<u64>>>,
    /// By first address.
    sorted: Vec<Range<u64>>,
}

impl CodeSections {
    /// The executable ones of these sections.
    #[must_use]
    pub fn new(sections: Sections<'_>) -> CodeSections {
        let range = |section: file::SectionHeader<'_>| {
            let end = section.svma.checked_add(section.size)?;
            section.is_code().then_some(section.svma..end)
        };
        let ranges: Vec<_> = sections.iter().map(range).collect();
        let mut sorted: Vec<_> = ranges.iter().flatten().cloned().collect();
        sorted.sort_unstable_by_key(|range| range.start);
        CodeSections { ranges, sorted }
    }

    /// The section of a symbol with this value. That of a function is found by its address if its number is wrong:
    /// patchelf sorts the sections and leaves `.symtab` with the numbers of before. The value of a label is no
    /// evidence (`_etext` is the end of its section).
    pub fn of_symbol(&self, number: usize, value: u64, is_function: bool) -> Option<&Range<u64>> {
        let contains = |range: &&Range<u64>| range.contains(&value);
        let numbered = self.ranges.get(number).and_then(Option::as_ref).filter(contains);
        numbered.or_else(|| {
            let after = self.sorted.partition_point(|range| range.start <= value);
            self.sorted.get(after.checked_sub(1)?).filter(|range| is_function && contains(range))
        })
    }
}

/// The build id among notes.
fn build_id(notes: &[u8], align: u64, left: &mut usize) -> Option<Vec<u8>> {
    // Notes of both classes have one form (gABI, "Note Section").
    let mut notes = NoteIterator::<FileHeader64<LittleEndian>>::new(LittleEndian, align, notes).ok()?;
    while *left > 0 {
        *left -= 1;
        let note = notes.next().ok()??;
        let id = note.desc();
        if note.name() == elf::ELF_NOTE_GNU
            && note.n_type(LittleEndian).0 == elf::NT_GNU_BUILD_ID.0
            && (1..=BUILD_ID_BYTES_MAX).contains(&id.len())
        {
            return Some(id.to_vec());
        }
    }
    None
}

/// The program headers and note segments of a file, as far as the first segment maps them: only there do offsets
/// in the file equal those in memory.
fn mapped_headers(file: File<'_>) -> Option<Vec<Range<usize>>> {
    let headers = file.program_headers().ok()?;
    let of_type = |kind| headers.clone().filter(move |header| header.kind == kind).map(|header| header.file);
    let mapped = of_type(elf::PT_LOAD.0).find(|range| range.start == 0)?.end;
    let compared =
        std::iter::once(file.program_headers_at()).chain(of_type(elf::PT_NOTE.0).take(SEGMENTS_MAX));
    let clip = |offset: u64| usize::try_from(offset.min(mapped)).ok();
    compared.map(|range| Some(clip(range.start)?..clip(range.end)?)).collect()
}

// ---- ELF machine numbers (`e_machine`).

/// i386.
pub const X86: u16 = elf::EM_386.0;
/// 32-bit Arm.
pub const ARM: u16 = elf::EM_ARM.0;
/// x86-64.
pub const X86_64: u16 = elf::EM_X86_64.0;
/// AArch64.
pub const AARCH64: u16 = elf::EM_AARCH64.0;

#[cfg(all(test, target_os = "linux"))] // the test executable must be ELF
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn elf(segments: Vec<Segment>) -> Elf {
        Elf { machine: 62, is_64: true, entry: Svma(0x1100), segments, build_id: None }
    }

    fn this_test() -> Vec<u8> {
        std::fs::read(std::env::current_exe().unwrap()).unwrap()
    }

    #[test]
    fn addresses_follow_the_segment_with_code() {
        // Layout of lld: the page at file offset 0x1000 is in both segments.
        let elf = elf(vec![
            Segment { file: 0..0x1200, svma: Svma(0), executable: false },
            Segment { file: 0x1200..0x3000, svma: Svma(0x2200), executable: true },
        ]);
        assert_eq!(elf.svma_of(0x1200), Some(Svma(0x2200)));
        assert_eq!(elf.svma_of(0x2fff), Some(Svma(0x3fff)));
        assert_eq!(elf.svma_of(0x10), Some(Svma(0x10)));
        // The rest of the last page is mapped with the segment.
        assert_eq!(elf.svma_of(0x3010), Some(Svma(0x4010)));
        assert_eq!(elf.svma_of(0x80_0000), None);
        assert_eq!(elf.file_offset_of(Svma(0x2200)), Some(0x1200));
        // The mapping of the second segment begins with bytes of the first.
        assert_eq!(elf.code_in(&(0x1000..0x3000)), Some((0x1200, Svma(0x2200))));
        assert_eq!(elf.code_in(&(0x2000..0x3000)), Some((0x2000, Svma(0x3000))));
        assert_eq!((elf.code_in(&(0..0x1000)), elf.code_in(&(0x1200..0x1200))), (None, None));
        assert_eq!(elf.file_offset_of(Svma(0x9000)), None);
        // Of two segments with code, the one with more of it.
        let both = super::tests::elf(vec![
            Segment { file: 0..0x1200, svma: Svma(0), executable: true },
            Segment { file: 0x1200..0x3000, svma: Svma(0x2200), executable: true },
        ]);
        assert_eq!(both.code_in(&(0x1000..0x3000)), Some((0x1200, Svma(0x2200))));
        assert_eq!(both.code_in(&(0..0x1400)), Some((0, Svma(0))));
    }

    #[test]
    fn hostile_segments_do_not_overflow() {
        let elf = elf(vec![
            Segment { file: 0..u64::MAX, svma: Svma(u64::MAX), executable: true },
            Segment { file: 10..20, svma: Svma(0), executable: true },
        ]);
        assert_eq!(elf.svma_of(1), None);
        assert_eq!(elf.svma_of(u64::MAX), None);
        assert_eq!(elf.file_offset_of(Svma(u64::MAX)), Some(0));
    }

    #[test]
    fn the_test_executable_is_parsed() {
        let elf = Elf::parse(&this_test()).unwrap();
        assert!(elf.is_64);
        assert_eq!(elf.machine, if cfg!(target_arch = "x86_64") { 62 } else { 183 });
        assert!(elf.segments.iter().any(|segment| segment.executable));
        let offset = elf.file_offset_of(elf.entry).unwrap();
        assert_eq!(elf.svma_of(offset), Some(elf.entry));
    }

    #[test]
    fn other_formats_are_refused_with_the_reason() {
        let reason = |bytes: &[u8]| Elf::parse(bytes).unwrap_err().to_string();
        assert_eq!(reason(b""), "an empty file");
        assert_eq!(reason(b"#!/bin/sh\n"), "not an ELF file");
        assert_eq!(reason(b"\x7fELF\x02\x02\x01"), "an ELF file of another byte order or class");
        assert!(Elf::parse(b"\x7fELF\x02\x01\x01").is_err());
    }

    /// An ELF header, a `PT_LOAD` of the whole file, a `PT_NOTE`, and a build id.
    fn with_build_id(id: &[u8; 20]) -> Vec<u8> {
        let mut file = b"\x7fELF\x02\x01\x01".to_vec();
        file.resize(64 + 2 * 56, 0);
        let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
        put(32, &[64]); // e_phoff
        put(54, &[56, 0, 2]); // e_phentsize, e_phnum
        let (note, end) = (64 + 2 * 56, 64 + 2 * 56 + 36);
        for (at, kind, start) in [(64, 1, 0), (120, 4, note)] {
            put(at, &[kind]);
            put(at + 8, &[start]); // p_offset
            put(at + 32, &[end - start]); // p_filesz
            put(at + 48, &[4]); // p_align
        }
        // n_namesz, n_descsz, n_type, name, descriptor
        file.extend_from_slice(b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0");
        file.extend_from_slice(id);
        file
    }

    #[test]
    fn the_build_id_distinguishes_files() {
        let (a, b) = (with_build_id(b"0123456789abcdefghij"), with_build_id(b"0123456789abcdefghiJ"));
        assert_eq!(Elf::parse(&a).unwrap().build_id.as_deref(), Some(b"0123456789abcdefghij".as_slice()));
        assert!(same_file(&a, &a) && same_file(&b, &b));
        assert!(!same_file(&a, &b));
        assert!(same_file(&a[..a.len() - 1], &b), "what was not read cannot differ");
    }

    #[test]
    fn a_replaced_file_is_detected() {
        let file = this_test();
        let head = &file.clone()[..4096];
        assert!(same_file(head, &file));
        assert!(same_file(&file[..64], &file));
        assert!(!same_file(&file[..63], &file), "less than a header proves nothing");
        assert!(!same_file(head, b"not an ELF file"));
        let mut other = file.clone();
        other[24] ^= 1; // e_entry
        assert!(!same_file(head, &other));
        let mut other = file;
        other[64 + 40] ^= 1; // p_memsz of the first program header
        assert!(!same_file(head, &other));
    }
}
