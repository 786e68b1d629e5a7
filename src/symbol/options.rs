//! Options for names: inlined functions, lines, demangling.

use std::sync::Arc;

use super::demangle::Demangler;
use super::why::Style;
use crate::binary::{Files, NoFiles};

/// Options for names.
#[derive(Clone, Copy)]
pub struct Options<'f> {
    /// A frame for each function inlined at an address.
    pub inlines: bool,
    /// `function (file:line)`.
    pub lines: bool,
    /// The style of names.
    pub style: Style,
    /// Demangler for Swift names.
    pub swift: Demangler,
    /// Access to debug files.
    pub files: &'f dyn Files,
    /// Access to files of single processes by their number in the images, for the maps and dumps of JIT compilers.
    /// Other processes use `files`.
    pub files_by_process: &'f [(u32, Arc<dyn Files>)],
    /// Number of threads.
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
