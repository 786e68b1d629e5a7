//! The tables of the Firefox Profiler's processed format: stacks, frames, functions, names.
//!
//! `Tables` are read, `FileThread` and its columns are written; the categories are those of frames and markers.
//!
//! Input: tables of a thread, of the file (`shared`), or of both: names belong to the file from version 56 of
//! the format on, all tables from 60 on. Output: [`Stacks`], with frames of the profile. Only frames of
//! stacks are converted, so that the cost is that of the stacks. From version 66 on a stack encodes its
//! caller as a distance, from 70 on a frame has its library.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use serde::Deserialize;

use crate::INCOMPLETE;
use crate::builder::SavedBuilder;
use crate::escape::file_name;
use crate::formats::json::{Index, NO_INDEX};
use crate::formats::tally::Malformed;
use crate::saved::{Full, Function, Line, Mapping, SavedProfile, StackRoot};

/// Bit of a frame's flags: it has a library.
const HAS_LIBRARY: u32 = 2;

/// One of `libs` of a file.
#[derive(Deserialize)]
pub(crate) struct Library<'a> {
    #[serde(borrow, default)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    path: Cow<'a, str>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StackTable {
    frame: Vec<Index>,
    #[serde(default)]
    prefix: Option<Vec<Option<Index>>>,
    /// Distance back to each stack's caller; 0 for none.
    #[serde(default)]
    prefix_offset: Option<Vec<Index>>,
}

#[derive(Deserialize)]
pub(crate) struct FrameTable {
    func: Vec<Index>,
    #[serde(default)]
    lib: Option<Vec<Index>>,
    #[serde(default)]
    flags: Option<Vec<Index>>,
    #[serde(default)]
    line: Vec<Option<Index>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FuncTable {
    name: Vec<Index>,
    /// -1 for none.
    #[serde(default)]
    resource: Vec<Index>,
    /// Source files, in versions without a table of these.
    #[serde(default)]
    file_name: Vec<Option<Index>>,
    #[serde(default)]
    line_number: Vec<Option<Index>>,
}

/// Origins of functions; by resource: the library.
#[derive(Deserialize)]
pub(crate) struct ResourceTable {
    #[serde(default)]
    lib: Vec<Index>,
}

/// The tables of a thread or of the file.
#[derive(Clone, Copy, Default)]
pub(crate) struct Tables<'t> {
    pub(crate) stacks: Option<&'t StackTable>,
    pub(crate) frames: Option<&'t FrameTable>,
    pub(crate) functions: Option<&'t FuncTable>,
    pub(crate) resources: Option<&'t ResourceTable>,
    pub(crate) names: Option<&'t [Cow<'t, str>]>,
}

