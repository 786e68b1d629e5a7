//! Program code moved from its file to anonymous memory at the same addresses, to have it on huge pages: node
//! with --use-largepages, Intel's iodlr, BOLT's hugify.
//!
//! Input: an anonymous executable mapping, all mappings of the process, files and memory. Output: the part of
//! a file that it is a copy of (for PE files see `pe_text`). Proof: the mapping lies in a code segment of a
//! file that is mapped next to it, and pages from all its parts equal those of the file. Not for: relocated
//! or changed code.

use std::ops::Range;

use libc::pid_t;

use super::images::{LIST_BYTES_MAX, Maps};
use super::mapping_origin::MappingOrigin;
use super::proc::{self, MapsLine};
use super::sys;
use crate::addr::Avma;
use crate::binary::elf::Elf;
use crate::binary::{Mapping, MappingKind};
use crate::sources::proc_file;

/// Most mappings compared at one time, and most attempts for a mapping without a match: its code may still be
/// being copied.
const JUDGED_MAX: usize = 64;
const TRIES_MAX: u32 = 4;
/// Most mappings with a known origin.
const KEPT_MAX: usize = 4096;
/// Number of pages to compare, spread over a mapping.
pub(super) const PAGES_COMPARED: u64 = 64;
pub(super) const PAGE_BYTES: u64 = 4096;
/// Largest pages of the supported processors.
const PAGE_BYTES_MAX: u64 = 64 << 10;

impl Maps {
    /// Replaces each anonymous mapping that holds moved code by the parts of the file.
    pub(super) fn place_moved_text(&mut self, pid: pid_t, mappings: &mut Vec<Mapping>) {
        let mut lines = None;
        let mut left = JUDGED_MAX;
        let mut found: Vec<(usize, Vec<Mapping>)> = Vec::new();
        let anonymous = mappings.iter().enumerate();
        for (index, mapping) in anonymous.filter(|(_, mapping)| mapping.kind == MappingKind::Anonymous) {
            let key = (mapping.avma.start.0, mapping.avma.end.0);
            let tries = match self.moved.get(&key) {
                Some(MappingOrigin::Moved(moved)) => {
                    found.push((index, moved.clone()));
                    continue;
                }
                Some(MappingOrigin::Unknown(tries)) => *tries,
                None => 0,
            };
            if tries >= TRIES_MAX || left == 0 {
                continue;
            }
            left -= 1;
            let lines = lines.get_or_insert_with(|| all_lines(pid));
            let moved = match self.moved_text(pid, mapping, lines) {
                Some(moved) => vec![moved],
                None => self.pe_text(pid, mapping, lines),
            };
            if self.moved.len() >= KEPT_MAX {
                self.moved.clear();
            }
            if moved.is_empty() {
                self.moved.insert(key, MappingOrigin::Unknown(tries + 1));
            } else {
                found.push((index, moved.clone()));
                self.moved.insert(key, MappingOrigin::Moved(moved));
            }
        }
        for (index, moved) in found.into_iter().rev() {
            mappings.splice(index..=index, moved);
        }
    }

    fn moved_text(&self, pid: pid_t, mapping: &Mapping, lines: &[MapsLine]) -> Option<Mapping> {
        neighbours(&mapping.avma, lines).into_iter().flatten().find_map(|file| {
            let image = self.bytes(pid, &file.mapping).ok()?;
            let elf = Elf::parse(image.bytes()).ok()?;
            let of_file = lines.iter().map(|line| &line.mapping);
            let of_file = of_file.filter(|line| line.identity == file.mapping.identity);
            let bias = of_file.into_iter().find_map(|line| bias(&elf, line))?;
            let part = part_of_code(&elf, bias, &mapping.avma)?;
            let same = is_in_memory(image.bytes(), &part, mapping.avma.start, &mut |at, into| {
                sys::read_memory(pid, at.0, into).unwrap_or(0)
            });
            same.then(|| Mapping {
                file_offset: part.mapping_at,
                avma: mapping.avma.clone(),
                ..file.mapping.clone()
            })
        })
    }
}

