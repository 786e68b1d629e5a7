//! Programs that tests create and run.
//!
//! Another process writes them: a descriptor open for writing here could be inherited by a child of a
//! concurrent test, and a program that is open for writing cannot be executed.
#![allow(dead_code, reason = "each test uses a part")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Copies a program, executable for everybody.
pub(crate) fn copy_program(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg(from).arg(to).output().unwrap();
    assert!(copied.status.success(), "{copied:?}");
    fs::set_permissions(to, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Creates a script with these permissions.
pub(crate) fn write_script(path: &Path, text: &str, mode: u32) {
    let beside = tempfile::NamedTempFile::new().unwrap();
    fs::write(beside.path(), text).unwrap();
    copy_program(beside.path(), path);
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Sends a signal (`INT`) to a process, or to a group by its negative number. By the shell's own `kill`: not every
/// system has the program.
#[track_caller]
pub(crate) fn kill(signal: &str, to: impl std::fmt::Display) {
    let to = to.to_string();
    let sent = Command::new("sh").args(["-c", "kill -s \"$0\" -- \"$1\"", signal, &to]).status().unwrap();
    assert!(sent.success(), "kill -s {signal} -- {to}");
}
