//! JIT trampolines that only call: `sub $8,%rsp; call *%rcx; add $8,%rsp; ret`. CPython creates one per Python
//! function, so that profilers see a frame for it (Python/asm_trampoline.S, `python3 -X perf`). Input: a return
//! address, the row by the paths from there to a return, and code; output: whether the code before the call proves
//! that row.
//!
//! Paths from a return address alone prove nothing: the callee may never return, and then the code after the call
//! is another function, or a part of this one that is reached otherwise. Another function pops nothing that it did
//! not push, and these trampolines have no other parts.

use crate::addr::Avma;
use crate::arch::X86_64;
use crate::binary::frame_rule::{Cfa, Column, RETURN_ADDRESS, Row};
use crate::walk::Code;

/// Size of a return address.
const POINTER: i64 = 8;

/// Whether the row at a return address, in JIT code, pops exactly what the instruction before the call pushed, and
/// changes nothing else.
pub(in crate::walk) fn proves(row: &Row, at: Avma, code: &dyn Code) -> bool {
    let Some(pushed) = pushed_before(at, code) else { return false };
    let takes_off = row.cfa == Cfa::Register(X86_64::RSP as u8, pushed + POINTER)
        && row.columns[RETURN_ADDRESS] == Column::At(-POINTER)
        && row.columns[X86_64::RBP] == Column::Same;
    takes_off && !row.signal && code.traits(at).is_jit
}

/// The bytes by which the instruction before an indirect call lowers the stack pointer.
fn pushed_before(at: Avma, code: &dyn Code) -> Option<i64> {
    // `call *%rax` to `call *%rdi`, and `call *%r8` to `call *%r15`.
    let through_register = |bytes: &[u8]| matches!(bytes, [0xff, 0xd0..=0xd7]);
    let through_new_register = |bytes: &[u8]| matches!(bytes, [0x41, 0xff, 0xd0..=0xd7]);
    let before = |bytes: u64| {
        let start = Avma(at.0.checked_sub(bytes)?);
        code.code(start)?.get(..usize::try_from(bytes).ok()?)
    };
    let call_bytes = match (before(2), before(3)) {
        (_, Some(bytes)) if through_new_register(bytes) => 3,
        (Some(bytes), _) if through_register(bytes) => 2,
        _ => return None,
    };
    match before(call_bytes + 4)? {
        [0x48, 0x83, 0xec, pushed, ..] => (1..0x80).contains(pushed).then_some(i64::from(*pushed)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::X86_64;
    use crate::walk::CodeTraits;
    use crate::walk::engine::Proof;
    use crate::walk::intel::forward::{self, Callees, CodeEnd};
    use crate::walk::text::Text;

    const TEXT: u64 = 0x7000_0000_1000;

    /// Whether the row after the call in `code`, which ends at offset `before`, is proved.
    fn is_proved(code: &[u8], before: u64, made: bool) -> bool {
        let traits = CodeTraits { is_jit: made, ..CodeTraits::default() };
        let text = Text::new(TEXT, code).with_traits(traits);
        let at = Avma(TEXT + before);
        let leads = forward::follow::<X86_64>(at, true, &text, &mut Callees::default());
        let Some(CodeEnd::Returns(row, Proof::NeedsConfirmation)) = leads else { panic!("{leads:?}") };
        proves(&row, at, &text)
    }

    #[test]
    fn popping_what_was_pushed_is_proof() {
        // The trampolines of CPython follow one another.
        let trampoline = [0x48, 0x83, 0xec, 8, 0xff, 0xd1, 0x48, 0x83, 0xc4, 8, 0xc3];
        assert!(is_proved(&trampoline, 6, true));
        assert!(is_proved(&trampoline.repeat(3), 17, true));
        let by_r11 = [0x48, 0x83, 0xec, 24, 0x41, 0xff, 0xd3, 0x48, 0x83, 0xc4, 24, 0xc3];
        assert!(is_proved(&by_r11, 7, true));
        // A file has unwind information, or its functions may be larger than the visible part.
        assert!(!is_proved(&trampoline, 6, false));
    }

    #[test]
    fn code_that_does_not_mirror_the_push_is_no_proof() {
        // Another function follows the call.
        assert!(!is_proved(&[0x48, 0x83, 0xec, 8, 0xff, 0xd1, 0x31, 0xc0, 0xc3], 6, true));
        // More is popped than was pushed, or a register is restored.
        assert!(!is_proved(&[0x48, 0x83, 0xec, 8, 0xff, 0xd1, 0x48, 0x83, 0xc4, 24, 0xc3], 6, true));
        assert!(!is_proved(&[0x48, 0x83, 0xec, 16, 0xff, 0xd1, 0x48, 0x83, 0xc4, 8, 0x5d, 0xc3], 6, true));
        // Another instruction precedes the call.
        assert!(!is_proved(&[0x90, 0x90, 0x90, 0x90, 0xff, 0xd1, 0x48, 0x83, 0xc4, 8, 0xc3], 6, true));
        assert!(!is_proved(&[0xff, 0xd1, 0x48, 0x83, 0xc4, 8, 0xc3], 2, true));
        // The target of a direct call may end in a noreturn call.
        let direct = [0x48, 0x83, 0xec, 8, 0xe8, 0, 0x10, 0, 0, 0x48, 0x83, 0xc4, 8, 0xc3];
        assert!(!is_proved(&direct, 9, true));
    }
}
