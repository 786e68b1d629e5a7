//! The exits of the processes that a recording ends with.
//!
//! Input: pids. Output: whether all of them have ended.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use libc::{c_int, pid_t};

use super::super::ring::sys;
use crate::sources::linux::sys as linux_sys;

/// Poll interval without a descriptor that shows the end of a process, milliseconds.
const POLL_MS: u64 = 10;

/// Processes that have not ended yet.
pub(super) struct ProcessExits {
    /// Each with a descriptor that is readable after its end, if the kernel supports it.
    processes: Vec<(pid_t, Option<OwnedFd>)>,
    /// Descriptors that were readable at the last wait.
    readable: Vec<bool>,
    /// Whether there were none: the whole machine is recorded.
    is_system_wide: bool,
}

impl ProcessExits {
    /// For these processes; none for a whole machine.
    pub(super) fn of(pids: Vec<pid_t>) -> ProcessExits {
        let is_system_wide = pids.is_empty();
        let processes = pids.into_iter().map(|pid| (pid, sys::watch_end(pid).ok())).collect();
        ProcessExits { processes, readable: Vec::new(), is_system_wide }
    }

    /// Their pids.
    pub(super) fn pids(&self) -> Vec<pid_t> {
        self.processes.iter().map(|(pid, _)| *pid).collect()
    }

    fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        self.processes.iter().filter_map(|(_, end)| end.as_ref()).map(AsRawFd::as_raw_fd)
    }

    /// Waits until a process has ended, another descriptor is readable, or the timeout expires; returns whether it
    /// was not the timeout.
    pub(super) fn wait(&mut self, others: impl Iterator<Item = RawFd>, at_most_ms: u64) -> bool {
        let descriptors: Vec<RawFd> = self.descriptors().chain(others).collect();
        let at_most_ms = c_int::try_from(at_most_ms).unwrap_or(c_int::MAX);
        sys::wait_readable(&descriptors, at_most_ms, &mut self.readable);
        self.readable.contains(&true)
    }

    /// Waits until a process has ended, or the timeout expires.
    pub(super) fn wait_alone(&mut self, at_most_ms: u64) {
        let is_polled = self.descriptors().count() < self.processes.len();
        self.wait(std::iter::empty(), if is_polled { at_most_ms.min(POLL_MS) } else { at_most_ms });
    }

    /// Whether all processes have ended, by the last wait.
    pub(super) fn all_exited(&mut self) -> bool {
        let mut watched = self.readable.iter();
        self.processes.retain(|(pid, end)| match end {
            Some(_) => watched.next() != Some(&true),
            None => linux_sys::kill(*pid, 0).is_ok() && linux_sys::child_end(*pid).is_none(),
        });
        self.readable.clear();
        !self.is_system_wide && self.processes.is_empty()
    }
}
