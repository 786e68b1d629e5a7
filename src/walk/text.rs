//! Code of tests: bytes from an address on, and what else is known about them.

use std::ops::Range;

use super::{Code, CodeTraits};
use crate::addr::Avma;
use crate::binary::frame_rule::AnyRow;

/// Code from an address on. Nothing else is known about it, unless a test sets it.
#[derive(Clone, Default)]
pub(super) struct Text {
    start: u64,
    bytes: Vec<u8>,
    /// Addresses of functions.
    pub(super) functions: Vec<Range<u64>>,
    is_described: bool,
    row: Option<AnyRow>,
    traits: CodeTraits,
    entry: Option<u64>,
    begins_threads: Option<bool>,
    /// What a symbol says, of Arm.
    pub(super) is_t32: Option<bool>,
}

impl Text {
    /// These bytes at `start`.
    pub(super) fn new(start: u64, bytes: impl Into<Vec<u8>>) -> Text {
        Text { start, bytes: bytes.into(), ..Text::default() }
    }

    /// Instructions of four bytes.
    pub(super) fn of_words(start: u64, words: &[u32]) -> Text {
        Text::new(start, words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>())
    }

    /// Functions begin so far behind the first byte, and end where the next one begins.
    pub(super) fn with_functions(mut self, offsets: &[u64]) -> Text {
        let ends = offsets.iter().skip(1).copied().chain([self.bytes.len() as u64]);
        self.functions =
            offsets.iter().zip(ends).map(|(from, to)| self.start + from..self.start + to).collect();
        self
    }

    /// Unwind information has all of it as one function.
    pub(super) fn described(self) -> Text {
        Text { is_described: true, ..self }
    }

    /// All of it has this row.
    pub(super) fn with_row(self, row: Option<AnyRow>) -> Text {
        Text { row, ..self }
    }

    /// Who made it.
    pub(super) fn with_traits(self, traits: CodeTraits) -> Text {
        Text { traits, ..self }
    }

    /// Its image begins to run at this address.
    pub(super) fn with_entry(self, entry: u64) -> Text {
        Text { entry: Some(entry), ..self }
    }

    /// Threads begin in its image, or not.
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
