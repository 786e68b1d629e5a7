//! The images of the process, as dyld reports them: without a right to the task, stackprof cannot read them.
//! Input: dyld's notifications. Output: lines (`shared_memory::image_line`) in memory, and in a file once there is a ring.
//!
//! dyld notifies while no image can be unloaded; a list that is read later would need its locks, and a thread that
//! allocates may hold another one that a thread in dyld waits for. A child of fork inherits the lines.
#![allow(unsafe_code)]

use super::files::{FileName, file_name, open_directory, release_buffer, take_buffer};
use super::process;
use super::shared_memory::MAPS_PREFIX;
use super::shared_memory::image_line::{CACHE, LOADED, PATH_MAX, UNLOADED};
use super::system;
use core::ffi::{c_char, c_int, c_void};
use core::ptr::{null, null_mut};
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicUsize, Ordering};

/// Size of the memory for lines: some ten thousand images. Pages that are not used take no memory.
const SIZE: usize = 4 << 20;

static LINES: AtomicPtr<u8> = AtomicPtr::new(null_mut());
/// Bytes given to lines. The first byte of a line is stored last: zero if the line is not finished.
static RESERVED: AtomicUsize = AtomicUsize::new(0);
/// Bytes in the file of the ring.
static WRITTEN: AtomicUsize = AtomicUsize::new(0);

/// `mach_header_64` (mach-o/loader.h).
#[repr(C)]
pub struct Header {
    magic: u32,
    cpu: u32,
    subtype: u32,
    file_type: u32,
    command_count: u32,
    command_bytes: u32,
    flags: u32,
    reserved: u32,
}

/// `Dl_info` (dlfcn.h).
#[repr(C)]
struct ImageInfo {
    path: *const c_char,
    base: *const c_void,
    symbol: *const c_char,
    address: *const c_void,
}

// SAFETY: functions of libdyld, with the types of mach-o/dyld.h, mach-o/dyld_priv.h and dlfcn.h.
#[link(name = "System")]
unsafe extern "C" {
    fn _dyld_register_func_for_add_image(notify: extern "C" fn(&Header, isize));
    fn _dyld_register_func_for_remove_image(notify: extern "C" fn(&Header, isize));
    fn _dyld_get_shared_cache_uuid(uuid: *mut [u8; 16]) -> bool;
    fn _dyld_get_shared_cache_range(size: *mut usize) -> *const c_void;
    fn dladdr(address: *const c_void, info: *mut ImageInfo) -> c_int;
    fn task_info(task: u32, flavor: u32, info: *mut DyldInfo, words: *mut u32) -> c_int;
    static mach_task_self_: u32;
}

/// `task_dyld_info` (mach/task_info.h).
#[repr(C)]
struct DyldInfo {
    address: u64,
    size: u64,
    format: i32,
}

/// A line: bytes reserved for it.
struct Line {
    base: *mut u8,
    at: usize,
    end: usize,
    first: u8,
}

impl Line {
    fn new(first: u8, length: usize) -> Option<Line> {
        let base = LINES.load(Ordering::Acquire);
        if base.is_null() {
            return None;
        }
        let begin = RESERVED.fetch_add(length, Ordering::Relaxed);
        let end = begin.checked_add(length).filter(|end| *end < SIZE)?;
        // SAFETY: reserved above, within the memory.
        let base = unsafe { base.add(begin) };
        Some(Line { base, at: 1, end: end - begin, first })
    }

    fn byte(&mut self, byte: u8) {
        if self.at < self.end {
            // SAFETY: within the line.
            unsafe { *self.base.add(self.at) = byte };
            self.at += 1;
        }
    }

    /// A space and a number with this many hexadecimal digits.
    fn number(&mut self, number: u64, digits: u32) {
        self.byte(b' ');
        for digit in (0..digits).rev() {
            self.digit((number >> (4 * digit) & 15) as u8);
        }
    }

    fn digit(&mut self, digit: u8) {
        self.byte(if digit < 10 { b'0' + digit } else { b'a' - 10 + digit });
    }

