//! The processes of a target that is driven by stops, as the driver sees them.
//!
//! CPU time of a process that none of its known threads used is lost and counted: threads that cannot be stopped
//! (io_uring workers of the kernel), and threads with unreadable final CPU times.

use hashbrown::HashMap;

use super::recorded_process::{FIRST, ProcessIndex, UNSAMPLED};
use crate::sources::{Observed, Process, Target, ThreadId};

/// Loss reason for samples of processes that do not fit into the recorder.
pub(super) const TOO_MANY: &str = "too many processes";

/// Loss reason for CPU time that no known thread used.
pub(super) const BY_NO_KNOWN_THREAD: &str = "used by threads that could not be sampled";

/// A process of the target.
#[derive(Debug)]
struct TargetProcess {
    /// Its index in the recorder, once sampled.
    of: ProcessIndex,
    /// The name of its stacks.
    name: String,
    /// Its CPU time beyond that of its threads.
    cpu: CpuBalance,
}

/// Live processes of the target, by pid.
#[derive(Debug)]
pub(super) struct TargetProcesses {
    known: HashMap<u32, TargetProcess>,
    /// Number of execs so far.
    programs_begun: u64,
}

impl TargetProcesses {
    /// With the process that the recorder is created with.
    pub(super) fn new(first: &Process) -> TargetProcesses {
        let process = TargetProcess { of: FIRST, name: first.name.clone(), cpu: CpuBalance::default() };
        TargetProcesses { known: HashMap::from([(first.pid, process)]), programs_begun: 0 }
    }

    /// Adds a process, unless known: the clock of a new one begins with the recording. Returns its index in the
    /// recorder, and whether it is new.
    pub(super) fn add(&mut self, pid: u32, name: &str) -> (ProcessIndex, bool) {
        let mut is_new = false;
        let process = self.known.entry(pid).or_insert_with(|| {
            is_new = true;
            TargetProcess { of: UNSAMPLED, name: name.to_owned(), cpu: CpuBalance::new(Some(0)) }
        });
        (process.of, is_new)
    }

    /// The index of a process in the recorder; [`UNSAMPLED`] before its first sample.
    pub(super) fn index(&self, pid: u32) -> Option<ProcessIndex> {
        Some(self.known.get(&pid)?.of)
    }

    /// Makes a sampled process known: `add` adds it to the recorder under its name, unless already done. `None` if
    /// there is no room.
    pub(super) fn place(
        &mut self,
        pid: u32,
        add: impl FnOnce(&str) -> Option<ProcessIndex>,
    ) -> Option<ProcessIndex> {
        let process = self.known.get_mut(&pid)?;
        if process.of == UNSAMPLED {
            process.of = add(&process.name)?;
        }
        Some(process.of)
    }

    /// Counts an exec.
    pub(super) fn note_exec(&mut self) {
        self.programs_begun += 1;
    }

    /// Handles an exec to a program of this name. Returns the process's index, and whether the name changed.
    pub(super) fn begin_program(&mut self, pid: u32, name: &str) -> Option<(ProcessIndex, bool)> {
        let process = self.known.get_mut(&pid)?;
        let is_renamed = process.name != name;
        name.clone_into(&mut process.name);
        Some((process.of, is_renamed))
    }

    /// Number of execs so far.
    pub(super) fn programs_begun(&self) -> u64 {
        self.programs_begun
    }

    /// Removes an ended process; returns its index.
    pub(super) fn end(&mut self, pid: u32) -> Option<ProcessIndex> {
        Some(self.known.remove(&pid)?.of)
    }

    /// The program of which a thread represents unsampled processes: if it is the first thread of a process that
    /// the target started.
    pub(super) fn represented_program(&self, pid: u32, id: ThreadId) -> Option<&str> {
        let process = self.known.get(&pid)?;
        (process.of != FIRST && id.0 == u64::from(pid)).then_some(&*process.name)
    }

    // ---- clocks

