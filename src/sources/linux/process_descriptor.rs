//! Whether a process that was found by its name is the one that was attached to: its id may be another process's by
//! then. A descriptor (pidfd_open(2)) stays that of one process: it is opened when the name is found, and checked when
//! the process is attached to. Without one (Linux before 5.3, a seccomp filter) nothing is known.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use super::sys;
use crate::error::{Error, ErrorKind, Result};

static DESCRIPTORS: Mutex<Vec<ProcessDescriptor>> = Mutex::new(Vec::new());

/// A process, by its id and a descriptor.
#[derive(Debug)]
struct ProcessDescriptor {
    pid: u32,
    process: OwnedFd,
}

impl ProcessDescriptor {
    /// Whether the id belongs to another process. One that has ended keeps its id until its parent knows.
    fn is_replaced(&self) -> bool {
        sys::is_reaped(&self.process) && Path::new(&format!("/proc/{}", self.pid)).exists()
    }
}

/// Remembers the process that now has an id; the caller looks the name up once more afterwards.
pub fn remember_process(pid: u32) {
    let process = pid.try_into().ok().and_then(|pid| sys::open_process(pid).ok());
    let descriptor = process.map(|process| ProcessDescriptor { pid, process });
    DESCRIPTORS.lock().unwrap_or_else(PoisonError::into_inner).extend(descriptor);
}

/// Checks that an id still belongs to the process that was remembered, if one was.
///
/// # Errors
/// One line: it belongs to another one.
pub fn check_process(pid: u32) -> Result<()> {
    let processes = DESCRIPTORS.lock().unwrap_or_else(PoisonError::into_inner);
    if processes.iter().any(|process| process.pid == pid && process.is_replaced()) {
        let why =
            format!("the process of that name has ended, and pid {pid} is another one; run stackprof again");
        return Err(Error::new(ErrorKind::Attach, why));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn the_id_of_a_process_that_ended_can_belong_to_another_one() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let process = sys::open_process(child.id().cast_signed()).unwrap();
        let mut descriptor = ProcessDescriptor { pid: child.id(), process };
        assert!(!descriptor.is_replaced(), "it runs");
        drop(child.stdin.take());
        child.wait().unwrap();
        // As if this process had got its id.
        descriptor.pid = std::process::id();
        assert!(descriptor.is_replaced());
        descriptor.pid = u32::MAX;
        assert!(!descriptor.is_replaced(), "nothing has the id");
    }
}
