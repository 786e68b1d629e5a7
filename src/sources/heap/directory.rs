//! The directory that stackprof shares with a command: created where only the user can write, removed
//! afterwards.
//!
//! `Directory`: that directory; `install` puts the file of the shim where only its user can write.
//!
//! A lock on the control file shows that its recording is running. A killed stackprof leaves an unlocked
//! directory, which the next one removes. Its path stays in environments; the shim uses a directory only if it belongs to
//! root or to the user that the process runs as.
#![allow(unsafe_code)]

use std::cmp::Reverse;
use std::ffi::{CString, OsStr, OsString};
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, ErrorKind as IoKind, Read, Write};
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use super::shared_memory::{
    CONTROL_NAME, CONTROL_SIZE, Control, DEFAULT_DATA_SIZE, DEFAULT_SET_SLOTS, MAGIC, MAPS_PREFIX,
    RING_PREFIX, Refusal, STACK_SIZE_MAX,
};
use crate::error::{Error, ErrorKind, Result, io_text};
use crate::sources::HeapOptions;

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
        let shim = install(shim)?;
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

// ---- The file of the shim, which programs load: in a directory that nobody but root and this user can change.
//
// Its path outlives the recording, in environments that processes keep or save. So it is named after its content, is never
// removed, and lies where no other user can make that name: each directory above it belongs to root or to this user, who
// alone can write to it. Sticky directories such as /tmp are no such place: a name there is free once it is removed.

/// File name of the shim: its content follows the prefix.
pub(super) const SHIM_PREFIX: &str = "heap-";
pub(super) const SHIM_EXTENSION: &str = if cfg!(target_vendor = "apple") { ".dylib" } else { ".so" };
/// Name of its directory.
const DIRECTORY: &str = "stackprof";
/// Places of root, whose library every user can load, best first.
const PLACES_OF_ROOT: [&str; 2] = if cfg!(target_vendor = "apple") {
    ["/Library/Application Support", "/usr/local/lib"]
} else {
    ["/run", "/var/lib"]
};
/// Where a user's cache is below the home directory.
const CACHE: &str = if cfg!(target_vendor = "apple") { "Library/Caches" } else { ".cache" };

/// Finds the shim, or writes it to the first place that can hold it.
///
/// # Errors
/// [`ErrorKind::System`]: no place can, with the reason of each.
pub fn install(shim: &[u8]) -> Result<PathBuf> {
    let user = effective_user();
    let mut reasons = Vec::new();
    for place in shim_places(user) {
        match install_in(&place, shim, user, is_private) {
            Ok(path) => return Ok(path),
            Err(why) => reasons.push(format!("{}: {}", place.display(), io_text(&why))),
        }
    }
    let text = format!(
        "no place for the heap shim, which must be in a directory that only root and you can change ({}); set XDG_CACHE_HOME \
         to one whose files may be run, or run `stackprof heap -- true` once as root",
        reasons.join("; ")
    );
    Err(Error::new(ErrorKind::System, text))
}

/// Whether this is the path of a shim.
pub fn is_shim(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().as_bytes();
    let is_named = name.starts_with(SHIM_PREFIX.as_bytes()) && name.ends_with(SHIM_EXTENSION.as_bytes());
    is_named && path.parent().and_then(Path::file_name) == Some(OsStr::new(DIRECTORY))
}

fn effective_user() -> u32 {
    // SAFETY: geteuid(2) takes nothing.
    unsafe { libc::geteuid() }
}

/// Candidate places. The places of root come first for root, since children may become other users; for others last, as they
/// can only find a library there.
fn shim_places(user: u32) -> Vec<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let own = [
        variable("XDG_RUNTIME_DIR"),
        variable("XDG_CACHE_HOME"),
        variable("HOME").map(|home| home.join(CACHE)),
        std::env::home_dir().map(|home| home.join(CACHE)),
    ];
    let own = own.into_iter().flatten().filter(|place| place.is_absolute());
    let of_root = PLACES_OF_ROOT.map(PathBuf::from);
    let mut shim_places: Vec<PathBuf> =
        if user == 0 { of_root.into_iter().chain(own).collect() } else { own.chain(of_root).collect() };
    shim_places.dedup();
    shim_places
}

