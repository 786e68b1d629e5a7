//! aarch64 by frame pointers: the walk along frame records, the caller of the leaf frame (`walk`), and whether fp
//! points to the frame record of the function at a program counter, or to its caller's (`RecordEffect`). Input:
//! registers, copied stack, mapped code, and function bounds if known. Not for: any other register.
//!
//! ```text
//! stp x29, x30, [sp, #-N]!  or  [sp, #N]   the record is stored
//! mov x29, sp  or  add x29, sp, #N         fp points to it from here on
//! ldp x29, x30, [sp], #N  or  [sp, #N]     fp belongs to the caller again
//! ret  or  b                               the function ends
//! ```
//! A fact about one instruction holds on every path to it and from it (unwind tables rely on that too). So the
//! first instruction on *any* path from the pc that only makes sense with a record, or without, decides: a function
//! that is about to reload the record has one, and so has one that is about to call, because a call overwrites the
//! link register; one that is about to set fp or to return has none. If all paths end before that (in a trap, a
//! loop, a jump through a table) the paths *to* the pc are searched.

#[cfg(test)]
mod records_tests;
#[cfg(test)]
mod tests;

use std::ops::{Range, RangeInclusive};

use super::instructions::branch;
use crate::addr::{Avma, CodeAddress, LookupAvma};
use crate::arch::Aarch64;
use crate::walk::engine::Engine;
use crate::walk::flow::paths::Effect;
use crate::walk::fp::{self, Facts};
use crate::walk::frames::{Frames, UnwindMethod};
use crate::walk::{Code, Input, StackEnd, WalkResult};

/// Limit on straight pieces of code that are followed, in either direction. Functions that need more than a few
/// are loops without calls.
const PIECES_MAX: usize = 64;

/// Limit on instructions read forward.
const FORWARD_MAX: usize = 4096;

/// Limit on instructions read to recognize an outlined function.
const OUTLINED_MAX: usize = 16;

/// Limit on instructions read backward: some 100 µs, since walks by frame pointers cache nothing.
const BACKWARD_MAX: usize = 8 << 10;

/// Bytes read before the pc if the start of the function is unknown.
const BACK_BYTES: u64 = 4096;

/// Limit on the size of a function searched for branches on the path to the pc.
const FUNCTION_BYTES_MAX: u64 = 16 << 10;

/// `ldr x30, [sp], #16`: follows a call in a function that saved only the link register.
const POP_LINK_REGISTER: u32 = 0xf841_07fe;

/// Whether the function at `pc` is about to reload only the link register.
pub(super) fn reloads_link_register(pc: Avma, code: &dyn Code) -> bool {
    code.code(pc).is_some_and(|code| code.starts_with(&POP_LINK_REGISTER.to_le_bytes()))
}

/// Whether fp points to the record of the function at `pc` itself; `None` without code.
pub(super) fn is_own(pc: Avma, code: &dyn Code) -> Option<bool> {
    code.code(pc)?;
    let function = code.function(pc).filter(|function| function.contains(&pc));
    let decided = forward(pc, function.as_ref(), code).or_else(|| backward(pc, function, code));
    // A stub, or no code at all: the caller checks the link register anyway.
    Some(decided.unwrap_or(false))
}

/// The meaning of one instruction for the frame record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordEffect {
    /// Reloads the record: fp points to it before, but not after.
    Restores,
    /// Addresses memory by fp, or computes an address from it. A function without a record does not use its
    /// caller's frame, but an outlined function may: this counts only if no `ret` follows soon.
    UsesFramePointer,
    /// A call, which requires a record; with its target if known.
    Calls(Option<Avma>),
    /// A call in a function without a record that saved only the link register and reloads it immediately: the
    /// check of a large frame (`___chkstk_darwin`).
    CallsWithout,
    /// `stp x29, x30, ...`: fp does not point to it yet.
    Stores,
    /// `add x29, sp, #N`: fp points to the record only after it.
    SetsFramePointer,
    /// `ret`.
    Returns,
    /// An unconditional and a conditional jump.
    Jump(Avma),
    Branch(Avma),
    /// A trap, or a jump to an unknown address.
    Ends {
        indirect: bool,
    },
    Plain,
}

