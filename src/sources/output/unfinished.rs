//! New files without their final name, and the removal of temporary ones when a signal ends the process.

use std::collections::hash_map::RandomState;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::hash::BuildHasher;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use super::calls;
use super::step::{Step, reached};

/// Attempts to find a free temporary name.
const NAMES_MAX: u32 = 100;

/// How often [`remove_unfinished`] tries to lock the list, a millisecond apart.
const ASKS_MAX: u32 = 200;

/// Existing temporary names. Locked while one is created or removed.
pub(super) struct Registry(Mutex<Vec<(Arc<OwnedFd>, CString)>>);

static REGISTRY: Registry = Registry::new();

impl Registry {
    const fn new() -> Registry {
        Registry(Mutex::new(Vec::new()))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Arc<OwnedFd>, CString)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remove_all(&self) {
        for _ in 0..ASKS_MAX {
            let names = match self.0.try_lock() {
                Ok(names) => names,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => {
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                }
            };
            for (directory, name) in names.iter() {
                let _ = calls::unlink(directory.as_fd(), name);
            }
            // Other threads that create a file now wait until the process has ended.
            std::mem::forget(names);
            return;
        }
    }
}

/// Removes the temporary files of this process, which must end right after: no file gets its name from here
/// on. For a signal thread: waits at most 0.2 s for threads that may wait for a disk.
pub fn remove_unfinished() {
    REGISTRY.remove_all();
}

/// A new file that disappears on drop unless it gets its name.
pub struct Unfinished {
    file: File,
    directory: Arc<OwnedFd>,
    /// The temporary name, on file systems without nameless files.
    temporary: Option<CString>,
    registry: &'static Registry,
}

impl Unfinished {
    pub(super) fn create(directory: &Arc<OwnedFd>, mode: u32) -> io::Result<Unfinished> {
        Unfinished::create_in(&REGISTRY, directory, mode)
    }

    fn create_in(registry: &'static Registry, directory: &Arc<OwnedFd>, mode: u32) -> io::Result<Unfinished> {
        let nameless = match nameless(directory, mode) {
            Err(error) if !is_refused_kind(&error) => return Err(error),
            other => other.ok(),
        };
        let directory = Arc::clone(directory);
        let unfinished = match nameless {
            Some(file) => Unfinished { file: file.into(), directory, temporary: None, registry },
            None => {
                let mut names = registry.lock();
                let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
                let (file, name) =
                    with_free_name(|name| calls::open_at(directory.as_fd(), name, flags, mode))?;
                names.push((Arc::clone(&directory), name.clone()));
                Unfinished { file: file.into(), directory, temporary: Some(name), registry }
            }
        };
        reached(Step::Created);
        Ok(unfinished)
    }

    /// The file, to write to.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Gives the file its name, replacing any entry; a link is replaced, not followed.
    pub(super) fn rename_to(mut self, name: &CStr) -> io::Result<()> {
        calls::flush(self.file.as_fd())?;
        reached(Step::Whole);
        let directory = self.directory.as_fd();
        let registry = self.registry;
        let mut names = registry.lock();
        let Some(temporary) = self.temporary.take() else {
            return link(&self.file, directory, name);
        };
        reached(Step::Linked);
        let renamed = calls::rename(directory, &temporary, name);
        // Also after a rename, which keeps both names if they are links to one file.
        let _ = calls::unlink(directory, &temporary);
        names.retain(|(_, other)| *other != temporary);
        renamed
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(temporary) = self.temporary.take() {
            let mut names = self.registry.lock();
            let _ = calls::unlink(self.directory.as_fd(), &temporary);
            names.retain(|(_, other)| *other != temporary);
        }
    }
}

/// Gives a complete nameless file this name.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn link(file: &File, directory: std::os::fd::BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    match calls::link_file(file.as_fd(), directory, name) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        other => return other,
    }
    // No system call replaces a name with a nameless file.
    let ((), temporary) = with_free_name(|name| calls::link_file(file.as_fd(), directory, name))?;
    reached(Step::Linked);
    let renamed = calls::rename(directory, &temporary, name);
    let _ = calls::unlink(directory, &temporary);
    renamed
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn link(_: &File, _: std::os::fd::BorrowedFd<'_>, _: &CStr) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn nameless(directory: &OwnedFd, mode: u32) -> io::Result<OwnedFd> {
    #[cfg(test)]
    if super::step::hook::is_named_only() {
        return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
    }
    calls::open_nameless(directory.as_fd(), mode)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn nameless(_: &OwnedFd, _: u32) -> io::Result<OwnedFd> {
    Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
}

/// Whether an error means that the file system has no nameless files.
fn is_refused_kind(error: &io::Error) -> bool {
    // EISDIR: kernels before 3.11. EINVAL, ENOSYS: emulated kernels.
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL | libc::ENOSYS))
}

/// Calls `make` with unguessable names until one is free.
fn with_free_name<T>(mut make: impl FnMut(&CStr) -> io::Result<T>) -> io::Result<(T, CString)> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let random = RandomState::new();
    let mut tries = 0;
    loop {
        // Independent of the final name, which may already have the maximum length.
        let number = random.hash_one(NUMBER.fetch_add(1, Ordering::Relaxed));
        let name = CString::new(format!(".stackprof-{}-{number:016x}.tmp", std::process::id()))?;
        match make(&name) {
            Ok(made) => return Ok((made, name)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && tries < NAMES_MAX => tries += 1,
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::step::hook;
    use super::*;

    fn names(directory: &std::path::Path) -> usize {
        std::fs::read_dir(directory).expect("a directory").count()
    }

    #[test]
    fn a_file_interrupted_by_a_signal_is_removed() {
        let registry: &'static Registry = Box::leak(Box::new(Registry::new()));
        let directory = tempfile::tempdir().expect("a temporary directory");
        let opened = Arc::new(OwnedFd::from(File::open(directory.path()).expect("opened")));
        hook::with_named_only(true, || {
            let dropped = Unfinished::create_in(registry, &opened, 0o600).expect("made");
            assert_eq!((names(directory.path()), registry.lock().len()), (1, 1));
            drop(dropped);
            assert_eq!((names(directory.path()), registry.lock().len()), (0, 0));
            let whole = Unfinished::create_in(registry, &opened, 0o600).expect("made");
            whole.rename_to(c"a.svg").expect("renamed");
            assert_eq!(registry.lock().len(), 0);
            let interrupted = Unfinished::create_in(registry, &opened, 0o600).expect("made");
            assert_eq!(names(directory.path()), 2);
            registry.remove_all();
            assert_eq!(names(directory.path()), 1, "a.svg");
            // The process would end here, so the value is never dropped.
            std::mem::forget(interrupted);
        });
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_file_has_no_name_until_it_is_complete() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let opened = Arc::new(OwnedFd::from(File::open(directory.path()).expect("opened")));
        if calls::open_nameless(opened.as_fd(), 0o600).is_err() {
            return;
        }
        let unfinished = Unfinished::create(&opened, 0o600).expect("made");
        assert_eq!(names(directory.path()), 0);
        unfinished.rename_to(c"a.svg").expect("named");
        assert_eq!(names(directory.path()), 1);
    }
}
