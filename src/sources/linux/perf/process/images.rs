//! The memory and the files of a process, as the images in them are read: through /proc as long as it is there, else by
//! its records and by the files of the process that started it.
//!
//! Input: mappings by records, with their times; output: mappings and the bytes behind them.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use libc::pid_t;

use super::super::clocks::monotonic_ns;
use super::mmap_history::MmapHistory;
use crate::addr::Avma;
use crate::binary::{Files, ImageBytes, Mapping, MappingKind, OpenError, ProgramPath};
use crate::sources::Fault;
use crate::sources::linux::files::TargetFiles;
use crate::sources::linux::images::{self, Maps};
use crate::sources::linux::program_path::StartPath;
use crate::sources::linux::{sys, threads};

/// So long only records show the memory of a new program, nanoseconds.
const RECORDS_HOLD_NS: u64 = 1_000_000_000;

/// The memory and the files of one process.
pub(super) struct ProcessImages {
    pid: pid_t,
    /// The thread through which /proc shows the memory: the first, until it has exited.
    memory_of: pid_t,
    maps: Maps,
    /// The path that its program was started by.
    start_path: StartPath,
    files: Arc<TargetFiles>,
    /// They are those of the process that started it.
    files_inherited: bool,
    /// Executable memory by the records, or as it was last read.
    history: MmapHistory,
    /// Since when all of its executable memory is known from records (monotonic clock): a new
    /// program was named then, or the process was started.
    from_records_ns: Option<u64>,
}

impl ProcessImages {
    /// Of a process with these files.
    pub(super) fn new(pid: pid_t, files: Arc<TargetFiles>) -> ProcessImages {
        ProcessImages {
            pid,
            memory_of: threads::living(pid).unwrap_or(pid),
            maps: Maps::default(),
            start_path: StartPath::default(),
            files,
            files_inherited: false,
            history: MmapHistory::default(),
            from_records_ns: None,
        }
    }

    /// Of another process like this one: `started` by it just now, or one that was found.
    pub(super) fn new_for(&self, pid: pid_t, started: bool) -> ProcessImages {
        ProcessImages {
            files_inherited: true,
            start_path: if started { self.start_path.clone() } else { StartPath::default() },
            history: if started { self.history.clone() } else { MmapHistory::default() },
            ..ProcessImages::new(pid, Arc::clone(&self.files))
        }
    }

    /// Opens the files through the process itself, as long as it is there. One that has ended
    /// has no root any more; what it was forked from had the same.
    pub(super) fn open_own_files(&mut self) {
        let files = TargetFiles::of(self.pid);
        if files.has_root() {
            self.files = Arc::new(files);
        }
        self.files_inherited = false;
    }

    /// It runs another program: the path that this one was started by is not known.
    pub(super) fn forget_start_path(&mut self) {
        self.start_path = StartPath::default();
    }

    /// The path that its program was started by, where that is a link to its file; `name`: that of the process.
    pub(super) fn program_path(&mut self, name: &str, mappings: &[Mapping]) -> Option<Arc<ProgramPath>> {
        self.start_path.of(self.memory_of, name, &self.files, &self.maps.patience, mappings)
    }

    /// Executable memory by the records.
    pub(super) fn history(&self) -> &MmapHistory {
        &self.history
    }

    /// Records may be missing: the mappings are read from /proc.
    pub(super) fn distrust_records(&mut self) {
        self.from_records_ns = None;
    }

    /// The process runs another program from this time on, whose mappings are in records.
    pub(super) fn exec_at(&mut self, at_ns: u64) {
        self.history.clear();
        self.from_records_ns = Some(at_ns);
    }

    /// The process was started with a copy of this memory, which may be unknown.
    pub(super) fn fork_at(&mut self, history: MmapHistory, at_ns: u64) {
        self.from_records_ns = (!history.list().is_empty()).then_some(at_ns);
        self.history = history;
    }

    /// Code was mapped.
    pub(super) fn add(&mut self, mapping: Mapping) {
        self.history.add(mapping);
    }

    /// Its files.
    pub(super) fn files(&mut self) -> Arc<dyn Files> {
        if self.files_inherited {
            self.open_own_files();
        }
        Arc::clone(&self.files) as Arc<dyn Files>
    }

    /// The executable mappings; `threads`: threads of the process through which /proc may show them.
    pub(super) fn mappings(
        &mut self,
        threads: impl Iterator<Item = pid_t>,
        out: &mut Vec<Mapping>,
    ) -> Result<(), Fault> {
        out.clear();
        // What /proc shows is of now, and may be another program already; what was unmapped is not
        // in records, and matters after a while only.
        if self.from_records_ns.is_some_and(|since_ns| monotonic_ns() < since_ns + RECORDS_HOLD_NS) {
            out.extend_from_slice(self.history.list());
            self.maps.place_moved_text(self.memory_of, out);
            return if out.is_empty() { Err(Fault::Transient("nothing is mapped yet")) } else { Ok(()) };
        }
        // After an exec the first thread has the memory again.
        self.memory_of = self.pid;
        let read = self.maps.read_through(&mut self.memory_of, threads, out);
        if read.is_ok() {
            self.maps.place_moved_text(self.memory_of, out);
            self.history.replace(out);
            return read;
        }
        // It is ending, or has ended.
        out.extend_from_slice(self.history.list());
        if out.is_empty() { read } else { Ok(()) }
    }

    /// The bytes behind a mapping; `seen_ns`: when the process last had a record (monotonic clock).
    pub(super) fn bytes(&self, mapping: &Mapping, seen_ns: u64) -> Result<ImageBytes, OpenError> {
        self.maps.bytes(self.memory_of, mapping).or_else(|why| match mapping.kind {
            MappingKind::File if !matches!(why, OpenError::NoAnswer) => {
                // The process has gone. While it ran nobody could write to its program (ETXTBSY), but since.
                let ago = Duration::from_nanos(monotonic_ns().saturating_sub(seen_ns));
                let seen = SystemTime::now().checked_sub(ago);
                self.files
                    .open_same(&self.maps.patience, &mapping.path, mapping.identity, seen)
                    .unwrap_or(Err(why))
            }
            // All processes have the same.
            MappingKind::Vdso => images::own_vdso().ok_or(why),
            MappingKind::File | MappingKind::Anonymous | MappingKind::Registered => Err(why),
        })
    }

    /// Reads memory of the process.
    pub(super) fn read_memory(&self, from: Avma, into: &mut [u8]) -> Result<usize, Fault> {
        sys::read_memory(self.memory_of, from.0, into).map_err(|_| Fault::Transient("memory not mapped"))
    }
}
