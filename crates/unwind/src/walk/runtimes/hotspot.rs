//! Frames of code compiled by HotSpot (Java, Kotlin, Scala), by the header before each piece of code: the frame
//! size, and the instruction from which the frame is complete. HotSpot walks its own stacks with it. Input: an
//! address in this code; output: the header's data. Not for: stubs without a frame.
//!
//! Sources: OpenJDK 11, 17, 21 and 25, src/hotspot/share/code/codeBlob.hpp (`CodeBlob`), share/memory/heap.hpp
//! (`HeapBlock`), cpu/x86/frame_x86.inline.hpp (`frame::sender_for_compiled_frame`): the return address is the
//! highest word of a frame, and the caller's rbp is below it.

use std::ops::Range;

use crate::addr::Avma;
use crate::arch::X86_64;
use crate::binary::frame_rule::{Cfa, Column, RETURN_ADDRESS, Row};
use crate::walk::Code;

/// Code is allocated in segments of this size, or of twice as much: first a `HeapBlock`, then the header.
const SEGMENT_BYTES: u64 = 64;
/// Bytes examined from the start of a segment.
const HEADER_BYTES: usize = 0x70;
/// Code before an address is read in pieces of this size, up to this many: C2 rarely generates functions of more
/// than 64 KB.
const PIECE_BYTES: u64 = 4 << 10;
const PIECES_MAX: u64 = 32;
/// Limit on the frame size, larger than any Java frame: each method's code is 64 KB at most.
const FRAME_WORDS_MAX: u32 = 1 << 16;

/// The header of a piece of code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CompiledMethod {
    /// The first instruction.
    pub(crate) entry: Avma,
    /// The first instruction after those that create the frame.
    frame_from: Avma,
    frame_bytes: u32,
}

impl CompiledMethod {
    /// Whether the frame is complete at an address, except after instructions that have removed it.
    pub(crate) fn has_frame(&self, pc: Avma) -> bool {
        pc >= self.frame_from
    }

    /// The row with a complete frame.
    pub(crate) fn row(&self) -> Row {
        let mut row: Row = Row::new(Cfa::Register(X86_64::RSP as u8, i64::from(self.frame_bytes)));
        row.columns[RETURN_ADDRESS] = Column::At(-8);
        row.columns[X86_64::RBP] = Column::At(-16);
        row
    }
}

/// The compiled code that contains a look-up address, if it has a frame. A header is recognized by fields that are
/// consistent with each other and with its address.
pub(crate) fn compiled_at(lookup: Avma, code: &dyn Code) -> Option<CompiledMethod> {
    if !code.traits(lookup).has_hotspot_headers {
        return None;
    }
    let mut end = (lookup.0 & !(PIECE_BYTES - 1)).checked_add(PIECE_BYTES)?;
    for _ in 0..PIECES_MAX {
        let start = end.checked_sub(PIECE_BYTES)?;
        let bytes = code.code(Avma(start))?;
        let segments = (0..PIECE_BYTES / SEGMENT_BYTES).map(|number| number * SEGMENT_BYTES);
        let header = segments.rev().find_map(|offset| {
            let bytes = Bytes(bytes.get(offset as usize..)?.first_chunk()?);
            let header = Header::read(start + offset, bytes)?;
            header.code.contains(&lookup.0).then_some(header)
        });
        if let Some(header) = header {
            return header.compiled();
        }
        end = start;
    }
    None
}

/// Whether instructions at an address look like code after the frame was removed but without a following return:
/// `pop %rbp` and the code after it, and the stub of a return that waits for a safepoint (share/opto/output.hpp,
/// `C2SafepointPollStub`; cpu/x86/c1_CodeStubs_x86.cpp, `C1SafepointPollStub`).
pub(crate) fn may_have_left(pc: Avma, code: &dyn Code) -> bool {
    const POP_RBP: u8 = 0x5d;
    // lea N(%rip),%r10; mov %r10,N(%r15); jmp: 7, 7 and 5 bytes
    let is_stub = |start: &[u8]| {
        matches!(start, [0x4c, 0x8d, 0x15, _, _, _, _, 0x4d, 0x89, 0x97, _, _, _, _, 0xe9 | 0xeb | 0xff, ..])
    };
    let at =
        |before: u64| pc.0.checked_sub(before).and_then(|start| code.code(Avma(start))).unwrap_or_default();
    [0, 1].into_iter().any(|before| at(before).first() == Some(&POP_RBP))
        || [0, 7, 14].into_iter().any(|before| is_stub(at(before)))
}

