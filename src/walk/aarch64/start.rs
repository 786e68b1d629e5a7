//! Code of aarch64 that begins and ends threads and handlers of signals, by its instructions: as
//! compilers make it of C libraries' sources. Input: bytes; output: yes or no.

/// Whether code is what follows the call of `main` or of a thread's function: its result is passed
/// to `exit`, or kept for `pthread_join`. Sources: as of x86_64.
pub(super) fn is_start_code(code: &[u8]) -> bool {
    let Some(word) = code.first_chunk::<4>() else { return false };
    let instruction = u32::from_le_bytes(*word);
    // bl exit (the result is in w0 already); str x0, [pd, #result]
    instruction >> 26 == 0b10_0101 || instruction & 0xffc0_001f == 0xf900_0000
}

/// Whether code calls the system call `exit` as it does behind a thread's first function.
///
/// Sources: glibc sysdeps/unix/sysv/linux/aarch64/clone.S and clone3.S, musl
/// src/thread/aarch64/clone.s.
pub(super) fn ends_thread(code: &[u8]) -> bool {
    const FORMS: [&[u8]; 2] = [
        // after blr: mov x8,#93; svc #0
        &[0xa8, 0x0b, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4],
        // mov w8,#93; svc #0
        &[0xa8, 0x0b, 0x80, 0x52, 0x01, 0x00, 0x00, 0xd4],
    ];
    FORMS.iter().any(|form| code.starts_with(form))
}

/// Whether code is the end of a signal handler: `mov x8, #139; svc #0`
/// (arch/arm64/kernel/vdso/sigreturn.S; musl and glibc have the same).
pub(super) fn is_sigreturn(code: &[u8]) -> bool {
    code.starts_with(&[0x68, 0x11, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4])
}
