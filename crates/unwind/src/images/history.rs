//! The images of processes over time: maps a code address to an image and an address in it.
//!
//! Input: the executable mappings at several times, and a closure that opens a file. Output: address → image and
//! stated address, in any address space that the processes had. All processes share files; each has its own spaces,
//! and [`Images::of`] returns the current one. `LibraryCounts` are the counts by which a list of mappings is known
//! to be current.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::code::ImageView;
use super::image::Image;
use super::jit::Read;
use super::space::{NO_IMAGE, Region, Space};
use crate::addr::{Avma, Svma};
use crate::binary::{ImageBytes, Mapping, MappingKind, OpenError, ProgramPath};

/// Limit on address spaces over time. Beyond it addresses that change their meaning are of no image from then on; see
/// [`Images::spaces_full`].
pub const SPACES_MAX: usize = 65_536;

/// Limit on images over time: each may hold a mapped file. Code of further images is `[unknown]`, counted by
/// [`Images::images_refused`].
pub const IMAGES_MAX: usize = 8192;

/// Limits on images that JIT compilers registered (`gdb_jit.rs`), and on their bytes.
const REGISTERED_MAX: usize = IMAGES_MAX / 2;
const REGISTERED_BYTES_MAX: usize = 128 << 20;

/// Limit on regions of all spaces together (32 MiB of memory). A quarter is reserved for the current space: when
/// older ones fill the rest, no new space begins, as with [`SPACES_MAX`]. Regions that do not fit are counted by
/// [`Images::regions_refused`].
pub const REGIONS_MAX: usize = 1 << 20;

/// Limit on stored names of memory without files; a process has a handful.
const LABELS_MAX: usize = 64;
/// Limit on the length of these names, in bytes; the kernel's limit is 80.
const LABEL_BYTES_MAX: usize = 128;

/// The location of an address.
#[derive(Clone, Copy, Debug)]
pub struct Location<'a> {
    /// Index of the image in [`Images::images`].
    pub index: u32,
    /// The image.
    pub image: &'a Image,
    /// The address in the image's file. For an unknown file format: the file offset.
    pub svma: Svma,
    /// Bytes from the image's lowest stated address: what `[module+0x1f40]` shows.
    pub relative: u64,
}

/// The spaces of one process.
#[derive(Clone, Debug, Default)]
struct Process {
    /// Number of its current space.
    current: u32,
    /// Number of the space that its last program began with.
    program: u32,
    /// The symbolic link that the program was started by.
    path: Option<Arc<ProgramPath>>,
}

/// The images of processes over time.
#[derive(Clone, Debug)]
pub struct Images {
    pub(super) images: Vec<Image>,
    /// Images by device and inode; the few of one identity differ in their path.
    by_identity: BTreeMap<(u64, u64), Vec<u32>>,
    /// Kernel names of regions without an image, by number; the first is empty.
    labels: Vec<String>,
    /// By space number. Never empty.
    spaces: Vec<Space>,
    /// By process number. Never empty.
    processes: Vec<Process>,
    /// Number of regions in all spaces.
    regions: usize,
    spaces_full: bool,
    images_refused: u64,
    regions_refused: u64,
    /// Number of registered images, and their bytes.
    registered: (usize, usize),
}

impl Default for Images {
    fn default() -> Images {
        Images {
            images: Vec::new(),
            by_identity: BTreeMap::new(),
            labels: vec![String::new()],
            spaces: vec![Space::default()],
            processes: vec![Process::default()],
            regions: 0,
            spaces_full: false,
            images_refused: 0,
            regions_refused: 0,
            registered: (0, 0),
        }
    }
}

