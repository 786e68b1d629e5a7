//! Which processes of the machine are sampled, judged when they are first heard of.
//!
//! Input: what was asked for, and for each process its parent or what /proc says of it; output: yes
//! or no. Those that are refused are told to the kernel (`bpf/sample_filter.rs`), so that their samples are not
//! copied; one that nobody has heard of yet is sampled, so that no short process is missed.

use std::fs;

use libc::pid_t;

use crate::sources::Chosen;
use crate::sources::linux::proc;

/// See the top of this file.
#[derive(Debug)]
pub(in super::super) struct ProcessFilter {
    chosen: Chosen,
    is_one: bool,
}

impl ProcessFilter {
    pub(in super::super) fn new(chosen: Chosen) -> ProcessFilter {
        let is_one = chosen.pids.len() == 1 && !is_open(&chosen);
        ProcessFilter { chosen, is_one }
    }

    /// Whether one process is all that is wanted, ever.
    pub(in super::super) fn is_one(&self) -> bool {
        self.is_one
    }

    /// The number is that of a process that was started just now: the one that was asked for by it has ended.
    pub(in super::super) fn number_is_anothers(&mut self, pid: pid_t) {
        if !self.is_one {
            self.chosen.pids.retain(|chosen| *chosen != pid.unsigned_abs());
        }
    }

    /// Whether it matters who started a process.
    pub(in super::super) fn asks_parents(&self) -> bool {
        self.chosen.children
    }

    /// All processes are wanted.
    pub(in super::super) fn is_all(&self) -> bool {
        self.chosen.all
    }

    /// A refused process is judged again when it runs another program: it may have been put into a
    /// control group, or have become another user's, in between.
    pub(in super::super) fn may_change(&self) -> bool {
        self.chosen.cgroup.is_some() || self.chosen.uid.is_some()
    }

    /// Whether a process is wanted; `of_wanted` says that the one that started it is. One that is gone already
    /// had the control group and the user of that one, as most have.
    pub(in super::super) fn wants(&self, pid: pid_t, of_wanted: bool) -> bool {
        let Chosen { pids, children, all, cgroup, uid } = &self.chosen;
        *all || *children && of_wanted
            || pids.contains(&pid.unsigned_abs())
            || cgroup.as_ref().is_some_and(|cgroup| is_in_cgroup(pid, cgroup).unwrap_or(of_wanted))
            || uid.is_some_and(|uid| uid_of(pid).map_or(of_wanted, |of| of == uid))
    }
}

/// Whether processes that are not known yet may be wanted.
fn is_open(chosen: &Chosen) -> bool {
    let Chosen { pids: _, children, all, cgroup, uid } = chosen;
    *children || *all || cgroup.is_some() || uid.is_some()
}

/// The process that started one, as /proc has it now.
pub(in crate::sources::linux) fn parent_of(pid: pid_t) -> Option<pid_t> {
    let status = fs::read(format!("/proc/{pid}/status")).ok()?;
    proc::status_value(&String::from_utf8_lossy(&status), "PPid")?.trim().parse().ok()
}

/// Whether a process has memory of its own, as threads of the kernel have not.
pub(in super::super) fn has_user_memory(pid: pid_t) -> bool {
    let status = fs::read(format!("/proc/{pid}/status")).unwrap_or_default();
    proc::status_value(&String::from_utf8_lossy(&status), "VmSize").is_some()
}

/// All processes, by number.
pub(in crate::sources::linux) fn all_processes() -> Vec<pid_t> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The effective user.
fn uid_of(pid: pid_t) -> Option<u32> {
    let status = fs::read(format!("/proc/{pid}/status")).ok()?;
    proc::status_value(&String::from_utf8_lossy(&status), "Uid")?.split_whitespace().nth(1)?.parse().ok()
}

/// Whether a process is in a control group or one below it: lines of `/proc/PID/cgroup` are
/// `HIERARCHY:CONTROLLERS:PATH` (cgroups(7)). `None` of one that is gone.
fn is_in_cgroup(pid: pid_t, cgroup: &str) -> Option<bool> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    Some(text.lines().filter_map(|line| line.splitn(3, ':').nth(2)).any(|path| is_below(path, cgroup)))
}

fn is_below(path: &str, cgroup: &str) -> bool {
    let cgroup = cgroup.trim_end_matches('/');
    path.strip_prefix(cgroup).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_holds_itself_and_what_is_below_it() {
        assert!(is_below("/user.slice", "/user.slice"));
        assert!(is_below("/user.slice/a.scope", "/user.slice/"));
        assert!(!is_below("/user.slices", "/user.slice"));
        assert!(is_below("/anything", "/"));
    }

    #[test]
    fn children_are_wanted_with_their_parents_only() {
        let choice = |children, pids: &[u32]| {
            ProcessFilter::new(Chosen { pids: pids.to_vec(), children, ..Chosen::default() })
        };
        assert!(choice(true, &[7]).wants(1 << 30, true));
        assert!(!choice(true, &[7]).wants(1 << 30, false));
        assert!(!choice(false, &[7]).wants(1 << 30, true));
        assert!(choice(false, &[7]).wants(7, false) && choice(false, &[7]).is_one());
    }

    #[test]
    fn one_that_is_gone_was_what_started_it() {
        let gone = 1 << 30;
        for chosen in [
            Chosen { cgroup: Some("/".to_owned()), ..Chosen::default() },
            Chosen { uid: Some(0), ..Chosen::default() },
        ] {
            let choice = ProcessFilter::new(chosen);
            assert!(choice.wants(gone, true) && !choice.wants(gone, false), "{choice:?}");
        }
    }

    #[test]
    fn a_number_that_was_asked_for_is_wanted_until_it_is_another_processs() {
        let mut choice = ProcessFilter::new(Chosen { pids: vec![7, 8], ..Chosen::default() });
        choice.number_is_anothers(7);
        assert!(!choice.wants(7, false) && choice.wants(8, false) && !choice.is_one());
    }

    #[test]
    fn our_own_process_has_a_parent_and_a_user() {
        let pid = std::process::id().cast_signed();
        assert!(parent_of(pid).is_some_and(|parent| parent >= 0));
        assert!(uid_of(pid).is_some());
        assert!(all_processes().contains(&pid));
        assert!(has_user_memory(pid) && !has_user_memory(-1));
    }
}
