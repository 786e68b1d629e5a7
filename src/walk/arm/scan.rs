//! The last resort: a word on the stack that is a return address. Input: the frame where the walk is stuck;
//! output: the frame that the word leads to. Stale words look like live ones, so a scanned stack is never
//! complete.

use super::call::{Call, before};
use super::frame::{Caller, Frame};
use super::{SP, T32};
use crate::addr::Avma;
use crate::arch::UNKNOWN_REGISTER;
use crate::walk::{Code, Input};

/// Distance above the stack pointer that is searched for a return address.
const BYTES_MAX: u64 = 4096;

/// The nearest word above the stack pointer that is a return address. `confirmed`: its call must lead to the
/// function of `stuck`; otherwise it must not be known to lead elsewhere.
pub(super) fn caller(stuck: &Frame, confirmed: bool, input: &Input<'_>) -> Option<Caller> {
    let mut slot = Avma(stuck.sp().0.checked_next_multiple_of(4)?);
    let end = slot.checked_add(BYTES_MAX)?;
    // A leaf may not have saved its link register yet.
    if !stuck.address.is_return() {
        let link = stuck.registers[usize::from(super::LR)];
        if is_caller(link, stuck, true, input.code) {
            return Some(found(stuck, link, stuck.sp()));
        }
    }
    while slot < end {
        let word = stuck.inner().word(slot, input).ok()?;
        slot = slot + 4;
        if is_caller(word, stuck, confirmed, input.code) {
            return Some(found(stuck, word, slot));
        }
    }
    None
}

fn found(stuck: &Frame, raw: u64, sp: Avma) -> Caller {
    let mut registers = [UNKNOWN_REGISTER; 16];
    registers[usize::from(SP)] = sp.0;
    stuck.called_from(raw, registers)
}

/// Whether a word is the return address of a call that leads, or may lead, to the function of `stuck`.
fn is_caller(word: u64, stuck: &Frame, confirmed: bool, code: &dyn Code) -> bool {
    if stuck.is_m_profile && word & T32 == 0 || !code.is_code(Avma((word & !T32).wrapping_sub(1))) {
        return false;
    }
    let function = code.function(stuck.address.lookup().at());
    match (before(Avma(word), code), function) {
        (None, _) => false,
        (Some(Call::To(target)), Some(function)) => target.0 & !T32 == function.start.0,
        (Some(_), _) => !confirmed,
    }
}
