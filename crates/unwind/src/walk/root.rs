//! The outermost frame of a thread: proof that a chain of frame records has reached it, and its address for a
//! thread that was running before we attached.
//!
//! The C library's start code is built without frame pointers on common systems, so the outermost record of a
//! program has an arbitrary word as the caller's frame pointer (1 with glibc 2.36). So a chain is proved complete
//! by *where* it ended, within [`START_CODE_BYTES`] of the thread's initial stack pointer, and by the target of
//! its last return address: the code that ends a program or a thread.

use super::input::STACK_BYTES_MAX;
use super::processor::Processor;
use super::{Code, Input, StackBytes, StackEnd};
use crate::addr::{Avma, CodeAddress};

/// Space for the frames of start code between the outermost frame record and the thread's initial stack pointer:
/// `_start`, `__libc_start_main`, `__libc_start_call_main` (432 bytes in glibc 2.36), or `clone3`, `start_thread`
/// (208 bytes).
const START_CODE_BYTES: u64 = 1024;

/// Distance above a thread's last frame record that is searched for its initial stack pointer.
pub const SEARCH_BYTES: u64 = 16 << 10;

/// The end of a chain of frame records.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chain {
    /// The saved frame pointer that leads to no further record.
    pub next: u64,
    /// The stack pointer.
    pub above: Avma,
    /// End of the last record; the stack pointer if there was none.
    pub reached: Avma,
    /// Return address of the last record, if there was one.
    pub outermost: Option<Avma>,
}

impl Chain {
    /// The stack end if the chain ends here.
    #[must_use]
    pub(super) fn end<P: Processor>(&self, input: &Input<'_>) -> StackEnd {
        let lookup = |outermost| CodeAddress::Return(outermost).lookup().at();
        let begins_threads =
            self.outermost.and_then(|outermost| input.code.begins_threads(lookup(outermost)));
        let whole = match (input.stack_top, self.outermost) {
            // In Mach-O images, the start of threads is known.
            _ if begins_threads.is_some() => begins_threads == Some(true) && self.next == 0,
            _ if input.fp_always && self.next == 0 => true,
            // In the thread's first function, which has no caller: its stack does not even have a return address.
            (top, None) => top == Some(self.above),
            // On the thread's own stack, position and the code returned to decide.
            (Some(top), Some(outermost)) if self.reached <= top && top - self.above <= STACK_BYTES_MAX => {
                top - self.reached <= START_CODE_BYTES
                    && input.code.code(outermost).is_none_or(|code| P::is_start_code(code))
            }
            // On another stack (a coroutine's), or an unknown one: a null frame pointer marks the deepest frame
            // (System V AMD64 ABI 3.4.1, AAPCS64 6.4.6) if code keeps one. The caller checks that
            // ([`Chain::place_decides`]).
            _ => self.next == 0,
        };
        match whole {
            true => StackEnd::Root,
            // A register that happens to be 0.
            false if self.next == 0 => StackEnd::UnverifiedFrameRecord,
            false => StackEnd::BrokenFrameChain,
        }
    }

    /// Whether more than a null frame pointer decides the result of [`Chain::end`]: the ABI, the start of threads,
    /// or the position on the thread's own stack and known code there.
    #[must_use]
    pub(super) fn place_decides(&self, input: &Input<'_>) -> bool {
        let on_own_stack =
            input.stack_top.is_some_and(|top| self.reached <= top && top - self.above <= STACK_BYTES_MAX);
        let begins_threads = |at| input.code.begins_threads(CodeAddress::Return(at).lookup().at()).is_some();
        let is_known = |at| input.code.code(at).is_some();
        input.fp_always
            || self.outermost.is_some_and(begins_threads)
            || on_own_stack && self.outermost.is_none_or(is_known)
    }
}

/// Whether a return address is in the start code of a Mach-O image, where the result of `main` is passed to
/// `exit`. In dyld for Intel before macOS 12 the word above the null frame pointer of the outermost record is
/// argc, not a return address (dyld 852, src/dyldStartup.s).
#[must_use]
pub(super) fn ends_program<P: Processor>(returned_to: Avma, code: &dyn Code) -> bool {
    code.begins_threads(CodeAddress::Return(returned_to).lookup().at()) == Some(true)
        && code.code(returned_to).is_some_and(P::is_start_code)
}

