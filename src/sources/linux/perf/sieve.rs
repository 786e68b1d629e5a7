//! What keeps the samples of others from being copied: a program in the kernel, and the set of
//! processes that it refuses.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use libc::pid_t;

use super::{filter, sys};

/// Most processes that are refused by the kernel; the samples of further ones are copied, and thrown
/// away here.
const REFUSED_MAX: u32 = 16_384;

/// See the top of this file. Where the kernel takes no program, all samples come through.
#[derive(Debug, Default)]
pub(super) struct Sieve {
    program: Option<OwnedFd>,
    refused: Option<OwnedFd>,
}

impl Sieve {
    /// Lets the samples of one process through.
    pub(super) fn of_process(pid: pid_t) -> Sieve {
        let ours = pid_namespace("self");
        // One in a container, seen from another container, has no number for the program.
        let ours = ours.filter(|ours| {
            filter::numbers_all(*ours) || pid_namespace(&pid.to_string()).is_none_or(|its| its == *ours)
        });
        let program = ours.and_then(|ours| sys::load_program(&filter::of_process(pid, ours)).ok());
        Sieve { program, refused: None }
    }

    /// Lets the samples of all processes of our namespace through that were not refused.
    pub(super) fn unless_refused() -> Sieve {
        let made = pid_namespace("self").and_then(|namespace| {
            let refused = sys::create_set(REFUSED_MAX).ok()?;
            let program = sys::load_program(&filter::unless_in(refused.as_raw_fd(), namespace)).ok()?;
            Some(Sieve { program: Some(program), refused: Some(refused) })
        });
        made.unwrap_or_default()
    }

    /// Refuses a process from now on, or no longer: its number may be another one's now.
    pub(super) fn refuse(&self, pid: pid_t, refused: bool) {
        if let Some(set) = &self.refused {
            sys::change_set(set, pid.cast_unsigned(), refused);
        }
    }

    /// Lets an event take only what comes through.
    pub(super) fn put_before(&self, event: &OwnedFd) {
        if let Some(program) = &self.program {
            // Refused for one, it is refused for all.
            let _ = sys::set_filter(event, program);
        }
    }
}

/// Device and inode of the PID namespace of a process.
fn pid_namespace(pid: &str) -> Option<(u64, u64)> {
    let meta = fs::metadata(format!("/proc/{pid}/ns/pid")).ok()?;
    Some((meta.dev(), meta.ino()))
}
