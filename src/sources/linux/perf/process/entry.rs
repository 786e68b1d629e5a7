//! One sampled process: its name and threads, what records reported about it, its images.
//!
//! `ProcessEntry`: the process; `ProcessImages` reads its images, `MmapHistory` has its mappings by records.
//!
//! Much of it outlives the process: the frames of one that ran for two milliseconds are named by its records, and
//! by the files of its parent.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hashbrown::HashMap;
use libc::pid_t;

use super::filter::Procfs;
use crate::addr::Avma;
use crate::binary::{ImageBytes, Mapping, OpenError};
use crate::sources::linux::clocks::monotonic_ns;
use crate::sources::linux::files::TargetFiles;
use crate::sources::linux::images;
use crate::sources::linux::perf::ring::SampleId;
use crate::sources::linux::process::LinuxProcess;
use crate::sources::linux::program_path::StartPath;
use crate::sources::maps_line::without_deleted;
use crate::sources::{Capture, Fault, Observed, Process, ThreadId};

/// Maximum number of threads of a process whose names are read before their first samples.
const NAMES_MAX: usize = 1024;

/// A sampled process.
pub(crate) struct ProcessEntry {
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
    pub(crate) fn new(description: Process, files: Arc<TargetFiles>) -> ProcessEntry {
        let pid = pid_t::try_from(description.pid).unwrap_or(0);
        ProcessEntry::with(ProcessImages::new(LinuxProcess::new(pid, description, files)))
    }