/// The first bytes of a segment.
#[derive(Clone, Copy)]
struct Bytes<'a>(&'a [u8; HEADER_BYTES]);

impl Bytes<'_> {
    fn u32(self, offset: usize) -> u32 {
        let bytes = self.0.get(offset..).and_then(|bytes| bytes.first_chunk());
        bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
    }

    fn pointer(self, offset: usize) -> u64 {
        u64::from(self.u32(offset + 4)) << 32 | u64::from(self.u32(offset))
    }
}

/// The fields of a header.
struct Header {
    code: Range<u64>,
    /// Relative to the first instruction; negative for stubs, which have their frame at their calls.
    frame_complete: i32,
    frame_words: u32,
}

impl Header {
    /// Reads the header of any supported release; `None` if it is not a header.
    fn read(segment: u64, bytes: Bytes<'_>) -> Option<Header> {
        let by_pointers = |numbers, pointers| Header::with_pointers(segment + 0x10, bytes, numbers, pointers);
        // OpenJDK 11 and 17; 21; 25.
        by_pointers(0x1c, 0x30)
            .or_else(|| by_pointers(0x58, 0x18))
            .or_else(|| Header::with_offsets(segment, bytes))
    }

    /// Reads a header with pointers to its parts: `numbers` and `pointers` are offsets of these in the segment.
    fn with_pointers(header: u64, bytes: Bytes<'_>, numbers: usize, pointers: usize) -> Option<Header> {
        let [size, header_size, frame_complete, data_offset, frame_words] =
            std::array::from_fn(|index| bytes.u32(numbers + 4 * index));
        let [code_begin, code_end, content_begin, data_end, relocation_begin, relocation_end] =
            std::array::from_fn(|index| bytes.pointer(pointers + 8 * index));
        let behind = |bytes: u32| header.checked_add(bytes.into());
        let in_order =
            [header, relocation_begin, relocation_end, content_begin, code_begin, code_end, data_end];
        let is_header = in_order.is_sorted()
            && behind(size) == Some(data_end)
            && behind(header_size) == Some(relocation_begin)
            && behind(data_offset) == Some(code_end);
        let frame_complete = frame_complete.cast_signed();
        is_header.then_some(Header { code: code_begin..code_end, frame_complete, frame_words })
    }

    /// Reads a header with relative offsets, after a `HeapBlock` of half the size.
    fn with_offsets(segment: u64, bytes: Bytes<'_>) -> Option<Header> {
        const HEADER: u64 = 8;
        let (segments, is_used, name) = (bytes.u32(0), bytes.u32(4) as u8, bytes.pointer(0x10));
        let [size, _relocation_size, content, code, data, frame_words] =
            std::array::from_fn(|index| bytes.u32(0x20 + 4 * index));
        let (header_size, frame_complete) = (bytes.u32(0x3c) & 0xffff, bytes.u32(0x3c) >> 16);
        // Blocks have at least 6 segments, and a small remainder of a larger block is part of it.
        let needed = u64::from(size) + HEADER;
        let block = u64::from(segments) * SEGMENT_BYTES;
        let fits = needed <= 2 * block && block <= needed + 16 * SEGMENT_BYTES;
        let in_order = [0x40, header_size, content, code, data, size].is_sorted();
        if is_used != 1 || !fits || !in_order || name == 0 || name >> 47 != 0 {
            return None;
        }
        let at = |offset: u32| segment.checked_add(HEADER)?.checked_add(offset.into());
        let frame_complete = i32::from(frame_complete as i16);
        Some(Header { code: at(code)?..at(data)?, frame_complete, frame_words })
    }

