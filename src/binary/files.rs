//! Files that a target's debug information is in, by the paths that the target sees.
//!
//! [`Files`] is what symbols ask; each backend has its own: Linux looks into the target's
//! mount namespace. Only regular files are opened, and never waited for.

use std::fs::{File, Metadata, OpenOptions};
use std::io::Read;
use std::path::Path;
use std::time::UNIX_EPOCH;

use super::map::Map;
use super::{ImageBytes, OpenError};

/// Longest map of a JIT compiler that is read, in bytes; a long run of node has some megabytes.
pub(crate) const MAX_JIT_MAP_BYTES: u64 = 256 << 20;

/// Most names of a directory that are read.
pub(crate) const MAX_LISTED: usize = 65_536;

/// Opens files as a target sees them. Outlives the target: names are made when it has gone.
pub trait Files: Send + Sync {
    /// The bytes of a regular file by its absolute path.
    ///
    /// # Errors
    /// Why it cannot be opened or mapped, without the path.
    fn open(&self, path: &str) -> Result<ImageBytes, OpenError>;

    /// The same on the system that the profiler runs on. For files that are certain to be the
    /// right ones by their content: a target with a root of its own (container, chroot) may
    /// not have the debug files of what it runs, and the system that started it may.
    ///
    /// # Errors
    /// Why it cannot be opened or mapped, without the path.
    fn open_outside(&self, _path: &str) -> Result<ImageBytes, OpenError> {
        Err(OpenError::Because("no such file or directory"))
    }

    /// When a file was changed last, in seconds since 1970; `None` if that cannot be told.
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

    /// What a JIT compiler in the target says of its code (`/tmp/perf-PID.map`), with its
    /// path; `None` if there is none.
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

/// The files as this process sees them.
#[derive(Debug, Default)]
pub struct LocalFiles;

impl Files for LocalFiles {
    fn open(&self, path: &str) -> Result<ImageBytes, OpenError> {
        map_regular(Path::new(path))
    }

    fn modified_s(&self, path: &str) -> Option<u64> {
        modified_s(&std::fs::metadata(path).ok()?)
    }

    fn list(&self, directory: &str) -> Vec<String> {
        list(Path::new(directory))
    }
}

/// When a file was changed last, in seconds since 1970.
pub(crate) fn modified_s(meta: &Metadata) -> Option<u64> {
    Some(meta.modified().ok()?.duration_since(UNIX_EPOCH).ok()?.as_secs())
}

/// The names in a directory.
pub(crate) fn list(directory: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let names = entries.flatten().take(MAX_LISTED).filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.collect();
    names.sort_unstable();
    names
}

/// Maps a regular file.
pub(crate) fn map_regular(path: &Path) -> Result<ImageBytes, OpenError> {
    Ok(ImageBytes::mapped(Map::new(open_regular(path)?)?))
}

/// The same without keeping it open.
pub(crate) fn map_regular_briefly(path: &Path) -> Result<ImageBytes, OpenError> {
    Ok(ImageBytes::mapped(Map::briefly(&open_regular(path)?)?))
}

/// Opens a regular file without waiting, as opening a pipe would.
pub(crate) fn open_regular(path: &Path) -> Result<File, OpenError> {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
    regular(options.open(path)?)
}

/// Passes a file on if it is a regular one.
pub(crate) fn regular(opened: File) -> Result<File, OpenError> {
    if opened.metadata()?.is_file() { Ok(opened) } else { Err(OpenError::NotRegular) }
}

/// Reads a file that others may write to while it is read: mapped, it would have to be refused then.
pub(crate) fn read_regular(file: &File, most: u64) -> Result<Vec<u8>, OpenError> {
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most { Err(OpenError::TooLong { bytes_max: most }) } else { Ok(bytes) }
}
