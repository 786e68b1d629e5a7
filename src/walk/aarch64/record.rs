//! aarch64: whether fp points to the frame record of the function at a program counter,
//! or to that of its caller. Input: code, as it is mapped, and function bounds where they
//! are known; output: yes, no, or that there is no code. Not for: any other register.
//!
//! ```text
//! stp x29, x30, [sp, #-N]!  or  [sp, #N]   the record is stored
//! mov x29, sp  or  add x29, sp, #N         fp points to it from here on
//! ldp x29, x30, [sp], #N  or  [sp, #N]     fp belongs to the caller again
//! ret  or  b                               the function ends
//! ```
//! What is known of one instruction holds on every path to it and from it (unwind tables
//! rely on that too). So the first instruction on *any* path from the pc that only makes
//! sense with a record, or without, decides: a function that is about to reload the record
//! has one, and so has one that is about to call, because a call overwrites the link
//! register; one that is about to set fp or to return has none. Where all paths end first
//! (in a trap, in a loop, in a jump through a table) the paths *to* the pc are searched.

use std::ops::Range;

use crate::addr::Avma;
use crate::walk::Code;

/// Most straight pieces of code that are followed, in either direction. Functions that
/// need more than a few are loops without calls.
const PIECES_MAX: usize = 32;

/// Most instructions that are read forward.
const FORWARD_MAX: usize = 4096;

/// Bytes before the pc that are read where the start of the function is not known.
const BACK_BYTES: u64 = 4096;

/// Longest function whose branches are searched for the way to the pc.
const FUNCTION_BYTES_MAX: u64 = 128 << 10;

/// Whether fp points to the own record of the function at `pc`; `None` without code.
pub(super) fn is_own(pc: Avma, code: &dyn Code) -> Option<bool> {
    code.code(pc)?;
    let function = code.function(pc).filter(|function| function.contains(&pc));
    let decided = forward(pc, function.as_ref(), code).or_else(|| backward(pc, function, code));
    // A stub, or code that is none: what the link register holds is checked all the same.
    Some(decided.unwrap_or(false))
}

/// What one instruction means for the question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// fp points to the own record before it: a reload of the record, a call.
    NeedsRecord {
        restores: bool,
    },
    /// `add x29, sp, #N`: not before it, but after.
    SetsFramePointer,
    /// `ret`, or a jump that only a tail call or a stub makes.
    Leaves,
    /// To another place, always or perhaps.
    Jump(Avma),
    Branch(Avma),
    /// A trap, or a jump to a place not known.
    Ends {
        indirect: bool,
    },
    Plain,
}

fn forward(pc: Avma, function: Option<&Range<Avma>>, code: &dyn Code) -> Option<bool> {
    let mut pieces = Pieces::starting(pc);
    let mut left = FORWARD_MAX;
    while let Some(start) = pieces.next() {
        let Some(bytes) = code.code(start) else { continue };
        let mut before = None;
        for (word, at) in words(bytes).zip((start.0..).step_by(4)) {
            // A function that runs on into the next one says nothing about itself.
            if left == 0 || function.is_some_and(|function| at == function.end.0) {
                break;
            }
            left -= 1;
            match kind(word, before, Avma(at)) {
                Kind::NeedsRecord { .. } => return Some(true),
                Kind::SetsFramePointer | Kind::Leaves => return Some(false),
                Kind::Jump(target) => {
                    if function.is_some_and(|function| is_tail_call(target, function, code)) {
                        return Some(false);
                    }
                    pieces.add(target);
                    break;
                }
                Kind::Branch(target) => pieces.add(target),
                Kind::Ends { .. } => break,
                Kind::Plain => {}
            }
            before = Some(word);
        }
    }
    None
}

/// A jump to the start of another function, or to a stub. A jump into the middle of
/// another is one inside hand-written code that has several labels.
fn is_tail_call(target: Avma, function: &Range<Avma>, code: &dyn Code) -> bool {
    !function.contains(&target) && code.function(target).is_none_or(|other| other.start == target)
}

