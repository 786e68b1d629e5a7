//! Programs that tests put somewhere to run them.
//!
//! Another process writes them: a file open for writing here could be inherited by what another test starts at
//! that moment, and a program that somebody can write to cannot be run.
#![allow(dead_code, reason = "each test uses a part")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Copies a program, for everybody to run.
pub(crate) fn copy_program(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg(from).arg(to).output().unwrap();
    assert!(copied.status.success(), "{copied:?}");
    fs::set_permissions(to, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Makes a script of this text, with these permissions.
pub(crate) fn write_script(path: &Path, text: &str, mode: u32) {
    let beside = tempfile::NamedTempFile::new().unwrap();
    fs::write(beside.path(), text).unwrap();
    copy_program(beside.path(), path);
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}
