//! Files that a target names, where it shares the profiler's file system: gdb stubs, macOS, and this system's
//! debug files for programs in containers.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

#[cfg(not(target_os = "linux"))]
use crate::binary::files;
use crate::binary::{Files, ImageBytes, OpenError};

#[cfg(target_os = "linux")]
use super::Links;
use super::{Copying, FileLocation, Patience, TargetFile};

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
pub(in crate::sources) fn with_local<T: Send + 'static>(
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
pub(in crate::sources) struct LocalReader(Patience);

impl LocalReader {
    pub(in crate::sources) fn new() -> LocalReader {
        LocalReader(Patience::with_own_workers())
    }

    /// Content, and device and inode, of a regular file. Unless all links are followed, those of other users are
    /// not.
    pub(in crate::sources) fn read(
        &self,
        path: &str,
        all_links: bool,
    ) -> Result<(ImageBytes, (u64, u64)), OpenError> {
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
