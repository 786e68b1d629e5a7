//! Frames of what HotSpot compiled (Java, Kotlin, Scala), by the header that it keeps in front of each piece of
//! code: how large the frame is, and from which instruction on it stands. HotSpot walks its own
//! stacks by it. Input: an address in such code; output: what the header says. Not for: the interpreter
//! (`runtimes.rs`), stubs without a frame, and releases whose headers have another form (24 and later).
//!
//! Sources: OpenJDK 17 src/hotspot/share/code/codeBlob.hpp (`CodeBlob`), share/memory/heap.hpp (`HeapBlock`),
//! cpu/x86/frame_x86.inline.hpp (`frame::sender_for_compiled_frame`): the return address is the highest word of a
//! frame, and the caller's rbp is below it. The form has been the same since release 9.

use super::{RBP, RSP};
use crate::addr::Avma;
use crate::binary::frame_rule::{Cfa, Column, RETURN_ADDRESS, Row};
use crate::walk::Code;

/// Code is allocated in segments of this size, or of twice as much...
const SEGMENT_BYTES: u64 = 64;
/// ... whose first bytes are a `HeapBlock`, and then the header begins.
const BLOCK_HEADER_BYTES: u64 = 16;
/// Bytes of the header that are looked at.
const HEADER_BYTES: usize = 0x50;
/// Code is read in pieces of this size, of which so many at most are in front of an address: C2 makes functions of
/// more than 64 KB seldom.
const PIECE_BYTES: u64 = 4 << 10;
const PIECES_MAX: u64 = 32;
/// No frame of Java is as large: each method's code is 64 KB at most.
const FRAME_WORDS_MAX: u32 = 1 << 16;

/// What the header of a piece of code says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Compiled {
    /// The first instruction.
    pub(super) entry: Avma,
    /// The first instruction behind those that make the frame.
    frame_from: Avma,
    frame_bytes: u32,
}

impl Compiled {
    /// Whether the frame stands at an address, but for instructions that have taken it off again.
    pub(super) fn has_frame(&self, pc: Avma) -> bool {
        pc >= self.frame_from
    }

    /// The row where the frame stands.
    pub(super) fn row(&self) -> Row {
        let mut row = Row::new(Cfa::Register(RSP as u8, i64::from(self.frame_bytes)));
        row.columns[RETURN_ADDRESS] = Column::At(-8);
        row.columns[RBP] = Column::At(-16);
        row
    }
}

/// The compiled code that a look-up address is in, if it has a frame. None that is said to have one lacks a
/// header in which eight fields agree with each other and with where it lies.
pub(super) fn compiled_at(lookup: Avma, code: &dyn Code) -> Option<Compiled> {
    if !code.has_hotspot_headers(lookup) {
        return None;
    }
    let mut end = (lookup.0 & !(PIECE_BYTES - 1)).checked_add(PIECE_BYTES)?;
    for _ in 0..PIECES_MAX {
        let start = end.checked_sub(PIECE_BYTES)?;
        let bytes = code.code(Avma(start))?;
        let found = (0..PIECE_BYTES / SEGMENT_BYTES).rev().find_map(|segment| {
            let header = start + segment * SEGMENT_BYTES + BLOCK_HEADER_BYTES;
            let header_bytes = bytes.get(usize::try_from(header - start).ok()?..)?.first_chunk()?;
            read(header, header_bytes, lookup.0)
        });
        if let Some(found) = found {
            return found;
        }
        end = start;
    }
    None
}

