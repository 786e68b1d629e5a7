//! Start and exit code of threads and signal handlers on x86_64, recognized by the instructions that compilers
//! generate from C library sources. Input: bytes; output: yes or no.

use crate::addr::Avma;
use crate::walk::Code;

/// Whether code follows the call of `main` or of a thread's function: the result is passed to `exit`, or stored
/// for `pthread_join`.
///
/// Sources: glibc sysdeps/nptl/libc_start_call_main.h and nptl/pthread_create.c (start_thread), musl
/// src/env/__libc_start_main.c and src/thread/pthread_create.c, as compiled by gcc.
pub(super) fn is_start_code(code: &[u8]) -> bool {
    const FORMS: [&[u8]; 5] = [
        // mov %eax,%edi; call exit
        &[0x89, 0xc7, 0xe8],
        // musl: mov %rax,%rdi; call pthread_exit
        &[0x48, 0x89, 0xc7, 0xe8],
        // glibc: mov %rax,%fs:result
        &[0x64, 0x48, 0x89, 0x04, 0x25],
        // hlt, in _start after __libc_start_main
        &[0xf4],
        // a thread created by clone directly
        &[0x48, 0x89, 0xc7, 0xb8, 0x3c, 0, 0, 0, 0x0f, 0x05],
    ];
    FORMS.iter().any(|form| code.starts_with(form))
}

/// Whether code makes the `exit` system call that follows a thread's first function, mostly with its result.
///
/// Sources: glibc sysdeps/unix/sysv/linux/x86_64/clone.S and clone3.S, musl
/// src/thread/x86_64/clone.s.
pub(super) fn ends_thread(code: &[u8]) -> bool {
    const FORMS: [&[u8]; 5] = [
        // glibc: mov %rax,%rdi; mov $60,%eax; syscall
        &[0x48, 0x89, 0xc7, 0xb8, 0x3c, 0, 0, 0, 0x0f, 0x05],
        // mov %eax,%edi; mov $60,%eax; syscall
        &[0x89, 0xc7, 0xb8, 0x3c, 0, 0, 0, 0x0f, 0x05],
        // musl: mov %eax,%edi; xor %eax,%eax; mov $60,%al; syscall
        &[0x89, 0xc7, 0x31, 0xc0, 0xb0, 0x3c, 0x0f, 0x05],
        // the same with a 64-bit move
        &[0x48, 0x89, 0xc7, 0x31, 0xc0, 0xb0, 0x3c, 0x0f, 0x05],
        // Go (runtime.clone, sys_linux_amd64.s): mov $111,%edi; mov $60,%eax; syscall
        &[0xbf, 0x6f, 0, 0, 0, 0xb8, 0x3c, 0, 0, 0, 0x0f, 0x05],
    ];
    // Called for each instruction on a path, hardly any of which begins like this.
    let may_be = matches!(code, [0x48, 0x89, 0xc7, ..] | [0x89, 0xc7, ..] | [0xbf, 0x6f, ..]);
    may_be && FORMS.iter().any(|form| code.starts_with(form))
}

/// Whether an address is at the `syscall` instruction of a signal trampoline, which never returns.
pub(super) fn is_in_sigreturn(at: Avma, code: &dyn Code) -> bool {
    let begins_at = |bytes: u64| at.0.checked_sub(bytes).and_then(|begin| code.code(Avma(begin)));
    let is_here = |bytes: u64| begins_at(bytes).is_some_and(is_sigreturn);
    // After mov $15,%rax, or after mov $15,%eax.
    is_here(7) || is_here(5)
}

/// Whether code is a signal trampoline: `rt_sigreturn` (15) with the saved context at the stack pointer.
pub(super) fn is_sigreturn(code: &[u8]) -> bool {
    // glibc: mov $15,%rax; musl: mov $15,%eax
    code.starts_with(&[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05])
        || code.starts_with(&[0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05])
}
