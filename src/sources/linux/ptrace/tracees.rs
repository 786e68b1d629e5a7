//! The processes and threads that are traced. Input: who is seized, starts, calls `exec`, exits. Output: each by its
//! number.
//!
//! The kernel attaches a new thread before its first instruction: it stops there, and its creator stops in an
//! event with its number, in any order.

use std::io;

use hashbrown::{HashMap, HashSet};
use libc::pid_t;

use super::poll::Wchan;
use super::thread::Thread;
use super::traced_process::TracedProcess;
use crate::addr::Avma;
use crate::sources::linux::threads;
use crate::sources::{Fault, Process, ThreadStatus};

/// Most announced numbers kept until the new thread or process itself stops, usually at once.
const ANNOUNCED_MAX: usize = 4096;

/// Traced processes and their threads: each thread belongs to one of the processes.
#[derive(Debug)]
pub(super) struct Tracees {
    /// The main process, or 0 for several. It stays in the table throughout.
    main: pid_t,
    /// Child processes are traced, too.
    children: bool,
    processes: HashMap<pid_t, TracedProcess>,
    threads: HashMap<pid_t, Thread>,
    /// Announced threads and processes that have not stopped yet, with their parent process.
    announced: HashMap<pid_t, pid_t>,
    /// Exited processes that the sampler may still query until it requests the next event.
    exited: Vec<pid_t>,
    wchan: Wchan,
    /// Why some of the processes are not traced.
    missing: Option<String>,
}

/// What a thread is that the kernel has attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NewThread {
    /// A thread to trace, with the stack pointer at its first instruction.
    Traced(Option<Avma>),
    /// The first thread of a process that is not to be traced.
    Foreign,
    /// It has exited, or its files cannot be opened.
    Unknown,
}

impl Tracees {
    /// A process without threads, or several with pid 0 as placeholder. With `children` their child processes are
    /// traced, too.
    pub(super) fn new(pid: pid_t, process: Process, children: bool) -> Tracees {
        Tracees {
            main: pid,
            children,
            processes: HashMap::from([(pid, TracedProcess::new(pid, process))]),
            threads: HashMap::new(),
            announced: HashMap::new(),
            exited: Vec::new(),
            wchan: Wchan::default(),
            missing: None,
        }
    }

    /// Sets the reason why the process is traced rather than sampled by the kernel.
    pub(super) fn chosen_because(&mut self, why: String) {
        let missing = self.missing.take().map(|missing| format!("; {missing}")).unwrap_or_default();
        self.main_mut().chosen_because(why + &missing);
    }

    /// Records that some of the requested processes are not traced, and the reason of the first.
    pub(super) fn not_all_because(&mut self, count: usize, why: &str) {
        self.missing = Some(match count {
            1 => format!("one process is missing: {why}"),
            _ => format!("{count} processes are missing, the first: {why}"),
        });
    }

    /// Whether child processes are traced, too.
    pub(super) fn traces_children(&self) -> bool {
        self.children
    }

    pub(super) fn main(&self) -> &TracedProcess {
        self.processes.get(&self.main).unwrap_or_else(|| unreachable!("the main process is kept"))
    }

    pub(super) fn main_mut(&mut self) -> &mut TracedProcess {
        let main = self.processes.get_mut(&self.main);
        main.unwrap_or_else(|| unreachable!("the main process is kept"))
    }

    pub(super) fn process(&self, pid: pid_t) -> Option<&TracedProcess> {
        self.processes.get(&pid)
    }

    pub(super) fn process_mut(&mut self, pid: pid_t) -> Option<&mut TracedProcess> {
        self.processes.get_mut(&pid)
    }

    /// The processes, sorted.
    pub(super) fn pids(&self) -> Vec<pid_t> {
        // The placeholder for several processes has pid 0.
        let mut pids: Vec<pid_t> = self.processes.keys().copied().filter(|pid| *pid != 0).collect();
        pids.sort_unstable();
        pids
    }

    pub(super) fn threads(&self) -> impl Iterator<Item = &Thread> {
        self.threads.values()
    }

    pub(super) fn thread(&self, tid: pid_t) -> Option<&Thread> {
        self.threads.get(&tid)
    }

    pub(super) fn thread_mut(&mut self, tid: pid_t) -> Option<&mut Thread> {
        self.threads.get_mut(&tid)
    }

    /// A thread, and its process.
    pub(super) fn thread_of_process(&mut self, tid: pid_t) -> Option<(&mut Thread, &TracedProcess)> {
        let thread = self.threads.get_mut(&tid)?;
        let process = self.processes.get(&thread.pid())?;
        Some((thread, process))
    }

    /// The threads of processes with several.
    pub(super) fn tids_of_multithreaded(&self) -> Vec<pid_t> {
        let tids = self.processes.values().map(TracedProcess::tids).filter(|tids| tids.len() > 1);
        tids.flatten().copied().collect()
    }

    /// The process of a thread; the main one if unknown.
    pub(super) fn process_of(&self, tid: pid_t) -> pid_t {
        // A process has the number of its first thread.
        let first = if self.process(tid).is_some() { tid } else { self.main };
        self.threads.get(&tid).map_or(first, Thread::pid)
    }