/// Finds or writes the shim in one place. `is_private`: checks a directory.
fn install_in(
    place: &Path,
    shim: &[u8],
    user: u32,
    is_private: impl Fn(&Path, u32) -> io::Result<()>,
) -> io::Result<PathBuf> {
    // Only the user's cache may be missing: its home is there.
    if !place.exists()
        && let Some(parent) = place.parent()
        && parent.exists()
    {
        is_private(&parent.canonicalize()?, user)?;
        make_directory(place)?;
    }
    let place = place.canonicalize()?;
    // The dynamic linker divides LD_PRELOAD at these, and replaces words that begin with `$` (ld.so(8)).
    if place.as_os_str().as_bytes().iter().any(|byte| b":$\t\n".contains(byte))
        || !cfg!(target_vendor = "apple") && place.as_os_str().as_bytes().contains(&b' ')
    {
        return Err(other("its name has a separator of LD_PRELOAD"));
    }
    is_private(&place, user)?;
    let directory = place.join(DIRECTORY);
    if fs::symlink_metadata(&directory).is_err() {
        make_directory(&directory)?;
    }
    is_private(&directory, user)?;
    let path = directory.join(format!("{SHIM_PREFIX}{:016x}{SHIM_EXTENSION}", hash(shim)));
    if !has_content(&path, shim, user) {
        write(&directory, &path, shim)?;
    }
    check_executable(&File::open(&path)?)?;
    Ok(path)
}

/// Checks that only root and this user can change what is at a path without links.
fn is_private(path: &Path, user: u32) -> io::Result<()> {
    check_private(path, user, |part| {
        let metadata = fs::symlink_metadata(part)?;
        Ok((metadata.is_dir(), metadata.uid(), metadata.mode()))
    })
}

/// Checks that each directory on a path belongs to root, to this user, or to the owner of the root directory, and that nobody
/// else can write to it. `status`: whether a part is a directory, its owner and its mode.
fn check_private(
    path: &Path,
    user: u32,
    status: impl Fn(&Path) -> io::Result<(bool, u32, u32)>,
) -> io::Result<()> {
    // In a user namespace, users of the system outside have no number of their own; who owns `/` can replace every program.
    let (_, system, _) = status(Path::new("/"))?;
    for part in path.ancestors() {
        let (is_directory, owner, mode) = status(part)?;
        if !is_directory {
            return Err(other(&format!("{} is no directory", part.display())));
        }
        if ![0, user, system].contains(&owner) || mode & 0o022 != 0 {
            return Err(other(&format!("others can change {}", part.display())));
        }
    }
    Ok(())
}

fn other(why: &str) -> io::Error {
    io::Error::other(why.to_owned())
}

/// Creates a directory that others may read, whatever the umask is.
fn make_directory(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        // Another recording made it.
        Err(error) if error.kind() == IoKind::AlreadyExists => return Ok(()),
        made => made?,
    }
    fs::set_permissions(path, Permissions::from_mode(0o755))
}

/// Whether a file is the shim, and only root and this user can change it.
fn has_content(path: &Path, shim: &[u8], user: u32) -> bool {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let Ok(file) = File::options().read(true).custom_flags(flags).open(path) else { return false };
    let is_own = file.metadata().is_ok_and(|metadata| {
        let is_private = [0, user].contains(&metadata.uid()) && metadata.mode() & 0o022 == 0;
        is_private && metadata.is_file() && metadata.len() == shim.len() as u64
    });
    let mut content = Vec::new();
    is_own && file.take(shim.len() as u64 + 1).read_to_end(&mut content).is_ok() && content == shim
}

/// Writes the shim under another name and renames it: it is whole or not there.
fn write(directory: &Path, path: &Path, shim: &[u8]) -> io::Result<()> {
    let temporary = directory.join(format!(".{}.{:x}", std::process::id(), hash(&now().to_ne_bytes())));
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(&temporary)?;
    let written = file
        .write_all(shim)
        .and_then(|()| file.set_permissions(Permissions::from_mode(0o555)))
        .map(|()| drop(file.sync_data()))
        .and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

fn now() -> u128 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_nanos()
}