fn forward(pc: Avma, function: Option<&Range<Avma>>, code: &dyn Code) -> Option<bool> {
    let mut pieces = Worklist::starting(pc);
    let mut left = FORWARD_MAX;
    let mut uses_fp = None;
    while let Some(start) = pieces.next() {
        let Some(bytes) = code.code(start) else { continue };
        let text = Text { start, bytes };
        let known = pieces.first_after(start);
        let mut index = 0;
        loop {
            let at = text.address(index);
            // A function that falls through into the next one gives no evidence.
            if left == 0 || Some(at) == known || function.is_some_and(|function| at == function.end) {
                break;
            }
            left -= 1;
            index += 1;
            match text.kind(index - 1) {
                Some(RecordEffect::Restores) => return Some(true),
                Some(RecordEffect::Calls(target)) => {
                    return Some(target.and_then(|at| outlined(at, code)) != Some(false));
                }
                Some(RecordEffect::SetsFramePointer | RecordEffect::Returns | RecordEffect::CallsWithout) => {
                    return Some(false);
                }
                Some(RecordEffect::UsesFramePointer) if uses_fp.is_none() => {
                    uses_fp = Some(true);
                    left = left.min(OUTLINED_MAX);
                }
                Some(RecordEffect::Jump(target)) => {
                    if function.is_some_and(|function| is_tail_call(target, function, code)) {
                        return Some(outlined(target, code) == Some(true));
                    }
                    // Unoptimised code is full of short jumps.
                    match text.index(target).filter(|to| *to >= index) {
                        Some(to) => index = to,
                        None => {
                            pieces.add(target);
                            break;
                        }
                    }
                }
                Some(RecordEffect::Branch(target)) => pieces.add(target),
                Some(RecordEffect::Ends { .. }) | None => break,
                Some(RecordEffect::UsesFramePointer | RecordEffect::Stores | RecordEffect::Plain) => {}
            }
        }
    }
    uses_fp
}

/// Whether a jump leads to the start of a function (including its own), or to a stub. A jump into the middle of
/// another function is internal to hand-written code with several labels.
fn is_tail_call(target: Avma, function: &Range<Avma>, code: &dyn Code) -> bool {
    if function.contains(&target) {
        return function.start == target;
    }
    code.function(target).is_none_or(|other| other.start == target)
}

/// Whether the code before a jump or call to `function` has a record, if `function` is a piece split off by LLVM's
/// machine outliner (-Oz): the end of a prologue after the record was stored, or an epilogue, which reloads it.
fn outlined(function: Avma, code: &dyn Code) -> Option<bool> {
    let text = Text { start: function, bytes: code.code(function)? };
    for index in 0..OUTLINED_MAX {
        match text.kind(index)? {
            RecordEffect::SetsFramePointer => return Some(false),
            RecordEffect::Restores => return Some(true),
            RecordEffect::Plain | RecordEffect::UsesFramePointer => {}
            _ => return None,
        }
    }
    None
}

/// Follows the path from the start of the function to `pc` backwards. At an unconditional jump it continues from a
/// branch into the code read since (not always to its first instruction: loop heads are aligned by unreachable
/// `nop`s).
fn backward(pc: Avma, function: Option<Range<Avma>>, code: &dyn Code) -> Option<bool> {
    let known = function.filter(|function| function.end - function.start <= FUNCTION_BYTES_MAX);
    let (start, bytes) = match &known {
        Some(function) => {
            let length = usize::try_from(function.end - function.start).ok()?;
            let bytes = code.code(function.start)?;
            (function.start, &bytes[..length.min(bytes.len())])
        }
        None => code_before(pc, code)?,
    };
    let all = Text { start, bytes };
    let mut pieces = Worklist::starting(pc);
    let mut left = BACKWARD_MAX;
    while let Some(piece) = pieces.next() {
        let mut at = all.index(piece)?;
        loop {
            let Some(previous) = at.checked_sub(1) else {
                // At its first instruction a function has no record yet.
                return known.is_some().then_some(false);
            };
            left = left.checked_sub(1)?;
            match all.kind(previous)? {
                RecordEffect::SetsFramePointer | RecordEffect::UsesFramePointer | RecordEffect::Calls(_) => {
                    return Some(true);
                }
                RecordEffect::Restores | RecordEffect::Stores | RecordEffect::CallsWithout => {
                    return Some(false);
                }
                RecordEffect::Returns | RecordEffect::Jump(_) | RecordEffect::Ends { .. } => {
                    let _ = known.as_ref()?;
                    left = left.checked_sub(all.bytes.len() / 4)?;
                    all.ways_to(&(all.address(previous + 1)..=piece), &mut pieces);
                    break;
                }
                RecordEffect::Branch(_) | RecordEffect::Plain => at = previous,
            }
        }
    }
    None
}