/// The part of a file in a mapping.
#[derive(Debug, PartialEq, Eq)]
struct Part {
    /// File offset of the mapping's first byte.
    mapping_at: u64,
    /// The file's code in it.
    code: Range<u64>,
}

fn all_lines(pid: pid_t) -> Vec<MapsLine> {
    let (mut lines, mut room) = (Vec::new(), LIST_BYTES_MAX);
    let read = proc_file::for_each_line(format!("/proc/{pid}/maps"), |line| {
        if let Some(line) = proc::mapping(line)
            && let Some(left) = room.checked_sub(size_of::<MapsLine>() + line.mapping.path.len())
        {
            room = left;
            lines.push(line);
        }
    });
    if read.is_err() {
        lines.clear();
    }
    lines
}

/// The adjacent files before and after a mapping.
fn neighbours<'l>(avma: &Range<Avma>, lines: &'l [MapsLine]) -> [Option<&'l MapsLine>; 2] {
    let Some(at) = lines.iter().position(|line| line.mapping.avma == *avma) else { return [None, None] };
    let is_file = |line: &&MapsLine| line.mapping.kind == MappingKind::File && !line.is_ambiguous;
    let mut edge = avma.start;
    let mut before = lines[..at].iter().rev().take_while(|line| {
        let touches = line.mapping.avma.end == edge;
        edge = line.mapping.avma.start;
        touches
    });
    let mut end = avma.end;
    let mut behind = lines[at + 1..].iter().take_while(|line| {
        let touches = line.mapping.avma.start == end;
        end = line.mapping.avma.end;
        touches
    });
    let (before, behind) = (before.find(is_file), behind.find(is_file));
    let is_other = |line: &&MapsLine| before.is_none_or(|one| one.mapping.identity != line.mapping.identity);
    [before, behind.filter(is_other)]
}

/// The load bias of a file, by one of its mappings: the first page of a segment.
fn bias(elf: &Elf, mapping: &Mapping) -> Option<u64> {
    let into = |segment: u64| segment.checked_sub(mapping.file_offset).filter(|into| *into < PAGE_BYTES_MAX);
    let first = elf.segments.iter().filter_map(|segment| Some((into(segment.file.start)?, segment.svma)));
    let (into, svma) = first.min_by_key(|(into, _)| *into)?;
    Some(mapping.avma.start.0.wrapping_add(into).wrapping_sub(svma.0))
}

/// The part of a file that belongs at these addresses, if a code segment covers all of them.
fn part_of_code(elf: &Elf, bias: u64, avma: &Range<Avma>) -> Option<Part> {
    let (start, end) = (avma.start.0.wrapping_sub(bias), avma.end.0.wrapping_sub(bias));
    elf.segments.iter().filter(|segment| segment.executable).find_map(|segment| {
        let length = segment.file.end.checked_sub(segment.file.start)?;
        let (first, last) = (segment.svma.0, segment.svma.0.checked_add(length)?);
        let pages = first & !(PAGE_BYTES_MAX - 1)..last.checked_next_multiple_of(PAGE_BYTES_MAX)?;
        let is_inside = start < end && pages.start <= start && end <= pages.end && start < last;
        let mapping_at = match start.checked_sub(first) {
            Some(into) => segment.file.start.checked_add(into)?,
            None => segment.file.start.checked_sub(first - start)?,
        };
        let code_from = mapping_at.max(segment.file.start);
        let code_to = mapping_at.checked_add(end.checked_sub(start)?)?.min(segment.file.end);
        (is_inside && code_from < code_to).then_some(Part { mapping_at, code: code_from..code_to })
    })
}

