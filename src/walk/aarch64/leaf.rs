//! aarch64: the caller of the leaf frame.
//!
//! A function without a frame record (a leaf, a system call stub, a prologue before `stp`, an epilogue after
//! `ldp`) has its caller in the link register only, and fp belongs to the caller: following fp alone would lose
//! the caller. In the body of a function with a record the link register is stale. The code around the program
//! counter decides which (see `record.rs`); without code the link register counts unless it repeats the record's
//! return address or leads into the same function.

use super::record;
use crate::addr::{Avma, CodeAddress, LookupAvma};
use crate::arch::Aarch64;
use crate::walk::fp::{self, Facts};
use crate::walk::{Code, Input, WalkResult};

/// Walks from the registers of a stopped thread; see [`unwind`](crate::walk::unwind).
pub(super) fn walk(
    registers: &Aarch64,
    input: &Input<'_>,
    facts: &mut Facts,
    out: &mut Vec<LookupAvma>,
) -> WalkResult {
    let pc = Avma(registers.pc & input.address_mask);
    let sp = Avma(registers.sp);
    let frame_pointer = registers.x[Aarch64::FP] & input.address_mask;
    let link = registers.x[Aarch64::LR] & input.address_mask;
    out.push(CodeAddress::Pc(pc).lookup());
    let own_record = facts.own_record(pc, input.code, || record::is_own(pc, input.code));
    let leaf_return = is_caller(pc, link, frame_pointer, own_record, input);
    let leaf_return = (leaf_return && out.len() < input.max_depth).then_some(Avma(link));
    if let Some(address) = leaf_return {
        let lookup = facts.lookup::<Aarch64>(address, input.code);
        out.push(lookup.unwrap_or(CodeAddress::Return(address).lookup()));
    }
    // Records are 16-byte aligned with the stack pointer (AAPCS64 6.4.6), but some assembly aligns them to 8,
    // which the walk accepts; it checks progress and bounds anyway.
    fp::follow::<Aarch64>(frame_pointer, sp, leaf_return, input, facts, out)
}

/// Whether the link register holds the caller of the leaf at `pc`, that is, the leaf has no record.
pub(super) fn link_is_caller(pc: Avma, link: u64, frame_pointer: u64, input: &Input<'_>) -> bool {
    is_caller(pc, link, frame_pointer, record::is_own(pc, input.code), input)
}

/// Like [`link_is_caller`], with the result of [`record::is_own`].
fn is_caller(pc: Avma, link: u64, frame_pointer: u64, own_record: Option<bool>, input: &Input<'_>) -> bool {
    let in_record = input.read::<u64>(Avma(frame_pointer) + 8).map(|word| word & input.address_mask);
    let no_record = match own_record {
        // Also if it repeats the record's return address: a function that recurses from one call site may be
        // stopped in its prologue.
        Some(own) => !own,
        None => in_record != Some(link) && !same_function(pc, link, input.code),
    };
    // After the call in a function that saved only the link register, it holds the pc itself. (It also does at the
    // entry of a noreturn function that directly follows its caller.)
    let is_stale = link == pc.0 && record::reloads_link_register(pc, input.code);
    no_record && link != 0 && !is_stale && is_code(link, input.code)
}

/// Whether a link register can be a return address: the call before it is in code; the instruction after it may
/// not be.
fn is_code(address: u64, code: &dyn Code) -> bool {
    address.is_multiple_of(4) && code.is_code(CodeAddress::Return(Avma(address)).lookup().at())
}