impl Images {
    /// The current images of a process, by the number that [`Images::begin_process`] returned.
    #[must_use]
    #[inline]
    pub fn of(&self, process: u32) -> ImageView<'_> {
        let number = self.current(process);
        ImageView { images: &self.images, space: &self.spaces[number as usize], number }
    }

    /// Takes the current executable mappings of a process, sorted by address. A new image (by identity and path)
    /// is opened with `open`, once, and again when its file was rewritten.
    ///
    /// The current space is kept while every address in it keeps its meaning; a new one begins when a part of an
    /// image disappeared, or when another file or another part of it is now at its addresses. Returns whether
    /// anything changed.
    pub fn update(
        &mut self,
        process: u32,
        mappings: &[Mapping],
        open: &mut dyn FnMut(&Mapping) -> Result<ImageBytes, OpenError>,
    ) -> bool {
        let mut regions = self.regions_of(process, mappings, open);
        let current = &self.spaces[self.current(process) as usize];
        if current.regions == regions {
            return false;
        }
        let vanished = match current.follow(&regions) {
            Some(vanished) => vanished,
            None if self.new_space(process, regions.len()) => Vec::new(),
            None => self.spaces[self.current(process) as usize].keep_meaning(&mut regions),
        };
        self.cut_to_limit(process, &mut regions);
        self.replace(process, regions, vanished);
        true
    }

    /// Begins a new, empty space for a process that replaced its program (`exec`).
    pub fn begin_space(&mut self, process: u32) {
        let vanished = if self.new_space(process, 0) {
            Vec::new()
        } else {
            self.spaces[self.current(process) as usize].keep_meaning(&mut Vec::new())
        };
        self.replace(process, Vec::new(), vanished);
        let current = self.current(process);
        if let Some(process) = self.processes.get_mut(process as usize) {
            (process.program, process.path) = (current, None);
        }
    }

    /// Sets the path by which a process started its program, before its mappings are added: the file becomes a
    /// separate image under that name.
    pub fn set_program_path(&mut self, process: u32, path: Option<Arc<ProgramPath>>) {
        if let Some(process) = self.processes.get_mut(process as usize) {
            process.path = path;
        }
    }

    /// Adds a process with an empty space. Returns its number; `None` beyond [`SPACES_MAX`] and [`REGIONS_MAX`].
    /// Process number 0 always exists.
    pub fn begin_process(&mut self) -> Option<u32> {
        let number = self.processes.len() as u32;
        let space = self.push_space(number, 0)?;
        self.processes.push(Process { current: space, program: space, path: None });
        Some(number)
    }

    /// The process of an address space.
    #[must_use]
    pub fn process_of(&self, space: u32) -> u32 {
        self.spaces.get(space as usize).map_or(0, |space| space.process)
    }

    /// Whether a space belongs to a program that its process has since replaced (`exec`).
    #[must_use]
    pub fn is_of_earlier_program(&self, space: u32) -> bool {
        let process = self.processes.get(self.process_of(space) as usize);
        process.is_some_and(|process| space < process.program)
    }

    /// The image at an address in one of a process's address spaces.
    #[must_use]
    pub fn locate(&self, space: u32, avma: Avma) -> Option<Location<'_>> {
        let region = self.spaces.get(space as usize)?.find(avma.0)?;
        let image = self.images.get(region.image as usize)?;
        let offset = region.file_offset.checked_add(avma.0 - region.start)?;
        // Without segments (unknown format, or none covers the offset) the file offset is still the same in every
        // run, so it is a better name than the run-time address.
        let svma = image.object().and_then(|object| object.svma_of(offset)).unwrap_or(Svma(offset));
        Some(Location { index: region.image, image, svma, relative: svma - image.base_svma })
    }

    /// The kernel's name for the executable memory at an address, if a program filled that memory itself: memory
    /// without a file, or with a file that exists in memory only and is no executable (`[anon:v8]`, `/memfd:jit`,
    /// `/dev/zero`). Empty if it has no name. Includes memory unmapped since.
    #[must_use]
    pub fn jit_memory(&self, space: u32, avma: Avma) -> Option<&str> {
        let space = self.spaces.get(space as usize)?;
        let Some(region) = space.find(avma.0) else { return space.had_vanished(avma.0).then_some("") };
        match self.images.get(region.image as usize) {
            Some(image) if region.is_registered => Some(&image.path),
            Some(image) => image.object().is_none().then(|| in_memory_only(&image.path)).flatten(),
            None => {
                let label = usize::try_from(region.file_offset).ok().and_then(|label| self.labels.get(label));
                Some(label.map_or("", String::as_str))
            }
        }
    }

    /// The images that are mapped in a space.
    pub fn images_in(&self, space: u32) -> impl Iterator<Item = &Image> {
        let regions = self.spaces.get(space as usize).map_or(&[][..], |space| &space.regions);
        let mut images: Vec<u32> = regions.iter().map(|region| region.image).collect();
        images.sort_unstable();
        images.dedup();
        images.into_iter().filter_map(|image| self.images.get(image as usize))
    }

    /// Bytes of registered files that may still be read.
    pub(crate) fn room_for_registered(&self) -> usize {
        REGISTERED_BYTES_MAX.saturating_sub(self.registered.1)
    }

    /// The paths of files with this name that the last program of a process has mapped, now or before.
    #[must_use]
    pub fn paths_in_program(&self, process: u32, name: &str) -> Vec<&str> {
        let is_mapped = |index: usize| {
            let in_space = |space: &Space| space.regions.iter().any(|at| at.image as usize == index);
            let of_program = |(number, space): (usize, &Space)| {
                space.process == process && !self.is_of_earlier_program(number as u32) && in_space(space)
            };
            self.spaces.iter().enumerate().any(of_program)
        };
        let named = self.images.iter().enumerate().filter(|(_, image)| image.name == name);
        let mut paths: Vec<&str> =
            named.filter(|(index, _)| is_mapped(*index)).map(|(_, image)| image.path.as_str()).collect();
        paths.dedup();
        paths
    }

    /// The mapping that contained an address in one of the process's address spaces: the image, the addresses
    /// (Avma), and the file offset of the first one. `None` for JIT code.
    #[must_use]
    pub fn mapping_of(&self, space: u32, avma: Avma) -> Option<(&Image, Range<Avma>, u64)> {
        let region = self.spaces.get(space as usize)?.find(avma.0).filter(|region| !region.is_registered)?;
        let image = self.images.get(region.image as usize)?;
        Some((image, Avma(region.start)..Avma(region.end), region.file_offset))
    }

    /// The run-time address of the entry point of the executable at `path`, in a space.
    #[must_use]
    pub fn entry_of(&self, space: u32, path: &str) -> Option<Avma> {
        let regions = &self.spaces.get(space as usize)?.regions;
        regions.iter().find_map(|region| {
            let image = self.images.get(region.image as usize)?;
            let object = image.object().filter(|_| image.path == path)?;
            let into = object.file_offset_of(object.entry()?)?.checked_sub(region.file_offset)?;
            let avma = region.start.checked_add(into)?;
            (avma < region.end).then_some(Avma(avma))
        })
    }

    /// All images, in the order they were first mapped.
    #[must_use]
    pub fn images(&self) -> &[Image] {
        &self.images
    }

    /// Whether [`SPACES_MAX`] or [`REGIONS_MAX`] prevented a new space: code that was unloaded after it is unknown, as is what
    /// was loaded at its addresses.
    #[must_use]
    pub fn spaces_full(&self) -> bool {
        self.spaces_full
    }

    /// Number of times an image was refused because of [`IMAGES_MAX`].
    #[must_use]
    pub fn images_refused(&self) -> u64 {
        self.images_refused
    }

    /// Number of times a region was refused: beyond [`REGIONS_MAX`], or overlapping another.
    #[must_use]
    pub fn regions_refused(&self) -> u64 {
        self.regions_refused
    }

    /// The number of a process's current space; that of the first process for an unknown one.
    fn current(&self, process: u32) -> u32 {
        self.processes.get(process as usize).map_or(0, |process| process.current)
    }

    /// Replaces the regions of a process's current space.
    fn replace(&mut self, process: u32, regions: Vec<Region>, vanished: Vec<Range<u64>>) {
        let current = self.current(process) as usize;
        let space = &mut self.spaces[current];
        self.regions = self.regions - space.regions.len() + regions.len();
        space.replace(regions, vanished);
    }

    /// Begins a new space of a process; false if a limit requires keeping the current one.
    fn new_space(&mut self, process: u32, regions: usize) -> bool {
        let before = self.current(process) as usize;
        let Some(number) = self.push_space(process, regions) else { return false };
        self.spaces[before].regions.shrink_to_fit();
        if let Some(process) = self.processes.get_mut(process as usize) {
            process.current = number;
        }
        true
    }

    /// Adds an empty space with room for this many regions; `None` if a limit is reached.
    fn push_space(&mut self, process: u32, regions: usize) -> Option<u32> {
        let wanted = regions.max(REGIONS_MAX / 4);
        if self.spaces.len() >= SPACES_MAX || self.regions + wanted > REGIONS_MAX {
            self.spaces_full = true;
            return None;
        }
        self.spaces.push(Space::of(process));
        Some((self.spaces.len() - 1) as u32)
    }

    fn cut_to_limit(&mut self, process: u32, regions: &mut Vec<Region>) {
        let current = &self.spaces[self.current(process) as usize];
        let room = REGIONS_MAX - (self.regions - current.regions.len());
        self.regions_refused += regions.len().saturating_sub(room) as u64;
        regions.truncate(room);
    }

    /// The mappings as regions, sorted and disjoint.
    fn regions_of(
        &mut self,
        process: u32,
        mappings: &[Mapping],
        open: &mut dyn FnMut(&Mapping) -> Result<ImageBytes, OpenError>,
    ) -> Vec<Region> {
        let mut regions = Vec::with_capacity(mappings.len().min(REGIONS_MAX));
        let mut end_before = 0;
        for mapping in mappings.iter().take(REGIONS_MAX) {
            let (start, end) = (mapping.avma.start.0, mapping.avma.end.0);
            if start >= end || start < end_before {
                self.regions_refused += 1;
                continue;
            }
            end_before = end;
            let image = self.image(process, mapping, open);
            let file_offset = match mapping.kind {
                MappingKind::File | MappingKind::GdbJit => mapping.file_offset,
                // The bytes of a vDSO are the mapping's own memory.
                MappingKind::Vdso => 0,
                MappingKind::Anonymous => self.label(&mapping.path),
            };
            let is_registered = mapping.kind == MappingKind::GdbJit;
            regions.push(Region { start, end, file_offset, image, is_registered });
        }
        self.regions_refused += mappings.len().saturating_sub(REGIONS_MAX) as u64;
        regions
    }

    /// The number of a label; 0, no label, for those beyond [`LABELS_MAX`].
    fn label(&mut self, label: &str) -> u64 {
        let known = self.labels.iter().position(|known| known == label);
        let number = known.or_else(|| {
            let fits = self.labels.len() < LABELS_MAX && label.len() <= LABEL_BYTES_MAX;
            fits.then(|| {
                self.labels.push(label.to_owned());
                self.labels.len() - 1
            })
        });
        number.unwrap_or(0) as u64
    }

    /// The index of a mapping's image, which is opened if it is new.
    fn image(
        &mut self,
        process: u32,
        mapping: &Mapping,
        open: &mut dyn FnMut(&Mapping) -> Result<ImageBytes, OpenError>,
    ) -> u32 {
        if mapping.kind == MappingKind::Anonymous {
            return NO_IMAGE;
        }
        let path = self.processes.get(process as usize).and_then(|process| process.path.as_deref());
        let path = path.filter(|path| mapping.kind == MappingKind::File && path.file == mapping.path);
        let started_as = path.map(|path| path.started_as.as_str());
        let same_file = |&&index: &&u32| {
            let image = &self.images[index as usize];
            image.identity == mapping.identity && image.path == mapping.path && image.kind == mapping.kind
        };
        let same = |index: &&u32| {
            same_file(index) && self.images[**index as usize].started_as.as_deref() == started_as
        };
        // A file rewritten in place becomes another image, with the code that its mappings have now. A file that
        // is no executable may be memory that a JIT compiler writes to.
        let is_as_loaded = |image: &Image| image.object().is_none() || image.overwritten().is_none();
        let known = self.by_identity.get(&mapping.identity).map_or(&[][..], Vec::as_slice);
        let last = known.iter().rev().find(same);
        if let Some(&index) = last.filter(|index| is_as_loaded(&self.images[**index as usize])) {
            return index;
        }
        // Shares the bytes of a file that was started by another name.
        let other = known.iter().rev().find(same_file).map(|index| &self.images[*index as usize]);
        let other = other.filter(|image| image.object().is_some() && is_as_loaded(image));
        let bytes = other.and_then(|image| image.bytes.clone().ok());
        let is_registered = mapping.kind == MappingKind::GdbJit;
        if self.images.len() >= IMAGES_MAX || is_registered && self.registered.0 >= REGISTERED_MAX {
            self.images_refused += 1;
            return NO_IMAGE;
        }
        let mut image = Image::open(mapping, bytes.map_or_else(|| open(mapping), Ok));
        image.started_as = started_as.map(str::to_owned);
        if is_registered {
            let bytes = image.bytes.as_ref().map_or(0, |bytes| bytes.bytes().len());
            self.registered = (self.registered.0 + 1, self.registered.1 + bytes);
        }
        let index = self.images.len() as u32;
        self.by_identity.entry(mapping.identity).or_default().push(index);
        self.images.push(image);
        index
    }
}

