//! Where an output is written: an open directory and a name in it (`OutputPlace`), and the way from a path to it
//! (`resolve`), one component at a time.

use std::collections::VecDeque;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, fchown};
use std::path::Path;
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

// ---- From a path to an [`OutputPlace`], one component at a time.
//
// Each directory is opened relative to the one before and without following a link; a link is read and its
// target walked in the same way. So the file that was checked is the file that is used, and every link is
// subject to the rules:
//
// - In a sticky directory that everyone may write to, a link is followed only if it belongs to the writing
//   user or to the owner of the directory: fs.protected_symlinks of Documentation/admin-guide/sysctl/fs.rst,
//   whether the kernel enables it or not.
// - A link of another user who is not root is followed only into a directory of that user, who then gains
//   nothing by it.

/// Most links in a path, as in Linux (MAXSYMLINKS).
const LINKS_MAX: u32 = 40;
/// Most components of a path including its links; most directories above the working directory.
const COMPONENTS_MAX: u32 = 100_000;

/// Required owner of a path's directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Anybody.
    Anyone,
    /// Only root, and nobody else may change what a component of the path leads to.
    Root,
}

/// How the last component is resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// A file to be written: the last component is followed if it is a link.
    File,
    /// A name in a directory: the last component is not followed.
    Name,
}

/// Result of resolving a path.
#[derive(Debug)]
pub enum Resolved {
    /// A name in a directory.
    Place(OutputPlace),
    /// An open file of this process (`/dev/stdout`, `/dev/fd/3`).
    Descriptor(OwnedFd),
}

/// Why a path cannot be resolved.
#[derive(Debug)]
pub enum Refusal {
    /// A system call failed.
    System(io::Error),
    /// A directory of the path does not exist.
    NoDirectory,
    /// A component of the path is not a directory.
    NotDirectory,
    /// The path names a directory.
    Directory,
    /// The path ends in a slash, and there is no such directory.
    NoName,
    /// A link to a file that does not exist.
    Dangling,
    /// A link of this user, which must not be followed.
    Link(u32),
    /// A directory or link of the path can be changed by others than root.
    Untrusted,
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Refusal {
        Refusal::System(error)
    }
}

/// Resolves a path.
///
/// # Errors
/// [`Refusal`].
pub fn resolve(path: &Path, goal: Goal, trust: Trust) -> Result<Resolved, Refusal> {
    let bytes = path.as_os_str().as_bytes();
    let last = bytes.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    if matches!(last, b"" | b"." | b"..") {
        let is_there = !bytes.is_empty() && Walk::new(bytes, trust).and_then(Walk::into_directory).is_ok();
        return Err(if is_there { Refusal::Directory } else { Refusal::NoName });
    }
    let resolved = Walk::new(bytes, trust)?.into_name(goal)?;
    reached(Step::Resolved);
    Ok(resolved)
}

/// Creates the missing directories of a path.
///
/// # Errors
/// [`Refusal`].
pub fn make_directories(path: &Path, trust: Trust) -> Result<(), Refusal> {
    let mut walk = Walk::new(path.as_os_str().as_bytes(), trust)?;
    walk.makes_directories = true;
    walk.into_directory().map(drop)
}

/// The current directory and the remaining components.
struct Walk {
    directory: OwnedFd,
    components: VecDeque<CString>,
    trust: Trust,
    /// Create missing directories.
    makes_directories: bool,
    links: u32,
    steps: u32,
    /// Another user, after following that user's link.
    link_owner: Option<u32>,
}

impl Walk {
    fn new(path: &[u8], trust: Trust) -> Result<Walk, Refusal> {
        let start = if path.starts_with(b"/") { c"/" } else { c"." };
        let directory = calls::open_at(calls::working_directory(), start, calls::SEARCH, 0)?;
        let walk = Walk {
            directory,
            components: components(path)?.into(),
            trust,
            makes_directories: false,
            links: 0,
            steps: 0,
            link_owner: None,
        };
        if trust == Trust::Root && start == c"." {
            walk.check_ancestors()?;
        }
        walk.check_directory()?;
        Ok(walk)
    }