    fn with(images: ProcessImages) -> ProcessEntry {
        ProcessEntry {
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
        let mut entry = ProcessEntry::with(self.images.new_for(pid, started));
        if !started {
            entry.process_mut().description.name = procfs.name(pid);
        }
        entry
    }

    /// Reads what names need of a running process: it may have ended when its first sample is processed.
    pub(super) fn read_running(&mut self, procfs: &dyn Procfs) {
        if self.awaits_exec {
            return;
        }
        self.images.read_running();
        self.main_stack_top(procfs);
        for tid in procfs.threads(self.pid()).into_iter().take(NAMES_MAX) {
            self.inherited_name(tid, procfs);
        }
    }

    /// Its pid.
    pub(crate) fn pid(&self) -> pid_t {
        self.images.process.pid
    }

    fn process_mut(&mut self) -> &mut LinuxProcess {
        &mut self.images.process
    }

    /// Notes that the command now runs as this process.
    pub(crate) fn set_spawned(&mut self, description: Process) {
        let process = self.process_mut();
        process.description = description;
        process.start_path = StartPath::default();
        process.open_own_files();
    }

    /// Records an exec to a program of this name and generation.
    pub(super) fn exec(&mut self, name: &str, generation: u64) {
        self.rename(name);
        self.program = Program { generation, is_starting: true, new_code: Vec::new() };
    }

    fn rename(&mut self, name: &str) {
        name.clone_into(&mut self.process_mut().description.name);
        self.process_mut().start_path = StartPath::default();
        self.main_stack_top = OnceCell::new();
    }

    /// After lost records: the mappings are read from /proc, and if /proc shows another program than the records,
    /// its name is returned. A name other than its file's was set by the process itself (prctl(2), `PR_SET_NAME`).
    pub(super) fn rescan(&mut self, generation: u64, procfs: &dyn Procfs) -> Option<String> {
        self.images.distrust_records();
        let pid = self.pid();
        let name = procfs.name(pid);
        let of_file = procfs.program(pid)?.starts_with(name.as_bytes());
        if name.is_empty() || !of_file || name == self.name() || self.awaits_exec {
            return None;
        }
        self.rename(&name);
        self.names.insert(pid, name.clone());
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
        let name = procfs.thread_name(self.pid(), tid)?;
        self.names.insert(tid, name.clone());
        Some(name)
    }

    /// Threads with a name in /proc that differs from the recorded one, with that name.
    pub(super) fn rescan_names(&mut self, procfs: &dyn Procfs) -> Vec<(pid_t, String)> {
        let now = self.threads.iter().filter_map(|tid| Some((*tid, procfs.thread_name(self.pid(), *tid)?)));
        let named: Vec<_> = now.filter(|(tid, now)| self.names.get(tid) != Some(now)).collect();
        self.names.extend(named.iter().cloned());
        named
    }

    /// Its name.
    pub(super) fn name(&self) -> &str {
        &self.images.process.description.name
    }

    /// The initial stack pointer of the first thread.
    pub(super) fn main_stack_top(&mut self, procfs: &dyn Procfs) -> Option<Avma> {
        let pid = self.pid();
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
        &self.images.process.description
    }

    fn inner(&mut self) -> Option<&mut dyn Observed> {
        Some(&mut self.images.process)
    }

    fn thread_name(&mut self, thread: ThreadId) -> Option<String> {
        let tid = pid_t::try_from(thread.0).ok()?;
        self.names.get(&tid).cloned().or_else(|| self.process_mut().thread_name(thread))
    }

    fn mappings(&mut self, out: &mut Vec<Mapping>) -> Result<(), Fault> {
        self.images.mappings(self.threads.iter().copied(), out)
    }

    /// By MMAP2 records, including mprotect(2) (mm/mprotect.c, `mprotect_fixup`).
    fn reports_mmaps(&self) -> bool {
        true
    }

    fn image_bytes(&mut self, mapping: &Mapping) -> Result<ImageBytes, OpenError> {
        self.images.bytes(mapping, self.seen_ns)
    }
}

// ---- Memory and files of a process, for reading its images: through /proc while it exists, otherwise by its
// records and the files of its parent.

/// Time for which only records describe the memory of a new program, nanoseconds.
const RECORDS_HOLD_NS: u64 = 1_000_000_000;

/// Memory and files of one process.
pub(super) struct ProcessImages {
    process: LinuxProcess,
    /// Executable memory by the records, or as last read.
    history: MmapHistory,
    /// Files without a name, by device and inode: only a running process leads to them.
    deleted: HashMap<(u64, u64), ImageBytes>,
    /// Time since which all of its executable memory is known from records (monotonic clock): an exec, or the
    /// start of the process.
    from_records_ns: Option<u64>,
}

impl ProcessImages {
    /// Images of a process.
    fn new(mut process: LinuxProcess) -> ProcessImages {
        process.find_memory();
        ProcessImages {
            process,
            history: MmapHistory::default(),
            deleted: HashMap::new(),
            from_records_ns: None,
        }
    }

    /// Reads what naming needs of a running process: it may have ended when its first sample is processed. Records
    /// continue the list of mappings.
    fn read_running(&mut self) {
        let (process, mut mappings) = (&mut self.process, Vec::new());
        if process.read_mappings(std::iter::empty(), &mut mappings).is_err() {
            return;
        }
        process.place_moved_text(&mut mappings);
        process.program_path(&mappings);
        for mapping in mappings.iter().filter(|mapping| without_deleted(&mapping.path).1) {
            if let Ok(bytes) = process.maps.bytes(process.memory_of, mapping) {
                self.deleted.insert(mapping.identity, bytes);
            }
        }
        self.history.replace(&mappings);
    }

    /// Images of another process: `started` by this one just now, or found running.
    fn new_for(&self, pid: pid_t, started: bool) -> ProcessImages {
        let mut images = ProcessImages::new(self.process.started(pid));
        if started {
            images.history.clone_from(&self.history);
            images.deleted.clone_from(&self.deleted);
        } else {
            images.process.start_path = StartPath::default();
        }
        images
    }

    /// Executable memory by the records.
    pub(super) fn history(&self) -> &MmapHistory {
        &self.history
    }

    /// After lost records: the mappings are read from /proc.
    pub(super) fn distrust_records(&mut self) {
        self.from_records_ns = None;
    }

