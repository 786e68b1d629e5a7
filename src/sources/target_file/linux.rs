//! Opening on Linux: a path that a target names is resolved below the target's root (`Root`, `resolve`), the file
//! is examined first (O_PATH), then reopened through /proc/self/fd.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use libc::{c_int, pid_t};

use super::child_process;
use super::file::{About, TargetFile, cannot_open};
use super::file_system::{self, Storage};
use super::wait::Copying;
use crate::binary::{OpenError, files};

/// Root directory for a target's paths.
#[derive(Clone, Debug)]
pub(crate) struct Root {
    directory: Arc<File>,
    /// Its process.
    pid: pid_t,
    /// The target could mount overlayfs itself, over a file system that may hang.
    mounts_layers: bool,
}

impl Root {
    /// The root of an existing process. Does not wait for its file system.
    pub(crate) fn of_process(pid: pid_t) -> io::Result<Root> {
        let user_namespace = |of: &str| {
            let meta = std::fs::metadata(format!("/proc/{of}/ns/user"));
            meta.map(|meta| (meta.dev(), meta.ino())).ok()
        };
        let own = user_namespace("self");
        Ok(Root {
            directory: Arc::new(open_directory(Path::new(&format!("/proc/{pid}/root")))?),
            pid,
            mounts_layers: own.is_none() || user_namespace(&pid.to_string()) != own,
        })
    }

    /// Opens a regular file. May hang.
    pub(crate) fn open(&self, path: &str, links: Links, copying: &Copying) -> Result<TargetFile, OpenError> {
        let cached = (links == Links::All).then(|| resolve_cached(&self.directory, path));
        match cached {
            Some(Ok(looked_at)) if is_on_block_device(&looked_at) => {
                return open_again(&looked_at, self.mounts_layers);
            }
            // There is no such file.
            Some(Err(error)) if error.kind() == io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        if !child_process::is_needed_for(self.pid) {
            return self.open_here(path, links);
        }
        child_process::open(Some(&self.directory), copying, |directory| {
            let directory = Arc::new(directory.ok_or(OpenError::NotRegular)?);
            Root { directory, ..self.clone() }.open_here(path, links)
        })
    }

    /// Opens a regular file in this process, on any file system.
    pub(super) fn open_here(&self, path: &str, links: Links) -> Result<TargetFile, OpenError> {
        open_again(&resolve(&self.directory, path, links)?, self.mounts_layers)
    }

    /// The names in a directory. May hang.
    pub(crate) fn list(&self, path: &str) -> Vec<String> {
        if child_process::is_needed_for(self.pid) {
            // A list is a convenience and not worth a fork.
            return Vec::new();
        }
        let Ok(directory) = resolve(&self.directory, path, Links::All) else { return Vec::new() };
        let holds_files = file_system::of(&directory).is_ok_and(|kind| !matches!(kind, Storage::Kernel(_)));
        if !holds_files || !directory.metadata().is_ok_and(|meta| meta.is_dir()) {
            return Vec::new();
        }
        files::list(Path::new(&path_of(&directory)))
    }
}

/// The root of this process.
pub(crate) fn own_root() -> io::Result<Root> {
    let (directory, pid) = (Arc::new(open_directory(Path::new("/"))?), std::process::id().cast_signed());
    Ok(Root { directory, pid, mounts_layers: false })
}

/// Opens the target of a /proc link of a process (`map_files/…`, `exe`), if it is a regular file. May hang.
pub(crate) fn open_linked(pid: pid_t, link: &str, copying: &Copying) -> Result<TargetFile, OpenError> {
    // Does not access a file system: the kernel already has the file.
    let looked_at = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(link)?;
    // It need not be on a file system mounted for this process.
    if is_on_block_device(&looked_at) || !child_process::is_needed_for(pid) {
        return open_again(&looked_at, true);
    }
    child_process::open(Some(&looked_at), copying, |looked_at| {
        open_again(&looked_at.ok_or(OpenError::NotRegular)?, true)
    })
}

/// Whether a file opened by O_PATH is on a disk, as far as known without accessing its file system.
fn is_on_block_device(looked_at: &File) -> bool {
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    // SAFETY: all bytes zero are a `statx`; the call only writes to it, and the empty path means the file.
    let (result, about) = unsafe {
        let mut about: libc::statx = std::mem::zeroed();
        (libc::statx(looked_at.as_raw_fd(), c"".as_ptr(), flags, libc::STATX_TYPE, &raw mut about), about)
    };
    // File systems without a device have numbers from 0:1.
    result == 0 && about.stx_dev_major != 0
}

fn open_directory(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(path)
}

fn path_of(open: &File) -> String {
    format!("/proc/self/fd/{}", open.as_raw_fd())
}

/// Reopens an O_PATH file for reading, if it may be read.
fn open_again(looked_at: &File, mounts_layers: bool) -> Result<TargetFile, OpenError> {
    let meta = looked_at.metadata()?;
    if !meta.is_file() {
        return Err(OpenError::NotRegular);
    }
    let may_hang = match file_system::of(looked_at)? {
        Storage::Kernel(why) => return Err(OpenError::Source(why)),
        Storage::Remote => true,
        Storage::Layers => mounts_layers,
        Storage::Local => false,
    };
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path_of(looked_at));
    Ok(TargetFile { file: file.map_err(cannot_open)?, about: About::from(&meta), may_hang, is_copy: false })
}

