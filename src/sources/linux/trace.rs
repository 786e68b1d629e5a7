//! The tracing loop: waits for stops and exits of threads, and dispatches them. Input: ptrace stops. Output:
//! events. `stop.rs` is one stop, `follow.rs` tracks new and exited threads and processes.

use std::collections::VecDeque;
use std::fs;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use libc::{c_int, pid_t};

use super::file_pages::FilePages;
use super::repeated_wait::AT_CALL;
use super::sleeping_thread;
use super::stopped_thread::StoppedThread;
use super::sys::{self, WaitStatus};
use super::target::{LinuxTarget, thread_id, tid_of};
use super::threads::{Pending, Wchan};
use super::traced_process::TracedProcess;
use super::tracer::Tracer;
use super::tracer_cpu::TracerCpu;
use super::{proc, registers};
use crate::addr::Avma;
use crate::binary::{Files, ImageBytes, Mapping, OpenError, ProgramPath};
use crate::clock::{Clock, RealClock};
use crate::sources::{
    CallThread, Capture, ExitStatus, Fault, Observed, Process, SleepingThread, Target, TargetEvent, ThreadId,
    ThreadStatus, signals,
};

/// The signal that the tracer thread waits for; blocked in every thread of the profiler.
pub(super) const SIGNALS: [c_int; 1] = [libc::SIGCHLD];

/// How long to poll for the stop of a thread on another CPU before sleeping: it takes a few microseconds,
/// less than a sleep and a wakeup. A thread on this CPU stops only when we sleep.
const POLL_NS: u64 = 30_000;
/// How long to wait for requested stops that are no longer needed.
const RELEASE_NS: u64 = 2_000_000;
/// Interval of checks of resident pages of files.
const FILE_PAGES_NS: u64 = 5_000_000;

impl LinuxTarget {
    /// Creates a target without threads: a process, or several with pid 0 as placeholder. With `children`
    /// their child processes are traced, too.
    pub(super) fn new(pid: pid_t, process: Process, children: bool, clock: RealClock) -> LinuxTarget {
        LinuxTarget {
            main: pid,
            processes: HashMap::from([(pid, TracedProcess::new(pid, process))]),
            threads: HashMap::new(),
            children,
            ends_with: Vec::new(),
            announced: HashMap::new(),
            gone: Vec::new(),
            exiting: None,
            clock,
            queue: VecDeque::new(),
            raw: registers::Block::new(),
            outstanding: 0,
            poll_until_ns: 0,
            slept_until_ns: 0,
            own: TracerCpu::new(),
            wchan: Wchan::default(),
            not_all: None,
            launched: false,
            spawning: false,
            ended: false,
            deadlines: Vec::new(),
            releasing: false,
            must_end: None,
            filters_due_ns: 0,
            filters_asked: 0,
            file_pages: FilePages::default(),
            file_pages_due_ns: 0,
            tracer: None,
            not_send: PhantomData,
        }
    }

    /// Sets the reason why the process is traced rather than sampled by the kernel.
    pub(super) fn chosen_because(&mut self, why: String) {
        let not_all = self.not_all.take().map(|not_all| format!("; {not_all}")).unwrap_or_default();
        self.main_mut().chosen_because(why + &not_all);
    }

    /// Records that some of the requested processes are not traced, and the reason of the first.
    pub(super) fn not_all_because(&mut self, count: usize, why: &str) {
        self.not_all = Some(match count {
            1 => format!("one process is missing: {why}"),
            _ => format!("{count} processes are missing, the first: {why}"),
        });
    }

    fn main(&self) -> &TracedProcess {
        // It stays in the table throughout.
        self.processes.get(&self.main).unwrap_or_else(|| unreachable!("the main process is kept"))
    }

    fn main_mut(&mut self) -> &mut TracedProcess {
        let main = self.processes.get_mut(&self.main);
        main.unwrap_or_else(|| unreachable!("the main process is kept"))
    }

    pub(super) fn knows(&self, tid: pid_t) -> bool {
        self.threads.contains_key(&tid)
    }

    pub(super) fn set_launched(&mut self) {
        self.launched = true;
        self.spawning = true;
    }

    /// Sets the description of the launched command once it runs.
    pub(super) fn set_spawned(&mut self, process: Process) {
        self.main_mut().set_process(process);
        self.spawning = false;
    }

