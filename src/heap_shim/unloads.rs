//! When libraries are unloaded: another one may come to lie at their addresses, so each sample says in which list of
//! images the code of its stack is.
//!
//! A list is a copy of /proc/self/maps, made before an unload, and numbered by the unloads that began before. It has all code
//! that was loaded since the previous unload. What allocates while an unload is in progress may be code that was loaded
//! meanwhile: it is in that list or in the next one. The thread that unloads is an exception: it runs destructors of libraries
//! that are in the list.
//!
//! Not seen are unloads by the C library itself (modules of iconv) and by libraries that do not call this `dlclose`.

use super::shared_memory::image_list;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Unloads that have begun, and above `COUNT_SHIFT` bits those in progress.
static UNLOADS: AtomicU64 = AtomicU64::new(0);
const COUNT_BITS: u32 = 32;
/// The thread of the only unload in progress, or 0.
static ONLY_THREAD: AtomicU32 = AtomicU32::new(0);

/// `Allocation::images` of an allocation by this thread now: code on its stack cannot be unloaded before it returns.
pub fn images(tid: u32) -> u32 {
    let unloads = UNLOADS.load(Ordering::Acquire);
    let is_only = tid != 0 && ONLY_THREAD.load(Ordering::Relaxed) == tid;
    number_of(unloads, is_only)
}

fn number_of(unloads: u64, is_only: bool) -> u32 {
    let begun = unloads as u32;
    match unloads >> COUNT_BITS {
        0 => image_list::encode(begun, false),
        in_progress => image_list::encode(begun.saturating_sub(1), !(is_only && in_progress == 1)),
    }
}

/// Unloads that have begun.
pub fn begun() -> u32 {
    UNLOADS.load(Ordering::Acquire) as u32
}

/// Counts an unload that begins; returns how many began before.
pub fn begin(tid: u32) -> u32 {
    let before = UNLOADS.fetch_add((1 << COUNT_BITS) + 1, Ordering::SeqCst);
    ONLY_THREAD.store(if before >> COUNT_BITS == 0 { tid } else { 0 }, Ordering::Relaxed);
    before as u32
}

/// An unload has ended.
pub fn end() {
    if UNLOADS.load(Ordering::Relaxed) >> COUNT_BITS > 1 {
        ONLY_THREAD.store(0, Ordering::Relaxed);
    }
    // In a child that was forked by a destructor nothing is in progress.
    let less = |unloads: u64| unloads.checked_sub(1 << COUNT_BITS);
    let _ = UNLOADS.fetch_update(Ordering::SeqCst, Ordering::Relaxed, less);
}

/// The child of a fork has one thread, which unloads nothing but what it is unloading itself.
pub fn begin_child() {
    UNLOADS.fetch_and(u64::from(u32::MAX), Ordering::SeqCst);
}
