//! Registers and system calls of a thread that runs x86_64 code.

use super::{EINTR, ERESTART_RESTARTBLOCK, ERESTARTNOHAND, is_restartable};
use crate::arch::{Registers, X86_64};
use crate::sources::linux::ptrace::sys::RawRegisters;
use crate::sources::linux::ptrace::timed_wait::{TimedWait, WaitCall};

/// The call that a thread restarts.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    /// State before the restart: address of the `syscall`, stack pointer, call number.
    again: Option<(u64, u64, u64)>,
}

impl Calls {
    /// Called before a stop request to a thread that may be waiting.
    pub(crate) fn before_stop(&mut self, _tid: libc::pid_t) {}

    /// Records that a thread will restart the call that it is stopped after, and its state then.
    pub(super) fn makes_again(&mut self, pc: u64, sp: u64, number: u64) {
        self.again = Some((pc.wrapping_sub(CALL_BYTES), sp, number));
    }

    /// Whether the thread is about to restart a call that a handler has to end. Must be called once per stop.
    ///
    /// On a busy machine a signal may arrive after the kernel has reset the thread to its call
    /// (arch/x86/kernel/signal.c, `arch_do_signal_or_restart`) and before it ran. Its handler would return
    /// there, and the call would wait on in spite of it: the thread has to be put after the call, with EINTR.
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

/// State of a thread with a call about to be restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RestartState {
    /// Not at that call.
    Elsewhere,
    /// At the call, and makes it.
    GoesOn,
    /// At the call, and a handler ends it.
    Ends,
}

/// Length of `syscall`, and of `int 0x80`, which 32-bit code uses directly or as the return point of its vDSO
/// (arch/x86/entry/vdso/vdso32/system_call.S).
pub(super) const CALL_BYTES: u64 = 2;

/// Result of the system call that the thread is leaving, or `None` outside one.
pub(super) fn call_result(raw: &RawRegisters) -> Option<i64> {
    (raw.orig_rax.cast_signed() >= 0).then_some(raw.rax.cast_signed())
}

/// Sets the result to ERESTARTNOHAND: the kernel then repeats the call, or returns EINTR if a handler runs.
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
            // Keeps the kernel from treating it as a restartable call.
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

/// The call as a wait with a relative timeout.
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

/// Restartable calls besides [`super::RESTARTABLE`]: one that other processors lack, and one without a name
/// in `libc`.
const RESTARTABLE_HERE: [i64; 2] = [libc::SYS_epoll_wait, 333 /* io_pgetevents */];

/// The `Registers` of `arch`.
pub(super) fn convert(raw: &RawRegisters) -> Registers {
    let gpr = [
        raw.rax, raw.rdx, raw.rcx, raw.rbx, raw.rsi, raw.rdi, raw.rbp, raw.rsp, raw.r8, raw.r9, raw.r10,
        raw.r11, raw.r12, raw.r13, raw.r14, raw.r15,
    ];
    Registers::X86_64(X86_64 { gpr, rip: raw.rip, fs_base: raw.fs_base })
}