    pub(super) fn no_longer_pending(&mut self, tid: pid_t) -> Option<Pending> {
        let pending = self.threads.get_mut(&tid)?.pending.take();
        self.outstanding -= usize::from(pending.is_some());
        pending
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
            0 if signal == AT_CALL => {
                self.at_call(tid);
                None
            }
            // A signal for the target, to be delivered.
            0 => self.collect_if_pending(StoppedThread::on_its_way(tid, signal), capture),
            libc::PTRACE_EVENT_STOP => {
                let by_job_control = signal != libc::SIGTRAP;
                let mut stopped = StoppedThread::new(tid);
                stopped.by_job_control = by_job_control;
                match () {
                    () if !self.knows(tid) => self.new_thread(stopped),
                    // A stop signal such as SIGSTOP took effect: the thread stays stopped until SIGCONT.
                    () if by_job_control => {
                        if let Some(thread) = self.threads.get_mut(&tid) {
                            (thread.job_stopped, thread.repeated) = (true, None);
                        }
                        let pending = self.no_longer_pending(tid)?;
                        let outcome = self.read_stopped(tid, pending, capture);
                        Some(TargetEvent::Stopped { thread: thread_id(tid), outcome })
                    }
                    () => self.collect_if_pending(stopped, capture),
                }
            }
            libc::PTRACE_EVENT_EXEC => {
                let _ = sys::take_stop(tid);
                self.exec(StoppedThread::new(tid))
            }
            libc::PTRACE_EVENT_EXIT => self.handle_exit_stop(StoppedThread::new(tid), capture),
            // PTRACE_EVENT_CLONE, _FORK and _VFORK: the new thread or process reports itself.
            _ => {
                self.announce(tid);
                self.collect_if_pending(StoppedThread::new(tid), capture)
            }
        }
    }

    /// Records that all processes that the recording ends with have exited, the last of them with this
    /// status. Others may continue.
    pub(super) fn all_ended(&mut self, status: ExitStatus) {
        self.ended = true;
        self.queue.push_back(TargetEvent::Exited(status));
    }

    /// Sleeps until something may have happened.
    fn sleep(&mut self, at_most_ns: u64) {
        let due_ns = self.clock.now_ns().saturating_add(at_most_ns);
        let signal = sys::sleep_for_signal(&SIGNALS, Duration::from_nanos(at_most_ns));
        self.slept_until_ns = self.clock.now_ns();
        self.own.woke(signal.is_none().then(|| self.slept_until_ns.saturating_sub(due_ns)));
    }

    /// Collects and continues threads with a pending stop request, if they stop within a moment; the kernel
    /// releases later ones when the tracer exits.
    fn await_asked(&mut self) {
        let mut capture = Capture::with_capacity(0);
        let until_ns = self.clock.now_ns() + RELEASE_NS;
        while self.outstanding > 0 && self.clock.now_ns() < until_ns {
            if self.next_event(until_ns, &mut capture).is_err() {
                return;
            }
        }
    }

    /// Forgets pending requests, because nothing is traced any longer.
    pub(super) fn forget_stops(&mut self) {
        self.exiting = None;
        // For the thread that traces from now on.
        self.own = TracerCpu::new();
        self.announced.clear();
        self.outstanding = 0;
        self.releasing = false;
        self.deadlines.clear();
        for thread in self.threads.values_mut() {
            (thread.pending, thread.repeated) = (None, None);
            (thread.woken, thread.detached) = (false, false);
        }
    }

    /// Sets the thread for this target's calls, which can exit and be replaced.
    pub(super) fn set_tracer(&mut self, tracer: Arc<Tracer>) {
        self.tracer = Some(tracer);
    }

    /// Whether the recording ends with the launched process.
    pub(super) fn is_launched(&self) -> bool {
        self.launched
    }

    /// Releases file pages that walks read, while no thread is stopped.
    fn give_file_pages_back(&mut self) {
        let now_ns = self.clock.now_ns();
        if self.outstanding == 0 && self.exiting.is_none() && now_ns >= self.file_pages_due_ns {
            self.file_pages.bound();
            self.file_pages_due_ns = now_ns + FILE_PAGES_NS;
        }
    }

    /// See [`Target::next`].
    pub(super) fn next_event(&mut self, until_ns: u64, capture: &mut Capture) -> Result<TargetEvent, Fault> {
        if !matches!(self.queue.front(), Some(TargetEvent::Exiting { .. })) {
            self.exiting = None;
        }
        self.give_file_pages_back();
        // Pending events may refer to them.
        if self.queue.is_empty() {
            for pid in self.gone.drain(..) {
                self.processes.remove(&pid);
            }
        }
        loop {
            if let Some(event) = self.queue.pop_front() {
                return Ok(event);
            }
            if self.ended {
                return Err(Fault::Gone);
            }
            if self.launched
                && let Some(signal) = signals::take_passed_on()
            {
                // The command decides what it does; the recording ends when it exits.
                let _ = sys::kill(self.main, signal);
            }
            self.check_filters()?;
            let before_ns = self.clock.now_ns();
            match sys::look_for_stopped() {
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
                Ok(_) if self.outstanding > 0 && before_ns < self.poll_until_ns => {
                    std::hint::spin_loop();
                    continue;
                }
                // An error means that only exited threads are left.
                Ok(_) | Err(_) => {}
            }
            match sys::peek_exited() {
                Ok(Some(how)) => {
                    self.ended(how);
                    continue;
                }
                Ok(_) => {}
                // Nothing is traced any more.
                Err(_) => {
                    self.all_ended(ExitStatus::Unknown);
                    continue;
                }
            }
            if before_ns >= until_ns {
                return Ok(TargetEvent::Timeout);
            }
            let until_ns = until_ns.min(self.end_repeated_waits());
            self.sleep(until_ns.saturating_sub(before_ns));
        }
    }
}

