//! The tracer (`LinuxTarget`): waits for stops and exits of threads, hands each to those who know the thread, and
//! is what the sampler calls. Input: ptrace stops. Output: events, captures. `EventQueue` has events not yet
//! requested, `RecordingEnd` says what ends a recording.
//!
//! An exited thread stays a zombie until it is reaped here; then its real parent is notified, as without a tracer.

use std::collections::VecDeque;
use std::fs;
use std::marker::PhantomData;
use std::sync::Arc;

use hashbrown::HashSet;
use libc::{c_int, pid_t};

use super::on_cpu::TracerCpu;
use super::registers::Block;
use super::seize::{self, FilterChecks, is_filtered};
use super::stop::{Resume, StopRequest, StopRequests, StoppedThread};
use super::sys::{self, Tracer};
use super::timed_wait::{RestartedWaits, SYSCALL_STOP};
use super::tracees::{NewThread, TracedThread, Tracees, thread_id, tid_of};
use crate::addr::Avma;
use crate::clock::{Clock, RealClock};
use crate::sources::linux::files::FilePages;
use crate::sources::linux::sys::{WaitStatus, child_end};
use crate::sources::linux::{launch, proc};
use crate::sources::{
    CallThread, Capture, ExitStatus, Fault, Observed, Process, SleepingThread, StopOutcome, Target,
    TargetEvent, ThreadId, ThreadStatus,
};

/// How long to wait for requested stops that are no longer needed.
const RELEASE_NS: u64 = 2_000_000;
/// Time for threads to stop before they are detached one by one, nanoseconds.
const DETACH_NS: u64 = 50_000_000;

/// Processes traced with ptrace. Bound to the thread that created it.
#[derive(Debug)]
pub struct LinuxTarget {
    tracees: Tracees,
    requests: StopRequests,
    waits: RestartedWaits,
    filters: FilterChecks,
    end: RecordingEnd,
    events: EventQueue,
    /// Registers of the thread that stopped last.
    registers: Block,
    tracer_cpu: TracerCpu,
    file_pages: FilePages,
    clock: RealClock,
    tracer: Option<Arc<Tracer>>,
    not_send: PhantomData<*const ()>,
}

impl LinuxTarget {
    pub(super) fn new(tracees: Tracees, end: RecordingEnd, clock: RealClock) -> LinuxTarget {
        LinuxTarget {
            tracees,
            requests: StopRequests::default(),
            waits: RestartedWaits::default(),
            filters: FilterChecks::default(),
            end,
            events: EventQueue::default(),
            registers: Block::new(),
            tracer_cpu: TracerCpu::new(),
            file_pages: FilePages::default(),
            clock,
            tracer: None,
            not_send: PhantomData,
        }
    }

    /// Sets the reason why the process is traced rather than sampled by the kernel.
    pub(crate) fn chosen_because(&mut self, why: String) {
        self.tracees.chosen_because(why);
    }

    /// Sets the thread for this target's calls, which can exit and be replaced.
    pub(crate) fn set_tracer(&mut self, tracer: Arc<Tracer>) {
        self.tracer = Some(tracer);
    }

    /// Sets the description of the launched command once it runs.
    pub(super) fn set_spawned(&mut self, process: Process) {
        self.tracees.main_mut().set_process(process);
        self.end.set_running();
    }

