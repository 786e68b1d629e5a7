//! Opens files that a target names: images, debug files, object files, maps and dumps of JIT compilers.
//! Input: a hostile path from the target. Output: an open regular file, or an error.
//!
//! A path is resolved below the target's root (`linux.rs`). The type is checked before the open: only
//! regular files on file systems for files (`file_system.rs`) are opened, never a pipe, device or socket.
//! This runs in a worker thread with a time limit (`wait.rs`), which also copies files with pages that may
//! never arrive; or in a forked child if a hanging thread could not be ended (`child_process.rs`). Not for files that
//! the user names, nor for files of /proc that the profiler names.

mod own_tid;
mod wait;

#[cfg(target_os = "linux")]
mod child_process;
mod file;
#[cfg(target_os = "linux")]
mod file_system;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod plain;

#[cfg(target_os = "linux")]
pub(super) use self::linux::Links;
pub use file::LocalFiles;
#[cfg(target_os = "linux")]
pub(super) use file::TargetFile;
pub(super) use file::{LocalReader, with_local};
#[cfg(target_os = "linux")]
pub(super) use linux::{Root, open_linked, own_root};
#[cfg(target_os = "linux")]
pub(super) use wait::{Copying, end_idle_workers};
pub(super) use wait::{FileLocation, Patience};
