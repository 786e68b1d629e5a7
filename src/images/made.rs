//! The bytes of code that belongs to no file: what a just-in-time compiler made, and files that
//! are gone. Input: the executable mappings, and reads of the target's memory while it runs;
//! output: code for the walker, which follows it as it follows other code without unwind
//! information.
//!
//! Such code is replaced without a word. So bytes are read when a walk first needs them and
//! serve that walk only; what was learned of them is kept by the walker for as long as
//! [`KEPT_NS`] and then learned anew. Nothing is read while a thread stands.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use super::{ImageCode, Images};
use crate::addr::Avma;
use crate::binary::frame_rule::{Body, FrameRule, Row, RowAarch64, RowArm, RowX86, TableSays};
use crate::binary::v8;
use crate::binary::{Mapping, MappingKind};
use crate::walk::Code;

/// Reads memory from an address on; how many bytes from the start of the buffer were read.
pub type Read<'a> = &'a mut dyn FnMut(Avma, &mut [u8]) -> usize;

/// How long what was learned of such code is relied on, nanoseconds.
pub(crate) const KEPT_NS: u64 = 1_000_000_000;
/// Bytes are read in blocks of this size, a power of two.
const BLOCK_BYTES: u64 = 8 << 10;
/// Most blocks that one walk reads: code of so many functions is on a deep stack.
const BLOCKS_MAX: usize = 512;
/// An instruction is at most so long: near the end of a block the next one is needed.
const INSTRUCTION_BYTES_MAX: u64 = 15;

/// See the top of this file.
#[derive(Debug, Default)]
pub struct Made {
    /// Where code without a file is mapped; sorted, disjoint.
    regions: Vec<Range<u64>>,
    /// V8 is in the process: it made the code.
    by_v8: bool,
    /// What was read for this walk; disjoint, none follows another.
    pieces: Vec<Piece>,
    /// Blocks that are wanted, by their address.
    wanted: RefCell<Vec<u64>>,
    lacked: Cell<bool>,
    blocks: usize,
    /// When what was learned was thrown away last.
    forgotten_ns: u64,
}

#[derive(Debug)]
struct Piece {
    start: u64,
    /// Shorter than what was asked for where memory is not mapped.
    bytes: Vec<u8>,
    /// What was asked for.
    end: u64,
}

impl Made {
    /// Takes the executable mappings now present, sorted by address.
    pub fn update(&mut self, mappings: &[Mapping], images: &Images) {
        let without_file = |mapping: &&Mapping| {
            mapping.kind == MappingKind::Anonymous || images.code(mapping.avma.start).is_none()
        };
        self.by_v8 = images.images_in(images.space()).any(|image| v8::is_in(&image.name));
        self.regions.clear();
        self.regions.extend(
            mappings.iter().filter(without_file).map(|mapping| mapping.avma.start.0..mapping.avma.end.0),
        );
    }

    /// Whether there is any code without a file.
    #[must_use]
    pub fn is_any(&self) -> bool {
        !self.regions.is_empty()
    }

    /// Whether an address is in code without a file.
    #[must_use]
    pub fn contains(&self, at: Avma) -> bool {
        self.region(at.0).is_some()
    }

    fn region(&self, at: u64) -> Option<&Range<u64>> {
        let after = self.regions.partition_point(|region| region.start <= at);
        self.regions.get(after.checked_sub(1)?).filter(|region| region.contains(&at))
    }

    /// Another walk begins: what was read before may have been replaced.
    pub fn begin_walk(&mut self) {
        self.pieces.clear();
        self.wanted.get_mut().clear();
        self.lacked.set(false);
        self.blocks = 0;
    }

    /// Whether it is time to forget what was learned; from then on it is counted anew.
    pub(crate) fn is_old(&mut self, now_ns: u64) -> bool {
        let is_old = !self.regions.is_empty() && now_ns.saturating_sub(self.forgotten_ns) >= KEPT_NS;
        if is_old {
            self.forgotten_ns = now_ns;
        }
        is_old
    }

    /// Reads the blocks that were asked for; whether there were any.
    pub fn fill(&mut self, read: Read<'_>) -> bool {
        let mut wanted = self.wanted.take();
        wanted.sort_unstable();
        wanted.dedup();
        wanted.truncate(BLOCKS_MAX - self.blocks);
        for start in &wanted {
            self.blocks += 1;
            self.read(read, *start);
        }
        !wanted.is_empty()
    }

    /// Reads a block, and the pieces that it follows or is followed by again: code is then in one
    /// piece, as it was at one time.
    fn read(&mut self, read: Read<'_>, start: u64) {
        let Some(region) = self.region(start.max(self.region_start(start))).cloned() else { return };
        let mut range = start.max(region.start)..start.saturating_add(BLOCK_BYTES).min(region.end);
        self.pieces.retain(|piece| {
            let touches = piece.end == range.start || range.end == piece.start;
            if touches {
                range = range.start.min(piece.start)..range.end.max(piece.end);
            }
            !touches
        });
        let mut bytes = vec![0; (range.end - range.start) as usize];
        let len = read(Avma(range.start), &mut bytes);
        bytes.truncate(len);
        self.pieces.push(Piece { start: range.start, bytes, end: range.end });
    }

    /// The start of the region that begins in the block at `start`, if one does.
    fn region_start(&self, start: u64) -> u64 {
        let next = self.regions.get(self.regions.partition_point(|region| region.start < start));
        next.map(|region| region.start).filter(|first| first & !(BLOCK_BYTES - 1) == start).unwrap_or(start)
    }

