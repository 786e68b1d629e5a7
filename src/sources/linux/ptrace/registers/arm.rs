//! Registers and system calls of a thread that runs 32-bit Arm code, on aarch64.

use super::EINTR;
use super::syscall_restart::{CallSite, Calls};
use crate::arch::{Arm, Registers};
use crate::sources::linux::ptrace::timed_wait::TimedWait;

/// r0 to r15, CPSR, and r0 before the system call (`COMPAT_ELF_NGREG` and `compat_gpr_get` of
/// arch/arm64/kernel/ptrace.c).
pub(super) type Words = [u32; 18];

const CPSR: usize = 16;
/// The call's number (EABI).
const R7: usize = 7;
/// The T32 bit of the status register.
const STATUS_T32: u32 = 1 << 5;

/// As on aarch64, only EINTR is visible.
pub(super) fn call_result(words: &Words) -> Option<i64> {
    let result = i64::from(words[0].cast_signed());
    (result == EINTR).then_some(result)
}

/// Restarts the call; see [`Calls::make_again`].
pub(super) fn repair(
    words: &mut Words,
    calls: &mut Calls,
    is_handled: impl FnOnce() -> bool,
    _is_filtered: impl FnOnce() -> bool,
) -> bool {
    let svc_bytes = if words[CPSR] & STATUS_T32 != 0 { 2 } else { 4 };
    let number = i64::from(words[R7].cast_signed());
    let [first, sp, pc] = [0, Arm::SP, Arm::PC].map(|register| u64::from(words[register]));
    let at = CallSite { pc, sp, first, number, svc_bytes };
    let fails = call_result(words).is_some() && RESTARTABLE.contains(&number);
    let Some((pc, first)) = calls.make_again(&at, fails, is_handled) else { return false };
    // All are words of this thread, or sums that wrap like its addresses.
    words[Arm::PC] = pc as u32;
    words[0] = first.map_or((EINTR as i32).cast_unsigned(), |first| first as u32);
    true
}

/// Sets the result of the call that the thread is leaving.
pub(super) fn set_call_result(words: &mut Words, result: i64) {
    words[0] = (result as i32).cast_unsigned();
}

/// Not visible: a call that the kernel continues by `restart_syscall` looks like one that is about to be
/// made.
pub(super) fn timed_wait(_words: &Words) -> Option<TimedWait> {
    None
}

/// The `Registers` of `arch`.
pub(super) fn convert(words: &Words) -> Registers {
    let r = std::array::from_fn(|register| words[register].into());
    Registers::Arm(Arm { r, cpsr: Some(words[CPSR]), m_profile: false })
}

/// Numbers of aarch64's restartable calls in arch/arm/tools/syscall.tbl.
const RESTARTABLE: [i64; 23] = [
    252, // epoll_wait
    346, // epoll_pwait
    441, // epoll_pwait2
    298, // semop
    312, // semtimedop
    420, // semtimedop_time64
    177, // rt_sigtimedwait
    421, // rt_sigtimedwait_time64
    245, // io_getevents
    399, // io_pgetevents
    416, // io_pgetevents_time64
    426, // io_uring_enter
    285, // accept
    366, // accept4
    283, // connect
    291, // recv
    292, // recvfrom
    297, // recvmsg
    365, // recvmmsg
    417, // recvmmsg_time64
    289, // send
    290, // sendto
    296, // sendmsg
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_both_instruction_sets_are_restarted() {
        for (status, svc_bytes) in [(0x10, 4), (0x10 | STATUS_T32, 2)] {
            let mut words: Words = std::array::from_fn(|word| 0x100 * word as u32);
            (words[0], words[R7], words[CPSR]) = ((-4i32).cast_unsigned(), 252, status);
            let mut calls = Calls::default();
            assert!(!repair(&mut words, &mut calls, || false, || false), "it was not seen to wait");
            calls.waits_in(b"252 0x6 0x1 0x2 0x3 0x4 0x5 0xd00 0xf00");
            assert!(repair(&mut words, &mut calls, || false, || false));
            assert_eq!((words[0], words[Arm::PC]), (6, 0xf00 - svc_bytes));
            // close(2) has closed the descriptor when it returns EINTR.
            (words[0], words[R7], words[Arm::PC]) = ((-4i32).cast_unsigned(), 6, 0xf00);
            calls.waits_in(b"6 0x6 0x1 0x2 0x3 0x4 0x5 0xd00 0xf00");
            assert!(!repair(&mut words, &mut calls, || false, || false));
            assert_eq!(timed_wait(&words), None);
            set_call_result(&mut words, -110);
            assert_eq!(words[0].cast_signed(), -110);
        }
    }

    #[test]
    fn registers_are_in_dwarf_order() {
        let words: Words = std::array::from_fn(|word| word as u32);
        let Registers::Arm(registers) = convert(&words) else { panic!("32-bit Arm") };
        assert_eq!((registers.r[13], registers.r[15], registers.cpsr), (13, 15, Some(16)));
    }
}
