//! Registers and system calls of a thread that runs x86_64 code.

use super::restart::{EINTR, ERESTART_RESTARTBLOCK, ERESTARTNOHAND, is_restartable};
use crate::arch::{Registers, X86_64};
use crate::sources::linux::sys::RawRegisters;
use crate::sources::linux::timed_wait::{TimedWait, WaitCall};

/// The call that a thread makes again.
#[derive(Debug, Default)]
pub(in crate::sources::linux) struct Calls {
    /// Where it is before the restart: address of the `syscall`, stack pointer, number of the call.
    again: Option<(u64, u64, u64)>,
}

impl Calls {
    /// A thread that may be waiting gets a stop request.
    pub(in crate::sources::linux) fn before_stop(&mut self, _tid: libc::pid_t) {}

    /// A thread will restart the call that it is stopped after: where it will be then.
    pub(super) fn makes_again(&mut self, pc: u64, sp: u64, number: u64) {
        self.again = Some((pc.wrapping_sub(CALL_BYTES), sp, number));
    }

    /// Whether the thread is about to restart a call that a running handler has to end. Call it once per stop.
    ///
    /// On a busy machine a signal may come after the kernel has set the thread back before its call
    /// (arch/x86/kernel/signal.c, `arch_do_signal_or_restart`) and before it ran. Its handler would return there, and
    /// the call would wait on in spite of it: the thread has to be put after the call, with EINTR.
    pub(super) fn ends_before(
        &mut self,
        at: (u64, u64, u64),
        is_handled: impl FnOnce() -> bool,
    ) -> RestartState {
        if self.again != Some(at) {
            self.again = None;
            return RestartState::Elsewhere;
        }
        if !is_handled() {
            return RestartState::GoesOn;
        }
        self.again = None;
        RestartState::Ends
    }
}

/// Where a thread is whose call was about to be restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RestartState {
    /// Not before that call.
    Elsewhere,
    /// Before it, and makes it.
    GoesOn,
    /// Before it, and a handler ends it.
    Ends,
}

/// Length of `syscall`, and of `int 0x80`, by which 32-bit code makes calls or which is where its vDSO returns
/// (arch/x86/entry/vdso/vdso32/system_call.S).
pub(super) const CALL_BYTES: u64 = 2;

/// Result of the system call that the thread is leaving, or `None` outside one.
pub(super) fn call_result(raw: &RawRegisters) -> Option<i64> {
    (raw.orig_rax.cast_signed() >= 0).then_some(raw.rax.cast_signed())
}

/// The result becomes ERESTARTNOHAND, with which the kernel repeats the call unless a handler
/// runs, and then returns the EINTR that the handler would cause.
pub(super) fn repair(
    raw: &mut RawRegisters,
    calls: &mut Calls,
    mut is_handled: impl FnMut() -> bool,
    mut is_filtered: impl FnMut() -> bool,
) -> bool {
    match calls.ends_before((raw.rip, raw.rsp, raw.rax), &mut is_handled) {
        RestartState::GoesOn => return false,
        RestartState::Ends => {
            raw.rip = raw.rip.wrapping_add(CALL_BYTES);
            raw.rax = EINTR.cast_unsigned();
            // The kernel is not to take it for a call that it may repeat.
            raw.orig_rax = u64::MAX;
            return true;
        }
        RestartState::Elsewhere => {}
    }
    let repairable = match call_result(raw) {
        Some(EINTR) => is_restartable(raw.orig_rax.cast_signed(), &RESTARTABLE_HERE) && !is_handled(),
        Some(ERESTART_RESTARTBLOCK) => !is_handled() && is_filtered(),
        _ => false,
    };
    if repairable {
        calls.makes_again(raw.rip, raw.rsp, raw.orig_rax);
        raw.rax = ERESTARTNOHAND.cast_unsigned();
    }
    repairable
}

/// Sets the result of the call that the thread is leaving.
pub(super) fn set_call_result(raw: &mut RawRegisters, result: i64) {
    raw.rax = result.cast_unsigned();
}

/// The call as one that waits for a relative time.
pub(super) fn timed_wait(raw: &RawRegisters) -> Option<TimedWait> {
    let call = match raw.orig_rax.cast_signed() {
        libc::SYS_nanosleep => WaitCall::Nanosleep,
        libc::SYS_clock_nanosleep => WaitCall::ClockNanosleep,
        libc::SYS_poll => WaitCall::Poll,
        libc::SYS_futex => WaitCall::Futex,
        libc::SYS_epoll_wait | libc::SYS_epoll_pwait => WaitCall::Epoll,
        libc::SYS_epoll_pwait2 => WaitCall::EpollTimespec,
        libc::SYS_semtimedop => WaitCall::Semaphore,
        _ => return None,
    };
    TimedWait::of(call, [raw.rdi, raw.rsi, raw.rdx, raw.r10], 8)
}

/// Calls beside [`super::RESTARTABLE`]: one that other processors lack, and one that `libc` does not name.
const RESTARTABLE_HERE: [i64; 2] = [libc::SYS_epoll_wait, 333 /* io_pgetevents */];

/// The engine's registers.
pub(super) fn convert(raw: &RawRegisters) -> Registers {
    let gpr = [
        raw.rax, raw.rdx, raw.rcx, raw.rbx, raw.rsi, raw.rdi, raw.rbp, raw.rsp, raw.r8, raw.r9, raw.r10,
        raw.r11, raw.r12, raw.r13, raw.r14, raw.r15,
    ];
    Registers::X86_64(X86_64 { gpr, rip: raw.rip, fs_base: raw.fs_base })
}
