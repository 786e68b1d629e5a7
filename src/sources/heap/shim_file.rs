//! The file of the shim, which programs load: in a directory that nobody but root and this user can change.
//!
//! Its path outlives the recording, in environments that processes keep or save. So it is named after its content, is never
//! removed, and lies where no other user can make that name: each directory above it belongs to root or to this user, who
//! alone can write to it. Sticky directories such as /tmp are no such place: a name there is free once it is removed.
#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, ErrorKind as IoKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind, Result, io_text};

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
    for place in places(user) {
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
fn places(user: u32) -> Vec<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let own = [
        variable("XDG_RUNTIME_DIR"),
        variable("XDG_CACHE_HOME"),
        variable("HOME").map(|home| home.join(CACHE)),
        std::env::home_dir().map(|home| home.join(CACHE)),
    ];
    let own = own.into_iter().flatten().filter(|place| place.is_absolute());
    let of_root = PLACES_OF_ROOT.map(PathBuf::from);
    let mut places: Vec<PathBuf> =
        if user == 0 { of_root.into_iter().chain(own).collect() } else { own.chain(of_root).collect() };
    places.dedup();
    places
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
