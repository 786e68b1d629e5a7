//! The walker's interface to the code of a target (`Code`). Input: addresses; output: bytes of code, unwind
//! information, bounds of functions. Implemented for images and JIT code by `images`. `Glance` is a copy of a few
//! bytes, `Reader` reads code along paths.

use std::ops::Range;

use crate::addr::Avma;
use crate::binary::frame_rule::{AnyRow, Body, ExidxEntry, Row};

/// Properties of code that depend on its compiler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CodeTraits {
    /// JIT code, which may be replaced at any time.
    pub is_jit: bool,
    /// Code of a runtime (V8) that walks its own frame records, so that every function that has called another has
    /// one.
    pub keeps_frame_records: bool,
    /// Code of HotSpot, which has a header before each piece of code, and an interpreter that pushes return
    /// addresses instead of calling.
    pub has_hotspot_headers: bool,
}

/// The walk needs the bytes of JIT code at this address, which have not been read. The caller reads them and
/// repeats the walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeedsBytes(pub Avma);

/// A file mapping. If it is equal in two processes, so is the code between its first and last address, with all
/// facts of images about it, except the start address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePlace {
    /// Number of the file in the version that was mapped.
    pub image: u32,
    /// File offset of the mapping.
    pub file_offset: u64,
    /// The addresses of the mapping.
    pub mapped: Range<Avma>,
}

/// The known code of the target.
///
/// # JIT code
/// Bytes of JIT code are read when a walk first needs them, and may change later. So implementations record each
/// look-up, the unit in which the walker learns about an address:
///
/// - [`Code::code`] returns `None` for bytes that have not been read, and records the first of these addresses.
///   The result of the walk is void: [`Code::is_interrupted`] lets it stop early, and [`unwind`](super::unwind)
///   returns [`NeedsBytes`] with [`Code::missing_bytes`].
/// - Returned bytes are dependencies of the look-up; [`Code::note_search`] and [`Code::note_dependency`] add
///   others. [`Code::commit_dependencies`] ends the look-up: its result may be cached if no bytes were missing.
/// - [`Code::may_follow`] refuses look-ups in JIT code after the walk has spent its budget.
///
/// `code` does not return an error itself: most look-ups never miss bytes, and the others are repeated as a whole.
pub trait Code {
    /// Whether an address is known to be in executable memory. Other words cannot be return addresses.
    fn is_code(&self, at: Avma) -> bool;

    /// The bytes from `at` to the end of the mapped code; `None` outside known images, and for JIT code that was not
    /// read.
    fn code(&self, at: Avma) -> Option<&[u8]>;

    /// The first bytes of the code at an address. For JIT code they may be as old as cached results, and are no
    /// dependency.
    fn glance(&self, at: Avma) -> Glance {
        self.code(at).map(Glance::of).unwrap_or_default()
    }

    /// Records that this look-up uses a cached result that depends on the code between two addresses, inclusive.
    fn note_dependency(&self, _first: Avma, _last: Avma) {}

    /// Records that all bytes between two addresses were examined. (Other look-ups examine at most 4 KiB of the
    /// bytes that [`Code::code`] returns, and mostly one instruction.)
    fn note_search(&self, _from: Avma, _to: Avma) {}

    /// Ends a look-up: records that its result depends on the bytes returned since the last call. Returns false if
    /// bytes were missing: then the result must not be cached.
    fn commit_dependencies(&self, _lookup: Avma) -> bool {
        true
    }

    /// The readable bytes that the walk lacked.
    fn missing_bytes(&self) -> Option<NeedsBytes> {
        None
    }

    /// Whether bytes were missing or a look-up was refused, so that the rest of the walk is void.
    fn is_interrupted(&self) -> bool {
        false
    }

    /// Whether the walk's budget allows following the code at an uncached look-up address. If not, nothing is
    /// learned about the address.
    fn may_follow(&self, _lookup: Avma) -> bool {
        true
    }

    /// The code that knows the facts at an address, which this one extends by others: by default, each of the following
    /// facts is taken from it.
    fn inner(&self, _at: Avma) -> Option<&dyn Code> {
        None
    }

    /// Properties of the code at an address.
    fn traits(&self, at: Avma) -> CodeTraits {
        self.inner(at).map_or(CodeTraits::default(), |code| code.traits(at))
    }

    /// The file mapping that contains an address; `None` for code in memory only.
    fn file_place(&self, at: Avma) -> Option<FilePlace> {
        self.inner(at)?.file_place(at)
    }

    /// The row of unwind information at a look-up address, for the processor of its image; `None` if there is
    /// none.
    fn row(&self, lookup: Avma) -> Option<AnyRow> {
        self.inner(lookup)?.row(lookup)
    }

    /// The row at the instruction `pc` of an epilogue, if unwind information does not describe epilogues (PE);
    /// `None` if [`Code::row`] applies.
    fn row_in_epilogue(&self, pc: Avma) -> Option<Row> {
        self.inner(pc)?.row_in_epilogue(pc)
    }

    /// Whether 32-bit Arm code at an address is T32 rather than A32; `None` if unknown.
    fn is_t32(&self, pc: Avma) -> Option<bool> {
        self.inner(pc)?.is_t32(pc)
    }

    /// The entry of the Arm exception handling ABI's tables for a look-up address, and the bounds of its function
    /// without the T32 bit; `None` if there is none.
    fn exidx(&self, lookup: Avma) -> Option<(Range<Avma>, ExidxEntry)> {
        self.inner(lookup)?.exidx(lookup)
    }

