//! A saved profile: self-contained, independent of the process and its images.
//!
//! [`SavedProfile`]: the profile; [`StackFrame`]: a frame of a stack, [`Label`]: a label of a sample; [`StackValues`]: the several
//! values of a heap profile; [`Full`]: the error of a full table.
//!
//! Every format is read into this and written from it; views, `diff` and `gate` see nothing else. Built
//! by [`SavedBuilder`](super::SavedBuilder). Its stacks are in a trie of indexes into its tables; `about.unit` is the
//! unit of their counts. Names, files and paths are interned, so memory grows with distinct stacks and names,
//! not with the size of a file.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Range;

use super::about::About;
use super::table::Lists;
use super::texts::{TextId, Texts};
use super::timeline::Timeline;
use crate::escape::file_name;
use crate::heap::Estimate;
use crate::heap::InuseHistory;
use crate::module_offset::ModuleOffset;
use crate::trie::{self, FrameId, FrameWords, Key, NodeId, StackKey, Trie};

/// Placeholder for a frame without address and name.
pub const UNKNOWN: &str = "[unknown]";
/// A stack that could not be walked to its thread's root starts with this frame.
pub const INCOMPLETE: &str = "[incomplete]";

/// A part of a file that was mapped as code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mapping {
    /// First address (Avma).
    pub start: u64,
    /// End address, exclusive (Avma).
    pub limit: u64,
    /// File offset of the first address.
    pub file_offset: u64,
    /// Path of the file.
    pub path: TextId,
    /// Build id in hexadecimal digits; empty if not known.
    pub build_id: TextId,
}

impl Mapping {
    /// The file offset of an address; addresses after the mapping are not refused.
    #[must_use]
    pub fn file_offset_of(&self, address: u64) -> Option<u64> {
        address.checked_sub(self.start)?.checked_add(self.file_offset)
    }
}

/// A function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Function {
    /// The display name; `[module+0x1f40]` for code without a symbol.
    pub name: TextId,
    /// The linker's name; empty if unknown or the same.
    pub system_name: TextId,
    /// Path of the source file; empty if not known.
    pub file: TextId,
    /// First line; 0 if not known.
    pub start_line: u32,
}

impl Function {
    /// The display name, or else the linker's name.
    pub(super) fn shown_name(&self) -> TextId {
        if self.name == TextId::EMPTY { self.system_name } else { self.name }
    }
}

/// A function at an address, and the line in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Line {
    /// Index into [`SavedProfile::functions`].
    pub function: u32,
    /// The line; 0 if not known.
    pub line: u32,
}

/// A frame: an address, or only a name if the format has no addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Lookup address (Avma; a return address minus one); 0 if not known.
    pub address: u64,
    /// Index into [`SavedProfile::mappings`].
    pub mapping: Option<u32>,
    /// Its functions as indexes into the table of lines, outermost first.
    pub lines: Range<u32>,
}

/// The root of a stack: its process and thread, and its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StackRoot {
    /// Name of the process.
    pub process: TextId,
    /// Name and thread id; `None` when threads are merged.
    pub thread: Option<(TextId, u64)>,
    /// False for a stack that was not walked to its thread's root.
    pub complete: bool,
    /// The thread was waiting (`--idle`); its counts are not CPU time.
    pub waiting: bool,
    /// Its other labels.
    pub labels: LabelsId,
}

impl StackRoot {
    /// A complete stack of a process, of any thread.
    #[must_use]
    pub fn of(process: TextId) -> StackRoot {
        StackRoot { process, thread: None, complete: true, waiting: false, labels: LabelsId::NONE }
    }
}

/// A self-contained profile.
#[derive(Clone, Default)]
pub struct SavedProfile {
    /// Metadata of the recording.
    pub about: About,
    pub(super) texts: Texts,
    pub(super) mappings: Vec<Mapping>,
    pub(super) functions: Vec<Function>,
    pub(super) lines: Vec<Line>,
    pub(super) frames: Vec<Frame>,
    pub(super) roots: Vec<StackRoot>,
    pub(super) labels: Vec<Box<[Label]>>,
    pub(super) trie: Trie<StackFrame>,
    pub(super) timeline: Option<Timeline>,
    pub(crate) values: Option<StackValues>,
}

