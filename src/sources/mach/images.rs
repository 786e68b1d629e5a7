//! The bytes of an image of the target: its code and its symbols.
//!
//! `bytes` finds them; `Jit` is code without an image, `MacFiles` opens files and asks Spotlight.
//!
//! An image of the shared cache is in this process, too, at the same address, if both use the same cache:
//! nothing is copied. Others are read from their file, if its UUID is that of the loaded image, or else
//! copied from the target's memory right away: it may have exited when names are needed. All images of a
//! shared cache have their names in one pool of hundreds of megabytes; only the image's own names are copied.

use std::ops::Range;
use std::process::{Command, Stdio};

use object::macho::{N_SECT, N_STAB, N_TYPE};

use super::dyld::{Dyld, RemoteImage, SharedCache};
use super::kernel::MachKernel;
use super::memory::Memory;
use crate::addr::Avma;
use crate::binary::files::{self, Files};
use crate::binary::macho::{self, ImageIdentity};
use crate::binary::{ImageBytes, Linkedit, Mapping, OpenError};
use crate::sources::LocalFiles;
use crate::sources::target_file::with_local;

/// Most bytes to copy of one piece of an image; and of all images together.
const PIECE_BYTES_MAX: u64 = 64 << 20;
const BYTES_MAX: u64 = 512 << 20;
/// A larger pool belongs to a shared cache or is damaged: names are read one by one.
const POOL_BYTES_MAX: u64 = 16 << 20;
/// Names closer to each other than this are read at once.
const GAP_BYTES: u64 = 4096;
/// Names are cut at this length: the end of the last one is unknown before it is read.
const NAME_BYTES_MAX: u64 = 4096;

/// Bytes copied from targets' memory so far.
#[derive(Debug, Default)]
pub(super) struct CopiedBytes(u64);

/// The bytes of an image, from the best available source.
///
/// # Errors
/// Why its file was not usable, if memory could not be read either.
pub(super) fn bytes(
    memory: &Memory<'_>,
    image: &RemoteImage,
    cache: Option<SharedCache>,
    copied: &mut CopiedBytes,
) -> Result<ImageBytes, OpenError> {
    if image.is_in_shared_cache()
        && let Some(own) = own_cache(memory.kernel, image, cache)
    {
        return Ok(own);
    }
    match from_file(image) {
        Ok(bytes) => Ok(bytes),
        Err(why) => from_memory(memory, image, copied).ok_or(why),
    }
}

/// From this process's own shared cache, if it equals the target's.
pub(super) fn own_cache(
    kernel: &dyn MachKernel,
    image: &RemoteImage,
    cache: Option<SharedCache>,
) -> Option<ImageBytes> {
    let (uuid, base, _) = kernel.own_shared_cache_identity()?;
    if cache != Some(SharedCache { uuid, base }) {
        return None;
    }
    let own = |at, bytes: u64| kernel.own_shared_cache(at, usize::try_from(bytes).ok()?);
    let text = own(image.load, image.text_bytes())?;
    let piece = |range: &Range<u64>| address(image, range).and_then(|at| own(at, range.end - range.start));
    Some(in_memory(image, text, |range| piece(range).unwrap_or_else(empty)))
}

/// From its file.
fn from_file(image: &RemoteImage) -> Result<ImageBytes, OpenError> {
    if image.path.is_empty() {
        return Err(OpenError::Source("its file is not known"));
    }
    if image.macho.encrypted {
        return Err(OpenError::Source("its code is encrypted in the file"));
    }
    let macho = &image.macho;
    let wanted = ImageIdentity { uuid: macho.uuid, cpu_type: macho.cpu_type, cpu_subtype: macho.cpu_subtype };
    let chosen = part_of_file(&image.path, &wanted)?;
    // Without a UUID the load commands distinguish builds.
    if macho.uuid.is_none() && !chosen.bytes().starts_with(&image.head) {
        return Err(OpenError::Replaced);
    }
    Ok(chosen)
}

/// The image with this identity in a file.
pub(super) fn part_of_file(path: &str, wanted: &ImageIdentity) -> Result<ImageBytes, OpenError> {
    Ok(macho::choose(&LocalFiles.open(path)?, wanted)?)
}

