//! By which number the system tells what a thread does.
#![allow(unsafe_code)]

/// The number of the calling thread.
#[cfg(target_os = "linux")]
pub(super) fn own_tid() -> i32 {
    // SAFETY: gettid(2) takes nothing and cannot fail.
    unsafe { libc::gettid() }
}

/// No number by which the system tells what a thread does.
#[cfg(not(target_os = "linux"))]
pub(super) fn own_tid() -> i32 {
    -1
}
