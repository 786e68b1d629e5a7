//! Processes of a command that run without the heap shim, as far as they were seen, and why.
//!
//! `ProcessesWithoutShim` counts; `LoadMethod` is how a program is loaded, `OwnAllocator` an allocator inside of it
//! that no preloaded library replaces.
//!
//! Input: the process tree below the command, by /proc. Output: counts by reason. A process that starts and ends
//! between two scans is not seen: the counts are lower bounds.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use libc::pid_t;

use crate::binary::elf::functions;
use crate::binary::files::map_regular;
use crate::binary::{ImageBytes, Mapping, MappingKind, OpenError};
use crate::sources::linux::perf::is_c_library;
use crate::sources::linux::sys;
use crate::sources::proc_file;
use crate::sources::pushed::UnseenAllocator;

/// Most processes per scan: each costs some 20 microseconds.
const PROCESSES_MAX: usize = 256;
/// Most threads of a process whose children are listed.
const THREADS_MAX: usize = 64;
/// Most processes to remember; later ones are not looked at.
const KNOWN_MAX: usize = 1 << 16;
const OTHER_RIGHTS: &str = "setuid, setgid or with file capabilities";

/// The process tree of a command.
#[derive(Debug, Default)]
pub(super) struct ProcessesWithoutShim {
    /// By pid: the program that it ran when it was last seen, and why that has no shim.
    known: BTreeMap<pid_t, (PathBuf, Option<&'static str>)>,
    counts: BTreeMap<&'static str, u64>,
}

impl ProcessesWithoutShim {
    /// Looks at the processes below the command. `shim`: the library, as in LD_PRELOAD.
    pub(super) fn scan(&mut self, command: pid_t, shim: &Path) {
        let (mut waiting, mut seen) = (vec![command], 0);
        while let Some(pid) = waiting.pop().filter(|_| seen < PROCESSES_MAX) {
            seen += 1;
            self.look_at(pid, shim);
            waiting.extend(children(pid));
        }
    }

    fn look_at(&mut self, pid: pid_t, shim: &Path) {
        let program = match fs::read_link(format!("/proc/{pid}/exe")) {
            Ok(program) => program,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                // Of a process with other rights, or of one that has made itself undumpable, which may have the shim
                // (ptrace(2), access mode checking).
                let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
                let is_other = effective_uid_of(&status).is_some_and(|uid| uid != sys::effective_uid());
                if is_other && self.known.len() < KNOWN_MAX {
                    self.note(pid, PathBuf::new(), Some(OTHER_RIGHTS));
                }
                return;
            }
            Err(_) => return,
        };
        if self.known.get(&pid).is_some_and(|(known, _)| *known == program) || self.known.len() >= KNOWN_MAX {
            return;
        }
        let has = |name| proc_file::head(format!("/proc/{pid}/{name}"), 1).is_ok_and(|head| !head.is_empty());
        // A process that is starting or exiting has neither: it is looked at again. `env -i` leaves the arguments.
        if !has("environ") && !has("cmdline") {
            return;
        }
        // The dynamic linker as a program: `ld.so prog`.
        let is_linker = program.file_name().is_some_and(|name| name.as_bytes().starts_with(b"ld-"));
        let loading = if is_linker {
            LoadMethod::Dynamic
        } else {
            LoadMethod::of(&PathBuf::from(format!("/proc/{pid}/exe")))
        };
        // Programs write titles over their environment, but only after they have loaded the shim.
        let why = why_without(loading, || preloads(pid, shim)).filter(|_| !maps(pid, shim));
        // The program may have been replaced meanwhile.
        if fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|now| now == program) {
            self.note(pid, program, why);
        }
    }

    /// Counts a process that was seen to run this program, once per reason.
    fn note(&mut self, pid: pid_t, program: PathBuf, why: Option<&'static str>) {
        let before = self.known.insert(pid, (program, why)).and_then(|(_, before)| before);
        if let Some(why) = why.filter(|why| before != Some(*why)) {
            *self.counts.entry(why).or_default() += 1;
        }
    }

    /// Why the last program of this process that was seen has no shim.
    pub(super) fn why(&self, pid: pid_t) -> Option<&'static str> {
        self.known.get(&pid)?.1
    }

    /// How many processes were seen without the shim, by reason.
    pub(super) fn counts(&self) -> Vec<(&'static str, u64)> {
        self.counts.iter().map(|(why, count)| (*why, *count)).collect()
    }
}