    /// Walks to the end, which must be a directory.
    fn into_directory(mut self) -> Result<OwnedFd, Refusal> {
        while let Some(name) = self.components.pop_front() {
            self.enter(&name)?;
        }
        self.check_end()?;
        Ok(self.directory)
    }

    /// Walks to the directory of the last component.
    fn into_name(mut self, goal: Goal) -> Result<Resolved, Refusal> {
        let mut is_linked = false;
        while let Some(name) = self.components.pop_front() {
            if !self.components.is_empty() || name.as_c_str() == c".." {
                self.enter(&name)?;
                continue;
            }
            let at = self.directory.as_fd();
            if let Some(number) = descriptor(at, &name) {
                return Ok(Resolved::Descriptor(calls::duplicate(number)?));
            }
            let is_proc = calls::is_proc(at);
            let found = calls::status_at(at, &name);
            reached(Step::Examined);
            match found {
                Ok(found) if found.is_link() && !is_proc && goal == Goal::File => {
                    self.follow(&name)?;
                    is_linked = true;
                }
                Ok(found) if found.is_directory() => return Err(Refusal::Directory),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.check_end()?;
                    if is_linked {
                        return Err(Refusal::Dangling);
                    }
                    return Ok(self.place(name, is_proc));
                }
                Err(error) => return Err(error.into()),
                Ok(_) => {
                    self.check_end()?;
                    return Ok(self.place(name, is_proc));
                }
            }
        }
        Err(Refusal::Directory)
    }

    fn place(self, name: CString, is_proc: bool) -> Resolved {
        Resolved::Place(OutputPlace { directory: Arc::new(self.directory), name, is_proc })
    }

    /// Enters the directory of this name, or continues at the target of a link.
    fn enter(&mut self, name: &CStr) -> Result<(), Refusal> {
        self.steps += 1;
        if self.steps > COMPONENTS_MAX {
            return Err(io::Error::from_raw_os_error(libc::ELOOP).into());
        }
        let at = self.directory.as_fd();
        if calls::is_proc(at) && calls::status_at(at, name).is_ok_and(|found| found.is_link()) {
            // Links of /proc lead elsewhere than their text says: the kernel has to follow them.
            if self.trust == Trust::Root {
                return Err(Refusal::Untrusted);
            }
            self.directory = calls::open_at(at, name, calls::SEARCH, 0)?;
            return Ok(());
        }
        let found = match calls::status_at(at, name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.makes_directories => {
                self.check_end()?;
                calls::make_directory(at, name)?;
                // It is in a directory of the link's owner, who gains nothing by it.
                self.link_owner = None;
                calls::status_at(self.directory.as_fd(), name)?
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(Refusal::NoDirectory),
            other => other?,
        };
        reached(Step::Examined);
        if found.is_link() {
            return self.follow(name);
        }
        if !found.is_directory() {
            return Err(Refusal::NotDirectory);
        }
        let flags = calls::SEARCH | libc::O_NOFOLLOW;
        self.directory = calls::open_at(self.directory.as_fd(), name, flags, 0)?;
        self.check_directory()
    }

    /// Prepends the target of the link to the remaining components, if it may be followed.
    fn follow(&mut self, name: &CStr) -> Result<(), Refusal> {
        self.links += 1;
        if self.links > LINKS_MAX {
            return Err(io::Error::from_raw_os_error(libc::ELOOP).into());
        }
        let (link, target) = calls::read_link(self.directory.as_fd(), name)?;
        let directory = calls::status(self.directory.as_fd())?;
        let own = caller::file_uid();
        if !may_follow(own, &link, &directory)
            || self.link_owner.is_some_and(|owner| owner != link.uid && link.uid != 0)
        {
            return Err(Refusal::Link(link.uid));
        }
        if link.uid != 0 && link.uid != own {
            self.link_owner = Some(link.uid);
        }
        if self.trust == Trust::Root && link.uid != 0 {
            return Err(Refusal::Untrusted);
        }
        let target = target.as_bytes();
        if target.starts_with(b"/") {
            self.directory = calls::open_at(calls::working_directory(), c"/", calls::SEARCH, 0)?;
            self.check_directory()?;
        }
        for component in components(target)?.into_iter().rev() {
            self.components.push_front(component);
        }
        Ok(())
    }

    /// A path that root writes to must consist of components that only root can change: in a sticky directory
    /// others can add names, but not move root's.
    fn check_directory(&self) -> Result<(), Refusal> {
        if self.trust == Trust::Root {
            is_roots(self.directory.as_fd())?;
        }
        Ok(())
    }

    fn check_ancestors(&self) -> Result<(), Refusal> {
        let mut directory = self.directory.try_clone()?;
        for _ in 0..COMPONENTS_MAX {
            let parent = calls::open_at(directory.as_fd(), c"..", calls::SEARCH, 0)?;
            is_roots(parent.as_fd())?;
            if calls::status(parent.as_fd())?.identity == calls::status(directory.as_fd())?.identity {
                return Ok(());
            }
            directory = parent;
        }
        Err(Refusal::Untrusted)
    }

    /// Checks the directory in which an entry is to be created.
    fn check_end(&self) -> Result<(), Refusal> {
        let directory = calls::status(self.directory.as_fd())?;
        if let Some(owner) = self.link_owner.filter(|owner| *owner != directory.uid) {
            return Err(Refusal::Link(owner));
        }
        if self.trust == Trust::Root && directory.mode & 0o022 != 0 {
            return Err(Refusal::Untrusted);
        }
        Ok(())
    }
}

