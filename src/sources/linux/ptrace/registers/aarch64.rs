//! Registers and system calls of a thread that runs aarch64 code.

use super::syscall_restart::{CallSite, Calls};
use super::{EINTR, is_restartable};
use crate::arch::{Aarch64, Registers};
use crate::sources::linux::ptrace::sys::RawRegisters;
use crate::sources::linux::ptrace::timed_wait::TimedWait;

/// Length of `svc #0`.
const SVC_BYTES: u64 = 4;

/// The kernel has already prepared the restart when the stop is seen (arch/arm64/kernel/signal.c, do_signal),
/// so a restarting call looks like one that is about to be made; only EINTR is visible.
pub(super) fn call_result(raw: &RawRegisters) -> Option<i64> {
    let result = raw.regs[0].cast_signed();
    (result == EINTR).then_some(result)
}

/// Restarts the call; see [`Calls::make_again`].
pub(super) fn repair(
    raw: &mut RawRegisters,
    calls: &mut Calls,
    is_handled: impl FnOnce() -> bool,
    _is_filtered: impl FnOnce() -> bool,
) -> bool {
    let number = raw.regs[8].cast_signed();
    let at = CallSite { pc: raw.pc, sp: raw.sp, first: raw.regs[0], number, svc_bytes: SVC_BYTES };
    let fails = call_result(raw).is_some() && is_restartable(number, &RESTARTABLE_HERE);
    let Some((pc, first)) = calls.make_again(&at, fails, is_handled) else { return false };
    (raw.pc, raw.regs[0]) = (pc, first.unwrap_or(EINTR.cast_unsigned()));
    true
}

/// Sets the result of the call that the thread is leaving.
pub(super) fn set_call_result(raw: &mut RawRegisters, result: i64) {
    raw.regs[0] = result.cast_unsigned();
}

/// Not visible: a call that the kernel continues by `restart_syscall` looks like one that is about to be
/// made.
pub(super) fn timed_wait(_raw: &RawRegisters) -> Option<TimedWait> {
    None
}

/// The `Registers` of `arch`.
pub(super) fn convert(raw: &RawRegisters) -> Registers {
    Registers::Aarch64(Aarch64 { x: raw.regs, sp: raw.sp, pc: raw.pc })
}

/// A restartable call besides [`super::RESTARTABLE`], without a name in `libc`.
const RESTARTABLE_HERE: [i64; 1] = [292 /* io_pgetevents */];