    fn uuid(&mut self, uuid: &[u8; 16]) {
        self.byte(b' ');
        for byte in uuid {
            self.digit(byte >> 4);
            self.digit(byte & 15);
        }
    }

    /// Ends the line, which counts from here on.
    fn commit(mut self) {
        self.byte(b'\n');
        // SAFETY: aligned, and within the line.
        unsafe { AtomicU8::from_ptr(self.base) }.store(self.first, Ordering::Release);
    }
}

/// Lengths of lines without paths.
const LOADED_LENGTH: usize = 1 + 4 * 17 + 33 + 4 * 9 + 1 + 1;
const UNLOADED_LENGTH: usize = 1 + 17 + 1;
const CACHE_LENGTH: usize = 1 + 17 + 33 + 1;

/// Starts the list.
pub fn follow() {
    let Some(memory) = system::map_zero(SIZE) else { return };
    LINES.store(memory, Ordering::Release);
    let (mut uuid, mut size) = ([0; 16], 0);
    // SAFETY: into variables; the notifications are functions of this type.
    unsafe {
        let base = _dyld_get_shared_cache_range(&raw mut size);
        if !base.is_null()
            && _dyld_get_shared_cache_uuid(&raw mut uuid)
            && let Some(mut line) = Line::new(CACHE, CACHE_LENGTH)
        {
            line.number(base as u64, 16);
            line.uuid(&uuid);
            line.commit();
        }
        list_dyld();
        _dyld_register_func_for_add_image(loaded);
        _dyld_register_func_for_remove_image(unloaded);
    }
}

/// dyld notifies of all images but itself, which calls `main`: it is in the structure for debuggers
/// (`dyld_all_image_infos`, mach-o/dyld_images.h), since version 15 with its path.
fn list_dyld() {
    const TASK_DYLD_INFO: u32 = 17;
    const VERSION_WITH_PATH: u32 = 15;
    let (mut info, mut words) = (DyldInfo { address: 0, size: 0, format: 0 }, 5);
    // SAFETY: five words, into a variable; the structure stays mapped, its header's address is at 32, its path at 192.
    unsafe {
        let failed = task_info(mach_task_self_, TASK_DYLD_INFO, &raw mut info, &raw mut words);
        let base = info.address as *const u8;
        if failed != 0 || base.is_null() || base.cast::<u32>().read() < VERSION_WITH_PATH {
            return;
        }
        let header = base.add(32).cast::<*const Header>().read();
        let path = base.add(192).cast::<*const u8>().read();
        if let Some(header) = header.as_ref()
            && !path.is_null()
        {
            list(header, path);
        }
    }
}

extern "C" fn loaded(header: &Header, _: isize) {
    let address = core::ptr::from_ref(header).cast::<c_void>();
    let mut info = ImageInfo { path: null(), base: null(), symbol: null(), address: null() };
    // SAFETY: into a variable. Of a header, dyld looks up no symbol (dyld-1378, `APIs::dladdr`).
    if unsafe { dladdr(address, &raw mut info) } == 0 || info.path.is_null() {
        return;
    }
    // SAFETY: a C string, which dyld keeps while the image is loaded.
    unsafe { list(header, info.path.cast()) };
}

/// Adds an image to the list.
///
/// # Safety
/// The path is a C string.
unsafe fn list(header: &Header, path: *const u8) {
    let mut length = 0;
    // SAFETY: up to its end.
    while length < PATH_MAX && unsafe { *path.add(length) } != 0 {
        length += 1;
    }
    let Some(mut line) = Line::new(LOADED, LOADED_LENGTH + length) else { return };
    let Commands { size, stated, offset, uuid } = Commands::of(header);
    line.number(core::ptr::from_ref(header) as u64, 16);
    line.number(size, 16);
    line.number(stated, 16);
    line.number(offset, 16);
    line.uuid(&uuid);
    for number in [header.file_type, header.flags, header.cpu, header.subtype] {
        line.number(number.into(), 8);
    }
    line.byte(b' ');
    for at in 0..length {
        // SAFETY: before the end of the string.
        let byte = unsafe { *path.add(at) };
        line.byte(if byte == b'\n' { b'?' } else { byte });
    }
    line.commit();
    append_images();
}

