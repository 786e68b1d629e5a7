//! Goroutines of Go on aarch64: their outermost frames, and the runtime's calls on another goroutine's stack.
//! Recognized by their instructions. Input: an address, code; output: yes or no.

use crate::addr::{Avma, CodeAddress};
use crate::walk::Code;
use crate::walk::aarch64::is_call;

const WORD: u64 = 4;

/// Whether an address is the second instruction of Go's `runtime.goexit`, the return address of a goroutine's
/// first function, set without a call. The function is a no-op, a noreturn call, and Go's padding to the next
/// multiple of 16 bytes.
/// Source: Go, src/runtime/asm_arm64.s.
pub(crate) fn is_in_goexit(at: Avma, code: &dyn Code) -> bool {
    const MOV_X0_X0: u32 = 0xaa00_03e0;
    let Some(start) = at.0.checked_sub(WORD).filter(|start| start % 16 == 0).map(Avma) else { return false };
    word(start, code) == Some(MOV_X0_X0)
        // bl
        && word(at, code).is_some_and(|second| second >> 26 == 0b10_0101)
        && word(start + 2 * WORD, code) == Some(0)
        && word(start + 3 * WORD, code) == Some(0)
}

/// Limit on instructions examined before an address, and after it.
const WORDS_MAX: u64 = 24;
/// `b`, by its first six bits.
const B: u32 = 0b00_0101;

/// Whether an address is in code of Go's runtime that runs on the stack of another goroutine (mostly `g0`, the
/// thread's own), until it switches back: `mcall`, `systemstack` and `morestack` make that goroutine the current
/// one, load its stack pointer and call. Their rows do not describe this, and the outermost frame of that stack is
/// no frame of their caller.
/// Source: Go, src/runtime/asm_arm64.s.
pub(crate) fn on_other_goroutine(address: CodeAddress, code: &dyn Code) -> bool {
    let at = address.at();
    // The instructions before it, last one first, while they are straight code.
    let behind = (1..=WORDS_MAX + 1).map_while(|words| word(Avma(at.0.checked_sub(words * WORD)?), code));
    let mut after = None;
    let has_loaded = behind.take_while(|instruction| !leaves(*instruction)).any(|instruction| {
        let loads = after.is_some_and(|after| loads_stack(instruction, after));
        after = Some(instruction);
        loads
    });
    // After the last call the stack pointer is loaded in the same way, to switch back.
    let mut ahead = (0..WORDS_MAX)
        .map_while(|words| word(at.checked_add(words * WORD)?, code))
        .take_while(|instruction| !leaves(*instruction));
    has_loaded
        && (address.is_return()
            || ahead.any(|instruction| is_call(instruction) || sets_stack_pointer(instruction).is_some()))
}

fn word(at: Avma, code: &dyn Code) -> Option<u32> {
    code.code(at)?.first_chunk().map(|word| u32::from_le_bytes(*word))
}

/// `ldr xN, [x28, #56]; mov sp, xN`: x28 is the current `g`, and 56 the offset of its `sched.sp`
/// (src/runtime/runtime2.go).
fn loads_stack(before: u32, instruction: u32) -> bool {
    const LDR_FROM_SCHED: u32 = 0xf940_1f80;
    sets_stack_pointer(instruction).is_some_and(|from| before == LDR_FROM_SCHED | from)
}

/// The register number of `mov sp, xN`.
fn sets_stack_pointer(instruction: u32) -> Option<u32> {
    let from = instruction >> 5 & 31;
    (instruction & 0xffff_fc1f == 0x9100_001f && from != 31).then_some(from)
}

/// `b`, `br`, `ret`, and invalid instructions.
fn leaves(instruction: u32) -> bool {
    instruction >> 26 == B
        || matches!(instruction & 0xffff_fc1f, 0xd61f_0000 | 0xd65f_0000)
        || instruction == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::walk::text::Text;

    const TEXT: u64 = 0x8_7000;
    const LDR_X3_SCHED: u32 = 0xf940_1f83;
    const MOV_SP_X3: u32 = 0x9100_007f;
    const LDR_X3: u32 = 0xf940_0343; // [x26]
    const BLR_X3: u32 = 0xd63f_0060;
    const BL_SAVE_G: u32 = 0x9400_0c50;
    const RET: u32 = 0xd65f_03c0;

    /// The instructions, by number, before which a thread is on another goroutine's stack, and those that are
    /// return addresses on it.
    fn on_other(words: &[u32]) -> (Vec<usize>, Vec<usize>) {
        let text = Text::of_words(TEXT, words);
        let at = |number: usize| Avma(TEXT + 4 * number as u64);
        let is = |address| on_other_goroutine(address, &text);
        let stopped = (0..words.len()).filter(|number| is(CodeAddress::Pc(at(*number))));
        let calls = (1..words.len()).filter(|number| is_call(words[number - 1]));
        (stopped.collect(), calls.filter(|number| is(CodeAddress::Return(at(*number)))).collect())
    }

    #[test]
    fn systemstack_returns_to_the_stack_of_its_caller() {
        let systemstack = [
            BL_SAVE_G,
            LDR_X3_SCHED,
            MOV_SP_X3,
            LDR_X3,
            BLR_X3, //
            LDR_X3,
            BL_SAVE_G,
            LDR_X3_SCHED,
            MOV_SP_X3,
            LDR_X3,
            RET,
            LDR_X3,
            BLR_X3,
        ];
        assert_eq!(on_other(&systemstack), (vec![3, 4, 5, 6, 7, 8], vec![5, 7]));
        // Another field of another structure.
        let mut other = systemstack;
        other[1] = LDR_X3;
        other[7] = LDR_X3;
        assert_eq!(on_other(&other), (vec![], vec![]));
    }

    #[test]
    fn mcall_does_not_return() {
        let mcall = [LDR_X3_SCHED, MOV_SP_X3, 0xaa1f_03fd, LDR_X3, BLR_X3, 0x1400_0d73, LDR_X3];
        assert_eq!(on_other(&mcall), (vec![2, 3, 4], vec![5]));
    }

    #[test]
    fn hostile_addresses_are_neither() {
        let text = Text::new(TEXT, vec![0x7f, 0, 0]);
        for at in [0, 1, 4, TEXT, TEXT + 4, u64::MAX] {
            assert!(!is_in_goexit(Avma(at), &text));
            for address in [CodeAddress::Pc(Avma(at)), CodeAddress::Return(Avma(at))] {
                assert!(!on_other_goroutine(address, &text), "{at:#x}");
            }
        }
    }
}