impl SavedProfile {
    /// Returns an interned text.
    #[must_use]
    pub fn text(&self, id: TextId) -> &str {
        self.texts.get(id)
    }

    /// A line for people on names that are cut; `None` if there are none.
    #[must_use]
    pub fn cut_names(&self) -> Option<String> {
        let (cut, most) = (self.texts.cut_count(), super::texts::NAME_BYTES_MAX);
        match cut {
            0 => None,
            1 => Some(format!("1 name is longer than {most} bytes, and is cut")),
            _ => Some(format!("{cut} names are longer than {most} bytes, and are cut")),
        }
    }

    /// All texts.
    #[must_use]
    pub fn texts(&self) -> &Texts {
        &self.texts
    }

    /// Mapped code, in the order of first use.
    #[must_use]
    pub fn mappings(&self) -> &[Mapping] {
        &self.mappings
    }

    /// Functions, in the order of first use.
    #[must_use]
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// Frames, in the order of first use.
    #[must_use]
    pub fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// Roots, in the order of first use.
    #[must_use]
    pub fn roots(&self) -> &[StackRoot] {
        &self.roots
    }

    /// The labels of a set; empty for an unknown one.
    #[must_use]
    pub fn labels(&self, id: LabelsId) -> &[Label] {
        let index = id.0.checked_sub(1).map(|index| index as usize);
        index.and_then(|index| self.labels.get(index)).map_or(&[], |labels| labels)
    }

    /// Whether stacks have labels.
    #[must_use]
    pub fn has_labels(&self) -> bool {
        !self.labels.is_empty()
    }

    /// The stacks.
    #[must_use]
    pub fn trie(&self) -> &Trie<StackFrame> {
        &self.trie
    }

    /// Times of samples; `None` if not known.
    #[must_use]
    pub fn timeline(&self) -> Option<&Timeline> {
        self.timeline.as_ref()
    }

    /// The functions of a frame with their lines, outermost first; empty if only the address is
    /// known, and for a frame of another profile.
    #[must_use]
    pub fn lines_of(&self, frame: &Frame) -> &[Line] {
        self.lines.get(frame.lines.start as usize..frame.lines.end as usize).unwrap_or_default()
    }

    /// A function by its index; nameless if the index is out of range.
    #[must_use]
    pub fn function(&self, index: u32) -> Function {
        self.functions.get(index as usize).copied().unwrap_or_default()
    }

