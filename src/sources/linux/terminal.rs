//! A terminal that a command of another user shares with root: the command must not type into it.
//!
//! TIOCSTI puts a byte into the input of a process's own terminal, and TIOCLINUX pastes into a console; the shell of
//! the user who called stackprof would run what was typed. A seccomp filter refuses both for the command and its
//! children. Its other calls, its session and its job control are unchanged, which a terminal of its own would change.
#![allow(unsafe_code)]

use std::io;

/// Architecture and number of each call of `ioctl` that this processor's kernel serves (linux/audit.h).
#[cfg(target_arch = "x86_64")]
const IOCTLS: [(u32, u32); 4] = [
    (0xc000_003e, 16),
    // x32: the number that it lists, and the one that old kernels serve, too.
    (0xc000_003e, 0x4000_0000 | 514),
    (0xc000_003e, 0x4000_0000 | 16),
    (0x4000_0003, 54),
];
#[cfg(target_arch = "aarch64")]
const IOCTLS: [(u32, u32); 2] = [(0xc000_00b7, 29), (0x4000_0028, 54)];

/// asm-generic/ioctls.h. The kernel looks at 32 bits only.
const TIOCSTI: u32 = 0x5412;
const TIOCLINUX: u32 = 0x541c;

/// Offsets in `struct seccomp_data`; of the low half of the second argument.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const REQUEST: u32 = 24;

/// Whether a command of this process has its terminal.
pub(super) fn is_shared() -> bool {
    let has_controlling = || std::fs::File::open("/dev/tty").is_ok();
    // SAFETY: isatty(3) takes a number.
    let is_terminal = |stream: i32| unsafe { libc::isatty(stream) == 1 };
    [0, 1, 2].into_iter().any(is_terminal) || has_controlling()
}

/// The filter's program.
pub(super) struct InputFilter(Vec<libc::sock_filter>);

impl InputFilter {
    pub(super) fn new() -> InputFilter {
        let load = |offset| instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset);
        let equal =
            |value, then, or| instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, then, or, value);
        let answer = |value| instruction(libc::BPF_RET | libc::BPF_K, 0, 0, value);
        let mut program = Vec::new();
        for (index, (architecture, number)) in IOCTLS.into_iter().enumerate() {
            // From the last instruction of this block behind the answer that follows all blocks.
            let to_request = ((IOCTLS.len() - 1 - index) * 4 + 1) as u8;
            program.extend([load(ARCHITECTURE), equal(architecture, 0, 2), load(NUMBER)]);
            program.push(equal(number, to_request, 0));
        }
        program.push(answer(libc::SECCOMP_RET_ALLOW));
        program.extend([load(REQUEST), equal(TIOCSTI, 1, 0), equal(TIOCLINUX, 0, 1)]);
        program.push(answer(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32));
        program.push(answer(libc::SECCOMP_RET_ALLOW));
        InputFilter(program)
    }

    /// Installs the filter in the calling process, for good. For a new process between fork and `exec`: only makes
    /// system calls, does not allocate. Without CAP_SYS_ADMIN the process then gains no privileges by `exec`.
    ///
    /// # Errors
    /// The kernel has no such filters; the process must then not continue.
    pub(super) fn install(&self) -> io::Result<()> {
        let program =
            libc::sock_fprog { len: self.0.len() as libc::c_ushort, filter: self.0.as_ptr().cast_mut() };
        let set = |option: libc::c_int, value: libc::c_ulong, pointer: *const libc::sock_fprog| {
            // SAFETY: prctl(2) with numbers and, for PR_SET_SECCOMP, a pointer to a live program of the stated length,
            // which the kernel copies.
            unsafe { libc::prctl(option, value, pointer, 0 as libc::c_ulong, 0 as libc::c_ulong) }
        };
        let filter =
            || set(libc::PR_SET_SECCOMP, libc::c_ulong::from(libc::SECCOMP_MODE_FILTER), &raw const program);
        if filter() == 0 {
            return Ok(());
        }
        if set(libc::PR_SET_NO_NEW_PRIVS, 1, std::ptr::null()) == 0 && filter() == 0 {
            return Ok(());
        }
        Err(io::Error::last_os_error())
    }
}

fn instruction(code: u32, then: u8, or: u8, value: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: then, jf: or, k: value }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the program on a call.
    fn answer(architecture: u32, number: u32, request: u64) -> u32 {
        let InputFilter(program) = InputFilter::new();
        let (mut at, mut value) = (0, 0);
        loop {
            let libc::sock_filter { code, jt, jf, k } = program[at];
            at += 1;
            match u32::from(code) {
                code if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS => {
                    value = match k {
                        NUMBER => number,
                        ARCHITECTURE => architecture,
                        REQUEST => request as u32,
                        other => unreachable!("{other}"),
                    };
                }
                code if code == libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K => {
                    at += usize::from(if value == k { jt } else { jf });
                }
                code if code == libc::BPF_RET | libc::BPF_K => return k,
                other => unreachable!("{other}"),
            }
        }
    }

    #[test]
    fn only_calls_that_type_are_refused() {
        let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
        for (architecture, number) in IOCTLS {
            for (request, expected) in [
                (u64::from(TIOCSTI), refused),
                (u64::from(TIOCLINUX), refused),
                // The upper half is ignored by the kernel.
                (0xffff_ffff_0000_0000 | u64::from(TIOCSTI), refused),
                (0x5401, libc::SECCOMP_RET_ALLOW),
                (0x5413, libc::SECCOMP_RET_ALLOW),
            ] {
                assert_eq!(answer(architecture, number, request), expected, "{number:x} {request:x}");
            }
            let other = answer(architecture, number + 1, TIOCSTI.into());
            assert_eq!(other, libc::SECCOMP_RET_ALLOW);
        }
        assert_eq!(answer(1, 16, TIOCSTI.into()), libc::SECCOMP_RET_ALLOW);
    }
}