/// The longest known code right before `pc`, up to [`BACK_BYTES`].
fn code_before(pc: Avma, code: &dyn Code) -> Option<(Avma, &[u8])> {
    let mut back = BACK_BYTES;
    while back >= 4 {
        // The mapped code may begin less than the search length before the pc.
        if let Some(from) = pc.0.checked_sub(back).map(Avma)
            && let Some(bytes) = code.code(from)
        {
            return Some((from, bytes.get(..usize::try_from(back).ok()?)?));
        }
        back = back / 8 * 4;
    }
    None
}

/// A range of code.
struct Text<'a> {
    start: Avma,
    bytes: &'a [u8],
}

impl Text<'_> {
    fn address(&self, index: usize) -> Avma {
        self.start + index as u64 * 4
    }

    fn index(&self, at: Avma) -> Option<usize> {
        usize::try_from(at.0.checked_sub(self.start.0)? / 4).ok()
    }

    fn word(&self, index: usize) -> Option<u32> {
        self.bytes.get(index * 4..)?.first_chunk().map(|word| u32::from_le_bytes(*word))
    }

    fn kind(&self, index: usize) -> Option<RecordEffect> {
        let kind = kind(self.word(index)?, self.address(index));
        let pops = |kind: &RecordEffect| {
            matches!(kind, RecordEffect::Calls(_)) && self.word(index + 1) == Some(POP_LINK_REGISTER)
        };
        Some(if pops(&kind) { RecordEffect::CallsWithout } else { kind })
    }

    /// Adds the branches and jumps to any of `targets`, a straight run of instructions; if there are none, the
    /// jumps through tables.
    fn ways_to(&self, targets: &RangeInclusive<Avma>, pieces: &mut Worklist) {
        let mut found = false;
        for wanted_indirect in [false, true] {
            for index in 0..self.bytes.len() / 4 {
                let leads_there = match self.kind(index) {
                    Some(RecordEffect::Jump(to) | RecordEffect::Branch(to)) => {
                        !wanted_indirect && targets.contains(&to)
                    }
                    Some(RecordEffect::Ends { indirect }) => wanted_indirect && indirect,
                    _ => false,
                };
                if leads_there {
                    found = true;
                    pieces.add(self.address(index));
                }
            }
            if found {
                return;
            }
        }
    }
}

/// Addresses to continue from, each once.
struct Worklist {
    starts: [Avma; PIECES_MAX],
    length: usize,
    next: usize,
}

impl Worklist {
    fn starting(at: Avma) -> Worklist {
        let mut starts = [Avma(0); PIECES_MAX];
        starts[0] = at;
        Worklist { starts, length: 1, next: 0 }
    }

    fn add(&mut self, at: Avma) {
        if self.length < PIECES_MAX && !self.starts[..self.length].contains(&at) {
            self.starts[self.length] = at;
            self.length += 1;
        }
    }

    /// The lowest visited address above `start`.
    fn first_after(&self, start: Avma) -> Option<Avma> {
        self.starts[..self.next].iter().copied().filter(|other| *other > start).min()
    }

    fn next(&mut self) -> Option<Avma> {
        let at = (self.next < self.length).then(|| self.starts[self.next])?;
        self.next += 1;
        Some(at)
    }
}

/// Encodings: Arm Architecture Reference Manual for A-profile, C4.1 and C6.2.
fn kind(word: u32, at: Avma) -> RecordEffect {
    match word >> 25 & 0b1111 {
        0b1010 | 0b1011 => branch_kind(word, at),
        // loads and stores; literal loads have no base
        0b0100 | 0b0110 | 0b1100 | 0b1110 => match word & 0xffc0_7fff {
            // ldp x29, x30, [sp], #N; [sp, #N]
            0xa8c0_7bfd | 0xa940_7bfd => RecordEffect::Restores,
            // stp x29, x30, [sp, #-N]!; [sp, #N]
            0xa980_7bfd | 0xa900_7bfd => RecordEffect::Stores,
            _ if word >> 5 & 0x1f == 29 && word & 0x3b00_0000 != 0x1800_0000 => {
                RecordEffect::UsesFramePointer
            }
            _ => RecordEffect::Plain,
        },
        // mov x29, sp is add x29, sp, #0; any immediate
        0b1000 | 0b1001 if word & 0xff80_03ff == 0x9100_03fd => RecordEffect::SetsFramePointer,
        // sub xN, x29, #M; add xN, x29, #M, which mov sp, x29 is too
        0b1000 | 0b1001 if word & 0xbf80_03e0 == 0x9100_03a0 => RecordEffect::UsesFramePointer,
        // udf, which also pads between functions
        0 if word >> 16 == 0 => RecordEffect::Ends { indirect: false },
        _ => RecordEffect::Plain,
    }
}

