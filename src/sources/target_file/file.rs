//! An open regular file of a target and its status (`TargetFile`), and files that a target names where it shares
//! the profiler's file system (`LocalFiles`).

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::wait::Copying;
use super::{FileLocation, Patience};
use crate::binary::map::Map;
use crate::binary::{Files, ImageBytes, OpenError};

#[cfg(not(target_os = "linux"))]
use crate::binary::files;

#[cfg(target_os = "linux")]
use super::Links;

/// Longest file that is mapped: longer ones are sparse, meant to be read for hours.
const MAPPED_BYTES_MAX: u64 = 32 << 30;
/// Longest file that is copied, and limit of all copies of a run together.
pub(super) const COPIED_BYTES_MAX: u64 = 256 << 20;
const COPIES_BYTES_MAX: u64 = 1 << 30;
/// Bytes per read.
pub(super) const PIECE_BYTES: usize = 1 << 20;

/// Error for a file with a lease of its owner (fcntl(2), `F_SETLEASE`).
pub(super) const LEASED: OpenError = OpenError::Source("a lease is held on it; opening it would wait");

/// Total bytes of all copies of this run.
static COPIED_BYTES: AtomicU64 = AtomicU64::new(0);

/// File status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct About {
    /// Device and inode.
    pub(crate) identity: (u64, u64),
    /// Modification time, in seconds since 1970.
    pub(crate) modified_s: i64,
    /// Change time of the inode, seconds and nanoseconds.
    pub(crate) changed: (i64, i64),
    pub(super) length: u64,
    pub(super) owner: u32,
    pub(super) mode: u32,
    pub(super) links: u64,
}

impl From<&Metadata> for About {
    fn from(meta: &Metadata) -> About {
        About {
            identity: (meta.dev(), meta.ino()),
            modified_s: meta.mtime(),
            changed: (meta.ctime(), meta.ctime_nsec()),
            length: meta.len(),
            owner: meta.uid(),
            mode: meta.mode(),
            links: meta.nlink(),
        }
    }
}

/// A regular file of a target, open for reading.
#[derive(Debug)]
pub(crate) struct TargetFile {
    pub(super) file: File,
    pub(super) about: About,
    /// Its pages may never arrive: it is copied.
    pub(super) may_hang: bool,
    /// It is an in-memory copy of the file that `about` describes.
    #[cfg(target_os = "linux")]
    pub(super) is_copy: bool,
}

impl TargetFile {
    /// Its status when it was opened.
    pub(crate) fn about(&self) -> &About {
        &self.about
    }

    /// Its current status; for a copy, the status after copying.
    #[cfg(target_os = "linux")]
    pub(crate) fn about_now(&self) -> io::Result<About> {
        if self.is_copy { Ok(self.about) } else { Ok(About::from(&self.file.metadata()?)) }
    }

    /// Its bytes, for long use.
    pub(crate) fn bytes(&self, copying: &Copying) -> Result<ImageBytes, OpenError> {
        self.check_length()?;
        match self.may_hang {
            true => self.copy(copying),
            false => Ok(ImageBytes::mapped(Map::new(self.file.try_clone()?)?)),
        }
    }

    /// Its bytes, without keeping the file open.
    pub(crate) fn bytes_briefly(&self, copying: &Copying) -> Result<ImageBytes, OpenError> {
        self.check_length()?;
        match self.may_hang {
            true => self.copy(copying),
            false => Ok(ImageBytes::mapped(Map::briefly(&self.file)?)),
        }
    }

    fn check_length(&self) -> Result<(), OpenError> {
        match self.about.length > MAPPED_BYTES_MAX {
            true => Err(OpenError::TooLong { bytes_max: MAPPED_BYTES_MAX }),
            false => Ok(()),
        }
    }

    fn copy(&self, copying: &Copying) -> Result<ImageBytes, OpenError> {
        let left = COPIES_BYTES_MAX.saturating_sub(COPIED_BYTES.load(Relaxed));
        let bytes = self.read(COPIED_BYTES_MAX.min(left), copying)?;
        COPIED_BYTES.fetch_add(bytes.len() as u64, Relaxed);
        Ok(ImageBytes::new(bytes))
    }

    /// Its current content, up to `bytes_max`: it may be written to meanwhile.
    pub(crate) fn read(&self, bytes_max: u64, copying: &Copying) -> Result<Vec<u8>, OpenError> {
        if self.about.length > bytes_max {
            return Err(OpenError::TooLong { bytes_max });
        }
        copying.begin();
        let mut bytes = Vec::new();
        let mut limited = (&self.file).take(bytes_max + 1);
        while limited.by_ref().take(PIECE_BYTES as u64).read_to_end(&mut bytes)? > 0 {}
        if bytes.len() as u64 > bytes_max { Err(OpenError::TooLong { bytes_max }) } else { Ok(bytes) }
    }

