//! The sections of a file, and the functions at addresses by its debug information.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use gimli::{EndianSlice, LittleEndian, SectionId};

use super::budget::{Budget, Dwarf, Slice};
use super::index::{Index, Job};
use crate::binary::{ImageBytes, OpenError};
use crate::symbol::error::DebugFileError;
use crate::symbol::{relocate, sections};

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
            let content = relocate::apply(data, section.relocations, section.content(&mut left)?);
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
    pub(in crate::symbol) fn dwarf(&self) -> Dwarf<'_> {
        let load = |id| Ok::<_, std::convert::Infallible>(self.get(id));
        match Dwarf::load(load) {
            Ok(dwarf) => dwarf,
            Err(never) => match never {},
        }
    }

    pub(in crate::symbol) fn get(&self, id: SectionId) -> Slice<'_> {
        let part = self.parts.iter().find(|(known, _)| *known == id);
        let bytes = match part {
            None => &[],
            Some((_, Part::Unpacked(bytes))) => bytes.as_slice(),
            Some((_, Part::InFile(range))) => self.bytes.bytes().get(range.clone()).unwrap_or_default(),
        };
        EndianSlice::new(bytes, LittleEndian)
    }

    /// Like [`ImageBytes::unchanged`], for the file that contains them.
    pub(in crate::symbol) fn unchanged(&self) -> Result<(), OpenError> {
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
    pub(in crate::symbol) fn unchanged(&self) -> Result<(), OpenError> {
        self.main.unchanged()?;
        self.shared.as_ref().map_or(Ok(()), Sections::unchanged)
    }

    pub(super) fn budget(&self) -> Budget<'_> {
        Budget(&self.steps)
    }
}
