//! One HTML file that shows a profile, or a comparison of two, without a network or a server.
//!
//! `Page` is the request, `Header` the JSON part of the data; `Matching` says how two profiles are merged,
//! `CodeReader` where source and instructions come from.
//!
//! Input: [`SavedProfile`] profiles. Output: a page (`html/page.rs`) with the files of crates/profile/src/html as script and style;
//! the data are tables of numbers and a list of strings (`html/tables.rs`), gzipped and in base64. Nothing
//! else in the file comes from a profile, so nothing of it can be markup. docs/html.md describes the data
//! format.

mod page;
mod tables;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Serialize;

use super::super::saved::SavedProfile;
use crate::escape::{escape_line, escape_source};
use crate::saved::Full;
use crate::trie::NodeId;
use tables::{InuseHeader, Tables};

pub(super) use tables::{FunctionKind, kind_of};

/// Version of the data format; a page refuses any other.
const FORM: u32 = 1;

/// A page under construction.
pub struct Page {
    title: String,
    unit: String,
    sides: Vec<Side>,
    compare: Option<Compare>,
    tables: Tables,
}

impl Page {
    /// A page of one profile. `source` describes how its stacks were sampled.
    ///
    /// # Errors
    /// [`Full`] if a table is too small.
    pub fn of(saved: &SavedProfile, title: &str, source: Option<&str>) -> Result<Page, Full> {
        let mut page = Page {
            title: escape_line(title).into_owned(),
            unit: saved.about.unit.clone(),
            sides: Vec::new(),
            compare: None,
            tables: Tables::default(),
        };
        let total = page.tables.add(saved, None)?;
        page.sides.push(Side::of(saved, title, total, source));
        Ok(page)
    }

    /// A page that compares two profiles, base and new, each with its name for people.
    ///
    /// # Errors
    /// [`Full`] if a table is too small.
    pub fn compared(
        sides: [(&str, &SavedProfile, Matching<'_>); 2],
        title: &str,
        compare: Compare,
    ) -> Result<Page, Full> {
        let mut page = Page {
            title: escape_line(title).into_owned(),
            unit: sides[1].1.about.unit.clone(),
            sides: Vec::new(),
            compare: Some(compare),
            tables: Tables::default(),
        };
        for (name, saved, matching) in sides {
            let total = page.tables.add(saved, Some(&matching))?;
            page.sides.push(Side::of(saved, name, total, None));
        }
        Ok(page)
    }

    /// Adds source and instructions of its functions to a page of one profile.
    ///
    /// # Errors
    /// [`Full`] if a table is too small.
    pub fn embed(&mut self, reader: &mut dyn CodeReader) -> Result<(), Full> {
        self.tables.read_code(reader)
    }

    /// Writes the page. Same profiles, same bytes.
    ///
    /// # Errors
    /// Errors of the writer.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        page::write(&page::encode(&self.data()?), out)
    }

    /// The data: the length of the header, the header in JSON, the columns; gzipped.
    fn data(&self) -> io::Result<Vec<u8>> {
        let columns = self.tables.columns(self.compare.is_some());
        let header = Header {
            form: FORM,
            title: &self.title,
            unit: &self.unit,
            sides: &self.sides,
            compare: self.compare.as_ref(),
            strings: self.tables.strings(),
            libraries: self.tables.libraries(),
            sources: &self.tables.code.sources,
            inuse: self.tables.inuse.as_ref().map(|inuse| &inuse.header),
            columns: columns.list(),
        };
        let header = serde_json::to_vec(&header).map_err(io::Error::other)?;
        let length = u32::try_from(header.len())
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "more than 4 GB of names"))?;
        // The gzip header has no time and no name: same profile, same bytes.
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        gzip.write_all(&length.to_le_bytes())?;
        gzip.write_all(&header)?;
        gzip.write_all(columns.bytes())?;
        gzip.finish()
    }
}

// ---- Options for merging two compared profiles.

/// Options for merging two compared profiles.
#[derive(Clone, Copy)]
pub struct Matching<'m> {
    /// Normalizes the name of a function of either profile.
    pub name: &'m dyn Fn(&str) -> String,
    /// Name for all processes of this profile.
    pub process: Option<&'m str>,
    /// Inlined functions are separate; else their counts belong to the function that they are inlined into.
    pub inlines: bool,
    /// Include stacks of waiting threads.
    pub waiting: bool,
}

/// A name as the page shows it.
fn matched<'n>(name: &'n str, matching: Option<&Matching<'_>>) -> Cow<'n, str> {
    match matching {
        Some(matching) => Cow::Owned((matching.name)(name)),
        None => Cow::Borrowed(name),
    }
}

// ---- The JSON part of a page's data: facts about the recordings, the strings, the list of columns.

/// The whole header.
#[derive(Serialize)]
struct Header<'a> {
    form: u32,
    title: &'a str,
    unit: &'a str,
    sides: &'a [Side],
    compare: Option<&'a Compare>,
    strings: Vec<&'a str>,
    libraries: Vec<Library<'a>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    sources: &'a BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inuse: Option<&'a InuseHeader>,
    columns: &'a [(&'static str, &'static str, usize, usize)],
}

