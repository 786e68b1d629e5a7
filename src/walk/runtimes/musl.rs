//! The caller of a frame with unknown code, if only one word can be its return address: the first function of a
//! musl thread ends in a noreturn call, and has no unwind information. Every frame between it and the code that
//! ends the thread would have a return address on the stack. So if the first return address above is the one into
//! that code, it is the frame's own, and no frame is missing. Input: the frame, the copied stack; output: its
//! caller. Not for: other scans, which prove nothing (`x86_64/scan.rs`).

use crate::addr::{Avma, CodeAddress};
use crate::arch::X86_64;
use crate::binary::frame_rule::RETURN_ADDRESS;
use crate::walk::Input;
use crate::walk::frame::Frame;
use crate::walk::processor::Processor;

/// Largest frame of this function, which saves few registers.
const BYTES_MAX: u64 = 512;
/// Largest distance of the first return address from the thread's initial stack pointer.
const FROM_TOP_BYTES: u64 = 16;

/// The frame that ends the thread, if the stack of `stuck` has no other return address below.
pub(in crate::walk) fn only_return_address(
    stuck: &Frame<X86_64>,
    input: &Input<'_>,
    mut returns: impl FnMut(Avma) -> bool,
) -> Option<Frame<X86_64>> {
    let mut slot = Avma(stuck.sp().0.checked_next_multiple_of(8)?);
    let end = slot.checked_add(BYTES_MAX)?;
    while slot < end {
        let word = input.read::<u64>(slot)?;
        let address = CodeAddress::Return(Avma(word));
        // Checked first, since the answer is cached.
        if input.code.is_code(address.lookup().at()) && returns(Avma(word)) {
            let is_at_top = input.stack_top.is_none_or(|top| slot.0.abs_diff(top.0) <= FROM_TOP_BYTES);
            let ends_thread = input.code.code(Avma(word)).is_some_and(X86_64::ends_thread);
            let mut next = *stuck;
            next.address = address;
            next.registers[X86_64::RSP] = slot.0 + 8;
            next.registers[RETURN_ADDRESS] = word;
            return (is_at_top && ends_thread).then_some(next);
        }
        slot = slot + 8;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::walk::StackBytes;
    use crate::walk::text::Text;

    const TEXT: u64 = 0x40_1000;
    const STACK: u64 = 0x7fff_0000_1000;
    /// The return address of `start`, and another one.
    const INTO_CLONE: u64 = TEXT + 3;
    const INTO_OTHER: u64 = TEXT + 17;

    /// __clone of musl 1.1 and 1.2 (src/thread/x86_64/clone.s): call *%r9; mov %eax,%edi; xor %eax,%eax; mov $60,%al;
    /// syscall; hlt; then elsewhere call *%r9; ret
    const CODE: [u8; 18] = [
        0x41, 0xff, 0xd1, 0x89, 0xc7, 0x31, 0xc0, 0xb0, 0x3c, 0x0f, 0x05, 0xf4, 0x90, 0x90, 0x41, 0xff, 0xd1,
        0xc3,
    ];

    /// The stack pointer of the caller found by these words above the stack pointer.
    fn found(words: &[u64], stack_top: Option<u64>) -> Option<u64> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut registers = X86_64 { rip: 0x50_0000, ..X86_64::default() };
        registers.gpr[X86_64::RSP] = STACK;
        let text = Text::new(TEXT, CODE);
        let input = Input {
            stack_top: stack_top.map(Avma),
            max_depth: 9,
            ..Input::new(StackBytes { base: Avma(STACK), bytes: &bytes }, &text)
        };
        let stuck = Frame::<X86_64>::new(&registers, u64::MAX);
        let next = only_return_address(&stuck, &input, |at| X86_64::returns(at, &text))?;
        assert_eq!(next.address, CodeAddress::Return(Avma(INTO_CLONE)));
        Some(next.registers[X86_64::RSP])
    }

    #[test]
    fn the_only_return_address_left_is_the_frames_own() {
        // Saved by start: rbx, rbp, and 8 bytes.
        assert_eq!(found(&[7, TEXT + 1, 0, INTO_CLONE, 9], None), Some(STACK + 32));
        assert_eq!(found(&[7, INTO_CLONE, 9], Some(STACK + 8)), Some(STACK + 16));
        // Another one may belong to a frame in between.
        assert_eq!(found(&[7, INTO_OTHER, INTO_CLONE, 9], None), None);
        // A stale one, far from the thread's initial stack pointer.
        assert_eq!(found(&[7, INTO_CLONE, 9], Some(STACK + 64)), None);
        assert_eq!(found(&[7, 8, 9], None), None);
        assert_eq!(found(&[0; 80], None), None);
    }
}