    fn next_event(&mut self, until_ns: u64, capture: &mut Capture) -> Result<TargetEvent, Fault> {
        self.events.continue_exiting();
        if self.requests.is_empty() && !self.events.holds_thread() {
            self.file_pages.bound_at_intervals(self.clock.now_ns());
        }
        // Pending events may refer to them.
        if self.events.is_empty() {
            self.tracees.drop_exited();
        }
        loop {
            if let Some(event) = self.events.pop() {
                return Ok(event);
            }
            if self.end.has_ended() {
                return Err(Fault::Gone);
            }
            if let Some(command) = self.end.command() {
                launch::forward_signal(command);
            }
            if self.requests.is_empty() {
                self.filters.check(self.clock.now_ns(), &self.tracees);
            }
            self.filters.result()?;
            let before_ns = self.clock.now_ns();
            match sys::peek_stopped() {
                Ok(Some(WaitStatus::Stopped { tid, signal, event })) => {
                    if let Some(event) = self.stopped(tid, signal, event, capture) {
                        return Ok(event);
                    }
                    // A target that receives signals all the time must not keep the sampler from its ticks.
                    if before_ns >= until_ns {
                        return Ok(TargetEvent::Timeout);
                    }
                    continue;
                }
                Ok(_) if self.requests.polls_at(before_ns) => {
                    std::hint::spin_loop();
                    continue;
                }
                // An error means that only exited threads are left.
                Ok(_) | Err(_) => {}
            }
            match sys::peek_exited() {
                Ok(Some(how)) => {
                    self.thread_exited(how);
                    continue;
                }
                Ok(_) => {}
                // Nothing is traced any more.
                Err(_) => {
                    self.end.end();
                    self.events.push(TargetEvent::Exited(ExitStatus::Unknown));
                    continue;
                }
            }
            if before_ns >= until_ns {
                return Ok(TargetEvent::Timeout);
            }
            let until_ns = until_ns.min(self.waits.end_expired(&self.clock));
            self.tracer_cpu.sleep(until_ns.saturating_sub(before_ns), &self.clock);
        }
    }

    /// Handles a stop; returns an event for the sampler, if any.
    fn stopped(
        &mut self,
        tid: pid_t,
        signal: c_int,
        event: c_int,
        capture: &mut Capture,
    ) -> Option<TargetEvent> {
        match event {
            0 if signal == SYSCALL_STOP => {
                let (mut stopped, thread) = (StoppedThread::new(tid), self.tracees.thread_mut(tid));
                self.waits.pass_call(&mut stopped, thread, &mut self.registers, &self.clock);
                None
            }
            // A signal for the target, to be delivered.
            0 => self.collect_if_requested(StoppedThread::with_signal(tid, signal), capture),
            libc::PTRACE_EVENT_STOP => {
                let by_job_control = signal != libc::SIGTRAP;
                let stopped = match by_job_control {
                    true => StoppedThread::by_job_control(tid),
                    false => StoppedThread::new(tid),
                };
                if self.tracees.thread(tid).is_none() {
                    self.new_thread(stopped)
                } else if by_job_control {
                    self.collect_job_stop(stopped, capture)
                } else {
                    self.collect_if_requested(stopped, capture)
                }
            }
            libc::PTRACE_EVENT_EXEC => {
                let _ = sys::take_stop(tid);
                self.exec(StoppedThread::new(tid))
            }
            libc::PTRACE_EVENT_EXIT => self.collect_exit_stop(StoppedThread::new(tid), capture),
            // PTRACE_EVENT_CLONE, _FORK and _VFORK: the new thread or process reports itself.
            _ => {
                if let Some(new) = sys::event_message(tid).ok().and_then(|new| pid_t::try_from(new).ok()) {
                    self.tracees.announce(tid, new);
                }
                self.collect_if_requested(StoppedThread::new(tid), capture)
            }
        }
    }

    /// Captures a thread with a stop request, whatever made it stop: any stop clears the request
    /// (kernel/signal.c, ptrace_stop). Continues any other thread.
    fn collect_if_requested(
        &mut self,
        mut stopped: StoppedThread,
        capture: &mut Capture,
    ) -> Option<TargetEvent> {
        let tid = stopped.tid();
        let Some(request) = self.requests.take(tid) else {
            self.deliver_signal(stopped);
            return None;
        };
        let seen_ns = self.clock.now_ns();
        let outcome = self.read(tid, &request, seen_ns, capture);
        if !matches!(outcome, StopOutcome::Unreadable(_)) {
            let asked = stopped.signal() == 0;
            self.repair(&mut stopped, asked);
        }
        drop(stopped);
        request.finish(&self.tracer_cpu, seen_ns, self.clock.now_ns(), capture);
        Some(TargetEvent::Stopped { thread: thread_id(tid), outcome })
    }

