//! Start and exit code of threads and signal handlers of 32-bit Arm on Linux, recognized by its instructions in
//! A32 and T32. Input: bytes; output: what they are.

/// The target of `sp` in the signal trampoline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SignalFrame {
    /// `struct sigframe`.
    Old,
    /// `struct rt_sigframe`, which starts with the 128 bytes of `siginfo`.
    Rt,
}

/// Whether code is a signal trampoline: the number of `sigreturn` or `rt_sigreturn` to r7, then `svc 0` (Linux
/// arch/arm/kernel/sigreturn_codes.S; glibc sysdeps/unix/sysv/linux/arm/sigrestorer.S).
pub(super) fn sigreturn(code: &[u8]) -> Option<SignalFrame> {
    const FORMS: [(&[u8], SignalFrame); 6] = [
        (&[0x77, 0x70, 0xa0, 0xe3, 0, 0, 0, 0xef], SignalFrame::Old),
        (&[0xad, 0x70, 0xa0, 0xe3, 0, 0, 0, 0xef], SignalFrame::Rt),
        (&[0x77, 0x27, 0, 0xdf], SignalFrame::Old),
        (&[0xad, 0x27, 0, 0xdf], SignalFrame::Rt),
        (&[0x4f, 0xf0, 0x77, 0x07, 0, 0xdf], SignalFrame::Old),
        (&[0x4f, 0xf0, 0xad, 0x07, 0, 0xdf], SignalFrame::Rt),
    ];
    FORMS.iter().find(|(form, _)| code.starts_with(form)).map(|(_, frame)| *frame)
}

/// Whether code follows the call of `main`: the result is already in r0, and `exit` is called.
pub(super) fn is_start_code(code: &[u8]) -> bool {
    let a32 = matches!(code, [_, _, _, 0xeb, ..]);
    let t32 = matches!(code, [_, first, _, second, ..] if first & 0xf8 == 0xf0 && second & 0xc0 == 0xc0);
    a32 || t32
}

/// Whether code makes the `exit` system call that follows a thread's first function: its number to r7, then `svc
/// 0`. Sources: glibc sysdeps/unix/sysv/linux/arm/clone.S, musl src/thread/arm/clone.s.
pub(super) fn ends_thread(code: &[u8]) -> bool {
    const FORMS: [&[u8]; 3] = [
        &[0x01, 0x70, 0xa0, 0xe3, 0, 0, 0, 0xef],
        &[0x01, 0x27, 0, 0xdf],
        &[0x4f, 0xf0, 0x01, 0x07, 0, 0xdf],
    ];
    FORMS.iter().any(|form| code.starts_with(form))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `mov r7, #NUMBER`, then `svc 0`: in A32, in 16-bit T32, and in 32-bit T32, which assemblers choose if `mov`
    /// must not set flags.
    fn calls_of(number: u8) -> [Vec<u8>; 3] {
        [
            vec![number, 0x70, 0xa0, 0xe3, 0, 0, 0, 0xef],
            vec![number, 0x27, 0, 0xdf],
            vec![0x4f, 0xf0, number, 0x07, 0, 0xdf],
        ]
    }

    #[test]
    fn ends_are_recognized_by_their_system_calls() {
        for (number, frame, ends) in [
            (1, None, true),
            (119, Some(SignalFrame::Old), false),
            (173, Some(SignalFrame::Rt), false),
            (4, None, false),
        ] {
            for code in calls_of(number) {
                assert_eq!((sigreturn(&code), ends_thread(&code)), (frame, ends), "{code:x?}");
            }
        }
    }
}
