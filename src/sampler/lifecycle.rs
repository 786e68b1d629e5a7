//! Threads and processes of a driven target from their first sight to their end, and the profile
//! that is left of all.
//!
//! A process is known to the recorder from its first sample on: of the many that live for less than
//! a tick most have none.

use super::deferred::{DueSamples, Rewalk};
use super::process_cpu::BY_NO_KNOWN_THREAD;
use super::recorded_process::{FIRST, UNSAMPLED};
use super::stops::{StopDriver, StopState};
use super::target_process::{CpuBalance, TargetProcess, observed};
use super::thread::unknown_status;
use crate::addr::Avma;
use crate::recording::Profile;
use crate::recording::timeline::EventKind;
use crate::sources::{ThreadId, ThreadStatus};

/// The last polls of threads and their names take this long at most, nanoseconds.
const LAST_POLLS_NS: u64 = 20_000_000;

const SECOND_NS: u64 = 1_000_000_000;

/// Of a program so much that no sample stood for is kept for first samples that lack something, in
/// periods of the rate: it varies by the root of the number of processes that run at a time.
const KEPT_PERIODS: u64 = 8;

/// Programs of which is remembered what their processes used and no sample stood for.
const PROGRAMS_MAX: usize = 4096;

/// Why time is lost of threads that came and went.
const ENDED: &str = "thread ended before its next sample";

