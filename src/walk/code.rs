//! The code of a target, as the walker reads it. Input: addresses; output: bytes of code, unwind information, bounds of
//! functions. Implemented for images and JIT code by `images`.

use std::ops::Range;

use super::glance::Glance;
use crate::addr::Avma;
use crate::binary::frame_rule::{AnyRow, Body, Row, TableSays};

/// What is known about the compiler of code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CodeTraits {
    /// It is JIT code, which may be replaced at any time.
    pub is_jit: bool,
    /// It belongs to a runtime (V8) that walks its own frames by their records, so that each function
    /// that has called another keeps a record.
    pub keeps_frame_records: bool,
    /// It is code of HotSpot, which keeps a header in front of each piece of code, and whose interpreter pushes return
    /// addresses instead of calling.
    pub has_hotspot_headers: bool,
}

/// The walk needs the bytes of JIT code at this address, which have not been read yet. The caller reads them and walks
/// the same stack again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeedsBytes(pub Avma);

/// The part of a file that code is mapped from. Where it is equal in two processes, so is the code from the first
/// address of the mapping to the last, and all that images know about it, except the address that it begins at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePlace {
    /// A number for the file as it was when it was mapped.
    pub image: u32,
    /// Where the mapping begins in the file.
    pub file_offset: u64,
    /// The addresses of the mapping.
    pub mapped: Range<Avma>,
}

/// The code of the target, as far as its images are known.
///
/// # JIT code
/// Bytes of JIT code are read when a walk first needs them, and may change later. So whoever implements this keeps
/// a record of each look-up, which is what the walker learns about one address:
///
/// - [`Code::code`] returns `None` for bytes that have not been read, and remembers the first such address. What the walk
///   finds afterwards is discarded: [`Code::is_interrupted`] lets it stop early, and [`unwind`](super::unwind) returns
///   [`NeedsBytes`] with [`Code::missing_bytes`].
/// - Bytes that were returned are dependencies of the look-up; [`Code::note_search`] and [`Code::note_dependency`] add
///   others. [`Code::commit_dependencies`] ends the look-up: its result may be cached if all bytes were there.
/// - [`Code::may_follow`] refuses look-ups in JIT code when the walk has used up its budget.
///
/// `code` does not return an error itself: see `docs/decisions/jit-code.md`.
pub trait Code {
    /// Whether an address is known to be in executable memory. Other words are no return addresses.
    fn is_code(&self, at: Avma) -> bool;

    /// The bytes from `at` to the end of the mapped code; `None` outside known images, and for JIT code that was not
    /// read.
    fn code(&self, at: Avma) -> Option<&[u8]>;

    /// The first bytes of the code at an address. For JIT code they may be as old as cached results may be, and they are
    /// not a dependency.
    fn glance(&self, at: Avma) -> Glance {
        self.code(at).map(Glance::of).unwrap_or_default()
    }

    /// What is known about the compiler of the code at an address.
    fn traits(&self, _at: Avma) -> CodeTraits {
        CodeTraits::default()
    }

    /// The mapping of a file that an address is in; `None` for code that is in memory only.
    fn file_place(&self, _at: Avma) -> Option<FilePlace> {
        None
    }

    /// Notes that this look-up uses a cached result that depends on code between two addresses, the last included.
    fn note_dependency(&self, _first: Avma, _last: Avma) {}

    /// Notes that all bytes between two addresses were examined. (From the bytes that [`Code::code`] returns, other
    /// look-ups examine 4 KiB at most, and mostly one instruction.)
    fn note_search(&self, _from: Avma, _to: Avma) {}

    /// Ends a look-up: records that what was learned about an address depends on the bytes that were returned since the
    /// last call. Returns false if bytes were missing: then the result must not be cached.
    fn commit_dependencies(&self, _lookup: Avma) -> bool {
        true
    }

    /// The bytes that the walk lacked and that can be read.
    fn missing_bytes(&self) -> Option<NeedsBytes> {
        None
    }

    /// Whether bytes were missing or a look-up was refused, so that whatever the walk still finds is discarded.
    fn is_interrupted(&self) -> bool {
        false
    }

    /// Whether the budget of this walk allows following the code at a look-up address that nothing is cached for. If not,
    /// nothing is learned about the address.
    fn may_follow(&self, _lookup: Avma) -> bool {
        true
    }

    /// The row of unwind information at a look-up address, for the processor of its image; `None` where there is none.
    fn row(&self, _lookup: Avma) -> Option<AnyRow> {
        None
    }

    /// The row at the instruction `pc` of an epilogue, where unwind information leaves these to the
    /// instructions (PE); `None` where [`Code::row`] is right.
    fn row_in_epilogue(&self, _pc: Avma) -> Option<Row> {
        None
    }

    /// Whether code of 32-bit Arm at an address is T32 and not A32; `None` where that is unknown.
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

    /// The unwind information of a Mach-O image for the body of the function at a look-up address; `None` where there
    /// is none.
    fn body(&self, _lookup: Avma) -> Option<Body> {
        None
    }

    /// Whether threads begin to run in the Mach-O image at a look-up address; `None` in other images, where threads may
    /// begin anywhere.
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