/// Whether sampled pages of the code are equal in memory and in the file.
fn is_in_memory(
    file: &[u8],
    part: &Part,
    start: Avma,
    read: &mut dyn FnMut(Avma, &mut [u8]) -> usize,
) -> bool {
    let bytes = part.code.end - part.code.start;
    let step = (bytes / PAGES_COMPARED).max(PAGE_BYTES);
    let mut page = vec![0; PAGE_BYTES as usize];
    (0..bytes).step_by(step as usize).all(|into| {
        let offset = part.code.start + into;
        let length = PAGE_BYTES.min(part.code.end - offset) as usize;
        let of_file = usize::try_from(offset).ok().and_then(|offset| file.get(offset..offset + length));
        let at = start + (offset - part.mapping_at);
        let into = &mut page[..length];
        read(at, into) == length && of_file == Some(&*into)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Svma;
    use crate::binary::elf::Segment;

    const BASE: u64 = 0x5555_0000_0000;

    fn lines(text: &str) -> Vec<MapsLine> {
        proc::mappings(text.as_bytes()).collect()
    }

    /// In lld's layout: the page at file offset 0x1000 is in both segments.
    fn elf() -> Elf {
        let segments = vec![
            Segment { file: 0..0x1200, svma: Svma(0), executable: false },
            Segment { file: 0x1200..0x5800, svma: Svma(0x2200), executable: true },
            Segment { file: 0x5800..0x6000, svma: Svma(0x7800), executable: false },
        ];
        Elf { machine: 62, is_64: true, entry: Svma(0x2200), segments, build_id: None }
    }

    /// All of the code was moved, or its middle.
    const WHOLE: &str = "\
555500000000-555500002000 r--p 00000000 08:01 7 /usr/bin/work
555500002000-555500007000 r-xp 00000000 00:00 0
555500007000-555500008000 rw-p 00005000 08:01 7 /usr/bin/work
7f0000000000-7f0000001000 r-xp 00000000 00:00 0
7f0000001000-7f0000002000 r--p 00000000 08:01 9 /lib/x.so
";

    #[test]
    fn anonymous_memory_next_to_a_file_is_its_missing_part() {
        let lines = lines(WHOLE);
        let found = neighbours(&lines[1].mapping.avma, &lines);
        assert_eq!(found.map(|line| line.map(|line| line.mapping.file_offset)), [Some(0), None]);
        for line in [&lines[0], &lines[2]] {
            assert_eq!(bias(&elf(), &line.mapping), Some(BASE), "{:?}", line.mapping);
        }
        let part = part_of_code(&elf(), BASE, &lines[1].mapping.avma);
        assert_eq!(part, Some(Part { mapping_at: 0x1000, code: 0x1200..0x5800 }));
        let middle = Avma(BASE + 0x4000)..Avma(BASE + 0x5000);
        let part = part_of_code(&elf(), BASE, &middle);
        assert_eq!(part, Some(Part { mapping_at: 0x3000, code: 0x3000..0x4000 }));
        // Next to a library, but not where its code belongs.
        let found = neighbours(&lines[3].mapping.avma, &lines);
        assert_eq!(found.map(|line| line.map(|line| line.mapping.path.as_str())), [None, Some("/lib/x.so")]);
        let far = Avma(BASE + 0x20_0000)..Avma(BASE + 0x20_1000);
        assert_eq!(part_of_code(&elf(), BASE, &far), None);
    }

    #[test]
    fn memory_counts_as_a_file_only_if_the_bytes_are_equal() {
        let file: Vec<u8> = (0..0x6000_u32).map(|at| (at * 7 % 251) as u8).collect();
        let part = Part { mapping_at: 0x1000, code: 0x1200..0x5800 };
        let is_same = |memory: &[u8]| {
            is_in_memory(&file, &part, Avma(BASE + 0x2000), &mut |at, into| {
                let from = (at.0 - BASE - 0x2000) as usize;
                into.copy_from_slice(&memory[from..from + into.len()]);
                into.len()
            })
        };
        // Bytes around the code in the file need not have been copied.
        let mut memory = file[0x1000..0x6000].to_vec();
        memory[..0x200].fill(0);
        memory[0x4800..].fill(0);
        assert!(is_same(&memory));
        memory[0x4700] ^= 1;
        assert!(!is_same(&memory));
        assert!(!is_in_memory(&file, &part, Avma(BASE), &mut |_, _| 0));
    }
}