    /// Records an exec at this time, with the mappings of the new program in records.
    pub(super) fn exec_at(&mut self, at_ns: u64) {
        self.history.clear();
        self.deleted.clear();
        self.from_records_ns = Some(at_ns);
    }

    /// Starts the process with a copy of this memory, which may be unknown.
    pub(super) fn fork_at(&mut self, history: MmapHistory, at_ns: u64) {
        self.from_records_ns = (!history.list().is_empty()).then_some(at_ns);
        self.history = history;
    }

    /// Adds a mapping of code.
    pub(super) fn add(&mut self, mapping: Mapping) {
        self.history.add(mapping);
    }

    /// The executable mappings; `threads`: threads of the process through which /proc may show them.
    pub(super) fn mappings(
        &mut self,
        threads: impl Iterator<Item = pid_t>,
        out: &mut Vec<Mapping>,
    ) -> Result<(), Fault> {
        out.clear();
        // /proc shows the current mappings, possibly of another program already; records lack unmapped memory,
        // which matters only after a while.
        if self.from_records_ns.is_some_and(|since_ns| monotonic_ns() < since_ns + RECORDS_HOLD_NS) {
            out.extend_from_slice(self.history.list());
            self.process.place_moved_text(out);
            return if out.is_empty() { Err(Fault::Transient("nothing is mapped yet")) } else { Ok(()) };
        }
        // After an exec the first thread has the memory again.
        self.process.memory_of = self.process.pid;
        let read = self.process.read_mappings(threads, out);
        if read.is_ok() {
            self.process.place_moved_text(out);
            self.history.replace(out);
            return read;
        }
        // It is ending, or has ended.
        out.extend_from_slice(self.history.list());
        if out.is_empty() { read } else { Ok(()) }
    }

    /// The bytes of a mapping; `seen_ns`: time of the process's last record (monotonic clock).
    pub(super) fn bytes(&self, mapping: &Mapping, seen_ns: u64) -> Result<ImageBytes, OpenError> {
        // While it ran, its program could not be written to (ETXTBSY), but since then it could.
        let ago = Duration::from_nanos(monotonic_ns().saturating_sub(seen_ns));
        let seen = SystemTime::now().checked_sub(ago);
        let bytes = self.process.last_bytes(mapping, seen);
        bytes.or_else(|why| self.deleted.get(&mapping.identity).cloned().ok_or(why))
    }
}

// ---- The executable memory of a process by its records (PERF_RECORD_MMAP2), for when the process, and with it
// `/proc/PID/maps`, is gone.
//
// No record reports unmapping, so a later mapping replaces whatever it overlaps.

/// Maximum number of mappings. No time is lost beyond it: samples in further code keep their weight, and their
/// frames count as unnamed, or their stacks as incomplete, until /proc/PID/maps is read again. Processes have
/// fewer at a time (`vm.max_map_count`): a list this long consists mostly of mappings already removed by
/// munmap(2), which is not recorded.
const MAPPINGS_MAX: usize = 65_536;

/// The mappings of one process.
#[derive(Clone, Debug, Default)]
pub(crate) struct MmapHistory {
    /// Sorted, disjoint.
    list: Vec<Mapping>,
}

impl MmapHistory {
    /// Clears the mappings at exec.
    pub(crate) fn clear(&mut self) {
        self.list.clear();
    }

    /// Replaces the mappings by a list as read.
    pub(crate) fn replace(&mut self, list: &[Mapping]) {
        self.list.clear();
        self.list.extend_from_slice(list);
    }

    /// All of them.
    pub(crate) fn list(&self) -> &[Mapping] {
        &self.list
    }