    /// Counts of all stacks.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.trie.total()
    }

    /// CPU time of `count` counts, seconds; `None` if the rate is unknown.
    #[must_use]
    pub fn seconds(&self, count: u64) -> Option<f64> {
        self.about.hz.filter(|hz| *hz > 0).map(|hz| count as f64 / f64::from(hz))
    }

    /// Names of the processes with counts, sorted, without duplicates.
    #[must_use]
    pub fn processes(&self) -> Vec<&str> {
        let mut processes: Vec<TextId> = self.counted_roots().map(|root| root.process).collect();
        // By number first, so that a long name shared by many threads is compared once.
        processes.sort_unstable();
        processes.dedup();
        let mut names: Vec<&str> = processes.into_iter().map(|process| self.text(process)).collect();
        names.sort_unstable();
        names
    }

    /// Roots of stacks with counts; files may have others.
    fn counted_roots(&self) -> impl Iterator<Item = &StackRoot> {
        let mut counted = vec![false; self.roots.len()];
        self.trie.map_nodes(u32::MAX, |node, frame, caller| {
            let root = if let StackFrame::Root(root) = frame { root } else { *caller };
            if let Some(counted) = counted.get_mut(root as usize) {
                *counted |= self.trie.count(node) > 0;
            }
            root
        });
        self.roots.iter().zip(counted).filter_map(|(root, counted)| counted.then_some(root))
    }

    /// Visits each stack with a count: its root, its frames (indexes into [`SavedProfile::frames`],
    /// outermost first) and the count. The order depends only on the stacks and the order of the
    /// tables.
    pub fn for_each_stack(&self, mut visit: impl FnMut(&StackRoot, &[u32], u64)) {
        self.for_each_numbered_stack(|root, frames, count| {
            if let Some(root) = self.roots.get(root as usize) {
                visit(root, frames, count);
            }
        });
    }

    /// Visits each stack with a count: the index of its root into [`SavedProfile::roots`], its frames and the count. For
    /// callers that store data by root.
    pub fn for_each_numbered_stack(&self, mut visit: impl FnMut(u32, &[u32], u64)) {
        self.for_each_leaf(|_, root, frames, count| visit(root, frames, count));
    }

    /// Visits each stack with a count: its node, the index of its root, its frames and the count.
    pub(super) fn for_each_leaf(&self, mut visit: impl FnMut(NodeId, u32, &[u32], u64)) {
        let mut frames = Vec::new();
        self.trie.for_each_leaf(|node, path, count| {
            if let Some(root) = self.split_root(path, &mut frames) {
                visit(node, root, &frames, count);
            }
        });
    }

    /// Returns the root of a node and stores its frames, outermost first, in `frames`.
    pub(crate) fn path_of(&self, node: NodeId, frames: &mut Vec<u32>) -> Option<StackRoot> {
        let (mut root, mut at) = (None, Some(node));
        while let Some(here) = at {
            match self.trie.key(here) {
                Some(StackFrame::Root(index)) => root = self.roots.get(index as usize).copied(),
                Some(StackFrame::Frame(frame)) => frames.push(frame),
                None => {}
            }
            at = self.trie.parent(here);
        }
        frames.reverse();
        root
    }

    /// Returns the root of a path of the trie and stores its other frames in `frames`.
    fn split_root(&self, path: &[FrameId], frames: &mut Vec<u32>) -> Option<u32> {
        let (root, code) = path.split_first()?;
        let StackFrame::Root(root) = self.trie.frame(*root)? else { return None };
        frames.clear();
        frames.extend(code.iter().filter_map(|frame| match self.trie.frame(*frame)? {
            StackFrame::Frame(frame) => Some(frame),
            StackFrame::Root(_) => None,
        }));
        Some(root).filter(|root| (*root as usize) < self.roots.len())
    }

    /// Visits the names of a frame as in folded text, outermost first: one for each function, or
    /// its location if it has none. With `lines`, `function (file:line)`.
    pub fn names_of(&self, frame: u32, lines: bool, visit: &mut dyn FnMut(&str)) {
        let Some(frame) = self.frames.get(frame as usize) else { return visit(UNKNOWN) };
        let here = self.lines_of(frame);
        if here.is_empty() {
            return visit(&self.place_of(frame));
        }
        for line in here {
            visit(&self.name_of_line(line, lines));
        }
    }

    /// Adds the names of a frame to a list, as they are shown.
    pub(super) fn add_names(
        &self,
        frame: u32,
        lines: bool,
        texts: &mut Texts,
        names: &mut Lists<TextId>,
    ) -> Result<(), Full> {
        let mut full = Ok(());
        self.names_of(frame, lines, &mut |name| match texts.intern(&shown(name)) {
            Ok(name) => names.push(name),
            Err(why) => full = Err(why),
        });
        full
    }

    /// The name of one function of a frame.
    pub(super) fn name_of_line(&self, line: &Line, lines: bool) -> Cow<'_, str> {
        let function = self.function(line.function);
        let name = self.text(function.shown_name());
        let name = if name.is_empty() { UNKNOWN } else { name };
        // The function's path distinguishes files with the same name.
        let file = file_name(self.text(function.file));
        match (lines && !file.is_empty(), line.line) {
            (false, _) => Cow::Borrowed(name),
            (true, 0) => Cow::Owned(format!("{name} ({file})")),
            (true, line) => Cow::Owned(format!("{name} ({file}:{line})")),
        }
    }

    /// `[module+0x1f40]`, or `[unknown]` outside of any module.
    pub(super) fn place_of(&self, frame: &Frame) -> String {
        let mapping = frame.mapping.and_then(|mapping| self.mappings.get(mapping as usize));
        let Some(mapping) = mapping else { return UNKNOWN.to_owned() };
        let module = file_name(self.text(mapping.path));
        if module.is_empty() {
            return UNKNOWN.to_owned();
        }
        let offset = frame.address.wrapping_sub(mapping.start).wrapping_add(mapping.file_offset);
        ModuleOffset::Address { module, offset }.to_string()
    }
}

