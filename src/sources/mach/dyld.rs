//! The images of a task, as its dyld lists them for debuggers: `dyld_all_image_infos`.
//!
//! dyld changes the list without notification: it clears the pointer, writes count, timestamp and the new
//! pointer, and frees the old array at once (dyld, ExternallyViewableState.cpp). So a list is used only if
//! the structure was the same before and after reading it; otherwise the known images are kept, and the next
//! tick tries again. The structure itself moves once, when the dyld on disk is replaced by the one in the
//! shared cache; until libSystem is loaded its address is read each time.
//!
//! Offsets: include/mach-o/dyld_images.h of dyld. Input: the target's memory, hostile. Output: one
//! [`RemoteImage`] per image, with its header.

use std::sync::Arc;

use super::kernel::{Kern, MachKernel};
use super::memory::Memory;
use crate::binary::macho::MachO;
use crate::sources::Fault;

/// Bytes of the structure to read: all known fields, up to version 17.
const INFOS_BYTES: usize = 368;
/// Least size for a list: up to `dyldImageLoadAddress`.
const INFOS_MIN_BYTES: usize = 40;
const TIMESTAMP_OFFSET: u64 = 184;
/// Versions that introduced fields (the timestamp and the base of the cache).
const TIMESTAMP_VERSION: u32 = 15;
/// Limit of Apple's own reader (libdyld, dyld_process_info.cpp).
pub(super) const IMAGES_MAX: usize = 8192;
const ENTRY_BYTES: usize = 24;
const DYLD_INFO_COUNT: u32 = 5;
/// Longest path, MAXPATHLEN.
const PATH_BYTES_MAX: usize = 1024;
/// Most bytes of load commands; the largest programs have some 20 KB.
const COMMANDS_BYTES_MAX: usize = 1 << 20;
const HEADER_BYTES: usize = 32;
/// First read of each image: most headers with their commands are smaller.
const FIRST_READ_BYTES: usize = 4096;
/// Most code of one image; the largest have some hundred megabytes.
pub(super) const TEXT_BYTES_MAX: u64 = 4 << 30;
/// MH_EXECUTE, MH_DYLINKER and the flag of images in the shared cache (mach-o/loader.h).
pub(super) const EXECUTE: u32 = 2;
const DYLINKER: u32 = 7;
pub(super) const IN_SHARED_CACHE: u32 = 0x8000_0000;
/// Attempts at one time to read a changing list.
const TRIES: u32 = 3;
/// Most regions to scan for images before dyld has started; a process then has some ten.
const REGIONS_MAX: u32 = 512;
/// Most regions to scan for images without a list; a large process has some ten thousand.
const REGIONS_ALL_MAX: u32 = 16_384;
/// Least interval between scans, nanoseconds.
const SCAN_NS: u64 = 5_000_000;
const SCAN_ALL_NS: u64 = 1_000_000_000;
const READ_EXECUTE: i32 = 5;
/// Number of reads of an unchanged list after which an unreadable image is dropped.
const TORN_TRIES: u32 = 8;

/// An image in the target's memory.
#[derive(Clone, Debug)]
pub(super) struct RemoteImage {
    /// Address of its header.
    pub(super) load: u64,
    /// Path of its file when it was loaded; relative paths are as the program was started with them.
    pub(super) path: String,
    /// Its header and load commands …
    pub(super) head: Vec<u8>,
    /// … and their content.
    pub(super) macho: MachO,
}

impl RemoteImage {
    /// Offset between its addresses in memory and in the file.
    pub(super) fn slide(&self) -> u64 {
        self.load.wrapping_sub(self.macho.text.start.0)
    }

    /// Bytes of `__TEXT`, not past the end of the address space.
    pub(super) fn text_bytes(&self) -> u64 {
        (self.macho.text.end - self.macho.text.start).min(TEXT_BYTES_MAX).min(u64::MAX - self.load)
    }

    /// File offset of `__TEXT`: 0, except in the shared cache.
    pub(super) fn text_offset(&self) -> u64 {
        let text = self.macho.segments.iter().find(|segment| segment.svma == self.macho.text);
        text.map_or(0, |text| text.file.start)
    }

    /// Its identity: its UUID, or its load address without one.
    pub(super) fn identity(&self) -> (u64, u64) {
        match self.macho.uuid {
            Some(uuid) => identity_of(&uuid, self.macho.text.start.0, self.text_offset()),
            None => (self.load, self.head.len() as u64),
        }
    }

