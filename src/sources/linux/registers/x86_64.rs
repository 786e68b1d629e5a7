//! Registers and system calls of a thread that runs code of x86_64.

use super::{EINTR, ERESTARTNOHAND, is_restartable};
use crate::arch::{Registers, X86_64};
use crate::sources::linux::sys::RawRegisters;

/// The call that a thread makes again.
#[derive(Debug, Default)]
pub(in crate::sources::linux) struct Calls {
    /// Where it stands before it has done so: address of the `syscall`, stack pointer, number of the call.
    again: Option<(u64, u64, u64)>,
}

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
///
/// On a busy machine a signal may come when the kernel has set the thread back before its `syscall`
/// (arch/x86/kernel/signal.c, `arch_do_signal_or_restart`) and it has not run since. Its handler would return there, and
/// the call wait on in spite of it: then the thread is put behind the call, with its EINTR.
pub(super) fn repair(raw: &mut RawRegisters, calls: &mut Calls, is_handled: impl FnOnce() -> bool) -> bool {
    const SYSCALL_BYTES: u64 = 2;
    if calls.again.is_some_and(|before| before == (raw.rip, raw.rsp, raw.rax)) {
        let is_undone = is_handled();
        if is_undone {
            calls.again = None;
            raw.rip = raw.rip.wrapping_add(SYSCALL_BYTES);
            raw.rax = EINTR.cast_unsigned();
            // The kernel is not to take it for a call that it may repeat.
            raw.orig_rax = u64::MAX;
        }
        return is_undone;
    }
    calls.again = None;
    let repairable =
        call_result(raw) == Some(EINTR) && is_restartable(raw.orig_rax.cast_signed()) && !is_handled();
    if repairable {
        calls.again = Some((raw.rip.wrapping_sub(SYSCALL_BYTES), raw.rsp, raw.orig_rax));
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
