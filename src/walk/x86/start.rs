//! Start and exit code of threads and signal handlers on i386, recognized by the instructions that compilers
//! generate from C library sources. Input: bytes; output: yes or no, and the offset of a trampoline's saved
//! registers.

use crate::addr::Avma;
use crate::walk::Code;

/// Whether code follows the call of `main` or of a thread's function: the result is passed to `exit`, or stored
/// for `pthread_join`. Sources: see x86_64.
pub(super) fn is_start_code(code: &[u8]) -> bool {
    const FORMS: [&[u8]; 7] = [
        // glibc: add $16,%esp; sub $12,%esp; push %eax; call exit
        &[0x83, 0xc4, 0x10, 0x83, 0xec, 0x0c, 0x50, 0xe8],
        // the same with both adjustments merged by the compiler
        &[0x83, 0xc4, 0x04, 0x50, 0xe8],
        &[0x89, 0x04, 0x24, 0xe8],
        // glibc: mov %eax,%gs:result, with or without the argument still on the stack
        &[0x65, 0xa3],
        &[0x83, 0xc4, 0x10, 0x65, 0xa3],
        // hlt, in _start after __libc_start_main
        &[0xf4],
        // a thread created by clone directly: mov %eax,%ebx; mov $1,%eax; int $0x80
        &[0x89, 0xc3, 0xb8, 1, 0, 0, 0, 0xcd, 0x80],
    ];
    FORMS.iter().any(|form| code.starts_with(form))
}

/// Whether code makes the `exit` system call that follows a thread's first function, mostly with its result.
///
/// Sources: glibc sysdeps/unix/sysv/linux/i386/clone.S and clone3.S, musl src/thread/i386/clone.s.
pub(super) fn ends_thread(code: &[u8]) -> bool {
    const FORMS: [&[u8]; 4] = [
        // glibc: mov %eax,%ebx; mov $1,%eax; int $0x80
        &[0x89, 0xc3, 0xb8, 1, 0, 0, 0, 0xcd, 0x80],
        // musl: mov %eax,%ebx; xor %eax,%eax; inc %eax; int $0x80
        &[0x89, 0xc3, 0x31, 0xc0, 0x40, 0xcd, 0x80],
        // musl, by other assemblers
        &[0x93, 0x31, 0xc0, 0x40, 0xcd, 0x80],
        // xchg %eax,%ebx; mov $1,%eax; int $0x80
        &[0x93, 0xb8, 1, 0, 0, 0, 0xcd, 0x80],
    ];
    FORMS.iter().any(|form| code.starts_with(form))
}

/// Bytes from the stack pointer to the saved registers (`struct sigcontext`) if code is a signal trampoline;
/// `None` otherwise. There are two frames: `struct sigframe`, with a signal number that is popped first, and
/// `struct rt_sigframe`, with the registers 20 bytes into a `struct ucontext`, after signal number, two pointers
/// and 128 bytes of siginfo. Both are above the return address.
///
/// Sources: Linux arch/x86/include/asm/sigframe.h and arch/x86/entry/vdso/vdso32/sigreturn.S; musl
/// src/signal/i386/restore.s and glibc sysdeps/unix/sysv/linux/i386/libc_sigaction.c have the same instructions.
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

/// The offset of an address in the code that the first function of a `makecontext` stack returns to, without
/// having been called. Source: glibc sysdeps/unix/sysv/linux/i386/makecontext.S.
pub(super) fn into_context(at: Avma, code: &dyn Code) -> Option<u64> {
    // lea (%esp,%ebx,4),%esp; cmpl $0,(%esp); je; call setcontext
    const START: &[u8] = &[0x8d, 0x24, 0x9c, 0x83, 0x3c, 0x24, 0, 0x74, 7, 0xe8];
    // Up to the call of exit.
    const BYTES: u64 = 0x1f;
    (0..BYTES).find(|into| {
        let start = at.0.checked_sub(*into).and_then(|start| code.code(Avma(start)));
        start.is_some_and(|code| code.starts_with(START))
    })
}

/// Whether an address is in code that only returns its caller's address: `mov (%esp),%ebx; ret`, or with another
/// register. Start code has a copy (glibc sysdeps/i386/start.S), and the row of a function without a caller covers
/// it too.
pub(super) fn is_pc_thunk(at: Avma, code: &dyn Code) -> bool {
    let is_thunk = |start: Avma| {
        let code = code.code(start).unwrap_or_default();
        matches!(code, [0x8b, to, 0x24, 0xc3, ..] if to & 0xc7 == 0x04)
    };
    is_thunk(at) || at.0.checked_sub(3).is_some_and(|start| is_thunk(Avma(start)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::walk::text::Text;

    #[test]
    fn every_instruction_of_the_makecontext_return_code_is_recognized() {
        let text = Text::new(
            0x1000,
            [
                0xc3, // +00 ret
                0x8d, 0x24, 0x9c, // +01 lea (%esp,%ebx,4),%esp
                0x83, 0x3c, 0x24, 0, // +04 cmpl $0,(%esp)
                0x74, 0x07, // +08 je
                0xe8, 0, 0, 0, 0, // +0a call setcontext
                0xeb, 0x02, // +0f jmp
            ],
        );
        let into = |at: u64| into_context(Avma(0x1000 + at), &text);
        assert_eq!([0, 1, 4, 8, 0xf].map(into), [None, Some(0), Some(3), Some(7), Some(14)]);
        assert_eq!(into(0x40), None);
    }

    #[test]
    fn a_pc_thunk_is_recognized_at_both_instructions() {
        // mov (%esp),%ebx; ret; mov (%esp),%eax; ret; mov 4(%esp),%eax; ret
        let text =
            Text::new(0x1000, [0x8b, 0x1c, 0x24, 0xc3, 0x8b, 0x04, 0x24, 0xc3, 0x8b, 0x44, 0x24, 4, 0xc3]);
        let found: Vec<u64> = (0..16).filter(|at| is_pc_thunk(Avma(0x1000 + at), &text)).collect();
        assert_eq!(found, [0, 3, 4, 7]);
    }

    #[test]
    fn each_trampoline_has_its_own_register_offset() {
        let code: [u8; 8] = [0x58, 0xb8, 119, 0, 0, 0, 0xcd, 0x80];
        assert_eq!((context_at(&code), context_at(&code[1..])), (Some(4), Some(0)));
        assert_eq!(context_at(&[0xb8, 173, 0, 0, 0, 0xcd, 0x80]), Some(160));
        for other in [&[0xb8, 120, 0, 0, 0, 0xcd, 0x80][..], &code[2..], &code[..4], &[]] {
            assert_eq!(context_at(other), None, "{other:x?}");
        }
    }
}