    /// Begins the balance of all initial processes, after their threads were polled: CPU time used in between
    /// would otherwise be attributed to unknown threads.
    pub(super) fn begin_balances(&mut self, mut clock_ns: impl FnMut(u32) -> Option<u64>) {
        for (pid, process) in &mut self.known {
            process.cpu = CpuBalance::new(clock_ns(*pid));
        }
    }

    /// Current CPU clocks of all processes.
    pub(super) fn clocks_ns(&self, mut clock_ns: impl FnMut(u32) -> Option<u64>) -> HashMap<u32, u64> {
        self.known.keys().filter_map(|pid| Some((*pid, clock_ns(*pid)?))).collect()
    }

    /// Records the CPU time of an ended thread.
    pub(super) fn thread_ended(&mut self, pid: u32, used_ns: u64) {
        if let Some(process) = self.known.get_mut(&pid) {
            process.cpu.thread_ended(used_ns);
        }
    }

    /// CPU time of processes, by these clocks, beyond that of their threads and not yet reported; `alive_ns`: CPU
    /// time of the live threads.
    pub(super) fn take_unattributed_of_all_ns(
        &mut self,
        clocks_ns: &HashMap<u32, u64>,
        alive_ns: &HashMap<u32, u64>,
    ) -> u64 {
        let rest_ns = |(pid, process): (&u32, &mut TargetProcess)| {
            let alive_ns = alive_ns.get(pid).copied().unwrap_or(0);
            process.cpu.take_unattributed_ns(clocks_ns.get(pid).copied(), alive_ns)
        };
        self.known.iter_mut().map(rest_ns).sum()
    }

    /// CPU time of a process beyond that of its threads, which have all ended.
    pub(super) fn take_unattributed_of_ended_ns(&mut self, pid: u32, clock_ns: Option<u64>) -> u64 {
        self.known.get_mut(&pid).map_or(0, |process| process.cpu.take_unattributed_ns(clock_ns, 0))
    }
}

/// The observable process of the target with this pid.
pub(super) fn observed(target: &mut dyn Target, pid: u32) -> Option<&mut dyn Observed> {
    if pid == target.process().pid {
        return Some(target);
    }
    target.other(pid)
}

/// CPU clock of a process, and how much of it is accounted for.
#[derive(Debug, Default)]
struct CpuBalance {
    /// Its clock at the start of its recording; `None` if the source has none.
    first_ns: Option<u64>,
    /// CPU time of ended threads, and time already reported as lost.
    accounted_ns: u64,
}

impl CpuBalance {
    /// For a process with this clock at the start of its recording.
    fn new(first_ns: Option<u64>) -> CpuBalance {
        CpuBalance { first_ns, accounted_ns: 0 }
    }

    /// Records the CPU time of an ended thread.
    fn thread_ended(&mut self, used_ns: u64) {
        self.accounted_ns += used_ns;
    }

    /// CPU time beyond that of its threads up to this reading of its clock, and not yet reported; `alive_ns`: CPU
    /// time of the live threads.
    fn take_unattributed_ns(&mut self, clock_ns: Option<u64>, alive_ns: u64) -> u64 {
        let used_ns =
            clock_ns.zip(self.first_ns).map_or(0, |(now_ns, first_ns)| now_ns.saturating_sub(first_ns));
        let rest_ns = used_ns.saturating_sub(self.accounted_ns + alive_ns);
        self.accounted_ns += rest_ns;
        rest_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_no_thread_used_is_reported_once() {
        let mut balance = CpuBalance::new(Some(1_000));
        balance.thread_ended(300);
        assert_eq!(balance.take_unattributed_ns(Some(2_000), 500), 200);
        assert_eq!(balance.take_unattributed_ns(Some(2_000), 500), 0, "reported before");
        assert_eq!(balance.take_unattributed_ns(Some(2_900), 1_100), 300);
        // A thread's clock may be ahead of its process's.
        assert_eq!(balance.take_unattributed_ns(Some(2_950), 1_400), 0);
        assert_eq!(balance.take_unattributed_ns(None, 0), 0);
    }

    #[test]
    fn without_a_clock_nothing_is_reported() {
        let mut balance = CpuBalance::new(None);
        assert_eq!(balance.take_unattributed_ns(Some(5_000), 0), 0);
    }
}