/// From the target's memory.
fn from_memory(memory: &Memory<'_>, image: &RemoteImage, copied: &mut CopiedBytes) -> Option<ImageBytes> {
    let text = copied.read(memory, image.load, image.text_bytes())?;
    if !text.starts_with(&image.head) {
        // It was unloaded, and something else loaded there.
        return None;
    }
    let at = &image.macho.linkedit;
    let mut linkedit = Linkedit {
        nlists: empty(),
        strings: empty(),
        function_starts: copied.piece(memory, image, &at.function_starts),
        exports_trie: copied.piece(memory, image, &at.exports_trie),
    };
    let nlists = copied.piece(memory, image, &at.nlists);
    if at.strings.end - at.strings.start <= POOL_BYTES_MAX {
        linkedit.strings = copied.piece(memory, image, &at.strings);
        linkedit.nlists = nlists;
    } else if let Some(pool) = address(image, &at.strings) {
        let (nlists, names) = with_own_names(nlists.bytes(), |offset, bytes| {
            copied.read(memory, pool.checked_add(offset)?, bytes)
        });
        linkedit.nlists = ImageBytes::new(nlists);
        linkedit.strings = ImageBytes::new(names);
    }
    Some(ImageBytes::new(text).in_memory(image.text_offset(), linkedit))
}

impl CopiedBytes {
    /// Copies memory up to the first unreadable byte; `None` if there is none, or the limit is reached.
    fn read(&mut self, memory: &Memory<'_>, at: u64, bytes: u64) -> Option<Vec<u8>> {
        let bytes = bytes.min(PIECE_BYTES_MAX).min(BYTES_MAX - self.0);
        let read = memory.bytes(at, usize::try_from(bytes).ok()?).ok().filter(|read| !read.is_empty())?;
        self.0 += read.len() as u64;
        Some(read)
    }

    fn piece(&mut self, memory: &Memory<'_>, image: &RemoteImage, range: &Range<u64>) -> ImageBytes {
        let read = address(image, range).and_then(|at| self.read(memory, at, range.end - range.start));
        read.map_or_else(empty, ImageBytes::new)
    }
}

fn empty() -> ImageBytes {
    ImageBytes::new(Vec::new())
}

/// Address of a piece of `__LINKEDIT`; `None` for an empty one.
fn address(image: &RemoteImage, range: &Range<u64>) -> Option<u64> {
    let stated = image.macho.linkedit_svma(range.start).filter(|_| range.start < range.end)?;
    Some(stated.0.wrapping_add(image.slide()))
}

fn in_memory(image: &RemoteImage, text: ImageBytes, piece: impl Fn(&Range<u64>) -> ImageBytes) -> ImageBytes {
    let at = &image.macho.linkedit;
    let linkedit = Linkedit {
        nlists: piece(&at.nlists),
        strings: piece(&at.strings),
        function_starts: piece(&at.function_starts),
        exports_trie: piece(&at.exports_trie),
    };
    text.in_memory(image.text_offset(), linkedit)
}

/// Offsets of a symbol's name and type in a symbol table entry (`nlist_64`, mach-o/nlist.h).
const NLIST_BYTES: usize = 16;

/// The symbols of a table that are defined in a section, with a pool of only their names. `read` returns
/// bytes of the large pool from an offset on, fewer at its end.
fn with_own_names(nlists: &[u8], mut read: impl FnMut(u64, u64) -> Option<Vec<u8>>) -> (Vec<u8>, Vec<u8>) {
    let (nlists, _) = nlists.as_chunks::<NLIST_BYTES>();
    let offset = |nlist: &[u8; NLIST_BYTES]| u32::from_le_bytes([nlist[0], nlist[1], nlist[2], nlist[3]]);
    let mut kept: Vec<[u8; NLIST_BYTES]> = nlists
        .iter()
        .filter(|nlist| nlist[4] & N_STAB == 0 && nlist[4] & N_TYPE == N_SECT.0)
        .copied()
        .collect();
    kept.sort_unstable_by_key(offset);
    let (mut tables, mut names) = (Vec::with_capacity(kept.len() * NLIST_BYTES), vec![0]);
    let near = |a: &[u8; NLIST_BYTES], b: &[u8; NLIST_BYTES]| u64::from(offset(b) - offset(a)) <= GAP_BYTES;
    for run in kept.chunk_by_mut(near) {
        let first = run.first().map_or(0, offset);
        let length = u64::from(run.last().map_or(0, offset) - first) + NAME_BYTES_MAX;
        let bytes = read(first.into(), length).unwrap_or_default();
        for nlist in run {
            let name = bytes.get((offset(nlist) - first) as usize..).unwrap_or_default();
            let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
            let at = u32::try_from(names.len()).unwrap_or(0);
            names.extend_from_slice(&name[..name.len().min(NAME_BYTES_MAX as usize)]);
            names.push(0);
            nlist[..4].copy_from_slice(&at.to_le_bytes());
            tables.extend_from_slice(nlist);
        }
    }
    (tables, names)
}

