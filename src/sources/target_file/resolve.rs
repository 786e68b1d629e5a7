//! From a path that a target names to the file below the target's root, opened by O_PATH, so that no pipe
//! blocks and no device notices.
//!
//! openat2(2) with RESOLVE_IN_ROOT does it in one call. If a kernel (before 5.6) or a seccomp filter refuses
//! that, or if owners of links matter, the path is resolved component by component. Neither `..` nor an
//! absolute link leads above the root.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::fs::MetadataExt;

use libc::c_int;

use crate::binary::OpenError;

use super::file_system::{self, Storage};

/// Most symbolic links in a path (`MAXSYMLINKS` of the kernel).
const LINKS_MAX: u32 = 40;
/// Longest path, and longest link target (`PATH_MAX`).
const PATH_BYTES_MAX: usize = 4096;
/// Error for a link in a directory where anybody could replace it.
pub(super) const OPEN_DIRECTORY: OpenError =
    OpenError::Because("a link leads through a directory of others; not followed");
/// Write permission for users other than the owner.
const WRITABLE_BY_OTHERS: u32 = 0o022;
const STICKY: u32 = 0o1000;
/// Flag of openat2(2), Linux 5.12: fails with EAGAIN instead of accessing a file system.
const RESOLVE_CACHED: u64 = 0x20;

/// Which symbolic links are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sources) enum Links {
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
            return Err(OpenError::ForeignLink { owner: meta.uid() });
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