/// The way from the start of the function to `pc`, backwards: past a jump, on from a
/// branch that leads to the instruction after it.
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
    let mut pieces = Pieces::starting(pc);
    while let Some(piece) = pieces.next() {
        let mut at = all.index(piece)?;
        loop {
            let Some(previous) = at.checked_sub(1) else {
                // At its first instruction a function has no record yet.
                return known.is_some().then_some(false);
            };
            match all.kind(previous)? {
                Kind::SetsFramePointer => return Some(true),
                Kind::NeedsRecord { restores } => return Some(!restores),
                Kind::Leaves | Kind::Jump(_) | Kind::Ends { .. } => {
                    let _ = known.as_ref()?;
                    all.ways_to(all.address(previous + 1), &mut pieces);
                    break;
                }
                Kind::Branch(_) | Kind::Plain => at = previous,
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

/// A stretch of code.
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

    fn kind(&self, index: usize) -> Option<Kind> {
        let before = index.checked_sub(1).and_then(|before| self.word(before));
        Some(kind(self.word(index)?, before, self.address(index)))
    }

    /// Adds the branches and jumps to `target`; if there are none, the jumps through tables.
    fn ways_to(&self, target: Avma, pieces: &mut Pieces) {
        let mut found = false;
        for wanted_indirect in [false, true] {
            for index in 0..self.bytes.len() / 4 {
                let leads_there = match self.kind(index) {
                    Some(Kind::Jump(to) | Kind::Branch(to)) => !wanted_indirect && to == target,
                    Some(Kind::Ends { indirect }) => wanted_indirect && indirect,
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

/// Addresses to go on from, each once.
struct Pieces {
    starts: [Avma; PIECES_MAX],
    length: usize,
    next: usize,
}

impl Pieces {
    fn starting(at: Avma) -> Pieces {
        let mut starts = [Avma(0); PIECES_MAX];
        starts[0] = at;
        Pieces { starts, length: 1, next: 0 }
    }

    fn add(&mut self, at: Avma) {
        if self.length < PIECES_MAX && !self.starts[..self.length].contains(&at) {
            self.starts[self.length] = at;
            self.length += 1;
        }
    }

    fn next(&mut self) -> Option<Avma> {
        let at = (self.next < self.length).then(|| self.starts[self.next])?;
        self.next += 1;
        Some(at)
    }
}

fn words(code: &[u8]) -> impl Iterator<Item = u32> + '_ {
    code.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
}

/// Encodings: Arm Architecture Reference Manual for A-profile, C4.1 and C6.2.
fn kind(word: u32, before: Option<u32>, at: Avma) -> Kind {
    let to = |shift: u32, bits: u32| {
        let offset = i64::from(word << (32 - shift - bits)) << 32 >> (64 - bits);
        Avma(at.0.wrapping_add_signed(offset * 4))
    };
    match word {
        // mov x29, sp is add x29, sp, #0; any immediate
        _ if word & 0xff80_03ff == 0x9100_03fd => Kind::SetsFramePointer,
        // ldp x29, x30, [sp], #N; [sp, #N]
        _ if word & 0xffc0_7fff == 0xa8c0_7bfd || word & 0xffc0_7fff == 0xa940_7bfd => {
            Kind::NeedsRecord { restores: true }
        }
        // bl; blr, blraa and its variants
        _ if word >> 26 == 0b10_0101 || word & 0xfeff_f000 == 0xd63f_0000 => {
            Kind::NeedsRecord { restores: false }
        }
        // ret, retaa, retab
        _ if word & 0xffff_f000 == 0xd65f_0000 => Kind::Leaves,
        // br, braa and its variants. Right after its register was loaded from a place that
        // does not depend on an index it is a stub or a tail call through a pointer.
        _ if word & 0xfeff_f000 == 0xd61f_0000 => {
            let register = word >> 5 & 0x1f;
            let loads = |before: u32| before & 0xffc0_0000 == 0xf940_0000 && before & 0x1f == register;
            if before.is_some_and(loads) { Kind::Leaves } else { Kind::Ends { indirect: true } }
        }
        // b
        _ if word >> 26 == 0b00_0101 => Kind::Jump(to(0, 26)),
        // b.cond, bc.cond; cbz, cbnz
        _ if word & 0xff00_0000 == 0x5400_0000 || word & 0x7e00_0000 == 0x3400_0000 => {
            Kind::Branch(to(5, 19))
        }
        // tbz, tbnz
        _ if word & 0x7e00_0000 == 0x3600_0000 => Kind::Branch(to(5, 14)),
        // brk; udf, which also pads between functions
        _ if word & 0xffe0_001f == 0xd420_0000 || word >> 16 == 0 => Kind::Ends { indirect: false },
        _ => Kind::Plain,
    }
}
