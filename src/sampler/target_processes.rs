//! The processes of a driven target: what their driver keeps of them.
//!
//! CPU time that a process used and none of its threads that are known is lost and counted: threads that cannot be stopped
//! (workers that the kernel makes for io_uring), and threads whose last figures nobody could read.

use hashbrown::HashMap;

use super::recorded_process::{FIRST, ProcessIndex, UNSAMPLED};
use crate::sources::{Observed, Process, Target, ThreadId};

/// Why samples of processes are lost that the recorder has no room for.
pub(super) const TOO_MANY: &str = "too many processes";

/// Why time of a process is lost that no thread used that is known.
pub(super) const BY_NO_KNOWN_THREAD: &str = "used by threads that could not be sampled";

/// A process of the target.
#[derive(Debug)]
struct TargetProcess {
    /// Its index in the recorder, once it was sampled.
    of: ProcessIndex,
    /// The name that its stacks are kept under.
    name: String,
    /// What it used beside its threads.
    cpu: CpuBalance,
}

/// The processes of the target that have not ended, by their numbers.
#[derive(Debug)]
pub(super) struct TargetProcesses {
    known: HashMap<u32, TargetProcess>,
    /// How often one of them turned into another program.
    programs_begun: u64,
}

impl TargetProcesses {
    /// The one that the recorder is made for.
    pub(super) fn new(first: &Process) -> TargetProcesses {
        let process = TargetProcess { of: FIRST, name: first.name.clone(), cpu: CpuBalance::default() };
        TargetProcesses { known: HashMap::from([(first.pid, process)]), programs_begun: 0 }
    }

    /// Adds a process, unless it is known: of one that is not found running the clock begins with the recording. Its
    /// index in the recorder, and whether it is new.
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

    /// A process is sampled: `add` takes it into the recorder under its name, unless that knows it. `None` where there
    /// is no room.
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

    /// One of them turned into another program.
    pub(super) fn note_exec(&mut self) {
        self.programs_begun += 1;
    }

    /// A process runs a program of this name from now on: its index, and whether the name is another one.
    pub(super) fn begin_program(&mut self, pid: u32, name: &str) -> Option<(ProcessIndex, bool)> {
        let process = self.known.get_mut(&pid)?;
        let is_renamed = process.name != name;
        name.clone_into(&mut process.name);
        Some((process.of, is_renamed))
    }

    /// How often one of them turned into another program.
    pub(super) fn programs_begun(&self) -> u64 {
        self.programs_begun
    }

    /// A process has ended; its index.
    pub(super) fn end(&mut self, pid: u32) -> Option<ProcessIndex> {
        Some(self.known.remove(&pid)?.of)
    }

    /// The program of which a thread stands for others: of the first thread of a process that the target started.
    pub(super) fn stands_for(&self, pid: u32, id: ThreadId) -> Option<&str> {
        let process = self.known.get(&pid)?;
        (process.of != FIRST && id.0 == u64::from(pid)).then_some(&*process.name)
    }

    // ---- clocks

    /// Begins the balance of all processes that were found. After their threads were polled: what is used between
    /// would be taken for that of others.
    pub(super) fn begin_balances(&mut self, mut clock_ns: impl FnMut(u32) -> Option<u64>) {
        for (pid, process) in &mut self.known {
            process.cpu = CpuBalance::new(clock_ns(*pid));
        }
    }

    /// The clocks of all processes now.
    pub(super) fn clocks_ns(&self, mut clock_ns: impl FnMut(u32) -> Option<u64>) -> HashMap<u32, u64> {
        self.known.keys().filter_map(|pid| Some((*pid, clock_ns(*pid)?))).collect()
    }

    /// A thread of a process has ended that used so much.
    pub(super) fn thread_ended(&mut self, pid: u32, used_ns: u64) {
        if let Some(process) = self.known.get_mut(&pid) {
            process.cpu.thread_ended(used_ns);
        }
    }

    /// What processes used by these clocks beside their threads, and was not reported before; `alive_ns`: what those
    /// threads used that have not ended.
    pub(super) fn take_rests_ns(
        &mut self,
        clocks_ns: &HashMap<u32, u64>,
        alive_ns: &HashMap<u32, u64>,
    ) -> u64 {
        let rest_ns = |(pid, process): (&u32, &mut TargetProcess)| {
            let alive_ns = alive_ns.get(pid).copied().unwrap_or(0);
            process.cpu.take_rest_ns(clocks_ns.get(pid).copied(), alive_ns)
        };
        self.known.iter_mut().map(rest_ns).sum()
    }

    /// What one process used beside its threads, which have ended.
    pub(super) fn take_rest_of_ended_ns(&mut self, pid: u32, clock_ns: Option<u64>) -> u64 {
        self.known.get_mut(&pid).map_or(0, |process| process.cpu.take_rest_ns(clock_ns, 0))
    }
}

/// What can be asked of a process of the target.
pub(super) fn observed(target: &mut dyn Target, pid: u32) -> Option<&mut dyn Observed> {
    if pid == target.process().pid {
        return Some(target);
    }
    target.other(pid)
}

/// What a process used by its clock, and what of that is accounted for.
#[derive(Debug, Default)]
struct CpuBalance {
    /// Its clock when its recording began; `None` where the source has no such clock.
    first_ns: Option<u64>,
    /// What threads used that have ended, and what was lost here.
    accounted_ns: u64,
}

impl CpuBalance {
    /// Of a process whose clock was at this when its recording began.
    fn new(first_ns: Option<u64>) -> CpuBalance {
        CpuBalance { first_ns, accounted_ns: 0 }
    }

    /// A thread of it has ended that used so much.
    fn thread_ended(&mut self, used_ns: u64) {
        self.accounted_ns += used_ns;
    }

    /// What was used beside its threads up to this moment of its clock, and was not reported before; `alive_ns`: what those
    /// threads used that have not ended.
    fn take_rest_ns(&mut self, clock_ns: Option<u64>, alive_ns: u64) -> u64 {
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
    fn what_no_thread_used_is_reported_once() {
        let mut balance = CpuBalance::new(Some(1_000));
        balance.thread_ended(300);
        assert_eq!(balance.take_rest_ns(Some(2_000), 500), 200);
        assert_eq!(balance.take_rest_ns(Some(2_000), 500), 0, "reported before");
        assert_eq!(balance.take_rest_ns(Some(2_900), 1_100), 300);
        // The clock of a thread may be ahead of that of its process.
        assert_eq!(balance.take_rest_ns(Some(2_950), 1_400), 0);
        assert_eq!(balance.take_rest_ns(None, 0), 0);
    }

    #[test]
    fn without_a_clock_nothing_is_known() {
        let mut balance = CpuBalance::new(None);
        assert_eq!(balance.take_rest_ns(Some(5_000), 0), 0);
    }
}
