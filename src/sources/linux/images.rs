//! A process's executable mappings, with the bytes of exactly the mapped files. Input: /proc/PID/maps,
//! the files, the target's memory. Output: images, or why a file cannot be used.
//!
//! `Maps` lists them, `MappedFile` is a file of which it is certain; `MappingOrigins` finds the file of code that
//! was moved to anonymous memory, or read there by Wine.
//!
//! A path is not enough: the file may have been deleted or replaced, and belongs to the target's mount
//! namespace. Device and inode are compared; if a filesystem reports others through stat(2) than in maps
//! (overlayfs, btrfs), the head of the file is compared with the mapped one. The target controls the path, so
//! files are opened through `target_file`, with a bounded wait.

use std::ops::{ControlFlow, Range};
use std::time::SystemTime;

use hashbrown::HashMap;
use libc::pid_t;

use super::files::TargetFiles;
use super::proc;
use super::sys;
use crate::addr::{self, Avma};
use crate::binary::elf::{self, Elf};
use crate::binary::pe::{self, Pe, Section};
use crate::binary::{ImageBytes, Mapping, MappingKind, OpenError};
use crate::error::io_text;
use crate::sources::maps_line::{MapsLine, without_deleted};
use crate::sources::target_file::{Copying, FileLocation, Links, Patience, Root, open_linked};
use crate::sources::{Fault, proc_file};

/// A vDSO is a few pages; anything larger is not one.
const VDSO_BYTES_MAX: u64 = 1 << 20;
/// Bytes of a file's head to compare: ELF header, program headers and notes.
const HEAD_BYTES: usize = 4096;

/// Most bytes of paths and executable mappings of one process: paths can have 4 KiB each. Later ones count as not
/// mapped.
pub(super) const LIST_BYTES_MAX: usize = 16 << 20;

/// Reader of a process's mappings.
#[derive(Debug, Default)]
pub(super) struct Maps {
    /// Address of the first mapped byte of each file.
    heads: HashMap<(u64, u64), Avma>,
    /// Origins of anonymous mappings.
    pub(super) moved: MappingOrigins,
    /// Record of files that did not answer.
    pub(super) patience: Patience,
}

/// What is kept of a list of mappings.
struct MapsList<'o> {
    pid: pid_t,
    heads: HashMap<(u64, u64), Avma>,
    code: &'o mut Vec<Mapping>,
    /// Bytes that it may still take.
    room: usize,
}

impl MapsList<'_> {
    fn new(pid: pid_t, code: &mut Vec<Mapping>) -> MapsList<'_> {
        code.clear();
        MapsList { pid, heads: HashMap::new(), code, room: LIST_BYTES_MAX }
    }

    /// Breaks once there is no room for a mapping of code.
    fn add(&mut self, mut line: MapsLine) -> ControlFlow<()> {
        if line.is_ambiguous
            && let Some(path) = linked_path(self.pid, &line.mapping)
        {
            line.mapping.path = path;
        }
        if line.mapping.kind == MappingKind::File && line.mapping.file_offset == 0 {
            self.heads.insert(line.mapping.identity, line.mapping.avma.start);
        }
        if !line.executable {
            return ControlFlow::Continue(());
        }
        match self.room.checked_sub(size_of::<Mapping>() + line.mapping.path.len()) {
            Some(room) => self.room = room,
            None => return ControlFlow::Break(()),
        }
        self.code.push(line.mapping);
        ControlFlow::Continue(())
    }
}

impl Maps {
    /// Reads the executable mappings into `out`.
    pub(super) fn read(&mut self, pid: pid_t, out: &mut Vec<Mapping>) -> Result<(), Fault> {
        self.read_marked(pid, "", out).map(drop)
    }

