//! Threads and processes of a target that is driven by stops, from first sight to end, and the resulting profile.
//!
//! `TargetProcesses` are the processes as the driver sees them; `CpuBalance` counts their CPU time that no known
//! thread used.
//!
//! The recorder knows a process from its first sample on: most processes shorter than a tick have none.

use hashbrown::HashMap;

use super::{StopDriver, StopState};
use crate::addr::Avma;
use crate::recording::Recording;
use crate::recording::timeline::EventKind;
use crate::sampler::captures::{DueSamples, Rewalk};
use crate::sampler::processes::{FIRST, ProcessIndex, UNSAMPLED};
use crate::sampler::recorder::unknown_status;
use crate::sources::{Observed, Process, Target, ThreadId, ThreadStatus};

/// Time limit for the final polls and names of threads, nanoseconds.
const LAST_POLLS_NS: u64 = 20_000_000;

/// Loss reason for short-lived threads.
const ENDED: &str = "thread ended before its next sample";

impl StopDriver<'_> {
    // ---- threads

    /// Adds the target's initial threads.
    pub(super) fn add_threads(&mut self) {
        let mut threads = Vec::new();
        self.target.threads(&mut threads);
        for (id, stack_top) in threads {
            // Before the start nothing is lost yet.
            if self.live.poll_stop() {
                return;
            }
            let status = self.target.poll(id);
            self.add_thread(id, stack_top, status.unwrap_or_else(|_| unknown_status()), true);
        }
        self.processes.begin_balances(|pid| self.target.process_cpu_ns(pid));
    }

    pub(super) fn add_thread(
        &mut self,
        id: ThreadId,
        stack_top: Option<Avma>,
        status: ThreadStatus,
        preexisting: bool,
    ) {
        let pid = self.target.process_of(id);
        let Some(process) = observed(self.target, pid) else { return };
        let (of, is_new) = self.processes.add(pid, &process.process().name);
        self.recorder.stats.processes_seen += u64::from(is_new);
        self.threads.insert(id, StopState::new(pid));
        self.recorder.add_thread(of, process, id, stack_top, status, preexisting);
    }

    pub(super) fn remove_thread(&mut self, id: ThreadId, cpu_ns: Option<u64>) {
        self.walk_captured();
        let Some(state) = self.threads.remove(&id) else { return };
        self.walk_deferred(state.process, DueSamples::ThreadEnded(id));
        let before_ns = self.recorder.stats.target_cpu_ns;
        let program = self
            .represented_program(state.process, id)
            .filter(|program| self.unsampled.has_room_for(program));
        if let Some(program) = program.map(str::to_owned) {
            self.unsampled.add(program, self.recorder.leave_thread(id, cpu_ns));
        } else {
            self.recorder.remove_thread(id, cpu_ns, ENDED);
        }
        self.note_ended(state.process, before_ns);
    }

    /// Credits its process with the time of a closed thread account; `before_ns`: recorded CPU time before
    /// closing.
    fn note_ended(&mut self, pid: u32, before_ns: u64) {
        self.processes.thread_ended(pid, self.recorder.stats.target_cpu_ns - before_ns);
    }

    /// Reads the last name of a thread: many are named after their first sample.
    pub(super) fn rename(&mut self, id: ThreadId) {
        if let Some(pid) = self.threads.get(&id).map(|state| state.process)
            && let Some(process) = observed(self.target, pid)
        {
            self.recorder.rename(process, id);
        }
    }

    /// Handles an exec by a thread, which is then alone in its process. If it was alone before, it is still the
    /// same thread: its next sample covers its usage since the last one, including the exec. With several threads,
    /// any of them may have taken this number (ptrace(2), "execve(2) under ptrace"). For wall-clock time, each
    /// thread's samples cover their own time.
    pub(super) fn exec_thread(&mut self, id: ThreadId, stack_top: Option<Avma>) {
        let pid = self.target.process_of(id);
        self.walk_captured();
        self.walk_deferred(pid, DueSamples::All);
        let status = self.target.poll(id).unwrap_or_else(|_| unknown_status());
        let threads = self.threads_of(pid);
        for other in threads.iter().filter(|other| **other != id) {
            self.remove_thread(*other, None);
        }
        let mut unsampled_ns = 0;
        if self.options.idle || threads.len() > 1 {
            self.remove_thread(id, Some(status.cpu_ns));
        } else {
            self.threads.remove(&id);
            let before_ns = self.recorder.stats.target_cpu_ns;
            unsampled_ns = self.recorder.leave_thread(id, Some(status.cpu_ns));
            self.note_ended(pid, before_ns);
        }
        self.processes.note_exec();
        self.begin_program(pid);
        self.add_thread(id, stack_top, status, false);
        if let Some(account) = self.recorder.account_mut(id) {
            account.clock.add_unsampled(unsampled_ns);
        }
        self.read_program(pid);
    }

    /// The program of which a thread represents unsampled processes ([`UnsampledTime`]), if CPU time is recorded.
    ///
    /// [`UnsampledTime`]: crate::sampler::thread_clock::UnsampledTime
    fn represented_program(&self, pid: u32, id: ThreadId) -> Option<&str> {
        self.processes.represented_program(pid, id).filter(|_| !self.options.idle)
    }

    /// Prepares a thread's sample for weighing. The first sample of a process gets a part of the unsampled time of
    /// others.
    pub(super) fn add_unsampled(&mut self, id: ThreadId, status: Option<ThreadStatus>) {
        if self.unsampled.is_empty() {
            return;
        }
        let clock = self.recorder.account(id).map(|account| &account.clock);
        let Some(used_ns) = clock.zip(status).and_then(|(clock, status)| clock.used_unsampled_ns(status))
        else {
            return;
        };
        let Some(pid) = self.threads.get(&id).map(|state| state.process) else { return };
        let Some(program) = self.represented_program(pid, id).map(str::to_owned) else { return };
        let given_ns = self.unsampled.take(&program, self.schedule.interval_ns(), used_ns);
        if let Some(account) = self.recorder.account_mut(id) {
            account.clock.add_unsampled(given_ns);
        }
    }

    /// The threads of a process.
    pub(super) fn threads_of(&self, pid: u32) -> Vec<ThreadId> {
        let of_it = self.threads.iter().filter(|(_, state)| state.process == pid);
        of_it.map(|(id, _)| *id).collect()
    }

    // ---- processes

    /// Prepares for a sample of a thread: makes its process known to the recorder and refreshes outdated images.
    /// Returns false if there is no room.
    pub(super) fn place_thread(&mut self, pid: u32, id: ThreadId) -> bool {
        let recorder = &mut self.recorder;
        let Some(of) = self.processes.place(pid, |name| recorder.add_process(pid, name)) else {
            return false;
        };
        if of == FIRST {
            return true;
        }
        let Some(process) = observed(self.target, pid) else { return false };
        recorder.place_thread(of, process, id);
        recorder.refresh_images(of, process);
        true
    }

    /// Handles an exec of a process.
    pub(super) fn begin_program(&mut self, pid: u32) {
        let Some(process) = observed(self.target, pid) else { return };
        let name = &process.process().name;
        let Some((of, is_renamed)) = self.processes.begin_program(pid, name) else { return };
        self.recorder.note_event(EventKind::Exec, pid, name);
        self.recorder.begin_program(of, is_renamed.then_some((pid, name)));
    }

    /// Reads the images of a new program if it runs in the first process, which is certain to be sampled. Those of
    /// others are read when needed, with the libraries loaded by then.
    pub(super) fn read_program(&mut self, pid: u32) {
        match self.processes.index(pid) {
            Some(FIRST) => {
                self.recorder.read_images(FIRST, self.target);
            }
            Some(of) => self.recorder.forget_images_read(of),
            None => {}
        }
    }

    /// Walks all samples of a process that is about to end: its images can still be read.
    pub(super) fn walk_all_deferred_of(&mut self, pid: u32) {
        let is_of_it = |id: &ThreadId| self.threads.get(id).is_some_and(|state| state.process == pid);
        if self.captures.samples().iter().any(|sample| is_of_it(&sample.thread)) {
            self.walk_captured();
        }
        let Some(of) = self.processes.index(pid) else { return };
        if self.recorder.has_deferred(of)
            && let Some(process) = observed(self.target, pid)
        {
            self.recorder.read_images(of, process);
            self.walk_deferred(pid, DueSamples::All);
        }
    }

    pub(super) fn end_process(&mut self, pid: u32) {
        self.walk_captured();
        self.walk_deferred(pid, DueSamples::All);
        self.lose_unattributed_of_ended(pid);
        if let Some(of) = self.processes.end(pid) {
            self.recorder.note_event(EventKind::ProcessEnd, pid, "");
            self.recorder.end_process(of);
        }
    }

    // ---- clocks of processes

    /// Current CPU clocks of all processes.
    pub(super) fn process_clocks(&mut self) -> HashMap<u32, u64> {
        self.processes.clocks_ns(|pid| self.target.process_cpu_ns(pid))
    }

    /// Counts CPU time of processes, by these clocks, beyond that of their threads as lost for this reason.
    pub(super) fn lose_unattributed_of_all(&mut self, clocks_ns: &HashMap<u32, u64>, reason: &'static str) {
        let mut alive_ns: HashMap<u32, u64> = HashMap::new();
        for (id, state) in &self.threads {
            let used_ns = self.recorder.account(*id).map_or(0, |account| account.clock.used_cpu_ns());
            *alive_ns.entry(state.process).or_default() += used_ns;
        }
        let rest_ns = self.processes.take_unattributed_of_all_ns(clocks_ns, &alive_ns);
        self.lose_unattributed(reason, rest_ns);
    }

    /// Counts CPU time of an ended process beyond that of its threads as lost.
    fn lose_unattributed_of_ended(&mut self, pid: u32) {
        let clock_ns = self.target.process_cpu_ns(pid);
        let rest_ns = self.processes.take_unattributed_of_ended_ns(pid, clock_ns);
        self.lose_unattributed(BY_NO_KNOWN_THREAD, rest_ns);
    }

    fn lose_unattributed(&mut self, reason: &'static str, rest_ns: u64) {
        self.recorder.stats.target_cpu_ns += rest_ns;
        // Wall-clock time covers known threads only.
        if !self.options.idle {
            self.recorder.lose_since(reason, self.schedule.start_ns(), rest_ns);
        }
    }

    // ---- images

    /// Reads images of the first process, and of those with deferred samples, if due.
    pub(super) fn refresh_images(&mut self) {
        self.recorder.refresh_images(FIRST, self.target);
        for pid in self.recorder.with_deferred() {
            if let Some(of) = self.processes.index(pid)
                && of != FIRST
                && let Some(process) = observed(self.target, pid)
            {
                self.recorder.refresh_images(of, process);
            }
        }
    }

    /// Walks deferred samples of a process.
    pub(super) fn walk_deferred(&mut self, pid: u32, due: DueSamples) {
        let Some(of) = self.processes.index(pid) else { return };
        let Some(process) = observed(self.target, pid) else { return };
        let mut rewalk = Rewalk {
            stack_max_bytes: self.budget.stack_max_bytes(),
            frames: &mut self.frames,
            spare: self.captures.spare(),
        };
        self.recorder.walk_deferred(of, process, due, &mut rewalk);
    }

    /// Walks deferred samples of all processes.
    pub(super) fn walk_all_deferred(&mut self, due: DueSamples) {
        for pid in self.recorder.with_deferred() {
            self.walk_deferred(pid, due);
        }
    }

    // ---- the end

    /// Closes all accounts.
    pub(crate) fn finish(mut self) -> Recording {
        self.walk_captured();
        self.walk_all_deferred(DueSamples::All);
        if self.recorder.stats.duration_ns == 0 {
            self.recorder.stats.duration_ns = self.clock.now_ns() - self.schedule.start_ns();
        }
        self.recorder.close_times();
        let mut ids: Vec<ThreadId> = self.threads.keys().copied().collect();
        ids.sort_unstable();
        // Before the polls, during which more time is used.
        let clocks = self.process_clocks();
        let until_ns = self.clock.now_ns().saturating_add(LAST_POLLS_NS);
        let unsampled = if self.options.idle {
            "not sampled again before the end"
        } else {
            "used between polls, never seen running"
        };
        for id in ids {
            // If calls are slow, the last poll of each thread must do.
            let has_time = self.clock.now_ns() < until_ns;
            let status = if has_time { self.target.poll(id).ok() } else { None };
            if has_time {
                self.rename(id);
            }
            let before_ns = self.recorder.stats.target_cpu_ns;
            self.recorder.remove_thread(id, status.map(|status| status.cpu_ns), unsampled);
            if let Some(state) = self.threads.remove(&id) {
                self.note_ended(state.process, before_ns);
            }
        }
        self.lose_unattributed_of_all(&clocks, BY_NO_KNOWN_THREAD);
        for unsampled_ns in self.unsampled.left_ns() {
            self.recorder.lose_since(ENDED, self.schedule.start_ns(), unsampled_ns);
        }
        self.recorder.finish(self.target)
    }
}