impl<'t> Tables<'t> {
    /// These tables, with missing ones from `others`.
    pub(super) fn or(self, others: Tables<'t>) -> Tables<'t> {
        Tables {
            stacks: self.stacks.or(others.stacks),
            frames: self.frames.or(others.frames),
            functions: self.functions.or(others.functions),
            resources: self.resources.or(others.resources),
            names: self.names.or(others.names),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.stacks.is_none() && self.frames.is_none() && self.functions.is_none() && self.names.is_none()
    }
}

/// Item `index` of a column, if it exists.
fn at(column: &[Index], index: u32) -> Option<u32> {
    column.get(index as usize).map(|Index(value)| *value)
}

/// A stack: the frame it adds to its caller.
#[derive(Clone, Copy)]
pub(super) struct Stack {
    /// Its caller, which precedes it.
    pub(super) caller: Option<u32>,
    /// Frame of the profile.
    pub(super) frame: u32,
    /// Number of its functions.
    pub(super) depth: u32,
    /// The outermost frame is the marker of incomplete stacks.
    pub(super) is_mark: bool,
}

/// The stacks of a thread or of the file.
pub(super) struct Stacks(Vec<Stack>);

impl Stacks {
    /// Builds the stacks from the tables.
    pub(super) fn new(
        builder: &mut SavedBuilder,
        tables: Tables<'_>,
        libraries: &[Library<'_>],
    ) -> Result<Stacks, Malformed> {
        let missing = |table: &str| format!("there is no {table}, neither of the thread nor in `shared`");
        let table = tables.stacks.ok_or_else(|| missing("stackTable"))?;
        let mut frames = Frames {
            table: tables.frames.ok_or_else(|| missing("frameTable"))?,
            functions: tables.functions.ok_or_else(|| missing("funcTable"))?,
            resources: tables.resources,
            names: tables.names.ok_or_else(|| missing("stringArray"))?,
            libraries,
            known: HashMap::new(),
        };
        let length = table.prefix_offset.as_ref().map(Vec::len);
        let length = length.or(table.prefix.as_ref().map(Vec::len));
        if length != Some(table.frame.len()) {
            return Err("the columns of its stack table differ in length".into());
        }
        let mut stacks: Vec<Stack> = Vec::with_capacity(table.frame.len());
        for (index, Index(frame)) in (0u32..).zip(&table.frame) {
            let caller = match (&table.prefix_offset, &table.prefix) {
                (Some(offsets), _) => match at(offsets, index) {
                    None | Some(0) => None,
                    Some(offset) => Some(index.wrapping_sub(offset)),
                },
                (None, Some(prefix)) => {
                    prefix.get(index as usize).copied().flatten().map(|Index(caller)| caller)
                }
                (None, None) => None,
            };
            // A stack comes after its caller, so there is no cycle.
            let below = match caller.map(|caller| stacks.get(caller as usize)) {
                Some(None) => {
                    return Err(format!("stack {index} goes on from one that does not come before it").into());
                }
                Some(Some(below)) => below.depth,
                None => 0,
            };
            let (frame, is_mark) = frames.frame(builder, *frame).map_err(|why| match why {
                FrameError::Missing(what) => format!("stack {index} names {what}, which is not there").into(),
                FrameError::Full(full) => Malformed::from(full),
            })?;
            let is_mark = is_mark && caller.is_none();
            let depth = below.saturating_add(u32::from(!is_mark));
            stacks.push(Stack { caller, frame, depth, is_mark });
        }
        Ok(Stacks(stacks))
    }

    pub(super) fn get(&self, stack: u32) -> Option<Stack> {
        self.0.get(stack as usize).copied()
    }
}

/// Why a frame is invalid.
enum FrameError {
    Missing(String),
    Full(Full),
}

impl From<Full> for FrameError {
    fn from(full: Full) -> FrameError {
        FrameError::Full(full)
    }
}

/// The frames of a file, and those already converted.
struct Frames<'t> {
    table: &'t FrameTable,
    functions: &'t FuncTable,
    resources: Option<&'t ResourceTable>,
    names: &'t [Cow<'t, str>],
    libraries: &'t [Library<'t>],
    known: HashMap<u32, (u32, bool)>,
}

impl Frames<'_> {
    /// The frame of the profile, and whether it is the marker of incomplete stacks.
    fn frame(&mut self, builder: &mut SavedBuilder, frame: u32) -> Result<(u32, bool), FrameError> {
        if let Some(known) = self.known.get(&frame) {
            return Ok(*known);
        }
        let missing = |what: String| FrameError::Missing(what);
        let function = at(&self.table.func, frame).ok_or_else(|| missing(format!("frame {frame}")))?;
        let name =
            at(&self.functions.name, function).ok_or_else(|| missing(format!("function {function}")))?;
        let name = self
            .names
            .get(name as usize)
            .ok_or_else(|| missing(format!("the name of function {function}")))?;
        let found = (self.named(builder, frame, function, name)?, name == INCOMPLETE);
        self.known.insert(frame, found);
        Ok(found)
    }

    /// The frame for a name; a name that is an address refers to its library.
    fn named(&self, builder: &mut SavedBuilder, frame: u32, function: u32, name: &str) -> Result<u32, Full> {
        let address = name.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
        let library = address.and_then(|_| self.library(frame, function));
        let path = library.map(|library| if library.path.is_empty() { &library.name } else { &library.path });
        let (Some(address), Some(path)) = (address, path.filter(|path| !path.is_empty())) else {
            return self.with_line(builder, frame, function, name);
        };
        // Addresses of the format are relative to their library.
        let (path, build_id) = (builder.text(path)?, builder.text("")?);
        let mapping = builder.mapping(Mapping { start: 0, limit: 0, file_offset: 0, path, build_id })?;
        builder.frame(address, Some(mapping), &[])
    }

    /// The frame for a name with its file and line, if known.
    fn with_line(
        &self,
        builder: &mut SavedBuilder,
        frame: u32,
        function: u32,
        name: &str,
    ) -> Result<u32, Full> {
        let optional = |column: &[Option<Index>], index: u32| {
            let Index(found) = column.get(index as usize).copied().flatten()?;
            Some(found).filter(|found| *found != NO_INDEX)
        };
        let file =
            optional(&self.functions.file_name, function).and_then(|file| self.names.get(file as usize));
        let line = optional(&self.table.line, frame).unwrap_or(0);
        let start_line = optional(&self.functions.line_number, function).unwrap_or(0);
        let Some(file) = file.filter(|file| !file.is_empty()) else { return builder.named_frame(name) };
        let (name, file) = (builder.text(name)?, builder.text(file)?);
        let function = Function { name, file, start_line, ..Function::default() };
        let line = Line { function: builder.function(function)?, line };
        builder.frame(0, None, &[line])
    }

    fn library(&self, frame: u32, function: u32) -> Option<&Library<'_>> {
        let library = match (&self.table.lib, &self.table.flags) {
            (Some(_), Some(flags)) if at(flags, frame)? & HAS_LIBRARY == 0 => None,
            (Some(libraries), _) => at(libraries, frame),
            (None, _) => at(&self.resources?.lib, at(&self.functions.resource, function)?),
        };
        self.libraries.get(library? as usize)
    }
}