    /// Its first bytes.
    #[cfg(target_os = "linux")]
    pub(crate) fn head<const BYTES: usize>(&self) -> Result<[u8; BYTES], OpenError> {
        let mut head = [0; BYTES];
        (&self.file).read_exact(&mut head)?;
        Ok(head)
    }

    /// Checks that names may be taken from it for code of a process of this user (`None`: any): only that
    /// user and root may have written it.
    pub(crate) fn check_trusted(&self, user: Option<u32>) -> Result<(), OpenError> {
        let owner = self.about.owner;
        if user.is_some_and(|user| ![0, user].contains(&owner)) {
            // Anybody can write to /tmp; perf checks the owner, too.
            return Err(OpenError::UntrustedOwner { owner });
        }
        if self.about.links != 1 {
            return Err(OpenError::Source("it has several names (hard links); not trusted"));
        }
        if self.about.mode & 0o002 != 0 {
            return Err(OpenError::Source("anybody may write to it; not trusted"));
        }
        Ok(())
    }
}

/// The error of a non-blocking open.
pub(super) fn cannot_open(error: io::Error) -> OpenError {
    if error.kind() == io::ErrorKind::WouldBlock { LEASED } else { error.into() }
}

// ---- Files that a target names, where it shares the profiler's file system: gdb stubs, macOS, and this system's
// debug files for programs in containers.

/// Record of files that did not answer.
static PATIENCE: LazyLock<Patience> = LazyLock::new(Patience::default);

/// The files as this process sees them.
#[derive(Debug, Default)]
pub struct LocalFiles;

impl Files for LocalFiles {
    fn open(&self, path: &str) -> Result<ImageBytes, OpenError> {
        with_local(path, true, |file, copying| file.bytes(copying))
    }

    fn modified_s(&self, path: &str) -> Option<u64> {
        with_local(path, true, |file, _| Ok(u64::try_from(file.about().modified_s).ok())).ok()?
    }

    fn list(&self, directory: &str) -> Vec<String> {
        let path = absolute(directory);
        let listed = PATIENCE.wait_for(FileLocation::Directory(path.clone()), move |_| Ok(list(&path)));
        listed.unwrap_or_default()
    }
}

/// Applies `body` to a regular file, in a thread that may hang. Unless all links are followed, those of other
/// users are not.
pub(crate) fn with_local<T: Send + 'static>(
    path: &str,
    all_links: bool,
    work: impl FnOnce(TargetFile, &Copying) -> Result<T, OpenError> + Send + 'static,
) -> Result<T, OpenError> {
    wait_for(&PATIENCE, path, all_links, work)
}

fn wait_for<T: Send + 'static>(
    patience: &Patience,
    path: &str,
    all_links: bool,
    work: impl FnOnce(TargetFile, &Copying) -> Result<T, OpenError> + Send + 'static,
) -> Result<T, OpenError> {
    let path = absolute(path);
    patience.wait_for(FileLocation::of(&path), move |copying| work(open(&path, all_links, copying)?, copying))
}

/// Reads files with the rights of the thread that reads first.
pub(crate) struct LocalReader(Patience);

impl LocalReader {
    pub(crate) fn new() -> LocalReader {
        LocalReader(Patience::with_own_workers())
    }

    /// Content, and device and inode, of a regular file. Unless all links are followed, those of other users are
    /// not.
    pub(crate) fn read(&self, path: &str, all_links: bool) -> Result<(ImageBytes, (u64, u64)), OpenError> {
        wait_for(&self.0, path, all_links, |file, copying| Ok((file.bytes(copying)?, file.about().identity)))
    }
}

fn absolute(path: &str) -> String {
    let absolute = std::path::absolute(Path::new(path)).unwrap_or_else(|_| PathBuf::from(path));
    absolute.into_os_string().into_string().unwrap_or_else(|_| path.to_owned())
}

#[cfg(target_os = "linux")]
fn open(path: &str, all_links: bool, copying: &Copying) -> Result<TargetFile, OpenError> {
    let links = if all_links { Links::All } else { Links::OfUser(crate::sources::output::file_uid()) };
    super::own_root()?.open(path, links, copying)
}

#[cfg(not(target_os = "linux"))]
fn open(path: &str, all_links: bool, _copying: &Copying) -> Result<TargetFile, OpenError> {
    super::plain::open(Path::new(path), all_links)
}

#[cfg(target_os = "linux")]
fn list(path: &str) -> Vec<String> {
    super::own_root().map_or_else(|_| Vec::new(), |root| root.list(path))
}

#[cfg(not(target_os = "linux"))]
fn list(path: &str) -> Vec<String> {
    let path = Path::new(path);
    if std::fs::metadata(path).is_ok_and(|meta| meta.is_dir()) { files::list(path) } else { Vec::new() }
}
