//! Files in the mount namespace of a target, also after it has exited.
//!
//! `TargetFiles` opens them; `FilePages` releases their resident pages above a bound.
//!
//! The target's root directory is opened when attaching, and files are opened below it (`target_file`).
//! Absolute links are resolved in that root, not in ours.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use libc::pid_t;

use super::perf::kernel_names;
use super::{proc, sys};
use crate::binary::files::{self, FileUser, Files};
use crate::binary::{ImageBytes, OpenError, map};
use crate::sources::LocalFiles;
use crate::sources::target_file::{Copying, FileLocation, Links, Patience, Root, TargetFile};

/// Tolerance for a map that seems older than its process, in seconds: both times are rounded, and the clock
/// may have been adjusted in between.
const ROUNDING_S: u64 = 2;

/// Why no file of a target can be opened.
const NO_ROOT: OpenError = OpenError::Source("the root of the process cannot be opened");

/// The files of a target.
#[derive(Debug)]
pub(super) struct TargetFiles {
    /// Its root directory; `None` if it could not be opened.
    root: Option<Root>,
    /// Record of files that did not answer.
    patience: Patience,
    /// Its process id in the innermost namespace.
    own_pid: String,
    /// Its number here.
    pid: pid_t,
    /// Its user.
    uid: u32,
    /// The users as whom it opened files at first.
    users: Vec<FileUser>,
    /// Its start time, in seconds since 1970, rounded down.
    began_s: Option<u64>,
}

impl TargetFiles {
    /// Opens the root of an existing process.
    pub(super) fn of(pid: pid_t) -> TargetFiles {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let innermost = proc::status_value(&status, "NSpid").and_then(|pids| pids.split_whitespace().last());
        let read = |path: &str| std::fs::read(path).unwrap_or_default();
        TargetFiles {
            began_s: proc::began_s(&read(&format!("/proc/{pid}/stat")), &read("/proc/stat")),
            root: Root::of_process(proc::living_thread(pid).unwrap_or(pid)).ok(),
            patience: Patience::default(),
            pid,
            users: process_users(pid),
            own_pid: innermost.map_or_else(|| pid.to_string(), str::to_owned),
            uid: std::fs::metadata(format!("/proc/{pid}")).map_or(0, |meta| meta.uid()),
        }
    }

    /// Whether its root could be opened.
    pub(super) fn has_root(&self) -> bool {
        self.root.is_some()
    }

    /// The bytes of the file at a path, if it has this device and inode and is unchanged since `seen`, when
    /// it was still mapped. `patience` is the process's.
    pub(super) fn open_same(
        &self,
        patience: &Patience,
        path: &str,
        identity: (u64, u64),
        seen: Option<SystemTime>,
    ) -> Option<Result<ImageBytes, OpenError>> {
        let (root, path) = (self.root.clone()?, path.to_owned());
        let opened = patience.wait_for(FileLocation::Device(identity.0), move |copying| {
            let file = root.open(&path, Links::All, copying)?;
            if file.about().identity != identity {
                return Ok(None);
            }
            let bytes = file.bytes(copying)?;
            // Checked after mapping: the mapping shows later changes.
            Ok(Some((bytes, file.about_now()?)))
        });
        let (bytes, about) = match opened {
            Err(OpenError::TimedOut) => return Some(Err(OpenError::TimedOut)),
            opened => opened.ok()??,
        };
        let since = |seen: SystemTime| {
            let seen = seen.duration_since(UNIX_EPOCH).unwrap_or_default();
            (seen.as_secs().cast_signed(), i64::from(seen.subsec_nanos()))
        };
        let is_other = seen.is_some_and(|seen| about.changed > since(seen));
        Some(if is_other { Err(OpenError::Replaced) } else { Ok(bytes) })
    }

    /// Device and inode of the regular file at a path. `patience` is the process's.
    pub(super) fn identity(&self, patience: &Patience, path: &str) -> Result<(u64, u64), OpenError> {
        let Some(root) = self.root.clone() else { return Err(NO_ROOT) };
        let (place, path) = (FileLocation::of(path), path.to_owned());
        patience.wait_for(place, move |copying| Ok(root.open(&path, Links::All, copying)?.about().identity))
    }

    /// Applies `body` to a regular file, in a thread that may hang.
    fn with_file<T: Send + 'static>(
        &self,
        path: &str,
        links: Links,
        work: impl FnOnce(TargetFile, &Copying) -> Result<T, OpenError> + Send + 'static,
    ) -> Result<T, OpenError> {
        let Some(root) = self.root.clone() else { return Err(NO_ROOT) };
        let (place, path) = (FileLocation::of(path), path.to_owned());
        self.patience.wait_for(place, move |copying| work(root.open(&path, links, copying)?, copying))
    }
}

impl Files for TargetFiles {
    fn open(&self, path: &str) -> Result<ImageBytes, OpenError> {
        self.with_file(path, Links::All, |file, copying| file.bytes(copying))
    }

