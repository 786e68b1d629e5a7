//! Threads and processes of a target that is driven by stops, from first sight to end, and the resulting profile.
//!
//! The recorder knows a process from its first sample on: most processes shorter than a tick have none.

use hashbrown::HashMap;

use super::super::deferred_samples::{DueSamples, Rewalk};
use super::super::recorded_process::FIRST;
use super::super::target_processes::{BY_NO_KNOWN_THREAD, observed};
use super::super::thread::unknown_status;
use super::{StopDriver, StopState};
use crate::addr::Avma;
use crate::recording::Recording;
use crate::recording::timeline::EventKind;
use crate::sources::{ThreadId, ThreadStatus};

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
    /// [`UnsampledTime`]: super::super::unsampled_time::UnsampledTime
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
    pub(in super::super) fn finish(mut self) -> Recording {
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
