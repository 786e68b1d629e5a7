//! The sections of a file (`Sections`), the functions at addresses by its debug information (`Debug`), and one unit
//! of them, whose entries may be in another file (`SplitFiles`).

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use gimli::{DebugInfoOffset, DwarfPackage, EndianSlice, LittleEndian, SectionId};

use super::names::{NameReader, Texts, text};
use super::unit::{self, Abbrevs, Budget, Dwarf, DwarfError, INLINED_MAX, Index, Job, OpenUnit, Slice};
use super::walk::{Lines, NO_FILE, NO_ROW, NONE, Row, walk};
use crate::binary::{Files, ImageBytes, OpenError};
use crate::symbol::error::DebugFileError;
use crate::symbol::sections;

/// Steps of work per byte of a file: entries and their ranges, bytes and rows of line programs, bytes of
/// abbreviations and texts. Real files need a few; in malicious files all parts may refer to one long list.
const STEPS_PER_BYTE: u64 = 64;
/// Minimum bytes that assign an address range to a unit: in `.debug_rnglists`, with lists not shared between
/// units.
const CLAIM_BYTES_MIN: u64 = 3;
/// Steps for any file.
const STEPS_LEAST: u64 = 10_000_000;

/// One function at an address, with its source location.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LineInfo {
    /// The readable name; `None` if DWARF has none.
    pub name: Option<Arc<str>>,
    /// Path of the source file; `None` if lines were not requested or are unknown.
    pub file: Option<Arc<str>>,
    /// Line of the call, or of the address itself in the innermost function.
    pub line: u32,
}

/// The functions at one address, outermost first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Index of the address in the requested list.
    pub wanted: u32,
    /// The functions; empty if only the line is known.
    pub functions: Vec<LineInfo>,
}

/// The requested parts of DWARF.
#[derive(Clone, Copy, Debug)]
pub struct DwarfParts {
    /// Inlined functions.
    pub inlines: bool,
    /// Source files and lines.
    pub lines: bool,
}

/// The DWARF sections of one file.
#[derive(Debug)]
pub struct Sections {
    bytes: ImageBytes,
    parts: Vec<(SectionId, Part)>,
    /// Lowest code address: entries of functions that the linker dropped have lower addresses.
    pub code_start: u64,
}

#[derive(Debug)]
enum Part {
    InFile(Range<usize>),
    Unpacked(Vec<u8>),
}

/// The sections that names need, and those that lines also need.
const FOR_NAMES: [SectionId; 12] = [
    SectionId::DebugAbbrev,
    SectionId::DebugAddr,
    SectionId::DebugAranges,
    SectionId::DebugInfo,
    SectionId::DebugRanges,
    SectionId::DebugRngLists,
    SectionId::DebugStr,
    SectionId::DebugStrOffsets,
    SectionId::DebugLineStr,
    SectionId::DebugCuIndex,
    SectionId::DebugTuIndex,
    SectionId::DebugTypes,
];
const FOR_LINES: [SectionId; 1] = [SectionId::DebugLine];
/// Other sections that a package's index may refer to: their ranges must exist even if they are not read.
const FOR_PACKAGES: [SectionId; 5] = [
    SectionId::DebugLine,
    SectionId::DebugLoc,
    SectionId::DebugLocLists,
    SectionId::DebugMacinfo,
    SectionId::DebugMacro,
];

