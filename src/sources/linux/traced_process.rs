//! One of the traced processes, as the engine observes it.
//!
//! Its mappings are read from /proc, which shows the current ones, perhaps those of the next program, whose `exec`
//! the engine has not seen yet. The stack pointer at a program's start tells them apart; until the engine knows of
//! the exec, it gets the old mappings. A process that was just forked has those of its parent.

use std::rc::Rc;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use libc::pid_t;

use super::files::TargetFiles;
use super::images::{self, Maps};
use super::perf::{process_cpu_ns, update_thread_clocks};
use super::program_path::StartPath;
use super::{describe, sys, threads};
use crate::addr::Avma;
use crate::binary::{Files, ImageBytes, Mapping, MappingKind, OpenError, ProgramPath};
use crate::sources::{Fault, Observed, Process, ThreadId};

/// A thread whose stack pointer is so far below that of the start of the program, or less, is on the
/// first thread's stack: memory for the stacks of others begins below this gap at the earliest
/// (`MIN_GAP` in arch/x86/mm/mmap.c, 128 MiB; 128 MiB in mm/util.c for aarch64).
const FIRST_STACK_BYTES: u64 = 128 << 20;

/// A process that is traced.
#[derive(Debug)]
pub(super) struct TracedProcess {
    pid: pid_t,
    /// The thread through which /proc shows the memory: the first, until it has left.
    memory_of: pid_t,
    process: Process,
    /// Those that are traced.
    pub(super) threads: HashSet<pid_t>,
    maps: Maps,
    /// What was mapped when that was read last, by this program or the process it was forked from.
    known: Rc<Vec<Mapping>>,
    /// The stack pointer that its program began with.
    start_stack: Option<Avma>,
    start_path: StartPath,
    files: Arc<TargetFiles>,
    /// They are those of the process that started it.
    files_inherited: bool,
    /// The names of exited threads, until they are used.
    last_names: HashMap<pid_t, String>,
    /// What it had used at its end.
    used_ns: Option<u64>,
}

impl TracedProcess {
    /// A running process; with a number of 0, the placeholder for several.
    pub(super) fn new(pid: pid_t, process: Process) -> TracedProcess {
        TracedProcess {
            pid,
            memory_of: threads::living(pid).unwrap_or(pid),
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

    /// A process that this one has just started.
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

    /// It runs another program from now on, under the name that /proc shows.
    pub(super) fn replaced(&mut self) {
        if let Some(name) = threads::name(self.pid, self.pid) {
            self.process.name = name;
        }
        self.memory_of = self.pid;
        self.threads.clear();
        self.last_names.clear();
        self.known = Rc::default();
        self.start_stack = threads::start_stack(self.pid);
        self.start_path = StartPath::default();
        self.process.arch = describe::arch(self.start_stack);
    }

    /// Learns again what it is, now that its threads are traced: a program that began before they
    /// were, but after that was learned first, is reported by no event.
    pub(super) fn learn_again(&mut self) {
        let why = std::mem::take(&mut self.process.backend_why);
        self.process = Process { backend_why: why, ..describe::describe(self.pid) };
        self.start_stack = threads::start_stack(self.pid);
        self.start_path = StartPath::default();
        self.memory_of = threads::living(self.pid).unwrap_or(self.pid);
    }

    /// It was described again.
    pub(super) fn set_process(&mut self, process: Process) {
        self.process = process;
        self.files = Arc::new(TargetFiles::of(self.pid));
    }

    /// Sets the reason why processes are traced rather than sampled by the kernel.
    pub(super) fn chosen_because(&mut self, why: String) {
        self.process.backend_why = why;
    }

    /// The stack pointer that the first thread of a process was born with that was just forked and
    /// has this one: that of the program, unless another thread than the first forked.
    pub(super) fn stack_top_above(&self, sp: Avma) -> Option<Avma> {
        self.start_stack.filter(|top| top.0.wrapping_sub(sp.0) < FIRST_STACK_BYTES)
    }

    /// Whether its program is one of 32 bits, on a processor whose 64-bit programs are recorded.
    pub(super) fn is_of_32_bits(&self) -> bool {
        self.start_stack.is_some_and(images::is_of_32_bits)
    }

    /// CPU time of all of its threads so far, those included that ended or are not traced, nanoseconds.
    pub(super) fn cpu_ns(&self) -> Option<u64> {
        self.used_ns.or_else(|| {
            update_thread_clocks(self.threads.iter().copied());
            process_cpu_ns(self.pid)
        })
    }

    /// A thread of it has ended, and is about to be reaped: /proc shows its name until then.
    pub(super) fn thread_ended(&mut self, tid: pid_t) {
        if self.threads.remove(&tid)
            && let Some(name) = threads::name(self.pid, tid)
        {
            self.last_names.insert(tid, name);
        }
    }

    /// It has ended, and is about to be reaped: its clock is there until then.
    pub(super) fn keep_cpu_time(&mut self) {
        self.used_ns = process_cpu_ns(self.pid);
    }

    /// The stack pointer that its program began with.
    pub(super) fn start_stack(&self) -> Option<Avma> {
        self.start_stack
    }

    /// Whether it runs the program that the engine knows, as far as can be known.
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
        self.maps.bytes(self.memory_of, mapping).or_else(|why| match mapping.kind {
            MappingKind::File if !matches!(why, OpenError::NoAnswer) => self
                .files
                .open_same(&self.maps.patience, &mapping.path, mapping.identity, None)
                .unwrap_or(Err(why)),
            // All processes have the same.
            MappingKind::Vdso => images::own_vdso().ok_or(why),
            MappingKind::File | MappingKind::Anonymous | MappingKind::Registered => Err(why),
        })
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
    fn a_program_that_began_before_it_was_seized_is_learned() {
        // No event tells of that exec, as in `./program & stackprof --pid $!`.
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
        // Of the end of its input it is told as of a line.
        drop(child.stdin.take());
        wait_for("sleep");
        // The name comes before the stack.
        let until = Instant::now() + Duration::from_secs(60);
        while traced.runs_known_program() {
            assert!(Instant::now() < until, "both programs began with one stack pointer");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(matches!(traced.mappings(&mut mappings), Err(Fault::Transient(_))));
        // What is in motion at first stands still some time later.
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            traced.learn_again();
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