/// The name of a file that exists in memory only: shared memory without a name (shmem_zero_setup in mm/shmem.c,
/// hugetlb_file_setup in fs/hugetlbfs/inode.c), memfd_create(2), shm_open(3), shmget(2). `None` for other files.
fn in_memory_only(path: &str) -> Option<&str> {
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    const IN_MEMORY: [&str; 5] = ["/dev/zero", "/memfd:", "/dev/shm/", "/SYSV", "/anon_hugepage"];
    IN_MEMORY.iter().any(|start| path.starts_with(start)).then_some(path)
}

// ---- How many libraries the dynamic linker of glibc has loaded and unloaded. A library can lie where another one
// was: a list of mappings is valid for a sample if none was loaded between the two, or, if it is newer, none was
// unloaded.
//
// The counts are in `_rtld_global` (`struct rtld_global`, sysdeps/generic/ldsodefs.h), whose layout changes: it
// begins with the first namespace, with the number of its libraries in the second word (`_ns_nloaded`).
// `_dl_load_adds` follows the recursive locks of the linker, which are the only ones that are adjacent.

/// Limit on the size of the structure: 4336 bytes in glibc 2.36.
const BYTES_MAX: u64 = 16384;
/// Sizes of `pthread_mutex_t`: x86_64, aarch64.
const LOCK_BYTES: [usize; 2] = [40, 48];
/// Offset of its kind, and the kind of recursive ones (`PTHREAD_MUTEX_RECURSIVE_NP`).
const KIND: usize = 16;
const RECURSIVE: u32 = 1;
/// Offset of `_ns_nloaded` of the first namespace.
const LOADED: usize = 8;
/// More libraries than any process loads.
const LOADS_MAX: u64 = 1 << 40;