    /// Captures a thread that a stop signal such as SIGSTOP has stopped until SIGCONT. Changes nothing in it: this
    /// profiler did not interrupt its call.
    fn collect_job_stop(&mut self, stopped: StoppedThread, capture: &mut Capture) -> Option<TargetEvent> {
        let tid = stopped.tid();
        if let Some(thread) = self.tracees.thread_mut(tid) {
            thread.enter_job_stop();
        }
        self.waits.cancel(tid);
        let request = self.requests.take(tid)?;
        capture.reset();
        let outcome = match request.keeps_waiting() {
            true => self.read(tid, &request, self.clock.now_ns(), capture),
            false => StopOutcome::Unreadable("stopped by job control"),
        };
        Some(TargetEvent::Stopped { thread: thread_id(tid), outcome })
    }

    /// Handles an exiting thread. If it is the first one, usually the whole process exits: its memory is
    /// readable while this thread stays stopped, until the sampler polls again.
    fn collect_exit_stop(&mut self, stopped: StoppedThread, capture: &mut Capture) -> Option<TargetEvent> {
        let tid = stopped.tid();
        if self.tracees.process(tid).is_none() {
            return self.collect_if_requested(stopped, capture);
        }
        let event = self.requests.take(tid).map(|request| {
            let seen_ns = self.clock.now_ns();
            let outcome = self.read(tid, &request, seen_ns, capture);
            request.finish(&self.tracer_cpu, seen_ns, self.clock.now_ns(), capture);
            TargetEvent::Stopped { thread: thread_id(tid), outcome }
        });
        self.events.push_exiting(stopped);
        event.or_else(|| self.events.pop())
    }

    fn read(
        &mut self,
        tid: pid_t,
        request: &StopRequest,
        seen_ns: u64,
        capture: &mut Capture,
    ) -> StopOutcome {
        let Some((thread, process)) = self.tracees.thread_of_process(tid) else {
            return StopOutcome::Unreadable("killed while stopped");
        };
        let (registers, tracer_cpu) = (&mut self.registers, &self.tracer_cpu);
        request.read(thread, process.is_of_32_bits(), registers, tracer_cpu, seen_ns, capture)
    }

    /// Delivers a signal, or lets a stop by job control end. The kernel wakes a traced thread even for a
    /// signal that its process ignores, SIGCONT among them, so a call that fails with EINTR is then repaired
    /// as after our own stops.
    fn deliver_signal(&mut self, mut stopped: StoppedThread) {
        let tid = stopped.tid();
        // Job control interrupted that call, as it would without a tracer.
        let of_job_control =
            stopped.signal() == 0 && self.tracees.thread_mut(tid).is_some_and(TracedThread::leave_job_stop);
        if !of_job_control && self.registers.read(tid).is_ok() {
            self.repair(&mut stopped, false);
        }
    }

    fn repair(&mut self, stopped: &mut StoppedThread, asked: bool) {
        if let Some(thread) = self.tracees.thread_mut(stopped.tid()) {
            self.waits.repair(stopped, thread, &mut self.registers, asked, &self.clock);
        }
    }

    /// Handles a thread that the kernel attached, before its first instruction.
    fn new_thread(&mut self, stopped: StoppedThread) -> Option<TargetEvent> {
        let tid = stopped.tid();
        if self.filters.forbid(tid) {
            stopped.keep_stopped();
            return None;
        }
        let read = self.registers.read(tid).is_ok();
        let sp = self.registers.convert().filter(|_| read).map(|registers| registers.sp());
        // With children the thread is released here: after an exit it can be polled until it is reaped.
        // Otherwise it stays stopped, because it may have to be detached.
        let stopped = Some(stopped).filter(|_| !self.tracees.traces_children());
        match self.tracees.adopt_new(tid, sp) {
            NewThread::Traced(stack_top) => {
                Some(TargetEvent::ThreadStarted { thread: thread_id(tid), stack_top })
            }
            NewThread::Foreign => {
                // A process made by clone() with an exit signal other than SIGCHLD: not ours.
                if let Some(mut stopped) = stopped {
                    stopped.set_resume(Resume::Detach);
                }
                None
            }
            NewThread::Unknown => None,
        }
    }

