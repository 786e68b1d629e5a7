//! Thread number by which the system reports a thread's state.
#![allow(unsafe_code)]

/// The number of the calling thread.
#[cfg(target_os = "linux")]
pub(super) fn own_tid() -> i32 {
    // SAFETY: gettid(2) takes nothing and cannot fail.
    unsafe { libc::gettid() }
}

/// This system does not report a thread's state.
#[cfg(not(target_os = "linux"))]
pub(super) fn own_tid() -> i32 {
    -1
}