extern "C" fn unloaded(header: &Header, _: isize) {
    if let Some(mut line) = Line::new(UNLOADED, UNLOADED_LENGTH) {
        line.number(core::ptr::from_ref(header) as u64, 16);
        line.commit();
        // dyld unmaps it after this call.
        process::UNLOADS.fetch_add(1, Ordering::SeqCst);
        append_images();
    }
}

/// `Allocation::images` of an allocation now.
pub fn images(_: system::Thread) -> u32 {
    process::UNLOADS.load(Ordering::Acquire)
}

/// What load commands say of an image.
struct Commands {
    size: u64,
    stated: u64,
    offset: u64,
    uuid: [u8; 16],
}

impl Commands {
    /// Those of an image that dyld has loaded and so has checked.
    fn of(header: &Header) -> Commands {
        const SEGMENT_64: u32 = 0x19;
        const UUID: u32 = 0x1b;
        let mut found = Commands { size: 0, stated: 0, offset: 0, uuid: [0; 16] };
        // SAFETY: load commands follow the header, and each begins with its kind and its size.
        unsafe {
            let mut at = core::ptr::from_ref(header).add(1).cast::<u8>();
            let end = at.add(header.command_bytes as usize);
            for _ in 0..header.command_count {
                let [kind, size] = at.cast::<[u32; 2]>().read_unaligned();
                if size < 8 || at.add(size as usize) > end {
                    break;
                }
                if kind == UUID && size >= 24 {
                    found.uuid = at.add(8).cast::<[u8; 16]>().read();
                } else if kind == SEGMENT_64
                    && size >= 72
                    && at.add(8).cast::<[u8; 16]>().read() == *b"__TEXT\0\0\0\0\0\0\0\0\0\0"
                {
                    // Address, size, and offset in the file.
                    [found.stated, found.size, found.offset] = at.add(24).cast::<[u64; 3]>().read_unaligned();
                }
                at = at.add(size as usize);
            }
        }
        found
    }
}

/// The finished lines from a place on, and where they end.
fn lines(from: usize) -> &'static [u8] {
    let base = LINES.load(Ordering::Acquire);
    if base.is_null() {
        return &[];
    }
    let limit = RESERVED.load(Ordering::Relaxed).min(SIZE);
    let mut to = from;
    // SAFETY: within the memory, which stays mapped; finished lines do not change, and end with a newline.
    unsafe {
        while to < limit && AtomicU8::from_ptr(base.add(to)).load(Ordering::Acquire) != 0 {
            while *base.add(to) != b'\n' {
                to += 1;
            }
            to += 1;
        }
        core::slice::from_raw_parts(base.add(from), to - from)
    }
}

/// Creates a file with all lines.
pub fn write(directory: &system::Directory, name: &FileName) {
    let all = lines(0);
    directory.append(name, true, all);
    WRITTEN.store(all.len(), Ordering::Relaxed);
}

/// Appends the lines that are not in the file. One thread at a time.
fn append(directory: &system::Directory, name: &FileName) {
    let written = WRITTEN.load(Ordering::Relaxed);
    let new = lines(written);
    if !new.is_empty() {
        directory.append(name, false, new);
        WRITTEN.store(written + new.len(), Ordering::Relaxed);
    }
}

/// Images were loaded or unloaded: appends that to the image list of the ring.
pub fn append_images() {
    let Some(ring) = process::ring() else { return };
    if let Some(directory) = open_directory()
        && take_buffer().is_some()
    {
        append(&directory, &file_name(&process::ring_name(MAPS_PREFIX)));
        release_buffer();
    }
    ring.header().unloads.fetch_max(process::UNLOADS.load(Ordering::Acquire).into(), Ordering::SeqCst);
}