impl fmt::Debug for SavedProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "SavedProfile({} stacks, {} {}, {} frames, {} functions)",
            self.trie.distinct_stacks(),
            self.total(),
            self.about.unit,
            self.frames.len(),
            self.functions.len()
        )
    }
}

// ---- The frames of saved stacks, as indexes into the profile's tables.

/// A frame of a stack of a [`SavedProfile`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StackFrame {
    /// Root of the stack: an index into [`SavedProfile::roots`](super::SavedProfile::roots).
    Root(u32),
    /// A frame below the root: an index into [`SavedProfile::frames`](super::SavedProfile::frames).
    Frame(u32),
}

impl Key for StackFrame {
    #[inline]
    fn words(self) -> FrameWords {
        match self {
            StackFrame::Root(index) => (0, index.into()),
            StackFrame::Frame(index) => (1, index.into()),
        }
    }

    #[inline]
    fn from_words((kind, index): FrameWords) -> StackFrame {
        if kind == 0 { StackFrame::Root(index as u32) } else { StackFrame::Frame(index as u32) }
    }
}

impl StackKey for StackFrame {
    /// Index of the root.
    type Head = u32;
    /// Index of the frame.
    type Word = u64;

    fn head(root: u32) -> StackFrame {
        StackFrame::Root(root)
    }

    fn word(_: u32, frame: u64) -> StackFrame {
        // Indexes are 32 bits; no table has an item with the last one.
        StackFrame::Frame(u32::try_from(frame).unwrap_or(u32::MAX))
    }

    fn bits(root: u32) -> u64 {
        root.into()
    }
}

// ---- Labels of samples beyond process and thread: tenant, request, size. pprof and OTLP have them.
//
// A set of labels is part of a stack's root, so that filters and merges keep it. Views and formats without labels
// see the profile without them.

/// Most distinct sets of labels of a profile; a label can be the number of a request.
pub const LABEL_SETS_MAX: usize = 1 << 16;
/// Most labels of all sets together.
pub const LABELS_MAX: usize = 1 << 20;

/// A set of labels: one more than its index in the profile's table; 0 has no labels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LabelsId(pub u32);

impl LabelsId {
    /// No labels.
    pub const NONE: LabelsId = LabelsId(0);
}

/// A label of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label {
    /// Its key.
    pub key: TextId,
    /// Its value.
    pub value: LabelValue,
}

/// The value of a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LabelValue {
    /// A text.
    Text(TextId),
    /// A number and its unit, which may be empty.
    Number(i64, TextId),
}

// ---- Several values of each stack, as in heap profiles: in use, allocated in all, number of allocations.
// The counts of a profile are one of them: that which was requested of the reader.

/// A value type, as in pprof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueType {
    /// The quantity: `inuse_space`.
    pub kind: String,
    /// The unit: `bytes`, `count`.
    pub unit: String,
}

impl ValueType {
    /// The display unit of the counts: bytes, or the name of the type.
    pub fn counted_unit(&self) -> &str {
        if self.unit == "count" { &self.kind } else { &self.unit }
    }
}

/// Values of all stacks.
#[derive(Clone, Debug, Default)]
pub struct StackValues {
    types: Vec<ValueType>,
    /// By node, in the order of the types.
    rows: BTreeMap<u32, Vec<u64>>,
    /// For a heap recording: bytes and allocations in use by node, with their sampling error.
    inuse: BTreeMap<u32, (Estimate, Estimate)>,
    /// For a heap recording with counts in bytes in use: these over time.
    pub(crate) history: Option<InuseHistory>,
}

impl StackValues {
    /// Values of these types, without stacks.
    pub fn new(types: Vec<ValueType>) -> StackValues {
        StackValues { types, ..StackValues::default() }
    }

    /// The types.
    #[must_use]
    pub fn types(&self) -> &[ValueType] {
        &self.types
    }

