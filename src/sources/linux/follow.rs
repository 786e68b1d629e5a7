//! Tracks traced threads and processes: fork, clone, exec, exit. Input: ptrace stops. Output: events.
//!
//! The kernel attaches a new thread before its first instruction: it stops there, and its creator stops in an
//! event with its number, in any order. An exited thread stays a zombie until it is reaped here; then its
//! real parent is notified, as without a tracer.

use std::io;

use libc::pid_t;

use super::stopped_thread::StoppedThread;
use super::sys::{self, WaitStatus};
use super::target::{LinuxTarget, thread_id};
use super::threads::{self, Thread};
use super::traced_process::TracedProcess;
use crate::addr::Avma;
use crate::sources::{ExitStatus, Observed, TargetEvent};

/// Most announced numbers kept until the new thread or process itself stops, usually at once.
const ANNOUNCED_MAX: usize = 4096;

impl LinuxTarget {
    /// Ends the recording when this process and all others marked this way have exited.
    pub(super) fn end_with(&mut self, pid: pid_t) {
        self.ends_with.push(pid);
    }

    /// Adds a running process, without its threads.
    pub(super) fn add_process(&mut self, process: TracedProcess) {
        let pid = process.process().pid.cast_signed();
        self.processes.insert(pid, process);
    }

