//! The kernel's register block as the engine's registers, and the repair of a system call
//! that our stop interrupted.

use libc::pid_t;

use super::sys::RawRegisters;
use crate::arch::Registers;

pub(super) use arch::Calls;

/// A stop found the thread in a system call that had begun to wait.
///
/// The kernel wakes a waiting thread for PTRACE_INTERRUPT as for a signal, and leaves
/// `-EINTR` or a restart code as the call's result while the thread stands in the stop
/// (kernel/signal.c, arch/*/kernel/signal.c).
pub(super) fn interrupted_call(raw: &RawRegisters) -> bool {
    arch::call_result(raw).is_some_and(|result| result == EINTR || RESTART_CODES.contains(&result))
}

/// Makes a call that would return `EINTR` because of our stop restart instead, if it is
/// one that changed nothing before it waited. Returns whether `raw` was changed and has
/// to be written back.
///
/// Most calls restart by themselves after a stop. The few listed in signal(7) under
/// "Interruption of system calls and library functions by stop signals" fail with EINTR:
/// these are made again, unless a handler of the target runs, which has to cause the EINTR.
///
/// To be asked at every stop that is not job control's; `is_handled` tells whether a signal is on its
/// way to the thread that runs a handler.
pub(super) fn repair_interrupted_call(
    raw: &mut RawRegisters,
    calls: &mut Calls,
    is_handled: impl FnOnce() -> bool,
) -> bool {
    arch::repair(raw, calls, is_handled)
}

const EINTR: i64 = -4;
const ERESTARTNOHAND: i64 = -514;
/// ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK (include/linux/errno.h).
const RESTART_CODES: [i64; 4] = [-512, -513, ERESTARTNOHAND, -516];

#[cfg(target_arch = "x86_64")]
mod arch {
    use super::{EINTR, ERESTARTNOHAND, RawRegisters, pid_t};

    /// The kernel keeps all that there is to know of a call.
    #[derive(Debug, Default)]
    pub(in super::super) struct Calls {}

    impl Calls {
        /// A thread that may be waiting is about to be asked to stop.
        pub(in super::super) fn before_stop(&mut self, _tid: pid_t) {}
    }

    /// Result of the system call that the thread is leaving, or `None` outside one.
    pub(super) fn call_result(raw: &RawRegisters) -> Option<i64> {
        (raw.orig_rax.cast_signed() >= 0).then_some(raw.rax.cast_signed())
    }

    /// The result becomes ERESTARTNOHAND, with which the kernel repeats the call unless a handler
    /// runs, and then returns the EINTR that the handler would cause.
    pub(super) fn repair(
        raw: &mut RawRegisters,
        _calls: &mut Calls,
        is_handled: impl FnOnce() -> bool,
    ) -> bool {
        let repairable = call_result(raw) == Some(EINTR)
            && RESTARTABLE.contains(&raw.orig_rax.cast_signed())
            && !is_handled();
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
}

#[cfg(target_arch = "aarch64")]
mod arch {
    use std::fs;

    use super::super::proc;
    use super::{EINTR, RawRegisters, pid_t};
    use crate::addr::Avma;

    /// What has to be known of a thread's calls beside its registers.
    #[derive(Debug, Default)]
    pub(in super::super) struct Calls {
        /// In which call it waited before it was asked to stop.
        waits: Option<proc::Waiting>,
        /// Program counter and first argument that a call was made again with.
        made_again: Option<(u64, u64)>,
    }

    impl Calls {
        /// A thread that may be waiting is about to be asked to stop.
        pub(in super::super) fn before_stop(&mut self, tid: pid_t) {
            self.waits = fs::read(format!("/proc/{tid}/syscall")).ok().and_then(|text| proc::waiting(&text));
        }
    }

    /// The kernel has already prepared the restart when the stop is seen
    /// (arch/arm64/kernel/signal.c, do_signal), so a restarting call looks like one that
    /// is about to be made; only EINTR shows.
    pub(super) fn call_result(raw: &RawRegisters) -> Option<i64> {
        let result = raw.regs[0].cast_signed();
        (result == EINTR).then_some(result)
    }

    /// Length of `svc #0`.
    const SVC_BYTES: u64 = 4;

