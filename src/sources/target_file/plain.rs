//! Opening without O_PATH: examined by name, opened without blocking, then compared.
#![allow(unsafe_code)]

use std::fs::OpenOptions;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::binary::OpenError;

use super::file::{About, TargetFile, cannot_open};

/// Opens a regular file. If a pipe replaces it before the open, the open does not block.
pub(super) fn open(path: &Path, follow: bool) -> Result<TargetFile, OpenError> {
    let before = if follow { std::fs::metadata(path)? } else { std::fs::symlink_metadata(path)? };
    if before.is_symlink() {
        return Err(OpenError::Source("a symbolic link; not followed"));
    }
    if !before.is_file() {
        return Err(OpenError::NotRegular);
    }
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(cannot_open)?;
    let meta = file.metadata()?;
    if !meta.is_file() || (meta.dev(), meta.ino()) != (before.dev(), before.ino()) {
        return Err(OpenError::Source("another file took its place meanwhile"));
    }
    let may_hang = !is_local(&file);
    Ok(TargetFile { file, about: About::from(&meta), may_hang })
}

/// Whether a file is on storage of this machine.
#[cfg(target_vendor = "apple")]
fn is_local(file: &std::fs::File) -> bool {
    use std::os::fd::AsRawFd;
    // SAFETY: all bytes zero are a `statfs`; the call only writes to it.
    let (result, about) = unsafe {
        let mut about: libc::statfs = std::mem::zeroed();
        (libc::fstatfs(file.as_raw_fd(), &raw mut about), about)
    };
    result == 0 && about.f_flags & libc::MNT_LOCAL as u32 != 0
}

/// Other systems do not report it, and record nothing.
#[cfg(not(target_vendor = "apple"))]
fn is_local(_: &std::fs::File) -> bool {
    true
}
