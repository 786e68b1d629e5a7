//! One sampled process: its name and threads, what records reported about it, its images.
//!
//! Much of it outlives the process: the frames of one that ran for two milliseconds are named by its records, and
//! by the files of its parent.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use hashbrown::HashMap;
use libc::pid_t;

use super::super::ring::record::SampleId;
use super::images::ProcessImages;
use super::procfs::Procfs;
use crate::addr::Avma;
use crate::binary::{Files, ImageBytes, Mapping, OpenError, ProgramPath};
use crate::sources::linux::files::TargetFiles;
use crate::sources::linux::{images, threads};
use crate::sources::{Capture, Fault, Observed, Process, ThreadId};

/// Maximum number of threads of a process whose names are read before their first samples.
const NAMES_MAX: usize = 1024;

/// A sampled process.
pub(in super::super) struct ProcessEntry {
    pid: pid_t,
    process: Process,
    pub(super) images: ProcessImages,
    /// Top of the first thread's stack; empty until read.
    main_stack_top: OnceCell<Option<Avma>>,
    /// Names of threads.
    names: HashMap<pid_t, String>,
    /// Threads known to the sampler.
    pub(super) threads: BTreeSet<pid_t>,
    /// Start times of other threads, if recorded (monotonic clock).
    pub(super) starts: HashMap<pid_t, u64>,
    /// Whether its command is still to be executed.
    pub(super) awaits_exec: bool,
    program: Program,
    /// Time of the last exec reported to the sampler (monotonic clock); 0 if none.
    pub(super) program_since_ns: u64,
    /// Whether the sampler knows the process.
    pub(super) is_announced: bool,
    /// Time of its last record (monotonic clock).
    pub(super) seen_ns: u64,
    pub(super) exits: Exits,
}

/// The program that a process runs.
#[derive(Debug, Default)]
struct Program {
    /// Unique to each exec and each process.
    generation: u64,
    /// Whether it was named but has not run yet, and its code.
    is_starting: bool,
    new_code: Vec<Range<Avma>>,
}

/// Known exits of a process's threads.
#[derive(Debug, Default)]
pub(super) struct Exits {
    /// Threads that exited in this batch, and in earlier batches.
    pub(super) now: Vec<SampleId>,
    pub(super) before: Vec<SampleId>,
    /// Exit time of the last thread, if all exits were recorded (monotonic clock).
    pub(super) last_ns: Option<u64>,
    /// Whether the first thread has exited.
    pub(super) first_thread: bool,
    /// Whether no thread was alive at the end of the last batch.
    pub(super) is_dead: bool,
    /// After the end of the process: batches until its removal.
    pub(super) batches_left: Option<u8>,
}

impl ProcessEntry {
    /// A running process, or one about to run a command.
    pub(in super::super) fn new(process: Process, files: Arc<TargetFiles>) -> ProcessEntry {
        let pid = pid_t::try_from(process.pid).unwrap_or(0);
        ProcessEntry::with(pid, process, ProcessImages::new(pid, files))
    }

    fn with(pid: pid_t, process: Process, images: ProcessImages) -> ProcessEntry {
        ProcessEntry {
            pid,
            process,
            images,
            main_stack_top: OnceCell::new(),
            names: HashMap::new(),
            threads: BTreeSet::new(),
            starts: HashMap::new(),
            awaits_exec: false,
            program: Program::default(),
            program_since_ns: 0,
            is_announced: false,
            seen_ns: 0,
            exits: Exits::default(),
        }
    }

    /// Another process: `started` by this one just now, or found running.
    pub(super) fn new_for(&self, pid: pid_t, started: bool, procfs: &dyn Procfs) -> ProcessEntry {
        let name = if started { self.process.name.clone() } else { procfs.name(pid) };
        let process =
            Process { pid: pid.unsigned_abs(), name, command: String::new(), ..self.process.clone() };
        ProcessEntry::with(pid, process, self.images.new_for(pid, started))
    }

    /// Reads what names need of a running process: it may have ended when its first sample is processed.
    pub(super) fn read_running(&mut self, procfs: &dyn Procfs) {
        if self.awaits_exec {
            return;
        }
        self.images.read_running(&self.process.name);
        self.main_stack_top(procfs);
        for tid in procfs.threads(self.pid).into_iter().take(NAMES_MAX) {
            self.inherited_name(tid, procfs);
        }
    }

    /// Its pid.
    pub(in super::super) fn pid(&self) -> pid_t {
        self.pid
    }

    /// Notes that the command now runs as this process.
    pub(in super::super) fn set_spawned(&mut self, process: Process) {
        self.process = process;
        self.images.forget_start_path();
        self.images.open_own_files();
    }

    /// Records an exec to a program of this name and generation.
    pub(super) fn exec(&mut self, name: &str, generation: u64) {
        name.clone_into(&mut self.process.name);
        self.main_stack_top = OnceCell::new();
        self.images.forget_start_path();
        self.program = Program { generation, is_starting: true, new_code: Vec::new() };
    }

