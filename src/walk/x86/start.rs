//! Code of i386 that begins and ends threads and handlers of signals, by its instructions: as
//! compilers make it of C libraries' sources. Input: bytes; output: yes or no, and where a trampoline
//! finds the saved registers.

/// Whether code is what follows the call of `main` or of a thread's function: its result is passed
/// to `exit`, or kept for `pthread_join`. Sources: as of x86_64.
pub(super) fn is_start_code(code: &[u8]) -> bool {
    const FORMS: [&[u8]; 7] = [
        // glibc: add $16,%esp; sub $12,%esp; push %eax; call exit
        &[0x83, 0xc4, 0x10, 0x83, 0xec, 0x0c, 0x50, 0xe8],
        // the same where the compiler joined the two
        &[0x83, 0xc4, 0x04, 0x50, 0xe8],
        &[0x89, 0x04, 0x24, 0xe8],
        // glibc: mov %eax,%gs:result, with the argument still on the stack or not
        &[0x65, 0xa3],
        &[0x83, 0xc4, 0x10, 0x65, 0xa3],
        // hlt, in _start after __libc_start_main
        &[0xf4],
        // a thread made by clone itself: mov %eax,%ebx; mov $1,%eax; int $0x80
        &[0x89, 0xc3, 0xb8, 1, 0, 0, 0, 0xcd, 0x80],
    ];
    FORMS.iter().any(|form| code.starts_with(form))
}

/// Whether code calls the system call `exit` as it does behind a thread's first function,
/// whose result it mostly passes.
///
/// Sources: glibc sysdeps/unix/sysv/linux/i386/clone.S and clone3.S, musl src/thread/i386/clone.s.
pub(super) fn ends_thread(code: &[u8]) -> bool {
    const FORMS: [&[u8]; 4] = [
        // glibc: mov %eax,%ebx; mov $1,%eax; int $0x80
        &[0x89, 0xc3, 0xb8, 1, 0, 0, 0, 0xcd, 0x80],
        // musl: mov %eax,%ebx; xor %eax,%eax; inc %eax; int $0x80
        &[0x89, 0xc3, 0x31, 0xc0, 0x40, 0xcd, 0x80],
        // musl, as other assemblers write them
        &[0x93, 0x31, 0xc0, 0x40, 0xcd, 0x80],
        // xchg %eax,%ebx; mov $1,%eax; int $0x80
        &[0x93, 0xb8, 1, 0, 0, 0, 0xcd, 0x80],
    ];
    FORMS.iter().any(|form| code.starts_with(form))
}

/// Bytes from the stack pointer to the saved registers (`struct sigcontext`) where code is the end of a
/// handler of signals; `None` where it is none. There are two frames: `struct sigframe`, whose
/// number of the signal is popped first, and `struct rt_sigframe`, in which the registers lie in a
/// `struct ucontext`, 20 bytes from its begin, behind number, two pointers and 128 bytes of siginfo.
/// Both stand above the return address that brought the thread here.
///
/// Sources: Linux arch/x86/include/asm/sigframe.h and arch/x86/entry/vdso/vdso32/sigreturn.S; musl
/// src/signal/i386/restore.s and glibc sysdeps/unix/sysv/linux/i386/libc_sigaction.c have the same
/// instructions.
pub(super) fn context_at(code: &[u8]) -> Option<i64> {
    // mov $119,%eax; int $0x80
    const SIGRETURN: &[u8] = &[0xb8, 119, 0, 0, 0, 0xcd, 0x80];
    // mov $173,%eax; int $0x80
    const RT_SIGRETURN: &[u8] = &[0xb8, 173, 0, 0, 0, 0xcd, 0x80];
    match code {
        // pop %eax
        [0x58, rest @ ..] if rest.starts_with(SIGRETURN) => Some(4),
        _ if code.starts_with(SIGRETURN) => Some(0),
        _ if code.starts_with(RT_SIGRETURN) => Some(3 * 4 + 128 + 20),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_trampoline_has_its_registers_elsewhere() {
        let code: [u8; 8] = [0x58, 0xb8, 119, 0, 0, 0, 0xcd, 0x80];
        assert_eq!((context_at(&code), context_at(&code[1..])), (Some(4), Some(0)));
        assert_eq!(context_at(&[0xb8, 173, 0, 0, 0, 0xcd, 0x80]), Some(160));
        for other in [&[0xb8, 120, 0, 0, 0, 0xcd, 0x80][..], &code[2..], &code[..4], &[]] {
            assert_eq!(context_at(other), None, "{other:x?}");
        }
    }
}
