//! A thread that has run no instruction yet: its program counter is where its creator's system call returns, its
//! stack is empty, and unwind information there describes the creator. The kernel returns 0 to the new thread
//! (clone(2)), and the code then branches to the start of threads. Input: a program counter, the result register,
//! code; output: where the thread continues. Not for: processes created by `fork`, which continue in their
//! parent's functions.

use super::Intel;
use super::instructions::decode_of;
use crate::addr::Avma;
use crate::walk::Code;

/// Limit on instructions that test the result, in glibc (sysdeps/unix/sysv/linux/x86_64/clone3.S and
/// i386/clone3.S) and in musl (src/thread/x86_64/clone.s): a test and two jumps.
const INSTRUCTIONS_MAX: u32 = 4;

/// The address where a thread continues if its program counter follows a system call that returned `result`, which
/// is 0, and the code tests that.
pub(in crate::walk) fn entry<P: Intel>(pc: Avma, result: u64, code: &dyn Code) -> Option<Avma> {
    // syscall; sysenter; int $0x80
    const CALLS: [[u8; 2]; 3] = [[0x0f, 0x05], [0x0f, 0x34], [0xcd, 0x80]];
    let call = code.glance(Avma(pc.0.checked_sub(2)?));
    if result != 0 || !CALLS.iter().any(|form| call.bytes().starts_with(form)) {
        return None;
    }
    let (mut at, mut is_tested) = (pc, false);
    for _ in 0..INSTRUCTIONS_MAX {
        let instruction = decode_of::<P>(code.code(at)?)?;
        let next = at + instruction.length as u64;
        at = match (instruction.map, instruction.opcode) {
            // test %eax,%eax
            (0, 0x85) if instruction.modrm == Some(0xc0) && instruction.rex & 5 == 0 => {
                is_tested = true;
                next
            }
            // On 0: equal, and neither less nor negative.
            (0, 0x74) | (1, 0x84) if is_tested => P::from(next, instruction.immediate),
            (0, 0x75 | 0x78 | 0x7c) | (1, 0x85 | 0x88 | 0x8c) if is_tested => next,
            _ => return is_tested.then_some(at),
        };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::{X86, X86_64};
    use crate::walk::text::Text;

    const TEXT: u64 = 0x40_1000;

    /// Where it continues, in bytes from the program counter.
    fn long(code: &[u8], result: u64) -> Option<u64> {
        let at = entry::<X86_64>(Avma(TEXT + 2), result, &Text::new(TEXT, code.to_vec()));
        at.map(|at| at.0 - TEXT - 2)
    }

    #[test]
    fn a_new_thread_continues_where_the_result_is_0() {
        // glibc 2.36, clone3: syscall; test %rax,%rax; jl error; je thread_start; ret; xor %ebp,%ebp
        const CLONE3: &[u8] =
            &[0x0f, 0x05, 0x48, 0x85, 0xc0, 0x0f, 0x8c, 1, 0, 0, 0, 0x74, 1, 0xc3, 0x31, 0xed, 0x90, 0x90];
        assert_eq!(long(CLONE3, 0), Some(12));
        // Its creator continues after the call, and without the system call there is no new thread.
        assert_eq!(long(CLONE3, 4711), None);
        assert_eq!(long(&[&[0x90, 0x90], &CLONE3[2..]].concat(), 0), None);
        // musl 1.2, __clone: syscall; test %eax,%eax; jnz 1f; xor %ebp,%ebp
        const CLONE: &[u8] = &[0x0f, 0x05, 0x85, 0xc0, 0x75, 0x11, 0x31, 0xed, 0x5f, 0x90, 0x90, 0x90];
        assert_eq!(long(CLONE, 0), Some(4));
        // Code that does not test the result, or cannot be read.
        assert_eq!(long(&[0x0f, 0x05, 0xc3, 0x90], 0), None);
        assert_eq!(long(&[0x0f, 0x05, 0x48, 0x85], 0), None);
        // glibc 2.36 for i386, clone3: int $0x80; test %eax,%eax; je thread_start; pop %esi
        let mut clone3 = vec![0xcd, 0x80, 0x85, 0xc0, 0x74, 0x09, 0x5e, 0x5b];
        clone3.resize(32, 0x90);
        let narrow = Text::new(TEXT, clone3);
        let at = entry::<X86>(Avma(TEXT + 2), 0, &narrow);
        assert_eq!(at, Some(Avma(TEXT + 2 + 13)));
    }
}