fn branch_kind(word: u32, at: Avma) -> RecordEffect {
    match branch(word, at) {
        Effect::Calls(target) => RecordEffect::Calls(target),
        Effect::Returns => RecordEffect::Returns,
        // A tail call, a stub, a jump through a table; the load of the register does not show which (clang -O0
        // reloads a computed label from the stack).
        Effect::JumpsAnywhere => RecordEffect::Ends { indirect: true },
        Effect::Jumps(target) => RecordEffect::Jump(target),
        Effect::MayJump(target) => RecordEffect::Branch(target),
        Effect::Ends | Effect::MayReturn | Effect::Forks(_) => RecordEffect::Ends { indirect: false },
        Effect::Plain => RecordEffect::Plain,
    }
}

// ---- aarch64 by frame pointers. A chain of records looks complete without a function that keeps none, so it must not
// contradict unwind information. Input: registers, copied stack; output: [`Frames`] and the [`StackEnd`].

impl Engine<Aarch64> {
    /// Walks from the registers of a stopped thread; see [`unwind`](crate::walk::unwind).
    pub(crate) fn unwind(
        &mut self,
        unwind_method: UnwindMethod,
        registers: &Aarch64,
        input: &Input<'_>,
        facts: &mut Facts,
        out: &mut Frames,
    ) -> WalkResult {
        if unwind_method != UnwindMethod::FramePointer {
            return self.walk(unwind_method, registers, input, out);
        }
        let walked = fp::by_records(out, |out| walk(registers, input, facts, out));
        let claims = walked.ended == StackEnd::Root;
        let unproved = claims && !self.confirms(&out.addresses, registers, input);
        WalkResult { ended: if unproved { StackEnd::UnverifiedFrameRecord } else { walked.ended }, ..walked }
    }

    /// Whether unwind information does not contradict a walk by frame pointers that found these look-up addresses
    /// and claims to be complete: if there is any, it must lead to the same addresses. A chain of records looks
    /// complete without a function that keeps none. If the ABI requires records, unwind information may end
    /// earlier, but may not lead to another frame: code may violate the ABI (`-fomit-frame-pointer`), and an image
    /// may lack unwind information.
    fn confirms(&mut self, addresses: &[LookupAvma], registers: &Aarch64, input: &Input<'_>) -> bool {
        if !fp::can_be_checked(addresses, input.code) {
            return true;
        }
        let mut confirmed = std::mem::take(&mut self.confirmed);
        confirmed.clear();
        let walked = self.walk(UnwindMethod::Cfi, registers, input, &mut confirmed);
        let same = match walked.ended {
            StackEnd::Root => confirmed.addresses == addresses,
            _ => input.fp_always && addresses.starts_with(&confirmed.addresses),
        };
        self.confirmed = confirmed;
        same
    }
}

// ---- aarch64: the caller of the leaf frame.
//
// A function without a frame record (a leaf, a system call stub, a prologue before `stp`, an epilogue after
// `ldp`) has its caller in the link register only, and fp belongs to the caller: following fp alone would lose
// the caller. In the body of a function with a record the link register is stale. The code around the program
// counter decides which (see `record.rs`); without code the link register counts unless it repeats the record's
// return address or leads into the same function.

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
    let own_record = facts.own_record(pc, input.code, || is_own(pc, input.code));
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
    is_caller(pc, link, frame_pointer, is_own(pc, input.code), input)
}

/// Like [`link_is_caller`], with the result of [`is_own`].
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
    let is_stale = link == pc.0 && reloads_link_register(pc, input.code);
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
mod leaf_tests {
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
        let functions = std::iter::once(TEXT..TEXT + 0x40).collect();
        let code = Text { without_bytes: 0..u64::MAX, functions, ..Text::default() };
        let bytes: Vec<u8> = [0, TEXT + 0x88].iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
        let stack = StackBytes { base: Avma(STACK), bytes: &bytes };
        let input = Input { max_depth: 9, ..Input::new(stack, &code) };
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