    /// Whether the image at a look-up address has unwind information for any function. If so, a function without
    /// it is an exception, and may not keep a frame record.
    fn describes_frames(&self, lookup: Avma) -> bool {
        self.inner(lookup).is_some_and(|code| code.describes_frames(lookup))
    }

    /// The unwind information of a Mach-O image for the body of the function at a look-up address; `None` if there
    /// is none.
    fn body(&self, lookup: Avma) -> Option<Body> {
        self.inner(lookup)?.body(lookup)
    }

    /// Whether threads start in the Mach-O image at a look-up address; `None` in other images, where threads may
    /// start anywhere.
    fn begins_threads(&self, lookup: Avma) -> Option<bool> {
        self.inner(lookup)?.begins_threads(lookup)
    }

    /// The entry point of the image that contains `pc`, if it has one.
    fn entry(&self, pc: Avma) -> Option<Avma> {
        self.inner(pc)?.entry(pc)
    }

    /// The bounds of the function at a look-up address by unwind information, with split-off parts as separate
    /// functions; `None` if there is none.
    fn described_function(&self, lookup: Avma) -> Option<Range<Avma>> {
        self.inner(lookup)?.described_function(lookup)
    }

    /// The bounds of the function at `pc`; `None` if unknown.
    fn function(&self, pc: Avma) -> Option<Range<Avma>> {
        self.inner(pc)?.function(pc)
    }
}

// ---- A copy of a few bytes of code, enough for one instruction or a pattern. Most words checked for a preceding call
// are no return addresses, so these bytes are read without the surrounding code.

/// Size of a glance.
pub const GLANCE_BYTES: usize = 16;

/// The first bytes of code at an address, as many as there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Glance {
    bytes: [u8; GLANCE_BYTES],
    len: usize,
}

impl Glance {
    /// Copies the first of these bytes.
    #[must_use]
    pub fn of(code: &[u8]) -> Glance {
        let len = code.len().min(GLANCE_BYTES);
        let mut bytes = [0; GLANCE_BYTES];
        bytes[..len].copy_from_slice(&code[..len]);
        Glance { bytes, len }
    }

    /// The bytes; empty if there is no code, or it cannot be read.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

// ---- Reads code along paths, one instruction after the other, with one request for code in files instead of one per
// instruction. Input: addresses; output: the bytes from there.

/// Reads code along paths.
#[derive(Clone)]
pub(super) struct Reader<'c> {
    code: &'c dyn Code,
    /// The last returned unchanging code, with its address.
    given: Option<(Avma, &'c [u8])>,
    /// Requested bytes may change later, or do not exist.
    may_change: bool,
}

impl<'c> Reader<'c> {
    pub(super) fn new(code: &'c dyn Code) -> Reader<'c> {
        Reader { code, given: None, may_change: false }
    }

    /// Like [`Code::code`].
    #[inline]
    pub(super) fn at(&mut self, at: Avma) -> Option<&'c [u8]> {
        if let Some((start, bytes)) = self.given
            && let Some(offset) = at.0.checked_sub(start.0)
            && let Some(rest) = usize::try_from(offset).ok().and_then(|offset| bytes.get(offset..))
            && !rest.is_empty()
        {
            return Some(rest);
        }
        let bytes = self.code.code(at);
        // JIT code is requested each time, to record the dependency of the look-up.
        match bytes.filter(|_| !self.code.traits(at).is_jit) {
            Some(bytes) => self.given = Some((at, bytes)),
            None => self.may_change = true,
        }
        bytes
    }

    /// Whether all requested code is unchanging while the images are.
    pub(super) fn is_lasting(&self) -> bool {
        !self.may_change
    }
}

#[cfg(test)]
mod reader_tests {
    use std::cell::Cell;

    use super::CodeTraits;
    use super::*;

    /// A file of 16 bytes at 0x1000, followed by JIT code.
    struct Counted {
        bytes: [u8; 32],
        asked: Cell<u32>,
    }

    impl Code for Counted {
        fn is_code(&self, at: Avma) -> bool {
            self.code(at).is_some()
        }
        fn code(&self, at: Avma) -> Option<&[u8]> {
            self.asked.set(self.asked.get() + 1);
            let end = if self.traits(at).is_jit { 32 } else { 16 };
            self.bytes
                .get(usize::try_from(at.0.checked_sub(0x1000)?).ok()?..end)
                .filter(|rest| !rest.is_empty())
        }
        fn traits(&self, at: Avma) -> CodeTraits {
            CodeTraits { is_jit: at.0 >= 0x1010, ..CodeTraits::default() }
        }
    }

    #[test]
    fn code_in_files_is_requested_once_and_jit_code_each_time() {
        let code = Counted { bytes: std::array::from_fn(|index| index as u8), asked: Cell::new(0) };
        let mut reader = Reader::new(&code);
        for at in 0x1004..0x1010 {
            assert_eq!(reader.at(Avma(at)), Some(&code.bytes[at as usize - 0x1000..16]));
        }
        assert_eq!((code.asked.get(), reader.is_lasting()), (1, true));
        assert_eq!(reader.at(Avma(0x1000)), Some(&code.bytes[..16]), "in front of what was given");
        assert_eq!((code.asked.get(), reader.is_lasting()), (2, true));
        for at in 0x1010..0x1018 {
            assert_eq!(reader.at(Avma(at)), Some(&code.bytes[at as usize - 0x1000..]));
        }
        assert_eq!((code.asked.get(), reader.is_lasting()), (10, false));
        assert_eq!(reader.at(Avma(0x1002)), Some(&code.bytes[2..16]));
        assert_eq!(code.asked.get(), 10, "what was given before is still known");
        assert!(Reader::new(&code).at(Avma(0xfff)).is_none());
    }
}