    /// The index of a type.
    #[must_use]
    pub fn index(&self, kind: &str) -> Option<usize> {
        self.types.iter().position(|known| known.kind == kind)
    }

    /// The values of each stack that has any, by node.
    pub fn rows(&self) -> impl Iterator<Item = (NodeId, &[u64])> {
        self.rows.iter().map(|(node, values)| (NodeId(*node), values.as_slice()))
    }

    /// The values of a stack.
    #[must_use]
    pub fn of(&self, node: NodeId) -> Option<&[u64]> {
        self.rows.get(&node.0).map(Vec::as_slice)
    }

    /// Bytes and allocations in use of each stack, with their sampling error; empty for profiles read from files.
    pub fn inuse(&self) -> impl Iterator<Item = (NodeId, (Estimate, Estimate))> {
        self.inuse.iter().map(|(node, estimates)| (NodeId(*node), *estimates))
    }

    /// Bytes in use over time; only for a heap recording with counts in bytes in use.
    #[must_use]
    pub fn history(&self) -> Option<&InuseHistory> {
        self.history.as_ref()
    }

    /// Sets the bytes in use over time.
    pub fn set_history(&mut self, history: Option<InuseHistory>) {
        self.history = history;
    }

    /// Adds the in-use values of a stack.
    pub fn add_inuse(&mut self, node: NodeId, (bytes, blocks): (Estimate, Estimate)) {
        let sum = self.inuse.entry(node.0).or_default();
        sum.0.add(bytes);
        sum.1.add(blocks);
    }

    /// Adds values of a stack.
    pub fn add(&mut self, node: NodeId, values: &[u64]) {
        let row = self.rows.entry(node.0).or_insert_with(|| vec![0; self.types.len()]);
        row.iter_mut().zip(values).for_each(|(sum, value)| *sum = sum.saturating_add(*value));
    }
}

// ---- Error for a table of a profile that is full.

/// A table of a saved profile has reached its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    /// The kind of items that do not fit.
    pub what: &'static str,
    /// The limit.
    pub limit: usize,
}

impl From<trie::Full> for Full {
    fn from(full: trie::Full) -> Full {
        match full {
            trie::Full::Nodes => Full { what: "nodes of distinct stacks", limit: trie::NODES_MAX },
            trie::Full::Frames => Full { what: "distinct frames", limit: trie::FRAMES_MAX },
        }
    }
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the profile is too large: more than {} {}", self.limit, self.what)
    }
}

impl std::error::Error for Full {}
/// Names of processes in a table.
#[derive(Default)]
pub(crate) struct RootNames {
    processes: HashMap<TextId, TextId>,
}

impl RootNames {
    /// Calls `visit` with the names of a root, outermost first, as texts of `texts`.
    pub(crate) fn of(
        &mut self,
        saved: &SavedProfile,
        root: &StackRoot,
        texts: &mut Texts,
        mut visit: impl FnMut(TextId) -> Result<(), Full>,
    ) -> Result<(), Full> {
        let process = match self.processes.get(&root.process) {
            Some(known) => *known,
            None => {
                let new = texts.intern(&shown(saved.text(root.process)))?;
                self.processes.insert(root.process, new);
                new
            }
        };
        visit(process)?;
        if let Some((name, id)) = root.thread {
            visit(texts.intern(&thread_name(saved.text(name), id))?)?;
        }
        if root.complete { Ok(()) } else { visit(texts.intern(INCOMPLETE)?) }
    }
}

/// A thread as one frame of a line; `(18)` without a name.
pub(crate) fn thread_name(name: &str, id: u64) -> String {
    shown(&format!("{name} ({id})")).into_owned()
}

/// A name as one frame of a folded line: `;` becomes `:`, and a blank name is `[unknown]`.
/// Invisible characters and newlines are already escaped by interning.
#[must_use]
pub fn shown(name: &str) -> Cow<'_, str> {
    let name = name.trim();
    if name.is_empty() {
        return Cow::Borrowed(UNKNOWN);
    }
    if name.contains(';') { Cow::Owned(name.replace(';', ":")) } else { Cow::Borrowed(name) }
}
