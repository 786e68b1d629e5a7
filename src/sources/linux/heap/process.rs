//! One process with recorded allocations: its images, from /proc while it runs the program of its ring, otherwise from
//! the copies that the shim made.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use libc::pid_t;

use super::without_shim::{ProcessesWithoutShim, unseen_allocators};
use crate::binary::{Mapping, ProgramPath};
use crate::sources::heap::recorded_process::{HeapProcess, RingFiles, read_image_list};
use crate::sources::linux::clocks::monotonic_ns;
use crate::sources::linux::files::TargetFiles;
use crate::sources::linux::proc::resident_bytes;
use crate::sources::linux::process::LinuxProcess;
use crate::sources::linux::{heap, launch, proc, sys};
use crate::sources::pushed::UnseenAllocator;
use crate::sources::{ExitStatus, Fault, Observed, Process};

/// Interval between checks whether a process still runs the program of its ring, nanoseconds.
const PROGRAM_CHECK_NS: u64 = 500_000_000;

/// A process with a ring, or one that will have one.
pub(crate) struct AllocatingProcess {
    process: LinuxProcess,
    /// The name of its ring, which it maps; `None` until it has one.
    ring: Option<RingFiles>,
    /// The mappings when they were last read: without a ring nothing else has them once the process has ended.
    last_mappings: Vec<Mapping>,
    /// When it last ran the program of its ring.
    program_checked_ns: u64,
    without_shim: ProcessesWithoutShim,
    resident_bytes: Option<u64>,
}

impl AllocatingProcess {
    /// A process, described at the start of its program.
    pub(super) fn new(pid: pid_t, description: Process, files: Arc<TargetFiles>) -> AllocatingProcess {
        AllocatingProcess::with(LinuxProcess::new(pid, description, files))
    }

    fn with(process: LinuxProcess) -> AllocatingProcess {
        AllocatingProcess {
            process,
            ring: None,
            last_mappings: Vec::new(),
            program_checked_ns: 0,
            without_shim: ProcessesWithoutShim::default(),
            resident_bytes: None,
        }
    }

    /// Assumes that it runs the program of its ring as long as it runs: processes of tests map no
    /// ring.
    #[cfg(test)]
    pub(crate) fn trust_program(&mut self) {
        self.program_checked_ns = u64::MAX - PROGRAM_CHECK_NS;
    }

    /// Reads a copy of the mappings by the shim.
    fn copied(&mut self, path: Option<PathBuf>, out: &mut Vec<Mapping>) -> bool {
        path.and_then(|path| read_image_list(&path).ok()).is_some_and(|text| {
            self.process.maps.take_copy(self.process.pid, &text, out);
            !out.is_empty()
        })
    }

    fn path_of_list(&self, before_unload: u32) -> Option<PathBuf> {
        let [begin, _] = &self.ring.as_ref()?.images;
        let mut path = begin.clone().into_os_string();
        path.push(format!(".{before_unload}"));
        Some(path.into())
    }
}

impl HeapProcess for AllocatingProcess {
    fn new_for(&self, pid: u32) -> AllocatingProcess {
        let mut process = self.process.started(pid.cast_signed());
        process.open_own_files();
        AllocatingProcess::with(process)
    }

    fn set_ring(&mut self, thread_name: &str, ring: RingFiles) {
        let process = &mut self.process;
        let is_it = process.maps.read_marked(process.pid, &ring.name, &mut Vec::new()) == Ok(true);
        let name = proc::name(process.pid, process.pid).filter(|_| is_it);
        process.description.name = name.unwrap_or_else(|| thread_name.to_owned());
        self.ring = Some(ring);
    }

    fn listed(&mut self, before_unload: Option<u32>, out: &mut Vec<Mapping>) -> bool {
        let path = match before_unload {
            Some(number) => self.path_of_list(number),
            None => self.ring.as_ref().map(|ring| ring.images[0].clone()),
        };
        self.copied(path, out)
    }

    fn forget_list(&mut self, before_unload: u32) {
        let _ = self.path_of_list(before_unload).map(fs::remove_file);
    }

    fn has_exited(&self) -> bool {
        // One system call in nearly all cases: nothing is mapped at 0, and EFAULT says that the process has memory
        // (mm/process_vm_access.c). Its first thread may have none, and sandboxes forbid the call.
        let pid = self.process.pid;
        let read = sys::read_memory(pid, 0, &mut [0]);
        let has_memory = read.map_or_else(|error| error.raw_os_error() == Some(libc::EFAULT), |_| true);
        !has_memory && proc::living_thread(pid).is_none()
    }

    fn has_left_program(&mut self, now_ns: u64, is_last: bool) -> bool {
        let Some(ring) = &self.ring else { return false };
        if !is_last && now_ns < self.program_checked_ns + PROGRAM_CHECK_NS {
            return false;
        }
        self.program_checked_ns = now_ns;
        match self.process.maps.read_marked(self.process.pid, &ring.name, &mut Vec::new()) {
            Ok(true) => false,
            // An exiting process loses its mappings before it disappears.
            Ok(false) | Err(Fault::Gone) => true,
            Err(_) => false,
        }
    }

    fn scan_without_shim(&mut self, shim: &Path) {
        self.without_shim.scan(self.process.pid, shim);
        self.resident_bytes = self.resident_bytes.max(resident_bytes(self.process.pid));
    }

    fn unseen_allocators(&mut self) -> Vec<UnseenAllocator> {
        let mut list = Vec::new();
        if self.mappings(&mut list).is_err() {
            return Vec::new();
        }
        unseen_allocators(&list, |mapping| self.process.image_bytes(mapping))
    }

    fn resident_bytes(&self) -> Option<u64> {
        self.resident_bytes
    }

    fn without_shim(&self) -> Vec<(&'static str, u64)> {
        self.without_shim.counts()
    }

    fn why_without_shim(&self) -> Option<&'static str> {
        self.without_shim.why(self.process.pid)
    }

    fn survivors(&self, directory: &Path) -> usize {
        heap::count(directory.as_os_str().as_bytes())
    }

    fn child_end(&mut self) -> Option<ExitStatus> {
        sys::child_end(self.process.pid)
    }

    fn last_name(&self) -> Option<String> {
        proc::name(self.process.pid, self.process.pid)
    }

    fn forward_signal(&self) {
        launch::forward_signal(self.process.pid);
    }

    fn ring_clock_ns(&self) -> u64 {
        monotonic_ns()
    }
}

impl Observed for AllocatingProcess {
    fn process(&self) -> &Process {
        &self.process.description
    }

    fn inner(&mut self) -> Option<&mut dyn Observed> {
        Some(&mut self.process)
    }

    /// The image lists of the shim have the paths of files only.
    fn program_path(&mut self, _mappings: &[Mapping]) -> Option<Arc<ProgramPath>> {
        None
    }

    fn mappings(&mut self, out: &mut Vec<Mapping>) -> Result<(), Fault> {
        let Some(ring) = &self.ring else {
            let read = self.process.mappings(out);
            if read.is_ok() && !out.is_empty() {
                self.last_mappings.clone_from(out);
            } else {
                out.clone_from(&self.last_mappings);
            }
            return if out.is_empty() { read.and(Err(Fault::Gone)) } else { Ok(()) };
        };
        let read = self.process.maps.read_marked(self.process.pid, &ring.name, out);
        let at_exit = Some(ring.images[1].clone());
        let is_read = read == Ok(true) && !out.is_empty();
        if is_read || self.copied(at_exit, out) { Ok(()) } else { read.and(Err(Fault::Gone)) }
    }
}
