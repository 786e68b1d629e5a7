//! Online CPUs, and the choice between events for CPUs and for threads. Output: CPU numbers, [`Scope`].

use std::fs;
use std::io;

use libc::c_int;

use super::options::Scope;

/// Maximum number of events for the threads of one process.
pub(super) const EVENTS_MAX: usize = 16_384;
/// Maximum number of CPUs to tick for a few threads.
pub(super) const CPUS_FOR_FEW_THREADS: usize = 16;

/// The suitable scope: events of threads cost a timer operation for each switch between them, and a descriptor per
/// thread and CPU; events of CPUs make every CPU tick, including idle ones.
pub(in crate::sources::linux::perf) fn scope_for(cpus: usize, threads: usize) -> Scope {
    if cpus > CPUS_FOR_FEW_THREADS && threads.saturating_mul(cpus) <= EVENTS_MAX && threads < cpus {
        Scope::Threads
    } else {
        Scope::Cpus
    }
}

/// The online CPUs, by number.
pub(in crate::sources::linux::perf) fn online_cpus() -> io::Result<Vec<c_int>> {
    let list = fs::read_to_string("/sys/devices/system/cpu/online")?;
    let cpus = cpu_list(&list);
    if cpus.is_empty() { Err(io::ErrorKind::InvalidData.into()) } else { Ok(cpus) }
}

/// Number of online CPUs, at least 1.
pub(in crate::sources::linux::perf) fn cpu_count() -> usize {
    online_cpus().map_or(1, |cpus| cpus.len())
}

/// Number of CPUs that the kernel keeps values for, including those that may come online later.
pub(in crate::sources::linux::perf) fn possible_cpu_count() -> io::Result<usize> {
    let list = fs::read_to_string("/sys/devices/system/cpu/possible")?;
    // The number of values follows from the highest number (include/linux/cpumask.h, `num_possible_cpus`).
    let cpus = cpu_list(&list).len();
    if cpus == 0 { Err(io::ErrorKind::InvalidData.into()) } else { Ok(cpus) }
}

/// `0-3,8` (Documentation/admin-guide/cputopology.rst).
fn cpu_list(text: &str) -> Vec<c_int> {
    let ranges = text.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some((first.parse().ok()?, last.parse().ok()?))
    });
    ranges.flat_map(|(first, last): (c_int, c_int)| first..=last).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_ranges_and_numbers() {
        assert_eq!(cpu_list("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert_eq!(cpu_list("0\n"), [0]);
        assert_eq!(cpu_list(""), [] as [c_int; 0]);
    }

    #[test]
    fn few_threads_on_many_cpus_use_thread_events_and_others_cpu_events() {
        assert_eq!(scope_for(2, 1), Scope::Cpus);
        assert_eq!(scope_for(2, 2_001), Scope::Cpus);
        assert_eq!(scope_for(64, 1), Scope::Threads);
        assert_eq!(scope_for(64, 2_001), Scope::Cpus);
    }
}
