//! A process's executable mappings, with the bytes of exactly the mapped files. Input: /proc/PID/maps.
//! Output: images, or why a file cannot be used.
//!
//! A path is not enough: the file may have been deleted or replaced, and belongs to the target's mount
//! namespace. Device and inode are compared; if a filesystem reports others through stat(2) than in maps
//! (overlayfs, btrfs), the head of the file is compared with the mapped one. The target controls the path, so
//! files are opened through `target_file`, with a bounded wait.

use std::time::SystemTime;

use hashbrown::HashMap;
use libc::pid_t;

use super::files::TargetFiles;
use super::mapping_origin::MappingOrigins;
use super::{proc, sys};
use crate::addr::{self, Avma};
use crate::binary::{ImageBytes, Mapping, MappingKind, OpenError};
use crate::binary::{elf, pe};
use crate::error::io_text;
use crate::sources::target_file::{Copying, FileLocation, Links, Patience, Root, open_linked};
use crate::sources::{Fault, proc_file};

/// A vDSO is a few pages; anything larger is not one.
const VDSO_BYTES_MAX: u64 = 1 << 20;
/// Bytes of a file's head to compare: ELF header, program headers and notes.
const HEAD_BYTES: usize = 4096;

/// Most bytes of paths and executable mappings of one process: paths can have 4 KiB each. Later ones count as not
/// mapped.
pub(super) const LIST_BYTES_MAX: usize = 16 << 20;

/// Reader of a process's mappings.
#[derive(Debug, Default)]
pub(super) struct Maps {
    /// Address of the first mapped byte of each file.
    heads: HashMap<(u64, u64), Avma>,
    /// Origins of anonymous mappings.
    pub(super) moved: MappingOrigins,
    /// Record of files that did not answer.
    pub(super) patience: Patience,
}

/// What is kept of a list of mappings.
struct MapsList<'o> {
    pid: pid_t,
    heads: HashMap<(u64, u64), Avma>,
    code: &'o mut Vec<Mapping>,
    /// Bytes that it may still take.
    room: usize,
}

impl MapsList<'_> {
    fn new(pid: pid_t, code: &mut Vec<Mapping>) -> MapsList<'_> {
        code.clear();
        MapsList { pid, heads: HashMap::new(), code, room: LIST_BYTES_MAX }
    }

    fn add(&mut self, mut line: proc::MapsLine) {
        if line.is_ambiguous
            && let Some(path) = linked_path(self.pid, &line.mapping)
        {
            line.mapping.path = path;
        }
        if line.mapping.kind == MappingKind::File && line.mapping.file_offset == 0 {
            self.heads.insert(line.mapping.identity, line.mapping.avma.start);
        }
        if line.executable
            && let Some(room) = self.room.checked_sub(size_of::<Mapping>() + line.mapping.path.len())
        {
            self.room = room;
            self.code.push(line.mapping);
        }
    }
}

impl Maps {
    /// Reads the executable mappings into `out`.
    pub(super) fn read(&mut self, pid: pid_t, out: &mut Vec<Mapping>) -> Result<(), Fault> {
        self.read_marked(pid, "", out).map(drop)
    }

    /// Reads the executable mappings of a process that maps a file of this unique name into `out`; false for any
    /// other process.
    pub(super) fn read_marked(
        &mut self,
        pid: pid_t,
        mark: &str,
        out: &mut Vec<Mapping>,
    ) -> Result<bool, Fault> {
        let mark = memchr::memmem::Finder::new(mark);
        let (mut list, mut is_it) = (MapsList::new(pid, out), mark.needle().is_empty());
        let read = proc_file::for_each_line(format!("/proc/{pid}/maps"), |line| {
            is_it = is_it || mark.find(line).is_some();
            if let Some(line) = proc::mapping(line) {
                list.add(line);
            }
        });
        read.map_err(|error| match error.raw_os_error() {
            Some(libc::ENOENT | libc::ESRCH) => Fault::Gone,
            _ => Fault::Denied(format!("/proc/{pid}/maps: {}", io_text(&error))),
        })?;
        if is_it {
            self.heads = list.heads;
        }
        Ok(is_it)
    }

    /// Reads the executable mappings from a copy of the list.
    pub(super) fn take_copy(&mut self, pid: pid_t, text: &[u8], out: &mut Vec<Mapping>) {
        let mut list = MapsList::new(pid, out);
        proc::mappings(text).for_each(|line| list.add(line));
        self.heads = list.heads;
    }

    /// Reads the mappings through a thread that still has the memory: `through`, or one of `others`, which
    /// then replaces it. An exited thread has an empty list.
    pub(super) fn read_through(
        &mut self,
        through: &mut pid_t,
        others: impl Iterator<Item = pid_t>,
        out: &mut Vec<Mapping>,
    ) -> Result<(), Fault> {
        let read = self.read(*through, out);
        if !out.is_empty() {
            return read;
        }
        for tid in others {
            if self.read(tid, out).is_ok() && !out.is_empty() {
                *through = tid;
                return Ok(());
            }
        }
        read.and(Err(Fault::Transient("nothing is mapped: the process begins a program or ends")))
    }

    /// The bytes of the image behind a mapping, or why not.
    pub(super) fn bytes(&self, pid: pid_t, mapping: &Mapping) -> Result<ImageBytes, OpenError> {
        match mapping.kind {
            MappingKind::File => self.file_bytes(pid, mapping),
            MappingKind::Vdso => vdso_bytes(pid, mapping),
            MappingKind::Anonymous | MappingKind::Registered => Err(OpenError::Anonymous),
        }
    }

