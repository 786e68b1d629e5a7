//! A traced process, as the sampler observes it.
//!
//! Its mappings are read from /proc, which shows the current ones, perhaps those of the next program before
//! the sampler has seen its `exec`. The stack pointer at a program's start distinguishes them; until the
//! sampler knows of the exec, it gets the old mappings. A newly forked process has those of its parent.

use std::rc::Rc;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use libc::pid_t;

use crate::addr::Avma;
use crate::binary::{Files, ImageBytes, Mapping, OpenError, ProgramPath};
use crate::sources::linux::files::TargetFiles;
use crate::sources::linux::images::{self, Maps};
use crate::sources::linux::perf::{process_cpu_ns, update_thread_clocks};
use crate::sources::linux::program_path::StartPath;
use crate::sources::linux::{describe, sys, threads};
use crate::sources::{Fault, Observed, Process, ThreadId};

/// A thread with a stack pointer at most this far below that of the program's start is on the first thread's
/// stack: stacks of other threads begin below this gap (`MIN_GAP` in arch/x86/mm/mmap.c, 128 MiB; 128 MiB in
/// mm/util.c for aarch64).
const FIRST_STACK_BYTES: u64 = 128 << 20;

/// A traced process.
#[derive(Debug)]
pub(super) struct TracedProcess {
    pid: pid_t,
    /// The thread through which /proc shows the memory: the first, until it exits.
    memory_of: pid_t,
    process: Process,
    /// Its traced threads.
    threads: HashSet<pid_t>,
    maps: Maps,
    /// The mappings last read, of this program or of the process it was forked from.
    known: Rc<Vec<Mapping>>,
    /// The initial stack pointer of its program.
    start_stack: Option<Avma>,
    start_path: StartPath,
    files: Arc<TargetFiles>,
    /// The files belong to its parent.
    files_inherited: bool,
    /// The names of exited threads, until they are used.
    last_names: HashMap<pid_t, String>,
    /// Its CPU time at exit.
    used_ns: Option<u64>,
}

impl TracedProcess {
    /// A running process; with pid 0, the placeholder for several.
    pub(super) fn new(pid: pid_t, process: Process) -> TracedProcess {
        TracedProcess {
            pid,
            memory_of: threads::living_thread(pid).unwrap_or(pid),
            process,
            threads: HashSet::new(),
            maps: Maps::default(),
            known: Rc::default(),
            start_stack: threads::start_stack(pid),
            start_path: StartPath::default(),
            files: Arc::new(TargetFiles::of(pid)),
            files_inherited: false,
            last_names: HashMap::new(),
            used_ns: None,
        }
    }

    /// A process that this one has just forked.
    pub(super) fn forked(&self, pid: pid_t) -> TracedProcess {
        let number = pid.unsigned_abs();
        let process = Process { pid: number, command: String::new(), ..self.process.clone() };
        TracedProcess {
            pid,
            memory_of: pid,
            process,
            threads: HashSet::new(),
            maps: Maps::default(),
            known: Rc::clone(&self.known),
            start_stack: self.start_stack,
            start_path: self.start_path.clone(),
            files: Arc::clone(&self.files),
            files_inherited: true,
            last_names: HashMap::new(),
            used_ns: None,
        }
    }

    /// Handles `exec`: another program runs, under the name that /proc shows. Returns the threads before.
    pub(super) fn exec(&mut self) -> HashSet<pid_t> {
        if let Some(name) = threads::name(self.pid, self.pid) {
            self.process.name = name;
        }
        self.memory_of = self.pid;
        self.last_names.clear();
        self.known = Rc::default();
        self.start_stack = threads::start_stack(self.pid);
        self.start_path = StartPath::default();
        self.process.arch = describe::arch(self.start_stack);
        self.forget_threads()
    }