    /// Whether a traced process still exists and runs. An open file of a thread becomes unreadable if its
    /// tid was reused.
    pub(super) fn lives(&self, pid: pid_t) -> bool {
        let is_another = self.threads.get(&pid).is_some_and(|first| first.cpu_ns().is_none());
        !is_another && threads::living_thread(pid).is_some()
    }

    /// Polls a thread at `now_ns`.
    pub(super) fn poll(&mut self, tid: pid_t, now_ns: u64) -> Result<ThreadStatus, Fault> {
        self.threads.get_mut(&tid).ok_or(Fault::ThreadGone)?.status_mut().poll(now_ns, &mut self.wchan)
    }

    /// Adds a running process, without its threads.
    pub(super) fn add_process(&mut self, process: TracedProcess) {
        self.processes.insert(process.pid(), process);
    }

    /// Drops a process that could not be attached as a whole: the kernel releases its attached threads when
    /// the recording ends.
    pub(super) fn forget_process(&mut self, pid: pid_t) {
        for tid in self.processes.remove(&pid).iter().flat_map(TracedProcess::tids) {
            self.threads.remove(tid);
        }
    }

    /// Adds a seized thread of a known process.
    ///
    /// # Errors
    /// It does not belong to the process, or its files cannot be opened.
    fn adopt(&mut self, pid: pid_t, tid: pid_t, stack_top: Option<Avma>) -> io::Result<()> {
        let thread = Thread::open(pid, tid, stack_top)?;
        self.processes.get_mut(&pid).ok_or(io::ErrorKind::NotFound)?.add_thread(tid);
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

    /// Adds a thread that the kernel attached, with its stack pointer before its first instruction: of a known
    /// process, or the first one of a new process.
    pub(super) fn adopt_new(&mut self, tid: pid_t, sp: Option<Avma>) -> NewThread {
        let announced = self.announced.remove(&tid);
        let Some((pid, parent)) = threads::tgid_and_ppid(tid) else { return NewThread::Unknown };
        let is_thread = pid != tid || self.process(pid).is_some();
        let stack_top = if is_thread {
            sp
        } else if self.children {
            let parent = announced.unwrap_or(parent);
            let Some(parent) = self.process(parent).or_else(|| self.process(self.main)) else {
                return NewThread::Unknown;
            };
            let stack_top = sp.and_then(|sp| parent.stack_top_above(sp));
            let process = parent.forked(pid);
            self.add_process(process);
            stack_top
        } else {
            None
        };
        match self.adopt(pid, tid, stack_top) {
            Ok(()) => NewThread::Traced(stack_top),
            Err(_) if self.process(pid).is_some() => NewThread::Unknown,
            Err(_) => NewThread::Foreign,
        }
    }

    /// Records the number of the thread or process that a thread has started.
    pub(super) fn announce(&mut self, starter: pid_t, new: pid_t) {
        if let Some(starter) = self.threads.get(&starter)
            && self.thread(new).is_none()
        {
            if self.announced.len() >= ANNOUNCED_MAX {
                self.announced.clear();
            }
            self.announced.insert(new, starter.pid());
        }
    }

    /// Forgets announced threads, because nothing is traced any longer.
    pub(super) fn forget_announced(&mut self) {
        self.announced.clear();
    }

    /// Handles `exec`: the calling thread continues with the process's number; the others have exited. Returns
    /// the threads before, and the new program's initial stack pointer.
    pub(super) fn exec(&mut self, pid: pid_t) -> Option<(HashSet<pid_t>, Option<Avma>)> {
        let process = self.processes.get_mut(&pid)?;
        let before = process.exec();
        let stack_top = process.start_stack();
        for tid in &before {
            self.threads.remove(tid);
        }
        // Without descriptors for its files a thread is not recorded, but runs.
        let _ = self.adopt(pid, pid, stack_top);
        Some((before, stack_top))
    }

    /// Drops a thread that is no longer traced, if it is known.
    pub(super) fn forget_thread(&mut self, tid: pid_t) -> Option<Thread> {
        let thread = self.threads.remove(&tid)?;
        if let Some(process) = self.processes.get_mut(&thread.pid()) {
            process.forget_thread(tid);
        }
        Some(thread)
    }

    /// Drops an exited thread before it is reaped. Returns its CPU time, nanoseconds.
    pub(super) fn thread_exited(&mut self, tid: pid_t) -> Option<u64> {
        if let Some(process) = self.processes.get_mut(&tid) {
            process.save_cpu_time();
        }
        self.announced.remove(&tid);
        let thread = self.threads.remove(&tid)?;
        let cpu_ns = thread.cpu_ns();
        if let Some(process) = self.processes.get_mut(&thread.pid()) {
            process.thread_exited(tid);
        }
        cpu_ns
    }

    /// Drops the threads of an exited process, and returns them; `None` if it is unknown.
    pub(super) fn process_exited(&mut self, pid: pid_t) -> Option<HashSet<pid_t>> {
        let tids = self.processes.get_mut(&pid)?.forget_threads();
        for tid in &tids {
            self.threads.remove(tid);
        }
        Some(tids)
    }

    /// Drops an exited process, except the main one, at the next [`Tracees::drop_exited`].
    pub(super) fn drop_later(&mut self, pid: pid_t) {
        if pid != self.main {
            self.exited.push(pid);
        }
    }

    /// Drops exited processes.
    pub(super) fn drop_exited(&mut self) {
        for pid in self.exited.drain(..) {
            self.processes.remove(&pid);
        }
    }
}
