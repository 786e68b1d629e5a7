//! Pages of mapped files, which stay resident once they were read: those of programs of hundreds of megabytes add up.
//! Above a bound they are given back, and come again from the page cache.
//!
//! The bound does not cover what always stays resident: the profiler's own program, and rings of BPF programs.

use super::sys;
use crate::binary::map;

/// Resident bytes of files that are allowed above what always stays.
const BYTES_MAX: u64 = 20 << 20;

/// The bound on resident pages of mapped files.
#[derive(Debug, Default)]
pub(super) struct FilePages {
    /// The least that was resident recently: no more than this stays.
    floor_bytes: u64,
}

impl FilePages {
    /// Gives pages back if too many are resident.
    pub(super) fn bound(&mut self) {
        self.bound_by(&mut sys::resident_file_bytes, &mut map::release_pages);
    }

    /// Gives them back however few there are.
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
    fn what_is_read_stays_within_the_bound_beside_what_cannot_be_given_back() {
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
    fn where_nobody_tells_what_is_resident_nothing_is_given_back() {
        FilePages::default().bound_by(&mut || None, &mut || panic!("given back"));
    }
}
