//! Explains why a process uses no CPU time, and how to continue it.
//!
//! Input: a process. Output: part of a message. Sources: /proc and the control group.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use libc::pid_t;

use super::{cgroup, proc, threads};

/// More CPU time than a thread needs to stop again.
const STOPPED_CPU_NS_MAX: u64 = 1_000_000;
/// Longest wait for a thread that gets no CPU.
const CPU_WAIT: Duration = Duration::from_secs(10);

/// The reason why no thread of a process can run, and the next step; `None` if there is none known.
#[must_use]
pub fn why_not_running(pid: u32) -> Option<String> {
    let pid = pid_t::try_from(pid).ok()?;
    let stat = |tid: pid_t| fs::read(format!("/proc/{pid}/task/{tid}/stat")).ok();
    let states = threads::list(pid).ok()?.into_iter().filter_map(|tid| proc::stat_state(&stat(tid)?));
    // The first thread may have exited before the others.
    let states: Vec<u8> = states.filter(|state| !matches!(state, b'Z' | b'X')).collect();
    let all = |of: &[u8]| !states.is_empty() && states.iter().all(|state| of.contains(state));
    if all(b"T") {
        return Some(format!("it is stopped by job control; let it run: kill -CONT {pid}"));
    }
    if all(b"tT") {
        let status = fs::read(format!("/proc/{pid}/status")).unwrap_or_default();
        let status = String::from_utf8_lossy(&status);
        let tracer: pid_t = proc::status_value(&status, "TracerPid")?.parse().ok()?;
        let name = threads::name(tracer, tracer).map(|name| format!(" ({name})")).unwrap_or_default();
        return Some(format!("pid {tracer}{name} traces it and has stopped it; continue it there"));
    }
    if let Some(why) = why_frozen(pid) {
        return Some(why);
    }
    all(b"D").then(|| {
        "it waits in the kernel where no signal wakes it (state D), mostly for a disk or a file system"
            .to_owned()
    })
}

/// [`why_not_running`] for a process that was just released: a stopped thread runs once more to stop again,
/// possibly late on a busy machine. A running thread ends the wait by its CPU time.
#[must_use]
pub fn why_still_not_running(pid: u32) -> Option<String> {
    let tids = threads::list(pid_t::try_from(pid).ok()?).ok()?;
    let read = |tid: &pid_t, name: &str| fs::read(format!("/proc/{pid}/task/{tid}/{name}"));
    let is_ready = |tid: &pid_t| read(tid, "stat").is_ok_and(|stat| proc::stat_state(&stat) == Some(b'R'));
    let used_ns = |tid: &pid_t| Some(proc::schedstat(&read(tid, "schedstat").ok()?)?.cpu_ns);
    let begun_ns: Vec<Option<u64>> = tids.iter().map(used_ns).collect();
    let about_to_stop = |(tid, begun_ns): (&pid_t, &Option<u64>)| {
        let used_ns = begun_ns.and_then(|begun_ns| used_ns(tid)?.checked_sub(begun_ns));
        is_ready(tid) && used_ns.is_some_and(|used_ns| used_ns < STOPPED_CPU_NS_MAX)
    };
    let begun = Instant::now();
    while begun.elapsed() < CPU_WAIT && tids.iter().zip(&begun_ns).any(about_to_stop) {
        std::thread::sleep(Duration::from_millis(1));
    }
    why_not_running(pid)
}

/// The frozen control group, and the next step; `None` if the process may run.
#[must_use]
pub fn why_it_is_frozen(pid: u32) -> Option<String> {
    why_frozen(pid_t::try_from(pid).ok()?)
}

fn why_frozen(pid: pid_t) -> Option<String> {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    cgroup::memberships(&groups)
        .find_map(|(controllers, path)| frozen_group(Path::new(cgroup::MOUNTED), controllers, path))
}

/// The next step for the frozen group at `path` or above.
fn frozen_group(mounted: &Path, controllers: &str, path: &str) -> Option<String> {
    // Version 2 has one hierarchy, version 1 one for the freezer.
    let (root, file, frozen, thawed) = match controllers {
        "" => (mounted.to_owned(), "cgroup.freeze", "1", "0"),
        "freezer" => (mounted.join("freezer"), "freezer.state", "FROZEN", "THAWED"),
        _ => return None,
    };
    let groups = Path::new(path).ancestors().filter_map(|group| group.strip_prefix("/").ok());
    groups.map(|group| root.join(group)).find_map(|group| {
        let state = fs::read_to_string(group.join(file)).ok()?;
        let group = group.display();
        (state.trim() == frozen)
            .then(|| format!("its control group is frozen; let it run: echo {thawed} > {group}/{file}"))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn frozen_groups_and_parents_are_found_in_both_versions() {
        let mounted = tempfile::TempDir::new().unwrap();
        let write = |file: &str, text: &str| {
            let file = mounted.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        write("a/cgroup.freeze", "1\n");
        write("a/b/cgroup.freeze", "0\n");
        write("c/cgroup.freeze", "0\n");
        write("freezer/d/freezer.state", "FROZEN\n");
        let found = |controllers, path| frozen_group(mounted.path(), controllers, path);
        let said = found("", "/a/b").unwrap();
        assert!(said.starts_with("its control group is frozen; let it run: echo 0 > /"), "{said}");
        assert!(said.ends_with("/a/cgroup.freeze"), "{said}");
        assert_eq!((found("", "/c"), found("memory", "/a/b"), found("", "/")), (None, None, None));
        let said = found("freezer", "/d").unwrap();
        assert!(said.contains("echo THAWED > ") && said.ends_with("/freezer/d/freezer.state"), "{said}");
    }

    #[test]
    fn a_running_process_has_no_reason() {
        assert_eq!(why_not_running(std::process::id()), None);
        assert_eq!(why_still_not_running(std::process::id()), None);
        assert_eq!(why_not_running(u32::MAX).or_else(|| why_still_not_running(u32::MAX)), None);
    }
}
