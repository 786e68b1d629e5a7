//! One HTML file that shows a profile, or a comparison of two, without a network or a server.
//!
//! Input: [`SavedProfile`] profiles. Output: a page (`html/page.rs`) with the files of src/html as script and style;
//! the data are tables of numbers and a list of strings (`html/tables.rs`), gzipped and in base64. Nothing
//! else in the file comes from a profile, so nothing of it can be markup. docs/html.md describes the data
//! format.

mod base64;
mod code;
mod columns;
mod header;
mod inuse;
mod matching;
mod page;
mod sha256;
mod tables;
#[cfg(test)]
mod tests;

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;

use super::super::full::Full;
use super::super::saved::SavedProfile;
use crate::escape::escape_line;
pub use code::{CodeReader, SOURCES_BYTES_MAX};
pub use header::{Compare, Measure};
use header::{Header, Side};
pub use matching::Matching;
use tables::Tables;
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
        page::write(&base64::encode(&self.data()?), out)
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