// ---- From a path that a target names to the file below the target's root, opened by O_PATH, so that no pipe
// blocks and no device notices.
//
// openat2(2) with RESOLVE_IN_ROOT does it in one call. If a kernel (before 5.6) or a seccomp filter refuses
// that, or if owners of links matter, the path is resolved component by component. Neither `..` nor an
// absolute link leads above the root.

/// Most symbolic links in a path (`MAXSYMLINKS` of the kernel).
const LINKS_MAX: u32 = 40;
/// Longest path, and longest link target (`PATH_MAX`).
const PATH_BYTES_MAX: usize = 4096;
/// Error for a link in a directory where anybody could replace it.
pub(super) const OPEN_DIRECTORY: OpenError =
    OpenError::Source("a link leads through a directory of others; not followed");
/// Write permission for users other than the owner.
const WRITABLE_BY_OTHERS: u32 = 0o022;
const STICKY: u32 = 0o1000;
/// Flag of openat2(2), Linux 5.12: fails with EAGAIN instead of accessing a file system.
const RESOLVE_CACHED: u64 = 0x20;

/// Which symbolic links are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Links {
    /// All, below the root.
    All,
    /// Those of this user and of root, and only through directories that nobody else can change.
    OfUser(u32),
}

/// Opens a path with a directory as its root.
///
/// # Errors
/// The file does not exist, or a link may not be followed.
pub(super) fn resolve(root: &File, path: &str, links: Links) -> Result<File, OpenError> {
    if path.len() >= PATH_BYTES_MAX {
        return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG).into());
    }
    if links == Links::All {
        let opened = open_in_root(root, path, 0);
        match opened.as_ref().map_err(io::Error::raw_os_error) {
            // Linux before 5.6 or a seccomp filter; or a directory moved meanwhile.
            Err(Some(libc::ENOSYS | libc::EPERM | libc::EAGAIN)) => {}
            _ => return Ok(opened?),
        }
    }
    by_component(root, path, links)
}

/// Opens a path if the kernel has all of it in its caches: no file system is accessed.
pub(super) fn resolve_cached(root: &File, path: &str) -> io::Result<File> {
    open_in_root(root, path, RESOLVE_CACHED)
}

fn open_in_root(root: &File, path: &str, more: u64) -> io::Result<File> {
    let name = c_string(path)?;
    // SAFETY: open_how is plain data of which zero is a valid value.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = (libc::O_PATH | libc::O_CLOEXEC) as u64;
    how.resolve = libc::RESOLVE_IN_ROOT | libc::RESOLVE_NO_MAGICLINKS | more;
    // SAFETY: `name` ends with NUL, `how` is live and its size is given; openat2(2) keeps neither.
    let fd = unsafe {
        let size = size_of::<libc::open_how>();
        libc::syscall(libc::SYS_openat2, root.as_raw_fd(), name.as_ptr(), &raw mut how, size)
    };
    owned(RawFd::try_from(fd).unwrap_or(-1))
}

