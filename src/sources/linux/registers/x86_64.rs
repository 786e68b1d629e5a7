//! Registers and system calls of a thread that runs code of x86_64.

use super::{EINTR, ERESTARTNOHAND};
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
        call_result(raw) == Some(EINTR) && RESTARTABLE.contains(&raw.orig_rax.cast_signed()) && !is_handled();
    if repairable {
        raw.rax = ERESTARTNOHAND.cast_unsigned();
    }
    repairable
}

/// Calls that return EINTR only before they did anything: repeating them is safe.
/// Sockets are here for those with SO_RCVTIMEO or SO_SNDTIMEO.
const RESTARTABLE: [i64; 18] = [
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_io_getevents,
    333, // io_pgetevents
    libc::SYS_io_uring_enter,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
];

/// The engine's registers.
pub(super) fn convert(raw: &RawRegisters) -> Registers {
    let gpr = [
        raw.rax, raw.rdx, raw.rcx, raw.rbx, raw.rsi, raw.rdi, raw.rbp, raw.rsp, raw.r8, raw.r9, raw.r10,
        raw.r11, raw.r12, raw.r13, raw.r14, raw.r15,
    ];
    Registers::X86_64(X86_64 { gpr, rip: raw.rip, fs_base: raw.fs_base })
}