    /// Reads the executable mappings of a process that maps a file of this unique name into `out`; false for any
    /// other process.
    pub(super) fn read_marked(
        &mut self,
        pid: pid_t,
        mark: &str,
        out: &mut Vec<Mapping>,
    ) -> Result<bool, Fault> {
        let mark = memchr::memmem::Finder::new(mark);
        let (mut list, mut is_it) = (MapsList::new(pid, out), mark.needle().is_empty());
        let mut is_full = false;
        let read = proc_file::for_each_line(format!("/proc/{pid}/maps"), |line| {
            is_it = is_it || mark.find(line).is_some();
            if !is_full && let Some(line) = proc::mapping(line) {
                is_full = list.add(line).is_break();
            }
            if is_it && is_full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        read.map_err(|error| match error.raw_os_error() {
            Some(libc::ENOENT | libc::ESRCH) => Fault::Gone,
            _ => Fault::Denied(format!("/proc/{pid}/maps: {}", io_text(&error))),
        })?;
        if is_it {
            self.heads = list.heads;
        }
        Ok(is_it)
    }

    /// Reads the executable mappings from a copy of the list.
    pub(super) fn take_copy(&mut self, pid: pid_t, text: &[u8], out: &mut Vec<Mapping>) {
        let mut list = MapsList::new(pid, out);
        let _ = proc::mappings(text).try_for_each(|line| list.add(line));
        self.heads = list.heads;
    }

    /// Reads the mappings through a thread that still has the memory: `through`, or one of `others`, which
    /// then replaces it. An exited thread has an empty list.
    pub(super) fn read_through(
        &mut self,
        through: &mut pid_t,
        others: impl Iterator<Item = pid_t>,
        out: &mut Vec<Mapping>,
    ) -> Result<(), Fault> {
        let read = self.read(*through, out);
        if !out.is_empty() {
            return read;
        }
        for tid in others {
            if self.read(tid, out).is_ok() && !out.is_empty() {
                *through = tid;
                return Ok(());
            }
        }
        read.and(Err(Fault::Transient("nothing is mapped: the process begins a program or ends")))
    }

    /// The bytes of the image behind a mapping, or why not.
    pub(super) fn bytes(&self, pid: pid_t, mapping: &Mapping) -> Result<ImageBytes, OpenError> {
        match mapping.kind {
            MappingKind::File => self.file_bytes(pid, mapping),
            MappingKind::Vdso => vdso_bytes(pid, mapping),
            MappingKind::Anonymous | MappingKind::GdbJit => Err(OpenError::Anonymous),
        }
    }

    /// The bytes of the image behind a mapping of a process that may have exited: then of the file at its path,
    /// if it has not changed since `seen`, when it was still mapped.
    pub(super) fn last_bytes(
        &self,
        pid: pid_t,
        mapping: &Mapping,
        files: &TargetFiles,
        seen: Option<SystemTime>,
    ) -> Result<ImageBytes, OpenError> {
        self.bytes(pid, mapping).or_else(|why| match mapping.kind {
            MappingKind::File if !matches!(why, OpenError::TimedOut) => {
                files.open_same(&self.patience, &mapping.path, mapping.identity, seen).unwrap_or(Err(why))
            }
            MappingKind::Vdso => own_vdso().ok_or(why),
            MappingKind::File | MappingKind::Anonymous | MappingKind::GdbJit => Err(why),
        })
    }

    fn file_bytes(&self, pid: pid_t, mapping: &Mapping) -> Result<ImageBytes, OpenError> {
        let (path, deleted) = without_deleted(&mapping.path);
        let wanted = MappedFile {
            pid,
            path: (!deleted).then(|| path.to_owned()),
            identity: mapping.identity,
            link: link_to(pid, mapping),
        };
        let place = FileLocation::Device(mapping.identity.0);
        let (reason, unsure) = match self.patience.wait_for(place, move |copying| wanted.find(copying))? {
            FileMatch::Same(bytes) => return Ok(bytes),
            FileMatch::Unsure(reason, bytes) => (reason, bytes),
        };
        match unsure.filter(|bytes| self.head_matches(pid, mapping, bytes.bytes())) {
            Some(bytes) => Ok(bytes),
            None => Err(reason),
        }
    }

    fn head_matches(&self, pid: pid_t, mapping: &Mapping, file: &[u8]) -> bool {
        let Some(head) = self.heads.get(&mapping.identity) else { return false };
        let mut memory = [0; HEAD_BYTES];
        let len = sys::read_memory(pid, head.0, &mut memory).unwrap_or(0);
        elf::same_file(&memory[..len], file) || pe::same_file(&memory[..len], file)
    }
}

/// The kernel's own link to a mapped file (proc_pid_map_files(5)).
pub(super) fn link_to(pid: pid_t, mapping: &Mapping) -> String {
    format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.avma.start.0, mapping.avma.end.0)
}

/// The path of a mapped file, unescaped: `maps` writes a newline and the four characters `\012` alike, and
/// these two files must not be confused.
fn linked_path(pid: pid_t, mapping: &Mapping) -> Option<String> {
    let path = std::fs::read_link(link_to(pid, mapping)).ok()?;
    Some(path.to_string_lossy().into_owned()).filter(|path| path.starts_with('/'))
}

/// A mapped file, and the ways to reach it.
struct MappedFile {
    pid: pid_t,
    path: Option<String>,
    identity: (u64, u64),
    link: String,
}

/// Result of searching for a mapped file.
enum FileMatch {
    /// It is the mapped file.
    Same(ImageBytes),
    /// The file of its name, if any, and why it may be a different one.
    Unsure(OpenError, Option<ImageBytes>),
}

impl MappedFile {
    /// Searches for the file. May hang.
    fn find(&self, copying: &Copying) -> Result<FileMatch, OpenError> {
        let mut reason = OpenError::Deleted;
        let mut unsure = None;
        if let Some(path) = &self.path {
            let root = Root::of_process(self.pid).map_err(OpenError::from);
            match root.and_then(|root| root.open(path, Links::All, copying)) {
                Ok(file) if file.about().identity == self.identity => {
                    return Ok(FileMatch::Same(file.bytes(copying)?));
                }
                Ok(file) => {
                    unsure = Some(file);
                    reason = OpenError::Replaced;
                }
                Err(error) => reason = error,
            }
        }
        // Leads to the mapped file even if its name is gone; needs CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE
        // (proc_pid_map_files(5)). Tried before the comparison of heads, which are equal in files of one
        // layout without build ids.
        if let Ok(file) = open_linked(self.pid, &self.link, copying) {
            return Ok(FileMatch::Same(file.bytes(copying)?));
        }
        let unsure = unsure.map(|file| file.bytes(copying)).transpose()?;
        Ok(FileMatch::Unsure(reason, unsure))
    }
}

/// The vDSO of this process: the kernel maps the same one into all processes of one architecture.
fn own_vdso() -> Option<ImageBytes> {
    let (mut maps, mut list, own) = (Maps::default(), Vec::new(), std::process::id().cast_signed());
    maps.read(own, &mut list).ok()?;
    let vdso = list.iter().find(|mapping| mapping.kind == MappingKind::Vdso)?;
    vdso_bytes(own, vdso).ok()
}

fn vdso_bytes(pid: pid_t, mapping: &Mapping) -> Result<ImageBytes, OpenError> {
    let len = addr::len(&mapping.avma);
    if len > VDSO_BYTES_MAX {
        return Err(OpenError::LongVdso { bytes: len });
    }
    let mut bytes = vec![0; len as usize];
    let read = sys::read_memory(pid, mapping.avma.start.0, &mut bytes)?;
    bytes.truncate(read);
    Ok(ImageBytes::new(bytes))
}

/// Whether a program with this initial stack pointer is a 32-bit one: its stack is below 4 GiB, where the
/// kernel never puts that of a 64-bit program (`STACK_TOP` in arch/x86/include/asm/processor.h and
/// arch/arm64/include/asm/processor.h).
pub(super) fn is_of_32_bits(start_stack: Avma) -> bool {
    u32::try_from(start_stack.0).is_ok()
}

// ---- Which files the anonymous mappings of a process are copies of, and the number of attempts to find out.

/// Origins of anonymous mappings, by their bounds.
pub(super) type MappingOrigins = HashMap<(u64, u64), MappingOrigin>;

/// Origin of an anonymous mapping.
#[derive(Debug)]
pub(super) enum MappingOrigin {
    /// The parts of a file.
    Moved(Vec<Mapping>),
    /// Unknown, after this many attempts.
    Unknown(u32),
}

// ---- Program code moved from its file to anonymous memory at the same addresses, to have it on huge pages: node
// with --use-largepages, Intel's iodlr, BOLT's hugify.
//
// Proof: the mapping lies in a code segment of a file that is mapped next to it, and pages from all its parts equal
// those of the file.

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
    /// Replaces each anonymous mapping of code that was moved there, or that Wine read there, by the parts of the file.
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
        if let Some(line) = proc::mapping(line) {
            match room.checked_sub(size_of::<MapsLine>() + line.mapping.path.len()) {
                Some(left) => room = left,
                None => return ControlFlow::Break(()),
            }
            lines.push(line);
        }
        ControlFlow::Continue(())
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

// ---- Code of PE files that Wine reads into anonymous memory, because the file's alignment does not allow mapping.
//
// Proof: the headers of a PE file are mapped before it, the mapping lies where its sections belong, and pages from
// all its parts equal those of the file except for relocated addresses.

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
            is_pe_text_in_memory(image.bytes(), section, base, avma, &relocations, &mut read)
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
fn is_pe_text_in_memory(
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
mod moved_text_tests {
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

#[cfg(test)]
mod pe_text_tests {
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
            is_pe_text_in_memory(&file, &pe.sections[0], BASE, &avma, &relocations, &mut read)
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
        assert!(!is_pe_text_in_memory(&file, &pe.sections[0], BASE, &avma, &relocations, none));
    }
}