    /// Handles `exec`.
    fn exec(&mut self, stopped: StoppedThread) -> Option<TargetEvent> {
        let pid = stopped.tid();
        let (before, stack_top) = self.tracees.exec(pid)?;
        for tid in before {
            self.forget_thread(tid);
        }
        Some(TargetEvent::Exec { thread: thread_id(pid), stack_top })
    }

    /// Handles the exit of a thread: reads its last counters before it is released.
    fn thread_exited(&mut self, how: WaitStatus) {
        let Some(status) = how.exit_status() else { return };
        let tid = how.tid();
        let cpu_ns = self.tracees.thread_exited(tid);
        self.forget_thread(tid);
        // A launched process is our child, too: once reaped, it counts in our children's CPU times
        // (getrusage(2)). If its `exec` failed, `Command::spawn` waits for it and panics if it was reaped
        // here.
        if !self.end.is_spawning(tid) {
            let _ = sys::reap(tid);
        }
        self.events.push(TargetEvent::ThreadExited { thread: thread_id(tid), cpu_ns });
        self.process_exited(tid, status);
    }

    /// Handles the exit of a known process, reported with its first thread, which exits last.
    fn process_exited(&mut self, pid: pid_t, status: ExitStatus) {
        // All its threads have exited: a process ends with its last thread.
        let Some(others) = self.tracees.process_exited(pid) else { return };
        for tid in others {
            self.forget_thread(tid);
            self.events.push(TargetEvent::ThreadExited { thread: thread_id(tid), cpu_ns: None });
        }
        if self.end.process_exited(pid) {
            // Others may continue.
            return self.events.push(TargetEvent::Exited(status));
        }
        self.events.push(TargetEvent::ProcessEnded { process: pid.unsigned_abs() });
        self.tracees.drop_later(pid);
    }

    /// Drops what was requested of an exited thread.
    fn forget_thread(&mut self, tid: pid_t) {
        self.requests.take(tid);
        self.waits.forget(tid);
    }

    /// Collects and continues threads with a pending stop request, if they stop within a moment; the kernel
    /// releases later ones when the tracer exits.
    fn await_requested(&mut self) {
        let until_ns = self.clock.now_ns() + RELEASE_NS;
        self.discard_events(until_ns, |target| !target.requests.is_empty());
    }

    /// Detaches threads woken by an ignored signal.
    fn release_woken(&mut self) {
        self.waits.begin_release();
        let until_ns = self.clock.now_ns() + DETACH_NS;
        self.discard_events(until_ns, |target| target.waits.is_releasing());
    }

    fn discard_events(&mut self, until_ns: u64, is_needed: impl Fn(&LinuxTarget) -> bool) {
        let mut capture = Capture::with_capacity(0);
        while is_needed(self) && self.clock.now_ns() < until_ns {
            if self.next_event(until_ns, &mut capture).is_err() {
                return;
            }
        }
    }

    /// Seizes everything again after the profiler was suspended; called in a thread that traces nothing yet.
    /// Threads and processes that started, exited or called `exec` meanwhile are reported as events.
    ///
    /// # Errors
    /// [`Fault::Lost`]: the main process may no longer be traced.
    fn trace_again(&mut self) -> Result<(), Fault> {
        self.events.forget_exiting();
        self.tracees.forget_announced();
        self.requests.clear();
        self.waits.clear();
        // For the thread that traces from now on.
        self.tracer_cpu = TracerCpu::new();
        let known: HashSet<pid_t> = self.tracees.threads().map(TracedThread::tid).collect();
        for pid in self.tracees.pids() {
            if self.tracees.lives(pid) {
                seize::seize_again(&mut self.tracees, pid, &mut self.events)?;
            } else {
                let command = self.end.command().filter(|command| *command == pid);
                self.process_exited(pid, command.and_then(child_end).unwrap_or(ExitStatus::Unknown));
            }
        }
        if self.tracees.traces_children() {
            seize::seize_started(&mut self.tracees);
        }
        // The tid may have been reused.
        let is_new = |tid: pid_t| !known.contains(&tid) || self.events.has_exit_of(tid);
        let new = self.tracees.threads().filter(|thread| is_new(thread.tid()));
        let mut new: Vec<_> = new.map(|thread| (thread.tid(), thread.stack_top())).collect();
        new.sort_unstable();
        for (tid, stack_top) in new {
            self.events.push(TargetEvent::ThreadStarted { thread: thread_id(tid), stack_top });
        }
        Ok(())
    }
}