    fn compiled(self) -> Option<CompiledMethod> {
        let entry = self.code.start;
        let frame_from = u64::try_from(self.frame_complete).ok().and_then(|offset| entry.checked_add(offset));
        let frame_from = Avma(frame_from.unwrap_or(u64::MAX));
        let frame_words = Some(self.frame_words).filter(|words| (2..FRAME_WORDS_MAX).contains(words))?;
        Some(CompiledMethod { entry: Avma(entry), frame_from, frame_bytes: 8 * frame_words })
    }
}

/// The row at HotSpot's interpreter's return point after a call: it first restores the stack pointer from its
/// frame, two words below rbp, and clears that word (templateInterpreterGenerator_x86.cpp,
/// `generate_return_entry_for`). The caller's stack pointer is in the word between that and the frame record
/// (frame_x86.hpp, `interpreter_frame_sender_sp_offset`).
pub(crate) fn interpreter_row(code: &[u8]) -> Option<Row> {
    // mov -16(%rbp),%rsp; movq $0,-16(%rbp)
    const GOES_ON: &[u8] = &[0x48, 0x8b, 0x65, 0xf0, 0x48, 0xc7, 0x45, 0xf0, 0, 0, 0, 0];
    // mov -16(%rbp),%rcx; lea (%rbp,%rcx,8),%rsp; movq $0,-16(%rbp): the word is an index in OpenJDK 25.
    const GOES_ON_BY_INDEX: &[u8] =
        &[0x48, 0x8b, 0x4d, 0xf0, 0x48, 0x8d, 0x64, 0xcd, 0, 0x48, 0xc7, 0x45, 0xf0, 0, 0, 0, 0];
    // DWARF: breg6 -8, deref; breg6 8; breg6 0
    const SENDER_SP: [u8; 3] = [0x76, 0x78, 0x06];
    [GOES_ON, GOES_ON_BY_INDEX].iter().any(|form| code.starts_with(form)).then(|| {
        let mut row: Row = Row::new(Cfa::Expression(SENDER_SP.into()));
        row.columns[RETURN_ADDRESS] = Column::AtExpression([0x76, 8].into());
        row.columns[X86_64::RBP] = Column::AtExpression([0x76, 0].into());
        row
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::CodeAddress;
    use crate::rng::Rng;
    use crate::walk::CodeTraits;
    use crate::walk::frames::Method;
    use crate::walk::text::Text;
    use crate::walk::x86_64::{Cache, RuleKind};

    const HEAP: u64 = 0x7f00_0000_0000;

    /// A part of the code cache.
    fn heap_with(bytes: Vec<u8>, has_hotspot_headers: bool) -> Text {
        let traits = CodeTraits { is_jit: true, has_hotspot_headers, ..CodeTraits::default() };
        Text::new(HEAP, bytes).with_traits(traits)
    }

    /// Like the output of C2, before a body of this many bytes that ends with a call (-1 .. +12) and then
    /// continues.
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
            0x4d, 0x89, 0x97, 0x60, 0x03, 0, 0, //          +19 mov %r10,0x360(%r15)
            0xff, 0x25, 0, 0, 0, 0, //                      +20 jmp *0(%rip)
            0xeb, 0xfe, //                                  +26 jmp to itself
        ]);
        code
    }

    const SEGMENT: usize = 5 * SEGMENT_BYTES as usize;
    const RELEASES: [u32; 3] = [17, 21, 25];

    /// The heap of a release with this code, and the code's address.
    fn heap_of(release: u32, code: &[u8], frame_words: i32, frame_complete: i32) -> (Text, u64) {
        let header = if release == 25 { SEGMENT + 8 } else { SEGMENT + 0x10 };
        let begin = header + 352 + 48;
        let end = begin + code.len();
        let data_end = if release == 25 { end } else { end + 88 };
        let mut bytes = vec![0; data_end + 512];
        bytes[begin..end].copy_from_slice(code);
        let mut put = |at: usize, numbers: &[i32]| {
            let field: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
            bytes[at..][..field.len()].copy_from_slice(&field);
        };
        let (size, end_offset) = ((data_end - header) as i32, (end - header) as i32);
        if release == 25 {
            put(SEGMENT, &[(size + 8) / 128 + 1, 1]);
            put(header + 0x08, &[0x1234, 0x7f00]);
            let complete = 352 | frame_complete << 16;
            put(header + 0x18, &[size, 24, 400, 400, end_offset, frame_words, 0, complete]);
            return (heap_with(bytes, true), HEAP + begin as u64);
        }
        let (numbers, pointers) = if release == 17 { (0x0c, 0x20) } else { (0x48, 0x08) };
        put(header + numbers, &[size, 352, frame_complete, end_offset, frame_words]);
        let relocation = header + 352;
        for (index, at) in [begin, end, begin, data_end, relocation, relocation + 24].into_iter().enumerate()
        {
            put(header + pointers + 8 * index, &[at as i32, (HEAP >> 32) as i32]);
        }
        (heap_with(bytes, true), HEAP + begin as u64)
    }

    fn heap(code: &[u8], frame_words: i32, frame_complete: i32) -> (Text, u64) {
        heap_of(17, code, frame_words, frame_complete)
    }

    /// The offset of the CFA from the stack pointer by the rule of an address, if that is reliable.
    fn cfa(address: CodeAddress, heap: &Text) -> Option<i64> {
        let row = match compiled_at(address.lookup().at(), heap) {
            Some(compiled) if address.is_return() => compiled.row(),
            _ => return None,
        };
        let mut cache = Cache::default();
        let rule = cache.rule(address, heap);
        assert_eq!((rule.kind(), rule.method()), (RuleKind::StackPointer, Method::Code));
        match row.cfa {
            Cfa::Register(_, offset) => Some(offset),
            _ => None,
        }
    }

    #[test]
    fn a_return_address_has_the_frame_of_its_header() {
        // The header is in the same piece, in the previous one, and many pieces before.
        for body in [0, 3000, 5000, 100_000] {
            for release in RELEASES {
                let (heap, begin) = heap_of(release, &method(body), 6, 12);
                let after = CodeAddress::Return(Avma(begin + 12 + body as u64 + 3));
                assert_eq!(cfa(after, &heap), Some(48), "{body} bytes, release {release}");
            }
        }
        let (heap, begin) = heap(&method(200_000), 6, 12);
        assert_eq!(compiled_at(Avma(begin + 200_000), &heap), None, "further than is looked");
    }

    #[test]
    fn a_program_counter_has_the_frame_at_its_instruction() {
        let (heap, begin) = heap(&method(20), 6, 12);
        let cfa = |offset: u64| {
            let mut cache = Cache::default();
            let rule = cache.rule(CodeAddress::Pc(Avma(begin + offset)), &heap);
            assert_eq!((rule.kind(), rule.method()), (RuleKind::StackPointer, Method::Code), "+{offset:x}");
            rule.cfa()
        };
        // Prologue, body, epilogue; in words.
        assert_eq!([0, 7, 8, 12, 31].map(cfa), [1, 1, 2, 6, 6]);
        let behind = 12 + 20;
        assert_eq!([0, 3, 7, 8, 0xf, 0x11].map(|offset| cfa(behind + offset)), [6, 6, 2, 1, 1, 1]);
        // A stub without a frame follows: the header does not decide.
        for offset in [0x12, 0x19, 0x20] {
            let mut cache = Cache::default();
            let rule = cache.rule(CodeAddress::Pc(Avma(begin + behind + offset)), &heap);
            assert_eq!(cache.proof(rule), crate::walk::engine::Proof::NeedsConfirmation, "+{offset:x}");
        }
        // No path leads from here to a return.
        assert_eq!(cfa(behind + 0x26), 6);
    }

    #[test]
    fn inconsistent_headers_are_rejected() {
        let code = method(20);
        let at = |heap: &Text, begin: u64| compiled_at(Avma(begin + 20), heap);
        let (stub, begin) = heap(&code, 6, -1);
        assert!(at(&stub, begin).is_some_and(|compiled| !compiled.has_frame(Avma(begin + 20))));
        for frame_words in [0, 1, -1, 1 << 16] {
            let (heap, begin) = heap(&code, frame_words, 12);
            assert_eq!(at(&heap, begin), None, "{frame_words} words");
        }
        let (good, begin) = heap(&code, 6, 12);
        assert!(at(&good, begin).is_some());
        let other = heap_with(good.bytes().to_vec(), false);
        assert_eq!(at(&other, begin), None);
        // Each number and pointer, by its offset in the segment.
        let fields: [&[usize]; 3] = [
            &[0x1c, 0x20, 0x28, 0x30, 0x38, 0x48, 0x50],
            &[0x58, 0x5c, 0x64, 0x18, 0x20, 0x30, 0x38],
            &[0x00, 0x04, 0x16, 0x20, 0x28, 0x2c],
        ];
        for (release, fields) in RELEASES.into_iter().zip(fields) {
            let (good, begin) = heap_of(release, &code, 6, 12);
            assert!(at(&good, begin).is_some(), "release {release}");
            for field in fields {
                let mut bytes = good.bytes().to_vec();
                bytes[SEGMENT + field + 1] ^= 0x80;
                bytes[SEGMENT + field] ^= 0x02;
                let found = at(&heap_with(bytes, true), begin);
                assert_eq!(found, None, "release {release}, field at {field:#x}");
            }
        }
    }

    #[test]
    fn any_bytes_are_searched() {
        for seed in 1..=200_u64 {
            let mut random = Rng::new(seed);
            let mut below = |limit: usize| random.below(limit);
            let release = RELEASES[below(RELEASES.len())];
            let (heap, begin) = heap_of(release, &method(20), 6, 12);
            let mut bytes = heap.bytes().to_vec();
            let len = bytes.len();
            for _ in 0..1 + below(400) {
                bytes[below(len)] = below(256) as u8;
            }
            let heap = heap_with(bytes, true);
            for _ in 0..50 {
                let at = below(len + 64) as u64;
                if let Some(found) = compiled_at(Avma(HEAP + at), &heap) {
                    assert!(
                        found.entry.0 <= HEAP + at && found.frame_bytes < 8 * FRAME_WORDS_MAX,
                        "seed {seed}"
                    );
                }
            }
            compiled_at(Avma(u64::MAX - begin % 7), &heap);
        }
    }

    #[test]
    fn the_interpreter_row_has_its_callers_stack_pointer() {
        const GOES_ON: &[u8] = &[
            0x48, 0x8b, 0x65, 0xf0, //                         mov -16(%rbp),%rsp
            0x48, 0xc7, 0x45, 0xf0, 0, 0, 0, 0, //             movq $0,-16(%rbp)
            0x4c, 0x8b, 0x6d, 0xc0, 0x41, 0xff, 0x24, 0xda, // mov -64(%rbp),%r13; jmp *(%r10,%rbx,8)
        ];
        let row = interpreter_row(GOES_ON).expect("a row");
        assert_eq!(row.cfa, Cfa::Expression([0x76, 0x78, 0x06].into()));
        assert_eq!(row.columns[X86_64::RBP], Column::AtExpression([0x76, 0].into()));
        assert_eq!(row.columns[RETURN_ADDRESS], Column::AtExpression([0x76, 8].into()));
        assert_eq!(interpreter_row(&GOES_ON[4..]), None);
        const GOES_ON_25: &[u8] = &[
            0x48, 0x8b, 0x4d, 0xf0, //                         mov -16(%rbp),%rcx
            0x48, 0x8d, 0x64, 0xcd, 0, //                      lea (%rbp,%rcx,8),%rsp
            0x48, 0xc7, 0x45, 0xf0, 0, 0, 0, 0, //             movq $0,-16(%rbp)
            0x4c, 0x8b, 0x6d, 0xc0, 0x4c, 0x8b, 0x75, 0xc8, // mov -64(%rbp),%r13; mov -56(%rbp),%r14
        ];
        assert_eq!(interpreter_row(GOES_ON_25), Some(row));
        assert_eq!(interpreter_row(&GOES_ON_25[4..]), None);
    }
}
