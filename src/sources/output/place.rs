//! An open directory and a name in it.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, fchown};
use std::sync::Arc;

use super::step::{Step, reached};
use super::{Status, Unfinished, caller, calls};

/// The error of open(2) for a link that it does not follow.
const IS_LINK: i32 = libc::ELOOP;

/// Permissions of a new file before the umask.
const NEW: u32 = 0o666;

/// Where an output is written: a name in an open directory.
#[derive(Debug)]
pub struct Place {
    pub(super) directory: Arc<OwnedFd>,
    pub(super) name: CString,
    /// An entry of /proc, whose links only the kernel can follow.
    pub(super) is_proc: bool,
}

impl Place {
    /// Whether both are one name in one directory, whatever paths led there.
    #[must_use]
    pub fn is_same(&self, other: &Place) -> bool {
        let identity = |place: &Place| place.directory().ok().map(|status| status.identity);
        self.name == other.name && identity(self).is_some_and(|here| identity(other) == Some(here))
    }

    /// The object under the name, without following a link.
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

    /// What the name leads to, where that is anything.
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

    /// Asks whether what the name leads to may be written to, and opens nothing.
    ///
    /// # Errors
    /// Why not.
    pub fn check_access(&self) -> io::Result<()> {
        calls::check_access(self.directory.as_fd(), &self.name)
    }

    /// The directory.
    ///
    /// # Errors
    /// Where the file system does not answer.
    pub fn directory(&self) -> io::Result<Status> {
        calls::status(self.directory.as_fd())
    }

    /// Whether the place is in /proc: what is there is written to, and never replaced.
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

    /// Whether a pipe or device can be trusted: its name could have been meant for a file, and another user have
    /// created it. The rule is the kernel's, fs.protected_fifos.
    #[must_use]
    pub fn is_trusted(directory: &Status, existing: &Status) -> bool {
        let sticky = directory.is_sticky() && directory.is_shared();
        !sticky || existing.uid == caller::file_uid() || existing.uid == directory.uid
    }

    /// Asks whether an existing regular file may be written to, and changes nothing.
    ///
    /// # Errors
    /// Why not.
    pub fn ask(&self) -> io::Result<()> {
        reached(Step::Examined);
        let flags = libc::O_WRONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
        calls::open_at(self.directory.as_fd(), &self.name, flags, 0).map(drop)
    }

    /// Opens a pipe or a device, and tells what was opened; `None` if it is a link by now. Waits
    /// for a reader of a FIFO.
    ///
    /// # Errors
    /// Why it cannot be opened.
    pub fn open(&self) -> io::Result<Option<(File, Status)>> {
        self.open_with(0)
    }

    /// Opens a device, and tells what was opened; `None` if it is a link by now. Waits for nothing.
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

    /// Opens the file to append to, makes it if there is none, and tells what was opened. Follows no
    /// link and waits for no reader.
    ///
    /// # Errors
    /// Why it cannot be opened.
    pub fn append(&self) -> io::Result<(File, Status)> {
        reached(Step::Examined);
        let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
        let open = |flags| calls::open_at(self.directory.as_fd(), &self.name, flags, NEW);
        let file = match open(flags) {
            // A file that appears meanwhile is not taken for a new one.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                open(flags | libc::O_CREAT | libc::O_EXCL)?
            }
            other => other?,
        };
        let status = calls::status(file.as_fd())?;
        Ok((file.into(), status))
    }

    /// A new file for this place, unreadable to all but the owner for whom the replaced one was unreadable.
    ///
    /// # Errors
    /// Why there can be none in the directory.
    pub fn create(&self) -> io::Result<Unfinished> {
        let existing = self.existing()?.filter(Status::is_regular);
        let mode = existing.map_or(NEW, |existing| existing.mode & NEW);
        Unfinished::create(&self.directory, mode)
    }

    /// Gives a whole file its name. A file that it replaces passes on its owner, group and
    /// permissions, but none to execute and no set-user-ID; in a shared directory no owner and no
    /// wider permissions, since another user could have put it there.
    ///
    /// # Errors
    /// Why it cannot have the name; nothing is left then, and what stood there stays.
    pub fn finish(&self, new: Unfinished) -> io::Result<()> {
        if let Some(existing) = self.existing()?.filter(Status::is_regular) {
            // Best effort: a file system without owners is no reason to lose a recording.
            let _ = pass_on(&existing, &self.directory()?, new.file());
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

fn pass_on(existing: &Status, directory: &Status, new: &File) -> io::Result<()> {
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
        // A group that could not be passed on gives its permissions to no other one.
        let is_group_kept = calls::status(new.as_fd())?.gid == existing.gid;
        if is_group_kept { mode } else { mode & !0o070 | mode & (mode << 3) & 0o070 }
    };
    new.set_permissions(std::fs::Permissions::from_mode(mode))
}