    /// The result has overwritten the first argument, and the kernel asks no more what it is. So a
    /// thread that was seen to wait is set back to before its `svc`, with the argument that it
    /// waited with. A handler would then return there, and not to an EINTR. Of each signal the tracer
    /// is told before its handler runs: then that is undone.
    pub(super) fn repair(
        raw: &mut RawRegisters,
        calls: &mut Calls,
        is_handled: impl FnOnce() -> bool,
    ) -> bool {
        let waited = calls.waits.take();
        if let Some((pc, first)) = calls.made_again
            && (pc, first) == (raw.pc, raw.regs[0])
        {
            let undo = is_handled();
            if undo {
                raw.pc = pc.wrapping_add(SVC_BYTES);
                raw.regs[0] = EINTR.cast_unsigned();
                calls.made_again = None;
            }
            return undo;
        }
        let number = raw.regs[8].cast_signed();
        let here = |waited: &proc::Waiting| {
            (waited.number, waited.sp, waited.pc) == (number, Avma(raw.sp), Avma(raw.pc))
        };
        let Some(waited) = waited.filter(here) else { return false };
        if call_result(raw).is_none() || !RESTARTABLE.contains(&number) || is_handled() {
            return false;
        }
        raw.pc = raw.pc.wrapping_sub(SVC_BYTES);
        raw.regs[0] = waited.first;
        calls.made_again = Some((raw.pc, waited.first));
        true
    }

    /// As those of x86_64, without epoll_wait, which is epoll_pwait here.
    const RESTARTABLE: [i64; 17] = [
        libc::SYS_epoll_pwait,
        libc::SYS_epoll_pwait2,
        libc::SYS_semop,
        libc::SYS_semtimedop,
        libc::SYS_rt_sigtimedwait,
        libc::SYS_io_getevents,
        292, // io_pgetevents
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
}

/// The engine's registers from the kernel's.
pub(super) fn convert(raw: &RawRegisters) -> Registers {
    #[cfg(target_arch = "x86_64")]
    return Registers::X86_64(crate::arch::X86_64 {
        gpr: [
            raw.rax, raw.rdx, raw.rcx, raw.rbx, raw.rsi, raw.rdi, raw.rbp, raw.rsp, raw.r8, raw.r9, raw.r10,
            raw.r11, raw.r12, raw.r13, raw.r14, raw.r15,
        ],
        rip: raw.rip,
        fs_base: raw.fs_base,
    });
    #[cfg(target_arch = "aarch64")]
    return Registers::Aarch64(crate::arch::Aarch64 { x: raw.regs, sp: raw.sp, pc: raw.pc });
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::super::sys;
    use super::*;

    fn in_call(number: i64, result: i64) -> RawRegisters {
        RawRegisters { orig_rax: number.cast_unsigned(), rax: result.cast_unsigned(), ..sys::no_registers() }
    }

    #[test]
    fn only_calls_that_changed_nothing_are_repeated() {
        let repair = |raw: &mut RawRegisters| repair_interrupted_call(raw, &mut Calls::default(), || false);
        let mut epoll = in_call(libc::SYS_epoll_wait, EINTR);
        assert!(interrupted_call(&epoll) && repair(&mut epoll));
        assert_eq!(epoll.rax.cast_signed(), ERESTARTNOHAND);
        // close(2) has closed the descriptor when it returns EINTR.
        let mut close = in_call(libc::SYS_close, EINTR);
        assert!(interrupted_call(&close) && !repair(&mut close));
        let mut done = in_call(libc::SYS_epoll_wait, 1);
        assert!(!interrupted_call(&done) && !repair(&mut done));
    }

    #[test]
    fn user_mode_is_no_call_whatever_the_result_register_holds() {
        let raw = in_call(-1, EINTR);
        assert!(!interrupted_call(&raw));
    }

    #[test]
    fn registers_are_in_dwarf_order() {
        let raw = RawRegisters { rip: 1, rsp: 2, rbp: 3, rdx: 4, ..sys::no_registers() };
        let Registers::X86_64(registers) = convert(&raw) else { panic!("x86_64") };
        assert_eq!((registers.rip, registers.gpr[7], registers.gpr[6], registers.gpr[1]), (1, 2, 3, 4));
    }
}
