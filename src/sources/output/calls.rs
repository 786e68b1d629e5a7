//! System calls for output files, each relative to an open directory.
//!
//! A failed call returns its errno as an `io::Error`; no decisions are made here.
#![allow(unsafe_code)]

#[cfg(any(target_os = "linux", target_os = "android"))]
use std::ffi::CString;
use std::ffi::{CStr, OsString};
use std::io;
#[cfg(any(target_os = "linux", target_os = "android"))]
use std::os::fd::AsFd;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;

use libc::c_int;

/// Longest link target that is read.
const TARGET_BYTES_MAX: usize = 4096;

/// File status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Device and inode.
    pub identity: (u64, u64),
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Type and permissions, as `st_mode`.
    pub mode: u32,
    /// Number of links; 0 once the file is removed.
    pub links: u64,
}

impl Status {
    /// A regular file.
    #[must_use]
    pub fn is_regular(&self) -> bool {
        self.is(libc::S_IFREG)
    }

    /// A directory.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        self.is(libc::S_IFDIR)
    }

    /// A symbolic link.
    #[must_use]
    pub fn is_link(&self) -> bool {
        self.is(libc::S_IFLNK)
    }

    /// A named pipe.
    #[must_use]
    pub fn is_fifo(&self) -> bool {
        self.is(libc::S_IFIFO)
    }

    /// A disk, or a part of one.
    #[must_use]
    pub fn is_block_device(&self) -> bool {
        self.is(libc::S_IFBLK)
    }

    /// A terminal, `/dev/null` and the like.
    #[must_use]
    pub fn is_character_device(&self) -> bool {
        self.is(libc::S_IFCHR)
    }

    /// A socket.
    #[must_use]
    pub fn is_socket(&self) -> bool {
        self.is(libc::S_IFSOCK)
    }

    /// A directory in which everyone may create files and only owners may replace them, as `/tmp`.
    #[must_use]
    pub fn is_sticky_for_all(&self) -> bool {
        self.mode & 0o1002 == 0o1002
    }

    /// A directory in which users who need not trust each other create files.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.mode & 0o002 != 0 || self.mode & 0o1020 == 0o1020
    }

    /// Only owners of a file or of the directory may replace it.
    #[must_use]
    pub fn is_sticky(&self) -> bool {
        self.mode & 0o1000 != 0
    }

    #[allow(clippy::unnecessary_cast)] // mode_t has 16 bits on macOS.
    fn is(&self, kind: libc::mode_t) -> bool {
        self.mode & libc::S_IFMT as u32 == kind as u32
    }

    #[allow(clippy::unnecessary_cast)] // The types of the fields differ between systems.
    fn of(stat: &libc::stat) -> Status {
        Status {
            identity: (stat.st_dev as u64, stat.st_ino as u64),
            uid: stat.st_uid,
            gid: stat.st_gid,
            mode: stat.st_mode as u32,
            links: stat.st_nlink as u64,
        }
    }
}

fn check(result: c_int) -> io::Result<c_int> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn uninterrupted(mut call: impl FnMut() -> c_int) -> io::Result<c_int> {
    loop {
        match check(call()) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// The working directory.
pub(super) fn working_directory() -> BorrowedFd<'static> {
    // SAFETY: AT_FDCWD is a constant that the calls of this file accept as a descriptor; it is never closed.
    unsafe { BorrowedFd::borrow_raw(libc::AT_FDCWD) }
}

/// openat(2), never inherited by other programs.
pub(super) fn open_at(
    directory: BorrowedFd<'_>,
    name: &CStr,
    flags: c_int,
    mode: u32,
) -> io::Result<OwnedFd> {
    let flags = flags | libc::O_CLOEXEC;
    let fd = uninterrupted(|| {
        // SAFETY: `name` ends with NUL and is live; `mode` has the type of the variadic argument.
        unsafe { libc::openat(directory.as_raw_fd(), name.as_ptr(), flags, mode) }
    })?;
    // SAFETY: the call has just returned this descriptor, which nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Flags that open a directory for lookups; it need not be readable.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) const SEARCH: c_int = libc::O_PATH | libc::O_DIRECTORY;
/// Flags that open a directory for lookups: O_SEARCH of sys/fcntl.h.
#[cfg(target_vendor = "apple")]
pub(super) const SEARCH: c_int = 0x4000_0000 | libc::O_DIRECTORY;
/// Flags that open a directory.
#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
pub(super) const SEARCH: c_int = libc::O_RDONLY | libc::O_DIRECTORY;

/// fstatat(2) of the name itself, without following a link.
pub(super) fn status_at(directory: BorrowedFd<'_>, name: &CStr) -> io::Result<Status> {
    status_with(directory, name, libc::AT_SYMLINK_NOFOLLOW)
}

/// fstatat(2), following links.
pub(super) fn target_status_at(directory: BorrowedFd<'_>, name: &CStr) -> io::Result<Status> {
    status_with(directory, name, 0)
}

/// faccessat(2): whether the thread may write there.
pub(super) fn check_access(directory: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    let (fd, mode, flags) = (directory.as_raw_fd(), libc::W_OK, libc::AT_EACCESS);
    // SAFETY: the name ends with NUL and is live.
    check(unsafe { libc::faccessat(fd, name.as_ptr(), mode, flags) }).map(drop)
}

fn status_with(directory: BorrowedFd<'_>, name: &CStr, flags: c_int) -> io::Result<Status> {
    // SAFETY: `stat` has only integer fields; all zeroes is a value of it.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the name ends with NUL; the kernel writes one `stat` into the live `stat`.
    check(unsafe { libc::fstatat(directory.as_raw_fd(), name.as_ptr(), &raw mut stat, flags) })?;
    Ok(Status::of(&stat))
}

/// fstat(2).
pub(super) fn status(file: BorrowedFd<'_>) -> io::Result<Status> {
    // SAFETY: `stat` has only integer fields; all zeroes is a value of it.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one `stat` into the live `stat`.
    check(unsafe { libc::fstat(file.as_raw_fd(), &raw mut stat) })?;
    Ok(Status::of(&stat))
}

/// Owner and target of a link, read from the same link.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn read_link(directory: BorrowedFd<'_>, name: &CStr) -> io::Result<(Status, OsString)> {
    let link = open_at(directory, name, libc::O_PATH | libc::O_NOFOLLOW, 0)?;
    let found = status(link.as_fd())?;
    Ok((found, target(link.as_fd(), c"")?))
}

/// Owner and target of a link, read from the same link.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn read_link(directory: BorrowedFd<'_>, name: &CStr) -> io::Result<(Status, OsString)> {
    let before = status_at(directory, name)?;
    let target = target(directory, name)?;
    if status_at(directory, name)? == before {
        return Ok((before, target));
    }
    Err(io::ErrorKind::Interrupted.into())
}