    /// Reads the description of a process again after its threads were seized.
    pub(super) fn learn_again(&mut self, pid: pid_t) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.learn_again();
        }
    }

    /// Whether a process is traced.
    pub(super) fn knows_process(&self, pid: pid_t) -> bool {
        self.processes.contains_key(&pid)
    }

    /// Drops a process that could not be attached as a whole: the kernel releases its attached threads when
    /// the recording ends.
    pub(super) fn forget_process(&mut self, pid: pid_t) {
        if let Some(process) = self.processes.remove(&pid) {
            self.threads.retain(|tid, _| !process.threads.contains(tid));
        }
    }

    /// Adds a seized thread of a known process.
    ///
    /// # Errors
    /// It does not belong to the process, or its files cannot be opened.
    pub(super) fn adopt(&mut self, pid: pid_t, tid: pid_t, stack_top: Option<Avma>) -> io::Result<()> {
        let thread = Thread::open(pid, tid, stack_top)?;
        let process = self.processes.get_mut(&pid).ok_or(io::ErrorKind::NotFound)?;
        process.threads.insert(tid);
        self.threads.insert(tid, thread);
        Ok(())
    }

    /// Adds a thread that was found running.
    ///
    /// # Errors
    /// Its files cannot be opened for lack of descriptors. A thread that has exited meanwhile is no error.
    pub(super) fn adopt_found(&mut self, pid: pid_t, tid: pid_t) -> io::Result<()> {
        let first = self.processes.get(&pid).filter(|_| tid == pid);
        let stack_top = first.and_then(TracedProcess::start_stack);
        self.adopt(pid, tid, stack_top).or_else(|error| match error.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE) => Err(error),
            _ => Ok(()),
        })
    }

    /// Handles the stop of a thread that started another thread or process.
    pub(super) fn announce(&mut self, tid: pid_t) {
        let new = sys::event_message(tid).ok().and_then(|new| pid_t::try_from(new).ok());
        if let Some(new) = new
            && let Some(starter) = self.threads.get(&tid)
            && !self.knows(new)
        {
            if self.announced.len() >= ANNOUNCED_MAX {
                self.announced.clear();
            }
            self.announced.insert(new, starter.pid);
        }
    }

    /// Handles a thread that the kernel attached, before its first instruction: of a known process, or the
    /// first one of a new process.
    pub(super) fn new_thread(&mut self, stopped: StoppedThread) -> Option<TargetEvent> {
        let tid = stopped.tid;
        if self.must_end_before(&stopped) {
            std::mem::forget(stopped);
            return None;
        }
        let read = self.raw.read(tid).is_ok();
        let sp = self.raw.convert().filter(|_| read).map(|registers| registers.sp());
        // With `children` the thread is released here: after an exit it can be polled until it is reaped.
        // Otherwise it stays stopped, because it may have to be detached.
        let stopped = Some(stopped).filter(|_| !self.children);
        let announced = self.announced.remove(&tid);
        let (pid, parent) = threads::belongs_to(tid)?;
        let is_thread = pid != tid || self.processes.contains_key(&pid);
        let stack_top = if is_thread {
            sp
        } else if self.children {
            let parent = announced.unwrap_or(parent);
            let parent = self.processes.get(&parent).or_else(|| self.processes.get(&self.main))?;
            let stack_top = sp.and_then(|sp| parent.stack_top_above(sp));
            let process = parent.forked(pid);
            self.add_process(process);
            stack_top
        } else {
            None
        };
        if self.adopt(pid, tid, stack_top).is_ok() {
            return Some(TargetEvent::ThreadStarted { thread: thread_id(tid), stack_top });
        }
        // A process made by clone() with an exit signal other than SIGCHLD: not ours.
        if stopped.is_some() && !self.processes.contains_key(&pid) {
            let _ = sys::detach(tid, 0);
        }
        None
    }

    /// Handles `exec`: the calling thread continues with the process's number; the others have exited.
    pub(super) fn exec(&mut self, stopped: StoppedThread) -> Option<TargetEvent> {
        let pid = stopped.tid;
        let before: Vec<pid_t> = self.processes.get(&pid)?.threads.iter().copied().collect();
        for tid in before {
            self.no_longer_pending(tid);
            self.threads.remove(&tid);
        }
        let process = self.processes.get_mut(&pid)?;
        process.replaced();
        let stack_top = process.start_stack();
        let _ = self.adopt(pid, pid, stack_top);
        Some(TargetEvent::Exec { thread: thread_id(pid), stack_top })
    }

    /// Handles the exit of a thread: reads its last counters before it is released.
    pub(super) fn ended(&mut self, how: WaitStatus) {
        let Some(status) = how.exit_status() else { return };
        let tid = how.tid();
        if let Some(process) = self.processes.get_mut(&tid) {
            process.keep_cpu_time();
        }
        let cpu_ns =
            self.threads.get(&tid).and_then(|thread| thread.status.sched()).map(|sched| sched.cpu_ns);
        self.no_longer_pending(tid);
        self.announced.remove(&tid);
        let pid = self.threads.remove(&tid).map(|thread| thread.pid);
        if let Some(process) = pid.and_then(|pid| self.processes.get_mut(&pid)) {
            process.thread_ended(tid);
        }
        // A launched process is our child, too: once reaped, it counts in our children's CPU times
        // (getrusage(2)). If its `exec` failed, `Command::spawn` waits for it and panics if it was reaped
        // here.
        if tid != self.main || !self.spawning {
            let _ = sys::reap(tid);
        }
        self.queue.push_back(TargetEvent::ThreadExited { thread: thread_id(tid), cpu_ns });
        self.process_ended(tid, status);
    }

    /// Handles the exit of a known process, reported with its first thread, which exits last.
    pub(super) fn process_ended(&mut self, tid: pid_t, status: ExitStatus) {
        let Some(process) = self.processes.get(&tid) else { return };
        // All its threads have exited: a process ends with its last thread.
        for other in process.threads.iter().copied().collect::<Vec<_>>() {
            self.no_longer_pending(other);
            self.threads.remove(&other);
            self.queue.push_back(TargetEvent::ThreadExited { thread: thread_id(other), cpu_ns: None });
        }
        let waited_for = self.ends_with.len();
        self.ends_with.retain(|pid| *pid != tid);
        if waited_for > 0 && self.ends_with.is_empty() {
            return self.all_ended(status);
        }
        self.queue.push_back(TargetEvent::ProcessEnded { process: tid.unsigned_abs() });
        if tid != self.main {
            self.gone.push(tid);
        }
    }
}
