//! When libraries are unloaded: another one may come to lie at their addresses, so each sample names the list of
//! images that has the code of its stack.
//!
//! List K is a copy of /proc/self/maps, made before the unload number K, if a sample has named it. Code on a stack can be
//! unmapped only by an unload that begins after its functions have returned: it is in the list of the first unload that
//! begins after the sample. The thread that unloads is an exception: it runs destructors of libraries that are in the
//! list of that unload.
//!
//! Not seen are unloads by the C library itself (modules of iconv) and by libraries that do not call this `dlclose`.

use core::sync::atomic::{AtomicU32, Ordering};

/// Unloads that have begun.
static BEGUN: AtomicU32 = AtomicU32::new(0);
/// Samples have named lists below this number.
static NAMED: AtomicU32 = AtomicU32::new(0);

/// The unload that a thread has begun and not ended.
#[derive(Clone, Copy)]
pub struct Unload {
    /// Unloads that began before.
    pub number: u32,
    /// Its list was made.
    pub is_listed: bool,
}

impl Unload {
    /// As a word that is not 0.
    pub fn encode(self) -> u64 {
        u64::from(self.number) << 2 | u64::from(self.is_listed) << 1 | 1
    }

    /// The unload of a word; none of 0.
    pub fn decode(word: u64) -> Option<Self> {
        (word != 0).then_some(Self { number: (word >> 2) as u32, is_listed: word & 2 != 0 })
    }
}

/// Names the list of a sample by a thread that unloads nothing, now.
pub fn name_list() -> u32 {
    loop {
        let number = BEGUN.load(Ordering::SeqCst);
        NAMED.fetch_max(number.saturating_add(1), Ordering::SeqCst);
        // Either the unload with this number sees that its list is named, or it is seen here.
        if BEGUN.load(Ordering::SeqCst) == number {
            return number;
        }
    }
}

/// Unloads that have begun.
pub fn begun() -> u32 {
    BEGUN.load(Ordering::Acquire)
}

/// Counts an unload that begins: its number, and whether a sample has named its list.
pub fn begin() -> (u32, bool) {
    let number = BEGUN.fetch_add(1, Ordering::SeqCst);
    (number, NAMED.load(Ordering::SeqCst) > number)
}