impl Sections {
    /// Finds the sections of a file, uncompressing them if necessary. `split` selects those of a split file
    /// (`.debug_info.dwo`).
    ///
    /// # Errors
    /// Malformed headers or a malformed compressed section. `Ok(None)`: the file has no DWARF.
    pub fn read(
        bytes: &ImageBytes,
        split: bool,
        ask: DwarfParts,
    ) -> Result<Option<Sections>, DebugFileError> {
        let data = bytes.bytes();
        let found = sections::all(data)?;
        let code_start = found.iter().filter(|section| section.is_code).map(|section| section.svma).min();
        let mut left = crate::binary::unpack::together_max(data.len());
        let mut parts = Vec::new();
        let lines = FOR_LINES.iter().filter(|_| ask.lines && !split);
        for &id in FOR_NAMES.iter().chain(lines).chain(FOR_PACKAGES.iter().filter(|_| split)) {
            let Some(name) = (if split { id.dwo_name() } else { Some(id.name()) }) else { continue };
            // Mach-O names have 16 letters at most; `__` replaces the dot.
            let cut = name.get(..15).unwrap_or(name);
            let is_it = |section: &&sections::Section<'_>| {
                (section.name == name || (section.name.starts_with(".debug") && section.name == cut))
                    && !section.bytes.is_empty()
            };
            let Some(section) = found.iter().find(is_it) else { continue };
            let content = sections::apply(data, section.relocations, section.content(&mut left)?);
            let part = match content {
                std::borrow::Cow::Owned(unpacked) => Part::Unpacked(unpacked),
                std::borrow::Cow::Borrowed(content) => {
                    let start = content.as_ptr().addr() - data.as_ptr().addr();
                    Part::InFile(start..start + content.len())
                }
            };
            parts.push((id, part));
        }
        let has_info = parts.iter().any(|(id, _)| *id == SectionId::DebugInfo);
        Ok(has_info.then(|| Sections { bytes: bytes.clone(), parts, code_start: code_start.unwrap_or(0) }))
    }

    /// The sections in gimli's form; created per thread at no cost.
    pub(crate) fn dwarf(&self) -> Dwarf<'_> {
        let load = |id| Ok::<_, std::convert::Infallible>(self.get(id));
        match Dwarf::load(load) {
            Ok(dwarf) => dwarf,
            Err(never) => match never {},
        }
    }

    pub(crate) fn get(&self, id: SectionId) -> Slice<'_> {
        let part = self.parts.iter().find(|(known, _)| *known == id);
        let bytes = match part {
            None => &[],
            Some((_, Part::Unpacked(bytes))) => bytes.as_slice(),
            Some((_, Part::InFile(range))) => self.bytes.bytes().get(range.clone()).unwrap_or_default(),
        };
        EndianSlice::new(bytes, LittleEndian)
    }

    /// Like [`ImageBytes::unchanged`], for the file that contains them.
    pub(crate) fn unchanged(&self) -> Result<(), OpenError> {
        self.bytes.unchanged()
    }

    /// Bytes of all sections.
    fn len(&self) -> u64 {
        let of = |part: &Part| match part {
            Part::Unpacked(bytes) => bytes.len(),
            Part::InFile(range) => range.len(),
        };
        self.parts.iter().map(|(_, part)| of(part) as u64).sum()
    }
}

/// The DWARF of an image: its sections, those of the file shared with others (`.gnu_debugaltlink`), and the unit
/// of each address.
#[derive(Debug)]
pub struct Debug {
    pub(super) main: Sections,
    pub(super) shared: Option<Sections>,
    pub(super) index: Index,
    steps: AtomicU64,
}

impl Debug {
    /// Finds the unit of each address. `wanted` is sorted and without duplicates.
    #[must_use]
    pub fn new(main: Sections, shared: Option<Sections>, wanted: &[u64]) -> Debug {
        let bytes = main.len() + shared.as_ref().map_or(0, Sections::len);
        let mut debug = Debug {
            main,
            shared,
            index: Index::default(),
            steps: AtomicU64::new(bytes.saturating_mul(STEPS_PER_BYTE).saturating_add(STEPS_LEAST)),
        };
        let claims_max = usize::try_from(bytes / CLAIM_BYTES_MIN).unwrap_or(usize::MAX);
        let code_start = debug.main.code_start;
        debug.index = Index::build(&debug.main.dwarf(), wanted, code_start, claims_max, &debug.budget());
        debug
    }

    /// The units with addresses; each is a separate piece of work.
    #[must_use]
    pub fn jobs(&self) -> &[Job] {
        &self.index.jobs
    }

    /// Like [`ImageBytes::unchanged`], for its files.
    pub(crate) fn unchanged(&self) -> Result<(), OpenError> {
        self.main.unchanged()?;
        self.shared.as_ref().map_or(Ok(()), Sections::unchanged)
    }

    pub(super) fn budget(&self) -> Budget<'_> {
        Budget(&self.steps)
    }
}

// ---- Reads one unit with its addresses → chains of functions; its entries may be in another file (split DWARF,
// `.dwo` and `.dwp`).
//
// Files are opened through a closure and their identity is checked.

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