    fn open_outside(&self, path: &str) -> Result<ImageBytes, OpenError> {
        LocalFiles.open(path)
    }

    fn open_jit_dump(&self, path: &str) -> Result<ImageBytes, OpenError> {
        let user = self.uid;
        self.with_file(path, Links::OfUser(user), move |file, copying| {
            file.check_trusted(Some(user))?;
            file.bytes(copying)
        })
    }

    fn modified_s(&self, path: &str) -> Option<u64> {
        self.with_file(path, Links::All, |file, _| Ok(u64::try_from(file.about().modified_s).ok())).ok()?
    }

    fn list(&self, directory: &str) -> Vec<String> {
        let Some(root) = self.root.clone() else { return Vec::new() };
        let path = directory.to_owned();
        let listed =
            self.patience.wait_for(FileLocation::Directory(path.clone()), move |_| Ok(root.list(&path)));
        listed.unwrap_or_default()
    }

    fn kernel_names(&self, addresses: &[u64]) -> Option<Vec<Option<String>>> {
        kernel_names::of(addresses).ok()
    }

    fn kernel_symbols(&self) -> Result<Box<dyn Read>, OpenError> {
        match kernel_names::list() {
            Ok(list) => Ok(Box::new(list)),
            Err(error) => Err(OpenError::At { path: kernel_names::LIST, error: Arc::new(error) }),
        }
    }

    fn users(&self) -> Vec<FileUser> {
        let now = process_users(self.pid);
        if now.is_empty() { self.users.clone() } else { now }
    }

    fn own_pid(&self) -> Option<&str> {
        Some(&self.own_pid)
    }

    fn jit_map(&self) -> Option<(String, Result<Vec<u8>, OpenError>)> {
        let path = format!("/tmp/perf-{}.map", self.own_pid);
        let (user, began_s) = (self.uid, self.began_s);
        let content = self.with_file(&path, Links::OfUser(user), move |file, copying| {
            file.check_trusted(Some(user))?;
            let changed_s = u64::try_from(file.about().modified_s).ok();
            if changed_s.zip(began_s).is_some_and(|(changed, began)| changed + ROUNDING_S < began) {
                // Containers reuse the same few process ids.
                return Err(OpenError::PredatesProcess);
            }
            file.read(files::JIT_MAP_BYTES_MAX, copying)
        });
        match content {
            Err(why) if why.is_not_found() => None,
            content => Some((path, content)),
        }
    }
}

/// The users as whom a process opens files: by its real, effective, saved and file-system ids, since it may take
/// each. A process with other mounts than this one has other files under the same names: it is nobody here. Empty
/// if it has exited.
fn process_users(pid: pid_t) -> Vec<FileUser> {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else { return Vec::new() };
    let mounts = |of: &str| std::fs::read_link(format!("/proc/{of}/ns/mnt")).ok();
    let root = |of: &str| std::fs::metadata(format!("/proc/{of}/root")).ok();
    let identity = |of: &str| root(of).map(|meta| (meta.dev(), meta.ino()));
    let of = pid.to_string();
    let same_files =
        mounts(&of).is_some() && mounts(&of) == mounts("self") && identity(&of) == identity("self");
    if same_files { users_in(&status) } else { vec![FileUser::NOBODY] }
}

/// The users in `/proc/PID/status`.
fn users_in(status: &str) -> Vec<FileUser> {
    let numbers = |key: &str| -> Vec<u32> {
        let value = proc::status_value(status, key).unwrap_or_default();
        value.split_whitespace().filter_map(|number| number.parse().ok()).collect()
    };
    let (uids, gids, groups) = (numbers("Uid"), numbers("Gid"), numbers("Groups"));
    let mut users: Vec<FileUser> =
        uids.into_iter().zip(gids).map(|(uid, gid)| FileUser { uid, gid, groups: groups.clone() }).collect();
    users.sort();
    users.dedup();
    users
}

// ---- Resident pages of mapped files: they stay resident after a read, and programs of hundreds of megabytes add
// up. Above a bound they are released, and come back from the page cache.
//
// The bound excludes pages that cannot be released: the profiler's own program, and rings of BPF programs.

/// Allowed resident bytes of files above those that cannot be released.
const BYTES_MAX: u64 = 20 << 20;
/// Interval of checks, nanoseconds.
const INTERVAL_NS: u64 = 20_000_000;

/// The bound on resident pages of mapped files.
#[derive(Debug, Default)]
pub(super) struct FilePages {
    /// The recent minimum, an upper bound of the bytes that cannot be released.
    floor_bytes: u64,
    /// The next check at intervals.
    due_ns: u64,
}

impl FilePages {
    /// Releases pages if too many are resident.
    pub(super) fn bound(&mut self) {
        self.bound_by(&mut sys::resident_file_bytes, &mut map::release_pages);
    }

    /// Releases pages if too many are resident, and the last check was an interval ago.
    pub(super) fn bound_at_intervals(&mut self, now_ns: u64) {
        if now_ns >= self.due_ns {
            self.bound();
            self.due_ns = now_ns + INTERVAL_NS;
        }
    }