/// Why a process did not load the shim; `None` if it did, or may have.
fn why_without(loading: LoadMethod, names_shim: impl FnOnce() -> bool) -> Option<&'static str> {
    match loading {
        LoadMethod::Static => Some("linked statically"),
        LoadMethod::OtherRights => Some(OTHER_RIGHTS),
        LoadMethod::OtherClass => Some("of another architecture"),
        LoadMethod::Dynamic => (!names_shim()).then_some("started with another LD_PRELOAD (env -i, sudo)"),
    }
}

/// The effective user in a /proc/PID/status.
fn effective_uid_of(status: &str) -> Option<u32> {
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_whitespace().nth(1)?.parse().ok()
}

/// Whether a process was started with a library in its LD_PRELOAD.
fn preloads(pid: pid_t, shim: &Path) -> bool {
    let mut names_it = false;
    // What was read before an error counts.
    let _ = proc_file::for_each_variable(format!("/proc/{pid}/environ"), |variable| {
        names_it |= names(variable, shim);
    });
    names_it
}

/// Whether a variable is an LD_PRELOAD with this library.
fn names(variable: &[u8], shim: &Path) -> bool {
    let value = variable.strip_prefix(b"LD_PRELOAD=");
    value.is_some_and(|value| memchr::memmem::find(value, shim.as_os_str().as_bytes()).is_some())
}

/// Whether a process maps a file.
fn maps(pid: pid_t, file: &Path) -> bool {
    proc_file::contains(format!("/proc/{pid}/maps"), file.as_os_str().as_bytes()).unwrap_or(false)
}

/// Children of all threads of a process (proc_pid_children(5)); none on kernels without that file.
fn children(pid: pid_t) -> Vec<pid_t> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let lists = threads
        .flatten()
        .take(THREADS_MAX)
        .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

// ---- How the system loads a program: whether a preloaded library comes with it.
//
// Input: the program's file, hostile. Output: a [`LoadMethod`].

/// How the system loads a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoadMethod {
    Dynamic,
    Static,
    OtherRights,
    OtherClass,
}

impl LoadMethod {
    pub(super) fn of(path: &Path) -> LoadMethod {
        let gains_rights = fs::metadata(path).is_ok_and(|metadata| {
            let by_owner = metadata.mode() & libc::S_ISUID != 0 && metadata.uid() != sys::effective_uid();
            by_owner || metadata.mode() & libc::S_ISGID != 0 || sys::has_file_capabilities(path)
        });
        let mut head = Vec::new();
        let read = File::open(path).and_then(|file| file.take(64 << 10).read_to_end(&mut head));
        match read {
            _ if gains_rights => LoadMethod::OtherRights,
            Ok(_) => LoadMethod::of_head(&head),
            Err(_) => LoadMethod::Dynamic,
        }
    }

    /// Decides by the first bytes of a program; a script is loaded by its interpreter.
    pub(super) fn of_head(head: &[u8]) -> LoadMethod {
        const PT_INTERP: u32 = 3;
        if !head.starts_with(b"\x7fELF") {
            return LoadMethod::Dynamic;
        }
        let short = |at: usize| Some(u16::from_ne_bytes(head.get(at..at + 2)?.try_into().ok()?));
        let half = |at: usize| Some(u32::from_ne_bytes(head.get(at..at + 4)?.try_into().ok()?));
        let long =
            |at: usize| usize::try_from(u64::from_ne_bytes(head.get(at..at + 8)?.try_into().ok()?)).ok();
        let own_machine = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
        if head.get(4) != Some(&2) || short(18) != Some(own_machine) {
            return LoadMethod::OtherClass;
        }
        let has_interpreter = || {
            let (table, size, count) = (long(32)?, usize::from(short(54)?), usize::from(short(56)?));
            let mut headers = (0..count).map(|index| table.saturating_add(index * size));
            Some(headers.any(|at| half(at) == Some(PT_INTERP)))
        };
        if has_interpreter() == Some(true) { LoadMethod::Dynamic } else { LoadMethod::Static }
    }
}

// ---- Allocators inside of a program or a library, whose calls reach no preloaded library.
//
// The dynamic loader resolves `malloc` to the definition of the program before that of any library, preloaded or
// not; under another name (`je_malloc`) nothing is resolved at all.

/// Names of `malloc`, and the allocator that has it.
const NAMES: [(&str, &str); 7] = [
    ("malloc", "an allocator of its own"),
    ("je_malloc", "an allocator of its own, jemalloc"),
    ("_rjem_malloc", "an allocator of its own, jemalloc"),
    ("_rjem_mallocx", "an allocator of its own, jemalloc"),
    ("mi_malloc", "an allocator of its own, mimalloc"),
    ("tc_malloc", "an allocator of its own, tcmalloc"),
    ("rallocx", "an allocator of its own, jemalloc"),
];