/// Whether the link register is left over from a call made by the function at `pc`.
fn same_function(pc: Avma, link: u64, code: &dyn Code) -> bool {
    let call = CodeAddress::Return(Avma(link)).lookup().at();
    code.function(pc).is_some_and(|function| function.contains(&call))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::walk::text::Text;
    use crate::walk::{StackBytes, StackEnd};

    const TEXT: u64 = 0x1_0000_4000;
    const STACK: u64 = 0x1_6fdf_f000;

    const CODE: &[u32] = &[
        // a framed function with an early return
        0xa9be_7bfd, // +00 stp x29, x30, [sp, #-32]!
        0x9100_03fd, // +04 mov x29, sp
        0xb400_0080, // +08 cbz x0, +18
        0x9400_0005, // +0c bl leaf
        0xa8c2_7bfd, // +10 ldp x29, x30, [sp], #32
        0xd65f_03c0, // +14 ret
        0x5280_0020, // +18 mov w0, #1
        0xa8c2_7bfd, // +1c ldp x29, x30, [sp], #32
        0xd65f_03c0, // +20 ret
        // leaf
        0x8b00_0000, // +24 add x0, x0, x0
        0xd65f_03c0, // +28 ret
        // framed, does not return
        0xa9bf_7bfd, // +2c stp x29, x30, [sp, #-16]!
        0x9100_03fd, // +30 mov x29, sp
        0x97ff_fffc, // +34 bl leaf
        0xd420_0020, // +38 brk #1
        0xd420_0020, // +3c brk #1
        // without a record
        0xf81f_0ffe, // +40 str x30, [sp, #-16]!
        0x97ff_fff8, // +44 bl leaf
        0xf841_07fe, // +48 ldr x30, [sp], #16
        0xd65f_03c0, // +4c ret
    ];

    /// fp points to a record at STACK that returns to +10; lr is `link`.
    fn walk_at(offset: u64, link: u64, words: &[u64]) -> Vec<u64> {
        let text = Text::of_words(TEXT, CODE);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut registers = Aarch64 { pc: TEXT + offset, sp: STACK, ..Aarch64::default() };
        registers.x[Aarch64::FP] = STACK;
        registers.x[Aarch64::LR] = link;
        let stack = StackBytes { base: Avma(STACK), bytes: &bytes };
        let input = Input { max_depth: 64, address_mask: (1 << 47) - 1, ..Input::new(stack, &text) };
        let mut out = Vec::new();
        assert_eq!(walk(&registers, &input, &mut Facts::default(), &mut out).ended, StackEnd::Root);
        out.iter().map(|address| address.0 - TEXT).collect()
    }

    #[test]
    fn the_link_register_counts_only_where_there_is_no_record() {
        // The record of the caller returns to +38; lr holds +10 (an earlier or the current call).
        let words = [0, TEXT + 0x38];
        let link = TEXT + 0x10;
        for bare in [0x00, 0x04, 0x14, 0x20, 0x24, 0x28, 0x2c, 0x30] {
            assert_eq!(walk_at(bare, link, &words), [bare, 0x0f, 0x37], "at +{bare:#x}");
        }
        for framed in [0x08, 0x0c, 0x10, 0x18, 0x1c, 0x34, 0x38] {
            assert_eq!(walk_at(framed, link, &words), [framed, 0x37], "at +{framed:#x}");
        }
    }

    #[test]
    fn recursion_from_one_call_site_shows_each_call() {
        // At the prologue of the framed function, called twice from its own +0c.
        let words = [STACK + 16, TEXT + 0x10, 0, TEXT + 0x38];
        assert_eq!(walk_at(0x00, TEXT + 0x10, &words), [0x00, 0x0f, 0x0f, 0x37]);
        assert_eq!(walk_at(0x08, TEXT + 0x10, &words), [0x08, 0x0f, 0x37]);
    }

    #[test]
    fn without_code_a_link_register_equal_to_the_record_is_not_repeated() {
        // After the known code, into which the link register points.
        assert_eq!(walk_at(0x50, TEXT + 0x38, &[0, TEXT + 0x38]), [0x50, 0x37]);
        assert_eq!(walk_at(0x50, TEXT + 0x10, &[0, TEXT + 0x38]), [0x50, 0x0f, 0x37]);
    }

    #[test]
    fn a_signed_link_register_is_stripped() {
        let signed = 0xfa80_0000_0000_0000 | (TEXT + 0x10);
        assert_eq!(walk_at(0x24, signed, &[0, 0x8765_8000_0000_0000 | (TEXT + 0x38)]), [0x24, 0x0f, 0x37]);
    }

    #[test]
    fn a_call_that_has_just_returned_leaves_no_caller_in_the_link_register() {
        assert_eq!(walk_at(0x48, TEXT + 0x48, &[0, TEXT + 0x38]), [0x48, 0x37]);
        // After a noreturn call, the entry of the next function.
        assert_eq!(walk_at(0x24, TEXT + 0x24, &[0, TEXT + 0x38]), [0x24, 0x23, 0x37]);
    }

    #[test]
    fn a_link_register_outside_code_is_dropped() {
        assert_eq!(walk_at(0x24, 0x1234, &[0, TEXT + 0x38]), [0x24, 0x37]);
    }

    #[test]
    fn the_outermost_function_is_not_lost() {
        // thread_start of libpthread pushes a pair of zeros but leaves fp at 0: the record of
        // the function it calls is {0, thread_start+8}.
        assert_eq!(walk_at(0x08, TEXT + 0x10, &[0, TEXT + 8]), [0x08, 0x07]);
        // That function in its prologue; and thread_start itself, before its call.
        for (offset, link, expected) in [(0x00, TEXT + 8, vec![0x00, 0x07]), (0x0c, 0, vec![0x0c])] {
            let text = Text::of_words(TEXT, CODE);
            let mut registers = Aarch64 { pc: TEXT + offset, sp: STACK, ..Aarch64::default() };
            registers.x[Aarch64::LR] = link;
            let stack = StackBytes { base: Avma(STACK), bytes: &[0; 16] };
            let input = Input {
                stack_limit: Some(Avma(STACK + 16)),
                fp_always: true,
                max_depth: 64,
                address_mask: (1 << 47) - 1,
                ..Input::new(stack, &text)
            };
            let mut out = Vec::new();
            assert_eq!(walk(&registers, &input, &mut Facts::default(), &mut out).ended, StackEnd::Root);
            assert_eq!(out.iter().map(|address| address.0 - TEXT).collect::<Vec<_>>(), expected);
            // Without the ABI's guarantee, an fp of 0 does not prove that a thread has no caller.
            let input = Input { fp_always: false, ..input };
            let ended = walk(&registers, &input, &mut Facts::default(), &mut Vec::new()).ended;
            assert_eq!(ended, if link == 0 { StackEnd::UnverifiedFrameRecord } else { StackEnd::Root });
        }
    }

    #[test]
    fn without_code_a_link_register_into_the_same_function_is_stale() {
        struct NoBytes;
        impl Code for NoBytes {
            fn is_code(&self, _: Avma) -> bool {
                true
            }
            fn code(&self, _: Avma) -> Option<&[u8]> {
                None
            }
            fn function(&self, pc: Avma) -> Option<std::ops::Range<Avma>> {
                (pc < Avma(TEXT + 0x40)).then_some(Avma(TEXT)..Avma(TEXT + 0x40))
            }
        }
        let bytes: Vec<u8> = [0, TEXT + 0x88].iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
        let stack = StackBytes { base: Avma(STACK), bytes: &bytes };
        let input = Input { max_depth: 9, ..Input::new(stack, &NoBytes) };
        // The last return address of a function may be its end.
        for (link, caller) in [(0x20, None), (0x40, None), (0x44, Some(0x43))] {
            let mut registers = Aarch64 { pc: TEXT + 0x10, sp: STACK, ..Aarch64::default() };
            registers.x[Aarch64::FP] = STACK;
            registers.x[Aarch64::LR] = TEXT + link;
            let mut out = Vec::new();
            walk(&registers, &input, &mut Facts::default(), &mut out);
            let expected = std::iter::once(0x10).chain(caller).chain([0x87]).map(|at| LookupAvma(TEXT + at));
            assert_eq!(out, expected.collect::<Vec<_>>(), "link +{link:#x}");
        }
    }
}