    /// Releases pages regardless of their number.
    pub(super) fn release(&mut self) {
        self.release_by(&mut sys::resident_file_bytes, &mut map::release_pages);
    }

    fn bound_by(&mut self, resident_bytes: &mut dyn FnMut() -> Option<u64>, release: &mut dyn FnMut()) {
        let Some(bytes) = resident_bytes() else { return };
        self.floor_bytes = self.floor_bytes.min(bytes);
        if bytes - self.floor_bytes > BYTES_MAX {
            self.release_by(resident_bytes, release);
        }
    }

    fn release_by(&mut self, resident_bytes: &mut dyn FnMut() -> Option<u64>, release: &mut dyn FnMut()) {
        release();
        self.floor_bytes = resident_bytes().unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs::File;
    use std::time::Duration;

    #[test]
    fn a_file_changed_since_it_was_mapped_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "first").unwrap();
        let meta = std::fs::metadata(&path).unwrap();
        let files = TargetFiles::of(std::process::id() as pid_t);
        let open = |seen| {
            let opened =
                files.open_same(&files.patience, path.to_str().unwrap(), (meta.dev(), meta.ino()), seen);
            opened.unwrap().map(|bytes| bytes.bytes().to_vec()).map_err(|why| why.to_string())
        };
        // File times lag by at most a kernel tick.
        std::thread::sleep(Duration::from_millis(25));
        let seen = Some(SystemTime::now());
        assert_eq!(open(seen), Ok(b"first".to_vec()));
        std::thread::sleep(Duration::from_millis(25));
        std::fs::write(&path, "other").unwrap();
        assert_eq!(open(seen), Err(OpenError::Replaced.to_string()));
        assert_eq!(open(None), Ok(b"other".to_vec()), "when it was seen is not known");
    }

    #[test]
    fn the_users_of_a_process_are_all_that_it_may_become() {
        let of = |ids: &str| {
            let users = users_in(&format!("Name:\tx\n{ids}"));
            users.into_iter().map(|user| (user.uid, user.gid, user.groups)).collect::<Vec<_>>()
        };
        assert_eq!(of("Uid:\t7\t7\t7\t7\nGid:\t8\t8\t8\t8\nGroups:\t8 9 \n"), [(7, 8, vec![8, 9])]);
        assert_eq!(of("Uid:\t7\t0\t0\t0\nGid:\t8\t8\t8\t8\n"), [(0, 8, vec![]), (7, 8, vec![])]);
        assert_eq!(of("Uid:\tx\n"), []);
        let own = process_users(std::process::id().cast_signed());
        assert_eq!(own.len(), 1);
        assert_ne!(own, [FileUser::NOBODY]);
        assert_eq!(process_users(pid_t::MAX), []);
    }

    #[test]
    fn the_map_of_an_earlier_process_is_not_trusted() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let files = TargetFiles::of(child.id() as pid_t);
        assert!(files.began_s.is_some());
        let path = format!("/tmp/perf-{}.map", files.own_pid);
        std::fs::write(&path, "1000 10 f\n").unwrap();
        let map = File::options().write(true).open(&path).unwrap();
        let when_changed = |before_now: u64| {
            map.set_modified(SystemTime::now() - Duration::from_secs(before_now)).unwrap();
            files.jit_map().map(|(_, content)| content.map_err(|why| why.to_string()))
        };
        let (new, old) = (when_changed(0), when_changed(3600));
        std::fs::remove_file(&path).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(new, Some(Ok(b"1000 10 f\n".to_vec())));
        assert_eq!(old, Some(Err("it was last changed before the process began; not trusted".to_owned())));
    }
}

#[cfg(test)]
mod file_pages_tests {
    use std::cell::Cell;

    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_bound_applies_to_releasable_pages() {
        let (mut pages, mut most) = (FilePages::default(), 0);
        let (own, read, releases) = (Cell::new(7 * MIB), Cell::new(0), Cell::new(0));
        for round in 0..1_000 {
            read.set(read.get() + MIB / 2);
            if round == 500 {
                // A ring.
                own.set(26 * MIB);
            }
            let release = &mut || {
                read.set(0);
                releases.set(releases.get() + 1);
            };
            pages.bound_by(&mut || Some(own.get() + read.get()), release);
            most = most.max(read.get());
        }
        assert!(most <= BYTES_MAX, "{most}");
        assert!((20..=30).contains(&releases.get()), "{}: not each time", releases.get());
        own.set(7 * MIB);
        for _ in 0..100 {
            read.set(read.get() + MIB / 2);
            pages.bound_by(&mut || Some(own.get() + read.get()), &mut || read.set(0));
            most = read.get();
            assert!(read.get() <= 2 * BYTES_MAX + MIB, "a ring that is gone makes little room");
        }
        assert!(most <= BYTES_MAX, "nor for long: {most}");
    }

    #[test]
    fn nothing_is_released_without_a_resident_count() {
        FilePages::default().bound_by(&mut || None, &mut || panic!("given back"));
    }
}