/// The rule for links in directories like `/tmp` (`may_follow_link` in fs/namei.c).
fn may_follow(own: u32, link: &Status, directory: &Status) -> bool {
    !directory.is_sticky_for_all() || link.uid == own || link.uid == directory.uid
}

fn is_roots(directory: BorrowedFd<'_>) -> Result<(), Refusal> {
    let status = calls::status(directory)?;
    let is_writable = status.mode & 0o022 != 0 && !status.is_sticky();
    if status.uid != 0 || is_writable { Err(Refusal::Untrusted) } else { Ok(()) }
}

/// The components of a path, without empty ones and `.`.
fn components(path: &[u8]) -> Result<Vec<CString>, Refusal> {
    path.split(|byte| *byte == b'/')
        .filter(|component| !matches!(*component, b"" | b"."))
        .map(|component| CString::new(component).map_err(|error| Refusal::System(error.into())))
        .collect()
}

/// The descriptor number, if the name is in this process's directory of open files.
fn descriptor(directory: BorrowedFd<'_>, name: &CStr) -> Option<libc::c_int> {
    let number: libc::c_int = name.to_str().ok()?.parse().ok().filter(|number| *number >= 0)?;
    let here = calls::status(directory).ok()?.identity;
    let is_here = |path: &CStr| {
        let opened = calls::open_at(calls::working_directory(), path, calls::SEARCH, 0);
        opened.and_then(|opened| calls::status(opened.as_fd())).is_ok_and(|status| status.identity == here)
    };
    [c"/proc/self/fd", c"/dev/fd"].into_iter().any(is_here).then_some(number)
}

#[cfg(test)]
mod resolve_tests {
    use super::*;

    #[test]
    fn links_are_followed_as_by_protected_symlinks() {
        let status = |uid, mode| Status { identity: (1, 1), uid, gid: 0, mode, links: 1 };
        // The writing user, the link's owner, the directory's owner and its mode.
        for (own, link, owner, mode, expected) in [
            (0, 1000, 0, 0o1777, false),
            (1000, 1001, 0, 0o1777, false),
            (1000, 1001, 1002, 0o1777, false),
            (1000, 1000, 0, 0o1777, true),
            (1000, 0, 0, 0o1777, true),
            (0, 1000, 1000, 0o1777, true),
            (0, 1000, 0, 0o1773, false),
            (0, 1000, 0, 0o777, true),
            (0, 1000, 0, 0o1775, true),
            (0, 1000, 0, 0o755, true),
        ] {
            let followed = may_follow(own, &status(link, 0o120_777), &status(owner, 0o040_000 | mode));
            assert_eq!(followed, expected, "{own} {link} {owner} {mode:o}");
        }
    }
}