/// An allocator in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OwnAllocator {
    /// What it is, without an article of the file: `an allocator of its own, jemalloc`.
    pub(super) what: &'static str,
    /// The name that its malloc has.
    pub(super) malloc: &'static str,
    /// Another name that it has beside `malloc`.
    other: Option<&'static str>,
}

impl OwnAllocator {
    /// The allocator in a program.
    pub(super) fn of_program(file: &[u8]) -> Option<OwnAllocator> {
        let found = functions::find_entries(file, &NAMES.map(|(name, _)| name));
        let mut known = NAMES.iter().zip(found);
        let ((malloc, what), _) = known.find(|(_, entry)| entry.is_some())?;
        // What has more than the name `malloc` is known better by it.
        let better = known.find(|(_, entry)| entry.is_some()).map(|(named, _)| *named);
        let what = better.map_or(*what, |(_, what)| what);
        Some(OwnAllocator { what, malloc, other: better.map(|(name, _)| name) })
    }

    /// That of a program's file.
    pub(super) fn of_path(path: &Path) -> Option<OwnAllocator> {
        OwnAllocator::of_program(map_regular(path).ok()?.bytes())
    }
}

/// The allocators of a process that calls do not leave: those of its program, and of libraries under names of their own.
pub(super) fn unseen_allocators(
    mappings: &[Mapping],
    mut bytes: impl FnMut(&Mapping) -> Result<ImageBytes, OpenError>,
) -> Vec<UnseenAllocator> {
    let mut files: Vec<&Mapping> =
        mappings.iter().filter(|mapping| mapping.kind == MappingKind::File).collect();
    files.dedup_by_key(|mapping| mapping.identity);
    let mut unseen: Vec<UnseenAllocator> = Vec::new();
    for mapping in &files {
        if is_c_library(&mapping.path) {
            continue;
        }
        let Ok(file) = bytes(mapping) else { continue };
        let Some(own) = OwnAllocator::of_program(file.bytes()) else { continue };
        let mut malloc = own.malloc;
        // Calls of a library's malloc reach the shim first, those by its other names do not.
        if malloc == "malloc" && LoadMethod::of_head(file.bytes()) != LoadMethod::Dynamic {
            let Some(other) = own.other.filter(|other| other.ends_with("_malloc")) else { continue };
            let names = [other, &other.replace("malloc", "free")];
            if !files
                .iter()
                .any(|user| bytes(user).is_ok_and(|user| functions::imports(user.bytes(), &names)))
            {
                continue;
            }
            malloc = other;
        }
        let name = mapping.path.rsplit('/').next().unwrap_or_default();
        let what = format!("{name} has {} ({malloc})", own.what);
        if unseen.iter().all(|known| known.functions != what) {
            unseen.push(UnseenAllocator { functions: what, next: NEXT.to_owned() });
        }
    }
    unseen
}

/// What helps.
pub(super) const NEXT: &str =
    "its calls do not reach the heap shim; probes see them while it runs: sudo stackprof heap --pid N";

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::process::Command;

    use super::*;

    #[test]
    fn the_reason_is_in_the_program_or_in_its_environment() {
        let shim = Path::new("/dev/shm/stackprof-heap-1/heap.so");
        let preload = &b"LD_PRELOAD=/dev/shm/stackprof-heap-1/heap.so:/lib/b.so"[..];
        let other = Some("started with another LD_PRELOAD (env -i, sudo)");
        for (loading, variable, expected) in [
            (LoadMethod::Dynamic, preload, None),
            (LoadMethod::Dynamic, b"LD_PRELOAD=", other),
            (LoadMethod::Dynamic, b"NOT_LD_PRELOAD=/dev/shm/stackprof-heap-1/heap.so", other),
            (LoadMethod::Static, preload, Some("linked statically")),
            (LoadMethod::OtherRights, preload, Some("setuid, setgid or with file capabilities")),
            (LoadMethod::OtherClass, preload, Some("of another architecture")),
        ] {
            assert_eq!(why_without(loading, || names(variable, shim)), expected);
        }
    }

    #[test]
    fn the_effective_user_is_the_second_number() {
        assert_eq!(effective_uid_of("Name:\tUid:\nUid:\t1000\t0\t7\t8\nGid:\t5\t5\t5\t5\n"), Some(0));
        for status in ["", "Uid:", "Uid:\t1000", "Uid:\t1000\t-1\t"] {
            assert_eq!(effective_uid_of(status), None, "{status}");
        }
        let own = fs::read_to_string("/proc/self/status").unwrap();
        assert_eq!(effective_uid_of(&own), Some(sys::effective_uid()));
    }

    #[test]
    fn a_process_counts_once_per_reason() {
        let mut processes = ProcessesWithoutShim::default();
        for (pid, program, why) in [
            (5, "/bin/sh", None),
            (5, "/bin/a", Some("linked statically")),
            (6, "/bin/a", Some("linked statically")),
            (6, "/bin/b", Some("linked statically")),
            (6, "/bin/c", Some("other")),
            (6, "/bin/d", None),
        ] {
            processes.note(pid, program.into(), why);
        }
        assert_eq!(processes.counts(), [("linked statically", 2), ("other", 1)]);
        assert_eq!((processes.why(5), processes.why(6)), (Some("linked statically"), None));
    }

    #[test]
    fn children_with_another_environment_are_found() {
        let (own, shim) = (std::process::id().cast_signed(), Path::new("/tmp/shim.so"));
        let sleep = |environment: Option<&str>| {
            let mut command = Command::new("sleep");
            command.arg("600").env_clear().envs(environment.map(|value| ("LD_PRELOAD", value)));
            command.spawn().unwrap()
        };
        let mut children = [sleep(Some("/tmp/shim.so")), sleep(Some("")), sleep(None)];
        let [with, without, bare] = children.each_ref().map(|child| child.id().cast_signed());
        let mut processes = ProcessesWithoutShim::default();
        // Until they run their program.
        let this = fs::read_link("/proc/self/exe").unwrap();
        while [with, without, bare]
            .iter()
            .any(|pid| processes.known.get(pid).is_none_or(|(program, _)| *program == this))
        {
            processes.scan(own, shim);
            std::thread::yield_now();
        }
        assert_eq!(processes.why(with), None);
        for pid in [without, bare] {
            assert_eq!(processes.why(pid), Some("started with another LD_PRELOAD (env -i, sudo)"));
        }
        for child in &mut children {
            child.kill().and_then(|()| child.wait()).unwrap();
        }
    }
}

