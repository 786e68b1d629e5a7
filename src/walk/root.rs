//! The outermost frame of a thread: how a chain of frame records is known to have
//! reached it, and where it is for a thread that already ran when we attached.
//!
//! The C library's start code is built without frame pointers on common systems, so the
//! outermost record of a program holds an arbitrary word as the caller's frame pointer
//! (1 with glibc 2.36). That a chain ended is therefore proved by *where* it ended:
//! within [`START_CODE_BYTES`] of the stack pointer that the thread was born with.

use super::{Code, Ended, StackBytes, fp};
use crate::addr::Avma;

/// Room for the frames of the start code between the outermost frame record and the
/// thread's first stack pointer: `_start`, `__libc_start_main`, `__libc_start_call_main`
/// (432 bytes in glibc 2.36), or `clone3`, `start_thread` (208 bytes).
pub const START_CODE_BYTES: u64 = 1024;

/// How far above a thread's last frame record its birth is searched for.
const SEARCH_BYTES: u64 = 16 << 10;

/// Decides what it means that the chain goes on to `next`, which cannot be a record.
/// `above` is the stack pointer, `reached` the end of the last record.
#[must_use]
pub fn chain_end(next: u64, above: Avma, reached: Avma, stack_top: Option<Avma>) -> Ended {
    match stack_top {
        // On the thread's own stack position decides.
        Some(top) if reached <= top && top - above <= fp::MAX_STACK_BYTES => {
            if top - reached <= START_CODE_BYTES { Ended::Root } else { Ended::BadFrame }
        }
        // On another stack (a coroutine's), or an unknown one: a null frame pointer
        // marks the deepest frame (System V AMD64 ABI 3.4.1, AAPCS64 6.4.6).
        _ if next == 0 => Ended::Root,
        _ => Ended::BadFrame,
    }
}

/// Finds the stack pointer that a running thread was born with, by the return address
/// into the code that ends the thread: the words from `from` up are searched for one
/// that points to `exit(2)` being called with a function's result.
///
/// Sources: glibc sysdeps/unix/sysv/linux/x86_64/clone.S and clone3.S, musl
/// src/thread/x86_64/clone.s; aarch64: the same files of that architecture.
#[must_use]
pub fn find_birth(stack: StackBytes<'_>, from: Avma, code: &dyn Code) -> Option<Avma> {
    let mut at = Avma(from.0.next_multiple_of(8));
    let end = from.checked_add(SEARCH_BYTES)?;
    while at < end {
        let word = stack.word(at)?;
        if code.code(Avma(word)).is_some_and(ends_thread) {
            return Some(at + 8);
        }
        at = at + 8;
    }
    None
}

/// Whether code passes a function's result to the system call `exit`.
fn ends_thread(code: &[u8]) -> bool {
    const FORMS: [&[u8]; 6] = [
        // glibc x86_64: mov %rax,%rdi; mov $60,%eax; syscall
        &[0x48, 0x89, 0xc7, 0xb8, 0x3c, 0, 0, 0, 0x0f, 0x05],
        // mov %eax,%edi; mov $60,%eax; syscall
        &[0x89, 0xc7, 0xb8, 0x3c, 0, 0, 0, 0x0f, 0x05],
        // musl x86_64: mov %eax,%edi; xor %eax,%eax; mov $60,%al; syscall
        &[0x89, 0xc7, 0x31, 0xc0, 0xb0, 0x3c, 0x0f, 0x05],
        // the same with a 64-bit move
        &[0x48, 0x89, 0xc7, 0x31, 0xc0, 0xb0, 0x3c, 0x0f, 0x05],
        // aarch64, after blr: mov x8,#93; svc #0
        &[0xa8, 0x0b, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4],
        // aarch64: mov w8,#93; svc #0
        &[0xa8, 0x0b, 0x80, 0x52, 0x01, 0x00, 0x00, 0xd4],
    ];
    FORMS.iter().any(|form| code.starts_with(form))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct At(u64, &'static [u8]);
    impl Code for At {
        fn code(&self, at: Avma) -> Option<&[u8]> {
            (at.0 == self.0).then_some(self.1)
        }
    }

    #[test]
    fn a_thread_is_born_above_the_return_into_exit() {
        let words = [7u64, 0, 0x5000, 0x4321, 9];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let stack = StackBytes { base: Avma(0x1000), bytes: &bytes };
        let exit = At(0x4321, &[0x48, 0x89, 0xc7, 0xb8, 0x3c, 0, 0, 0, 0x0f, 0x05, 0xf4]);
        assert_eq!(find_birth(stack, Avma(0x1000), &exit), Some(Avma(0x1020)));
        let other = At(0x4321, &[0x48, 0x89, 0xc7, 0xc3]);
        assert_eq!(find_birth(stack, Avma(0x1000), &other), None);
    }

    #[test]
    fn hostile_addresses_end_the_search() {
        let stack = StackBytes { base: Avma(u64::MAX - 15), bytes: &[0; 16] };
        assert_eq!(find_birth(stack, Avma(u64::MAX - 15), &At(1, &[])), None);
    }
}
