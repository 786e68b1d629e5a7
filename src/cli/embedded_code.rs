//! Source and instructions embedded in pages: which files may be shown, and reading them.
//!
//! Only source files below the working directory, or the directories of `--source-dir`, after resolving links: the
//! recorded program controls the paths in its debug information, and pages are shared with other people. And only
//! files that the recorded user may read ([`UserFiles`]).

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::messages;
use crate::binary::Files;
use crate::profile::formats::firefox::libraries::Library;
use crate::profile::formats::html::CodeReader;
use crate::server::symbols::{OpenedImage, open, read_source};
use crate::sources::user_files::UserFiles;

/// Size limit of a source file in a page, bytes.
const SOURCE_BYTES_MAX: u64 = 2 << 20;
/// Most omitted files that are named.
const NAMED_MAX: usize = 5;

/// The places that code may be read from.
#[derive(Clone)]
pub(super) struct EmbeddedCode {
    /// Source is read only from below these directories, links resolved.
    directories: Vec<PathBuf>,
    /// Images are read through these.
    images: Arc<dyn Files>,
    /// Source is read with the rights of users.
    sources: Arc<UserFiles>,
    /// Omitted files are not reported.
    is_quiet: bool,
}

impl std::fmt::Debug for EmbeddedCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "EmbeddedCode({:?})", self.directories)
    }
}

impl EmbeddedCode {
    /// Source from below these directories, or no source; an empty list means the working
    /// directory.
    pub(super) fn new(
        directories: Option<&[PathBuf]>,
        images: Arc<dyn Files>,
        sources: Arc<UserFiles>,
        is_quiet: bool,
    ) -> EmbeddedCode {
        let working = [PathBuf::from(".")];
        let named = match directories {
            Some([]) => &working[..],
            Some(named) => named,
            None => &[],
        };
        let whole = |path: &PathBuf| match fs::canonicalize(path) {
            Ok(path) => Some(path),
            Err(error) => {
                let why = crate::error::io_text(&error);
                messages::note(&format!("--source-dir `{}`: {why}; no source from there", path.display()));
                None
            }
        };
        EmbeddedCode { directories: named.iter().filter_map(whole).collect(), images, sources, is_quiet }
    }

    /// What source is read by.
    pub(super) fn sources(&self) -> &Arc<UserFiles> {
        &self.sources
    }

    /// A reader for one page.
    pub(super) fn reader(&self) -> Reader<'_> {
        Reader { code: self, images: HashMap::new(), left_out: Vec::new(), more: 0, is_refused: false }
    }
}

/// Reads for one page; reports omitted files at the end.
pub(super) struct Reader<'t> {
    code: &'t EmbeddedCode,
    images: HashMap<(String, String), Option<OpenedImage>>,
    left_out: Vec<String>,
    more: usize,
    /// Source would have been read, but none may be.
    is_refused: bool,
}

impl Reader<'_> {
    fn note(&mut self, file: &str, why: &str) {
        if self.left_out.len() < NAMED_MAX {
            // Most reasons begin with the file name.
            let why = why.strip_prefix(file).and_then(|why| why.strip_prefix(": ")).unwrap_or(why);
            self.left_out.push(format!("source left out: {file}: {why}"));
        } else {
            self.more += 1;
        }
    }
}

impl CodeReader for Reader<'_> {
    fn source(&mut self, file: &str) -> Option<String> {
        // Most belong to libraries, and do not exist on this machine.
        let path = fs::canonicalize(Path::new(file)).ok().filter(|_| file.starts_with('/'))?;
        if !self.code.directories.iter().any(|directory| path.starts_with(directory)) {
            return None;
        }
        if self.code.sources.refusal().is_some() {
            self.is_refused = true;
            return None;
        }
        let about = fs::metadata(&path).ok().filter(fs::Metadata::is_file)?;
        if about.len() > SOURCE_BYTES_MAX {
            self.note(file, &format!("longer than {} MiB", SOURCE_BYTES_MAX >> 20));
            return None;
        }
        // By its unresolved name: reading checks the links in it.
        let text = read_source(&*self.code.sources, file);
        text.map_err(|why| self.note(file, &why)).ok().filter(|text| text.len() as u64 <= SOURCE_BYTES_MAX)
    }

    fn instructions(&mut self, path: &str, build_id: &str, offset: u64) -> Vec<(u64, String)> {
        let image = self.images.entry((path.to_owned(), build_id.to_owned())).or_insert_with(|| {
            let name = path.rsplit('/').next().unwrap_or_default().to_owned();
            let library = Library { name, path: path.to_owned(), build_id: build_id.to_owned() };
            open(&library, &*self.code.images).ok()
        });
        image.as_ref().map_or_else(Vec::new, |image| image.function_at(offset))
    }

    fn leave_out(&mut self, file: &str) {
        self.note(file, "the page has no more room");
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        if self.code.is_quiet {
            return;
        }
        if let Some(why) = self.code.sources.refusal().filter(|_| self.is_refused) {
            messages::note(&format!("source left out: {why}"));
        }
        for line in &self.left_out {
            messages::note(line);
        }
        if self.more > 0 {
            messages::note(&format!("source left out: {} more files", self.more));
        }
    }
}
