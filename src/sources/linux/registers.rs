//! The kernel's register block as the engine's registers, and the repair of a system call
//! that our stop interrupted.

use libc::pid_t;

use super::sys::{self, RawRegisters};
use crate::arch::Registers;

pub(super) use arch::Calls;

/// The registers of a thread that stands, as they were read, in a buffer for one after the other.
#[derive(Debug)]
pub(super) struct Block {
    raw: RawRegisters,
    /// How much of it the kernel filled: less than the whole where the thread runs 32-bit code.
    len: usize,
}

/// What code a thread runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    /// That of the processor.
    Native,
    /// 32-bit code of i386.
    X86,
    /// Other code, whose registers are not known.
    Other,
}

impl Block {
    pub(super) fn new() -> Block {
        Block { raw: sys::no_registers(), len: 0 }
    }

    /// Reads the registers of a stopped thread.
    ///
    /// # Errors
    /// That of the system: it was killed.
    pub(super) fn read(&mut self, tid: pid_t) -> std::io::Result<()> {
        self.len = sys::registers(tid, &mut self.raw)?;
        Ok(())
    }

    /// Writes them back.
    ///
    /// # Errors
    /// As above.
    pub(super) fn write(&mut self, tid: pid_t) -> std::io::Result<()> {
        sys::set_registers(tid, &mut self.raw, self.len)
    }

    /// What code the thread runs.
    pub(super) fn code(&self) -> Code {
        match self.len {
            len if len == size_of::<RawRegisters>() => Code::Native,
            len if cfg!(target_arch = "x86_64") && len == size_of::<sys::RawCompat>() => Code::X86,
            _ => Code::Other,
        }
    }

    /// A stop found the thread in a system call that had begun to wait.
    ///
    /// The kernel wakes a waiting thread for PTRACE_INTERRUPT as for a signal, and leaves
    /// `-EINTR` or a restart code as the call's result while the thread stands in the stop
    /// (kernel/signal.c, arch/*/kernel/signal.c).
    pub(super) fn interrupted_call(&self) -> bool {
        let result = match self.code() {
            Code::Native => arch::call_result(&self.raw),
            Code::X86 => compat::call_result(&sys::compat_of(&self.raw)),
            Code::Other => None,
        };
        result.is_some_and(|result| result == EINTR || RESTART_CODES.contains(&result))
    }

    /// Makes a call that would return `EINTR` because of our stop restart instead, if it is
    /// one that changed nothing before it waited. Returns whether it was changed and has
    /// to be written back.
    ///
    /// Most calls restart by themselves after a stop. The few listed in signal(7) under
    /// "Interruption of system calls and library functions by stop signals" fail with EINTR:
    /// these are made again, unless a handler of the target runs, which has to cause the EINTR.
    ///
    /// To be asked at every stop that is not job control's; `is_handled` tells whether a signal is on
    /// its way to the thread that runs a handler.
    pub(super) fn repair_interrupted_call(
        &mut self,
        calls: &mut Calls,
        is_handled: impl FnOnce() -> bool,
    ) -> bool {
        match self.code() {
            Code::Native => arch::repair(&mut self.raw, calls, is_handled),
            Code::X86 => {
                let mut words = sys::compat_of(&self.raw);
                let repaired = compat::repair(&mut words, is_handled);
                if repaired {
                    sys::set_compat(&mut self.raw, words);
                }
                repaired
            }
            Code::Other => false,
        }
    }

    /// The engine's registers; `None` where these are not known.
    pub(super) fn convert(&self) -> Option<Registers> {
        match self.code() {
            Code::Native => Some(convert(&self.raw)),
            Code::X86 => Some(compat::convert(&sys::compat_of(&self.raw))),
            Code::Other => None,
        }
    }
}

const EINTR: i64 = -4;
const ERESTARTNOHAND: i64 = -514;
/// ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK (include/linux/errno.h).
const RESTART_CODES: [i64; 4] = [-512, -513, ERESTARTNOHAND, -516];

/// A thread that runs 32-bit code of i386 on x86_64.
mod compat {
    use super::{EINTR, ERESTARTNOHAND};
    use crate::arch::{Registers, X86};
    use crate::sources::linux::sys::RawCompat;

    // Words of `struct user_regs_struct32`: ebx ecx edx esi edi ebp eax ds es fs gs orig_eax eip cs
    // eflags esp ss.
    const EBX: usize = 0;
    const ECX: usize = 1;
    const EDX: usize = 2;
    const ESI: usize = 3;
    const EDI: usize = 4;
    const EBP: usize = 5;
    const EAX: usize = 6;
    const ORIG_EAX: usize = 11;
    const EIP: usize = 12;
    const ESP: usize = 15;

    /// Result of the system call that the thread is leaving, or `None` outside one.
    pub(super) fn call_result(words: &RawCompat) -> Option<i64> {
        (words[ORIG_EAX].cast_signed() >= 0).then_some(words[EAX].cast_signed().into())
    }