/// Counts of libraries since the program began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LibraryCounts {
    /// Loaded.
    pub loads: u64,
    /// Unloaded.
    pub unloads: u64,
}

/// Where a process has the counts.
#[derive(Clone, Copy, Debug)]
pub struct Loader {
    globals: Avma,
    /// Offset of `_dl_load_adds`.
    loads_at: usize,
}

impl Loader {
    /// Finds them; `None` if the process has another dynamic linker, or has not begun to run.
    pub fn find(images: ImageView<'_>, read: Read<'_>) -> Option<Loader> {
        let (globals, bytes) = images.loader_globals()?;
        let mut copy = vec![0; usize::try_from(bytes.min(BYTES_MAX)).ok()?];
        if read(globals, &mut copy) < copy.len() {
            return None;
        }
        Some(Loader { globals, loads_at: LOCK_BYTES.iter().find_map(|bytes| loads_at(&copy, *bytes))? })
    }

    /// The counts now.
    pub fn counts(&self, read: Read<'_>) -> Option<LibraryCounts> {
        let mut copy = vec![0; self.loads_at + 8];
        if read(self.globals, &mut copy) < copy.len() {
            return None;
        }
        counts_in(&copy, self.loads_at)
    }
}

fn counts_in(globals: &[u8], loads_at: usize) -> Option<LibraryCounts> {
    let loads = u64::from_le_bytes(*globals.get(loads_at..)?.first_chunk()?);
    let loaded = u32::from_le_bytes(*globals.get(LOADED..)?.first_chunk()?);
    let unloads = loads.checked_sub(loaded.into()).filter(|_| loaded > 0 && loads < LOADS_MAX)?;
    Some(LibraryCounts { loads, unloads })
}