// ---- The processes of a target that is driven by stops, as the driver sees them.
//
// CPU time of a process that none of its known threads used is lost and counted: threads that cannot be stopped
// (io_uring workers of the kernel), and threads with unreadable final CPU times.

/// Loss reason for samples of processes that do not fit into the recorder.
pub(crate) const TOO_MANY: &str = "too many processes";

/// Loss reason for CPU time that no known thread used.
pub(crate) const BY_NO_KNOWN_THREAD: &str = "used by threads that could not be sampled";

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
pub(crate) struct TargetProcesses {
    known: HashMap<u32, TargetProcess>,
    /// Number of execs so far.
    programs_begun: u64,
}

impl TargetProcesses {
    /// With the process that the recorder is created with.
    pub(crate) fn new(first: &Process) -> TargetProcesses {
        let process = TargetProcess { of: FIRST, name: first.name.clone(), cpu: CpuBalance::default() };
        TargetProcesses { known: HashMap::from([(first.pid, process)]), programs_begun: 0 }
    }

    /// Adds a process, unless known: the clock of a new one begins with the recording. Returns its index in the
    /// recorder, and whether it is new.
    pub(crate) fn add(&mut self, pid: u32, name: &str) -> (ProcessIndex, bool) {
        let mut is_new = false;
        let process = self.known.entry(pid).or_insert_with(|| {
            is_new = true;
            TargetProcess { of: UNSAMPLED, name: name.to_owned(), cpu: CpuBalance::new(Some(0)) }
        });
        (process.of, is_new)
    }

