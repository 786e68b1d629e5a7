//! Reads one unit with its addresses → chains of functions; its entries may be in another file (split DWARF,
//! `.dwo` and `.dwp`).
//!
//! Input: a job. Output: chains. Files are opened through a closure and their identity is checked.

use std::borrow::Cow;
use std::fmt;
use std::sync::Mutex;

use gimli::{DebugInfoOffset, DwarfPackage, EndianSlice, LittleEndian};

use super::budget::{Dwarf, DwarfError, INLINED_MAX};
use super::debug::{Chain, Debug, DwarfParts, LineInfo, Sections};
use super::index::Job;
use super::lines::{Lines, NO_FILE, NO_ROW, Row};
use super::names::Texts;
use super::names::{NameReader, text};
use super::unit::{self, Abbrevs, OpenUnit};
use super::walk::{NONE, walk};
use crate::binary::Files;
use crate::symbol::error::DebugFileError;

/// The split files of an image.
pub struct SplitFiles<'f> {
    /// All of them in one file next to the image, if there is one.
    pub package: Option<Sections>,
    /// Opens one of them, by the path in DWARF.
    pub files: &'f dyn Files,
    /// Unavailable files with reasons; each once.
    pub problems: Mutex<Vec<String>>,
}

impl fmt::Debug for SplitFiles<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Splits").field("package", &self.package.is_some()).finish_non_exhaustive()
    }
}

impl SplitFiles<'_> {
    fn problem(&self, text: String) {
        let Ok(mut problems) = self.problems.lock() else { return };
        if problems.len() < 1000 && !problems.contains(&text) {
            problems.push(text);
        }
    }
}

impl Debug {
    /// Runs one job: the chains of its addresses, in order. Malformed data is skipped: those addresses keep the
    /// name of their symbol.
    pub fn run(
        &self,
        job: &Job,
        wanted: &[u64],
        ask: DwarfParts,
        splits: &SplitFiles<'_>,
        texts: &mut Texts<'_>,
    ) -> Vec<Chain> {
        let mut dwarf = self.main.dwarf();
        if let Some(shared) = &self.shared {
            dwarf.set_sup(shared.dwarf());
        }
        run(self, &dwarf, job, wanted, ask, splits, texts).unwrap_or_default()
    }
}

/// Runs a job.
fn run<'a>(
    debug: &'a Debug,
    dwarf: &Dwarf<'a>,
    job: &Job,
    wanted: &[u64],
    ask: DwarfParts,
    splits: &SplitFiles<'_>,
    texts: &mut Texts<'_>,
) -> Result<Vec<Chain>, DwarfError> {
    let budget = debug.budget();
    let header = dwarf.debug_info.header_from_offset(DebugInfoOffset(job.unit))?;
    let opened = unit::open(dwarf, header, &mut Abbrevs::default(), &budget)?;
    let mut work = Work { debug, dwarf, opened: &opened, job, ask };
    let wanted: Vec<u64> =
        job.wanted.iter().filter_map(|index| wanted.get(*index as usize).copied()).collect();
    let Some(dwo_name) = opened.dwo_name.filter(|_| opened.unit.dwo_id.is_some()) else {
        return Ok(work.chains(dwarf, &opened.unit, Some(&debug.index.units), &wanted, texts));
    };
    let string = |value| dwarf.attr_string(&opened.unit, value).ok().map(text);
    let path = string(dwo_name).unwrap_or_default();
    let directory = opened.comp_dir.and_then(string).unwrap_or_default();
    let path = match path.starts_with('/') || directory.is_empty() {
        true => path,
        false => Cow::Owned(format!("{}/{path}", directory.trim_end_matches('/'))),
    };
    let chains = match in_package(splits, dwarf, &opened) {
        Some(dwo) => work.split(&dwo, &wanted, texts),
        None => {
            let opened = splits.files.open(&path).map_err(DebugFileError::from);
            match opened.and_then(|bytes| Sections::read(&bytes, true, ask)) {
                Ok(Some(file)) => {
                    let mut dwo = file.dwarf();
                    dwo.make_dwo(dwarf);
                    let chains = work.split(&dwo, &wanted, texts);
                    texts.forget_places();
                    chains.and_then(|chains| Ok(file.unchanged().map(|()| chains)?))
                }
                Ok(None) => Err(DebugFileError::NoSplitDwarf),
                Err(why) => Err(why),
            }
        }
    };
    Ok(chains.unwrap_or_else(|why| {
        splits.problem(format!("{path}: {why}"));
        // The lines are in the main file.
        work.ask.inlines = false;
        work.chains(dwarf, &opened.unit, Some(&debug.index.units), &wanted, texts)
    }))
}

