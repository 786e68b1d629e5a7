//! Conventions of language runtimes and C libraries that neither unwind information nor an ABI describes.
//! Recognized by instructions, or by words on stacks. Input: frames, addresses, code; output: rows, callers, or
//! whether the code is recognized.
//!
//! `go` and `hotspot` (Java) have files of their own. Here are, all for x86_64: trampolines of CPython (`proves`),
//! landing pads of libgcc (`LandingPad`), the first function of a musl thread (`only_return_address`), frames of V8
//! (`has_frame_mark`).

pub(crate) mod go;
pub(super) mod hotspot;

use super::frames::Frame;
use super::processor::Processor;
use super::{Code, Input, StackBytes};
use crate::addr::{Avma, CodeAddress};
use crate::arch::X86_64;
use crate::binary::frame_rule::{Cfa, Column, RETURN_ADDRESS, Row};

// ---- JIT trampolines that only call: `sub $8,%rsp; call *%rcx; add $8,%rsp; ret`. CPython creates one per Python
// function, so that profilers see a frame for it (Python/asm_trampoline.S, `python3 -X perf`).
//
// Paths from a return address alone prove nothing: the callee may never return, and then the code after the call is
// another function, or a part of this one that is reached otherwise. Another function pops nothing that it did not
// push, and these trampolines have no other parts.

/// Size of a return address.
const POINTER: i64 = 8;

/// Whether the row at a return address, in JIT code, pops exactly what the instruction before the call pushed, and
/// changes nothing else.
pub(crate) fn is_trampoline_row(row: &Row, at: Avma, code: &dyn Code) -> bool {
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

// ---- A frame with saved registers that libgcc replaces, one after the other, while it installs an exception's
// landing pad (unwind-dw2.c, `uw_install_context_1`): which of them the walk may still use.

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
pub(crate) struct LandingPad {
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
    pub(crate) fn new<P: Processor>(
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
    pub(crate) fn uses_frame_pointer(&mut self, value: u64) {
        self.frame_pointer_used |= value == self.frame_pointer;
    }

    /// Whether no word that the walk used was replaced; `end` is the end of the walk.
    pub(crate) fn is_intact<P: Processor>(&self, end: Avma, stack: StackBytes<'_>) -> bool {
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

// ---- The caller of a frame with unknown code, if only one word can be its return address: the first function of a
// musl thread ends in a noreturn call, and has no unwind information. Every frame between it and the code that ends
// the thread would have a return address on the stack. So if the first return address above is the one into that
// code, it is the frame's own, and no frame is missing.

/// Largest frame of this function, which saves few registers.
const BYTES_MAX: u64 = 512;
/// Largest distance of the first return address from the thread's initial stack pointer.
const FROM_TOP_BYTES: u64 = 16;

/// The frame that ends the thread, if the stack of `stuck` has no other return address below.
pub(crate) fn only_return_address(
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

// ---- Frames of V8 on x86_64, which have a type marker. Input: a frame and the copied stack; output: whether the
// frame has a marker.

/// Whether rbp points to the frame record of a V8 function that has called: V8 maintains a record at every call to
/// find its own frames, with a marker. Below the saved frame pointer is the context, a tagged pointer, and below
/// that the function, another one; frames other than JavaScript's have the frame type as a small integer with tag
/// 0.
/// Source: V8 src/execution/frame-constants.h, frames.h (`StackFrame::TypeToMarker`).
pub(crate) fn has_frame_mark(from: &Frame<X86_64>, input: &Input<'_>) -> bool {
    const KIND_MAX: u64 = 128;
    let CodeAddress::Return(_) = from.address else { return false };
    if !input.code.traits(from.address.lookup().at()).keeps_frame_records {
        return false;
    }
    let record = from.registers[X86_64::RBP] & input.address_mask;
    let below = |bytes: u64| input.read::<u64>(Avma(record.checked_sub(bytes)?));
    let is_tagged = |word: u64| word & 3 == 1;
    match (below(8), below(16)) {
        (Some(context), Some(function)) if is_tagged(context) => is_tagged(function),
        (Some(kind), _) => kind > 0 && kind <= KIND_MAX && kind & 1 == 0,
        _ => false,
    }
}

#[cfg(test)]
mod cpython_tests {
    use super::super::CodeTraits;
    use super::super::engine::Proof;
    use super::super::intel::forward::{self, Callees, CodeEnd};
    use super::super::text::Text;
    use super::*;
    use crate::arch::X86_64;

    const TEXT: u64 = 0x7000_0000_1000;

    /// Whether the row after the call in `code`, which ends at offset `before`, is proved.
    fn is_proved(code: &[u8], before: u64, made: bool) -> bool {
        let traits = CodeTraits { is_jit: made, ..CodeTraits::default() };
        let text = Text::new(TEXT, code).with_traits(traits);
        let at = Avma(TEXT + before);
        let leads = forward::follow::<X86_64>(at, true, &text, &mut Callees::default());
        let Some(CodeEnd::Returns(row, Proof::NeedsConfirmation)) = leads else { panic!("{leads:?}") };
        is_trampoline_row(&row, at, &text)
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

#[cfg(test)]
mod landing_pad_tests {
    use super::*;
    use crate::arch::X86_64;
    use crate::binary::frame_rule::RETURN_ADDRESS;

    type Frame = super::super::frames::Frame<X86_64>;
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

#[cfg(test)]
mod musl_tests {
    use super::super::StackBytes;
    use super::super::text::Text;
    use super::*;

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