/// Opens a path one component at a time, each relative to its open directory.
fn by_component(root: &File, path: &str, links: Links) -> Result<File, OpenError> {
    // From the root to the current directory.
    let mut above: Vec<(File, Metadata)> = Vec::new();
    let mut names: Vec<Vec<u8>> = names_of(path.as_bytes()).collect();
    let mut followed = 0;
    while let Some(name) = names.pop() {
        let here = above.last().map_or(root, |(directory, _)| directory);
        if above.last().is_some_and(|(_, meta)| !meta.is_dir()) {
            return Err(io::Error::from_raw_os_error(libc::ENOTDIR).into());
        }
        match &name[..] {
            b"." => continue,
            b".." => {
                above.pop();
                continue;
            }
            _ => {}
        }
        let entry = open_entry(here, name)?;
        let meta = entry.metadata()?;
        if let Links::OfUser(user) = links
            && followed > 0
            && meta.is_dir()
            && !is_kept_by(&meta, user)
        {
            return Err(OPEN_DIRECTORY);
        }
        if !meta.is_symlink() {
            above.push((entry, meta));
            continue;
        }
        followed += 1;
        // Those of /proc lead wherever the kernel says, even outside of the root.
        if followed > LINKS_MAX || matches!(file_system::of(&entry)?, Storage::Kernel(_)) {
            return Err(io::Error::from_raw_os_error(libc::ELOOP).into());
        }
        if let Links::OfUser(user) = links
            && ![0, user].contains(&meta.uid())
        {
            return Err(OpenError::UntrustedLink { owner: meta.uid() });
        }
        let target = read_link(&entry)?;
        if target.starts_with(b"/") {
            above.clear();
        }
        names.extend(names_of(&target));
    }
    Ok(match above.pop() {
        Some((entry, _)) => entry,
        None => root.try_clone()?,
    })
}

/// Whether only this user and root can change what is in a directory.
fn is_kept_by(directory: &Metadata, user: u32) -> bool {
    let closed = directory.mode() & WRITABLE_BY_OTHERS == 0 || directory.mode() & STICKY != 0;
    closed && [0, user].contains(&directory.uid())
}

/// The components of a path, last one first. A trailing slash requires a directory, like `.`.
fn names_of(path: &[u8]) -> impl Iterator<Item = Vec<u8>> + '_ {
    let asks_for_directory = path.ends_with(b"/").then(|| b".".to_vec());
    let names = path.split(|byte| *byte == b'/').rev().filter(|name| !name.is_empty());
    asks_for_directory.into_iter().chain(names.map(<[u8]>::to_vec))
}

fn open_entry(directory: &File, name: Vec<u8>) -> io::Result<File> {
    let name = c_string(name)?;
    let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: `name` ends with NUL and is live; openat(2) only reads it.
    owned(unsafe { libc::openat(directory.as_raw_fd(), name.as_ptr(), flags) })
}

fn read_link(link: &File) -> io::Result<Vec<u8>> {
    let mut target = vec![0; PATH_BYTES_MAX];
    // SAFETY: the buffer is as long as it is said to be, and the empty path means the link itself.
    let length =
        unsafe { libc::readlinkat(link.as_raw_fd(), c"".as_ptr(), target.as_mut_ptr().cast(), target.len()) };
    let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
    target.truncate(length);
    if target.is_empty() || length >= PATH_BYTES_MAX {
        return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    Ok(target)
}

fn c_string(name: impl Into<Vec<u8>>) -> io::Result<CString> {
    CString::new(name).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))
}

