//! Code of aarch64 that begins and ends threads and handlers of signals, by its instructions: as
//! compilers make it of C libraries' sources. Input: bytes; output: yes or no.

use crate::addr::Avma;
use crate::walk::Code;

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

/// Whether an address is the second instruction of `runtime.goexit` of Go, which the first function of a goroutine
/// returns to; nothing called it. An instruction that does nothing, a call that does not return, and what Go
/// fills up with to the next multiple of 16 bytes.
/// Source: Go, src/runtime/asm_arm64.s.
pub(super) fn is_in_goexit(at: Avma, code: &dyn Code) -> bool {
    const MOV_X0_X0: [u8; 4] = 0xaa00_03e0_u32.to_le_bytes();
    let start = at.0.checked_sub(4).filter(|start| start % 16 == 0);
    let goexit = start.and_then(|start| code.code(Avma(start))?.first_chunk::<16>().copied());
    goexit.is_some_and(|goexit| {
        goexit.starts_with(&MOV_X0_X0)
            && goexit[7] >> 2 == 0b10_0101
            && goexit[8..].iter().all(|byte| *byte == 0)
    })
}
