//! Memory and files of a process, for reading its images: through /proc while it exists, otherwise by its records
//! and the files of its parent.
//!
//! Input: mappings by records, with their times; output: mappings and their bytes.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hashbrown::HashMap;
use libc::pid_t;

use super::super::clocks::monotonic_ns;
use super::mmap_history::MmapHistory;
use crate::addr::Avma;
use crate::binary::{Files, ImageBytes, Mapping, OpenError, ProgramPath};
use crate::sources::Fault;
use crate::sources::linux::files::TargetFiles;
use crate::sources::linux::images::Maps;
use crate::sources::linux::program_path::StartPath;
use crate::sources::linux::{proc, sys, threads};

/// Time for which only records describe the memory of a new program, nanoseconds.
const RECORDS_HOLD_NS: u64 = 1_000_000_000;

/// Memory and files of one process.
pub(super) struct ProcessImages {
    pid: pid_t,
    /// The thread with memory visible in /proc: the first, until it has exited.
    memory_of: pid_t,
    maps: Maps,
    /// Path by which its program was started.
    start_path: StartPath,
    files: Arc<TargetFiles>,
    /// Whether they are the files of its parent.
    files_inherited: bool,
    /// Executable memory by the records, or as last read.
    history: MmapHistory,
    /// Files without a name, by device and inode: only a running process leads to them.
    deleted: HashMap<(u64, u64), ImageBytes>,
    /// Time since which all of its executable memory is known from records (monotonic clock): an exec, or the
    /// start of the process.
    from_records_ns: Option<u64>,
}

impl ProcessImages {
    /// Images of a process with these files.
    pub(super) fn new(pid: pid_t, files: Arc<TargetFiles>) -> ProcessImages {
        ProcessImages {
            pid,
            memory_of: threads::living_thread(pid).unwrap_or(pid),
            maps: Maps::default(),
            start_path: StartPath::default(),
            files,
            files_inherited: false,
            history: MmapHistory::default(),
            deleted: HashMap::new(),
            from_records_ns: None,
        }
    }

    /// Reads what naming needs of a running process of this name: it may have ended when its first sample is
    /// processed. Records continue the list of mappings.
    pub(super) fn read_running(&mut self, name: &str) {
        let mut mappings = Vec::new();
        if self.maps.read_through(&mut self.memory_of, std::iter::empty(), &mut mappings).is_err() {
            return;
        }
        self.maps.place_moved_text(self.memory_of, &mut mappings);
        self.program_path(name, &mappings);
        for mapping in mappings.iter().filter(|mapping| proc::without_deleted(&mapping.path).1) {
            if let Ok(bytes) = self.maps.bytes(self.memory_of, mapping) {
                self.deleted.insert(mapping.identity, bytes);
            }
        }
        self.history.replace(&mappings);
    }

    /// Images of another process: `started` by this one just now, or found running.
    pub(super) fn new_for(&self, pid: pid_t, started: bool) -> ProcessImages {
        ProcessImages {
            files_inherited: true,
            start_path: if started { self.start_path.clone() } else { StartPath::default() },
            history: if started { self.history.clone() } else { MmapHistory::default() },
            deleted: if started { self.deleted.clone() } else { HashMap::new() },
            ..ProcessImages::new(pid, Arc::clone(&self.files))
        }
    }

    /// Opens the files through the process itself, if it still exists. An ended process has no root; its parent
    /// had the same one.
    pub(super) fn open_own_files(&mut self) {
        let files = TargetFiles::of(self.pid);
        if files.has_root() {
            self.files = Arc::new(files);
        }
        self.files_inherited = false;
    }

    /// Drops the start path after an exec.
    pub(super) fn forget_start_path(&mut self) {
        self.start_path = StartPath::default();
    }

    /// The path by which its program was started, if that links to its file; `name`: process name.
    pub(super) fn program_path(&mut self, name: &str, mappings: &[Mapping]) -> Option<Arc<ProgramPath>> {
        self.start_path.of(self.memory_of, name, &self.files, &self.maps.patience, mappings)
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
        // /proc shows the current mappings, possibly of another program already; records lack unmapped memory,
        // which matters only after a while.
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

    /// The bytes of a mapping; `seen_ns`: time of the process's last record (monotonic clock).
    pub(super) fn bytes(&self, mapping: &Mapping, seen_ns: u64) -> Result<ImageBytes, OpenError> {
        // While it ran, its program could not be written to (ETXTBSY), but since then it could.
        let ago = Duration::from_nanos(monotonic_ns().saturating_sub(seen_ns));
        let seen = SystemTime::now().checked_sub(ago);
        let bytes = self.maps.last_bytes(self.memory_of, mapping, &self.files, seen);
        bytes.or_else(|why| self.deleted.get(&mapping.identity).cloned().ok_or(why))
    }

    /// Reads memory of the process.
    pub(super) fn read_memory(&self, from: Avma, into: &mut [u8]) -> Result<usize, Fault> {
        sys::read_memory(self.memory_of, from.0, into).map_err(|_| Fault::Transient("memory not mapped"))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::process::Command;

    use super::*;

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
            let mut images = ProcessImages::new(pid, Arc::new(TargetFiles::of(pid)));
            // The parent runs on before the program is mapped.
            while images.history().list().is_empty() {
                images.read_running("link");
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
                let started_as = images.program_path("link", &mappings).unwrap().started_as.clone();
                assert_eq!(started_as, link.to_str().unwrap());
            }
        }
    }
}