fn owned(fd: c_int) -> io::Result<File> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just created this descriptor, and nobody else owns it.
    Ok(unsafe { File::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::{FileTypeExt, PermissionsExt};
    use std::process::Command;
    use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

    use super::*;
    use crate::sources::target_file::file::LEASED;

    fn below(dir: &Path) -> Root {
        Root {
            directory: Arc::new(open_directory(dir).unwrap()),
            pid: std::process::id().cast_signed(),
            mounts_layers: false,
        }
    }

    fn opened(root: &Root, path: &str) -> Result<Vec<u8>, String> {
        let file = root.open(path, Links::All, &Copying::default()).map_err(|why| why.to_string())?;
        let bytes = file.bytes(&Copying::default()).map_err(|why| why.to_string())?;
        Ok(bytes.bytes().to_vec())
    }

    #[test]
    fn only_regular_files_are_opened() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("file"), "content").unwrap();
        assert!(Command::new("mkfifo").arg(at("fifo")).status().unwrap().success());
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        std::os::unix::fs::symlink("fifo", at("link")).unwrap();
        let root = below(dir.path());
        assert_eq!(opened(&root, "/file"), Ok(b"content".to_vec()));
        for other in ["/fifo", "/socket", "/link", "/"] {
            assert_eq!(opened(&root, other), Err("not a regular file".to_owned()), "{other}");
        }
        // A device, which a target can create if it is root of a container.
        if Command::new("mknod").arg(at("null")).args(["c", "1", "3"]).status().unwrap().success() {
            assert!(std::fs::metadata(at("null")).unwrap().file_type().is_char_device());
            assert_eq!(opened(&root, "/null"), Err("not a regular file".to_owned()));
        }
    }

    /// The kernel reports every open(2) to watchers, except those with O_PATH.
    #[test]
    fn irregular_files_are_never_opened_even_briefly() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("file"), "content").unwrap();
        assert!(Command::new("mkfifo").arg(at("fifo")).status().unwrap().success());
        std::os::unix::fs::symlink("fifo", at("link")).unwrap();
        let mut watched = vec!["fifo"];
        if Command::new("mknod").arg(at("device")).args(["c", "5", "2"]).status().unwrap().success() {
            watched.push("device");
        }
        // SAFETY: the paths end with NUL; the descriptor is this test's own.
        let opens = |names: &[&str]| unsafe {
            let watch = libc::inotify_init1(libc::IN_NONBLOCK | libc::IN_CLOEXEC);
            for name in names {
                let path = std::ffi::CString::new(at(name).to_str().unwrap()).unwrap();
                assert!(libc::inotify_add_watch(watch, path.as_ptr(), libc::IN_OPEN) >= 0);
            }
            <File as std::os::fd::FromRawFd>::from_raw_fd(watch)
        };
        let told = |watch: &mut File| io::Read::read(watch, &mut [0; 4096]).unwrap_or(0);
        let root = below(dir.path());
        let mut watch = opens(&watched);
        for _ in 0..200 {
            for name in watched.iter().chain(&["link"]) {
                assert_eq!(opened(&root, name), Err("not a regular file".to_owned()), "{name}");
            }
        }
        assert_eq!(told(&mut watch), 0, "it was opened");
        let mut watch = opens(&["file"]);
        assert!(opened(&root, "file").is_ok());
        assert!(told(&mut watch) > 0, "opening is not told of here");
    }

    #[test]
    fn kernel_files_are_not_read() {
        let root = own_root().unwrap();
        for path in ["/proc/version", "/proc/self/mem", "/proc/self/maps", "/proc/sys/kernel/ostype"] {
            let why = opened(&root, path);
            assert_eq!(why, Err("a file of procfs, which is not read".to_owned()), "{path}");
        }
        let why = opened(&root, "/sys/kernel/notes");
        assert_eq!(why, Err("a file of sysfs, which is not read".to_owned()));
        assert!(root.list("/proc/self").is_empty());
        assert!(!root.list("/etc").is_empty());
        assert!(root.list("/etc/passwd").is_empty());
    }

    #[test]
    fn a_proc_link_to_a_mapped_file_is_followed() {
        let exe = open_linked(0, "/proc/self/exe", &Copying::default()).unwrap();
        let meta = std::fs::metadata("/proc/self/exe").unwrap();
        assert_eq!(exe.about().identity, (meta.dev(), meta.ino()));
        for fd in ["/dev/null", "/dev/ptmx"] {
            let open = File::open(fd).unwrap();
            let why =
                open_linked(0, &path_of(&open), &Copying::default()).map(drop).map_err(|why| why.to_string());
            assert_eq!(why, Err("not a regular file".to_owned()), "{fd}");
        }
    }

    #[test]
    fn a_leased_file_is_refused_without_waiting() {
        static SIGNALS: AtomicI32 = AtomicI32::new(0);
        extern "C" fn count(_: libc::c_int) {
            SIGNALS.fetch_add(1, Relaxed);
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "content").unwrap();
        let held = OpenOptions::new().write(true).open(&path).unwrap();
        // SAFETY: the handler only adds to a number; the descriptor is open.
        let leased = unsafe {
            libc::signal(libc::SIGIO, count as *const () as libc::sighandler_t);
            libc::fcntl(held.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK)
        };
        assert_eq!(leased, 0, "{}", io::Error::last_os_error());
        // The system would block another opener for 45 s (/proc/sys/fs/lease-break-time).
        assert_eq!(opened(&below(dir.path()), "/file"), Err(LEASED.to_string()));
        drop(held);
        assert_eq!(opened(&below(dir.path()), "/file"), Ok(b"content".to_vec()));
    }

    #[test]
    fn a_sparse_file_is_refused_before_it_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let file = File::create(dir.path().join("holes")).unwrap();
        file.set_len((32 << 30) + 1).unwrap();
        assert_eq!(opened(&below(dir.path()), "/holes"), Err("longer than 32768 MiB".to_owned()));
        file.set_len(3 << 30).unwrap();
        let holes = below(dir.path()).open("/holes", Links::All, &Copying::default()).unwrap();
        assert!(holes.bytes(&Copying::default()).is_ok());
        let copied = TargetFile { may_hang: true, ..holes };
        let why = copied.bytes(&Copying::default()).map(drop).map_err(|why| why.to_string());
        assert_eq!(why, Err("longer than 256 MiB".to_owned()));
    }

    #[test]
    fn files_that_may_hang_are_copied() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "content").unwrap();
        let file = below(dir.path()).open("/file", Links::All, &Copying::default()).unwrap();
        let copied = TargetFile { may_hang: true, ..file }.bytes(&Copying::default()).unwrap();
        File::options().write(true).open(dir.path().join("file")).unwrap().set_len(0).unwrap();
        assert_eq!(copied.bytes(), b"content");
        assert!(copied.unchanged().is_ok(), "what is in memory stays");
    }

    #[test]
    fn names_are_taken_only_from_trusted_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("map");
        std::fs::write(&path, "").unwrap();
        let user = std::fs::metadata(&path).unwrap().uid();
        let check = |user| {
            let file = below(dir.path()).open("/map", Links::OfUser(user), &Copying::default()).unwrap();
            file.check_trusted(Some(user)).map_err(|why| why.to_string())
        };
        assert_eq!(check(user), Ok(()));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
        assert!(check(user).is_err_and(|why| why.contains("anybody may write")));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        std::fs::hard_link(&path, dir.path().join("other")).unwrap();
        assert!(check(user).is_err_and(|why| why.contains("hard links")));
        std::fs::remove_file(dir.path().join("other")).unwrap();
        if user == 0 {
            std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
            assert!(check(0).is_err_and(|why| why.contains("user 65534")));
            assert_eq!(check(65534), Ok(()));
        }
    }
}