#[cfg(test)]
mod load_method_tests {
    use super::*;

    /// The header of a program with these program headers: type, and text of each.
    fn head(machine: u16, headers: &[(u32, &str)]) -> Vec<u8> {
        let mut bytes = vec![0; 64];
        bytes[..5].copy_from_slice(b"\x7fELF\x02");
        bytes[18..20].copy_from_slice(&machine.to_ne_bytes());
        bytes[32..40].copy_from_slice(&64u64.to_ne_bytes());
        bytes[54..56].copy_from_slice(&56u16.to_ne_bytes());
        bytes[56..58].copy_from_slice(&(headers.len() as u16).to_ne_bytes());
        let mut text_at = 64 + 56 * headers.len();
        for (kind, text) in headers {
            let mut header = [0; 56];
            header[..4].copy_from_slice(&kind.to_ne_bytes());
            header[8..16].copy_from_slice(&(text_at as u64).to_ne_bytes());
            header[32..40].copy_from_slice(&(text.len() as u64).to_ne_bytes());
            text_at += text.len();
            bytes.extend_from_slice(&header);
        }
        headers.iter().for_each(|(_, text)| bytes.extend_from_slice(text.as_bytes()));
        bytes
    }

    #[test]
    fn the_header_shows_how_a_program_is_loaded() {
        let own = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
        let dynamic = head(own, &[(1, ""), (3, "/lib64/ld-linux-x86-64.so.2\0")]);
        for (bytes, expected) in [
            (dynamic.clone(), LoadMethod::Dynamic),
            (head(own, &[(1, ""), (3, "/lib/ld-musl-x86_64.so.1\0")]), LoadMethod::Dynamic),
            (head(own, &[(1, "")]), LoadMethod::Static),
            (head(40, &[(3, "/lib/ld.so")]), LoadMethod::OtherClass),
            (b"#!/bin/sh\n".to_vec(), LoadMethod::Dynamic),
        ] {
            assert_eq!(LoadMethod::of_head(&bytes), expected);
        }
        // Truncated or overwritten anywhere.
        for end in 0..dynamic.len() {
            let _ = LoadMethod::of_head(&dynamic[..end]);
        }
        for at in 0..dynamic.len() {
            let mut bytes = dynamic.clone();
            bytes[at] = 0xff;
            let _ = LoadMethod::of_head(&bytes);
        }
    }
}

#[cfg(test)]
mod own_allocator_tests {
    use super::*;

    #[test]
    fn a_libc_has_its_malloc_and_this_program_none() {
        // Of the C library, whatever its name, and of this program, which calls it.
        let own = std::fs::read("/proc/self/exe").unwrap_or_default();
        assert_eq!(OwnAllocator::of_program(&own), None);
        assert_eq!(OwnAllocator::of_program(b"\x7fELF"), None);
    }
}