// ---- Code without an image: JIT code, islands of the shared cache. Input: the program counter of a running
// thread. Output: its region. Only that region is queried; listing all regions of a task takes thousands of
// calls and blocks its own.

/// Most recorded ranges; a program with more has one heap for each function.
const RANGES_MAX: usize = 4096;
/// VM_PROT_EXECUTE.
const EXECUTE: i32 = 4;

/// Known ranges of executable memory, sorted by address, disjoint.
#[derive(Debug, Default)]
pub(super) struct Jit(Vec<Range<u64>>);

impl Jit {
    /// Queries the region at `pc` unless it is known; returns whether it is new code.
    pub(super) fn learn(&mut self, memory: &Memory<'_>, dyld: &Dyld, pc: u64) -> bool {
        if dyld.image_at(pc).is_some() || self.0.len() >= RANGES_MAX {
            return false;
        }
        let after = self.0.partition_point(|known| known.start <= pc);
        if after.checked_sub(1).is_some_and(|index| self.0[index].contains(&pc)) {
            return false;
        }
        let Ok(region) = memory.region(pc) else {
            return false;
        };
        let region_end = region.address.saturating_add(region.size);
        if region.protection & EXECUTE == 0 || !(region.address..region_end).contains(&pc) {
            return false;
        }
        // In the shared cache one region holds many images: only the part between two of them counts.
        let images = dyld.images();
        let above = images.partition_point(|image| image.load <= pc);
        let below = above.checked_sub(1).map_or(0, |index| images[index].load + images[index].text_bytes());
        let above = images.get(above).map_or(u64::MAX, |image| image.load);
        let before = after.checked_sub(1).map_or(0, |index| self.0[index].end);
        let next = self.0.get(after).map_or(u64::MAX, |next| next.start);
        let range = region.address.max(below).max(before)..region_end.min(above).min(next);
        self.0.insert(after, range);
        true
    }

    /// Adds the ranges outside of all current images to the sorted mappings.
    pub(super) fn add_to(&self, dyld: &Dyld, out: &mut Vec<Mapping>) {
        let free = |range: &&Range<u64>| {
            let above = dyld.images().partition_point(|image| image.load < range.end);
            let below = above.checked_sub(1).map(|index| &dyld.images()[index]);
            below.is_none_or(|image| image.load + image.text_bytes() <= range.start)
        };
        out.extend(
            self.0.iter().filter(free).map(|range| Mapping::anonymous(Avma(range.start)..Avma(range.end))),
        );
        out.sort_by_key(|mapping| mapping.avma.start);
    }
}

// ---- Files of a macOS process: the file system is common to all, and Spotlight indexes dSYMs.

/// Most dSYMs accepted from Spotlight for one UUID.
const KNOWN_MAX: usize = 64;

/// The files that a process sees.
#[derive(Debug)]
pub(super) struct MacFiles {
    pid: u32,
}

impl MacFiles {
    pub(super) fn new(pid: u32) -> MacFiles {
        MacFiles { pid }
    }
}

impl Files for MacFiles {
    fn open(&self, path: &str) -> Result<ImageBytes, OpenError> {
        // A debug map can name thousands of object files, and macOS lets a process open 256.
        with_local(path, true, |file, copying| file.bytes_briefly(copying))
    }

    fn modified_s(&self, path: &str) -> Option<u64> {
        LocalFiles.modified_s(path)
    }