// ---- Categories of the Firefox Profiler: the kind of code of a frame, or the subject of a marker.

/// Names and colours; the numbers below are indices into `meta.categories`.
pub(super) const CATEGORIES: [(&str, &str); 7] = [
    ("Other", "grey"),
    ("User", "yellow"),
    ("Kernel", "orange"),
    ("JIT", "magenta"),
    ("Library", "lightblue"),
    ("Event", "green"),
    ("Lost", "red"),
];
pub(super) const OTHER: u8 = 0;
pub(super) const USER: u8 = 1;
pub(super) const KERNEL: u8 = 2;
pub(super) const JIT: u8 = 3;
pub(super) const LIBRARY: u8 = 4;
pub(super) const EVENT: u8 = 5;
pub(super) const LOST: u8 = 6;

/// Length to which the kernel truncates process names.
const NAME_BYTES: usize = 15;

/// Files that are programs: processes of the profile have their names. A file has the same category in all
/// processes, since the viewer uses neither of two different categories of a frame.
pub(super) struct Programs<'s>(HashSet<&'s str>);

impl<'s> Programs<'s> {
    /// The programs of a profile.
    pub(super) fn of(saved: &'s SavedProfile) -> Programs<'s> {
        let name = |root: &StackRoot| saved.text(root.process);
        // Processes that share a name have a number after it.
        let names = saved.roots().iter().map(name).map(|name| name.split(" (").next().unwrap_or_default());
        Programs(names.filter(|name| !name.is_empty()).collect())
    }

    /// Whether a file is a program: `python3.11` is the program of the process `python3`.
    pub(super) fn has(&self, path: &str) -> bool {
        let file = file_name(path);
        if file.contains(".so") || file.ends_with(".dylib") {
            return false;
        }
        let is_of = |name: &&str| {
            let rest = file.strip_prefix(name);
            rest.is_some_and(|rest| {
                rest.is_empty() || name.len() >= NAME_BYTES || !rest.starts_with(char::is_alphabetic)
            })
        };
        self.0.iter().any(is_of)
    }
}

#[cfg(test)]
mod categories_tests {
    use super::*;
    use crate::formats::folded;

    #[test]
    fn files_named_like_a_process_are_programs() {
        let folded = "python3 (7);a 1\nchrome_crashpad;b 2\nld;c 3\nR;d 1\n";
        let saved = folded::read(folded.as_bytes(), "a").expect("reads");
        let programs = Programs::of(&saved);
        for program in
            ["/usr/bin/python3.11", "/usr/lib/chrome_crashpad_handler", "/usr/bin/ld", "/usr/bin/R"]
        {
            assert!(programs.has(program), "{program}");
        }
        for library in ["/lib/ld-linux-x86-64.so.2", "/lib/libR.so", "/usr/bin/Rust", "/b/R.dylib", ""] {
            assert!(!programs.has(library), "{library}");
        }
    }
}
