//! Opens files that a target names: images, debug files, object files, maps and dumps of JIT compilers. Input: a path
//! that the target controls, hostile. Output: an open regular file, or why not.
//!
//! A path is resolved below the target's root (`resolve.rs`). Its type is checked before it
//! is opened: only regular files, of file systems that hold files (`file_system.rs`), are opened, never a
//! pipe, device or socket. This runs in a worker thread with a time limit (`wait.rs`), which also copies
//! files whose pages may never come; or in a forked child where a hanging thread could not be ended (`apart.rs`).
//! Not for: files that the user names, and files of /proc that the profiler names.

mod local;
mod own_tid;
mod wait;

#[cfg(target_os = "linux")]
mod apart;
mod file;
#[cfg(target_os = "linux")]
mod file_system;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod plain;
#[cfg(target_os = "linux")]
mod resolve;

pub(super) use file::TargetFile;
#[cfg(target_os = "linux")]
pub(super) use linux::{Root, open_linked, own_root};
pub use local::LocalFiles;
pub(super) use local::with_local;
#[cfg(target_os = "linux")]
pub(super) use resolve::Links;
#[cfg(target_os = "linux")]
pub(super) use wait::end_idle_workers;
pub(super) use wait::{Copying, Patience, Place};
