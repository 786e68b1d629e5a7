//! Opens an address or a file in the user's browser: `xdg-open`, or `open` on macOS.
//!
//! `write` makes the file that only its user can read.
//!
//! Under sudo the browser runs as the user who called it, and never as root. It has a separate process group,
//! so that Ctrl-C ends only the profiler.
#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::loopback;
use crate::sources::output::Caller;

/// The program that opens files and addresses.
const OPENER: &str = if cfg!(target_vendor = "apple") { "open" } else { "xdg-open" };

/// Why no browser was started.
#[derive(Debug)]
pub enum NotOpened {
    /// This process is root without sudo.
    Root,
    /// The program could not be run.
    Failed(io::Error),
    /// The program found nothing to open it with.
    Ended(i32),
}

impl std::fmt::Display for NotOpened {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NotOpened::Root => f.write_str("no browser is started as root"),
            NotOpened::Failed(error) => write!(f, "{OPENER}: {}", crate::error::io_text(error)),
            NotOpened::Ended(status) => {
                write!(f, "no browser was started: {OPENER} ended with status {status}")
            }
        }
    }
}

impl std::error::Error for NotOpened {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            NotOpened::Root | NotOpened::Ended(_) => None,
            NotOpened::Failed(error) => Some(error),
        }
    }
}

/// Whether a status of the opener says that nothing was opened: those of xdg-open(1), and of a shell. A browser may be
/// the opener itself, and ends with any other.
fn is_refusal(status: i32) -> bool {
    matches!(status, 1..=4 | 126 | 127)
}

/// Is called if the opener turns out to have opened nothing.
pub type Failed = Box<dyn FnOnce(NotOpened) + Send>;

/// Disconnected once the opener has ended.
pub type Opening = std::sync::mpsc::Receiver<()>;

/// Opens it; returns once the opener was started.
///
/// # Errors
/// Why no browser was started.
#[cfg(unix)]
pub fn open(what: &OsStr, failed: Failed) -> Result<Opening, NotOpened> {
    use std::os::unix::process::CommandExt;
    let mut command = Command::new(OPENER);
    command.arg(what).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    if is_root() {
        let caller = Caller::of_this_process().ok_or(NotOpened::Root)?;
        command.uid(caller.uid()).gid(caller.gid());
    }
    if let Some(uid) = behind_sudo() {
        take_environment(&mut command, uid);
    }
    let mut child = crate::sources::spawn_as_we_began(&mut command).map_err(NotOpened::Failed)?;
    // The opener exits when it has passed the address on, or with the browser.
    let (ended, opening) = std::sync::mpsc::channel();
    let wait = move || {
        let status = child.wait().ok().and_then(|status| status.code());
        if let Some(status) = status.filter(|status| is_refusal(*status)) {
            failed(NotOpened::Ended(status));
        }
        drop(ended);
    };
    let _ = std::thread::Builder::new().name("browser".to_owned()).spawn(wait);
    Ok(opening)
}

/// Opens an address that contains a secret. Everybody can read a program's arguments. On Linux the address is
/// of no use to other users, since their connections are refused; other systems pass it in a private file.
///
/// # Errors
/// Why no browser was started.
#[cfg(target_os = "linux")]
pub fn open_address(address: &OsStr, failed: Failed) -> Result<Opening, NotOpened> {
    open(address, failed)
}

/// Opens an address that contains a secret. Everybody can read a program's arguments, so the browser gets it
/// from a file that only this user can read.
///
/// # Errors
/// Why no browser was started.
#[cfg(not(target_os = "linux"))]
pub fn open_address(address: &OsStr, failed: Failed) -> Result<Opening, NotOpened> {
    let address = address.to_string_lossy();
    let escaped = address.replace('&', "&amp;").replace('"', "&quot;").replace('<', "&lt;");
    let page = format!("<!doctype html><meta http-equiv=\"refresh\" content=\"0;url={escaped}\">\n");
    let path = write("open.html", page.as_bytes()).map_err(NotOpened::Failed)?;
    open(path.as_os_str(), failed)
}

