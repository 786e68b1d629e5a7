//! The code of a target as walks ask for it. Input: addresses; output: bytes of code, unwind information, bounds of
//! functions. Implemented for images and JIT code by `images`.

use std::ops::Range;

use super::glance::Glance;
use crate::addr::Avma;
use crate::binary::frame_rule::{AnyRow, Body, Row, TableSays};

/// What is known of who made code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CodeTraits {
    /// It is JIT code, which may be replaced at any time.
    pub is_jit: bool,
    /// It belongs to a runtime that walks its frames by their records itself at every call (V8), so that each function
    /// that has called something keeps one.
    pub keeps_frame_records: bool,
    /// HotSpot made it, which keeps a header in front of each piece of it, and whose interpreter pushes return
    /// addresses instead of calling.
    pub has_hotspot_headers: bool,
}

/// A walk needs bytes of JIT code at an address that are not read yet: with them it is made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeedsBytes(pub Avma);

/// The part of a file that code is mapped from. Where it is equal in two processes, so is the code from the first
/// address of the mapping to the last, and all that images know of it, but for the address that it begins at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePlace {
    /// A number for the file as it was when it was mapped.
    pub image: u32,
    /// Where the mapping begins in the file.
    pub file_offset: u64,
    /// The addresses of the mapping.
    pub mapped: Range<Avma>,
}

/// The code of the target, as far as its images are known: the leaf's caller is
/// found by looking at the instructions around the program counter.
pub trait Code {
    /// Whether an address is known to lie in executable memory: what does not is not taken
    /// for a return address.
    fn is_code(&self, at: Avma) -> bool;

    /// The bytes from `at` to the end of the mapped code, or `None` outside known images.
    fn code(&self, at: Avma) -> Option<&[u8]>;

    /// The first bytes of the code at an address. Of JIT code they are as old as what was learned of such code may be,
    /// and nothing that is learned rests on them.
    fn glance(&self, at: Avma) -> Glance {
        self.code(at).map(Glance::of).unwrap_or_default()
    }

    /// What is known of who made the code at an address.
    fn traits(&self, _at: Avma) -> CodeTraits {
        CodeTraits::default()
    }

    /// The mapping of a file that an address is in; `None` for code that is in memory only.
    fn file_place(&self, _at: Avma) -> Option<FilePlace> {
        None
    }

    /// What is learned now rests on code between two addresses, the last included, that was looked at before.
    fn rests_on(&self, _first: Avma, _last: Avma) {}

    /// Whether what was found out of a look-up address may be kept: it rests on the bytes that [`Code::code`] gave
    /// since this was asked last, and none of them were missing.
    fn may_keep(&self, _lookup: Avma) -> bool {
        true
    }

    /// The bytes that were requested, are to be had and were not given, if any: [`unwind`](super::unwind) ends with that.
    fn needs(&self) -> Option<NeedsBytes> {
        None
    }

    /// Whether bytes are needed or code was not to be followed, so that whatever the walk still finds is for nothing.
    fn walks_again(&self) -> bool {
        false
    }

    /// Whether the code at a look-up address, of which nothing is known yet, is worth what following it costs. If not, nothing is
    /// learned of it.
    fn may_follow(&self, _lookup: Avma) -> bool {
        true
    }

    /// All bytes between two addresses were looked at. (Of what [`Code::code`] gives, others look at
    /// 4 KiB at most, and mostly at one instruction.)
    fn searched(&self, _from: Avma, _to: Avma) {}

    /// What the unwind information says at a look-up address, of whatever processor; `None` where there is none.
    fn row(&self, _lookup: Avma) -> Option<AnyRow> {
        None
    }

    /// The row at the instruction `pc` of an epilogue, where unwind information leaves these to the
    /// instructions (PE); `None` where [`Code::row`] is right.
    fn row_in_epilogue(&self, _pc: Avma) -> Option<Row> {
        None
    }

    /// Whether code of 32-bit Arm at an address is T32 and not A32; `None` where nothing tells.
    fn is_t32(&self, _pc: Avma) -> Option<bool> {
        None
    }

    /// The entry of the tables of 32-bit Arm's exception handling ABI that a look-up address is in, and
    /// where its function begins and ends, without the bit of T32; `None` where there is none.
    fn exidx(&self, _lookup: Avma) -> Option<(Range<Avma>, TableSays)> {
        None
    }

    /// Whether the image at a look-up address has unwind information for any of its
    /// functions. Then one that has none is an exception, which may not keep a frame record.
    fn describes_frames(&self, _lookup: Avma) -> bool {
        false
    }

    /// What the unwind information of a Mach-O image says of the body of the function at a
    /// look-up address; `None` where there is none.
    fn body(&self, _lookup: Avma) -> Option<Body> {
        None
    }

    /// Whether threads begin to run in the Mach-O image at a look-up address; `None`
    /// elsewhere, where they may begin anywhere.
    fn begins_threads(&self, _lookup: Avma) -> Option<bool> {
        None
    }

    /// Where the image that `pc` is in begins to run, if it says so.
    fn entry(&self, _pc: Avma) -> Option<Avma> {
        None
    }

    /// The bounds of the function at a look-up address as unwind information has them, a part that was
    /// split off by itself; `None` where there is none.
    fn described_function(&self, _lookup: Avma) -> Option<Range<Avma>> {
        None
    }

    /// The bounds of the function at `pc`; `None` where they are not known.
    fn function(&self, _pc: Avma) -> Option<Range<Avma>> {
        None
    }
}