    /// The bytes of the image behind a mapping of a process that may have exited: then of the file at its path,
    /// if it has not changed since `seen`, when it was still mapped.
    pub(super) fn last_bytes(
        &self,
        pid: pid_t,
        mapping: &Mapping,
        files: &TargetFiles,
        seen: Option<SystemTime>,
    ) -> Result<ImageBytes, OpenError> {
        self.bytes(pid, mapping).or_else(|why| match mapping.kind {
            MappingKind::File if !matches!(why, OpenError::NoAnswer) => {
                files.open_same(&self.patience, &mapping.path, mapping.identity, seen).unwrap_or(Err(why))
            }
            MappingKind::Vdso => own_vdso().ok_or(why),
            MappingKind::File | MappingKind::Anonymous | MappingKind::Registered => Err(why),
        })
    }

    fn file_bytes(&self, pid: pid_t, mapping: &Mapping) -> Result<ImageBytes, OpenError> {
        let (path, deleted) = proc::without_deleted(&mapping.path);
        let wanted = MappedFile {
            pid,
            path: (!deleted).then(|| path.to_owned()),
            identity: mapping.identity,
            link: link_to(pid, mapping),
        };
        let place = FileLocation::Device(mapping.identity.0);
        let (reason, unsure) = match self.patience.wait_for(place, move |copying| wanted.find(copying))? {
            FileMatch::Same(bytes) => return Ok(bytes),
            FileMatch::Unsure(reason, bytes) => (reason, bytes),
        };
        match unsure.filter(|bytes| self.head_matches(pid, mapping, bytes.bytes())) {
            Some(bytes) => Ok(bytes),
            None => Err(reason),
        }
    }

    fn head_matches(&self, pid: pid_t, mapping: &Mapping, file: &[u8]) -> bool {
        let Some(head) = self.heads.get(&mapping.identity) else { return false };
        let mut memory = [0; HEAD_BYTES];
        let len = sys::read_memory(pid, head.0, &mut memory).unwrap_or(0);
        elf::same_file(&memory[..len], file) || pe::same_file(&memory[..len], file)
    }
}

/// The kernel's own link to a mapped file.
fn link_to(pid: pid_t, mapping: &Mapping) -> String {
    format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.avma.start.0, mapping.avma.end.0)
}

/// The path of a mapped file, unescaped: `maps` writes a newline and the four characters `\012` alike, and
/// these two files must not be confused.
fn linked_path(pid: pid_t, mapping: &Mapping) -> Option<String> {
    let path = std::fs::read_link(link_to(pid, mapping)).ok()?;
    Some(path.to_string_lossy().into_owned()).filter(|path| path.starts_with('/'))
}

/// A mapped file, and the ways to reach it.
struct MappedFile {
    pid: pid_t,
    path: Option<String>,
    identity: (u64, u64),
    link: String,
}

/// Result of searching for a mapped file.
enum FileMatch {
    /// It is the mapped file.
    Same(ImageBytes),
    /// The file of its name, if any, and why it may be a different one.
    Unsure(OpenError, Option<ImageBytes>),
}

impl MappedFile {
    /// Searches for the file. May hang.
    fn find(&self, copying: &Copying) -> Result<FileMatch, OpenError> {
        let mut reason = OpenError::Deleted;
        let mut unsure = None;
        if let Some(path) = &self.path {
            let root = Root::of_process(self.pid).map_err(OpenError::from);
            match root.and_then(|root| root.open(path, Links::All, copying)) {
                Ok(file) if file.about().identity == self.identity => {
                    return Ok(FileMatch::Same(file.bytes(copying)?));
                }
                Ok(file) => {
                    unsure = Some(file);
                    reason = OpenError::Replaced;
                }
                Err(error) => reason = error,
            }
        }
        // Leads to the mapped file even if its name is gone; needs CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE
        // (proc_pid_map_files(5)). Tried before the comparison of heads, which are equal in files of one
        // layout without build ids.
        if let Ok(file) = open_linked(self.pid, &self.link, copying) {
            return Ok(FileMatch::Same(file.bytes(copying)?));
        }
        let unsure = unsure.map(|file| file.bytes(copying)).transpose()?;
        Ok(FileMatch::Unsure(reason, unsure))
    }
}

/// The vDSO of this process: the kernel maps the same one into all processes of one architecture.
fn own_vdso() -> Option<ImageBytes> {
    let (mut maps, mut list, own) = (Maps::default(), Vec::new(), std::process::id().cast_signed());
    maps.read(own, &mut list).ok()?;
    let vdso = list.iter().find(|mapping| mapping.kind == MappingKind::Vdso)?;
    vdso_bytes(own, vdso).ok()
}

fn vdso_bytes(pid: pid_t, mapping: &Mapping) -> Result<ImageBytes, OpenError> {
    let len = addr::len(&mapping.avma);
    if len > VDSO_BYTES_MAX {
        return Err(OpenError::LongVdso { bytes: len });
    }
    let mut bytes = vec![0; len as usize];
    let read = sys::read_memory(pid, mapping.avma.start.0, &mut bytes)?;
    bytes.truncate(read);
    Ok(ImageBytes::new(bytes))
}

/// Whether a program with this initial stack pointer is a 32-bit one: its stack is below 4 GiB, where the
/// kernel never puts that of a 64-bit program (`STACK_TOP` in arch/x86/include/asm/processor.h and
/// arch/arm64/include/asm/processor.h).
pub(super) fn is_of_32_bits(start_stack: Avma) -> bool {
    u32::try_from(start_stack.0).is_ok()
}