/// Reads a header; `None` if it is none, or not of the code that an address is in. `Some(None)` if that has no
/// frame.
fn read(header: u64, bytes: &[u8; HEADER_BYTES], at: u64) -> Option<Option<Compiled>> {
    let (words, _) = bytes.as_chunks::<4>();
    let word = |offset: usize| words.get(offset / 4).map_or(0, |word| u32::from_le_bytes(*word));
    let pointer = |offset: usize| u64::from(word(offset + 4)) << 32 | u64::from(word(offset));
    let (size, header_size, frame_complete, data_offset, frame_words) =
        (word(0x0c), word(0x10), word(0x14), word(0x18), word(0x1c));
    let (code_begin, code_end, content_begin, data_end) =
        (pointer(0x20), pointer(0x28), pointer(0x30), pointer(0x38));
    let (relocation_begin, relocation_end) = (pointer(0x40), pointer(0x48));
    let behind = |bytes: u32| header.checked_add(bytes.into());
    let in_order = [relocation_begin, relocation_end, content_begin, code_begin, code_end, data_end];
    let is_header = in_order.is_sorted()
        && behind(size) == Some(data_end)
        && behind(header_size) == Some(relocation_begin)
        && behind(data_offset) == Some(code_end)
        && header_size as usize >= HEADER_BYTES
        && (code_begin..code_end).contains(&at);
    if !is_header {
        return None;
    }
    // Stubs say that their frame is never complete; where they call, it is.
    let frame_from =
        i32::try_from(frame_complete).ok().and_then(|offset| code_begin.checked_add_signed(offset.into()));
    let frame_from = Avma(frame_from.unwrap_or(u64::MAX));
    let has_frame = (2..FRAME_WORDS_MAX).contains(&frame_words);
    Some(has_frame.then(|| Compiled { entry: Avma(code_begin), frame_from, frame_bytes: 8 * frame_words }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::CodeAddress;
    use crate::rng::Rng;
    use crate::walk::frames::Method;
    use crate::walk::x86_64::cache::Cache;
    use crate::walk::x86_64::rule::Kind;

    const HEAP: u64 = 0x7f00_0000_0000;

    /// A part of the code cache.
    struct Heap {
        bytes: Vec<u8>,
        by_hotspot: bool,
    }

    impl Code for Heap {
        fn is_code(&self, at: Avma) -> bool {
            self.code(at).is_some()
        }
        fn code(&self, at: Avma) -> Option<&[u8]> {
            self.bytes.get(usize::try_from(at.0.checked_sub(HEAP)?).ok()?..).filter(|code| !code.is_empty())
        }
        fn is_made(&self, _: Avma) -> bool {
            true
        }
        fn has_hotspot_headers(&self, _: Avma) -> bool {
            self.by_hotspot
        }
    }

    /// As C2 makes it, in front of a body of this many bytes that calls (-1 .. +12) at its end and then goes on.
    fn method(body: usize) -> Vec<u8> {
        let mut code = vec![
            0x89, 0x84, 0x24, 0, 0xc0, 0xfe, 0xff, // +00 mov %eax,-0x14000(%rsp)
            0x55, //                                  +07 push %rbp
            0x48, 0x83, 0xec, 0x20, //                +08 sub $0x20,%rsp
        ];
        code.resize(code.len() + body, 0x90);
        code.extend([
            0x41, 0xff, 0xd2, //                            +00 call *%r10
            0x48, 0x83, 0xc4, 0x20, //                      +03 add $0x20,%rsp
            0x5d, //                                        +07 pop %rbp
            0x49, 0x3b, 0xa7, 0x48, 0x03, 0, 0, //          +08 cmp 0x348(%r15),%rsp
            0x77, 0x01, //                                  +0f ja +12
            0xc3, //                                        +11 ret
            0x4c, 0x8d, 0x15, 0xf0, 0xff, 0xff, 0xff, //    +12 lea -16(%rip),%r10
            0x41, 0xff, 0xe3, //                            +19 jmp *%r11
        ]);
        code
    }

    /// The heap with this code in it, and where that begins.
    fn heap(code: &[u8], frame_words: i32, frame_complete: i32) -> (Heap, u64) {
        const HEADER: u64 = 5 * SEGMENT_BYTES + BLOCK_HEADER_BYTES;
        const HEADER_SIZE: u64 = 352;
        let begin = HEADER + HEADER_SIZE + 48;
        let end = begin + code.len() as u64;
        let data_end = end + 88;
        let mut bytes = vec![0; data_end as usize + 512];
        bytes[begin as usize..end as usize].copy_from_slice(code);
        let mut put = |offset: u64, field: &[u8]| {
            bytes[(HEADER + offset) as usize..][..field.len()].copy_from_slice(field);
        };
        for (offset, number) in [
            (0x0c, (data_end - HEADER) as i32),
            (0x10, HEADER_SIZE as i32),
            (0x14, frame_complete),
            (0x18, (end - HEADER) as i32),
            (0x1c, frame_words),
        ] {
            put(offset, &number.to_le_bytes());
        }
        let relocation = HEADER + HEADER_SIZE;
        for (offset, at) in [begin, end, begin, data_end, relocation, relocation + 24].into_iter().enumerate()
        {
            put(0x20 + 8 * offset as u64, &(HEAP + at).to_le_bytes());
        }
        (Heap { bytes, by_hotspot: true }, HEAP + begin)
    }

    /// The CFA from the stack pointer by the rule of an address, and whether that is relied on.
    fn cfa(address: CodeAddress, heap: &Heap) -> Option<i64> {
        let row = match compiled_at(address.lookup().at(), heap) {
            Some(compiled) if address.is_return() => compiled.row(),
            _ => return None,
        };
        let mut cache = Cache::default();
        let rule = cache.rule(address, heap);
        assert_eq!((rule.kind(), rule.method()), (Kind::StackPointer, Method::Code));
        match row.cfa {
            Cfa::Register(_, offset) => Some(offset),
            _ => None,
        }
    }

    #[test]
    fn what_a_call_returns_to_has_the_frame_that_the_header_tells() {
        // The header is in the same piece, in the one before, and many pieces before.
        for body in [0, 3000, 5000, 100_000] {
            let code = method(body);
            let (heap, begin) = heap(&code, 6, 12);
            let after = CodeAddress::Return(Avma(begin + 12 + body as u64 + 3));
            assert_eq!(cfa(after, &heap), Some(48), "{body} bytes");
        }
        let (heap, begin) = heap(&method(200_000), 6, 12);
        assert_eq!(compiled_at(Avma(begin + 200_000), &heap), None, "further than is looked");
    }

    #[test]
    fn a_program_counter_has_the_frame_that_stands_there() {
        let (heap, begin) = heap(&method(20), 6, 12);
        let cfa = |offset: u64| {
            let mut cache = Cache::default();
            let rule = cache.rule(CodeAddress::Pc(Avma(begin + offset)), &heap);
            assert_eq!((rule.kind(), rule.method()), (Kind::StackPointer, Method::Code), "+{offset:x}");
            rule.cfa()
        };
        // Prologue, body, epilogue; in words.
        assert_eq!([0, 7, 8, 12, 31].map(cfa), [1, 1, 2, 6, 6]);
        let behind = 12 + 20;
        assert_eq!([0, 3, 7, 8, 0xf, 0x11].map(|offset| cfa(behind + offset)), [6, 6, 2, 1, 1, 1]);
        // Behind them stands a stub without a frame: the header alone does not decide.
        let mut cache = Cache::default();
        let rule = cache.rule(CodeAddress::Pc(Avma(begin + behind + 0x12)), &heap);
        assert_eq!(cache.proof(rule), crate::walk::intel::forward::Proof::Wanted);
    }

    #[test]
    fn headers_that_do_not_agree_with_themselves_are_none() {
        let code = method(20);
        let at = |heap: &Heap, begin: u64| compiled_at(Avma(begin + 20), heap);
        let (stub, begin) = heap(&code, 6, -1);
        assert!(at(&stub, begin).is_some_and(|compiled| !compiled.has_frame(Avma(begin + 20))));
        for frame_words in [0, 1, -1, 1 << 16] {
            let (heap, begin) = heap(&code, frame_words, 12);
            assert_eq!(at(&heap, begin), None, "{frame_words} words");
        }
        let (good, begin) = heap(&code, 6, 12);
        assert!(at(&good, begin).is_some());
        let other = Heap { by_hotspot: false, bytes: good.bytes.clone() };
        assert_eq!(at(&other, begin), None);
        let header = 5 * SEGMENT_BYTES + BLOCK_HEADER_BYTES;
        for field in [0x0c, 0x10, 0x18, 0x20, 0x28, 0x38, 0x40] {
            let mut bytes = good.bytes.clone();
            bytes[(header + field) as usize + 1] ^= 0x80;
            assert_eq!(at(&Heap { bytes, by_hotspot: true }, begin), None, "field at {field:#x}");
        }
    }

    #[test]
    fn any_bytes_are_looked_through() {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let (mut heap, begin) = heap(&method(20), 6, 12);
            for _ in 0..rng.within(1, 400) {
                let at = rng.below(heap.bytes.len());
                heap.bytes[at] = rng.below(256) as u8;
            }
            for _ in 0..50 {
                let at = rng.below(heap.bytes.len() + 64) as u64;
                if let Some(found) = compiled_at(Avma(HEAP + at), &heap) {
                    assert!(
                        found.entry.0 <= HEAP + at && found.frame_bytes <= 8 * FRAME_WORDS_MAX,
                        "seed {seed}"
                    );
                }
            }
            compiled_at(Avma(u64::MAX - begin % 7), &heap);
        }
    }
}
