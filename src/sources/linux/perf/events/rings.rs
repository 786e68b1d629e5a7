//! The rings of events: their size, and mapping them.
//!
//! Input: a number of CPUs, an event. Output: a size, a ring, or why there is none.

use std::io;
use std::os::fd::OwnedFd;

use super::super::ring::sys::Ring;

/// Bytes of all rings together, and of one at most and at least: a quarter of one is some tens of
/// milliseconds.
const RINGS_BYTES: usize = 32 << 20;
const RING_BYTES_MAX: usize = 4 << 20;
pub(super) const RING_BYTES_MIN: usize = 512 << 10;
/// The most of one where switches of many processes are sampled, which come by the thousand while files of
/// these are being read.
const RING_BYTES_OF_MANY_MAX: usize = 16 << 20;
/// What everybody may lock on each CPU beside a page for control (kernel.perf_event_mlock_kb, 516).
pub(super) const RING_BYTES_OF_EVERYBODY: usize = 512 << 10;
/// Why no ring can be had.
const TOO_LITTLE_MEMORY: &str = "perf_event may lock no more memory: sudo, or raise `ulimit -l` \
                                 or sysctl kernel.perf_event_mlock_kb";

/// Bytes of the ring of each of this many CPUs, a power of two. `many`: switches of many processes are sampled.
pub(super) fn ring_bytes_for(cpus: usize, many: bool) -> usize {
    let most = if many { RING_BYTES_OF_MANY_MAX } else { RING_BYTES_MAX };
    let bytes = (RINGS_BYTES / cpus.max(1)).clamp(RING_BYTES_MIN, most);
    1 << bytes.ilog2()
}

pub(super) fn map_ring(event: &OwnedFd, bytes: usize) -> io::Result<Ring> {
    Ring::map(event, bytes).map_err(|error| match error.raw_os_error() {
        Some(libc::EPERM) => io::Error::new(io::ErrorKind::QuotaExceeded, TOO_LITTLE_MEMORY),
        _ => error,
    })
}

/// Whether an error is one of the limits of this program, which have their own words.
pub(in crate::sources::linux::perf) fn is_limit(error: &io::Error) -> bool {
    error.raw_os_error().is_none() && error.kind() == io::ErrorKind::QuotaExceeded
}

#[cfg(test)]
mod tests {
    use super::super::cpus::{CPUS_FOR_FEW_THREADS, EVENTS_MAX, scope_for};
    use super::super::options::Scope;
    use super::*;

    /// What is opened for so many CPUs and threads: the scope, descriptors of events, bytes of rings.
    fn opened(cpus: usize, threads: usize) -> (Scope, usize, usize) {
        match scope_for(cpus, threads) {
            Scope::Cpus => (Scope::Cpus, cpus, cpus * ring_bytes_for(cpus, false)),
            // One ring for each CPU, whatever the number of threads.
            Scope::Threads => (Scope::Threads, cpus * threads, cpus * RING_BYTES_OF_EVERYBODY),
        }
    }

    #[test]
    fn what_is_opened_is_bounded_by_the_number_of_cpus() {
        assert_eq!(opened(1, 2_000), (Scope::Cpus, 1, 4 << 20));
        assert_eq!(opened(2, 2_000), (Scope::Cpus, 2, 8 << 20));
        assert_eq!(opened(64, 2_000), (Scope::Cpus, 64, 32 << 20));
        assert_eq!(opened(64, 64), (Scope::Cpus, 64, 32 << 20));
        // Fewer threads than CPUs: below 64 × 64 events.
        assert_eq!(opened(64, 63), (Scope::Threads, 4_032, 32 << 20));
        assert_eq!(opened(64, 1), (Scope::Threads, 64, 32 << 20));
        for cpus in [1, 2, 3, 16, 17, 48, 64, 100, 128, 256, 1_024] {
            for threads in [1, 2, 15, 16, 17, 63, 64, 127, 128, 2_000, 100_000] {
                let (scope, descriptors, bytes) = opened(cpus, threads);
                assert!(descriptors <= cpus.max(EVENTS_MAX), "{cpus} CPUs, {threads} threads: {descriptors}");
                // The least that a ring must hold is more than its share from 64 CPUs on.
                let most = RINGS_BYTES.max(cpus * RING_BYTES_MIN);
                assert!(bytes <= most, "{cpus} CPUs, {threads} threads: {bytes} bytes of rings");
                let few = threads < cpus && cpus > CPUS_FOR_FEW_THREADS && cpus * threads <= EVENTS_MAX;
                assert_eq!(scope == Scope::Threads, few, "{cpus} CPUs, {threads} threads");
            }
        }
    }

    #[test]
    fn rings_are_powers_of_two_of_whole_pages() {
        for (many, most) in [(false, RING_BYTES_MAX), (true, RING_BYTES_OF_MANY_MAX)] {
            for cpus in 0..5_000 {
                let bytes = ring_bytes_for(cpus, many);
                let fits = (RING_BYTES_MIN..=most).contains(&bytes);
                assert!(bytes.is_power_of_two() && fits, "{cpus} CPUs: {bytes}");
            }
        }
    }
}