/// There is no opener for this system.
///
/// # Errors
/// Always.
#[cfg(not(unix))]
pub fn open(_what: &OsStr, _failed: Failed) -> Result<Opening, NotOpened> {
    Err(NotOpened::Failed(io::ErrorKind::Unsupported.into()))
}

#[cfg(unix)]
fn is_root() -> bool {
    effective_uid() == 0
}

#[cfg(unix)]
fn effective_uid() -> u32 {
    // SAFETY: the call takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

/// The user who called sudo, for whom this process or the calling thread acts.
#[cfg(unix)]
fn behind_sudo() -> Option<u32> {
    let uid = std::env::var("SUDO_UID").ok()?.parse().ok()?;
    let acts_for = match effective_uid() {
        0 => Caller::of_this_process()?.uid(),
        own => own,
    };
    (acts_for == uid).then_some(uid)
}

/// sudo has set root's environment; a browser needs the user's.
#[cfg(unix)]
fn take_environment(command: &mut Command, uid: u32) {
    let directory = format!("/run/user/{uid}");
    if std::path::Path::new(&directory).is_dir() {
        command.env("DBUS_SESSION_BUS_ADDRESS", format!("unix:path={directory}/bus"));
        command.env("XDG_RUNTIME_DIR", directory);
    }
    if let Some(name) = std::env::var_os("SUDO_USER") {
        command.env("USER", &name).env("LOGNAME", name);
    }
    let accounts = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    if let Some(home) = home_in(&accounts, uid) {
        command.env("HOME", home);
    }
}

/// The home of a user in the lines of /etc/passwd.
#[cfg(unix)]
fn home_in(accounts: &str, uid: u32) -> Option<&str> {
    accounts.lines().find_map(|line| {
        let mut fields = line.split(':').skip(2);
        let is_it = fields.next()?.parse() == Ok(uid);
        fields.nth(2).filter(|home| is_it && home.starts_with('/'))
    })
}

// ---- A file that only its user can read, in a private directory, for a browser to open.

/// Writes a file in a new temporary directory; it stays there for the browser.
///
/// # Errors
/// The system's error.
pub fn write(name: &str, content: &[u8]) -> io::Result<PathBuf> {
    // The name is unguessable, and an existing directory is refused.
    let directory = std::env::temp_dir().join(format!("stackprof-{}", loopback::token()?));
    let mut builder = DirBuilder::new();
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    {
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    }
    builder.create(&directory)?;
    let path = directory.join(name);
    options.open(&path)?.write_all(content)?;
    Ok(path)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn statuses_of_the_opener_are_told_from_those_of_a_browser() {
        let refusals: Vec<i32> = (0..=255).filter(|status| is_refusal(*status)).collect();
        assert_eq!(refusals, [1, 2, 3, 4, 126, 127]);
        assert!(NotOpened::Ended(3).to_string().starts_with("no browser was started: "));
    }

    #[test]
    fn finds_the_home_of_the_user() {
        let accounts = "root:x:0:0:root:/root:/bin/sh\nbroken\nann:x:1000:1000:A,,:/home/ann:/bin/sh\n";
        assert_eq!(home_in(accounts, 1000), Some("/home/ann"));
        assert_eq!(home_in(accounts, 0), Some("/root"));
        assert_eq!(home_in(accounts, 7), None);
    }
}

#[cfg(all(test, unix))]
mod private_file_tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_the_owner_can_read_it() {
        let path = write("x.html", b"text").expect("written");
        let mode = |path: &std::path::Path| path.metadata().expect("there").permissions().mode() & 0o777;
        let directory = path.parent().expect("a directory");
        assert_eq!((mode(&path), mode(directory)), (0o600, 0o700));
        std::fs::remove_dir_all(directory).expect("removed");
    }
}
