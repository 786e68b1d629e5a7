//! An open regular file of a target, and its status.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::wait::Copying;
use crate::binary::map::Map;
use crate::binary::{ImageBytes, OpenError};

/// Longest file that is mapped: longer ones are sparse, meant to be read for hours.
const MAPPED_BYTES_MAX: u64 = 32 << 30;
/// Longest file that is copied, and limit of all copies of a run together.
pub(super) const COPIED_BYTES_MAX: u64 = 256 << 20;
const COPIES_BYTES_MAX: u64 = 1 << 30;
/// Bytes per read.
pub(super) const PIECE_BYTES: usize = 1 << 20;

/// Error for a file with a lease of its owner (fcntl(2), `F_SETLEASE`).
pub(super) const LEASED: OpenError = OpenError::Because("a lease is held on it; opening it would wait");

/// Total bytes of all copies of this run.
static COPIED_BYTES: AtomicU64 = AtomicU64::new(0);

/// File status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::sources) struct About {
    /// Device and inode.
    pub(in crate::sources) identity: (u64, u64),
    /// Modification time, in seconds since 1970.
    pub(in crate::sources) modified_s: i64,
    /// Change time of the inode, seconds and nanoseconds.
    pub(in crate::sources) changed: (i64, i64),
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
pub(in crate::sources) struct TargetFile {
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
    pub(in crate::sources) fn about(&self) -> &About {
        &self.about
    }

    /// Its current status; for a copy, the status after copying.
    #[cfg(target_os = "linux")]
    pub(in crate::sources) fn about_now(&self) -> io::Result<About> {
        if self.is_copy { Ok(self.about) } else { Ok(About::from(&self.file.metadata()?)) }
    }

    /// Its bytes, for long use.
    pub(in crate::sources) fn bytes(&self, copying: &Copying) -> Result<ImageBytes, OpenError> {
        self.check_length()?;
        match self.may_hang {
            true => self.copy(copying),
            false => Ok(ImageBytes::mapped(Map::new(self.file.try_clone()?)?)),
        }
    }

    /// Its bytes, without keeping the file open.
    pub(in crate::sources) fn bytes_briefly(&self, copying: &Copying) -> Result<ImageBytes, OpenError> {
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
    pub(in crate::sources) fn read(&self, bytes_max: u64, copying: &Copying) -> Result<Vec<u8>, OpenError> {
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
    pub(in crate::sources) fn head<const BYTES: usize>(&self) -> Result<[u8; BYTES], OpenError> {
        let mut head = [0; BYTES];
        (&self.file).read_exact(&mut head)?;
        Ok(head)
    }

    /// Checks that names may be taken from it for code of a process of this user (`None`: any): only that
    /// user and root may have written it.
    pub(in crate::sources) fn check_trusted(&self, user: Option<u32>) -> Result<(), OpenError> {
        let owner = self.about.owner;
        if user.is_some_and(|user| ![0, user].contains(&owner)) {
            // Anybody can write to /tmp; perf checks the owner, too.
            return Err(OpenError::Foreign { owner });
        }
        if self.about.links != 1 {
            return Err(OpenError::Because("it has several names (hard links); not trusted"));
        }
        if self.about.mode & 0o002 != 0 {
            return Err(OpenError::Because("anybody may write to it; not trusted"));
        }
        Ok(())
    }
}

/// The error of a non-blocking open.
pub(super) fn cannot_open(error: io::Error) -> OpenError {
    if error.kind() == io::ErrorKind::WouldBlock { LEASED } else { error.into() }
}
