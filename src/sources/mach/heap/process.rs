//! One process with recorded allocations: its images are those that the shim lists.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use super::image_list::ImageList;
use super::reasons;
use crate::addr::Avma;
use crate::binary::{Files, ImageBytes, Mapping, OpenError};
use crate::clock::Clock;
use crate::sources::heap::process::{HeapProcess, RingFiles, read_image_list};
use crate::sources::mach::bsd_process::exit_status;
use crate::sources::mach::clock::MachClock;
use crate::sources::mach::files::MacFiles;
use crate::sources::mach::kernel::MachKernel;
use crate::sources::mach::refusal;
use crate::sources::{ExitStatus, Fault, Observed, Process, ThreadId};

/// Interval between checks whether a process still runs the program of its ring, nanoseconds.
const PROGRAM_CHECK_NS: u64 = 500_000_000;

/// A process with a ring, or one that will have one.
pub(super) struct MacProcess<'k> {
    kernel: &'k dyn MachKernel,
    process: Process,
    ring: Option<RingFiles>,
    list: ImageList,
    /// Length of the file that the list was read from, and whether it is that of the exit.
    read: (u64, bool),
    /// When it last ran the program of its ring.
    program_checked_ns: u64,
    status: Option<ExitStatus>,
    /// Code signing flags of a started process.
    signed: u32,
}

impl<'k> MacProcess<'k> {
    /// A process, with its code signing flags.
    pub(super) fn new(kernel: &'k dyn MachKernel, process: Process, signed: u32) -> MacProcess<'k> {
        MacProcess {
            kernel,
            process,
            ring: None,
            list: ImageList::default(),
            read: (0, false),
            program_checked_ns: 0,
            status: None,
            signed,
        }
    }

    fn pid(&self) -> i32 {
        self.process.pid.cast_signed()
    }

    /// Reads the list again if it has changed: the later file first.
    fn refresh(&mut self) {
        let Some(ring) = &self.ring else { return };
        let [begin, end] = &ring.images;
        let length = |path: &Path| fs::symlink_metadata(path).ok().map(|metadata| metadata.len());
        let (path, state) = match (length(end), length(begin)) {
            // One that is shorter is being written.
            (Some(bytes), before) if bytes >= before.unwrap_or(0) => (end, (bytes, true)),
            (_, Some(bytes)) => (begin, (bytes, false)),
            _ => return,
        };
        if state != self.read
            && let Ok(text) = read_image_list(path)
        {
            self.list = ImageList::parse(&text, None);
            self.read = state;
        }
    }

    /// Whether it runs the program of its ring, as far as it is known.
    fn runs_program(&self) -> bool {
        let Some(listed) = self.list.program() else { return true };
        let Ok(current) = self.kernel.proc_pidpath(self.pid()) else { return true };
        // dyld has the path that the program was started with, the kernel that of the file.
        let whole = |path: &str| fs::canonicalize(path).ok();
        match (whole(listed), whole(&current)) {
            (Some(listed), Some(current)) => listed == current,
            _ => true,
        }
    }
}

impl HeapProcess for MacProcess<'_> {
    fn new_for(&self, pid: u32) -> Self {
        let process = Process { pid, command: String::new(), ..self.process.clone() };
        MacProcess::new(self.kernel, process, 0)
    }

    fn set_ring(&mut self, thread_name: &str, ring: RingFiles) {
        self.ring = Some(ring);
        (self.list, self.read) = (ImageList::default(), (0, false));
        self.refresh();
        let program = self.list.program().and_then(|path| path.rsplit('/').next());
        self.process.name = program.filter(|name| !name.is_empty()).unwrap_or(thread_name).to_owned();
    }

    fn listed(&mut self, before_unload: Option<u32>, out: &mut Vec<Mapping>) -> bool {
        let Some(ring) = &self.ring else { return false };
        let Ok(text) = read_image_list(&ring.images[0]) else { return false };
        self.list = ImageList::parse(&text, Some(before_unload.unwrap_or(0)));
        // To be read again for the current list.
        self.read = (0, false);
        self.list.mappings(out);
        !out.is_empty()
    }

    fn has_exited(&self) -> bool {
        self.status.is_some() || refusal::has_ended(self.kernel, self.pid())
    }

    fn has_left_program(&mut self, now_ns: u64, is_last: bool) -> bool {
        if self.ring.is_none() {
            return false;
        }
        if !is_last && now_ns < self.program_checked_ns.saturating_add(PROGRAM_CHECK_NS) {
            return false;
        }
        self.program_checked_ns = now_ns;
        self.refresh();
        !self.runs_program()
    }

    fn survivors(&self, directory: &Path) -> usize {
        #[cfg(target_vendor = "apple")]
        return crate::sources::mach::xnu::processes_with(directory.as_os_str().as_encoded_bytes()).len();
        // Simulated kernels.
        #[cfg(not(target_vendor = "apple"))]
        {
            let _ = directory;
            0
        }
    }

    fn child_end(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = match self.kernel.wait_ended(self.pid()) {
                Ok(status) => status.map(exit_status),
                // Reaped by another thread, or the status of children is not kept.
                Err(_) => Some(ExitStatus::Unknown),
            };
        }
        self.status
    }

    /// Unknown: the process was reaped.
    fn last_name(&self) -> Option<String> {
        None
    }

    fn why_not_loaded(&self) -> Option<String> {
        reasons::of_signature(self.signed)
    }

    fn ring_clock_ns(&self) -> u64 {
        MachClock::new(self.kernel).now_ns()
    }
}

impl Observed for MacProcess<'_> {
    fn process(&self) -> &Process {
        &self.process
    }

    fn files(&mut self) -> Arc<dyn Files> {
        Arc::new(MacFiles::new(self.process.pid))
    }

    /// Names of threads need a right to the task.
    fn thread_name(&mut self, _thread: ThreadId) -> Option<String> {
        None
    }

    fn mappings(&mut self, out: &mut Vec<Mapping>) -> Result<(), Fault> {
        self.refresh();
        self.list.mappings(out);
        if out.is_empty() { Err(Fault::Transient("it has not listed its images")) } else { Ok(()) }
    }

    fn image_bytes(&mut self, mapping: &Mapping) -> Result<ImageBytes, OpenError> {
        self.list.bytes(self.kernel, mapping)
    }

    fn read_memory(&mut self, _from: Avma, _into: &mut [u8]) -> Result<usize, Fault> {
        Err(Fault::Transient("memory is not read without a right to the task"))
    }
}
