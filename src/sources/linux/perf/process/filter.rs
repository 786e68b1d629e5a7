//! Selection of processes, decided when they are first seen.
//!
//! Input: the request, and for each process its parent or its /proc entry; output: selected or excluded. Excluded
//! processes go to the kernel's `SampleFilter`, so that their samples are not copied; a process not yet seen is
//! sampled, so that no short one is missed.

use hashbrown::HashSet;
use libc::pid_t;

use super::procfs::Procfs;
use crate::sources::ProcessSelection;

/// The request, and the decisions so far.
#[derive(Debug)]
pub(in super::super) struct ProcessFilter {
    chosen: ProcessSelection,
    is_one: bool,
    excluded: HashSet<pid_t>,
    /// Changes for the kernel: excluded (true) or not.
    changes: Vec<(pid_t, bool)>,
}

impl ProcessFilter {
    pub(in super::super) fn new(chosen: ProcessSelection) -> ProcessFilter {
        let is_one = chosen.pids.len() == 1 && !is_open(&chosen);
        ProcessFilter { chosen, is_one, excluded: HashSet::new(), changes: Vec::new() }
    }

    /// Whether only one process can ever be selected.
    pub(in super::super) fn is_one(&self) -> bool {
        self.is_one
    }

    /// Whether all processes are selected.
    pub(in super::super) fn is_all(&self) -> bool {
        self.chosen.all
    }

    /// Whether children are selected with their parents.
    pub(in super::super) fn follows_children(&self) -> bool {
        self.chosen.children
    }

    /// Whether an excluded process is reconsidered at exec: its control group or user may have changed.
    pub(in super::super) fn may_select_at_exec(&self) -> bool {
        self.chosen.cgroup.is_some() || self.chosen.uid.is_some()
    }

    /// Whether a process was excluded.
    pub(in super::super) fn is_excluded(&self, pid: pid_t) -> bool {
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
    pub(in super::super) fn take_changes(&mut self) -> Vec<(pid_t, bool)> {
        std::mem::take(&mut self.changes)
    }
}

/// Whether unknown processes may be selected.
fn is_open(chosen: &ProcessSelection) -> bool {
    let ProcessSelection { pids: _, children, all, cgroup, uid } = chosen;
    *children || *all || cgroup.is_some() || uid.is_some()
}

#[cfg(test)]
mod tests {
    use super::super::procfs::SystemProcfs;
    use super::*;

    fn decide(filter: &mut ProcessFilter, pid: pid_t, parent_selected: bool) -> bool {
        filter.decide(pid, parent_selected, &SystemProcfs)
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