    fn code(&self, at: Avma) -> Option<&[u8]> {
        let region = self.region(at.0)?;
        let piece = self.pieces.iter().find(|piece| (piece.start..piece.end).contains(&at.0));
        let Some(piece) = piece else {
            self.want(at.0);
            return None;
        };
        if piece.end - at.0 < INSTRUCTION_BYTES_MAX && piece.end < region.end {
            self.want(piece.end);
        }
        piece.bytes.get((at.0 - piece.start) as usize..).filter(|bytes| !bytes.is_empty())
    }

    fn want(&self, at: u64) {
        if self.blocks < BLOCKS_MAX {
            self.wanted.borrow_mut().push(at & !(BLOCK_BYTES - 1));
            self.lacked.set(true);
        }
    }
}

/// The code of a target: that of its images, and what was made at run time.
#[derive(Clone, Copy, Debug)]
pub struct TargetCode<'a> {
    /// Of its images.
    pub images: ImageCode<'a>,
    /// Of no image.
    pub made: &'a Made,
}

impl Code for TargetCode<'_> {
    fn is_code(&self, at: Avma) -> bool {
        self.images.is_code(at)
    }

    fn code(&self, at: Avma) -> Option<&[u8]> {
        self.images.code(at).or_else(|| self.made.code(at))
    }

    fn is_made(&self, at: Avma) -> bool {
        self.made.contains(at)
    }

    fn keeps_records(&self, at: Avma) -> bool {
        self.made.by_v8 && (self.made.contains(at) || self.images.0.is_built_into_v8(at))
    }

    fn lacked(&self) -> bool {
        self.made.lacked.take()
    }

    fn frame_rule(&self, pc: Avma) -> Option<FrameRule> {
        self.images.frame_rule(pc)
    }

    fn row(&self, lookup: Avma) -> Option<Row> {
        self.images.row(lookup)
    }

    fn row_aarch64(&self, lookup: Avma) -> Option<RowAarch64> {
        self.images.row_aarch64(lookup)
    }

    fn row_x86(&self, lookup: Avma) -> Option<RowX86> {
        self.images.row_x86(lookup)
    }

    fn row_arm(&self, lookup: Avma) -> Option<RowArm> {
        self.images.row_arm(lookup)
    }

    fn exidx(&self, lookup: Avma) -> Option<(Range<Avma>, TableSays)> {
        self.images.exidx(lookup)
    }

    fn describes_frames(&self, lookup: Avma) -> bool {
        self.images.describes_frames(lookup)
    }

    fn body(&self, lookup: Avma) -> Option<Body> {
        self.images.body(lookup)
    }

    fn begins_threads(&self, lookup: Avma) -> Option<bool> {
        self.images.begins_threads(lookup)
    }

    fn entry(&self, pc: Avma) -> Option<Avma> {
        self.images.entry(pc)
    }

    fn function(&self, pc: Avma) -> Option<Range<Avma>> {
        self.images.function(pc)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 0x7000_0000_1000;

    fn made(bytes: u64) -> Made {
        let mut made = Made::default();
        let mapping = Mapping {
            avma: Avma(START)..Avma(START + bytes),
            file_offset: 0,
            path: String::new(),
            kind: MappingKind::Anonymous,
            identity: (0, 0),
        };
        made.update(&[mapping], &Images::default());
        made
    }

    /// Reads as if each byte were the number of its page.
    fn page_numbers(at: Avma, into: &mut [u8]) -> usize {
        for (index, byte) in into.iter_mut().enumerate() {
            *byte = ((at.0 - START + index as u64) >> 12) as u8;
        }
        into.len()
    }

    #[test]
    fn what_is_asked_for_is_read_once_and_in_one_piece() {
        let mut made = made(0x9000);
        assert_eq!((made.code(Avma(START - 1)), made.lacked.take()), (None, false), "no code at all");
        assert_eq!((made.code(Avma(START + 8)), made.lacked.take()), (None, true));
        assert!(made.fill(&mut page_numbers));
        assert!(!made.fill(&mut page_numbers), "nothing more is wanted");
        // Blocks are aligned, the region is not.
        let bytes = made.code(Avma(START)).map(|bytes| (bytes.len(), bytes[0]));
        assert_eq!(bytes, Some((0x1000, 0)));
        assert!(!made.lacked.take());
        assert_eq!(made.code(Avma(START + 0xff8)).map(<[u8]>::len), Some(8));
        assert!(made.lacked.take(), "an instruction may go on in the next block");
        assert!(made.fill(&mut page_numbers));
        let bytes = made.code(Avma(START + 0xff8)).map(|bytes| (bytes.len(), bytes[8]));
        assert_eq!((bytes, made.lacked.take()), (Some((0x2008, 1)), false));
        made.begin_walk();
        assert_eq!((made.code(Avma(START)), made.lacked.take()), (None, true), "another walk reads anew");
    }

    #[test]
    fn memory_that_is_gone_is_not_asked_for_again_and_again() {
        let mut made = made(0x9000);
        assert_eq!((made.code(Avma(START + 0x2000)), made.lacked.take()), (None, true));
        assert!(made.fill(&mut |_, _| 0));
        assert_eq!((made.code(Avma(START + 0x2000)), made.lacked.take()), (None, false));
        assert!(!made.fill(&mut |_, _| 0));
    }

    #[test]
    fn a_walk_reads_no_more_than_its_share() {
        let mut made = made(1 << 30);
        for block in 0..2 * BLOCKS_MAX as u64 {
            let _ = made.code(Avma(START + 2 * block * BLOCK_BYTES));
        }
        let mut reads = 0;
        made.fill(&mut |_, _| {
            reads += 1;
            0
        });
        assert_eq!((reads, made.lacked.take()), (BLOCKS_MAX, true));
        assert_eq!((made.code(Avma(START + (1 << 29))), made.lacked.take()), (None, false));
    }
}
