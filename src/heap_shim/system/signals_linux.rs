//! Signals on Linux: which handlers the program installs, and how those are held back that could interrupt the writing
//! of a record.
#![allow(unsafe_code)]

use super::{call, number};
use crate::process::{enter_seccomp, is_filtered};
use core::ptr::null;
use core::sync::atomic::{AtomicBool, Ordering};

/// Signals of faults: SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV, SIGSYS. Their handlers always run.
const FAULTS: u64 = 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 10 | 1 << 30;

/// The program has installed a handler of another signal. Most that are no servers have none.
static HAS_HANDLERS: AtomicBool = AtomicBool::new(false);

/// The program sets the action of a signal, whose first word is the handler, SIG_DFL (0) or SIG_IGN (1).
///
/// # Safety
/// Null, or an action of sigaction(2).
pub unsafe extern "C" fn set_action(signal: i32, action: *const usize) {
    // SAFETY: `struct sigaction` begins with the handler in every libc of these processors.
    set_handler(signal, if action.is_null() { 0 } else { unsafe { *action } });
}

/// The program sets the handler of a signal.
pub extern "C" fn set_handler(signal: i32, handler: usize) {
    let is_of_fault = (1..=64).contains(&signal) && FAULTS >> (signal - 1) & 1 != 0;
    if handler > 1 && !is_of_fault {
        HAS_HANDLERS.store(true, Ordering::Relaxed);
    }
}

/// The program makes a system call that may set the action of a signal or restrict its calls.
///
/// # Safety
/// Its arguments are valid.
pub unsafe extern "C" fn observe_syscall(number: usize, signal: i32, action: *const usize) {
    if number == number::RT_SIGACTION {
        // SAFETY: the kernel's action begins with the handler, too.
        unsafe { set_action(signal, action) };
    } else {
        enter_seccomp();
    }
}

/// Blocks signals while it lives: a handler that leaves by `longjmp` or allocates would find a half-written
/// record. Without handlers there is nothing to block, and no system call.
pub struct BlockedSignals(Option<u64>);

impl BlockedSignals {
    /// Blocks signals.
    pub fn new() -> Self {
        const SIG_BLOCK: usize = 0;
        let (blocked, mut before) = (!FAULTS, 0u64);
        if is_filtered() || !HAS_HANDLERS.load(Ordering::Relaxed) {
            return Self(None);
        }
        call!(RT_SIGPROCMASK, SIG_BLOCK, &raw const blocked, &raw mut before, size_of::<u64>());
        Self(Some(before))
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        const SIG_SETMASK: usize = 2;
        if let Some(before) = &self.0 {
            call!(RT_SIGPROCMASK, SIG_SETMASK, &raw const *before, null::<u64>(), size_of::<u64>());
        }
    }
}