// ---- The traced processes as the sampler calls them.

impl Observed for LinuxTarget {
    fn process(&self) -> &Process {
        self.tracees.main().process()
    }

    fn inner(&mut self) -> Option<&mut dyn Observed> {
        Some(self.tracees.main_mut())
    }

    fn reads_memory_cheaply(&self) -> bool {
        true
    }
}

impl Target for LinuxTarget {
    fn threads(&mut self, out: &mut Vec<(ThreadId, Option<Avma>)>) {
        out.clear();
        out.extend(self.tracees.threads().map(|thread| (thread_id(thread.tid()), thread.stack_top())));
        out.sort_unstable();
    }

    fn process_of(&self, thread: ThreadId) -> u32 {
        self.tracees.process_of(tid_of(thread)).unsigned_abs()
    }

    fn process_cpu_ns(&mut self, process: u32) -> Option<u64> {
        let pid = pid_t::try_from(process).ok()?;
        self.tracees.process(pid)?.cpu_ns()
    }

    fn other(&mut self, process: u32) -> Option<&mut dyn Observed> {
        let pid = pid_t::try_from(process).ok()?;
        self.tracees.process_mut(pid).map(|process| process as &mut dyn Observed)
    }

    fn poll(&mut self, thread: ThreadId) -> Result<ThreadStatus, Fault> {
        self.tracees.poll(tid_of(thread), self.clock.now_ns())
    }

    fn prefetches(&self) -> bool {
        true
    }

    fn prefetch(&mut self, thread: ThreadId, ranges: &[u64]) {
        if let Some(thread) = self.tracees.thread_mut(tid_of(thread)) {
            thread.set_prefetch(ranges);
        }
    }

    fn interrupt(&mut self, thread: ThreadId, stack_bytes: usize, keep_waiting: bool) -> Result<(), Fault> {
        let thread = self.tracees.thread_mut(tid_of(thread)).ok_or(Fault::ThreadGone)?;
        self.requests.send(thread, stack_bytes, keep_waiting, &self.clock)
    }

    fn next(&mut self, until_ns: u64, capture: &mut Capture) -> Result<TargetEvent, Fault> {
        self.next_event(until_ns, capture)
    }

    fn capture_sleeping(&mut self, thread: ThreadId, bytes: usize, capture: &mut Capture) -> SleepingThread {
        let tid = tid_of(thread);
        match self.tracees.thread(tid) {
            Some(thread) if !self.requests.contains(tid) => proc::capture(thread.pid(), tid, bytes, capture),
            _ => SleepingThread::Awake,
        }
    }

    fn is_harmed_by_stops(&mut self, thread: ThreadId) -> bool {
        is_filtered(tid_of(thread))
    }

    fn waits_at(&mut self, thread: ThreadId) -> Option<(Avma, Avma)> {
        proc::waits_at(&fs::read(format!("/proc/{0}/task/{0}/syscall", thread.0)).ok()?)
    }

    fn call_thread(&self) -> Option<Arc<dyn CallThread>> {
        self.tracer.clone().map(|tracer| tracer as Arc<dyn CallThread>)
    }

    fn release(&mut self) {
        self.await_requested();
        self.release_woken();
    }

    fn reattach(&mut self) -> Result<(), Fault> {
        self.trace_again()
    }
}

impl Drop for LinuxTarget {
    /// Without a tracer thread the tracing thread drops it.
    fn drop(&mut self) {
        if self.tracer.is_none() {
            self.release();
        }
    }
}

// ---- Events that the sampler has not requested yet.

/// Events in order, and the exiting thread that one of them keeps stopped.
#[derive(Debug, Default)]
pub(super) struct EventQueue {
    events: VecDeque<TargetEvent>,
    /// Stopped until the sampler requests the event after [`TargetEvent::Exiting`].
    exiting: Option<StoppedThread>,
}