#[cfg(test)]
mod resolve_tests {
    #![allow(clippy::unwrap_used)]

    use std::fs;
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
    use std::path::Path;

    use super::*;

    fn directory(path: &Path) -> File {
        File::options().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(path).unwrap()
    }

    /// Resolves in both ways, which must find the same file or fail with the same error.
    fn both(root: &File, path: &str) -> Result<u64, Option<i32>> {
        let found = |opened: Result<File, OpenError>| match opened {
            Ok(file) => Ok(file.metadata().unwrap().ino()),
            Err(OpenError::System(error)) => Err(error.raw_os_error()),
            Err(why) => panic!("{path}: {why}"),
        };
        let by_component = found(by_component(root, path, Links::All));
        let at_once = open_in_root(root, path, 0);
        if at_once.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::ENOSYS)) {
            return by_component;
        }
        assert_eq!(found(at_once.map_err(OpenError::from)), by_component, "{path}");
        by_component
    }

    #[test]
    fn no_path_leads_out_of_the_root() {
        let outside = tempfile::tempdir().unwrap();
        let top = outside.path();
        fs::write(top.join("secret"), "outside").unwrap();
        let inside = top.join("root");
        fs::create_dir_all(inside.join("a/b")).unwrap();
        fs::write(inside.join("file"), "inside").unwrap();
        fs::write(inside.join("a/b/deep"), "deep").unwrap();
        let link = |target: &str, name: &str| symlink(target, inside.join(name)).unwrap();
        link("/file", "absolute");
        link("../../../../file", "a/b/up");
        link(top.join("secret").to_str().unwrap(), "out");
        link("../secret", "out-relative");
        link("loop", "loop");
        link("a/b/", "slash");
        link("/proc/self/root", "magic");
        let root = directory(&inside);
        let inode = |name: &str| fs::metadata(inside.join(name)).unwrap().ino();
        let file = Ok(inode("file"));
        for path in ["/file", "file", "/./a/../file", "/../../file", "absolute", "a/b/up", "//file"] {
            assert_eq!(both(&root, path), file, "{path}");
        }
        assert_eq!(both(&root, "/slash/deep"), Ok(inode("a/b/deep")));
        assert_eq!(both(&root, "/.."), Ok(fs::metadata(&inside).unwrap().ino()));
        for path in ["/out", "/out-relative", "/none", "/magic/etc/passwd", "/../secret"] {
            assert_eq!(both(&root, path), Err(Some(libc::ENOENT)), "{path}");
        }
        assert_eq!(both(&root, "/loop"), Err(Some(libc::ELOOP)));
        for path in ["/file/", "/file/..", "/file/.", "/file/x"] {
            assert_eq!(both(&root, path), Err(Some(libc::ENOTDIR)), "{path}");
        }
        assert!(resolve(&root, &"x/".repeat(3000), Links::All).is_err());
        assert!(resolve(&root, "a\0b", Links::All).is_err());
    }

    #[test]
    fn at_most_forty_links_are_followed() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("0"), "").unwrap();
        for number in 1..=41 {
            symlink((number - 1).to_string(), dir.path().join(number.to_string())).unwrap();
        }
        let root = directory(dir.path());
        assert!(both(&root, "40").is_ok());
        assert_eq!(both(&root, "41"), Err(Some(libc::ELOOP)));
    }

    #[test]
    fn magic_links_of_proc_are_not_followed() {
        let root = directory(Path::new("/"));
        for path in ["/proc/self/exe", "/proc/self/root/etc", "/proc/self/fd/0"] {
            assert!(open_in_root(&root, path, 0).is_err(), "{path}");
            assert!(by_component(&root, path, Links::All).is_err(), "{path}");
        }
    }

    #[test]
    fn links_of_other_users_are_not_followed_to_sources_of_names() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("file"), "").unwrap();
        symlink("file", path("own")).unwrap();
        fs::create_dir(path("open")).unwrap();
        fs::write(path("open/file"), "").unwrap();
        symlink("open/file", path("through")).unwrap();
        let root = directory(dir.path());
        let own = fs::metadata(path("file")).unwrap().uid();
        let opened = |name: &str, user| {
            let opened = resolve(&root, name, Links::OfUser(user));
            opened.map(|_| ()).map_err(|why| why.to_string())
        };
        assert_eq!(opened("own", own), Ok(()));
        assert_eq!(opened("through", own), Ok(()));
        fs::set_permissions(path("open"), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(opened("through", own).is_err_and(|why| why.contains("directory of others")));
        assert_eq!(opened("open/file", own), Ok(()), "no link on the way");
        fs::set_permissions(path("open"), fs::Permissions::from_mode(0o1777)).unwrap();
        assert_eq!(opened("through", own), Ok(()));
        if own == 0 {
            // Only root can create a file of another user.
            std::os::unix::fs::lchown(path("own"), Some(65534), None).unwrap();
            assert!(opened("own", 0).is_err_and(|why| why.contains("user 65534")));
            assert!(opened("own", 1000).is_err_and(|why| why.contains("user 65534")));
            assert_eq!(opened("own", 65534), Ok(()));
        }
    }
}
