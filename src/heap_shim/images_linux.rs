//! When libraries are unloaded: another one may come to lie at their addresses, so each sample names the list of
//! images that has the code of its stack.
//!
//! List K is a copy of /proc/self/maps, made before the unload number K, if a sample has named it. Code on a stack can be
//! unmapped only by an unload that begins after its functions have returned: it is in the list of the first unload that
//! begins after the sample. The thread that unloads is an exception: it runs destructors of libraries that are in the
//! list of that unload.
//!
//! `dlclose` is replaced: it lists the images before any of them can be unloaded. Not seen are unloads by the C library
//! itself (modules of iconv) and by libraries that do not call this `dlclose`.
#![allow(unsafe_code)]

use super::files::{BUFFER_SIZE, Part, file_name, open_directory, release_buffer, take_buffer};
use super::process::{self, Status, UNLOADS};
use super::real::{self, libc_function};
use super::shared_memory::MAPS_PREFIX;
use super::system::{self, BlockedSignals, Thread};
use core::sync::atomic::{AtomicU32, Ordering};

/// Samples have named lists below this number.
static NAMED: AtomicU32 = AtomicU32::new(0);

/// The unload that a thread has begun and not ended.
#[derive(Clone, Copy)]
struct Unload {
    /// Unloads that began before.
    number: u32,
    /// Its list was made.
    is_listed: bool,
}

impl Unload {
    /// As a word that is not 0.
    fn encode(self) -> u64 {
        u64::from(self.number) << 2 | u64::from(self.is_listed) << 1 | 1
    }

    /// The unload of a word; none of 0.
    fn decode(word: u64) -> Option<Self> {
        (word != 0).then_some(Self { number: (word >> 2) as u32, is_listed: word & 2 != 0 })
    }
}

/// Names the list of a sample by a thread that unloads nothing, now.
fn name_list() -> u32 {
    loop {
        let number = UNLOADS.load(Ordering::SeqCst);
        NAMED.fetch_max(number.saturating_add(1), Ordering::SeqCst);
        // Either the unload with this number sees that its list is named, or it is seen here.
        if UNLOADS.load(Ordering::SeqCst) == number {
            return number;
        }
    }
}

/// Counts an unload that begins: its number, and whether a sample has named its list.
fn begin() -> (u32, bool) {
    let number = UNLOADS.fetch_add(1, Ordering::SeqCst);
    (number, NAMED.load(Ordering::SeqCst) > number)
}

/// Copies the mappings to the list of images with this number.
fn list_images(number: u32, buffer: *mut u8) {
    if let Some(directory) = open_directory() {
        let [prefix, pid, dot, sequence] = process::ring_name(MAPS_PREFIX);
        let name = file_name(&[prefix, pid, dot, sequence, Part::Text("."), Part::Number(number)]);
        directory.copy_maps(&name, buffer, BUFFER_SIZE, process::maps_limit());
    }
}

/// `Allocation::images` of an allocation by this thread now; it has a ring.
pub fn images(thread: Thread) -> u32 {
    let Some(unload) = Unload::decode(thread.unload()) else { return name_list() };
    // By a destructor, whose code is mapped until the unload goes on.
    if !unload.is_listed
        && !process::is_filtered()
        && let Some(buffer) = take_buffer()
    {
        list_images(unload.number, buffer);
        release_buffer();
        thread.set_unload(Unload { is_listed: true, ..unload }.encode());
    }
    unload.number
}

/// The thread is about to unload images: counts that, and lists them if there are samples that need the list.
fn begin_unload(thread: Thread) {
    // One list at a time, so that no unload follows before its list is made. Lists take a tenth of a millisecond.
    const WAIT_MAX_NS: u64 = 50_000_000;
    let mut buffer = None;
    if process::ring().is_some() && !process::is_filtered() {
        let until_ns = system::now_ns() + WAIT_MAX_NS;
        buffer = take_buffer();
        while buffer.is_none() && system::now_ns() < until_ns {
            system::yield_now();
            buffer = take_buffer();
        }
    }
    let (number, is_named) = begin();
    if let (Some(buffer), true) = (buffer, is_named) {
        list_images(number, buffer);
    }
    // Another thread may have created it since: its first sample may name this list.
    if let Some(ring) = process::ring() {
        ring.header().unloads.fetch_max(u64::from(number) + 1, Ordering::SeqCst);
    }
    let is_listed = is_named && buffer.is_some();
    thread.set_unload(Unload { number, is_listed }.encode());
    if buffer.is_some() {
        release_buffer();
    }
}

/// `dlclose`: lists the images before any can be unloaded.
// SAFETY: replaces the function of this name, and calls it with the program's argument.
#[unsafe(no_mangle)]
pub extern "C" fn dlclose(library: usize) -> i32 {
    let thread = Thread::current();
    // A destructor may unload, too.
    let outer = thread.unload();
    let is_recorded = matches!(process::status(), Status::Recording(_));
    if is_recorded {
        let _blocked = BlockedSignals::new();
        begin_unload(thread);
    }
    let result = real::call(libc_function::dlclose, [library, 0, 0, 0, 0, 0]);
    if is_recorded {
        thread.set_unload(outer);
    }
    result as i32
}
