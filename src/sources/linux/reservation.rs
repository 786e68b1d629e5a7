//! CPU time reserved for the reader of the kernel's samples (sched(7), SCHED_DEADLINE), and its limits.
//! Input: the number of CPUs, the control group of this process. Output: whether time is reserved.
//!
//! Priorities work only within a session if sessions share the CPUs (CONFIG_SCHED_AUTOGROUP), and only within
//! a control group. Reserved time goes before everything else, so it is short and bounded:
//! - Programs with other real-time policies (SCHED_FIFO) are delayed by [`RUNTIME_MAX_NS`] at most.
//! - On a machine with one CPU half as much is reserved: the target keeps 70 % of it whatever reading takes.
//! - In a control group with a CPU limit nothing is reserved.
//! - If others have reserved all such time, nothing is taken from them.
//!
//! The reservation ends with the thread, however that exits.

use std::path::{Path, PathBuf};

use super::{cgroup, sys};

/// Longest reservation per period, and the period, nanoseconds.
const RUNTIME_MAX_NS: u64 = 3_000_000;
const PERIOD_NS: u64 = 5_000_000;
/// Largest reserved part of the machine, per mille.
const MACHINE_PER_MILLE: u64 = 300;

/// Reserved time per period on a machine with this many CPUs, nanoseconds.
fn runtime_ns(cpus: usize) -> u64 {
    (PERIOD_NS * MACHINE_PER_MILLE / 1000).saturating_mul(cpus.max(1) as u64).min(RUNTIME_MAX_NS)
}

/// Files with the CPU limits of a process's control groups, from its `/proc/PID/cgroup`: for both versions of
/// the hierarchy, up to the root.
fn quota_files(mounted: &Path, groups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for (controllers, path) in cgroup::memberships(groups) {
        let (hierarchy, name) = match controllers {
            "" => (mounted.to_owned(), "cpu.max"),
            of_cpu if of_cpu.split(',').any(|name| name == "cpu") => {
                (mounted.join(of_cpu), "cpu.cfs_quota_us")
            }
            _ => continue,
        };
        let path = Path::new(path.trim_start_matches('/'));
        files.extend(path.ancestors().map(|group| hierarchy.join(group).join(name)));
    }
    files
}

/// Whether the file contains a limit: `100000 100000`; without one, `max 100000` or `-1`.
fn is_limit(quota: &str) -> bool {
    quota.split_whitespace().next().is_some_and(|most| most.parse::<u64>().is_ok())
}

/// Whether a limit of CPU time applies to this process.
fn is_limited() -> bool {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let files = quota_files(Path::new(cgroup::MOUNTED), &groups);
    files.iter().filter_map(|file| std::fs::read_to_string(file).ok()).any(|quota| is_limit(&quota))
}

/// Reserves time for the calling thread, on a machine with this many CPUs. Returns whether that succeeded.
pub(super) fn reserve_for_this_thread(cpus: usize) -> bool {
    !is_limited() && sys::reserve_time_for_this_thread(runtime_ns(cpus), PERIOD_NS).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_keep_most_of_the_machine() {
        let ms = |cpus| runtime_ns(cpus) as f64 / 1e6;
        assert_eq!([0, 1, 2, 3, 64].map(ms), [1.5, 1.5, 3.0, 3.0, 3.0], "of 5 ms");
    }

    #[test]
    fn limits_of_a_group_and_its_parents_are_checked() {
        let files = |groups| quota_files(Path::new("/m"), groups);
        let listed = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(
            files("0::/a.slice/b.scope\n"),
            listed(&["/m/a.slice/b.scope/cpu.max", "/m/a.slice/cpu.max", "/m/cpu.max"])
        );
        assert_eq!(files("0::/\n"), listed(&["/m/cpu.max"]));
        assert_eq!(
            files("12:cpuset:/x\n4:cpu,cpuacct:/docker/1\nrubbish\n"),
            listed(&[
                "/m/cpu,cpuacct/docker/1/cpu.cfs_quota_us",
                "/m/cpu,cpuacct/docker/cpu.cfs_quota_us",
                "/m/cpu,cpuacct/cpu.cfs_quota_us"
            ])
        );
        let limits = ["50000 100000\n", "max 100000\n", "-1\n", "20000\n", ""].map(is_limit);
        assert_eq!(limits, [true, false, false, true, false]);
    }

    /// Policy of the calling thread (proc(5), stat, field 41).
    fn policy() -> u32 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap_or_default();
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        fields.split_whitespace().nth(38).and_then(|policy| policy.parse().ok()).unwrap_or(u32::MAX)
    }

    #[test]
    fn children_do_not_inherit_reserved_time() {
        const SCHED_DEADLINE: u32 = 6;
        let before = policy();
        let reserve = || {
            let has_time = reserve_for_this_thread(1);
            let started = std::thread::spawn(policy).join();
            let child = std::process::Command::new("cat").arg("/proc/self/stat").output();
            (has_time, policy(), started, child)
        };
        let Ok((has_time, own, started, child)) = std::thread::spawn(reserve).join() else { panic!("died") };
        let inherited = if has_time { 0 } else { before };
        assert_eq!(own, if has_time { SCHED_DEADLINE } else { before });
        assert_eq!(started.ok(), Some(inherited));
        let stat = child.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        let stat = stat.unwrap_or_else(|error| panic!("fork fails: {error}"));
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        assert_eq!(fields.split_whitespace().nth(38), Some(inherited.to_string().as_str()), "{stat}");
    }
}
