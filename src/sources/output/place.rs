//! An open directory and a name in it.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, fchown};
use std::sync::Arc;

use super::step::{Step, reached};
use super::{Status, Unfinished, caller, calls};

/// The error of open(2) for a link under O_NOFOLLOW.
const IS_LINK: i32 = libc::ELOOP;

/// Permissions of a new file before the umask.
const NEW: u32 = 0o666;

/// Destination of an output: a name in an open directory.
#[derive(Debug)]
pub struct OutputPlace {
    pub(super) directory: Arc<OwnedFd>,
    pub(super) name: CString,
    /// An entry of /proc, with links that only the kernel can follow.
    pub(super) is_proc: bool,
}

impl OutputPlace {
    /// Whether both are the same name in the same directory, regardless of the paths.
    #[must_use]
    pub fn is_same(&self, other: &OutputPlace) -> bool {
        let identity = |place: &OutputPlace| place.directory().ok().map(|status| status.identity);
        self.name == other.name && identity(self).is_some_and(|here| identity(other) == Some(here))
    }

    /// The status of the name, without following a link.
    ///
    /// # Errors
    /// The directory cannot be searched.
    pub fn existing(&self) -> io::Result<Option<Status>> {
        match calls::status_at(self.directory.as_fd(), &self.name) {
            Ok(status) => Ok(Some(status)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The status of what the name leads to, if it exists.
    ///
    /// # Errors
    /// The directory cannot be searched.
    pub fn target(&self) -> io::Result<Option<Status>> {
        match calls::target_status_at(self.directory.as_fd(), &self.name) {
            Ok(status) => Ok(Some(status)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Checks that the file under the name may be written, without opening it.
    ///
    /// # Errors
    /// Why not.
    pub fn check_access(&self) -> io::Result<()> {
        calls::check_access(self.directory.as_fd(), &self.name)
    }

    /// The status of the directory.
    ///
    /// # Errors
    /// The file system does not answer.
    pub fn directory(&self) -> io::Result<Status> {
        calls::status(self.directory.as_fd())
    }

    /// Whether the place is in /proc: files there are written to, never replaced.
    #[must_use]
    pub fn is_proc(&self) -> bool {
        self.is_proc
    }

    /// Whether the calling thread has root's rights to files.
    #[must_use]
    pub fn is_root() -> bool {
        caller::file_uid() == 0
    }

    /// Whether the calling thread may replace the file in a directory where only owners may.
    #[must_use]
    pub fn may_replace(directory: &Status, existing: &Status) -> bool {
        let own = caller::file_uid();
        !directory.is_sticky() || own == 0 || own == existing.uid || own == directory.uid
    }

    /// Whether a pipe or device can be trusted: another user could have created it under a name meant for a
    /// file. The rule is the kernel's, fs.protected_fifos.
    #[must_use]
    pub fn is_trusted(directory: &Status, existing: &Status) -> bool {
        let sticky = directory.is_sticky() && directory.is_shared();
        !sticky || existing.uid == caller::file_uid() || existing.uid == directory.uid
    }

    /// Checks that an existing regular file may be written, without changing it.
    ///
    /// # Errors
    /// Why not.
    pub fn ask(&self) -> io::Result<()> {
        reached(Step::Examined);
        let flags = libc::O_WRONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
        calls::open_at(self.directory.as_fd(), &self.name, flags, 0).map(drop)
    }

    /// Opens a pipe or a device and returns its status; `None` if it has become a link. Waits for a reader of
    /// a FIFO.
    ///
    /// # Errors
    /// Why it cannot be opened.
    pub fn open(&self) -> io::Result<Option<(File, Status)>> {
        self.open_with(0)
    }

    /// Opens a device without waiting and returns its status; `None` if it has become a link.
    ///
    /// # Errors
    /// Why it cannot be opened.
    pub fn open_at_once(&self) -> io::Result<Option<(File, Status)>> {
        self.open_with(libc::O_NONBLOCK)
    }

    fn open_with(&self, flags: libc::c_int) -> io::Result<Option<(File, Status)>> {
        let follow = if self.is_proc { 0 } else { libc::O_NOFOLLOW };
        let flags = flags | libc::O_WRONLY | libc::O_APPEND | libc::O_NOCTTY | follow;
        reached(Step::Examined);
        let file = match calls::open_at(self.directory.as_fd(), &self.name, flags, 0) {
            Err(error) if error.raw_os_error() == Some(IS_LINK) && !self.is_proc => return Ok(None),
            other => other?,
        };
        let status = calls::status(file.as_fd())?;
        Ok(Some((file.into(), status)))
    }

    /// Opens the file for appending, creates it if missing, and returns its status. Follows no link and waits
    /// for no reader.
    ///
    /// # Errors
    /// Why it cannot be opened.
    pub fn append(&self) -> io::Result<(File, Status)> {
        reached(Step::Examined);
        let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
        let open = |flags| calls::open_at(self.directory.as_fd(), &self.name, flags, NEW);
        let file = match open(flags) {
            // A file that appears in between does not count as new.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                open(flags | libc::O_CREAT | libc::O_EXCL)?
            }
            other => other?,
        };
        let status = calls::status(file.as_fd())?;
        Ok((file.into(), status))
    }

    /// Creates a new file for this place, unreadable to all but the owner if the replaced one was.
    ///
    /// # Errors
    /// Why the directory cannot have one.
    pub fn create(&self) -> io::Result<Unfinished> {
        let existing = self.existing()?.filter(Status::is_regular);
        let mode = existing.map_or(NEW, |existing| existing.mode & NEW);
        Unfinished::create(&self.directory, mode)
    }

    /// Gives a complete file its name. It takes over owner, group and permissions of the file that it
    /// replaces, except execute and set-user-ID bits. In a shared directory it takes over no owner and no
    /// wider permissions, since another user could have put the old file there.
    ///
    /// # Errors
    /// Why it cannot have the name; then the new file is gone and the old one unchanged.
    pub fn finish(&self, new: Unfinished) -> io::Result<()> {
        if let Some(existing) = self.existing()?.filter(Status::is_regular) {
            // Best effort: a file system without owners is no reason to lose a recording.
            let _ = copy_owner_and_mode(&existing, &self.directory()?, new.file());
        }
        new.rename_to(&self.name)
    }

    /// Removes the object under the name, if there is one.
    ///
    /// # Errors
    /// Why it cannot be removed.
    pub fn remove(&self) -> io::Result<()> {
        match calls::unlink(self.directory.as_fd(), &self.name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }
}

fn copy_owner_and_mode(existing: &Status, directory: &Status, new: &File) -> io::Result<()> {
    let own = calls::status(new.as_fd())?;
    let mode = if directory.is_shared() {
        if existing.uid != own.uid {
            return Ok(());
        }
        existing.mode & own.mode & NEW
    } else {
        let owner = Some(existing.uid).filter(|uid| *uid != own.uid && caller::file_uid() == 0);
        let group = Some(existing.gid).filter(|gid| *gid != own.gid);
        let _ = fchown(new, owner, group);
        let mode = existing.mode & NEW;
        // If the group could not be kept, its permissions must not go to another group.
        let is_group_kept = calls::status(new.as_fd())?.gid == existing.gid;
        if is_group_kept { mode } else { mode & !0o070 | mode & (mode << 3) & 0o070 }
    };
    new.set_permissions(std::fs::Permissions::from_mode(mode))
}
