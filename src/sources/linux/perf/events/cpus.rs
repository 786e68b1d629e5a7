//! The CPUs that are online, and whether to open events for CPUs or for threads. Output: CPU numbers, [`Scope`].

use std::fs;
use std::io;

use libc::c_int;

use super::options::Scope;

/// More events than this are not opened for the threads of one process.
pub(super) const EVENTS_MAX: usize = 16_384;
/// CPUs on which a timer may tick for the sake of a few threads.
pub(super) const CPUS_FOR_FEW_THREADS: usize = 16;

/// Which scope fits: events of threads cost a timer for each switch between them, and a descriptor
/// for each thread and CPU; events of CPUs let each CPU tick, those that nothing runs on, too.
pub(in crate::sources::linux::perf) fn scope_for(cpus: usize, threads: usize) -> Scope {
    if cpus > CPUS_FOR_FEW_THREADS && threads.saturating_mul(cpus) <= EVENTS_MAX && threads < cpus {
        Scope::Threads
    } else {
        Scope::Cpus
    }
}

/// The CPUs that are online, by number.
pub(super) fn online_cpus() -> io::Result<Vec<c_int>> {
    let list = fs::read_to_string("/sys/devices/system/cpu/online")?;
    let cpus = cpu_list(&list);
    if cpus.is_empty() { Err(io::ErrorKind::InvalidData.into()) } else { Ok(cpus) }
}

/// How many CPUs are online, at least 1.
pub(in crate::sources::linux::perf) fn cpu_count() -> usize {
    online_cpus().map_or(1, |cpus| cpus.len())
}

/// How many CPUs the kernel keeps values for: those that may come online, too.
pub(in crate::sources::linux::perf) fn possible_cpu_count() -> io::Result<usize> {
    let list = fs::read_to_string("/sys/devices/system/cpu/possible")?;
    // Values are as many as the highest number says (include/linux/cpumask.h, `num_possible_cpus`).
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
    fn few_threads_on_many_cpus_have_events_of_their_own_and_others_share_those_of_cpus() {
        assert_eq!(scope_for(2, 1), Scope::Cpus);
        assert_eq!(scope_for(2, 2_001), Scope::Cpus);
        assert_eq!(scope_for(64, 1), Scope::Threads);
        assert_eq!(scope_for(64, 2_001), Scope::Cpus);
    }
}