    /// Adds a new mapping.
    pub(crate) fn add(&mut self, mapping: Mapping) {
        let (start, end) = (mapping.avma.start, mapping.avma.end);
        let from = self.list.partition_point(|old| old.avma.end <= start);
        let to = self.list.partition_point(|old| old.avma.start < end);
        let mut kept = Vec::new();
        for old in self.list.get(from..to).unwrap_or_default() {
            if old.avma.start < start {
                kept.push(Mapping { avma: old.avma.start..start, ..old.clone() });
            }
        }
        kept.push(mapping);
        for old in self.list.get(from..to).unwrap_or_default() {
            if old.avma.end > end {
                let cut = end - old.avma.start;
                let file_offset = old.file_offset.wrapping_add(cut);
                kept.push(Mapping { avma: end..old.avma.end, file_offset, ..old.clone() });
            }
        }
        if self.list.len() - (to - from) + kept.len() <= MAPPINGS_MAX {
            self.list.splice(from..to, kept);
        }
    }
}

#[cfg(test)]
mod images_tests {
    #![allow(clippy::unwrap_used)]
    use std::process::Command;

    use super::*;
    use crate::sources::linux::refusal;

    /// Its first samples are processed after it ended.
    #[test]
    fn what_names_need_outlives_a_process_without_samples() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        std::fs::copy("/bin/sleep", &file).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        for is_deleted in [false, true] {
            let mut child = Command::new(&link).arg("60").spawn().unwrap();
            if is_deleted {
                std::fs::remove_file(&file).unwrap();
            }
            let pid = child.id().cast_signed();
            let files = Arc::new(TargetFiles::of(pid));
            let description = Process { name: "link".to_owned(), ..refusal::describe(pid) };
            let mut images = ProcessImages::new(LinuxProcess::new(pid, description, files));
            // The parent runs on before the program is mapped.
            while images.history().list().is_empty() {
                images.read_running();
            }
            child.kill().unwrap();
            child.wait().unwrap();
            let mut mappings = Vec::new();
            images.mappings(std::iter::empty(), &mut mappings).unwrap();
            let is_program = |mapping: &&Mapping| mapping.path.starts_with(file.to_str().unwrap());
            let program = mappings.iter().find(is_program).unwrap();
            let bytes = images.bytes(program, monotonic_ns());
            if is_deleted {
                // Only with CAP_CHECKPOINT_RESTORE do links lead to such a file.
                let has_rights = std::fs::read_dir("/proc/self/map_files").unwrap().next().unwrap().unwrap();
                let has_rights = std::fs::metadata(has_rights.path()).is_ok();
                assert_eq!(bytes.is_ok(), has_rights);
            } else {
                assert!(bytes.is_ok());
                let started_as = images.process.program_path(&mappings).unwrap().started_as.clone();
                assert_eq!(started_as, link.to_str().unwrap());
            }
        }
    }
}

#[cfg(test)]
mod mmap_history_tests {
    use super::*;
    use crate::addr::Avma;
    use crate::binary::MappingKind;

    fn mmap(start: u64, len: u64, inode: u64) -> Mapping {
        let (avma, path) = (Avma(start)..Avma(start + len), "/lib/x.so".to_owned());
        Mapping { avma, file_offset: 0x1000, path, kind: MappingKind::File, identity: (8, inode) }
    }

    fn ranges(history: &MmapHistory) -> Vec<(u64, u64, u64, u64)> {
        let range = |one: &Mapping| (one.avma.start.0, one.avma.end.0, one.file_offset, one.identity.1);
        history.list().iter().map(range).collect()
    }

    #[test]
    fn a_later_mapping_replaces_only_what_it_overlaps() {
        let mut history = MmapHistory::default();
        history.add(mmap(0x10_000, 0x4000, 1));
        history.add(mmap(0x20_000, 0x1000, 2));
        history.add(mmap(0x11_000, 0x1000, 3));
        let cut = [(0x10_000, 0x11_000, 0x1000, 1), (0x11_000, 0x12_000, 0x1000, 3)];
        let rest = [(0x12_000, 0x14_000, 0x3000, 1), (0x20_000, 0x21_000, 0x1000, 2)];
        assert_eq!(ranges(&history), [cut, rest].concat());
        history.add(mmap(0, 0x30_000, 4));
        assert_eq!(ranges(&history), [(0, 0x30_000, 0x1000, 4)]);
    }
}