impl StopDriver<'_> {
    // ---- threads

    /// Takes in the threads that the target has from the beginning.
    pub(super) fn add_threads(&mut self) {
        let mut threads = Vec::new();
        self.target.threads(&mut threads);
        for (id, stack_top) in threads {
            // Before the start nothing is lost yet.
            if self.live.shall_stop() {
                return;
            }
            let status = self.target.poll(id);
            self.add_thread(id, stack_top, status.unwrap_or_else(|_| unknown_status()), true);
        }
        self.begin_balances();
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
        let stats = &mut self.recorder.stats;
        let known = self.known.entry(pid).or_insert_with(|| {
            stats.processes_seen += 1;
            // Of one that is not found running the clock begins with the recording.
            TargetProcess {
                of: UNSAMPLED,
                name: process.process().name.clone(),
                cpu: CpuBalance::new(Some(0)),
            }
        });
        self.threads.insert(id, StopState::new(pid));
        self.recorder.add_thread(known.of, process, id, stack_top, status, preexisting);
    }

    pub(super) fn remove_thread(&mut self, id: ThreadId, cpu_ns: Option<u64>) {
        self.walk_captured();
        let Some(state) = self.threads.remove(&id) else { return };
        self.walk_deferred(state.process, DueSamples::ThreadEnded(id));
        let before_ns = self.recorder.stats.target_cpu_ns;
        let program = self.stands_for(state.process, id).map(str::to_owned);
        let has_room = |program: &String| {
            self.unsampled_ns.len() < PROGRAMS_MAX || self.unsampled_ns.contains_key(program)
        };
        if let Some(program) = program.filter(has_room) {
            let unsampled_ns = self.recorder.leave_thread(id, cpu_ns);
            *self.unsampled_ns.entry(program).or_default() += unsampled_ns;
        } else {
            self.recorder.remove_thread(id, cpu_ns, ENDED);
        }
        self.note_ended(state.process, before_ns);
    }

    /// A thread of a process has left the account, which stood at this before.
    fn note_ended(&mut self, pid: u32, before_ns: u64) {
        let used_ns = self.recorder.stats.target_cpu_ns - before_ns;
        if let Some(known) = self.known.get_mut(&pid) {
            known.cpu.thread_ended(used_ns);
        }
    }

    /// Asks for the last name of a thread: many are named after they were sampled first.
    pub(super) fn rename(&mut self, id: ThreadId) {
        if let Some(pid) = self.threads.get(&id).map(|state| state.process)
            && let Some(process) = observed(self.target, pid)
        {
            self.recorder.rename(process, id);
        }
    }

    /// A thread runs another program from now on, alone in its process. If it was alone before, it is the
    /// same thread still: what it used since its last sample, and for the exec itself, its next one stands
    /// for, as between any two of them. Of several any may have come to have this number (ptrace(2),
    /// "execve(2) under ptrace"). Of wall-clock time each sample has its own.
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
        self.programs_begun += 1;
        self.begin_program(pid);
        self.add_thread(id, stack_top, status, false);
        if let Some(account) = self.recorder.threads.get_mut(&id) {
            account.add_unsampled(unsampled_ns);
        }
        self.read_program(pid);
    }

    /// The program of which a thread stands for others: of the first thread of a process that the
    /// target started. A process of a few milliseconds uses a large part of them after its last
    /// sample, if it has one at all: the first sample of others that run the same program stands for that.
    fn stands_for(&self, process: u32, id: ThreadId) -> Option<&str> {
        let known = self.known.get(&process)?;
        let does = !self.options.idle && known.of != FIRST && id.0 == u64::from(process);
        does.then_some(known.name.as_str())
    }

    /// A sample of a thread is about to be weighed. If it is the first of its process, it is given a
    /// part of what others used: what it lacks to the time between two ticks, so that a sample of a
    /// beginning weighs what one of any other moment does. On average that is what ends leave. Where
    /// threads are sampled less often, more is left, and given out, too.
    pub(super) fn add_unsampled(&mut self, id: ThreadId, status: Option<ThreadStatus>) {
        if self.unsampled_ns.is_empty() {
            return;
        }
        let account = self.recorder.threads.get(&id);
        let Some(used_ns) =
            account.zip(status).and_then(|(account, status)| account.used_unsampled_ns(status))
        else {
            return;
        };
        let Some(process) = self.threads.get(&id).map(|state| state.process) else { return };
        let Some(program) = self.stands_for(process, id).map(str::to_owned) else { return };
        if let Some(unsampled_ns) = self.unsampled_ns.get_mut(&program)
            && let Some(account) = self.recorder.threads.get_mut(&id)
        {
            let period_ns = SECOND_NS / u64::from(self.options.hz.max(1));
            let lacks_ns = self.interval_ns.saturating_sub(used_ns).min(*unsampled_ns);
            let surplus_ns = (*unsampled_ns - lacks_ns).saturating_sub(KEPT_PERIODS * period_ns);
            let given_ns = lacks_ns + surplus_ns / 2;
            *unsampled_ns -= given_ns;
            account.add_unsampled(given_ns);
        }
    }

    /// The threads of a process.
    pub(super) fn threads_of(&self, pid: u32) -> Vec<ThreadId> {
        let of_it = self.threads.iter().filter(|(_, state)| state.process == pid);
        of_it.map(|(id, _)| *id).collect()
    }

    // ---- processes

    /// A sample of a thread was taken: from now on the recorder knows its process, and images of a
    /// while ago are read again. False if there is no room for that.
    pub(super) fn place_thread(&mut self, pid: u32, id: ThreadId) -> bool {
        let Some(known) = self.known.get_mut(&pid) else { return false };
        if known.of == FIRST {
            return true;
        }
        if known.of == UNSAMPLED {
            let Some(of) = self.recorder.add_process(pid, &known.name) else { return false };
            known.of = of;
        }
        let Some(process) = observed(self.target, pid) else { return false };
        self.recorder.place_thread(known.of, process, id);
        self.recorder.refresh_images(known.of, process);
        true
    }

    /// A process runs another program from now on.
    pub(super) fn begin_program(&mut self, pid: u32) {
        let Some(process) = observed(self.target, pid) else { return };
        let Some(known) = self.known.get_mut(&pid) else { return };
        let name = &process.process().name;
        let renamed = (known.name != *name).then_some((pid, name.as_str()));
        self.recorder.note_event(EventKind::Exec, pid, name);
        self.recorder.begin_program(known.of, renamed);
        known.name.clone_from(name);
    }

    /// Reads the images of a new program: of the first process, which is certain to be sampled. Those
    /// of others are read when that is needed, with the libraries that are loaded by then.
    pub(super) fn read_program(&mut self, pid: u32) {
        match self.known.get(&pid).map(|known| known.of) {
            Some(FIRST) => {
                self.recorder.read_images(FIRST, self.target);
            }
            Some(of) => self.recorder.forget_images_read(of),
            None => {}
        }
    }

    /// Walks what is there of a process that is about to end: its images can still be read.
    pub(super) fn walk_all_deferred_of(&mut self, pid: u32) {
        let is_of_it = |id: &ThreadId| self.threads.get(id).is_some_and(|state| state.process == pid);
        if self.captured.iter().any(|sample| is_of_it(&sample.thread)) {
            self.walk_captured();
        }
        let Some(of) = self.known.get(&pid).map(|known| known.of) else { return };
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
        self.lose_rest_of_ended(pid);
        if let Some(known) = self.known.remove(&pid) {
            self.recorder.note_event(EventKind::ProcessEnd, pid, "");
            self.recorder.end_process(known.of);
        }
    }

    // ---- images

    /// Reads images of the first process, and of those that have deferred samples, where it is time.
    pub(super) fn refresh_images(&mut self) {
        self.recorder.refresh_images(FIRST, self.target);
        for pid in self.recorder.with_deferred() {
            if let Some(of) = self.known.get(&pid).map(|known| known.of)
                && of != FIRST
                && let Some(process) = observed(self.target, pid)
            {
                self.recorder.refresh_images(of, process);
            }
        }
    }

    /// Walks deferred samples of a process.
    pub(super) fn walk_deferred(&mut self, pid: u32, due: DueSamples) {
        let Some(known) = self.known.get(&pid) else { return };
        let Some(process) = observed(self.target, pid) else { return };
        let mut rewalk = Rewalk {
            stack_max_bytes: self.budget.stack_max_bytes(),
            frames: &mut self.frames,
            spare: &mut self.spare,
        };
        self.recorder.walk_deferred(known.of, process, due, &mut rewalk);
    }

    /// Walks deferred samples of all processes.
    pub(super) fn walk_all_deferred(&mut self, due: DueSamples) {
        for pid in self.recorder.with_deferred() {
            self.walk_deferred(pid, due);
        }
    }

    // ---- the end

    /// Closes all accounts.
    pub(super) fn finish(mut self) -> Profile {
        self.walk_captured();
        self.walk_all_deferred(DueSamples::All);
        if self.recorder.stats.duration_ns == 0 {
            self.recorder.stats.duration_ns = self.clock.now_ns() - self.start_ns;
        }
        self.recorder.timeline.close();
        let mut ids: Vec<ThreadId> = self.threads.keys().copied().collect();
        ids.sort_unstable();
        // Before the polls, which take time in which more is used.
        let clocks = self.process_clocks();
        let until_ns = self.clock.now_ns().saturating_add(LAST_POLLS_NS);
        let unsampled = if self.options.idle {
            "not sampled again before the end"
        } else {
            "used between polls, never seen running"
        };
        for id in ids {
            // Where calls are slow the last poll of each thread has to do.
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
        self.lose_rests(&clocks, BY_NO_KNOWN_THREAD);
        for unsampled_ns in self.unsampled_ns.values() {
            self.recorder.lose_since(ENDED, self.start_ns, *unsampled_ns);
        }
        self.recorder.finish(self.target)
    }
}
