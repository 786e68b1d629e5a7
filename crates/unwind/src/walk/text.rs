//! Code for tests: bytes from an address, and facts about them.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;

use super::{Code, CodeTraits};
use crate::addr::Avma;
use crate::binary::frame_rule::{AnyRow, Body};

/// Code from an address, without other facts unless a test sets them.
#[derive(Clone, Default)]
pub(super) struct Text {
    pub(super) start: u64,
    pub(super) bytes: Vec<u8>,
    /// Code whose bytes are unknown.
    pub(super) without_bytes: Range<u64>,
    /// Bounds of functions.
    pub(super) functions: Vec<Range<u64>>,
    /// Bounds of the function that unwind information describes.
    pub(super) described: Option<Range<u64>>,
    pub(super) describes_frames: bool,
    pub(super) row: Option<AnyRow>,
    pub(super) rows: BTreeMap<u64, AnyRow>,
    pub(super) bodies: BTreeMap<u64, AnyRow>,
    /// The row at an offset that has no other.
    pub(super) row_of: Option<fn(u64) -> Option<AnyRow>>,
    pub(super) traits: CodeTraits,
    pub(super) entry: Option<u64>,
    pub(super) begins_threads: Option<bool>,
    /// The frame pointer guarantee of macOS's ABI, for inputs of walks.
    pub(super) fp_always: bool,
    /// Instruction set by a symbol, for Arm.
    pub(super) is_t32: Option<bool>,
    /// Number of requests for bytes.
    pub(super) asked: Cell<u32>,
}

impl Text {
    /// Code with these bytes at `start`.
    pub(super) fn new(start: u64, bytes: impl Into<Vec<u8>>) -> Text {
        Text { start, bytes: bytes.into(), ..Text::default() }
    }

    /// Code of four-byte instructions.
    pub(super) fn of_words(start: u64, words: &[u32]) -> Text {
        Text::new(start, words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>())
    }

    /// Puts bytes at these offsets.
    pub(super) fn with_pieces(mut self, pieces: &[(u64, &[u8])]) -> Text {
        for (at, piece) in pieces {
            self.bytes[*at as usize..][..piece.len()].copy_from_slice(piece);
        }
        self
    }

    /// Sets functions at these offsets, each up to the next one.
    pub(super) fn with_functions(mut self, offsets: &[u64]) -> Text {
        let ends = offsets.iter().skip(1).copied().chain([self.bytes.len() as u64]);
        self.functions =
            offsets.iter().zip(ends).map(|(from, to)| self.start + from..self.start + to).collect();
        self
    }

    /// Makes all of it one function by unwind information.
    pub(super) fn described(self) -> Text {
        Text { described: Some(self.start..self.start + self.bytes.len() as u64), ..self }
    }

    /// Sets the row of all its addresses.
    pub(super) fn with_row(self, row: Option<AnyRow>) -> Text {
        Text { row, ..self }
    }

    /// Sets the row at an offset.
    pub(super) fn row_at(mut self, at: u64, row: impl Into<AnyRow>) -> Text {
        self.rows.insert(at, row.into());
        self
    }

    /// Sets the compact unwind information of Mach-O at an offset.
    pub(super) fn body_at(mut self, at: u64, row: impl Into<AnyRow>) -> Text {
        self.bodies.insert(at, row.into());
        self
    }

    /// Sets the compiler's properties.
    pub(super) fn with_traits(self, traits: CodeTraits) -> Text {
        Text { traits, ..self }
    }

    /// Sets the entry point of its image.
    pub(super) fn with_entry(self, entry: u64) -> Text {
        Text { entry: Some(entry), ..self }
    }

    /// Sets whether threads begin in its image.
    pub(super) fn with_threads(self, begin: bool) -> Text {
        Text { begins_threads: Some(begin), ..self }
    }

    /// Its bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn from(&self, at: Avma) -> Option<&[u8]> {
        let offset = at.0.checked_sub(self.start).filter(|_| !self.without_bytes.contains(&at.0))?;
        self.bytes.get(usize::try_from(offset).ok()?..).filter(|code| !code.is_empty())
    }
}

/// The range that contains an address.
fn containing<'r>(ranges: impl IntoIterator<Item = &'r Range<u64>>, at: Avma) -> Option<Range<Avma>> {
    let range = ranges.into_iter().find(|range| range.contains(&at.0))?;
    Some(Avma(range.start)..Avma(range.end))
}

impl Code for Text {
    fn is_code(&self, at: Avma) -> bool {
        self.from(at).is_some() || self.without_bytes.contains(&at.0)
    }
    fn code(&self, at: Avma) -> Option<&[u8]> {
        self.asked.set(self.asked.get() + 1);
        self.from(at)
    }
    fn traits(&self, _: Avma) -> CodeTraits {
        self.traits
    }
    fn row(&self, at: Avma) -> Option<AnyRow> {
        let offset = at.0.checked_sub(self.start)?;
        let of_all = || self.row.clone().filter(|_| self.is_code(at));
        self.rows.get(&offset).cloned().or_else(of_all).or_else(|| self.row_of?(offset))
    }
    fn body(&self, at: Avma) -> Option<Body> {
        let row = self.bodies.get(&at.0.checked_sub(self.start)?).cloned()?;
        Some(Body { row, compact: true })
    }
    fn describes_frames(&self, _: Avma) -> bool {
        self.describes_frames
    }
    fn is_t32(&self, _: Avma) -> Option<bool> {
        self.is_t32
    }
    fn begins_threads(&self, _: Avma) -> Option<bool> {
        self.begins_threads
    }
    fn entry(&self, _: Avma) -> Option<Avma> {
        self.entry.map(Avma)
    }
    fn described_function(&self, at: Avma) -> Option<Range<Avma>> {
        containing(&self.described, at)
    }
    fn function(&self, at: Avma) -> Option<Range<Avma>> {
        containing(&self.functions, at)
    }
}
