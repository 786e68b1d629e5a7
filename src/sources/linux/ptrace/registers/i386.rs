//! Registers and system calls of a thread that runs i386 code, on x86_64.

use super::x86_64::{CALL_BYTES, Calls, RestartState};
use super::{EINTR, ERESTART_RESTARTBLOCK, ERESTARTNOHAND};
use crate::arch::{Registers, X86};
use crate::sources::linux::ptrace::sys::RawCompat;
use crate::sources::linux::ptrace::timed_wait::{TimedWait, WaitCall};

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

/// As for 64-bit code: the kernel checks the result sign-extended from 32 bits
/// (arch/x86/include/asm/syscall.h, `syscall_get_error`), and keeps the call's number.
pub(super) fn repair(
    words: &mut RawCompat,
    calls: &mut Calls,
    mut is_handled: impl FnMut() -> bool,
    mut is_filtered: impl FnMut() -> bool,
) -> bool {
    let (eip, esp) = (words[EIP], words[ESP]);
    match calls.ends_before((eip.into(), esp.into(), words[EAX].into()), &mut is_handled) {
        RestartState::GoesOn => return false,
        RestartState::Ends => {
            words[EIP] = eip.wrapping_add(CALL_BYTES as u32);
            words[EAX] = (EINTR as i32).cast_unsigned();
            words[ORIG_EAX] = u32::MAX;
            return true;
        }
        RestartState::Elsewhere => {}
    }
    let repairable = match call_result(words) {
        Some(EINTR) => is_restartable(words[ORIG_EAX], words[EBX]) && !is_handled(),
        Some(ERESTART_RESTARTBLOCK) => !is_handled() && is_filtered(),
        _ => false,
    };
    if repairable {
        calls.makes_again(eip.into(), esp.into(), words[ORIG_EAX].into());
        words[EAX] = (ERESTARTNOHAND as i32).cast_unsigned();
    }
    repairable
}

/// Whether the call is restartable on x86_64, by its number in arch/x86/entry/syscalls/syscall_32.tbl; for
/// sockets also through `socketcall`, by its first argument, and for semaphores through `ipc`
/// (include/uapi/linux/net.h, ipc.h).
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

/// Sets the result of the call that the thread is leaving.
pub(super) fn set_call_result(words: &mut RawCompat, result: i64) {
    words[EAX] = (result as i32).cast_unsigned();
}

/// The call as a wait with a relative timeout.
pub(super) fn timed_wait(words: &RawCompat) -> Option<TimedWait> {
    let (call, word_bytes) = match words[ORIG_EAX] {
        162 => (WaitCall::Nanosleep, 4),
        267 => (WaitCall::ClockNanosleep, 4),
        407 => (WaitCall::ClockNanosleep, 8),
        168 => (WaitCall::Poll, 4),
        240 => (WaitCall::Futex, 4),
        422 => (WaitCall::Futex, 8),
        256 | 319 => (WaitCall::Epoll, 4),
        441 => (WaitCall::EpollTimespec, 8),
        420 => (WaitCall::Semaphore, 8),
        _ => return None,
    };
    TimedWait::of(call, [EBX, ECX, EDX, ESI].map(|word| words[word].into()), word_bytes)
}

pub(super) fn convert(words: &RawCompat) -> Registers {
    let order = [EAX, ECX, EDX, EBX, ESP, EBP, ESI, EDI];
    Registers::X86(X86 { gpr: order.map(|word| words[word].into()), eip: words[EIP].into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::linux::ptrace::timed_wait::Timeout;

    fn in_call(number: u32, first: u32, result: i32) -> RawCompat {
        let mut words = [0; 17];
        (words[ORIG_EAX], words[EBX], words[EAX]) = (number, first, result.cast_unsigned());
        words
    }

    #[test]
    fn only_calls_without_effect_are_restarted() {
        let repaired = |number, first| {
            let mut words = in_call(number, first, -4);
            let repaired = repair(&mut words, &mut Calls::default(), || false, || false);
            assert_eq!(repaired, words[EAX].cast_signed() == -514);
            repaired
        };
        // epoll_wait, socketcall of accept, ipc of semtimedop
        assert!(repaired(256, 0) && repaired(102, 5) && repaired(117, 1 << 16 | 4));
        // read, close; 232, which is epoll_wait on x86_64; socketcall of bind, ipc of msgrcv
        assert!(!repaired(3, 0) && !repaired(6, 0) && !repaired(232, 0));
        assert!(!repaired(102, 2) && !repaired(117, 12));
        let mut handled = in_call(256, 0, -4);
        assert!(!repair(&mut handled, &mut Calls::default(), || true, || false));
        assert_eq!(call_result(&in_call(u32::MAX, 0, -4)), None, "user mode");
    }

    #[test]
    fn under_a_filter_restart_syscall_is_avoided() {
        let mut words = in_call(407, 1, -516);
        words[EDX] = 0x10;
        assert_eq!(
            timed_wait(&words).map(|wait| wait.timeout),
            Some(Timeout::Timespec { at: 0x10, word_bytes: 8 })
        );
        assert!(!repair(&mut words, &mut Calls::default(), || false, || false), "without one");
        assert!(repair(&mut words, &mut Calls::default(), || false, || true));
        assert_eq!(words[EAX].cast_signed(), -514);
        set_call_result(&mut words, -110);
        assert_eq!(words[EAX].cast_signed(), -110);
    }

    #[test]
    fn a_handler_before_the_restart_ends_the_call() {
        let mut words = in_call(256, 0, -4);
        (words[EIP], words[ESP]) = (0x4002, 0x7ff0);
        let mut calls = Calls::default();
        assert!(repair(&mut words, &mut calls, || false, || false));
        // The kernel resets the program counter to its `int 0x80`.
        (words[EIP], words[EAX]) = (0x4000, 256);
        assert!(!repair(&mut words, &mut calls, || false, || false));
        assert!(repair(&mut words, &mut calls, || true, || false));
        assert_eq!((words[EIP], words[EAX].cast_signed(), call_result(&words)), (0x4002, -4, None));
        assert!(!repair(&mut words, &mut calls, || true, || false), "once");
    }

    #[test]
    fn registers_are_in_dwarf_order() {
        let words: RawCompat = std::array::from_fn(|word| word as u32);
        let Registers::X86(registers) = convert(&words) else { panic!("i386") };
        assert_eq!((registers.gpr, registers.eip), ([6, 1, 2, 0, 15, 5, 3, 4], 12));
    }
}
