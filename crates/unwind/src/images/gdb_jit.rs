//! JIT code registered through GDB's JIT interface: LLVM (numba, PostgreSQL) and QEMU keep a list of object files
//! in memory, with addresses, unwind information and names.
//!
//! Input: the images of a process and reads of its memory while it runs, hostile and changing. Output: mappings of
//! that code in place of memory without a file, and the object file of each. Not for: 32-bit processes.
//!
//! Format: GDB manual, "JIT Compilation Interface": `__jit_debug_descriptor` has version, action, the entry that
//! the last action concerned, and the first entry; an entry has next, previous, and the file's address and size.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;

use hashbrown::{HashMap, HashSet};

use super::history::Images;
use super::jit::Read;
use crate::addr::Avma;
use crate::binary::elf::relocated_object;
use crate::binary::{ImageBytes, Mapping, MappingKind, OpenError};

/// The only version of the list.
const VERSION: u64 = 1;
const DESCRIPTOR_BYTES: usize = 24;
const ENTRY_BYTES: usize = 32;
/// Limit on lists per process: each library that contains LLVM has one.
const LISTS_MAX: usize = 8;
/// Limit on entries followed per list: the first ones, which LLVM registered last.
const ENTRIES_MAX: usize = 4096;
/// Limit on the size of a file.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// The registered JIT code of one process.
#[derive(Debug, Default)]
pub struct GdbJit {
    /// The lists as last read: address and content of each. `None` if they were changing and must be read again.
    lists: Option<Vec<(Avma, [u8; DESCRIPTOR_BYTES])>>,
    files: Vec<File>,
}

/// A registered file.
#[derive(Debug)]
struct File {
    /// Its address range in the process.
    at: Range<u64>,
    /// Its first bytes and its section headers, which locate the code.
    seen: Vec<u8>,
    /// Hash of the content. Files of equal content are one image, whatever their process.
    identity: (u64, u64),
    /// The linked file, until images take it.
    bytes: Option<Vec<u8>>,
    code: Vec<Range<Avma>>,
}

/// State while lists are read.
struct Reading<'r> {
    /// Files registered before, by address.
    known: HashMap<u64, File>,
    /// Addresses of the files already read.
    taken: HashSet<u64>,
    /// Bytes of files that may still be read.
    room: usize,
    read: Read<'r>,
}

impl GdbJit {
    /// Reads the registered files again if the lists changed. Returns whether they changed.
    pub fn update(&mut self, process: u32, images: &Images, read: Read<'_>) -> bool {
        let mut lists = Vec::new();
        for at in images.of(process).jit_descriptors().into_iter().take(LISTS_MAX) {
            let mut descriptor = [0; DESCRIPTOR_BYTES];
            if read(at, &mut descriptor) == DESCRIPTOR_BYTES && word(&descriptor, 0) & 0xffff_ffff == VERSION
            {
                lists.push((at, descriptor));
            }
        }
        if self.lists.as_ref() == Some(&lists) {
            return false;
        }
        let before: Vec<_> = self.files.iter().map(|file| file.identity).collect();
        let known = std::mem::take(&mut self.files).into_iter().map(|file| (file.at.start, file)).collect();
        let mut reading = Reading { known, taken: HashSet::new(), room: images.room_for_registered(), read };
        let mut is_whole = true;
        for (_, descriptor) in &lists {
            is_whole &= self.follow(word(descriptor, 16), &mut reading);
        }
        self.lists = is_whole.then_some(lists);
        self.files.iter().map(|file| file.identity).ne(before)
    }

    /// Reads the files of a list. Returns whether all of it was valid.
    fn follow(&mut self, first: u64, reading: &mut Reading<'_>) -> bool {
        let (mut at, mut is_whole) = (first, true);
        for _ in 0..ENTRIES_MAX {
            if at == 0 {
                return is_whole;
            }
            let mut entry = [0; ENTRY_BYTES];
            if (reading.read)(Avma(at), &mut entry) < ENTRY_BYTES {
                return false;
            }
            is_whole &= self.take(word(&entry, 16), word(&entry, 24), reading);
            at = word(&entry, 0);
        }
        is_whole
    }