    /// The index of a process in the recorder; [`UNSAMPLED`] before its first sample.
    pub(crate) fn index(&self, pid: u32) -> Option<ProcessIndex> {
        Some(self.known.get(&pid)?.of)
    }

    /// Makes a sampled process known: `add` adds it to the recorder under its name, unless already done. `None` if
    /// there is no room.
    pub(crate) fn place(
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
    pub(crate) fn note_exec(&mut self) {
        self.programs_begun += 1;
    }

    /// Handles an exec to a program of this name. Returns the process's index, and whether the name changed.
    pub(crate) fn begin_program(&mut self, pid: u32, name: &str) -> Option<(ProcessIndex, bool)> {
        let process = self.known.get_mut(&pid)?;
        let is_renamed = process.name != name;
        name.clone_into(&mut process.name);
        Some((process.of, is_renamed))
    }

    /// Number of execs so far.
    pub(crate) fn programs_begun(&self) -> u64 {
        self.programs_begun
    }

    /// Removes an ended process; returns its index.
    pub(crate) fn end(&mut self, pid: u32) -> Option<ProcessIndex> {
        Some(self.known.remove(&pid)?.of)
    }

    /// The program of which a thread represents unsampled processes: if it is the first thread of a process that
    /// the target started.
    pub(crate) fn represented_program(&self, pid: u32, id: ThreadId) -> Option<&str> {
        let process = self.known.get(&pid)?;
        (process.of != FIRST && id.0 == u64::from(pid)).then_some(&*process.name)
    }

    // ---- clocks

    /// Begins the balance of all initial processes, after their threads were polled: CPU time used in between
    /// would otherwise be attributed to unknown threads.
    pub(crate) fn begin_balances(&mut self, mut clock_ns: impl FnMut(u32) -> Option<u64>) {
        for (pid, process) in &mut self.known {
            process.cpu = CpuBalance::new(clock_ns(*pid));
        }
    }

    /// Current CPU clocks of all processes.
    pub(crate) fn clocks_ns(&self, mut clock_ns: impl FnMut(u32) -> Option<u64>) -> HashMap<u32, u64> {
        self.known.keys().filter_map(|pid| Some((*pid, clock_ns(*pid)?))).collect()
    }

    /// Records the CPU time of an ended thread.
    pub(crate) fn thread_ended(&mut self, pid: u32, used_ns: u64) {
        if let Some(process) = self.known.get_mut(&pid) {
            process.cpu.thread_ended(used_ns);
        }
    }

    /// CPU time of processes, by these clocks, beyond that of their threads and not yet reported; `alive_ns`: CPU
    /// time of the live threads.
    pub(crate) fn take_unattributed_of_all_ns(
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
    pub(crate) fn take_unattributed_of_ended_ns(&mut self, pid: u32, clock_ns: Option<u64>) -> u64 {
        self.known.get_mut(&pid).map_or(0, |process| process.cpu.take_unattributed_ns(clock_ns, 0))
    }
}

/// The observable process of the target with this pid.
pub(crate) fn observed(target: &mut dyn Target, pid: u32) -> Option<&mut dyn Observed> {
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
mod target_processes_tests {
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
