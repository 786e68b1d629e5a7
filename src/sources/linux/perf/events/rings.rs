//! The rings of events: their size, and mapping them.
//!
//! Input: a number of CPUs, an event. Output: a size, a ring, or the reason for having none.

use std::io;
use std::os::fd::OwnedFd;

use super::super::ring::sys::Ring;

/// Total size of all rings, and maximum and minimum size of one: a quarter of a ring holds some tens of
/// milliseconds.
const RINGS_BYTES: usize = 32 << 20;
const RING_BYTES_MAX: usize = 4 << 20;
pub(super) const RING_BYTES_MIN: usize = 512 << 10;
/// Maximum size of one if switches of many processes are sampled: thousands arrive while files of these are read.
const RING_BYTES_OF_MANY_MAX: usize = 16 << 20;
/// Size that any user may lock per CPU in addition to the control page (kernel.perf_event_mlock_kb, 516).
pub(super) const RING_BYTES_OF_EVERYBODY: usize = 512 << 10;
/// Reason for a ring that cannot be mapped.
const TOO_LITTLE_MEMORY: &str = "perf_event may lock no more memory: sudo, or raise `ulimit -l` \
                                 or sysctl kernel.perf_event_mlock_kb";

/// Size of the ring of each of this many CPUs, a power of two. `many`: switches of many processes are sampled.
pub(super) fn ring_bytes_for(cpus: usize, many: bool) -> usize {
    let most = if many { RING_BYTES_OF_MANY_MAX } else { RING_BYTES_MAX };
    let bytes = (RINGS_BYTES / cpus.max(1)).clamp(RING_BYTES_MIN, most);
    1 << bytes.ilog2()
}

pub(in crate::sources::linux::perf) fn map_ring(event: &OwnedFd, bytes: usize) -> io::Result<Ring> {
    Ring::map(event, bytes).map_err(|error| match error.raw_os_error() {
        Some(libc::EPERM) => io::Error::new(io::ErrorKind::QuotaExceeded, TOO_LITTLE_MEMORY),
        _ => error,
    })
}

/// Whether an error is a limit of this program, with its own message.
pub(in crate::sources::linux::perf) fn is_limit(error: &io::Error) -> bool {
    error.raw_os_error().is_none() && error.kind() == io::ErrorKind::QuotaExceeded
}

#[cfg(test)]
mod tests {
    use super::super::cpus::{CPUS_FOR_FEW_THREADS, EVENTS_MAX, scope_for};
    use super::super::options::Scope;
    use super::*;

    /// What is opened for this many CPUs and threads: scope, number of descriptors, total ring size.
    fn opened(cpus: usize, threads: usize) -> (Scope, usize, usize) {
        match scope_for(cpus, threads) {
            Scope::Cpus => (Scope::Cpus, cpus, cpus * ring_bytes_for(cpus, false)),
            // One ring per CPU, whatever the number of threads.
            Scope::Threads => (Scope::Threads, cpus * threads, cpus * RING_BYTES_OF_EVERYBODY),
        }
    }

    #[test]
    fn descriptors_and_rings_are_bounded_by_the_number_of_cpus() {
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
                // From 64 CPUs on, the minimum size of a ring exceeds its share.
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