impl Observed for LinuxTarget {
    fn process(&self) -> &Process {
        self.main().process()
    }

    fn files(&mut self) -> Arc<dyn Files> {
        self.main_mut().files()
    }

    fn thread_name(&mut self, thread: ThreadId) -> Option<String> {
        self.main_mut().thread_name(thread)
    }

    fn mappings(&mut self, out: &mut Vec<Mapping>) -> Result<(), Fault> {
        self.main_mut().mappings(out)
    }

    fn program_path(&mut self, mappings: &[Mapping]) -> Option<Arc<ProgramPath>> {
        self.main_mut().program_path(mappings)
    }

    fn image_bytes(&mut self, mapping: &Mapping) -> Result<ImageBytes, OpenError> {
        self.main_mut().image_bytes(mapping)
    }

    fn read_memory(&mut self, from: Avma, into: &mut [u8]) -> Result<usize, Fault> {
        self.main_mut().read_memory(from, into)
    }
}

impl Target for LinuxTarget {
    fn threads(&mut self, out: &mut Vec<(ThreadId, Option<Avma>)>) {
        out.clear();
        out.extend(self.threads.iter().map(|(tid, thread)| (thread_id(*tid), thread.stack_top)));
        out.sort_unstable();
    }

    fn process_of(&self, thread: ThreadId) -> u32 {
        let tid = tid_of(thread);
        // A process has the number of its first thread.
        let first = if self.processes.contains_key(&tid) { tid } else { self.main };
        self.threads.get(&tid).map_or(first, |thread| thread.pid).unsigned_abs()
    }

    fn process_cpu_ns(&mut self, process: u32) -> Option<u64> {
        let pid = pid_t::try_from(process).ok()?;
        self.processes.get(&pid)?.cpu_ns()
    }

    fn other(&mut self, process: u32) -> Option<&mut dyn Observed> {
        let pid = pid_t::try_from(process).ok()?;
        self.processes.get_mut(&pid).map(|process| process as &mut dyn Observed)
    }

    fn poll(&mut self, thread: ThreadId) -> Result<ThreadStatus, Fault> {
        let now_ns = self.clock.now_ns();
        self.threads.get_mut(&tid_of(thread)).ok_or(Fault::ThreadGone)?.status.poll(now_ns, &mut self.wchan)
    }

    fn prefetches(&self) -> bool {
        true
    }

    fn prefetch(&mut self, thread: ThreadId, ranges: &[u64]) {
        if let Some(entry) = self.threads.get_mut(&tid_of(thread)) {
            entry.prefetch.clear();
            entry.prefetch.extend_from_slice(ranges);
        }
    }

    fn interrupt(&mut self, thread: ThreadId, stack_bytes: usize, keep_waiting: bool) -> Result<(), Fault> {
        let tid = tid_of(thread);
        let entry = self.threads.get_mut(&tid).ok_or(Fault::ThreadGone)?;
        if entry.pending.is_some() {
            return Ok(());
        }
        if keep_waiting {
            entry.calls.before_stop(tid);
        }
        let asked_ns = self.clock.now_ns();
        if sys::interrupt(tid).is_err() {
            entry.status.doubt();
            return Err(Fault::ThreadGone);
        }
        let (polled_ns, before) = entry.status.last_poll();
        entry.pending = Some(Pending { stack_bytes, keep_waiting, asked_ns, polled_ns, before });
        self.outstanding += 1;
        // Read only now: between the poll and the stop the thread may leave its CPU.
        if entry.status.cpu() != sys::current_cpu() {
            self.poll_until_ns = self.clock.now_ns() + POLL_NS;
        }
        Ok(())
    }

    fn next(&mut self, until_ns: u64, capture: &mut Capture) -> Result<TargetEvent, Fault> {
        self.next_event(until_ns, capture)
    }

    fn capture_sleeping(&mut self, thread: ThreadId, bytes: usize, capture: &mut Capture) -> SleepingThread {
        self.capture_unstopped(thread, bytes, capture)
    }

    fn is_harmed_by_stops(&mut self, thread: ThreadId) -> bool {
        sleeping_thread::is_filtered(tid_of(thread))
    }

    fn waits_at(&mut self, thread: ThreadId) -> Option<(Avma, Avma)> {
        proc::waits_at(&fs::read(format!("/proc/{0}/task/{0}/syscall", thread.0)).ok()?)
    }

    fn call_thread(&self) -> Option<Arc<dyn CallThread>> {
        self.tracer.clone().map(|tracer| tracer as Arc<dyn CallThread>)
    }

    fn release(&mut self) {
        self.await_asked();
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
