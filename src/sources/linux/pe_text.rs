//! Code of PE files that Wine reads into anonymous memory, because the file's alignment does not allow
//! mapping.
//!
//! Input: an anonymous executable mapping, all mappings of the process, files and memory. Output: the parts
//! of a file that it is a copy of. Proof: the headers of a PE file are mapped before it, the mapping lies
//! where its sections belong, and pages from all its parts equal those of the file except for relocated
//! addresses. Not for: code that the program unpacked or changed.

use std::ops::Range;

use libc::pid_t;

use super::images::Maps;
use super::moved_text::{PAGE_BYTES, PAGES_COMPARED};
use super::proc::MapsLine;
use super::sys;
use crate::addr::Avma;
use crate::binary::pe::{Pe, Section};
use crate::binary::{Mapping, MappingKind};

/// Most parts of a mapping.
const PARTS_MAX: usize = 16;

impl Maps {
    /// The parts of a PE file that an anonymous mapping is a copy of; empty if there is none.
    pub(super) fn pe_text(&self, pid: pid_t, mapping: &Mapping, lines: &[MapsLine]) -> Vec<Mapping> {
        let Some(head) = head(&mapping.avma, lines) else { return Vec::new() };
        let base = head.avma.start;
        let mut magic = [0; 2];
        if sys::read_memory(pid, base.0, &mut magic).unwrap_or(0) != 2 || magic != *b"MZ" {
            return Vec::new();
        }
        let Ok(image) = self.bytes(pid, head) else { return Vec::new() };
        let Ok(pe) = Pe::parse(image.bytes()) else { return Vec::new() };
        let parts = parts(&pe, base, &mapping.avma);
        let relocations = pe.relocations(image.bytes());
        let mut read = |at: Avma, into: &mut [u8]| sys::read_memory(pid, at.0, into).unwrap_or(0);
        let is_same = |(section, avma): &(&Section, Range<Avma>)| {
            is_in_memory(image.bytes(), section, base, avma, &relocations, &mut read)
        };
        let same: Vec<_> = parts.into_iter().filter(is_same).collect();
        let mapped = |(section, avma): (&Section, Range<Avma>)| {
            let into = avma.start - (base + u64::from(section.rva.start));
            let file_offset = u64::from(section.file_start) + into;
            Mapping { file_offset, avma, ..head.clone() }
        };
        cover(mapping, same.into_iter().map(mapped).collect())
    }
}

/// Parts of a mapping, sorted, and the unchanged parts in between. Empty without any part.
fn cover(mapping: &Mapping, parts: Vec<Mapping>) -> Vec<Mapping> {
    if parts.is_empty() {
        return parts;
    }
    let (mut out, mut at) = (Vec::with_capacity(parts.len()), mapping.avma.start);
    let rest = |from: Avma, to: Avma| Mapping { avma: from..to, ..mapping.clone() };
    for part in parts {
        if at < part.avma.start {
            out.push(rest(at, part.avma.start));
        }
        at = part.avma.end;
        out.push(part);
    }
    if at < mapping.avma.end {
        out.push(rest(at, mapping.avma.end));
    }
    out
}

/// The nearest preceding mapping with the start of a file.
fn head<'l>(avma: &Range<Avma>, lines: &'l [MapsLine]) -> Option<&'l Mapping> {
    let before = lines.iter().rev().skip_while(|line| line.mapping.avma.start >= avma.start);
    let mut files =
        before.filter(|line| line.mapping.kind == MappingKind::File && line.mapping.file_offset == 0);
    files.next().filter(|line| !line.is_ambiguous).map(|line| &line.mapping)
}

/// The code sections at these addresses, each with its part of them.
fn parts<'p>(pe: &'p Pe, base: Avma, avma: &Range<Avma>) -> Vec<(&'p Section, Range<Avma>)> {
    let sections = pe.sections.iter().filter(|section| section.executable);
    let part = |section: &'p Section| {
        let start = base.checked_add(section.rva.start.into())?.max(avma.start);
        let end = base.checked_add(section.rva.end.into())?.0.checked_next_multiple_of(PAGE_BYTES)?;
        let end = Avma(end).min(avma.end);
        (start < end).then_some((section, start..end))
    };
    let mut parts: Vec<_> = sections.filter_map(part).take(PARTS_MAX).collect();
    parts.sort_by_key(|(_, avma)| avma.start);
    let overlap = parts.windows(2).any(|pair| pair[0].1.end > pair[1].1.start);
    if overlap { Vec::new() } else { parts }
}