    /// After lost records: the mappings are read from /proc, and if /proc shows another program than the records,
    /// its name is returned. A name other than its file's was set by the process itself (prctl(2), `PR_SET_NAME`).
    pub(super) fn rescan(&mut self, generation: u64, procfs: &dyn Procfs) -> Option<String> {
        self.images.distrust_records();
        let name = procfs.name(self.pid);
        let of_file = procfs.program(self.pid)?.starts_with(name.as_bytes());
        if name.is_empty() || !of_file || name == self.process.name || self.awaits_exec {
            return None;
        }
        self.process.name.clone_from(&name);
        self.names.insert(self.pid, name.clone());
        self.main_stack_top = OnceCell::new();
        self.images.forget_start_path();
        self.program = Program { generation, ..Program::default() };
        Some(name)
    }

    /// The generation of its program.
    pub(super) fn program(&self) -> u64 {
        self.program.generation
    }

    /// Assigns its program a unique number.
    pub(super) fn set_program(&mut self, generation: u64) {
        self.program.generation = generation;
    }

    /// Records a mapping of code; its memory as seen by the sampler changes with the sampler's time.
    pub(super) fn note_mapping(&mut self, mapping: &Mapping) {
        if self.program.is_starting {
            self.program.new_code.push(mapping.avma.clone());
        }
    }

    /// Until a new program runs, registers are those of the replaced one.
    pub(super) fn note_sample(&mut self, capture: &mut Capture) {
        if self.program.is_starting {
            let pc = capture.registers.pc();
            self.program.is_starting = !self.program.new_code.iter().any(|code| code.contains(&pc));
            capture.only_kernel |= self.program.is_starting && !capture.kernel.is_empty();
        }
    }

    /// Sets the name of a thread.
    pub(super) fn name_thread(&mut self, tid: pid_t, name: String) {
        self.names.insert(tid, name);
    }

    /// Drops the name of an exited thread.
    pub(super) fn forget_thread_name(&mut self, tid: pid_t) {
        self.names.remove(&tid);
    }

    /// The name of a thread, inherited by the threads it starts until they are named.
    pub(super) fn inherited_name(&mut self, tid: pid_t, procfs: &dyn Procfs) -> Option<String> {
        if let Some(name) = self.names.get(&tid) {
            return Some(name.clone());
        }
        let name = procfs.thread_name(self.pid, tid)?;
        self.names.insert(tid, name.clone());
        Some(name)
    }

    /// Threads with a name in /proc that differs from the recorded one, with that name.
    pub(super) fn rescan_names(&mut self, procfs: &dyn Procfs) -> Vec<(pid_t, String)> {
        let now = self.threads.iter().filter_map(|tid| Some((*tid, procfs.thread_name(self.pid, *tid)?)));
        let named: Vec<_> = now.filter(|(tid, now)| self.names.get(tid) != Some(now)).collect();
        self.names.extend(named.iter().cloned());
        named
    }

    /// Its name.
    pub(super) fn name(&self) -> &str {
        &self.process.name
    }

    /// The initial stack pointer of the first thread.
    pub(super) fn main_stack_top(&mut self, procfs: &dyn Procfs) -> Option<Avma> {
        let pid = self.pid;
        *self.main_stack_top.get_or_init(|| procfs.stack_top(pid))
    }

    /// Whether its program is 32-bit; `None` if the process is gone.
    pub(super) fn is_of_32_bits(&mut self, procfs: &dyn Procfs) -> Option<bool> {
        self.main_stack_top(procfs).map(images::is_of_32_bits)
    }

    /// Whether it has ended, as far as batches show.
    pub(super) fn has_ended(&self) -> bool {
        self.exits.batches_left.is_some()
    }
}

impl Observed for ProcessEntry {
    fn process(&self) -> &Process {
        &self.process
    }

    fn files(&mut self) -> Arc<dyn Files> {
        self.images.files()
    }

    fn thread_name(&mut self, thread: ThreadId) -> Option<String> {
        let tid = pid_t::try_from(thread.0).ok()?;
        self.names.get(&tid).cloned().or_else(|| threads::name(self.pid, tid))
    }

    fn mappings(&mut self, out: &mut Vec<Mapping>) -> Result<(), Fault> {
        self.images.mappings(self.threads.iter().copied(), out)
    }

    /// By MMAP2 records, including mprotect(2) (mm/mprotect.c, `mprotect_fixup`).
    fn reports_mmaps(&self) -> bool {
        true
    }

    fn program_path(&mut self, mappings: &[Mapping]) -> Option<Arc<ProgramPath>> {
        self.images.program_path(&self.process.name, mappings)
    }

    fn image_bytes(&mut self, mapping: &Mapping) -> Result<ImageBytes, OpenError> {
        self.images.bytes(mapping, self.seen_ns)
    }

    fn read_memory(&mut self, from: Avma, into: &mut [u8]) -> Result<usize, Fault> {
        self.images.read_memory(from, into)
    }
}