/// Offset of `_dl_load_adds`: behind the last of the first adjacent locks.
fn loads_at(globals: &[u8], lock_bytes: usize) -> Option<usize> {
    let is_lock = |at: usize| {
        let kind = globals.get(at + KIND..).and_then(<[u8]>::first_chunk);
        kind.is_some_and(|kind| u32::from_le_bytes(*kind) == RECURSIVE)
    };
    let mut offsets = (0..globals.len()).step_by(8);
    let first = offsets.find(|at| is_lock(*at) && is_lock(at + lock_bytes))?;
    let mut behind = first + lock_bytes;
    while is_lock(behind) {
        behind += lock_bytes;
    }
    counts_in(globals, behind).map(|_| behind)
}

#[cfg(test)]
mod loader_tests {
    use super::*;

    /// The structure with so many namespaces, locks and counts.
    fn globals(namespace_bytes: usize, locks: usize, lock_bytes: usize, loads: u64, loaded: u32) -> Vec<u8> {
        let mut bytes = vec![0; 16 * namespace_bytes];
        bytes[0..8].copy_from_slice(&0x7fff_1234_5678_u64.to_le_bytes());
        bytes[LOADED..LOADED + 4].copy_from_slice(&loaded.to_le_bytes());
        // The lock of the first namespace.
        bytes[0x30 + KIND] = 1;
        // `_dl_nns`.
        bytes.extend(1u64.to_le_bytes());
        for _ in 0..locks {
            let mut lock = vec![0; lock_bytes];
            lock[KIND] = 1;
            bytes.extend(lock);
        }
        bytes.extend(loads.to_le_bytes());
        bytes.extend([0; 900]);
        bytes
    }

    #[test]
    fn counts_are_found_in_each_layout() {
        for (namespace_bytes, locks, lock_bytes) in [(144, 2, 40), (160, 3, 40), (160, 3, 48), (192, 2, 48)] {
            let bytes = globals(namespace_bytes, locks, lock_bytes, 70, 50);
            let at = LOCK_BYTES
                .iter()
                .find_map(|bytes_of_lock| loads_at(&bytes, *bytes_of_lock))
                .expect("the counts");
            assert_eq!(counts_in(&bytes, at), Some(LibraryCounts { loads: 70, unloads: 20 }));
            for end in 0..bytes.len() {
                let _ = loads_at(&bytes[..end], lock_bytes);
            }
        }
        // Fewer loads than libraries; none.
        assert_eq!(loads_at(&globals(160, 3, 40, 4, 5), 40), None);
        assert_eq!(loads_at(&globals(160, 3, 40, 0, 0), 40), None);
    }
}
