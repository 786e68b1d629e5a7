//! aarch64: whether fp points to the frame record of the function at a program counter, or to its caller's. Input:
//! mapped code, and function bounds if known; output: yes, no, or that there is no code. Not for: any other
//! register.
//!
//! ```text
//! stp x29, x30, [sp, #-N]!  or  [sp, #N]   the record is stored
//! mov x29, sp  or  add x29, sp, #N         fp points to it from here on
//! ldp x29, x30, [sp], #N  or  [sp, #N]     fp belongs to the caller again
//! ret  or  b                               the function ends
//! ```
//! A fact about one instruction holds on every path to it and from it (unwind tables rely on that too). So the
//! first instruction on *any* path from the pc that only makes sense with a record, or without, decides: a
//! function that is about to reload the record has one, and so has one that is about to call, because a call
//! overwrites the link register; one that is about to set fp or to return has none. If all paths end before that
//! (in a trap, a loop, a jump through a table) the paths *to* the pc are searched.

#[cfg(test)]
mod tests;

use std::ops::{Range, RangeInclusive};

use super::instructions::branch;
use crate::addr::Avma;
use crate::walk::Code;
use crate::walk::flow::state::Effect;

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
