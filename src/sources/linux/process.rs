//! One process, read through /proc while it exists, and as far as its files go afterwards: description, names of
//! threads, mappings, files, memory. `ptrace`, `perf` and `heap` add what they know of it.

use std::sync::Arc;
use std::time::SystemTime;

use libc::pid_t;

use super::files::TargetFiles;
use super::images::Maps;
use super::program_path::StartPath;
use super::{proc, sys};
use crate::addr::Avma;
use crate::binary::{Files, ImageBytes, Mapping, OpenError, ProgramPath};
use crate::sources::{Fault, Observed, Process, ThreadId};

/// A process.
#[derive(Debug)]
pub(super) struct LinuxProcess {
    pub(super) pid: pid_t,
    pub(super) description: Process,
    /// The thread through which /proc shows the memory: the first, until it exits.
    pub(super) memory_of: pid_t,
    pub(super) maps: Maps,
    /// The path by which its program was started.
    pub(super) start_path: StartPath,
    files: Arc<TargetFiles>,
    /// They are the files of its parent.
    files_inherited: bool,
}

impl LinuxProcess {
    /// A process, with its first thread; with pid 0, the placeholder for several.
    pub(super) fn new(pid: pid_t, description: Process, files: Arc<TargetFiles>) -> LinuxProcess {
        LinuxProcess {
            pid,
            description,
            memory_of: pid,
            maps: Maps::default(),
            start_path: StartPath::default(),
            files,
            files_inherited: false,
        }
    }

    /// A process that this one has just started: with its program, and its files until its own are needed.
    pub(super) fn started(&self, pid: pid_t) -> LinuxProcess {
        let description =
            Process { pid: pid.unsigned_abs(), command: String::new(), ..self.description.clone() };
        LinuxProcess {
            start_path: self.start_path.clone(),
            files_inherited: true,
            ..LinuxProcess::new(pid, description, Arc::clone(&self.files))
        }
    }

    /// Finds a thread with memory: the first may have exited.
    pub(super) fn find_memory(&mut self) {
        self.memory_of = proc::living_thread(self.pid).unwrap_or(self.pid);
    }

    /// Opens the files through the process itself, if it still exists. An ended process has no root; its parent had the
    /// same one.
    pub(super) fn open_own_files(&mut self) {
        let files = TargetFiles::of(self.pid);
        if files.has_root() {
            self.files = Arc::new(files);
        }
        self.files_inherited = false;
    }

    /// Reads the executable mappings through one of its threads.
    pub(super) fn read_mappings(
        &mut self,
        threads: impl Iterator<Item = pid_t>,
        out: &mut Vec<Mapping>,
    ) -> Result<(), Fault> {
        self.maps.read_through(&mut self.memory_of, threads, out)
    }

    /// The bytes of a mapping; of one of an exited process, if its file has not changed since `seen`.
    pub(super) fn last_bytes(
        &self,
        mapping: &Mapping,
        seen: Option<SystemTime>,
    ) -> Result<ImageBytes, OpenError> {
        self.maps.last_bytes(self.memory_of, mapping, &self.files, seen)
    }

    /// Replaces code that was moved to anonymous memory by its file.
    pub(super) fn place_moved_text(&mut self, mappings: &mut Vec<Mapping>) {
        self.maps.place_moved_text(self.memory_of, mappings);
    }
}

impl Observed for LinuxProcess {
    fn process(&self) -> &Process {
        &self.description
    }

    fn files(&mut self) -> Arc<dyn Files> {
        if self.files_inherited {
            self.open_own_files();
        }
        Arc::clone(&self.files) as Arc<dyn Files>
    }

    fn thread_name(&mut self, thread: ThreadId) -> Option<String> {
        proc::name(self.pid, pid_t::try_from(thread.0).ok()?)
    }

    fn mappings(&mut self, out: &mut Vec<Mapping>) -> Result<(), Fault> {
        self.maps.read(self.memory_of, out)
    }

    fn program_path(&mut self, mappings: &[Mapping]) -> Option<Arc<ProgramPath>> {
        let (pid, name, patience) = (self.memory_of, &self.description.name, &self.maps.patience);
        self.start_path.of(pid, name, &self.files, patience, mappings)
    }

    fn image_bytes(&mut self, mapping: &Mapping) -> Result<ImageBytes, OpenError> {
        self.last_bytes(mapping, None)
    }

    fn read_memory(&mut self, from: Avma, into: &mut [u8]) -> Result<usize, Fault> {
        sys::read_memory(self.memory_of, from.0, into).map_err(|_| Fault::Transient("memory not mapped"))
    }
}
