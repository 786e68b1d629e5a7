//! The directory that stackprof shares with a command: created where only the user can write, removed
//! afterwards.
//!
//! A lock on the control file shows that its recording is running. A killed stackprof leaves an unlocked
//! directory, which the next one removes. Its path stays in environments; the shim uses a directory only if it belongs to
//! root or to the user that the process runs as.
#![allow(unsafe_code)]

use std::cmp::Reverse;
use std::ffi::{CString, OsStr, OsString};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use super::HeapOptions;
use super::shared_memory::{
    CONTROL_NAME, CONTROL_SIZE, Control, DEFAULT_DATA_SIZE, DEFAULT_SET_SLOTS, MAGIC, MAPS_PREFIX,
    RING_PREFIX, Refusal, STACK_SIZE_MAX,
};
use super::shim_file::{self, is_shim};
use crate::error::{Error, ErrorKind, Result, io_text};

/// The variable with libraries that the dynamic linker loads into a program.
const PRELOAD_VARIABLE: &str =
    if cfg!(target_vendor = "apple") { "DYLD_INSERT_LIBRARIES" } else { "LD_PRELOAD" };
/// Prefix of directory names.
const PREFIX: &str = "stackprof-heap-";
/// A directory without a control file may still be under construction for this long.
const NEW_FOR: Duration = Duration::from_secs(60);
/// Enough free space that more makes no difference: rings use only their unread bytes.
const SPACE_ENOUGH_BYTES: u64 = 16 << 20;
/// Number of names to try.
const TRIES: u32 = 100;

/// Below this many bytes per sample, rings are larger and stacks shorter, because records are written faster
/// than they are read.
const FREQUENT_BYTES: u64 = 16 << 10;
const FREQUENT_DATA_SIZE: u64 = 64 << 20;
const FREQUENT_SET_SLOTS: u64 = 1 << 24;
/// How long a process that records every allocation waits for a stackprof that reads nothing: it has died, or is suspended.
const WAIT_NS: u64 = 1_000_000_000;
/// Programs with frames of 16 KiB are not rare: SQLite's shell has one in `main`.
const FREQUENT_STACK_SIZE: u32 = 32 << 10;

/// The directory of the running recording, for the code that ends the process.
static CURRENT: Mutex<Option<PathBuf>> = Mutex::new(None);

/// A directory that is removed on drop.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    /// Path of the shim.
    shim: PathBuf,
    /// Open and locked.
    control: File,
}

impl Directory {
    /// Creates the directory, for a command that loads this shim, and removes those left by killed recordings.
    ///
    /// # Errors
    /// [`ErrorKind::System`]: none of the places can hold it.
    pub fn make(shim: &[u8], options: HeapOptions) -> Result<Directory> {
        let shim = shim_file::install(shim)?;
        let mut failure = (PathBuf::from("/tmp"), io::ErrorKind::NotFound.into());
        let mut places = places();
        places.iter().for_each(|place| sweep(place));
        places.sort_by_key(|place| Reverse(free_bytes(place).min(SPACE_ENOUGH_BYTES)));
        for place in places {
            match Directory::make_in(&place, shim.clone(), options) {
                Ok(directory) => {
                    *CURRENT.lock().unwrap_or_else(PoisonError::into_inner) = Some(directory.path.clone());
                    return Ok(directory);
                }
                Err(why) => failure = (place, why),
            }
        }
        let (place, why) = failure;
        let text = format!(
            "cannot share memory with the command in {}: {}; set XDG_RUNTIME_DIR to a directory of yours",
            place.display(),
            io_text(&why)
        );
        Err(Error::new(ErrorKind::System, text).caused_by(why))
    }

