//! Signal dispositions, signal mask and closed standard streams at the start of this process.
//!
//! Rust's runtime ignores SIGPIPE, and opens `/dev/null` for closed standard streams. A launched command must
//! see both as they were. So a constructor, run by the system's loader before the runtime, reads them. It
//! only makes system calls and writes to atomics.
#![allow(unsafe_code)]

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU8, Ordering};

/// Closed standard streams: a bit for each descriptor.
static CLOSED: AtomicU8 = AtomicU8::new(0);

// SAFETY: the section is the platform's list of functions without arguments and result that run before
// `main`; `read` is such a function, and does not use Rust's runtime.
#[used]
#[cfg_attr(target_os = "linux", unsafe(link_section = ".init_array"))]
#[cfg_attr(target_vendor = "apple", unsafe(link_section = "__DATA,__mod_init_func"))]
static READ: extern "C" fn() = read;

extern "C" fn read() {
    for stream in 0..=2 {
        // SAFETY: F_GETFD takes a number, and fails for a descriptor that is closed.
        if unsafe { libc::fcntl(stream, libc::F_GETFD) } == -1 {
            CLOSED.fetch_or(1 << stream, Ordering::Relaxed);
        }
    }
    signals::read();
}

/// Whether standard output was closed: what is written to it is lost.
#[must_use]
pub fn is_stdout_closed() -> bool {
    was_closed(1)
}

/// Whether standard stream 0, 1 or 2 was closed.
pub(super) fn was_closed(stream: RawFd) -> bool {
    (0..=2).contains(&stream) && CLOSED.load(Ordering::Relaxed) >> stream & 1 == 1
}

pub(super) use signals::*;

/// Linux: uses the kernel's calls, since the C library reserves signals 32 and 33.
#[cfg(target_os = "linux")]
mod signals {
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Ignored signals: bit 0 is signal 1.
    static IGNORED: AtomicU64 = AtomicU64::new(0);
    /// Signals blocked in the first thread.
    static BLOCKED: AtomicU64 = AtomicU64::new(0);

    /// Bytes of the kernel's signal set.
    const SET_BYTES: usize = size_of::<u64>();
    const LAST: libc::c_int = 64;

    /// `struct sigaction` of the kernel (x86_64 and aarch64).
    #[repr(C)]
    #[derive(Default)]
    struct Action {
        handler: usize,
        flags: libc::c_ulong,
        restorer: usize,
        mask: u64,
    }

    pub(super) fn read() {
        let mut ignored = 0;
        for signal in 1..=LAST {
            let mut action = Action::default();
            let none = std::ptr::null::<Action>();
            // SAFETY: the kernel writes one of its `sigaction` into the live `action`.
            let failed =
                unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, none, &raw mut action, SET_BYTES) };
            if failed == 0 && action.handler == libc::SIG_IGN {
                ignored |= 1 << (signal - 1);
            }
        }
        IGNORED.store(ignored, Ordering::Relaxed);
        BLOCKED.store(set_mask(None), Ordering::Relaxed);
    }

    /// Sets the calling thread's signal mask, if given; returns the previous one. Allocates nothing.
    fn set_mask(mask: Option<u64>) -> u64 {
        let mut before = 0_u64;
        let new = mask.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the kernel reads a live set of the given size, or none, and writes one into `before`.
        unsafe {
            libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, new, &raw mut before, SET_BYTES);
        }
        before
    }

    /// Runs `body` with all signals blocked in the calling thread: a forked process handles none before
    /// [`restore_signals`].
    pub(crate) fn with_signals_blocked<R>(body: impl FnOnce() -> R) -> R {
        let before = set_mask(Some(u64::MAX));
        let result = body();
        set_mask(Some(before));
        result
    }

    /// Restores the dispositions of all signals and the calling thread's mask as this process was started
    /// with. For a new process between fork and `exec`: only makes system calls, does not allocate.
    pub(crate) fn restore_signals() {
        let ignored = IGNORED.load(Ordering::Relaxed);
        for signal in 1..=LAST {
            let was_ignored = ignored >> (signal - 1) & 1 == 1;
            let handler = if was_ignored { libc::SIG_IGN } else { libc::SIG_DFL };
            let action = Action { handler, ..Action::default() };
            let none = std::ptr::null_mut::<Action>();
            // SAFETY: the kernel reads one of its `sigaction` from the live `action`, which has no handler.
            // For SIGKILL and SIGSTOP the call fails and changes nothing.
            unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, &raw const action, none, SET_BYTES) };
        }
        set_mask(Some(BLOCKED.load(Ordering::Relaxed)));
    }
}

/// Other systems: SIGPIPE, the one signal that the runtime ignores.
#[cfg(not(target_os = "linux"))]
mod signals {
    use std::sync::atomic::{AtomicBool, Ordering};

    static PIPE_IGNORED: AtomicBool = AtomicBool::new(false);

    pub(super) fn read() {
        // SAFETY: all bytes zero are a `sigaction`; the call only writes to it.
        let ignored = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(libc::SIGPIPE, std::ptr::null(), &raw mut action) == 0
                && action.sa_sigaction == libc::SIG_IGN
        };
        PIPE_IGNORED.store(ignored, Ordering::Relaxed);
    }

    /// Whether SIGPIPE was ignored.
    pub(crate) fn was_pipe_ignored() -> bool {
        PIPE_IGNORED.load(Ordering::Relaxed)
    }
}
