//! i386: whether ebp points to the frame record of the function at a program counter, and if not, the slot of the
//! return address. Input: mapped code; output: a stack slot. Not for: unwind information or paths to a return,
//! which have priority (see `methods.rs`).
//!
//! These are patterns of compiler output; if none matches, ebp is assumed to point to the record.

use super::POINTER;
use crate::addr::Avma;
use crate::walk::Code;

/// The stack slot of the return address if the leaf has no frame record at `pc`, or `None` if ebp points to its
/// record (or the code is unknown).
///
/// ```text
/// at                    return address in
/// endbr32               [esp]      function entry
/// push %ebp             [esp]      entry, followed by mov %esp,%ebp
/// mov %esp,%ebp         [esp+4]    ebp was pushed, not yet set
/// ret                   [esp]      ebp was popped
/// jmp *mem              [esp]      PLT stub, tail call through a pointer
/// ```
pub(super) fn unframed_return_slot(pc: Avma, sp: Avma, code: &dyn Code) -> Option<Avma> {
    const ENDBR32: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfb];
    const PUSH_EBP: u8 = 0x55;
    let at = code.code(pc)?;
    let before = || code.code(Avma(pc.0.wrapping_sub(1)))?.first().copied();
    let moves_esp_to_ebp = |code: &[u8]| code.starts_with(&[0x89, 0xe5]) || code.starts_with(&[0x8b, 0xec]);
    match at {
        _ if at.starts_with(&ENDBR32) => Some(sp),
        [PUSH_EBP, rest @ ..] if moves_esp_to_ebp(rest) => Some(sp),
        _ if moves_esp_to_ebp(at) && before()? == PUSH_EBP => Some(Avma(sp.0.wrapping_add(POINTER))),
        // ret; repz ret; ret imm16; bnd ret
        [0xc3 | 0xc2, ..] | [0xf2 | 0xf3, 0xc3, ..] => Some(sp),
        // jmp *mem; jmp *N(%ebx)
        [0xff, 0x25 | 0xa3, ..] => Some(sp),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::walk::text::Text;

    #[test]
    fn prologues_and_returns_have_no_record() {
        // endbr32; push %ebp; mov %esp,%ebp; nop; pop %ebp; ret
        let text = Text::new(0x1000, [0xf3, 0x0f, 0x1e, 0xfb, 0x55, 0x89, 0xe5, 0x90, 0x5d, 0xc3]);
        let slot = |at: u64| unframed_return_slot(Avma(0x1000 + at), Avma(0x100), &text).map(|slot| slot.0);
        assert_eq!([0, 4, 5].map(slot), [Some(0x100), Some(0x100), Some(0x104)]);
        assert_eq!([7, 8, 9].map(slot), [None, None, Some(0x100)]);
        assert_eq!(slot(0x100), None);
    }
}