/// The unit's entries in the package.
fn in_package<'a>(splits: &'a SplitFiles<'_>, dwarf: &Dwarf<'a>, opened: &OpenUnit<'a>) -> Option<Dwarf<'a>> {
    let package = splits.package.as_ref()?;
    let load = |id| Ok::<_, gimli::Error>(package.get(id));
    let package = DwarfPackage::load(load, EndianSlice::new(&[], LittleEndian)).ok()?;
    package.find_cu(opened.unit.dwo_id?, dwarf).ok()?
}

struct Work<'w, 'a> {
    debug: &'a Debug,
    dwarf: &'w Dwarf<'a>,
    opened: &'w OpenUnit<'a>,
    job: &'w Job,
    ask: DwarfParts,
}

impl<'a> Work<'_, 'a> {
    /// The chains from the split file's unit that belongs to the job's.
    fn split<'s>(
        &self,
        dwo: &Dwarf<'s>,
        wanted: &[u64],
        texts: &mut Texts<'_>,
    ) -> Result<Vec<Chain>, DebugFileError>
    where
        'a: 's,
    {
        let budget = self.debug.budget();
        let mut headers = dwo.units();
        let id = self.opened.unit.dwo_id;
        while let Ok(Some(header)) = headers.next() {
            let Ok(mut found) = unit::open(dwo, header, &mut Abbrevs::default(), &budget) else { continue };
            if found.unit.dwo_id == id {
                let main = &self.opened.unit;
                found.unit.low_pc = main.low_pc;
                found.unit.addr_base = main.addr_base;
                if found.unit.header.version() < 5 {
                    found.unit.rnglists_base = main.rnglists_base;
                }
                return Ok(self.chains(dwo, &found.unit, None, wanted, texts));
            }
        }
        Err(DebugFileError::OtherSplit)
    }

    fn chains<'s>(
        &self,
        dwarf: &Dwarf<'s>,
        unit: &unit::Unit<'s>,
        units: Option<&[usize]>,
        wanted: &[u64],
        texts: &mut Texts<'_>,
    ) -> Vec<Chain> {
        let budget = self.debug.budget();
        let code_start = self.debug.main.code_start;
        let found = walk(dwarf, unit, wanted, code_start, &budget);
        let mut lines = self.ask.lines.then(|| Lines::open(self.dwarf, self.opened, &budget));
        let rows = match &lines {
            Some(lines) => lines.rows(wanted, code_start),
            None => Vec::new(),
        };
        let entries = found.nodes.iter().map(|node| (node.entry, node.parent != NONE));
        let names = NameReader::new(dwarf, unit, units, &budget).readable(entries, texts);
        let mut chains = Vec::with_capacity(wanted.len());
        for (position, index) in self.job.wanted.iter().enumerate() {
            let mut functions = Vec::new();
            let mut at = found.leaf.get(position).copied().unwrap_or(NONE);
            let mut row: Row = rows.get(position).copied().unwrap_or(NO_ROW);
            // From the inside out: the line of a function is that of the call in it.
            while let Some(node) = found.nodes.get(at as usize).filter(|_| functions.len() < INLINED_MAX) {
                let name = names.get(&node.entry).cloned();
                functions.push(place(name, row, &mut lines, texts));
                row = (node.call_file, node.call_line);
                at = node.parent;
            }
            if functions.is_empty() && row != NO_ROW {
                functions.push(place(None, row, &mut lines, texts));
            }
            functions.reverse();
            chains.push(Chain { wanted: *index, functions });
        }
        chains
    }
}

fn place(
    name: Option<std::sync::Arc<str>>,
    (file, line): Row,
    lines: &mut Option<Lines<'_, '_>>,
    texts: &mut Texts<'_>,
) -> LineInfo {
    let file = lines.as_mut().filter(|_| file != NO_FILE).and_then(|lines| lines.path(file, texts));
    LineInfo { name, file, line }
}