    fn list(&self, directory: &str) -> Vec<String> {
        LocalFiles.list(directory)
    }

    fn jit_map(&self) -> Option<(String, Result<Vec<u8>, OpenError>)> {
        let path = format!("/tmp/perf-{}.map", self.pid);
        let content = with_local(&path, false, |file, copying| {
            file.check_trusted(None)?;
            file.read(files::JIT_MAP_BYTES_MAX, copying)
        });
        match content {
            Err(why) if why.is_not_found() => None,
            content => Some((path, content)),
        }
    }

    fn open_jit_dump(&self, path: &str) -> Result<ImageBytes, OpenError> {
        with_local(path, false, |file, copying| {
            file.check_trusted(None)?;
            file.bytes(copying)
        })
    }

    /// `mdfind` is Apple's client of the index; the only other interface needs Objective-C. Returns nothing
    /// if it is missing or refuses.
    fn known_by_uuid(&self, uuid: &[u8]) -> Vec<String> {
        let Ok(uuid) = <[u8; 16]>::try_from(uuid) else { return Vec::new() };
        let query = format!("com_apple_xcode_dsym_uuids == {}", dashed(&uuid));
        let found = Command::new("/usr/bin/mdfind").arg(query).stdin(Stdio::null()).output();
        let Ok(found) = found else { return Vec::new() };
        String::from_utf8_lossy(&found.stdout).lines().take(KNOWN_MAX).map(str::to_owned).collect()
    }
}

/// A UUID in its usual notation.
fn dashed(uuid: &[u8; 16]) -> String {
    let mut out = String::with_capacity(36);
    for (index, byte) in uuid.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            out.push('-');
        }
        out.push_str(&format!("{byte:02X}"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nlist(strx: u32, kind: u8, value: u64) -> [u8; NLIST_BYTES] {
        let mut nlist = [0; NLIST_BYTES];
        nlist[..4].copy_from_slice(&strx.to_le_bytes());
        nlist[4] = kind;
        nlist[8..].copy_from_slice(&value.to_le_bytes());
        nlist
    }

    #[test]
    fn only_the_images_names_are_read_from_a_large_pool() {
        let mut pool = vec![b'x'; 1 << 20];
        let names: [(usize, &[u8]); 4] =
            [(10, b"_near\0"), (100, b"_nearer\0"), (700_000, b"_far\0"), (900_000, b"_stab\0")];
        for (at, name) in names {
            pool[at..at + name.len()].copy_from_slice(name);
        }
        let table =
            [nlist(700_000, 0x0f, 3), nlist(10, 0x0e, 1), nlist(100, 0x0f, 2), nlist(900_000, 0x24, 4)];
        let mut read = 0;
        let (nlists, own) = with_own_names(table.as_flattened(), |offset, bytes| {
            read += bytes;
            let from = pool.get(offset as usize..)?;
            Some(from[..from.len().min(bytes as usize)].to_vec())
        });
        let (nlists, rest) = nlists.as_chunks::<NLIST_BYTES>();
        assert!(rest.is_empty() && read < 20_000, "{read} bytes read");
        let name = |nlist: &[u8; NLIST_BYTES]| {
            let at = u32::from_le_bytes([nlist[0], nlist[1], nlist[2], nlist[3]]) as usize;
            (nlist[8], own[at..].split(|byte| *byte == 0).next().unwrap_or_default().to_vec())
        };
        let names: Vec<_> = nlists.iter().map(name).collect();
        assert_eq!(names, [(1, b"_near".to_vec()), (2, b"_nearer".to_vec()), (3, b"_far".to_vec())]);
    }

    #[test]
    fn unreadable_names_are_empty() {
        let table = [nlist(u32::MAX, 0x0f, 1), nlist(5, 0x0f, 2)];
        let (nlists, own) = with_own_names(table.as_flattened(), |_, _| None);
        assert_eq!((nlists.len(), own), (32, vec![0, 0, 0]));
    }
}

#[cfg(test)]
mod files_tests {
    use super::dashed;

    #[test]
    fn formats_uuids_with_dashes() {
        assert_eq!(dashed(b"0123456789abcdef"), "30313233-3435-3637-3839-616263646566");
    }
}
