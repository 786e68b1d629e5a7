//! Selection of processes, decided when they are first seen.
//!
//! `ProcessFilter` decides; `Procfs` is the stage's access to /proc, in tests that of a simulated kernel.
//!
//! Input: the request, and for each process its parent or its /proc entry; output: selected or excluded. Excluded
//! processes go to the kernel's `SampleFilter`, so that their samples are not copied; a process not yet seen is
//! sampled, so that no short one is missed.

use std::fs;

use hashbrown::HashSet;
use libc::pid_t;

use crate::addr::Avma;
use crate::sources::ProcessSelection;
use crate::sources::linux::{cgroup, proc};

/// The request, and the decisions so far.
#[derive(Debug)]
pub(crate) struct ProcessFilter {
    chosen: ProcessSelection,
    is_one: bool,
    excluded: HashSet<pid_t>,
    /// Changes for the kernel: excluded (true) or not.
    changes: Vec<(pid_t, bool)>,
}

impl ProcessFilter {
    pub(crate) fn new(chosen: ProcessSelection) -> ProcessFilter {
        let is_one = chosen.pids.len() == 1 && !is_open(&chosen);
        ProcessFilter { chosen, is_one, excluded: HashSet::new(), changes: Vec::new() }
    }

    /// Whether only one process can ever be selected.
    pub(crate) fn is_one(&self) -> bool {
        self.is_one
    }

    /// Whether all processes are selected.
    pub(crate) fn is_all(&self) -> bool {
        self.chosen.all
    }

    /// Whether children are selected with their parents.
    pub(crate) fn follows_children(&self) -> bool {
        self.chosen.children
    }

    /// Whether an excluded process is reconsidered at exec: its control group or user may have changed.
    pub(crate) fn may_select_at_exec(&self) -> bool {
        self.chosen.cgroup.is_some() || self.chosen.uid.is_some()
    }

    /// Whether a process was excluded.
    pub(crate) fn is_excluded(&self, pid: pid_t) -> bool {
        self.excluded.contains(&pid)
    }

    /// Decides whether a process is selected. `parent_selected`: its parent is. A process that is already gone is
    /// assumed to have had its parent's control group and user, as most do.
    pub(super) fn decide(&mut self, pid: pid_t, parent_selected: bool, procfs: &dyn Procfs) -> bool {
        let is_selected = self.selects(pid, parent_selected, procfs);
        if !is_selected {
            self.excluded.insert(pid);
            self.changes.push((pid, true));
        }
        is_selected
    }

    fn selects(&self, pid: pid_t, parent_selected: bool, procfs: &dyn Procfs) -> bool {
        let ProcessSelection { pids, children, all, cgroup, uid } = &self.chosen;
        let in_cgroup = |cgroup: &String| procfs.is_in_cgroup(pid, cgroup).unwrap_or(parent_selected);
        *all || *children && parent_selected
            || pids.contains(&pid.unsigned_abs())
            || cgroup.as_ref().is_some_and(in_cgroup)
            || uid.is_some_and(|uid| procfs.user(pid).map_or(parent_selected, |of| of == uid))
    }

    /// Notes that a pid belongs to a process just started: the one requested by this number has ended.
    pub(super) fn pid_reused(&mut self, pid: pid_t) {
        if !self.is_one {
            self.chosen.pids.retain(|chosen| *chosen != pid.unsigned_abs());
        }
    }

    /// Notes that a pid no longer belongs to an excluded process.
    pub(super) fn pid_released(&mut self, pid: pid_t) {
        if self.excluded.remove(&pid) {
            self.changes.push((pid, false));
        }
    }

    /// Changes for the kernel since the last call: processes excluded, or no longer.
    pub(crate) fn take_changes(&mut self) -> Vec<(pid_t, bool)> {
        std::mem::take(&mut self.changes)
    }
}

/// Whether unknown processes may be selected.
fn is_open(chosen: &ProcessSelection) -> bool {
    let ProcessSelection { pids: _, children, all, cgroup, uid } = chosen;
    *children || *all || cgroup.is_some() || uid.is_some()
}

// ---- The process stage's access to /proc: parent, owner, name and state of a process.
//
// All access is through [`Procfs`], so that the stage also runs on a simulated kernel.

/// What /proc shows of processes.
pub(crate) trait Procfs {
    /// All processes, by number.
    fn processes(&self) -> Vec<pid_t>;

    /// The parent of a process.
    fn parent(&self, pid: pid_t) -> Option<pid_t>;

    /// The effective user.
    fn user(&self, pid: pid_t) -> Option<u32>;

    /// Whether a process is in a control group or one below it.
    fn is_in_cgroup(&self, pid: pid_t, group: &str) -> Option<bool>;

    /// Displayed name of a process: its name, or the kind of a kernel thread (`[kworker]`).
    fn name(&self, pid: pid_t) -> String;

    /// The file name of its program.
    fn program(&self, pid: pid_t) -> Option<Vec<u8>>;

    /// The threads of a process.
    fn threads(&self, pid: pid_t) -> Vec<pid_t>;

    /// The name of a thread.
    fn thread_name(&self, pid: pid_t, tid: pid_t) -> Option<String>;

    /// The initial stack pointer of the first thread.
    fn stack_top(&self, pid: pid_t) -> Option<Avma>;

    /// Whether a thread of the process runs or waits.
    fn is_alive(&self, pid: pid_t) -> bool;
}

/// The /proc of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SystemProcfs;

impl Procfs for SystemProcfs {
    fn processes(&self) -> Vec<pid_t> {
        all_processes()
    }

    fn parent(&self, pid: pid_t) -> Option<pid_t> {
        parent_of(pid)
    }

    fn user(&self, pid: pid_t) -> Option<u32> {
        status_value(pid, "Uid")?.split_whitespace().nth(1)?.parse().ok()
    }