    /// Creates it in this place.
    pub(crate) fn make_in(place: &Path, shim: PathBuf, options: HeapOptions) -> io::Result<Directory> {
        let path = make_new(place)?;
        let made = make_control(&path, options);
        if made.is_err() {
            remove(&path);
        }
        made.map(|control| Directory { path, shim, control })
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Path of the shim.
    #[must_use]
    pub fn shim(&self) -> &Path {
        &self.shim
    }

    /// Environment variables with which a command loads the shim, ahead of libraries that it is already told to load.
    /// The shim of another recording, of which this stackprof is a part, is left out: two would record into this
    /// directory.
    #[must_use]
    pub fn environment(&self) -> Vec<(OsString, OsString)> {
        self.environment_with(std::env::var_os(PRELOAD_VARIABLE).as_deref())
    }

    fn environment_with(&self, preloaded: Option<&OsStr>) -> Vec<(OsString, OsString)> {
        let mut preload = self.shim.clone().into_os_string();
        let preloaded = preloaded.unwrap_or_default().as_bytes();
        // ld.so(8) divides at blanks, too; dyld does not.
        let is_separator = |byte: &u8| *byte == b':' || *byte == b' ' && !cfg!(target_vendor = "apple");
        for library in preloaded.split(is_separator).filter(|library| !library.is_empty()) {
            if !is_shim(Path::new(OsStr::from_bytes(library))) {
                preload.push(":");
                preload.push(OsStr::from_bytes(library));
            }
        }
        let directory = self.path.clone().into_os_string();
        vec![(PRELOAD_VARIABLE.into(), preload), (super::shared_memory::DIRECTORY_VARIABLE.into(), directory)]
    }

    /// The existing rings: process, sequence number, path.
    #[must_use]
    pub fn rings(&self) -> Vec<(u32, u32, PathBuf)> {
        let Ok(entries) = fs::read_dir(&self.path) else { return Vec::new() };
        let mut rings: Vec<(u32, u32, PathBuf)> = entries
            .flatten()
            .filter_map(|entry| {
                let name = entry.file_name();
                let (pid, sequence) = name.to_str()?.strip_prefix(RING_PREFIX)?.split_once('.')?;
                Some((pid.parse().ok()?, sequence.parse().ok()?, entry.path()))
            })
            .collect();
        rings.sort_unstable();
        rings
    }

    /// Paths of the shim's copies of a process's mappings, taken when its ring was created and when it
    /// exited.
    #[must_use]
    pub fn maps(&self, pid: u32, sequence: u32) -> [PathBuf; 2] {
        let name = format!("{MAPS_PREFIX}{pid}.{sequence}");
        [self.path.join(&name), self.path.join(name + ".end")]
    }

    /// Removes the files of a ring that was read to its end.
    pub fn remove_ring(&self, pid: u32, sequence: u32) {
        let _ = fs::remove_file(self.path.join(format!("{RING_PREFIX}{pid}.{sequence}")));
        // Its lists of images.
        let [list, _] = self.maps(pid, sequence);
        let (name, Ok(entries)) = (list.file_name().unwrap_or_default(), fs::read_dir(&self.path)) else {
            return;
        };
        let is_of_ring = |found: &OsStr| {
            let rest = found.as_bytes().strip_prefix(name.as_bytes());
            rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'.')
        };
        for entry in entries.flatten().filter(|entry| is_of_ring(&entry.file_name())) {
            let _ = fs::remove_file(entry.path());
        }
    }

    /// Makes all processes stop recording.
    pub fn stop(&self) {
        stop(&self.control);
    }

    /// Tells processes that wait for room, or gave that up, that their records are read.
    pub fn show_life(&self) {
        // If this fails, they wait no more, and count what they lose.
        let _ = self.control.write_all_at(&0u32.to_ne_bytes(), offset_of!(Control, is_stalled) as u64);
    }

    /// Number of programs that the shim was loaded into.
    #[must_use]
    pub fn programs(&self) -> u64 {
        self.word(offset_of!(Control, programs))
    }

    /// Libraries that processes loaded and whose calls do not reach the shim, and the peak memory of the largest of these
    /// processes, if one has ended.
    #[must_use]
    pub fn unseen_libraries(&self) -> (u64, Option<u64>) {
        let peak_bytes = self.word(offset_of!(Control, peak_with_unseen));
        (self.word(offset_of!(Control, unseen_libraries)), Some(peak_bytes).filter(|bytes| *bytes > 0))
    }

    /// Processes that took a sample and could not report it, by reason.
    #[must_use]
    pub fn refused(&self) -> Vec<(&'static str, u64)> {
        let reasons = [
            (
                Refusal::Create,
                "it could not make its ring: it has changed its user or its root directory, or has no descriptor left",
            ),
            (
                Refusal::Space,
                "no space for its ring: set XDG_RUNTIME_DIR to a directory with more, or raise --every",
            ),
            (Refusal::Map, "no address space for its ring (ulimit -v): raise --every"),
            (Refusal::Control, "the control file was changed"),
            (
                Refusal::Filtered,
                "it restricts its system calls (seccomp), or its code can, and was not recorded before",
            ),
        ];
        let at = |reason: Refusal| offset_of!(Control, refusals) + reason as usize * size_of::<u64>();
        let counted = reasons.map(|(reason, why)| (why, self.word(at(reason))));
        counted.into_iter().filter(|(_, count)| *count > 0).collect()
    }

