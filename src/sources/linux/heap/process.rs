//! One process with recorded allocations: its images, from /proc while it runs the program of its ring, otherwise from
//! the copies that the shim made.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use libc::pid_t;

use crate::addr::Avma;
use crate::binary::{Files, ImageBytes, Mapping, MappingKind, OpenError};
use crate::sources::linux::files::TargetFiles;
use crate::sources::linux::images::{self, Maps};
use crate::sources::linux::{sys, threads};
use crate::sources::{Fault, Observed, Process, ThreadId};

/// Size limit of a copied list of mappings, bytes: a process can write anything there.
const MAPS_BYTES_MAX: u64 = 32 << 20;
/// Interval between checks whether a process still runs the program of its ring, nanoseconds.
const PROGRAM_CHECK_NS: u64 = 500_000_000;

/// A process with a ring, or one that will have one.
pub(super) struct HeapProcess {
    pid: pid_t,
    process: Process,
    maps: Maps,
    files: Arc<TargetFiles>,
    /// The name of its ring, which it maps; `None` until it has one.
    ring: Option<RingFiles>,
    /// The mappings when they were last read.
    list: Vec<Mapping>,
    /// When it last ran the program of its ring.
    program_checked_ns: u64,
}

/// The files of a ring.
pub(super) struct RingFiles {
    /// The name of the ring.
    pub(super) name: String,
    /// Copies of the mappings, from the creation of the ring and from the exit.
    pub(super) maps: [PathBuf; 2],
}

impl HeapProcess {
    /// A process, described at the start of its program.
    pub(super) fn new(pid: pid_t, process: Process, files: Arc<TargetFiles>) -> HeapProcess {
        HeapProcess {
            pid,
            process,
            maps: Maps::default(),
            files,
            ring: None,
            list: Vec::new(),
            program_checked_ns: 0,
        }
    }

    /// A process started by this one or by a similar one.
    pub(super) fn new_for(&self, pid: pid_t) -> HeapProcess {
        let own = TargetFiles::of(pid);
        let files = if own.has_root() { Arc::new(own) } else { Arc::clone(&self.files) };
        let process = Process { pid: pid.unsigned_abs(), command: String::new(), ..self.process.clone() };
        HeapProcess::new(pid, process, files)
    }

    /// Sets the ring of the process, created by a thread with this name: it runs its own program.
    pub(super) fn set_ring(&mut self, thread_name: &str, ring: RingFiles) {
        let is_it = self.maps.read_marked(self.pid, &ring.name, &mut Vec::new()) == Ok(true);
        let name = threads::name(self.pid, self.pid).filter(|_| is_it);
        self.process.name = name.unwrap_or_else(|| thread_name.to_owned());
        self.ring = Some(ring);
        self.list.clear();
    }

    /// Its name.
    pub(super) fn name(&self) -> &str {
        &self.process.name
    }

    /// Whether it has ended, or runs another program than that of its ring. Another program is noticed after a
    /// delay, or at once if `is_last`.
    pub(super) fn has_ended(&mut self, now_ns: u64, is_last: bool) -> bool {
        let Some(ring) = &self.ring else { return false };
        if sys::kill(self.pid, 0).is_err_and(|error| error.raw_os_error() == Some(libc::ESRCH)) {
            return true;
        }
        if !is_last && now_ns < self.program_checked_ns + PROGRAM_CHECK_NS {
            return false;
        }
        self.program_checked_ns = now_ns;
        let mut list = Vec::new();
        match self.maps.read_marked(self.pid, &ring.name, &mut list) {
            Ok(true) => {
                self.list = list;
                false
            }
            // An exiting process loses its mappings before it disappears.
            Ok(false) | Err(Fault::Gone) => true,
            Err(_) => false,
        }
    }

    /// Assumes that it runs the program of its ring as long as it runs: processes of tests map no
    /// ring.
    #[cfg(test)]
    pub(super) fn trust_program(&mut self) {
        self.program_checked_ns = u64::MAX - PROGRAM_CHECK_NS;
    }

    /// The mappings copied by the shim, the latest first.
    fn copied(&mut self, out: &mut Vec<Mapping>) -> bool {
        let Some(ring) = &self.ring else { return false };
        let [begin, end] = &ring.maps;
        let mut read = |path: &PathBuf| {
            read_copy(path).is_ok_and(|text| {
                self.maps.take_copy(self.pid, text, out);
                !out.is_empty()
            })
        };
        read(end) || (self.list.is_empty() && read(begin))
    }
}

/// Reads a copy made by the shim. Must not block: the process can put anything in its place.
fn read_copy(path: &Path) -> io::Result<Vec<u8>> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut text = Vec::new();
    file.take(MAPS_BYTES_MAX).read_to_end(&mut text)?;
    Ok(text)
}

impl Observed for HeapProcess {
    fn process(&self) -> &Process {
        &self.process
    }

    fn files(&mut self) -> Arc<dyn Files> {
        Arc::clone(&self.files) as Arc<dyn Files>
    }

    fn thread_name(&mut self, thread: ThreadId) -> Option<String> {
        threads::name(self.pid, pid_t::try_from(thread.0).ok()?)
    }

    fn mappings(&mut self, out: &mut Vec<Mapping>) -> Result<(), Fault> {
        let read = match &self.ring {
            None => self.maps.read(self.pid, out).map(|()| true),
            Some(ring) => self.maps.read_marked(self.pid, &ring.name, out),
        };
        if read == Ok(true) && !out.is_empty() {
            self.list.clone_from(out);
            return Ok(());
        }
        if self.copied(out) {
            self.list.clone_from(out);
        } else {
            out.clone_from(&self.list);
        }
        if out.is_empty() { read.and(Err(Fault::Gone)) } else { Ok(()) }
    }

    fn image_bytes(&mut self, mapping: &Mapping) -> Result<ImageBytes, OpenError> {
        self.maps.bytes(self.pid, mapping).or_else(|why| match mapping.kind {
            MappingKind::File if !matches!(why, OpenError::NoAnswer) => {
                let (patience, path) = (&self.maps.patience, &mapping.path);
                self.files.open_same(patience, path, mapping.identity, None).unwrap_or(Err(why))
            }
            // The same for all processes.
            MappingKind::Vdso => images::own_vdso().ok_or(why),
            MappingKind::File | MappingKind::Anonymous | MappingKind::Registered => Err(why),
        })
    }

    fn read_memory(&mut self, from: Avma, into: &mut [u8]) -> Result<usize, Fault> {
        sys::read_memory(self.pid, from.0, into).map_err(|_| Fault::Transient("memory not mapped"))
    }
}
