//! A frame with saved registers that libgcc replaces, one after the other, while it installs an exception's
//! landing pad (unwind-dw2.c, `uw_install_context_1`): which of them the walk may still use. Input: this frame,
//! its caller, the copied stack; output: the frame's original return address, and whether a replaced word was
//! used.

use crate::addr::{Avma, CodeAddress};
use crate::walk::StackBytes;
use crate::walk::frame::Frame;
use crate::walk::processor::Processor;

/// Largest frame of `_Unwind_Resume` and similar functions: two contexts and a frame state.
const FRAME_BYTES_MAX: u64 = 4096;
/// Word indexes of the CFA and the return address in `struct _Unwind_Context` (`cfa`, `ra`): after
/// `reg[DWARF_FRAME_REGISTERS + 1]`, of which there are 17 on both processors (gcc/config/i386/i386.h). The
/// address of the return address is the `reg` of its column.
const CFA: u64 = 18;
const RA: u64 = 19;

/// A frame of the walk that may be partly replaced: libgcc overwrites its saved words, the return address last,
/// with those saved by the frames above. Its original return address is stored in the context that unwinding
/// started from. Other replaced words can be recognized by their second copy further up.
#[derive(Clone, Copy, Debug)]
pub(in crate::walk) struct LandingPad {
    /// Its CFA.
    cfa: Avma,
    /// The return address in its slot, if it is not known to be the original.
    return_address: Option<u64>,
    frame_pointer: u64,
    /// A later frame was found by this frame pointer.
    frame_pointer_used: bool,
}

impl LandingPad {
    /// For `frame`, which leads to `caller`; `caller` gets the stored return address.
    pub(in crate::walk) fn new<P: Processor>(
        frame: &Frame<P>,
        caller: &mut Frame<P>,
        stack: StackBytes<'_>,
    ) -> LandingPad {
        let cfa = caller.sp();
        let written = written_return_address::<P>(frame.sp(), cfa, stack);
        if let Some(written) = written {
            caller.registers[P::RETURN_COLUMN] = written;
            caller.address = CodeAddress::Return(Avma(written));
        }
        LandingPad {
            cfa,
            return_address: written.is_none().then_some(caller.registers[P::RETURN_COLUMN]),
            frame_pointer: caller.registers[usize::from(P::FRAME_POINTER)],
            frame_pointer_used: false,
        }
    }

    /// Records a later frame with a caller found by its frame pointer, or in an unusual way.
    pub(in crate::walk) fn uses_frame_pointer(&mut self, value: u64) {
        self.frame_pointer_used |= value == self.frame_pointer;
    }

    /// Whether no word that the walk used was replaced; `end` is the end of the walk.
    pub(in crate::walk) fn is_intact<P: Processor>(&self, end: Avma, stack: StackBytes<'_>) -> bool {
        if self.return_address.is_none() && !self.frame_pointer_used {
            return true;
        }
        let mut at = self.cfa;
        while at < end {
            let Some(word) = stack.read::<P::Word>(at) else { return false };
            if Some(word) == self.return_address || self.frame_pointer_used && word == self.frame_pointer {
                return false;
            }
            at = at + P::POINTER_BYTES;
        }
        true
    }
}