    fn word(&self, at: usize) -> u64 {
        let mut bytes = [0; 8];
        self.control.read_exact_at(&mut bytes, at as u64).map_or(0, |()| u64::from_ne_bytes(bytes))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        self.stop();
        remove(&self.path);
        *CURRENT.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Tells processes through their control file to record no more.
fn stop(control: &File) {
    // If this fails, they record until their rings are full.
    let _ = control.write_all_at(&1u32.to_ne_bytes(), offset_of!(Control, is_stopped) as u64);
}

/// Removes the directory of the running recording, because this process is about to end.
pub fn remove_current() {
    // Another thread may hold the lock: it is removing the directory, or has not created it yet.
    if let Ok(mut current) = CURRENT.try_lock()
        && let Some(path) = current.take()
    {
        if let Ok(control) = File::options().write(true).open(path.join(CONTROL_NAME)) {
            stop(&control);
        }
        remove(&path);
    }
}

/// Candidate places, best first: memory of the user, shared memory, files.
fn places() -> Vec<PathBuf> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let runtime = runtime.filter(|path| path.is_absolute() && is_own(path));
    runtime.into_iter().chain(["/dev/shm", "/tmp"].map(PathBuf::from)).collect()
}

/// Bytes that this user can still write there; 0 if unknown.
fn free_bytes(place: &Path) -> u64 {
    let Ok(place) = CString::new(place.as_os_str().as_bytes()) else { return 0 };
    // SAFETY: statvfs is plain data, of which zero is a value.
    let mut found: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: statvfs(3) of a C string into a live variable.
    if unsafe { libc::statvfs(place.as_ptr(), &raw mut found) } != 0 {
        return 0;
    }
    #[allow(clippy::unnecessary_cast, reason = "of other types on other systems")]
    let (blocks, block_bytes) = (found.f_bavail as u64, found.f_frsize as u64);
    blocks.saturating_mul(block_bytes)
}

/// Whether a directory belongs to this user and nobody else can write to it.
fn is_own(path: &Path) -> bool {
    // SAFETY: geteuid(2) takes nothing.
    let user = unsafe { libc::geteuid() };
    fs::symlink_metadata(path)
        .is_ok_and(|metadata| metadata.is_dir() && metadata.uid() == user && metadata.mode() & 0o022 == 0)
}

fn make_new(place: &Path) -> io::Result<PathBuf> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let mut name = now.as_nanos() as u64 ^ u64::from(std::process::id()) << 32;
    for _ in 0..TRIES {
        name = name.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
        let path = place.join(format!("{PREFIX}{name:016x}"));
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made.map(|()| path),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Writes the control file, and locks it.
fn make_control(path: &Path, options: HeapOptions) -> io::Result<File> {
    let mut new = File::options();
    let control = new.read(true).write(true).create_new(true).mode(0o600).open(path.join(CONTROL_NAME))?;
    if !lock(&control) {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    control.write_all_at(&control_bytes(options), 0)?;
    Ok(control)
}

fn control_bytes(options: HeapOptions) -> Vec<u8> {
    let is_frequent = options.every_bytes < FREQUENT_BYTES;
    let mut bytes = vec![0; CONTROL_SIZE];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    let data_size = if is_frequent { FREQUENT_DATA_SIZE } else { DEFAULT_DATA_SIZE };
    let set_slots = if is_frequent { FREQUENT_SET_SLOTS } else { DEFAULT_SET_SLOTS };
    put(offset_of!(Control, magic), &MAGIC.to_ne_bytes());
    put(offset_of!(Control, mean_bytes), &options.every_bytes.to_ne_bytes());
    put(offset_of!(Control, data_size), &data_size.to_ne_bytes());
    put(offset_of!(Control, set_slots), &set_slots.to_ne_bytes());
    let stack_size = if is_frequent { FREQUENT_STACK_SIZE } else { STACK_SIZE_MAX };
    put(offset_of!(Control, stack_size), &stack_size.to_ne_bytes());
    put(offset_of!(Control, seed), &options.seed.to_ne_bytes());
    // One that records every allocation loses none.
    let wait_ns = if options.every_bytes == 1 { WAIT_NS } else { 0 };
    put(offset_of!(Control, wait_ns), &wait_ns.to_ne_bytes());
    put(offset_of!(Control, records_mappings), &u64::from(options.records_mappings).to_ne_bytes());
    put(offset_of!(Control, seccomp_filters), &seccomp_filters().map_or(0, |own| own + 1).to_ne_bytes());
    bytes
}

/// Number of seccomp filters of this process. A program with more could be killed for a system call of the
/// shim.
fn seccomp_filters() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix("Seccomp_filters:"))?.trim().parse().ok()
}

/// Locks a control file; `false` if another process holds the lock.
fn lock(file: &File) -> bool {
    // SAFETY: flock(2) of a descriptor that is open.
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) == 0 }
}

