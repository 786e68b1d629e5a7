//! Code for tests: bytes from an address, and facts about them.

use std::ops::Range;

use super::{Code, CodeTraits};
use crate::addr::Avma;
use crate::binary::frame_rule::AnyRow;

/// Code from an address, without other facts unless a test sets them.
#[derive(Clone, Default)]
pub(super) struct Text {
    start: u64,
    bytes: Vec<u8>,
    /// Bounds of functions.
    pub(super) functions: Vec<Range<u64>>,
    is_described: bool,
    row: Option<AnyRow>,
    traits: CodeTraits,
    entry: Option<u64>,
    begins_threads: Option<bool>,
    /// Instruction set by a symbol, for Arm.
    pub(super) is_t32: Option<bool>,
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

    /// Sets functions at these offsets, each up to the next one.
    pub(super) fn with_functions(mut self, offsets: &[u64]) -> Text {
        let ends = offsets.iter().skip(1).copied().chain([self.bytes.len() as u64]);
        self.functions =
            offsets.iter().zip(ends).map(|(from, to)| self.start + from..self.start + to).collect();
        self
    }

    /// Makes all of it one function by unwind information.
    pub(super) fn described(self) -> Text {
        Text { is_described: true, ..self }
    }

    /// Sets the row of all addresses.
    pub(super) fn with_row(self, row: Option<AnyRow>) -> Text {
        Text { row, ..self }
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
}

impl Code for Text {
    fn is_code(&self, at: Avma) -> bool {
        self.code(at).is_some()
    }
    fn code(&self, at: Avma) -> Option<&[u8]> {
        self.bytes.get(usize::try_from(at.0.checked_sub(self.start)?).ok()?..).filter(|code| !code.is_empty())
    }
    fn traits(&self, _: Avma) -> CodeTraits {
        self.traits
    }
    fn row(&self, _: Avma) -> Option<AnyRow> {
        self.row.clone()
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
        let end = self.start + self.bytes.len() as u64;
        (self.is_described && self.is_code(at)).then_some(Avma(self.start)..Avma(end))
    }
    fn function(&self, at: Avma) -> Option<Range<Avma>> {
        let function = self.functions.iter().find(|function| function.contains(&at.0))?;
        Some(Avma(function.start)..Avma(function.end))
    }
}