/// Finds the initial stack pointer of a running thread by the return address into the code that ends the thread:
/// searches the words from `from` up for one that points to a call of `exit(2)` with a function's result.
///
/// Sources: glibc sysdeps/unix/sysv/linux/x86_64/clone.S and clone3.S, musl src/thread/x86_64/clone.s; the same
/// files for aarch64.
#[must_use]
pub(super) fn find_stack_top<P: Processor>(
    stack: StackBytes<'_>,
    from: Avma,
    code: &dyn Code,
) -> Option<Avma> {
    let mut at = from.0.checked_next_multiple_of(P::POINTER_BYTES).map(Avma)?;
    let end = from.checked_add(SEARCH_BYTES)?;
    while at < end {
        let word = stack.read::<P::Word>(at)?;
        if code.code(P::begin(Avma(word)).0).is_some_and(P::ends_thread) {
            return Some(at + P::POINTER_BYTES);
        }
        at = at + P::POINTER_BYTES;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::text::Text;
    use super::*;
    use crate::arch::{Aarch64, Arch, X86, X86_64};

    #[test]
    fn a_thread_begins_above_the_return_into_exit() {
        let words = [7u64, 0, 0x5000, 0x4321, 9];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let stack = StackBytes { base: Avma(0x1000), bytes: &bytes };
        let exit = Text::new(0x4321, [0x48, 0x89, 0xc7, 0xb8, 0x3c, 0, 0, 0, 0x0f, 0x05, 0xf4]);
        assert_eq!(find_stack_top::<X86_64>(stack, Avma(0x1000), &exit), Some(Avma(0x1020)));
        let other = Text::new(0x4321, [0x48, 0x89, 0xc7, 0xc3]);
        assert_eq!(find_stack_top::<X86_64>(stack, Avma(0x1000), &other), None);
    }

    #[test]
    fn near_the_stack_top_a_chain_is_complete_only_if_it_returns_to_start_code() {
        let check = |arch, code: &'static [u8], next, expected| {
            let stack = StackBytes { base: Avma(0x1000), bytes: &[] };
            let code = Text::new(0x4321, code);
            let stack_top = Some(Avma(0x2000));
            let input = Input { stack_top, max_depth: 9, ..Input::new(stack, &code) };
            let outermost = Some(Avma(0x4321));
            let (above, reached) = (Avma(0x1000), Avma(0x1f00));
            let chain = Chain { next, above, reached, outermost };
            let ended = match arch {
                Arch::X86_64 => chain.end::<X86_64>(&input),
                Arch::Aarch64 => chain.end::<Aarch64>(&input),
                Arch::X86 => chain.end::<X86>(&input),
                Arch::Arm => unreachable!("tested where its walker is"),
            };
            assert_eq!(ended, expected, "{:x?}", code.bytes());
        };
        check(Arch::X86_64, &[0x89, 0xc7, 0xe8, 0x2f, 0x74, 0x01, 0x00], 1, StackEnd::Root);
        check(Arch::X86_64, &[0x64, 0x48, 0x89, 0x04, 0x25, 0x30, 0x06, 0, 0], 1, StackEnd::Root);
        check(Arch::X86_64, &[0x48, 0x8b, 0x45, 0xf8], 1, StackEnd::BrokenFrameChain);
        // A register that happens to be 0.
        check(Arch::X86_64, &[0x48, 0x8b, 0x45, 0xf8], 0, StackEnd::UnverifiedFrameRecord);
        // bl exit; ldr x0, [x19]
        check(Arch::Aarch64, &[0x10, 0x20, 0x00, 0x94], 1, StackEnd::Root);
        check(Arch::Aarch64, &[0x60, 0x02, 0x40, 0xf9], 1, StackEnd::BrokenFrameChain);
        // mov (%rsp,%rdx,4),%rax contains the last byte of bl
        check(Arch::X86_64, &[0x48, 0x8b, 0x44, 0x94, 0x10], 1, StackEnd::BrokenFrameChain);
        // stp x20, x19, [sp, #16] contains the byte of hlt
        check(Arch::Aarch64, &[0xf4, 0x4f, 0x01, 0xa9], 1, StackEnd::BrokenFrameChain);
    }

    #[test]
    fn only_the_first_function_of_a_thread_has_an_empty_stack() {
        let check = |above: u64, stack_top, expected| {
            let stack = StackBytes { base: Avma(above), bytes: &[] };
            let nowhere = Text::default();
            let input = Input { stack_top, max_depth: 9, ..Input::new(stack, &nowhere) };
            let above = Avma(above);
            let chain = Chain { next: 0, above, reached: above, outermost: None };
            assert_eq!(chain.end::<X86_64>(&input), expected, "{above:?}");
        };
        check(0x1000, Some(Avma(0x1000)), StackEnd::Root);
        check(0xff8, Some(Avma(0x1000)), StackEnd::UnverifiedFrameRecord);
        check(0x1000, None, StackEnd::UnverifiedFrameRecord);
    }

    #[test]
    fn hostile_addresses_end_the_search() {
        let stack = StackBytes { base: Avma(u64::MAX - 15), bytes: &[0; 16] };
        for from in [u64::MAX - 15, u64::MAX - 7, u64::MAX - 3, u64::MAX] {
            assert_eq!(find_stack_top::<X86_64>(stack, Avma(from), &Text::default()), None, "{from:#x}");
        }
    }
}