impl EventQueue {
    pub(super) fn push(&mut self, event: TargetEvent) {
        self.events.push_back(event);
    }

    pub(super) fn pop(&mut self) -> Option<TargetEvent> {
        self.events.pop_front()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Reports that a process exits with this thread, its first: its memory is readable until then.
    pub(super) fn push_exiting(&mut self, first: StoppedThread) {
        self.push(TargetEvent::Exiting { process: first.tid().unsigned_abs() });
        self.exiting = Some(first);
    }

    /// Continues the exiting thread, unless its event is the next one.
    pub(super) fn continue_exiting(&mut self) {
        if !matches!(self.events.front(), Some(TargetEvent::Exiting { .. })) {
            self.exiting = None;
        }
    }

    /// Forgets the exiting thread, because nothing is traced any longer.
    pub(super) fn forget_exiting(&mut self) {
        self.exiting = None;
    }

    /// Whether an exiting thread is stopped.
    pub(super) fn holds_thread(&self) -> bool {
        self.exiting.is_some()
    }

    /// Whether one of the events is the exit of this thread.
    pub(super) fn has_exit_of(&self, tid: libc::pid_t) -> bool {
        let exited = thread_id(tid);
        self.events
            .iter()
            .any(|event| matches!(event, TargetEvent::ThreadExited { thread, .. } if *thread == exited))
    }
}

// ---- What ends a recording: the exit of a command or of the listed processes. Input: exits. Output: whether it ends.

/// The processes that a recording ends with.
#[derive(Debug)]
pub(super) struct RecordingEnd {
    /// Those that have not exited yet.
    processes: Vec<pid_t>,
    command: Option<Command>,
    ended: bool,
}

/// A launched command.
#[derive(Clone, Copy, Debug)]
enum Command {
    /// `Command::spawn` has not returned: if its `exec` fails, it waits for the process.
    Spawning(pid_t),
    Running(pid_t),
}

impl RecordingEnd {
    /// The exit of the last of these processes.
    pub(super) fn of_processes(processes: Vec<pid_t>) -> RecordingEnd {
        RecordingEnd { processes, command: None, ended: false }
    }

    /// The exit of a command that is being started.
    pub(super) fn of_command(pid: pid_t) -> RecordingEnd {
        RecordingEnd { command: Some(Command::Spawning(pid)), ..RecordingEnd::of_processes(vec![pid]) }
    }

    /// Records that `Command::spawn` has returned.
    pub(super) fn set_running(&mut self) {
        self.command = self.command().map(Command::Running);
    }

    /// The launched command.
    pub(super) fn command(&self) -> Option<pid_t> {
        self.command.map(|(Command::Spawning(pid) | Command::Running(pid))| pid)
    }

    /// Whether `Command::spawn` waits for this process.
    pub(super) fn is_spawning(&self, pid: pid_t) -> bool {
        matches!(self.command, Some(Command::Spawning(command)) if command == pid)
    }

    /// Records the exit of a process. Returns whether the recording ends with it.
    pub(super) fn process_exited(&mut self, pid: pid_t) -> bool {
        let left = self.processes.len();
        self.processes.retain(|other| *other != pid);
        let ends = left > 0 && self.processes.is_empty();
        self.ended |= ends;
        ends
    }

    /// Records that nothing is traced any more.
    pub(super) fn end(&mut self) {
        self.ended = true;
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }
}

#[cfg(test)]
mod recording_end_tests {
    use super::*;

    #[test]
    fn a_recording_ends_once_and_with_the_last_process() {
        let mut end = RecordingEnd::of_processes(vec![7, 8]);
        let exits = [7, 9, 8, 9].map(|pid| end.process_exited(pid));
        assert_eq!((exits, end.has_ended()), ([false, false, true, false], true));
        let mut end = RecordingEnd::of_command(7);
        assert!(end.is_spawning(7) && !end.is_spawning(8));
        end.set_running();
        assert_eq!((end.command(), end.is_spawning(7), end.has_ended()), (Some(7), false, false));
    }
}