    pub(super) fn is_in_shared_cache(&self) -> bool {
        self.macho.flags & IN_SHARED_CACHE != 0
    }
}

/// Identity of an image with a UUID, which states an address and has its code at an offset. The dyld of the shared cache
/// has the UUID of the one on disk but different stated addresses.
pub(super) fn identity_of(uuid: &[u8; 16], stated: u64, offset: u64) -> (u64, u64) {
    let half = |bytes: &[u8]| bytes.first_chunk().map_or(0, |half| u64::from_le_bytes(*half));
    (half(uuid) ^ stated, half(&uuid[8..]) ^ offset)
}

/// The shared cache of the target: its UUID and load address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SharedCache {
    pub(super) uuid: [u8; 16],
    pub(super) base: u64,
}

/// The known images of a task.
#[derive(Debug, Default)]
pub(super) struct Dyld {
    /// Address and size of the structure.
    place: Option<(u64, u64)>,
    /// libSystem is loaded: the structure does not move any more.
    settled: bool,
    /// The timestamp of `images`; `None` while they are incomplete.
    timestamp: Option<u64>,
    /// A timestamp, and the number of incomplete reads of its list.
    torn: (u64, u32),
    scanned_ns: Option<u64>,
    /// Sorted by address.
    images: Vec<Arc<RemoteImage>>,
    cache: Option<SharedCache>,
}

/// The used fields of the structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Infos {
    version: u32,
    count: u32,
    array: u64,
    detached: bool,
    initialized: bool,
    dyld: u64,
    timestamp: u64,
    dyld_path: u64,
    cache: Option<SharedCache>,
}