/// The original return address of the frame between `sp` and `cfa` by its context (`uw_init_context_1` puts
/// `__builtin_return_address` there): the only context that refers to the frame's own return address. `None`
/// without one.
fn written_return_address<P: Processor>(sp: Avma, cfa: Avma, stack: StackBytes<'_>) -> Option<u64> {
    let pointer = P::POINTER_BYTES;
    let bytes = cfa.0.checked_sub(sp.0).filter(|bytes| *bytes <= FRAME_BYTES_MAX)?;
    let word = |context: Avma, words: u64| stack.read::<P::Word>(context + words * pointer);
    let mut written = None;
    for at in (0..bytes.checked_sub(RA * pointer)?).step_by(pointer as usize).map(|offset| sp + offset) {
        let is_own =
            word(at, P::RETURN_COLUMN as u64) == Some(cfa.0 - pointer) && word(at, CFA) == Some(cfa.0);
        if is_own {
            let found = word(at, RA)?;
            if written.is_some_and(|written| written != found) {
                return None;
            }
            written = Some(found);
        }
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::X86_64;
    use crate::binary::frame_rule::RETURN_ADDRESS;

    type Frame = crate::walk::frame::Frame<X86_64>;
    const RBP: usize = X86_64::RBP;

    const BASE: u64 = 0x1000;

    /// The frame between `BASE` and `BASE + bytes`, and its caller by its row.
    fn frames(bytes: u64, return_address: u64, frame_pointer: u64) -> (Frame, Frame) {
        let mut registers = X86_64 { rip: 0x40_0000, ..X86_64::default() };
        registers.gpr[X86_64::RSP] = BASE;
        let frame = Frame::new(&registers, u64::MAX);
        let mut caller = frame;
        caller.address = CodeAddress::Return(Avma(return_address));
        caller.registers[X86_64::RSP] = BASE + bytes;
        caller.registers[RBP] = frame_pointer;
        caller.registers[RETURN_ADDRESS] = return_address;
        (frame, caller)
    }

    #[test]
    fn replaced_words_have_a_second_copy_above() {
        let words: [u64; 6] = [7, 0x4001, 0x1030, 0x4002, 9, 0x4003];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let stack = StackBytes { base: Avma(BASE), bytes: &bytes };
        let is_intact = |return_address, frame_pointer, used| {
            let (frame, mut caller) = frames(0, return_address, frame_pointer);
            let mut landing_pad = LandingPad::new(&frame, &mut caller, stack);
            if used {
                landing_pad.uses_frame_pointer(frame_pointer);
            }
            landing_pad.uses_frame_pointer(0x9999);
            landing_pad.is_intact::<X86_64>(Avma(0x1028), stack)
        };
        assert!(is_intact(0x4000, 0x1010, true));
        assert!(!is_intact(0x4002, 0x1010, true), "the return address of a frame above");
        assert!(!is_intact(0x4000, 0x1030, true), "the frame pointer of a frame above");
        assert!(is_intact(0x4000, 0x1030, false), "which nothing was found by");
        assert!(is_intact(0x4003, 0x1010, true), "above the end of the walk");
    }

    /// A frame of 30 words with contexts at these words, each as (cfa, ra), below two words of its callers; `slot`
    /// is the word of its return address.
    fn with_contexts(contexts: &[(usize, u64, u64)], slot: u64) -> (u64, bool) {
        let mut words = [0u64; 32];
        let cfa = BASE + 30 * 8;
        for (at, cfa, ra) in contexts {
            words[at + 16] = cfa - 8;
            words[at + 18] = *cfa;
            words[at + 19] = *ra;
        }
        words[29] = slot;
        words[30] = 0x4002;
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let stack = StackBytes { base: Avma(BASE), bytes: &bytes };
        let (frame, mut caller) = frames(30 * 8, slot, 0x1111);
        let landing_pad = LandingPad::new(&frame, &mut caller, stack);
        assert_eq!(caller.address, CodeAddress::Return(Avma(caller.registers[RETURN_ADDRESS])));
        (caller.registers[RETURN_ADDRESS], landing_pad.is_intact::<X86_64>(Avma(cfa + 16), stack))
    }

    #[test]
    fn the_stored_return_address_is_used() {
        let cfa = BASE + 30 * 8;
        // Not yet replaced, although a stale copy of it is above.
        assert_eq!(with_contexts(&[(2, cfa, 0x4002)], 0x4002), (0x4002, true));
        // Replaced by that of the frame above.
        assert_eq!(with_contexts(&[(2, cfa, 0x4001)], 0x4002), (0x4001, true));
        // Another frame's context, no context, and two contexts with different addresses prove nothing.
        assert_eq!(with_contexts(&[(2, cfa + 16, 0x4001)], 0x4002), (0x4002, false));
        assert_eq!(with_contexts(&[], 0x4002), (0x4002, false));
        assert_eq!(with_contexts(&[(2, cfa, 0x4001), (9, cfa, 0x4003)], 0x4002), (0x4002, false));
    }

    #[test]
    fn hostile_frames_prove_nothing() {
        let stack = StackBytes { base: Avma(BASE), bytes: &[0xff; 64] };
        for (sp, cfa) in [(BASE, BASE), (BASE, BASE - 8), (0, u64::MAX), (u64::MAX - 200, u64::MAX)] {
            assert_eq!(
                written_return_address::<X86_64>(Avma(sp), Avma(cfa), stack),
                None,
                "{sp:#x} {cfa:#x}"
            );
        }
    }
}
