//! Converts the kernel's register block to the `Registers` of `arch`, and repairs a system call that our stop
//! interrupted. One file per processor.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(any(test, target_arch = "aarch64"))]
mod arm;
#[cfg(target_arch = "x86_64")]
mod i386;
#[cfg(any(test, target_arch = "aarch64"))]
mod syscall_restart;
#[cfg(target_arch = "x86_64")]
mod x86_64;

use libc::pid_t;

use super::sys::{self, RawRegisters};
use super::timed_wait::TimedWait;
use crate::arch::Registers;

#[cfg(target_arch = "aarch64")]
pub(super) use syscall_restart::Calls;

#[cfg(target_arch = "x86_64")]
pub(super) use x86_64::Calls;

#[cfg(target_arch = "aarch64")]
use {aarch64 as native, arm as compat};

#[cfg(target_arch = "x86_64")]
use {i386 as compat, x86_64 as native};

/// The registers of a stopped thread, in a buffer that is reused.
#[derive(Debug)]
pub(super) struct Block {
    raw: RawRegisters,
    /// Bytes filled by the kernel: fewer for a thread that runs 32-bit code.
    len: usize,
}

/// Instruction set that a thread runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    /// The processor's native one.
    Native,
    /// 32-bit code: of i386 on x86_64, of Arm on aarch64.
    Compat,
    /// Other code, with unknown registers.
    Other,
}

impl Block {
    pub(super) fn new() -> Block {
        Block { raw: sys::no_registers(), len: 0 }
    }

    /// Reads the registers of a stopped thread.
    ///
    /// # Errors
    /// The system's error: the thread was killed.
    pub(super) fn read(&mut self, tid: pid_t) -> std::io::Result<()> {
        self.len = sys::registers(tid, &mut self.raw)?;
        Ok(())
    }

    /// Writes them back.
    ///
    /// # Errors
    /// The system's error: the thread was killed.
    pub(super) fn write(&mut self, tid: pid_t) -> std::io::Result<()> {
        sys::set_registers(tid, &mut self.raw, self.len)
    }

    /// The instruction set that the thread runs.
    pub(super) fn code(&self) -> Code {
        match self.len {
            len if len == size_of::<RawRegisters>() => Code::Native,
            len if len == size_of::<sys::RawCompat>() => Code::Compat,
            _ => Code::Other,
        }
    }

    /// Whether the stop interrupted a waiting system call.
    ///
    /// The kernel wakes a waiting thread for PTRACE_INTERRUPT as for a signal, and leaves `-EINTR` or a
    /// restart code as the call's result while the thread is stopped (kernel/signal.c,
    /// arch/*/kernel/signal.c).
    pub(super) fn interrupted_call(&self) -> bool {
        self.call_result().is_some_and(|result| result == EINTR || RESTART_CODES.contains(&result))
    }

    fn call_result(&self) -> Option<i64> {
        match self.code() {
            Code::Native => native::call_result(&self.raw),
            Code::Compat => compat::call_result(&sys::compat_of(&self.raw)),
            Code::Other => None,
        }
    }

    /// Whether the kernel will continue the interrupted call by `restart_syscall`.
    pub(super) fn is_continued(&self) -> bool {
        self.call_result() == Some(ERESTART_RESTARTBLOCK)
    }

    /// Whether the call was interrupted and may be restarted.
    pub(super) fn is_interrupted_wait(&self) -> bool {
        self.is_continued() || self.call_result() == Some(EINTR)
    }

    /// The interrupted wait, if it would last longer when restarted.
    pub(super) fn timed_wait(&self) -> Option<TimedWait> {
        if !self.is_interrupted_wait() {
            return None;
        }
        match self.code() {
            Code::Native => native::timed_wait(&self.raw),
            Code::Compat => compat::timed_wait(&sys::compat_of(&self.raw)),
            Code::Other => None,
        }
    }

    /// Sets the result of the call that the thread is leaving.
    pub(super) fn set_call_result(&mut self, result: i64) {
        match self.code() {
            Code::Native => native::set_call_result(&mut self.raw, result),
            Code::Compat => {
                let mut words = sys::compat_of(&self.raw);
                compat::set_call_result(&mut words, result);
                sys::set_compat(&mut self.raw, words);
            }
            Code::Other => {}
        }
    }

    /// Makes a call that would return `EINTR` because of our stop restart instead, if it is one that changed
    /// nothing before it waited. Returns whether registers changed and have to be written back.
    ///
    /// Most calls restart by themselves after a stop. The few listed in signal(7) under "Interruption of
    /// system calls and library functions by stop signals" fail with EINTR: these are restarted here, unless
    /// a handler of the target runs, which has to cause the EINTR.
    ///
    /// The kernel continues some waits by another call, `restart_syscall`, which a seccomp filter may forbid:
    /// they are restarted, too, if the thread has a filter (`is_filtered`). On aarch64 the kernel does not
    /// show this.
    ///
    /// Must be called at every stop except those of job control. `is_handled`: a signal with a handler is
    /// pending.
    pub(super) fn repair_interrupted_call(
        &mut self,
        calls: &mut Calls,
        is_handled: impl FnMut() -> bool,
        is_filtered: impl FnMut() -> bool,
    ) -> bool {
        match self.code() {
            Code::Native => native::repair(&mut self.raw, calls, is_handled, is_filtered),
            Code::Compat => {
                let mut words = sys::compat_of(&self.raw);
                let repaired = compat::repair(&mut words, calls, is_handled, is_filtered);
                if repaired {
                    sys::set_compat(&mut self.raw, words);
                }
                repaired
            }
            Code::Other => false,
        }
    }