impl Infos {
    fn read(memory: &Memory<'_>, (at, size): (u64, u64)) -> Kern<Infos> {
        let mut bytes = [0; INFOS_BYTES];
        let known = usize::try_from(size).unwrap_or(INFOS_BYTES).clamp(INFOS_MIN_BYTES, INFOS_BYTES);
        memory.exact(at, &mut bytes[..known])?;
        let word = |at: usize| bytes[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let half = |at: usize| bytes[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        let since = |version, value| if half(0) >= version { value } else { 0 };
        let uuid = bytes[160..].first_chunk().copied().unwrap_or_default();
        let base = since(TIMESTAMP_VERSION, word(176));
        Ok(Infos {
            version: half(0),
            count: half(4),
            array: word(8),
            detached: bytes[24] != 0,
            initialized: bytes[25] != 0,
            dyld: word(32),
            timestamp: since(TIMESTAMP_VERSION, word(184)),
            dyld_path: since(TIMESTAMP_VERSION, word(192)),
            cache: (base != 0 && uuid != [0; 16] && bytes[24] == 0).then_some(SharedCache { uuid, base }),
        })
    }

    /// Whether both refer to the same list.
    fn same_list(&self, other: &Infos) -> bool {
        (self.timestamp, self.count, self.array) == (other.timestamp, other.count, other.array)
    }
}

/// Result of reading the structure.
enum ImageListing {
    /// The list, and whether all of its images could be read.
    Images(Infos, Vec<Arc<RemoteImage>>, bool),
    /// dyld has not started.
    NotBegun,
    /// Changing, or missing: the known images are kept.
    NotNow,
}

impl Dyld {
    /// All images, sorted by address.
    pub(super) fn images(&self) -> &[Arc<RemoteImage>] {
        &self.images
    }

    /// The target's shared cache, if it uses the common one.
    pub(super) fn shared_cache(&self) -> Option<SharedCache> {
        self.cache
    }

    /// Whether the program's libSystem is loaded.
    pub(super) fn is_settled(&self) -> bool {
        self.settled
    }

    /// The image at an address.
    pub(super) fn image_at(&self, at: u64) -> Option<&Arc<RemoteImage>> {
        let after = self.images.partition_point(|image| image.load <= at);
        let image = self.images.get(after.checked_sub(1)?)?;
        (at - image.load < image.text_bytes()).then_some(image)
    }

    /// Whether the list has changed since it was read, or was read incompletely: one read of 8 bytes.
    pub(super) fn has_changed(&mut self, memory: &Memory<'_>) -> bool {
        if !self.settled || self.place.is_none() {
            let known = self.place;
            self.find(memory);
            if known != self.place {
                return true;
            }
        }
        let Some((at, size)) = self.place else { return false };
        if size < TIMESTAMP_OFFSET + 8 {
            return false;
        }
        match at.checked_add(TIMESTAMP_OFFSET).map(|at| memory.word(at)) {
            Some(Ok(timestamp)) => self.timestamp != Some(timestamp),
            _ => {
                // It has moved, or the task no longer exists.
                self.place = None;
                self.timestamp = None;
                true
            }
        }
    }

    /// Queries the address of the structure.
    fn find(&mut self, memory: &Memory<'_>) {
        let info = memory.kernel.task_dyld_info(memory.task, DYLD_INFO_COUNT);
        // 0: structures of 32-bit processes, which are refused when attaching.
        let found = info.ok().filter(|info| info.all_image_info_addr != 0 && info.all_image_info_format != 0);
        self.place = found.map(|info| (info.all_image_info_addr, info.all_image_info_size));
    }

    /// Updates the images.
    ///
    /// # Errors
    /// [`Fault::Transient`]; the known images are kept.
    pub(super) fn refresh(&mut self, memory: &Memory<'_>, pid: i32, now_ns: u64) -> Result<(), Fault> {
        if self.timestamp.is_some() && !self.has_changed(memory) {
            return Ok(());
        }
        self.timestamp = None;
        for _ in 0..TRIES {
            if !self.settled || self.place.is_none() {
                self.find(memory);
            }
            let listed = match self.place {
                Some(place) => self.list(memory, pid, place),
                None => Ok(ImageListing::NotBegun),
            };
            match listed {
                Ok(ImageListing::Images(infos, images, whole)) => {
                    self.settled = infos.initialized;
                    self.timestamp =
                        (whole || self.is_torn_for_good(infos.timestamp)).then_some(infos.timestamp);
                    self.cache = infos.cache;
                    self.take(images);
                    return Ok(());
                }
                Ok(ImageListing::NotBegun) if self.images.is_empty() || !self.settled => {
                    self.scan_at(memory, pid, now_ns);
                    if self.images.is_empty() {
                        return Err(NOT_NOW);
                    }
                    // Differs from the timestamp of any list.
                    self.timestamp = self.place.map(|_| 0);
                    return Ok(());
                }
                Ok(ImageListing::NotBegun | ImageListing::NotNow) => {}
                Err(_) => self.place = None,
            }
        }
        Err(NOT_NOW)
    }

    /// Whether an unreadable image has had enough time.
    fn is_torn_for_good(&mut self, timestamp: u64) -> bool {
        let tries = if self.torn.0 == timestamp { self.torn.1 + 1 } else { 1 };
        self.torn = (timestamp, tries);
        tries >= TORN_TRIES
    }

    fn take(&mut self, mut images: Vec<Arc<RemoteImage>>) {
        images.sort_by_key(|image| image.load);
        images.dedup_by_key(|image| image.load);
        self.images = images;
    }

    /// Scans for images without a list, unless that was done just now.
    fn scan_at(&mut self, memory: &Memory<'_>, pid: i32, now_ns: u64) {
        let listed = self.place.is_some();
        let wait_ns = if listed { SCAN_NS } else { SCAN_ALL_NS };
        if self.scanned_ns.is_none_or(|scanned_ns| now_ns >= scanned_ns.saturating_add(wait_ns)) {
            self.scanned_ns = Some(now_ns);
            let found = scan(memory, pid, !listed);
            if !found.is_empty() {
                self.take(found);
            }
        }
    }

    /// Reads the list at `place`.
    fn list(&self, memory: &Memory<'_>, pid: i32, place: (u64, u64)) -> Kern<ImageListing> {
        let before = Infos::read(memory, place)?;
        if before.array == 0 {
            // Before dyld starts, its pointers are not even rebased.
            return Ok(if before.timestamp == 0 { ImageListing::NotBegun } else { ImageListing::NotNow });
        }
        let count = (before.count as usize).min(IMAGES_MAX);
        let mut entries = vec![0; count * ENTRY_BYTES];
        let read = memory.exact(before.array, &mut entries);
        let after = Infos::read(memory, place)?;
        if read.is_err() || !after.same_list(&before) {
            return Ok(ImageListing::NotNow);
        }
        let mut whole = true;
        let mut images = Vec::with_capacity(count + 1);
        let (entries, _) = entries.as_chunks::<ENTRY_BYTES>();
        for entry in entries {
            let word = |at: usize| entry[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            match self.image(memory, pid, word(0), word(8)) {
                Some(image) => images.push(image),
                // Unloaded since, or unreadable: an unchanged list decides.
                None => whole = false,
            }
        }
        if after.dyld != 0 && !images.iter().any(|image| image.load == after.dyld) {
            images.extend(self.image(memory, pid, after.dyld, after.dyld_path));
        }
        // Headers are valid only if the list is still the same.
        let last = Infos::read(memory, place)?;
        Ok(if last.same_list(&after) {
            ImageListing::Images(last, images, whole)
        } else {
            ImageListing::NotNow
        })
    }

    /// The image with its header at `load`; `None` if it is unreadable.
    fn image(&self, memory: &Memory<'_>, pid: i32, load: u64, path_at: u64) -> Option<Arc<RemoteImage>> {
        let known = self.images.binary_search_by_key(&load, |image| image.load);
        let known = known.ok().and_then(|index| self.images.get(index));
        // Images of the cache never move: nothing else can be at their address.
        if let Some(known) = known.filter(|known| known.is_in_shared_cache()) {
            return Some(Arc::clone(known));
        }
        let head = read_head(memory, load)?;
        if let Some(known) = known.filter(|known| known.head == head) {
            return Some(Arc::clone(known));
        }
        let macho = MachO::parse(&head).ok()?;
        let path = path_of(memory, pid, load, &macho, path_at);
        Some(Arc::new(RemoteImage { load, path, head, macho }))
    }
}

/// The path of an image's file: for the program from the kernel, since dyld has the string that it was
/// started with; for others from dyld, or else from the kernel.
fn path_of(memory: &Memory<'_>, pid: i32, load: u64, macho: &MachO, path_at: u64) -> String {
    let said = |path: &String| !path.is_empty();
    let program =
        if macho.file_type == EXECUTE { memory.kernel.proc_pidpath(pid).ok().filter(said) } else { None };
    let stated = || if path_at == 0 { None } else { memory.text(path_at, PATH_BYTES_MAX).ok().filter(said) };
    let mapped = || memory.kernel.proc_regionfilename(pid, load).ok().filter(said);
    let usual = || (macho.file_type == DYLINKER).then(|| "/usr/lib/dyld".to_owned());
    program.or_else(stated).or_else(mapped).or_else(usual).unwrap_or_default()
}

const NOT_NOW: Fault = Fault::Transient("the list of images is in motion");

/// The header and load commands of an image.
fn read_head(memory: &Memory<'_>, load: u64) -> Option<Vec<u8>> {
    let mut head = memory.bytes(load, FIRST_READ_BYTES).ok()?;
    let length = head_bytes(&head)?;
    if length > head.len() {
        head = memory.bytes(load, length).ok()?;
    }
    head.truncate(length);
    Some(head)
}

/// Length of a header with its load commands, by its first bytes.
fn head_bytes(head: &[u8]) -> Option<usize> {
    let commands = u32::from_le_bytes(*head.get(20..)?.first_chunk()?) as usize;
    Some(HEADER_BYTES + commands.min(COMMANDS_BYTES_MAX))
}

/// An image of this process's own shared cache.
pub(super) fn own_image(kernel: &dyn MachKernel, load: u64, path: &str) -> Option<RemoteImage> {
    let length = head_bytes(kernel.own_shared_cache(load, HEADER_BYTES)?.bytes())?;
    let head = kernel.own_shared_cache(load, length)?.bytes().to_vec();
    let macho = MachO::parse(&head).ok()?;
    Some(RemoteImage { load, path: path.to_owned(), head, macho })
}

/// Scans the regions of a task for images, as Apple's debuggers do before dyld has started: readable and
/// executable ones with the magic number. Only the program and dyld, or `all` without a list.
fn scan(memory: &Memory<'_>, pid: i32, all: bool) -> Vec<Arc<RemoteImage>> {
    let mut images = Vec::new();
    let mut at = 0;
    for _ in 0..if all { REGIONS_ALL_MAX } else { REGIONS_MAX } {
        let Ok(region) = memory.region(at) else {
            break;
        };
        if region.protection == READ_EXECUTE
            && let Some(head) = read_head(memory, region.address)
            && let Ok(macho) = MachO::parse(&head)
            && (all || matches!(macho.file_type, EXECUTE | DYLINKER))
        {
            let path = path_of(memory, pid, region.address, &macho, 0);
            images.push(Arc::new(RemoteImage { load: region.address, path, head, macho }));
        }
        match region.address.checked_add(region.size).filter(|next| *next > at) {
            Some(next) => at = next,
            None => break,
        }
    }
    images
}
