//! How many libraries the dynamic linker of glibc has loaded and unloaded. A library can lie where another one was: a list
//! of mappings is valid for a sample if none was loaded between the two, or, if it is newer, none was unloaded.
//!
//! Input: the images of a process and reads of its memory while it runs, hostile and changing. Output: two counts. Not for:
//! other dynamic linkers (musl unloads nothing), 32-bit processes.
//!
//! The counts are in `_rtld_global` (`struct rtld_global`, sysdeps/generic/ldsodefs.h), whose layout changes: it begins with the first
//! namespace, with the number of its libraries in the second word (`_ns_nloaded`). `_dl_load_adds` follows the recursive locks
//! of the linker, which are the only ones that are adjacent.

use super::jit::Read;
use super::view::ImageView;
use crate::addr::Avma;

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
mod tests {
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