    /// The `Registers` of `arch`; `None` for other code.
    pub(super) fn convert(&self) -> Option<Registers> {
        match self.code() {
            Code::Native => Some(native::convert(&self.raw)),
            Code::Compat => Some(compat::convert(&sys::compat_of(&self.raw))),
            Code::Other => None,
        }
    }
}

// ---- Error numbers by which the kernel restarts calls, and the calls that may be restarted.
const EINTR: i64 = -4;

const ERESTARTNOHAND: i64 = -514;

/// ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK (include/linux/errno.h).
const RESTART_CODES: [i64; 4] = [-512, -513, ERESTARTNOHAND, ERESTART_RESTARTBLOCK];

const ERESTART_RESTARTBLOCK: i64 = -516;

/// Whether a call of 64-bit code returns EINTR only before it had any effect, so that repeating it is safe.
/// Includes socket calls for sockets with SO_RCVTIMEO or SO_SNDTIMEO.
fn is_restartable(number: i64, here: &[i64]) -> bool {
    RESTARTABLE.contains(&number) || here.contains(&number)
}

/// Those with the same name on all processors.
const RESTARTABLE: [i64; 16] = [
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_io_getevents,
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

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::ERESTARTNOHAND;
    use super::*;
    use crate::sources::linux::ptrace::timed_wait::Timeout;

    fn in_call(number: i64, result: i64) -> Block {
        let (orig_rax, rax) = (number.cast_unsigned(), result.cast_unsigned());
        let raw = RawRegisters { orig_rax, rax, ..sys::no_registers() };
        Block { raw, len: size_of::<RawRegisters>() }
    }

    #[test]
    fn only_calls_without_effect_are_restarted() {
        let repair =
            |block: &mut Block| block.repair_interrupted_call(&mut Calls::default(), || false, || false);
        let mut epoll = in_call(libc::SYS_epoll_wait, EINTR);
        assert!(epoll.interrupted_call() && repair(&mut epoll));
        assert_eq!(epoll.raw.rax.cast_signed(), ERESTARTNOHAND);
        // close(2) has closed the descriptor when it returns EINTR.
        let mut close = in_call(libc::SYS_close, EINTR);
        assert!(close.interrupted_call() && !repair(&mut close));
        let mut done = in_call(libc::SYS_epoll_wait, 1);
        assert!(!done.interrupted_call() && !repair(&mut done));
    }

    #[test]
    fn a_handler_before_the_restart_ends_the_call() {
        let mut block = in_call(libc::SYS_epoll_wait, EINTR);
        (block.raw.rip, block.raw.rsp) = (0x4002, 0x7ff0);
        let mut calls = Calls::default();
        assert!(block.repair_interrupted_call(&mut calls, || false, || false));
        // The kernel resets the program counter, we stop the thread there once more, then a signal arrives.
        (block.raw.rip, block.raw.rax) = (0x4000, block.raw.orig_rax);
        let set_back = block.raw;
        assert!(!block.repair_interrupted_call(&mut calls, || false, || false));
        assert!(block.repair_interrupted_call(&mut calls, || true, || false));
        assert_eq!((block.raw.rip, block.raw.rax.cast_signed()), (0x4002, EINTR));
        assert!(!block.interrupted_call(), "the kernel does not repeat it");
        // Once; and not on another stack, or after another call.
        block.raw = set_back;
        assert!(!block.repair_interrupted_call(&mut calls, || true, || false));
        let mut calls = Calls::default();
        let mut again = in_call(libc::SYS_epoll_wait, EINTR);
        (again.raw.rip, again.raw.rsp) = (0x4002, 0x7ff0);
        assert!(again.repair_interrupted_call(&mut calls, || false, || false));
        block.raw.rsp = 0x7fe0;
        assert!(!block.repair_interrupted_call(&mut calls, || true, || false));
    }

    #[test]
    fn under_a_filter_restart_syscall_is_avoided() {
        let mut calls = Calls::default();
        let mut sleep = in_call(libc::SYS_clock_nanosleep, ERESTART_RESTARTBLOCK);
        sleep.raw.rdx = 0x10;
        let timeout = sleep.timed_wait().map(|wait| wait.timeout);
        assert_eq!(timeout, Some(Timeout::Timespec { at: 0x10, word_bytes: 8 }));
        assert!(!sleep.repair_interrupted_call(&mut calls, || false, || false), "without one");
        assert!(!sleep.repair_interrupted_call(&mut calls, || true, || true), "a handler ends it");
        assert!(sleep.repair_interrupted_call(&mut calls, || false, || true));
        assert_eq!(sleep.raw.rax.cast_signed(), ERESTARTNOHAND);
        assert_eq!((sleep.timed_wait(), sleep.is_continued()), (None, false));
        sleep.set_call_result(-110);
        assert_eq!(sleep.raw.rax.cast_signed(), -110);
    }

    #[test]
    fn user_mode_is_no_call_whatever_the_result_register() {
        assert!(!in_call(-1, EINTR).interrupted_call());
    }

    #[test]
    fn registers_are_in_dwarf_order() {
        let raw = RawRegisters { rip: 1, rsp: 2, rbp: 3, rdx: 4, ..sys::no_registers() };
        let Registers::X86_64(registers) = native::convert(&raw) else { panic!("x86_64") };
        assert_eq!((registers.rip, registers.gpr[7], registers.gpr[6], registers.gpr[1]), (1, 2, 3, 4));
    }
}
