//! Processes of a command that run on when it has ended, by /proc.
//!
//! A recorded process maps files of the recording's directory, or passes its path on in its environment. One that has made
//! itself undumpable (ssh-agent) shows neither: it counts if it belongs to this user and began after this process.

use std::{fs, io};

use crate::sources::linux::{proc, sys};
use crate::sources::proc_file;

/// Number of other processes that have a text in their environment or among their mappings, or may have.
pub(super) fn count(text: &[u8]) -> usize {
    let Ok(entries) = fs::read_dir("/proc") else { return 0 };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let own = std::process::id();
    let begun = start_time(own);
    pids.filter(|pid: &u32| *pid != own && is_survivor(*pid, text, begun)).count()
}

fn is_survivor(pid: u32, text: &[u8], begun: Option<u64>) -> bool {
    let directory = format!("/proc/{pid}");
    let found = ["environ", "maps"].map(|name| proc_file::contains(format!("{directory}/{name}"), text));
    let is_denied = |found: &io::Result<bool>| {
        found.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
    };
    if found.iter().any(|found| matches!(found, Ok(true))) {
        return true;
    }
    found.iter().any(is_denied) && is_own(&directory) && start_time(pid) > begun
}

/// Whether a process belongs to this user.
fn is_own(directory: &str) -> bool {
    let status = fs::read_to_string(format!("{directory}/status")).unwrap_or_default();
    let users = proc::status_value(&status, "Uid").unwrap_or_default();
    users.split_whitespace().next().and_then(|user| user.parse().ok()) == Some(sys::effective_uid())
}

/// When a process began, in ticks since the system's start.
fn start_time(pid: u32) -> Option<u64> {
    proc::stat_start_ticks(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn processes_with_the_text_in_their_environment_are_counted() {
        let text = format!("stackprof-heap-of-{}", std::process::id());
        let mut sleep = std::process::Command::new("sleep");
        let mut child = sleep.arg("600").env("OF_ANY_NAME", &text).spawn().unwrap();
        while count(text.as_bytes()) == 0 {
            std::thread::yield_now();
        }
        child.kill().and_then(|()| child.wait()).unwrap();
        assert!(is_own(&format!("/proc/{}", std::process::id())));
        assert!(start_time(std::process::id()) > start_time(1));
    }
}
