//! Files with a target's debug information, by the paths that the target sees.
//!
//! [`Files`] is the trait that `symbol` uses; each backend implements it: Linux opens files in the target's mount
//! namespace. All open through `sources::target_file`.

use std::fs::OpenOptions;
use std::io::Read;
use std::path::Path;

use super::map::Map;
use super::{ImageBytes, OpenError};

/// Longest map of a JIT compiler that is read, in bytes; a long run of node has some megabytes.
pub(crate) const MAX_JIT_MAP_BYTES: u64 = 256 << 20;

/// Most names of a directory that are read.
pub(crate) const MAX_LISTED: usize = 65_536;

/// Opens files as a target sees them. Outlives the target: names are found after its exit.
pub trait Files: Send + Sync {
    /// The bytes of a regular file by its absolute path.
    ///
    /// # Errors
    /// Why it cannot be opened or mapped, without the path.
    fn open(&self, path: &str) -> Result<ImageBytes, OpenError>;

    /// The bytes of a regular file on the system that the profiler runs on. For files that are certain to be the
    /// right ones by their content: a target with a root of its own (container, chroot) may
    /// not have the debug files of what it runs, and the system that started it may.
    ///
    /// # Errors
    /// Why it cannot be opened or mapped, without the path.
    fn open_outside(&self, _path: &str) -> Result<ImageBytes, OpenError> {
        Err(OpenError::Because("no such file or directory"))
    }

    /// The bytes of a file that a JIT compiler in the target wrote, from which names are taken: only
    /// the process's user and root may have written it.
    ///
    /// # Errors
    /// Why it cannot be opened or mapped, or is not trusted, without the path.
    fn open_jit_dump(&self, path: &str) -> Result<ImageBytes, OpenError> {
        self.open(path)
    }

    /// The bytes of a source file that debug information names, to be shown: no link of another user but root leads
    /// to it, who could choose a file that only this user may read.
    ///
    /// # Errors
    /// Why it cannot be opened or mapped, without the path.
    fn open_source(&self, path: &str) -> Result<ImageBytes, OpenError> {
        self.open(path)
    }

    /// When a file was changed last, in seconds since 1970; `None` if that is unknown.
    fn modified_s(&self, _path: &str) -> Option<u64> {
        None
    }

    /// The names in a directory, at most 65,536 of them, sorted; empty if it cannot be read.
    fn list(&self, _directory: &str) -> Vec<String> {
        Vec::new()
    }

    /// The number of the process, as it knows itself; `None` where it is not known.
    fn own_pid(&self) -> Option<&str> {
        None
    }

    /// The perf map of a JIT compiler in the target (`/tmp/perf-PID.map`), with its path; `None` if there is none.
    fn jit_map(&self) -> Option<(String, Result<Vec<u8>, OpenError>)> {
        None
    }

    /// What the kernel calls code of its own at these addresses, one by one; `None` where it does not answer, and its
    /// list must be read.
    fn kernel_names(&self, _addresses: &[u64]) -> Option<Vec<Option<String>>> {
        None
    }

    /// The kernel's list of its symbols (`/proc/kallsyms`).
    ///
    /// # Errors
    /// Why it cannot be opened; names the list.
    fn kernel_symbols(&self) -> Result<Box<dyn Read>, OpenError> {
        Err(OpenError::Because("this system does not list the symbols of its kernel"))
    }

    /// Paths of debug files with a UUID that the system's own index knows (Spotlight).
    fn known_by_uuid(&self, _uuid: &[u8]) -> Vec<String> {
        Vec::new()
    }
}

/// No files: of a simulated process.
#[derive(Debug, Default)]
pub struct NoFiles;

impl Files for NoFiles {
    fn open(&self, _path: &str) -> Result<ImageBytes, OpenError> {
        Err(OpenError::Because("a simulated process has no files"))
    }
}

/// The names in a directory.
pub(crate) fn list(directory: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let names = entries.flatten().take(MAX_LISTED).filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.collect();
    names.sort_unstable();
    names
}

/// Maps a regular file that the user names: it may be a link of any kind, and is not waited for.
///
/// # Errors
/// It cannot be opened or mapped, or is none.
pub(crate) fn map_regular(path: &Path) -> Result<ImageBytes, OpenError> {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK | libc::O_NOCTTY);
    let opened = options.open(path)?;
    if opened.metadata()?.is_file() {
        Ok(ImageBytes::mapped(Map::new(opened)?))
    } else {
        Err(OpenError::NotRegular)
    }
}