/// Whether sampled pages of a part are equal in memory and in the file. `relocations`: sorted addresses,
/// relative to the image base, where the loader changes eight bytes.
fn is_in_memory(
    file: &[u8],
    section: &Section,
    base: Avma,
    avma: &Range<Avma>,
    relocations: &[u32],
    read: &mut dyn FnMut(Avma, &mut [u8]) -> usize,
) -> bool {
    let rva = |at: Avma| u32::try_from(at - base).unwrap_or(u32::MAX);
    let (start, end) = (rva(avma.start), rva(avma.end).min(section.rva.end));
    let step = (u64::from(end.saturating_sub(start)) / PAGES_COMPARED).max(PAGE_BYTES);
    (start..end).step_by(step as usize).all(|page| {
        let length = (PAGE_BYTES as u32).min(end - page);
        let from = section.file_start as usize + (page - section.rva.start) as usize;
        let Some(wanted) = file.get(from..from + length as usize) else { return false };
        let (mut wanted, mut found) = (wanted.to_vec(), vec![0; length as usize]);
        if read(base + u64::from(page), &mut found) != found.len() {
            return false;
        }
        let first = relocations.partition_point(|at| at.saturating_add(8) <= page);
        for at in relocations[first..].iter().take_while(|at| **at < page + length) {
            let changed = at.saturating_sub(page)..(at.saturating_add(8) - page).min(length);
            let changed = changed.start as usize..changed.end as usize;
            wanted[changed.clone()].fill(0);
            found[changed].fill(0);
        }
        wanted == found
    })
}

#[cfg(test)]
mod tests {
    use super::super::proc;
    use super::*;
    use crate::addr::Svma;

    /// Two code sections with data between them, at file offsets that are no multiples of a page.
    fn pe() -> Pe {
        Pe {
            machine: 0x8664,
            is_64: true,
            image_base: Svma(0x1_8000_0000),
            image_bytes: 0x6000,
            header_bytes: 0x400,
            sections: vec![
                Section { rva: 0x1000..0x2800, file_start: 0x400, executable: true },
                Section { rva: 0x3000..0x3100, file_start: 0x1c00, executable: true },
                Section { rva: 0x4000..0x4100, file_start: 0x1e00, executable: false },
            ],
            functions: 0..0,
            build_id: None,
        }
    }

    const BASE: Avma = Avma(0x1_4000_0000);

    const MAPS: &str = "\
13fff0000-13fff1000 r--p 00000000 08:01 5 /opt/other.dll
140000000-140001000 r--p 00000000 08:01 7 /opt/work.exe
140001000-140004000 r-xp 00000000 00:00 0
140004000-140005000 rw-p 00000000 00:00 0
";

    #[test]
    fn anonymous_memory_after_headers_is_their_sections() {
        let lines: Vec<MapsLine> = proc::mappings(MAPS.as_bytes()).collect();
        let avma = &lines[2].mapping.avma;
        assert_eq!(head(avma, &lines).map(|head| head.path.as_str()), Some("/opt/work.exe"));
        assert!(head(&lines[0].mapping.avma, &lines).is_none());
        let pe = pe();
        let found: Vec<_> =
            parts(&pe, BASE, avma).into_iter().map(|(section, avma)| (section.rva.start, avma)).collect();
        let (first, second) = (BASE + 0x1000..BASE + 0x3000, BASE + 0x3000..BASE + 0x4000);
        assert_eq!(found, [(0x1000, first), (0x3000, second)]);
        assert!(parts(&pe, BASE, &(BASE + 0x4000..BASE + 0x5000)).is_empty(), "no code");
        assert!(parts(&pe, BASE, &(BASE + 0x10_0000..BASE + 0x10_1000)).is_empty(), "behind the image");
    }

    #[test]
    fn memory_outside_of_sections_stays_anonymous() {
        let lines: Vec<MapsLine> = proc::mappings(MAPS.as_bytes()).collect();
        let (head, whole) = (&lines[1].mapping, &lines[2].mapping);
        let part = Mapping { avma: BASE + 0x2000..BASE + 0x3000, ..head.clone() };
        let covered = cover(whole, vec![part.clone()]);
        let rest = |from: u64, to: u64| Mapping { avma: BASE + from..BASE + to, ..whole.clone() };
        assert_eq!(covered, [rest(0x1000, 0x2000), part, rest(0x3000, 0x4000)]);
        assert!(cover(whole, Vec::new()).is_empty());
    }

    #[test]
    fn memory_counts_as_a_section_if_only_relocations_differ() {
        let file: Vec<u8> = (0..0x2000_u32).map(|at| (at * 7 % 251) as u8).collect();
        let (pe, relocations) = (pe(), [0x1ffc, 0x2400]);
        let avma = BASE + 0x1000..BASE + 0x3000;
        let is_same = |memory: &[u8]| {
            let mut read = |at: Avma, into: &mut [u8]| {
                let from = (at - avma.start) as usize;
                into.copy_from_slice(&memory[from..from + into.len()]);
                into.len()
            };
            is_in_memory(&file, &pe.sections[0], BASE, &avma, &relocations, &mut read)
        };
        let mut memory = file[0x400..0x1c00].to_vec();
        memory.resize(0x2000, 0);
        assert!(is_same(&memory));
        // One of them spans two pages.
        memory[0xffc..0x1004].fill(0xee);
        memory[0x1400..0x1408].fill(0xee);
        assert!(is_same(&memory));
        for at in [0, 0xffb, 0x1004, 0x1408, 0x17ff] {
            memory[at] ^= 1;
            assert!(!is_same(&memory), "{at:#x}");
            memory[at] ^= 1;
        }
        let none = &mut |_: Avma, _: &mut [u8]| 0;
        assert!(!is_in_memory(&file, &pe.sections[0], BASE, &avma, &relocations, none));
    }
}