    /// Reads a file of `size` bytes, if the limits allow it and it is not known yet. Returns whether it could be
    /// read.
    fn take(&mut self, start: u64, size: u64, reading: &mut Reading<'_>) -> bool {
        let Some(end) = start.checked_add(size).filter(|_| (1..=FILE_BYTES_MAX).contains(&size)) else {
            return false;
        };
        if !reading.taken.insert(start) {
            return true;
        }
        let read = &mut *reading.read;
        let Some(seen) = relocated_object::headers_of(size, &mut |offset, bytes: &mut [u8]| {
            read(Avma(start.wrapping_add(offset)), bytes) == bytes.len()
        }) else {
            return false;
        };
        let known = reading.known.remove(&start);
        if let Some(known) = known.filter(|file| file.at.end == end && file.seen == seen) {
            self.files.push(known);
            return true;
        }
        // Counts every read, whether it yields a file or not: a list may lead anywhere.
        let Some(left) = reading.room.checked_sub(size as usize) else { return true };
        reading.room = left;
        let mut bytes = vec![0; size as usize];
        if (reading.read)(Avma(start), &mut bytes) < bytes.len() {
            return false;
        }
        if let Some(linked) = relocated_object::link(bytes) {
            let mut hasher = DefaultHasher::new();
            linked.bytes.hash(&mut hasher);
            // No file system has this device number.
            let identity = (u64::MAX, hasher.finish());
            let (bytes, code) = (Some(linked.bytes), linked.code);
            self.files.push(File { at: start..end, seen, identity, bytes, code });
        }
        true
    }

    /// The mappings, sorted by address, with registered code in place of memory without a file; `None` if no code
    /// is registered.
    #[must_use]
    pub fn place_in(&self, mappings: &[Mapping]) -> Option<Vec<Mapping>> {
        let ranges =
            |(order, file): (usize, &'_ File)| file.code.clone().into_iter().map(move |range| (range, order));
        let mut code: Vec<_> = self.files.iter().enumerate().flat_map(ranges).collect();
        if code.is_empty() {
            return None;
        }
        // Of two files at one address, the first in the list wins: it was registered last.
        code.sort_by_key(|(range, order)| (range.start, *order));
        let mut code = code.into_iter().peekable();
        let mut placed = Vec::with_capacity(mappings.len());
        for mapping in mappings {
            let mut rest = mapping.avma.clone();
            while let Some((range, order)) = code.next_if(|(range, _)| range.start < rest.end) {
                if mapping.kind != MappingKind::Anonymous || range.start < rest.start || range.end > rest.end
                {
                    continue;
                }
                if rest.start < range.start {
                    placed.push(Mapping { avma: rest.start..range.start, ..mapping.clone() });
                }
                rest.start = range.end;
                placed.push(Mapping {
                    // The file offset that `linked` assigned.
                    file_offset: range.start.0,
                    avma: range,
                    path: mapping.path.clone(),
                    kind: MappingKind::GdbJit,
                    identity: self.files.get(order).map_or((0, 0), |file| file.identity),
                });
            }
            if rest.start < rest.end {
                placed.push(Mapping { avma: rest, ..mapping.clone() });
            }
        }
        Some(placed)
    }

    /// The file behind a mapping that [`GdbJit::place_in`] created, once; `None` for other mappings.
    pub fn open(&mut self, mapping: &Mapping) -> Option<Result<ImageBytes, OpenError>> {
        if mapping.kind != MappingKind::GdbJit {
            return None;
        }
        let mut behind = self.files.iter_mut().filter(|file| file.identity == mapping.identity);
        let bytes = behind.find_map(|file| file.bytes.take());
        Some(bytes.map(ImageBytes::new).ok_or(OpenError::Anonymous))
    }

    /// Drops the files' bytes, after the images have taken what they need.
    pub fn drop_file_bytes(&mut self) {
        self.files.iter_mut().for_each(|file| file.bytes = None);
    }
}

/// Reads eight bytes as a number; 0 beyond the end.
fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests;