    /// Reads the description again after its threads were seized: no event reports an exec between the first
    /// description and the seizing.
    pub(super) fn reread_description(&mut self) {
        let why = std::mem::take(&mut self.process.backend_why);
        self.process = Process { backend_why: why, ..describe::describe(self.pid) };
        self.start_stack = threads::start_stack(self.pid);
        self.start_path = StartPath::default();
        self.memory_of = threads::living_thread(self.pid).unwrap_or(self.pid);
    }

    /// Replaces the description.
    pub(super) fn set_process(&mut self, process: Process) {
        self.process = process;
        self.files = Arc::new(TargetFiles::of(self.pid));
    }

    /// Sets the reason why processes are traced rather than sampled by the kernel.
    pub(super) fn chosen_because(&mut self, why: String) {
        self.process.backend_why = why;
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
            process_cpu_ns(self.pid)
        })
    }

    pub(super) fn pid(&self) -> pid_t {
        self.pid
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
            && let Some(name) = threads::name(self.pid, tid)
        {
            self.last_names.insert(tid, name);
        }
    }

    /// Records the CPU time of the exited process before it is reaped: its clock exists until then.
    pub(super) fn save_cpu_time(&mut self) {
        self.used_ns = process_cpu_ns(self.pid);
    }

    /// The initial stack pointer of its program.
    pub(super) fn start_stack(&self) -> Option<Avma> {
        self.start_stack
    }

    /// Whether it runs the program that the sampler knows; true if unknown.
    pub(super) fn runs_known_program(&self) -> bool {
        threads::start_stack(self.pid).is_none_or(|now| self.start_stack.is_none_or(|then| then == now))
    }
}

impl Observed for TracedProcess {
    fn process(&self) -> &Process {
        &self.process
    }

    fn files(&mut self) -> Arc<dyn Files> {
        if self.files_inherited {
            let files = TargetFiles::of(self.pid);
            // An exited process has no root any longer; its parent had the same.
            if files.has_root() {
                self.files = Arc::new(files);
            }
            self.files_inherited = false;
        }
        Arc::clone(&self.files) as Arc<dyn Files>
    }

    fn thread_name(&mut self, thread: ThreadId) -> Option<String> {
        let tid = pid_t::try_from(thread.0).ok()?;
        self.last_names.remove(&tid).or_else(|| threads::name(self.pid, tid))
    }

    fn mappings(&mut self, out: &mut Vec<Mapping>) -> Result<(), Fault> {
        let read = self.maps.read_through(&mut self.memory_of, self.threads.iter().copied(), out);
        if read.is_ok() && self.runs_known_program() {
            self.maps.place_moved_text(self.memory_of, out);
            self.known = Rc::new(out.clone());
            return read;
        }
        out.clone_from(&self.known);
        if out.is_empty() { read.and(Err(Fault::Transient("another program runs already"))) } else { Ok(()) }
    }

    fn program_path(&mut self, mappings: &[Mapping]) -> Option<Arc<ProgramPath>> {
        let (pid, name, patience) = (self.memory_of, &self.process.name, &self.maps.patience);
        self.start_path.of(pid, name, &self.files, patience, mappings)
    }

    fn image_bytes(&mut self, mapping: &Mapping) -> Result<ImageBytes, OpenError> {
        self.maps.last_bytes(self.memory_of, mapping, &self.files, None)
    }

    fn reads_memory_cheaply(&self) -> bool {
        true
    }

    fn read_memory(&mut self, from: Avma, into: &mut [u8]) -> Result<usize, Fault> {
        sys::read_memory(self.memory_of, from.0, into).map_err(|_| Fault::Transient("memory not mapped"))
    }
}

#[cfg(test)]
mod tests {
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
        let name = || threads::name(pid, pid);
        let wait_for = |wanted: &str| {
            let until = Instant::now() + Duration::from_secs(60);
            while name().as_deref() != Some(wanted) {
                assert!(Instant::now() < until, "{:?} is not {wanted}", name());
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        wait_for("sh");
        let mut traced = TracedProcess::new(pid, describe::describe(pid));
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