/// Checks that code can be mapped from this file: many systems mount places of users noexec.
fn check_executable(file: &File) -> io::Result<()> {
    const BYTES: usize = 4096;
    // SAFETY: a new mapping of a file that this process keeps open, at an address that the kernel chooses.
    let mapped = unsafe {
        let protection = libc::PROT_READ | libc::PROT_EXEC;
        libc::mmap(std::ptr::null_mut(), BYTES, protection, libc::MAP_PRIVATE, file.as_raw_fd(), 0)
    };
    if mapped == libc::MAP_FAILED {
        return Err(match io::Error::last_os_error() {
            error if error.kind() == IoKind::PermissionDenied => other("its files may not be run (noexec)"),
            error => error,
        });
    }
    // SAFETY: the mapping just made, which nothing refers to.
    unsafe { libc::munmap(mapped, BYTES) };
    Ok(())
}

/// FNV-1a: tells the shims of versions apart. Its content is compared.
fn hash(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use super::{SHIM_EXTENSION, SHIM_PREFIX};

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

#[cfg(test)]
mod shim_file_tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_path_is_private_if_no_other_user_can_change_any_part_of_it() {
        // Owner and mode of /, /a and /a/b, as user 1000.
        for (parts, expected) in [
            ([(0, 0o755), (0, 0o755), (1000, 0o700)], true),
            ([(0, 0o755), (1000, 0o711), (1000, 0o755)], true),
            // The root directory's owner: outside of a user namespace.
            ([(65534, 0o755), (65534, 0o755), (1000, 0o755)], true),
            // /tmp, /dev/shm: once removed, a name is free for all.
            ([(0, 0o755), (0, 0o1777), (1000, 0o700)], false),
            ([(0, 0o755), (1001, 0o755), (1000, 0o700)], false),
            ([(0, 0o755), (65534, 0o755), (1000, 0o700)], false),
            ([(0, 0o755), (0, 0o755), (1000, 0o775)], false),
            ([(0, 0o777), (0, 0o755), (1000, 0o700)], false),
            ([(0, 0o755), (0, 0o755), (1001, 0o700)], false),
        ] {
            let status = |path: &Path| {
                let (owner, mode) = parts[path.components().count() - 1];
                Ok((true, owner, mode))
            };
            let found = check_private(Path::new("/a/b"), 1000, status);
            assert_eq!(found.is_ok(), expected, "{parts:?}: {found:?}");
        }
        let file = check_private(Path::new("/a/b"), 0, |path| Ok((path != Path::new("/a/b"), 0, 0o755)));
        assert_eq!(file.unwrap_err().to_string(), "/a/b is no directory");
    }

    #[test]
    fn the_library_is_written_once_whole_and_for_all_to_read() {
        let (place, user) = (tempfile::tempdir().unwrap(), effective_user());
        let install = |shim: &[u8]| install_in(place.path(), shim, user, |_, _| Ok(()));
        // As long as a page: it is mapped to see whether it can be run.
        let shims = [vec![1; 8192], vec![2; 8192]];
        let path = install(&shims[0]).unwrap();
        assert!(is_shim(&path) && fs::read(&path).unwrap() == shims[0]);
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o555, 0o755));
        let written = fs::metadata(&path).unwrap().ino();
        assert_eq!(
            (install(&shims[0]).unwrap(), fs::metadata(&path).unwrap().ino()),
            (path.clone(), written)
        );
        // Another version has another name, and the first one stays.
        assert_ne!(install(&shims[1]).unwrap(), path);
        // What others could have written is replaced, and no link is followed.
        fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
        assert!(install(&shims[0]).is_ok() && fs::metadata(&path).unwrap().ino() != written);
        let elsewhere = place.path().join("elsewhere");
        fs::write(&elsewhere, &shims[0]).unwrap();
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        assert!(install(&shims[0]).is_ok() && fs::symlink_metadata(&path).unwrap().is_file());
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 2);
        let refused = install_in(place.path(), &shims[0], user, is_private);
        assert!(refused.is_err(), "a sticky directory is above it");
    }
}
