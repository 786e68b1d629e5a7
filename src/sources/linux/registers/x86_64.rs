//! Registers and system calls of a thread that runs code of x86_64.

use super::{EINTR, ERESTARTNOHAND, is_restartable};
use crate::arch::{Registers, X86_64};
use crate::sources::linux::sys::RawRegisters;

/// The kernel keeps all that there is to know of a call.
#[derive(Debug, Default)]
pub(in crate::sources::linux) struct Calls {}

impl Calls {
    /// A thread that may be waiting is about to be asked to stop.
    pub(in crate::sources::linux) fn before_stop(&mut self, _tid: libc::pid_t) {}
}

/// Result of the system call that the thread is leaving, or `None` outside one.
pub(super) fn call_result(raw: &RawRegisters) -> Option<i64> {
    (raw.orig_rax.cast_signed() >= 0).then_some(raw.rax.cast_signed())
}

/// The result becomes ERESTARTNOHAND, with which the kernel repeats the call unless a handler
/// runs, and then returns the EINTR that the handler would cause.
pub(super) fn repair(raw: &mut RawRegisters, _calls: &mut Calls, is_handled: impl FnOnce() -> bool) -> bool {
    let repairable =
        call_result(raw) == Some(EINTR) && is_restartable(raw.orig_rax.cast_signed()) && !is_handled();
    if repairable {
        raw.rax = ERESTARTNOHAND.cast_unsigned();
    }
    repairable
}

/// Calls beside [`super::RESTARTABLE`]: one that other processors lack, and one that `libc` does not name.
pub(super) const RESTARTABLE_HERE: [i64; 2] = [libc::SYS_epoll_wait, 333 /* io_pgetevents */];

/// The engine's registers.
pub(super) fn convert(raw: &RawRegisters) -> Registers {
    let gpr = [
        raw.rax, raw.rdx, raw.rcx, raw.rbx, raw.rsi, raw.rdi, raw.rbp, raw.rsp, raw.r8, raw.r9, raw.r10,
        raw.r11, raw.r12, raw.r13, raw.r14, raw.r15,
    ];
    Registers::X86_64(X86_64 { gpr, rip: raw.rip, fs_base: raw.fs_base })
}