fn target(directory: BorrowedFd<'_>, name: &CStr) -> io::Result<OsString> {
    let mut target = vec![0u8; TARGET_BYTES_MAX];
    let (into, len) = (target.as_mut_ptr().cast(), target.len());
    // SAFETY: the name ends with NUL; the kernel writes at most `len` bytes into the live `target`.
    let read = unsafe { libc::readlinkat(directory.as_raw_fd(), name.as_ptr(), into, len) };
    let read = usize::try_from(read).map_err(|_| io::Error::last_os_error())?;
    target.truncate(read);
    Ok(OsString::from_vec(target))
}

/// mkdirat(2).
pub(super) fn make_directory(directory: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    // SAFETY: the name ends with NUL and is live.
    check(unsafe { libc::mkdirat(directory.as_raw_fd(), name.as_ptr(), 0o777) }).map(drop)
}

/// unlinkat(2) of a file.
pub(super) fn unlink(directory: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    // SAFETY: the name ends with NUL and is live.
    check(unsafe { libc::unlinkat(directory.as_raw_fd(), name.as_ptr(), 0) }).map(drop)
}

/// renameat(2) within a directory. A link under the new name is replaced, not followed.
pub(super) fn rename(directory: BorrowedFd<'_>, from: &CStr, to: &CStr) -> io::Result<()> {
    let fd = directory.as_raw_fd();
    // SAFETY: both names end with NUL and are live.
    check(unsafe { libc::renameat(fd, from.as_ptr(), fd, to.as_ptr()) }).map(drop)
}

/// Gives a nameless file this name, which must be free.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn link_file(file: BorrowedFd<'_>, directory: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    let (from, follow) = (libc::AT_FDCWD, libc::AT_SYMLINK_FOLLOW);
    // SAFETY: both names end with NUL and are live.
    check(unsafe { libc::linkat(from, path.as_ptr(), directory.as_raw_fd(), name.as_ptr(), follow) })
        .map(drop)
}

/// Creates a nameless file in this directory; fails if unsupported, or if the file could not be linked later.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn open_nameless(directory: BorrowedFd<'_>, mode: u32) -> io::Result<OwnedFd> {
    let file = open_at(directory, c".", libc::O_TMPFILE | libc::O_WRONLY, mode)?;
    // Linking requires /proc.
    let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    let seen = open_at(working_directory(), &path, libc::O_PATH, 0).and_then(|seen| status(seen.as_fd()));
    if !seen.is_ok_and(|seen| status(file.as_fd()).is_ok_and(|own| own.identity == seen.identity)) {
        return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
    }
    Ok(file)
}

/// Duplicates a file descriptor of this process, which must be open for writing.
///
/// # Errors
/// EBADF: there is no such descriptor, or it is read-only.
pub fn duplicate(number: c_int) -> io::Result<OwnedFd> {
    // SAFETY: fcntl takes any number, and returns EBADF if it is not a descriptor.
    let flags = check(unsafe { libc::fcntl(number, libc::F_GETFL) })?;
    if flags & libc::O_ACCMODE == libc::O_RDONLY {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: as above; the new descriptor is not one of the standard streams (below 3).
    let fd = check(unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) })?;
    // SAFETY: the call has just returned this descriptor, which nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Closes another descriptor of the file: network file systems report write errors only on close.
pub(super) fn flush(file: BorrowedFd<'_>) -> io::Result<()> {
    let other = file.try_clone_to_owned()?;
    // SAFETY: the descriptor is owned here, and is given up by `into_raw_fd`.
    match check(unsafe { libc::close(other.into_raw_fd()) }) {
        // The descriptor is closed all the same.
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
        other => other.map(drop),
    }
}

/// Whether a directory is in /proc, with links that lead elsewhere than their text says.
#[cfg(any(target_os = "linux", target_os = "android"))]
#[allow(clippy::unnecessary_cast)] // The type of the number differs between C libraries.
pub(super) fn is_proc(directory: BorrowedFd<'_>) -> bool {
    // SAFETY: `statfs` has only integer fields; all zeroes is a value of it.
    let mut about: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one `statfs` into the live `about`.
    let result = unsafe { libc::fstatfs(directory.as_raw_fd(), &raw mut about) };
    result == 0 && about.f_type as u64 == libc::PROC_SUPER_MAGIC as u64
}

/// Whether a directory is in /proc, which this system lacks.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn is_proc(_: BorrowedFd<'_>) -> bool {
    false
}