/// An executable or a library.
#[derive(Serialize)]
struct Library<'a> {
    name: &'a str,
    path: &'a str,
    build_id: &'a str,
}

/// Measure of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Measure {
    /// CPU seconds.
    Seconds,
    /// Counts.
    Samples,
    /// Fractions of each profile.
    Shares,
}

/// The kind of comparison.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compare {
    /// The measure.
    pub measure: Measure,
    /// Factors for counts of base and new that make equal numbers equal work.
    pub scales: (f64, f64),
    /// The measure, and the change of the total, in words.
    pub words: String,
}

/// One recording.
#[derive(Serialize)]
struct Side {
    name: String,
    hz: Option<u32>,
    time_unix_ns: Option<u64>,
    duration_ns: Option<u64>,
    pid: Option<u32>,
    arch: Option<String>,
    command: Option<String>,
    launched: Option<bool>,
    idle: Option<bool>,
    version: Option<String>,
    source: Option<String>,
    /// Its stacks are by thread.
    by_thread: bool,
    total: u64,
    lost: BTreeMap<String, u64>,
    incomplete: BTreeMap<String, u64>,
}

impl Side {
    /// Describes a profile; `total` is its part in the page.
    fn of(saved: &SavedProfile, name: &str, total: u64, source: Option<&str>) -> Side {
        let about = &saved.about;
        Side {
            name: escape_line(name).into_owned(),
            hz: about.hz,
            time_unix_ns: about.time_unix_ns,
            duration_ns: about.duration_ns,
            pid: about.pid,
            arch: about.arch.clone(),
            command: about.command.clone(),
            launched: about.launched,
            idle: about.idle,
            version: about.version.clone(),
            source: source.map(|source| escape_line(source).into_owned()),
            by_thread: saved.roots().iter().any(|root| root.thread.is_some()),
            total,
            lost: about.lost.clone(),
            incomplete: about.incomplete.clone(),
        }
    }
}

// ---- Source files and instructions in a page: for the functions with the most counts, within limits.

/// Most functions with instructions in a page.
const FUNCTIONS_MAX: usize = 200;
/// Most instructions of a page.
const INSTRUCTIONS_MAX: usize = 200_000;
/// Most bytes of all source files of a page.
pub const SOURCES_BYTES_MAX: usize = 16 << 20;

/// Reads source and instructions.
pub trait CodeReader {
    /// The text of a source file, if it may be shown.
    fn source(&mut self, file: &str) -> Option<String>;

    /// The instructions of the function at a file offset in the file with a build id: offset and text of
    /// each. Empty if unavailable.
    fn instructions(&mut self, path: &str, build_id: &str, offset: u64) -> Vec<(u64, String)>;

    /// Called for a source file that was omitted for lack of room.
    fn leave_out(&mut self, file: &str);
}

/// A function with code to show.
struct HotFunction {
    function: u32,
    total: u64,
    /// An address of its own code, not of a function that it was inlined into.
    offset: u64,
}

impl Tables {
    /// Reads source and instructions of the functions, those with the most counts first.
    fn read_code(&mut self, reader: &mut dyn CodeReader) -> Result<(), Full> {
        let functions = self.hot_functions();
        let mut left = SOURCES_BYTES_MAX;
        for hot in &functions {
            let Some(file) = self.source_of(hot.function).filter(|file| !file.is_empty()) else { continue };
            if self.code.sources.contains_key(&file) {
                continue;
            }
            let Some(text) = reader.source(&file) else { continue };
            let text = escape_source(&text).into_owned();
            match left.checked_sub(text.len()) {
                Some(rest) => {
                    left = rest;
                    self.code.sources.insert(file, text);
                }
                None => reader.leave_out(&file),
            }
        }
        let with_code = functions.iter().filter(|hot| hot.offset > 0).take(FUNCTIONS_MAX);
        for hot in with_code {
            let Some((path, build_id)) = self.file_of(hot.function) else { continue };
            let instructions = reader.instructions(&path, &build_id, hot.offset);
            if self.code.instructions.len() + instructions.len() > INSTRUCTIONS_MAX {
                break;
            }
            for (offset, text) in instructions {
                let text = self.intern(&text)?;
                self.code.instructions.push((hot.function, offset, text));
            }
        }
        Ok(())
    }

    /// Functions with counts, the hottest first.
    fn hot_functions(&self) -> Vec<HotFunction> {
        let totals = self.totals();
        let mut functions: BTreeMap<u32, HotFunction> = BTreeMap::new();
        for (node, total) in (0..).map(NodeId).zip(totals).skip(1) {
            let Some(frame) = self.frame(node).filter(|_| total > 0) else { continue };
            let hot = functions.entry(frame.function).or_insert(HotFunction {
                function: frame.function,
                total: 0,
                offset: 0,
            });
            hot.total = hot.total.saturating_add(total);
            if !frame.inlined && hot.offset == 0 {
                hot.offset = frame.address;
            }
        }
        let mut functions: Vec<HotFunction> = functions.into_values().collect();
        functions.sort_by_key(|hot| (std::cmp::Reverse(hot.total), hot.function));
        functions
    }
}
