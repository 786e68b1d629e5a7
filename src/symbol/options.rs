//! Options for names: inlined functions, lines, demangling.

use std::sync::Arc;

use super::demangle::Demangler;
use super::why::Style;
use crate::binary::{Files, NoFiles};

/// What names are made of.
#[derive(Clone, Copy)]
pub struct Options<'f> {
    /// A frame for each function that is inlined at an address.
    pub inlines: bool,
    /// `function (file:line)`.
    pub lines: bool,
    /// How names are written.
    pub style: Style,
    /// Makes Swift's names readable.
    pub swift: Demangler,
    /// Where debug files are.
    pub files: &'f dyn Files,
    /// Files of single processes, by their numbers in the images: what JIT compilers say of their
    /// code there. Of others, `files` say it.
    pub files_by_process: &'f [(u32, Arc<dyn Files>)],
    /// How many threads.
    pub threads: usize,
}

impl Default for Options<'_> {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let (style, swift): (_, Demangler) = (Style::Readable, |_| None);
        let files = &NoFiles;
        Options { inlines: true, lines: false, style, swift, files, files_by_process: &[], threads }
    }
}

impl Options<'_> {
    /// The files of a process, by its number in the images.
    pub(super) fn files_of(&self, process: u32) -> &dyn Files {
        let of_process = self.files_by_process.iter().find(|(number, _)| *number == process);
        of_process.map_or(self.files, |(_, files)| &**files)
    }
}
