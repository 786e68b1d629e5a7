//! System calls that std lacks: waiting for a descriptor for less than a millisecond, and ending a process
//! group.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// Waits up to `at_most` until `fd` is readable or its other end is closed; returns whether it is. A signal
/// ends the wait early.
pub(super) fn wait_readable(fd: BorrowedFd<'_>, at_most: Duration) -> bool {
    let mut polled = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    poll(&mut polled, at_most) > 0
}

#[cfg(target_os = "linux")]
fn poll(polled: &mut libc::pollfd, at_most: Duration) -> libc::c_int {
    let timeout = libc::timespec {
        tv_sec: libc::time_t::try_from(at_most.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: at_most.subsec_nanos().into(),
    };
    // SAFETY: one initialised pollfd is passed as one, and the timeout is live; no signal mask is
    // given.
    unsafe { libc::ppoll(polled, 1, &raw const timeout, std::ptr::null()) }
}

#[cfg(not(target_os = "linux"))]
fn poll(polled: &mut libc::pollfd, at_most: Duration) -> libc::c_int {
    // Rounded up, so that a wait is never a busy loop.
    let at_most_ms = at_most.as_micros().div_ceil(1_000);
    let at_most_ms = libc::c_int::try_from(at_most_ms).unwrap_or(libc::c_int::MAX);
    // SAFETY: one initialised pollfd is passed as one.
    unsafe { libc::poll(polled, 1, at_most_ms) }
}

/// Sends SIGTERM to the process group of a child of ours.
pub(super) fn end_group(group: u32) {
    let Ok(group) = libc::pid_t::try_from(group) else { return };
    if group > 1 {
        // SAFETY: kill(2) takes two numbers and touches no memory of ours. The group's leader is an unreaped
        // child, so its number cannot be reused.
        unsafe { libc::kill(-group, libc::SIGTERM) };
    }
}
