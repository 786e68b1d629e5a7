//! Files that a target names, read with the rights of users and without any capability: their content goes into
//! pages and to viewers.
//!
//! Input: the users who ran the recorded processes. Output: the content of a file that each of them, and the user
//! who runs stackprof, may read. Each user has a thread that took that user's rights to files for good. All of
//! them must open the same file: a path that leads to another file in between is refused.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Mutex, PoisonError};

use super::output::Caller;
use super::target_file::LocalReader;
use crate::binary::files::{FileUser, Files};
use crate::binary::{ImageBytes, OpenError};

/// Most users of a recording whose rights are taken; each has a thread.
const USERS_MAX: usize = 16;

/// Why another user's files are not read unless asked.
const OF_ANOTHER: OpenError = OpenError::Source(
    "the recorded process is another user's or in a container; --source-dir adds what that user may read",
);
const NO_RIGHTS: OpenError =
    OpenError::Source("the rights of the recorded user cannot be taken; run stackprof as root");
const TOO_MANY: OpenError = OpenError::Source("processes of too many users were recorded");
const EXCHANGED: OpenError = OpenError::Source("it was exchanged while it was opened");

/// Files as users may read them.
pub struct UserFiles {
    /// The first one is the user who runs stackprof.
    readers: Vec<Reader>,
    /// Why no source is read.
    refusal: Option<OpenError>,
}

impl UserFiles {
    /// As the user who runs stackprof may read them; under sudo, the user who called it.
    #[must_use]
    pub fn of_caller() -> UserFiles {
        UserFiles { readers: vec![Reader::start(Caller::or_own())], refusal: None }
    }

    /// Source as these users may read it, too. `is_asked`: also if one of them is not the user who runs stackprof.
    ///
    /// Must be called while the calling thread still may take the ids of others.
    #[must_use]
    pub fn of_recorded(users: &BTreeSet<FileUser>, is_asked: bool) -> UserFiles {
        let mut files = UserFiles::of_caller();
        let own = Caller::or_own();
        // Root may read every file, so that its processes, such as a command of sudo, gain nothing.
        let others = || users.iter().filter(|user| ![0, own.uid()].contains(&user.uid));
        if others().next().is_some() && !is_asked {
            files.refusal = Some(OF_ANOTHER);
        } else if others().count() > USERS_MAX {
            files.refusal = Some(TOO_MANY);
        } else {
            files.readers.extend(others().map(|user| Reader::start(user.clone().into())));
        }
        files
    }
}

impl UserFiles {
    /// Why no source is read at all.
    #[must_use]
    pub fn refusal(&self) -> Option<&OpenError> {
        self.refusal.as_ref()
    }
}

impl Files for UserFiles {
    fn open(&self, path: &str) -> Result<ImageBytes, OpenError> {
        let own = self.readers.first().ok_or(NO_RIGHTS)?;
        own.read(path, true).map(|(bytes, _)| bytes)
    }

    fn open_source(&self, path: &str) -> Result<ImageBytes, OpenError> {
        if let Some(refusal) = &self.refusal {
            return Err(refusal.clone());
        }
        let mut opened: Option<(ImageBytes, FileIdentity)> = None;
        for reader in &self.readers {
            let (bytes, identity) = reader.read(path, false)?;
            match &opened {
                Some((_, first)) if *first != identity => return Err(EXCHANGED),
                Some(_) => {}
                None => opened = Some((bytes, identity)),
            }
        }
        opened.map(|(bytes, _)| bytes).ok_or(NO_RIGHTS)
    }
}

/// Device and inode.
type FileIdentity = (u64, u64);
type ReadResult = Result<(ImageBytes, FileIdentity), OpenError>;

struct ReadRequest {
    path: String,
    all_links: bool,
    answer: SyncSender<ReadResult>,
}

/// A thread with the rights of one user, until this is dropped.
struct Reader(Option<Mutex<Sender<ReadRequest>>>);

impl Reader {
    fn start(user: Caller) -> Reader {
        let (ask, requests) = channel();
        let serve = move || serve(&user, &requests);
        let started = std::thread::Builder::new().name("source".to_owned()).spawn(serve);
        Reader(started.ok().map(|_| Mutex::new(ask)))
    }

    /// Content and identity of a regular file.
    fn read(&self, path: &str, all_links: bool) -> ReadResult {
        let (answer, answered) = sync_channel(1);
        let request = ReadRequest { path: path.to_owned(), all_links, answer };
        let ask = self.0.as_ref().ok_or(NO_RIGHTS)?;
        let sent = ask.lock().unwrap_or_else(PoisonError::into_inner).send(request);
        sent.ok().and_then(|()| answered.recv().ok()).unwrap_or(Err(NO_RIGHTS))
    }
}

/// Reads files as this user; ends at once if the rights cannot be taken.
fn serve(user: &Caller, requests: &Receiver<ReadRequest>) {
    if take_rights(user).is_err() {
        return;
    }
    // Its workers are started by this thread, and have its rights.
    let files = LocalReader::new();
    for ReadRequest { path, all_links, answer } in requests {
        let _ = answer.send(files.read(&path, all_links));
    }
}

/// Gives the calling thread the rights of this user to files, for good, and no capability.
fn take_rights(user: &Caller) -> std::io::Result<()> {
    #[cfg(target_os = "linux")]
    return super::linux::read_as(user);
    #[cfg(not(target_os = "linux"))]
    user.take()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::{PermissionsExt, chown};

    use super::*;

    fn users(list: &[u32]) -> BTreeSet<FileUser> {
        list.iter().map(|uid| FileUser { uid: *uid, gid: *uid, groups: Vec::new() }).collect()
    }

    fn text(files: &UserFiles, path: &std::path::Path) -> Result<String, String> {
        let bytes = files.open_source(path.to_str().unwrap()).map_err(|why| why.to_string())?;
        Ok(String::from_utf8(bytes.bytes().to_vec()).unwrap())
    }

    #[test]
    fn source_is_what_all_users_may_read() {
        let own = Caller::or_own().uid();
        if own != 0 || std::env::var_os("SUDO_UID").is_some() {
            return crate::skip::not_here("only root can take the rights of another user");
        }
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "text").unwrap();
        // Owner and mode of the file, recorded users, whether source was asked for, and whether it is read.
        for (owner, mode, recorded, is_asked, is_read) in [
            (0, 0o600, &[][..], false, true),
            (0, 0o600, &[0], false, true),
            (0, 0o644, &[61_001], false, false),
            (0, 0o644, &[61_001], true, true),
            (0, 0o600, &[61_001], true, false),
            (0, 0o640, &[0, 61_001], true, false),
            (0, 0o604, &[61_001, 61_002], true, true),
            // Root itself has no capability here; on macOS there are none that it could give up.
            (61_001, 0o600, &[61_001], true, cfg!(target_os = "macos")),
            (61_001, 0o604, &[61_001], true, true),
            (61_001, 0o604, &[61_002], true, true),
        ] {
            chown(&path, Some(owner), Some(owner)).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let files = UserFiles::of_recorded(&users(recorded), is_asked);
            let read = text(&files, &path);
            assert_eq!(read.is_ok(), is_read, "{owner} {mode:o} {recorded:?} {is_asked}: {read:?}");
        }
        let many: Vec<u32> = (70_000..70_000 + 40).collect();
        let refused = text(&UserFiles::of_recorded(&users(&many), true), &path);
        assert_eq!(refused, Err(TOO_MANY.to_string()));
    }
}
