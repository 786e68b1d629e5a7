//! The processes and threads that are traced. Input: who is seized, starts, calls `exec`, exits. Output: each by its
//! number.
//!
//! `Tracees` has all, `Thread` is a thread, `TracedProcess` a process as the sampler observes it.
//!
//! The kernel attaches a new thread before its first instruction: it stops there, and its creator stops in an
//! event with its number, in any order.

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use libc::pid_t;

use super::on_cpu::{PolledStatus, Wchan};
use super::registers::{Block, Calls};
use super::{stop, sys};
use crate::addr::Avma;
use crate::binary::Mapping;
use crate::sources::linux::clocks::{process_cpu_ns, update_thread_clocks};
use crate::sources::linux::files::TargetFiles;
use crate::sources::linux::process::LinuxProcess;
use crate::sources::linux::program_path::StartPath;
use crate::sources::linux::{images, proc, refusal};
use crate::sources::{Capture, Fault, Observed, Process, ThreadId, ThreadStatus};

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
    threads: HashMap<pid_t, TracedThread>,
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

    pub(super) fn threads(&self) -> impl Iterator<Item = &TracedThread> {
        self.threads.values()
    }

    pub(super) fn thread(&self, tid: pid_t) -> Option<&TracedThread> {
        self.threads.get(&tid)
    }

    pub(super) fn thread_mut(&mut self, tid: pid_t) -> Option<&mut TracedThread> {
        self.threads.get_mut(&tid)
    }

    /// A thread, and its process.
    pub(super) fn thread_of_process(&mut self, tid: pid_t) -> Option<(&mut TracedThread, &TracedProcess)> {
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
        self.threads.get(&tid).map_or(first, TracedThread::pid)
    }

    /// Whether a traced process still exists and runs. An open file of a thread becomes unreadable if its
    /// tid was reused.
    pub(super) fn lives(&self, pid: pid_t) -> bool {
        let is_another = self.threads.get(&pid).is_some_and(|first| first.cpu_ns().is_none());
        !is_another && proc::living_thread(pid).is_some()
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
        let thread = TracedThread::open(pid, tid, stack_top)?;
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
        let Some((pid, parent)) = proc::tgid_and_ppid(tid) else { return NewThread::Unknown };
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
    pub(super) fn forget_thread(&mut self, tid: pid_t) -> Option<TracedThread> {
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

// ---- A traced thread: its files in /proc and what is kept about it between stops.

/// A traced thread.
#[derive(Debug)]
pub(super) struct TracedThread {
    tid: pid_t,
    /// Its process.
    pid: pid_t,
    stack_top: Option<Avma>,
    status: PolledStatus,
    /// Prefetched stack ranges above the copied bytes: the first address of each range, ascending.
    prefetch: Vec<u64>,
    calls: Calls,
    /// Stopped by job control, and not continued since.
    job_stopped: bool,
}

impl TracedThread {
    /// Opens a thread's files. Fails with "not found" if `tid` is not a thread of `pid`.
    pub(super) fn open(pid: pid_t, tid: pid_t, stack_top: Option<Avma>) -> io::Result<TracedThread> {
        let status = PolledStatus::open(pid, tid)?;
        let (prefetch, calls) = (Vec::new(), Calls::default());
        Ok(TracedThread { tid, pid, stack_top, status, prefetch, calls, job_stopped: false })
    }

    pub(super) fn tid(&self) -> pid_t {
        self.tid
    }

    pub(super) fn pid(&self) -> pid_t {
        self.pid
    }

    /// Stack pointer at its first instruction.
    pub(super) fn stack_top(&self) -> Option<Avma> {
        self.stack_top
    }

    pub(super) fn status(&self) -> &PolledStatus {
        &self.status
    }

    pub(super) fn status_mut(&mut self) -> &mut PolledStatus {
        &mut self.status
    }

    /// Its CPU time, nanoseconds; also of an exited thread before it is reaped. `None` after that, even if its tid
    /// is in use again.
    pub(super) fn cpu_ns(&self) -> Option<u64> {
        self.status.sched().map(|sched| sched.cpu_ns)
    }

    /// Replaces the ranges to prefetch.
    pub(super) fn set_prefetch(&mut self, ranges: &[u64]) {
        self.prefetch.clear();
        self.prefetch.extend_from_slice(ranges);
    }

    /// Reads the prefetched ranges of the stopped thread.
    pub(super) fn read_prefetched(&self, capture: &mut Capture) {
        stop::read(self.tid, &self.prefetch, &mut capture.prefetched);
        if !self.prefetch.is_empty() {
            capture.prefetched.blocked_signals = sys::blocked_signals(self.tid).ok();
        }
    }

    /// Called before a stop request if the thread may be waiting.
    pub(super) fn before_stop(&mut self) {
        self.calls.before_stop(self.tid);
    }

    /// Repairs its interrupted call. Returns whether registers changed and have to be written back.
    pub(super) fn repair_call(
        &mut self,
        registers: &mut Block,
        is_handled: impl FnMut() -> bool,
        is_filtered: impl FnMut() -> bool,
    ) -> bool {
        registers.repair_interrupted_call(&mut self.calls, is_handled, is_filtered)
    }

    /// Records that job control has stopped it.
    pub(super) fn enter_job_stop(&mut self) {
        self.job_stopped = true;
    }

    /// Records that it continues. Returns whether job control had stopped it.
    pub(super) fn leave_job_stop(&mut self) -> bool {
        std::mem::take(&mut self.job_stopped)
    }
}

pub(super) fn thread_id(tid: pid_t) -> ThreadId {
    ThreadId(tid.unsigned_abs().into())
}

pub(super) fn tid_of(thread: ThreadId) -> pid_t {
    pid_t::try_from(thread.0).unwrap_or(0)
}

// ---- A traced process, as the sampler observes it.
//
// Its mappings are read from /proc, which shows the current ones, perhaps those of the next program before
// the sampler has seen its `exec`. The stack pointer at a program's start distinguishes them; until the
// sampler knows of the exec, it gets the old mappings. A newly forked process has those of its parent.

/// A thread with a stack pointer at most this far below that of the program's start is on the first thread's
/// stack: stacks of other threads begin below this gap (`MIN_GAP` in arch/x86/mm/mmap.c, 128 MiB; 128 MiB in
/// mm/util.c for aarch64).
const FIRST_STACK_BYTES: u64 = 128 << 20;

/// A traced process.
#[derive(Debug)]
pub(super) struct TracedProcess {
    process: LinuxProcess,
    /// Its traced threads.
    threads: HashSet<pid_t>,
    /// The mappings last read, of this program or of the process it was forked from.
    known: Rc<Vec<Mapping>>,
    /// The initial stack pointer of its program.
    start_stack: Option<Avma>,
    /// The names of exited threads, until they are used.
    last_names: HashMap<pid_t, String>,
    /// Its CPU time at exit.
    used_ns: Option<u64>,
}

impl TracedProcess {
    /// A running process; with pid 0, the placeholder for several.
    pub(super) fn new(pid: pid_t, description: Process) -> TracedProcess {
        let mut process = LinuxProcess::new(pid, description, Arc::new(TargetFiles::of(pid)));
        process.find_memory();
        TracedProcess {
            process,
            threads: HashSet::new(),
            known: Rc::default(),
            start_stack: proc::start_stack(pid),
            last_names: HashMap::new(),
            used_ns: None,
        }
    }

    /// A process that this one has just forked.
    pub(super) fn forked(&self, pid: pid_t) -> TracedProcess {
        TracedProcess {
            process: self.process.started(pid),
            threads: HashSet::new(),
            known: Rc::clone(&self.known),
            start_stack: self.start_stack,
            last_names: HashMap::new(),
            used_ns: None,
        }
    }

    /// Handles `exec`: another program runs, under the name that /proc shows. Returns the threads before.
    pub(super) fn exec(&mut self) -> HashSet<pid_t> {
        let process = &mut self.process;
        if let Some(name) = proc::name(process.pid, process.pid) {
            process.description.name = name;
        }
        process.memory_of = process.pid;
        process.start_path = StartPath::default();
        self.last_names.clear();
        self.known = Rc::default();
        self.start_stack = proc::start_stack(process.pid);
        process.description.arch = refusal::arch(self.start_stack);
        self.forget_threads()
    }

    /// Reads the description again after its threads were seized: no event reports an exec between the first
    /// description and the seizing.
    pub(super) fn reread_description(&mut self) {
        let process = &mut self.process;
        let why = std::mem::take(&mut process.description.backend_why);
        process.description = Process { backend_why: why, ..refusal::describe(process.pid) };
        process.start_path = StartPath::default();
        process.find_memory();
        self.start_stack = proc::start_stack(process.pid);
    }

    /// Replaces the description.
    pub(super) fn set_process(&mut self, description: Process) {
        self.process.description = description;
        self.process.open_own_files();
    }

    /// Sets the reason why processes are traced rather than sampled by the kernel.
    pub(super) fn chosen_because(&mut self, why: String) {
        self.process.description.backend_why = why;
    }

    /// The initial stack pointer of the first thread of a newly forked process with this stack pointer: the
    /// program's, unless a thread other than the first forked.
    pub(super) fn stack_top_above(&self, sp: Avma) -> Option<Avma> {
        self.start_stack.filter(|top| top.0.wrapping_sub(sp.0) < FIRST_STACK_BYTES)
    }

    /// Whether it runs a 32-bit program on a processor with 64-bit programs.
    pub(super) fn is_of_32_bits(&self) -> bool {
        self.start_stack.is_some_and(images::is_of_32_bits)
    }

    /// CPU time of all of its threads so far, including those that exited or are not traced, nanoseconds.
    pub(super) fn cpu_ns(&self) -> Option<u64> {
        self.used_ns.or_else(|| {
            update_thread_clocks(self.threads.iter().copied());
            process_cpu_ns(self.process.pid)
        })
    }

    pub(super) fn pid(&self) -> pid_t {
        self.process.pid
    }

    /// Its traced threads.
    pub(super) fn tids(&self) -> &HashSet<pid_t> {
        &self.threads
    }

    pub(super) fn add_thread(&mut self, tid: pid_t) {
        self.threads.insert(tid);
    }

    /// Drops a thread that is no longer traced.
    pub(super) fn forget_thread(&mut self, tid: pid_t) {
        self.threads.remove(&tid);
    }

    /// Drops all threads, which have exited.
    pub(super) fn forget_threads(&mut self) -> HashSet<pid_t> {
        std::mem::take(&mut self.threads)
    }

    /// Drops an exited thread before it is reaped, and records its name: /proc shows it until then.
    pub(super) fn thread_exited(&mut self, tid: pid_t) {
        if self.threads.remove(&tid)
            && let Some(name) = proc::name(self.process.pid, tid)
        {
            self.last_names.insert(tid, name);
        }
    }

    /// Records the CPU time of the exited process before it is reaped: its clock exists until then.
    pub(super) fn save_cpu_time(&mut self) {
        self.used_ns = process_cpu_ns(self.process.pid);
    }

    /// The initial stack pointer of its program.
    pub(super) fn start_stack(&self) -> Option<Avma> {
        self.start_stack
    }

    /// Whether it runs the program that the sampler knows; true if unknown.
    pub(super) fn runs_known_program(&self) -> bool {
        proc::start_stack(self.process.pid).is_none_or(|now| self.start_stack.is_none_or(|then| then == now))
    }
}

impl Observed for TracedProcess {
    fn process(&self) -> &Process {
        &self.process.description
    }

    fn inner(&mut self) -> Option<&mut dyn Observed> {
        Some(&mut self.process)
    }

    fn thread_name(&mut self, thread: ThreadId) -> Option<String> {
        let tid = pid_t::try_from(thread.0).ok()?;
        self.last_names.remove(&tid).or_else(|| self.process.thread_name(thread))
    }

    fn mappings(&mut self, out: &mut Vec<Mapping>) -> Result<(), Fault> {
        let read = self.process.read_mappings(self.threads.iter().copied(), out);
        if read.is_ok() && self.runs_known_program() {
            self.process.place_moved_text(out);
            self.known = Rc::new(out.clone());
            return read;
        }
        out.clone_from(&self.known);
        if out.is_empty() { read.and(Err(Fault::Transient("another program runs already"))) } else { Ok(()) }
    }

    fn reads_memory_cheaply(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod traced_process_tests {
    #![allow(clippy::unwrap_used)]

    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn an_exec_before_the_seizing_is_noticed() {
        // No event reports that exec, as in `./program & stackprof --pid $!`.
        let mut shell = Command::new("sh");
        let mut child = shell.args(["-c", "read go; exec sleep 60"]).stdin(Stdio::piped()).spawn().unwrap();
        let pid = child.id().cast_signed();
        let name = || proc::name(pid, pid);
        let wait_for = |wanted: &str| {
            let until = Instant::now() + Duration::from_secs(60);
            while name().as_deref() != Some(wanted) {
                assert!(Instant::now() < until, "{:?} is not {wanted}", name());
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        wait_for("sh");
        let mut traced = TracedProcess::new(pid, refusal::describe(pid));
        let mut mappings = Vec::new();
        // The end of its input works like a line.
        drop(child.stdin.take());
        wait_for("sleep");
        // The kernel sets the name before the stack.
        let until = Instant::now() + Duration::from_secs(60);
        while traced.runs_known_program() {
            assert!(Instant::now() < until, "both programs began with one stack pointer");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(matches!(traced.mappings(&mut mappings), Err(Fault::Transient(_))));
        // Moving mappings settle some time later.
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            traced.reread_description();
            if traced.mappings(&mut mappings).is_ok_and(|()| !mappings.is_empty()) {
                break;
            }
            assert!(Instant::now() < until, "no mappings of {:?}", traced.process());
        }
        assert_eq!((traced.process().name.as_str(), traced.process().pid), ("sleep", child.id()));
        assert_eq!(traced.process().command, "sleep 60");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