    fn is_in_cgroup(&self, pid: pid_t, group: &str) -> Option<bool> {
        let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        Some(cgroup::memberships(&text).any(|(_, path)| is_below(path, group)))
    }

    fn name(&self, pid: pid_t) -> String {
        let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
        let name = String::from_utf8_lossy(&name).trim_end_matches('\n').to_owned();
        // An exiting process has no command line and no file any more, like a thread of the kernel.
        let of_kernel = proc::is_of_kernel(pid) == Some(true);
        match name.split(['/', ':']).next() {
            Some(kind) if of_kernel => format!("[{kind}]"),
            _ => name,
        }
    }

    fn program(&self, pid: pid_t) -> Option<Vec<u8>> {
        let file = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
        Some(file.file_name()?.as_encoded_bytes().to_vec())
    }

    fn threads(&self, pid: pid_t) -> Vec<pid_t> {
        proc::list(pid).unwrap_or_default()
    }

    fn thread_name(&self, pid: pid_t, tid: pid_t) -> Option<String> {
        proc::name(pid, tid)
    }

    fn stack_top(&self, pid: pid_t) -> Option<Avma> {
        proc::start_stack(pid)
    }

    fn is_alive(&self, pid: pid_t) -> bool {
        proc::living_thread(pid).is_some()
    }
}

/// All processes, by number.
pub(crate) fn all_processes() -> Vec<pid_t> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The current parent of a process, by /proc.
pub(crate) fn parent_of(pid: pid_t) -> Option<pid_t> {
    status_value(pid, "PPid")?.trim().parse().ok()
}

/// Whether a process has user memory; kernel threads have none.
pub(crate) fn has_user_memory(pid: pid_t) -> bool {
    status_value(pid, "VmSize").is_some()
}

fn status_value(pid: pid_t, key: &str) -> Option<String> {
    let status = fs::read(format!("/proc/{pid}/status")).ok()?;
    proc::status_value(&String::from_utf8_lossy(&status), key).map(str::to_owned)
}

fn is_below(path: &str, cgroup: &str) -> bool {
    let cgroup = cgroup.trim_end_matches('/');
    path.strip_prefix(cgroup).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::SystemProcfs;
    use super::*;

    fn decide(filter: &mut ProcessFilter, pid: pid_t, parent_selected: bool) -> bool {
        filter.decide(pid, parent_selected, &SystemProcfs)
    }

    #[test]
    fn a_process_that_has_ended_is_no_thread_of_the_kernel() {
        // A zombie has neither command line nor program.
        let mut ended = std::process::Command::new("true").spawn().expect("true runs");
        let pid = ended.id() as pid_t;
        let state = || proc::stat_state(&fs::read(format!("/proc/{pid}/stat")).unwrap_or_default());
        while state() != Some(b'Z') {
            std::thread::yield_now();
        }
        assert_eq!(SystemProcfs.name(pid), "true");
        ended.wait().expect("a child of this process");
    }

    #[test]
    fn children_are_selected_only_with_their_parents() {
        let filter = |children, pids: &[u32]| {
            ProcessFilter::new(ProcessSelection {
                pids: pids.to_vec(),
                children,
                ..ProcessSelection::default()
            })
        };
        assert!(decide(&mut filter(true, &[7]), 1 << 30, true));
        assert!(!decide(&mut filter(true, &[7]), 1 << 30, false));
        assert!(!decide(&mut filter(false, &[7]), 1 << 30, true));
        assert!(decide(&mut filter(false, &[7]), 7, false) && filter(false, &[7]).is_one());
    }

    #[test]
    fn a_process_that_is_gone_is_judged_by_its_parent() {
        let gone = 1 << 30;
        for chosen in [
            ProcessSelection { cgroup: Some("/".to_owned()), ..ProcessSelection::default() },
            ProcessSelection { uid: Some(0), ..ProcessSelection::default() },
        ] {
            let mut filter = ProcessFilter::new(chosen);
            assert!(decide(&mut filter, gone, true) && !decide(&mut filter, gone, false), "{filter:?}");
        }
    }

    #[test]
    fn a_requested_pid_is_selected_until_it_is_reused() {
        let mut filter =
            ProcessFilter::new(ProcessSelection { pids: vec![7, 8], ..ProcessSelection::default() });
        filter.pid_reused(7);
        assert!(!decide(&mut filter, 7, false) && decide(&mut filter, 8, false) && !filter.is_one());
    }

    #[test]
    fn each_decision_is_reported_to_the_kernel_once() {
        let mut filter = ProcessFilter::new(ProcessSelection {
            pids: vec![7],
            children: true,
            ..ProcessSelection::default()
        });
        assert!(!decide(&mut filter, 9, false) && filter.is_excluded(9));
        assert_eq!(filter.take_changes(), [(9, true)]);
        filter.pid_released(9);
        filter.pid_released(9);
        assert_eq!(filter.take_changes(), [(9, false)]);
    }
}

#[cfg(test)]
mod procfs_tests {
    use super::*;

    #[test]
    fn a_control_group_contains_itself_and_its_descendants() {
        assert!(is_below("/user.slice", "/user.slice"));
        assert!(is_below("/user.slice/a.scope", "/user.slice/"));
        assert!(!is_below("/user.slices", "/user.slice"));
        assert!(is_below("/anything", "/"));
    }

    #[test]
    fn our_own_process_has_a_parent_and_a_user() {
        let pid = std::process::id().cast_signed();
        assert!(parent_of(pid).is_some_and(|parent| parent >= 0));
        assert!(SystemProcfs.user(pid).is_some());
        assert!(all_processes().contains(&pid));
        assert!(has_user_memory(pid) && !has_user_memory(-1));
    }
}
