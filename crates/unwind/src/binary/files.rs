//! Files with a target's debug information, by paths in the target's view.
//!
//! [`Files`] is the trait by which names and debug files are found; who can reach the target implements it: stackprof's
//! Linux backend opens files in the target's mount namespace.

use std::fs::OpenOptions;
use std::io::Read;
use std::path::Path;

use super::map::Map;
use super::{ImageBytes, OpenError};

/// Limit on the size of a JIT compiler's map, in bytes; a long run of node has some megabytes.
pub const JIT_MAP_BYTES_MAX: u64 = 256 << 20;

/// Limit on names read from a directory.
pub(crate) const LISTED_MAX: usize = 65_536;

/// A user with whose rights a process opens files.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileUser {
    /// The user's number.
    pub uid: u32,
    /// The number of the first group.
    pub gid: u32,
    /// All other groups.
    pub groups: Vec<u32>,
}

impl FileUser {
    /// The user of a process that is unknown, or sees other files than this process: one without rights (the
    /// kernel's overflowuid).
    pub const NOBODY: FileUser = FileUser { uid: 65_534, gid: 65_534, groups: Vec::new() };
}

/// Opens files in a target's view. Outlives the target: names are found after its exit.
pub trait Files: Send + Sync {
    /// Opens a regular file by its absolute path.
    ///
    /// # Errors
    /// It cannot be opened or mapped; the error lacks the path.
    fn open(&self, path: &str) -> Result<ImageBytes, OpenError>;

    /// Opens a regular file on the profiler's system. For files that are verified by their content: a target with
    /// a separate root (container, chroot) may lack the debug files of its programs, and the host may have them.
    ///
    /// # Errors
    /// It cannot be opened or mapped; the error lacks the path.
    fn open_outside(&self, _path: &str) -> Result<ImageBytes, OpenError> {
        Err(OpenError::Source("no such file or directory"))
    }

    /// Opens a file written by a JIT compiler in the target, to read names from it: only the process's user and
    /// root may have written it.
    ///
    /// # Errors
    /// It cannot be opened or mapped, or is not trusted; the error lacks the path.
    fn open_jit_dump(&self, path: &str) -> Result<ImageBytes, OpenError> {
        self.open(path)
    }

    /// Opens a source file named by debug information, for display: no symbolic link on the way may belong to a
    /// user other than root, who could choose a file that only this user may read. Its content goes to others.
    ///
    /// # Errors
    /// It cannot be opened or mapped; the error lacks the path.
    fn open_source(&self, path: &str) -> Result<ImageBytes, OpenError> {
        self.open(path)
    }

    /// The last modification of a file, in seconds since 1970; `None` if unknown.
    fn modified_s(&self, _path: &str) -> Option<u64> {
        None
    }

    /// The names in a directory, at most 65,536, sorted; empty if it cannot be read.
    fn list(&self, _directory: &str) -> Vec<String> {
        Vec::new()
    }

    /// The users as whom the process opens files now; of an exited process, those last known. Empty if the system
    /// has none.
    fn users(&self) -> Vec<FileUser> {
        Vec::new()
    }

    /// The process id in the process's own namespace; `None` if unknown.
    fn own_pid(&self) -> Option<&str> {
        None
    }

    /// The perf map of a JIT compiler in the target (`/tmp/perf-PID.map`), with its path; `None` if there is none.
    fn jit_map(&self) -> Option<(String, Result<Vec<u8>, OpenError>)> {
        None
    }

    /// The kernel's names for addresses of its own code, one by one; `None` if it does not answer, and its list
    /// must be read.
    fn kernel_names(&self, _addresses: &[u64]) -> Option<Vec<Option<String>>> {
        None
    }

    /// The kernel's list of its symbols (`/proc/kallsyms`).
    ///
    /// # Errors
    /// It cannot be opened; the error names the list.
    fn kernel_symbols(&self) -> Result<Box<dyn Read>, OpenError> {
        Err(OpenError::Source("this system does not list the symbols of its kernel"))
    }

    /// Paths of debug files with a UUID that the system's index knows (Spotlight).
    fn known_by_uuid(&self, _uuid: &[u8]) -> Vec<String> {
        Vec::new()
    }
}

/// No files: for a simulated process.
#[derive(Debug, Default)]
pub struct NoFiles;

impl Files for NoFiles {
    fn open(&self, _path: &str) -> Result<ImageBytes, OpenError> {
        Err(OpenError::Source("a simulated process has no files"))
    }
}

/// The names in a directory.
pub fn list(directory: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let names = entries.flatten().take(LISTED_MAX).filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.collect();
    names.sort_unstable();
    names
}

/// Maps a regular file named by the user: may follow any symbolic link, and does not block.
///
/// # Errors
/// It cannot be opened or mapped, or is not regular.
pub fn map_regular(path: &Path) -> Result<ImageBytes, OpenError> {
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