/// Removes directories left by recordings that no longer run.
fn sweep(place: &Path) {
    let Ok(entries) = fs::read_dir(place) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let is_one = entry.file_name().as_bytes().starts_with(PREFIX.as_bytes());
        if is_one && is_own(&path) && is_abandoned(&path) {
            remove(&path);
        }
    }
}

fn is_abandoned(path: &Path) -> bool {
    let mut options = File::options();
    match options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path.join(CONTROL_NAME)) {
        Ok(control) => lock(&control),
        Err(error) if error.kind() == io::ErrorKind::NotFound => fs::symlink_metadata(path)
            .and_then(|metadata| metadata.modified())
            .is_ok_and(|made| made.elapsed().is_ok_and(|age| age > NEW_FOR)),
        Err(_) => false,
    }
}

/// Removes a directory with the files of stackprof and the shim. Any other file stays, and with it the
/// directory.
fn remove(path: &Path) {
    let Ok(entries) = fs::read_dir(path) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name == CONTROL_NAME || name.starts_with(RING_PREFIX) || name.starts_with(MAPS_PREFIX) {
            let _ = fs::remove_file(entry.path());
        }
    }
    let _ = fs::remove_dir(path);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::shim_file::{SHIM_EXTENSION, SHIM_PREFIX};
    use super::*;

    const OPTIONS: HeapOptions = HeapOptions { every_bytes: 512 << 10, seed: 0, records_mappings: false };

    #[test]
    fn is_private_and_removed_on_drop() {
        let place = tempfile::tempdir().unwrap();
        let shim = format!("/run/stackprof/{SHIM_PREFIX}0123{SHIM_EXTENSION}");
        let directory = Directory::make_in(place.path(), shim.clone().into(), OPTIONS).unwrap();
        let path = directory.path().to_owned();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&path), mode(&path.join(CONTROL_NAME))), (0o700, 0o600));
        fs::write(path.join("ring.12.3"), "x").unwrap();
        fs::write(path.join("ring.x.3"), "x").unwrap();
        fs::write(path.join("maps.12.3.end"), "x").unwrap();
        assert_eq!(directory.rings(), [(12, 3, path.join("ring.12.3"))]);
        let environment = directory.environment_with(Some(OsStr::new("/lib/a.so")));
        assert_eq!(environment[0].1, OsString::from(format!("{shim}:/lib/a.so")));
        // That of an outer recording.
        let preloaded = format!("{shim}:/lib/a.so:/lib/heap-0123.so");
        let environment = directory.environment_with(Some(OsStr::new(&preloaded)));
        assert_eq!(environment[0].1, OsString::from(format!("{shim}:/lib/a.so:/lib/heap-0123.so")));
        assert_eq!((directory.programs(), directory.refused()), (0, vec![]));
        // Another recording that starts does not remove it.
        sweep(place.path());
        assert!(path.join(CONTROL_NAME).exists());
        drop(directory);
        assert!(!path.exists());
    }

    #[test]
    fn the_next_recording_removes_the_directory_of_a_killed_one() {
        let place = tempfile::tempdir().unwrap();
        let directory = Directory::make_in(place.path(), "/shim.so".into(), OPTIONS).unwrap();
        let path = directory.path().to_owned();
        fs::write(path.join("ring.1.0"), "x").unwrap();
        // When a process is killed, the kernel releases the lock and nothing else.
        let Directory { path: kept, control, .. } = &directory;
        assert_eq!(*kept, path);
        // SAFETY: flock(2) of a descriptor that is open.
        unsafe { libc::flock(control.as_raw_fd(), libc::LOCK_UN) };
        // A foreign directory, and one with a foreign file.
        fs::create_dir(place.path().join("other")).unwrap();
        sweep(place.path());
        assert!(!path.exists() && place.path().join("other").exists());
    }

    #[test]
    fn a_directory_under_construction_is_left_alone() {
        let place = tempfile::tempdir().unwrap();
        let path = make_new(place.path()).unwrap();
        sweep(place.path());
        assert!(path.exists());
    }
}
