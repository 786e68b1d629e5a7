//! Resident pages of mapped files: they stay resident after a read, and programs of hundreds of megabytes add
//! up. Above a bound they are released, and come back from the page cache.
//!
//! The bound excludes pages that cannot be released: the profiler's own program, and rings of BPF programs.

use super::sys;
use crate::binary::map;

/// Allowed resident bytes of files above those that cannot be released.
const BYTES_MAX: u64 = 20 << 20;
/// Interval of checks, nanoseconds.
const INTERVAL_NS: u64 = 20_000_000;

/// The bound on resident pages of mapped files.
#[derive(Debug, Default)]
pub(super) struct FilePages {
    /// The recent minimum, an upper bound of the bytes that cannot be released.
    floor_bytes: u64,
    /// The next check at intervals.
    due_ns: u64,
}

impl FilePages {
    /// Releases pages if too many are resident.
    pub(super) fn bound(&mut self) {
        self.bound_by(&mut sys::resident_file_bytes, &mut map::release_pages);
    }

    /// Releases pages if too many are resident, and the last check was an interval ago.
    pub(super) fn bound_at_intervals(&mut self, now_ns: u64) {
        if now_ns >= self.due_ns {
            self.bound();
            self.due_ns = now_ns + INTERVAL_NS;
        }
    }

    /// Releases pages regardless of their number.
    pub(super) fn release(&mut self) {
        self.release_by(&mut sys::resident_file_bytes, &mut map::release_pages);
    }

    fn bound_by(&mut self, resident_bytes: &mut dyn FnMut() -> Option<u64>, release: &mut dyn FnMut()) {
        let Some(bytes) = resident_bytes() else { return };
        self.floor_bytes = self.floor_bytes.min(bytes);
        if bytes - self.floor_bytes > BYTES_MAX {
            self.release_by(resident_bytes, release);
        }
    }

    fn release_by(&mut self, resident_bytes: &mut dyn FnMut() -> Option<u64>, release: &mut dyn FnMut()) {
        release();
        self.floor_bytes = resident_bytes().unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_bound_applies_to_releasable_pages() {
        let (mut pages, mut most) = (FilePages::default(), 0);
        let (own, read, releases) = (Cell::new(7 * MIB), Cell::new(0), Cell::new(0));
        for round in 0..1_000 {
            read.set(read.get() + MIB / 2);
            if round == 500 {
                // A ring.
                own.set(26 * MIB);
            }
            let release = &mut || {
                read.set(0);
                releases.set(releases.get() + 1);
            };
            pages.bound_by(&mut || Some(own.get() + read.get()), release);
            most = most.max(read.get());
        }
        assert!(most <= BYTES_MAX, "{most}");
        assert!((20..=30).contains(&releases.get()), "{}: not each time", releases.get());
        own.set(7 * MIB);
        for _ in 0..100 {
            read.set(read.get() + MIB / 2);
            pages.bound_by(&mut || Some(own.get() + read.get()), &mut || read.set(0));
            most = read.get();
            assert!(read.get() <= 2 * BYTES_MAX + MIB, "a ring that is gone makes little room");
        }
        assert!(most <= BYTES_MAX, "nor for long: {most}");
    }

    #[test]
    fn nothing_is_released_without_a_resident_count() {
        FilePages::default().bound_by(&mut || None, &mut || panic!("given back"));
    }
}