    /// As for 64-bit code: the kernel decides by the result as sign-extended from 32 bits
    /// (arch/x86/include/asm/syscall.h, `syscall_get_error`), and keeps the call's number.
    pub(super) fn repair(words: &mut RawCompat, is_handled: impl FnOnce() -> bool) -> bool {
        let repairable =
            call_result(words) == Some(EINTR) && is_restartable(words[ORIG_EAX], words[EBX]) && !is_handled();
        if repairable {
            words[EAX] = (ERESTARTNOHAND as i32).cast_unsigned();
        }
        repairable
    }

    /// The calls of x86_64 that are made again, by their numbers in
    /// arch/x86/entry/syscalls/syscall_32.tbl; sockets also by `socketcall`, whose first argument says
    /// which, and semaphores by `ipc` (include/uapi/linux/net.h, ipc.h).
    fn is_restartable(number: u32, first: u32) -> bool {
        const SOCKETCALL: u32 = 102;
        const IPC: u32 = 117;
        // connect, accept, send, recv, sendto, recvfrom, sendmsg, recvmsg, accept4, recvmmsg, sendmmsg
        const SOCKET: [u32; 11] = [3, 5, 9, 10, 11, 12, 16, 17, 18, 19, 20];
        // semop, semtimedop; the version of the call is in the upper half.
        const SEMAPHORE: [u32; 2] = [1, 4];
        const OTHERS: [u32; 19] = [
            256, // epoll_wait
            319, // epoll_pwait
            441, // epoll_pwait2
            177, // rt_sigtimedwait
            421, // rt_sigtimedwait_time64
            247, // io_getevents
            385, // io_pgetevents
            416, // io_pgetevents_time64
            420, // semtimedop_time64
            426, // io_uring_enter
            364, // accept4
            362, // connect
            371, // recvfrom
            372, // recvmsg
            337, // recvmmsg
            417, // recvmmsg_time64
            369, // sendto
            370, // sendmsg
            345, // sendmmsg
        ];
        match number {
            SOCKETCALL => SOCKET.contains(&first),
            IPC => SEMAPHORE.contains(&(first & 0xffff)),
            number => OTHERS.contains(&number),
        }
    }

    pub(super) fn convert(words: &RawCompat) -> Registers {
        let order = [EAX, ECX, EDX, EBX, ESP, EBP, ESI, EDI];
        Registers::X86(X86 { gpr: order.map(|word| words[word].into()), eip: words[EIP].into() })
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        fn in_call(number: u32, first: u32, result: i32) -> RawCompat {
            let mut words = [0; 17];
            (words[ORIG_EAX], words[EBX], words[EAX]) = (number, first, result.cast_unsigned());
            words
        }

        #[test]
        fn only_calls_that_changed_nothing_are_repeated() {
            let repaired = |number, first| {
                let mut words = in_call(number, first, -4);
                let repaired = repair(&mut words, || false);
                assert_eq!(repaired, words[EAX].cast_signed() == -514);
                repaired
            };
            // epoll_wait, socketcall of accept, ipc of semtimedop
            assert!(repaired(256, 0) && repaired(102, 5) && repaired(117, 1 << 16 | 4));
            // read, close; 232, which is epoll_wait on x86_64; socketcall of bind, ipc of msgrcv
            assert!(!repaired(3, 0) && !repaired(6, 0) && !repaired(232, 0));
            assert!(!repaired(102, 2) && !repaired(117, 12));
            let mut handled = in_call(256, 0, -4);
            assert!(!repair(&mut handled, || true));
            assert_eq!(call_result(&in_call(u32::MAX, 0, -4)), None, "user mode");
        }

        #[test]
        fn registers_are_in_dwarf_order() {
            let words: RawCompat = std::array::from_fn(|word| word as u32);
            let Registers::X86(registers) = convert(&words) else { panic!("i386") };
            assert_eq!((registers.gpr, registers.eip), ([6, 1, 2, 0, 15, 5, 3, 4], 12));
        }
    }
}

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
    use super::*;

    fn in_call(number: i64, result: i64) -> Block {
        let (orig_rax, rax) = (number.cast_unsigned(), result.cast_unsigned());
        let raw = RawRegisters { orig_rax, rax, ..sys::no_registers() };
        Block { raw, len: size_of::<RawRegisters>() }
    }

    #[test]
    fn only_calls_that_changed_nothing_are_repeated() {
        let repair = |block: &mut Block| block.repair_interrupted_call(&mut Calls::default(), || false);
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
    fn user_mode_is_no_call_whatever_the_result_register_holds() {
        assert!(!in_call(-1, EINTR).interrupted_call());
    }

    #[test]
    fn registers_are_in_dwarf_order() {
        let raw = RawRegisters { rip: 1, rsp: 2, rbp: 3, rdx: 4, ..sys::no_registers() };
        let Registers::X86_64(registers) = convert(&raw) else { panic!("x86_64") };
        assert_eq!((registers.rip, registers.gpr[7], registers.gpr[6], registers.gpr[1]), (1, 2, 3, 4));
    }
}
