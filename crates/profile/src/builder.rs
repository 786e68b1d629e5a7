//! Builds a saved profile: tables without duplicates, stacks in the trie.
//!
//! `SavedBuilder` builds; `Remap` copies the parts of another profile that are requested.
//!
//! Input: texts, mappings, functions, frames, roots and stacks, each after the items it refers to.
//! Output: [`SavedProfile`]. Everything has a named limit, and [`Full`] says which was reached; items
//! added before that stay. An index that the builder never returned is a bug of the caller, which debug
//! builds panic on; else its stack is in the total and shown by no view.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};
use std::slice::SliceIndex;

use hashbrown::{DefaultHashBuilder, HashTable};

use super::StackFrame;
use super::about::{About, MetadataMismatch};
use super::saved::{
    Frame, Full, Function, LABEL_SETS_MAX, LABELS_MAX, Label, LabelValue, LabelsId, Line, Mapping,
    SavedProfile, StackRoot,
};
use super::table::Memo;
use super::texts::TextId;
use super::timeline::Timeline;
use crate::trie::{FRAMES_MAX, NodeId};

/// Most mappings.
pub const MAPPINGS_MAX: usize = 1 << 20;
/// Most functions.
pub const FUNCTIONS_MAX: usize = FRAMES_MAX;
/// Most functions of all frames together.
pub const LINES_MAX: usize = 1 << 24;
/// Most roots: threads of all processes.
pub const ROOTS_MAX: usize = 1 << 20;

/// Builds a [`SavedProfile`].
#[derive(Default)]
pub struct SavedBuilder {
    pub(super) saved: SavedProfile,
    hasher: DefaultHashBuilder,
    frames: HashTable<u32>,
    functions: HashMap<Function, u32>,
    mappings: HashMap<Mapping, u32>,
    roots: HashMap<StackRoot, u32>,
    labels: HashMap<Box<[Label]>, LabelsId>,
    /// Labels of all sets.
    label_count: usize,
    /// By text: the frame with only this name, plus one.
    named: Vec<u32>,
    /// The current stack, leaf first; reused to avoid allocations.
    leaf_first: Vec<u64>,
}

/// Why a profile was not merged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MergeError {
    /// A table is full.
    Full(Full),
    /// The counts cannot be added.
    Metadata(MetadataMismatch),
}

impl From<Full> for MergeError {
    fn from(full: Full) -> MergeError {
        MergeError::Full(full)
    }
}

impl std::fmt::Display for MergeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            MergeError::Full(full) => full.fmt(f),
            MergeError::Metadata(why) => why.fmt(f),
        }
    }
}

impl std::error::Error for MergeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            MergeError::Full(full) => Some(full),
            MergeError::Metadata(why) => Some(why),
        }
    }
}

impl SavedBuilder {
    /// An empty profile of a recording.
    #[must_use]
    pub fn new(about: About) -> SavedBuilder {
        SavedBuilder { saved: SavedProfile { about, ..SavedProfile::default() }, ..SavedBuilder::default() }
    }

    /// Metadata of the recording; may be changed until the end.
    pub fn about(&mut self) -> &mut About {
        &mut self.saved.about
    }

    /// The profile so far.
    #[must_use]
    pub fn so_far(&self) -> &SavedProfile {
        &self.saved
    }

    /// The finished profile.
    #[must_use]
    pub fn finish(mut self) -> SavedProfile {
        self.saved.about.escape();
        self.saved
    }

    /// Interns a text.
    ///
    /// # Errors
    /// [`Full`] if it is new and does not fit.
    pub fn text(&mut self, text: &str) -> Result<TextId, Full> {
        self.saved.texts.intern(text)
    }

    /// Returns the index of a mapping.
    ///
    /// # Errors
    /// [`Full`] beyond [`MAPPINGS_MAX`].
    pub fn mapping(&mut self, mapping: Mapping) -> Result<u32, Full> {
        let limit = Full { what: "mappings", limit: MAPPINGS_MAX };
        numbered(&mut self.mappings, &mut self.saved.mappings, mapping, limit)
    }

    /// Returns the index of a function.
    ///
    /// # Errors
    /// [`Full`] beyond [`FUNCTIONS_MAX`].
    pub fn function(&mut self, function: Function) -> Result<u32, Full> {
        let limit = Full { what: "functions", limit: FUNCTIONS_MAX };
        numbered(&mut self.functions, &mut self.saved.functions, function, limit)
    }

    /// Returns the index of a root.
    ///
    /// # Errors
    /// [`Full`] beyond [`ROOTS_MAX`].
    pub fn root(&mut self, root: StackRoot) -> Result<u32, Full> {
        let limit = Full { what: "threads", limit: ROOTS_MAX };
        numbered(&mut self.roots, &mut self.saved.roots, root, limit)
    }

    /// Returns the number of a set of labels, which it sorts and frees of duplicates; `None` if there are too many sets:
    /// readers then keep the stack without them, and say so.
    pub fn labels(&mut self, labels: &mut Vec<Label>) -> Option<LabelsId> {
        labels.sort_unstable();
        labels.dedup();
        if labels.is_empty() {
            return Some(LabelsId::NONE);
        }
        if let Some(known) = self.labels.get(labels.as_slice()) {
            return Some(*known);
        }
        let table = &mut self.saved.labels;
        if table.len() >= LABEL_SETS_MAX || labels.len() > LABELS_MAX - self.label_count {
            return None;
        }
        self.label_count += labels.len();
        table.push(labels.as_slice().into());
        let id = LabelsId(table.len() as u32);
        self.labels.insert(labels.as_slice().into(), id);
        Some(id)
    }

    /// Returns the index of a frame: its address, and its functions, outermost first.
    ///
    /// # Errors
    /// [`Full`] beyond [`FRAMES_MAX`] or [`LINES_MAX`].
    pub fn frame(&mut self, address: u64, mapping: Option<u32>, lines: &[Line]) -> Result<u32, Full> {
        let hash = self.hasher.hash_one((address, mapping, lines));
        let saved = &self.saved;
        let same = |&index: &u32| {
            let known = saved.frames.get(index as usize);
            known.is_some_and(|known| {
                known.address == address && known.mapping == mapping && saved.lines_of(known) == lines
            })
        };
        if let Some(&known) = self.frames.find(hash, same) {
            return Ok(known);
        }
        if saved.frames.len() >= FRAMES_MAX {
            return Err(Full { what: "distinct frames", limit: FRAMES_MAX });
        }
        if lines.len() > LINES_MAX - saved.lines.len() {
            return Err(Full { what: "functions of frames", limit: LINES_MAX });
        }
        let saved = &mut self.saved;
        let (index, first) = (saved.frames.len() as u32, saved.lines.len() as u32);
        saved.lines.extend_from_slice(lines);
        saved.frames.push(Frame { address, mapping, lines: first..saved.lines.len() as u32 });
        let (saved, hasher) = (&self.saved, &self.hasher);
        self.frames.insert_unique(hash, index, |&index| {
            let frame = saved.frames.get(index as usize);
            frame.map_or(0, |frame| hasher.hash_one((frame.address, frame.mapping, saved.lines_of(frame))))
        });
        Ok(index)
    }

    /// Returns the index of a frame with only a name. A known name costs one lookup.
    ///
    /// # Errors
    /// [`Full`] if it is new and does not fit.
    pub fn named_frame(&mut self, name: &str) -> Result<u32, Full> {
        let name = self.text(name)?;
        let slot = name.0 as usize;
        if let Some(&known) = self.named.get(slot).filter(|known| **known > 0) {
            return Ok(known - 1);
        }
        let function = self.function(Function { name, ..Function::default() })?;
        let frame = self.frame(0, None, &[Line { function, line: 0 }])?;
        if self.named.len() <= slot {
            self.named.resize(slot + 1, 0);
        }
        if let Some(place) = self.named.get_mut(slot) {
            *place = frame + 1;
        }
        Ok(frame)
    }

    /// Number of the functions of a frame; 1 if only its address is known.
    pub(super) fn depth_of(&self, frame: u32) -> usize {
        self.saved.frames.get(frame as usize).map_or(0, |frame| frame.lines.len()).max(1)
    }

    /// Adds to the count of a stack, given by its root and its frames, outermost first. Returns its node.
    ///
    /// # Errors
    /// [`Full`] if it is new and does not fit.
    pub fn add(&mut self, root: u32, frames: &[u32], count: u64) -> Result<NodeId, Full> {
        debug_assert!((root as usize) < self.saved.roots.len(), "root {root} is not of this builder");
        debug_assert!(frames.iter().all(|frame| (*frame as usize) < self.saved.frames.len()));
        self.check_total(count)?;
        self.leaf_first.clear();
        self.leaf_first.extend(frames.iter().rev().map(|frame| u64::from(*frame)));
        Ok(self.saved.trie.insert(root, &self.leaf_first, count)?)
    }

    /// Returns the node of a root, for readers that build stacks from their common prefixes.
    ///
    /// # Errors
    /// [`Full`] if it is new and does not fit.
    pub fn root_node(&mut self, root: u32) -> Result<NodeId, Full> {
        Ok(self.saved.trie.descend(NodeId(0), StackFrame::Root(root))?)
    }

    /// Returns the node of a frame called from another node.
    ///
    /// # Errors
    /// [`Full`] if it is new and does not fit.
    pub fn child_node(&mut self, parent: NodeId, frame: u32) -> Result<NodeId, Full> {
        Ok(self.saved.trie.descend(parent, StackFrame::Frame(frame))?)
    }

    /// Adds to the count of a node from [`root_node`](Self::root_node) or
    /// [`child_node`](Self::child_node).
    ///
    /// # Errors
    /// [`Full`] if the counts of all stacks no longer fit in 64 bits.
    pub fn count(&mut self, node: NodeId, count: u64) -> Result<(), Full> {
        self.check_total(count)?;
        self.saved.trie.add(node, count);
        Ok(())
    }

    /// Checks whether more counts fit: the trie would saturate silently.
    fn check_total(&self, more: u64) -> Result<(), Full> {
        let sum = self.saved.trie.total().checked_add(more);
        sum.map(drop).ok_or(Full { what: "counts of all stacks together", limit: usize::MAX })
    }

    /// The times of samples, for readers of formats with times.
    pub fn times(&mut self) -> &mut Timeline {
        self.saved.timeline.get_or_insert_default()
    }

    /// Sets the times of samples. Its samples get the counts that the profile has for their stacks.
    pub fn set_timeline(&mut self, mut timeline: Timeline) {
        let trie = &self.saved.trie;
        timeline.count_samples(trie.node_count(), |node| trie.count(node));
        self.saved.timeline = Some(timeline);
    }
}

/// Returns the index of an item in its table, adding it if it is new.
fn numbered<T: Copy + Eq + Hash>(
    index: &mut HashMap<T, u32>,
    table: &mut Vec<T>,
    item: T,
    full: Full,
) -> Result<u32, Full> {
    if let Some(known) = index.get(&item) {
        return Ok(*known);
    }
    if table.len() >= full.limit {
        return Err(full);
    }
    let number = table.len() as u32;
    table.push(item);
    index.insert(item, number);
    Ok(number)
}

// ---- Copies parts of a profile into another one: each once, and only the requested ones, or all.

/// Maps indexes of a profile to those in its copy.
pub(super) struct Remap<'o> {
    other: &'o SavedProfile,
    texts: Memo<TextId>,
    mappings: Memo<u32>,
    functions: Memo<u32>,
    frames: Memo<u32>,
    roots: Memo<u32>,
    labels: HashMap<LabelsId, LabelsId>,
}

/// Mapped indexes of all frames and roots of a profile.
#[derive(Debug)]
pub(super) struct Tables {
    /// By frame of the original.
    pub(super) frames: Vec<u32>,
    /// By root of the original.
    pub(super) roots: Vec<u32>,
}

impl<'o> Remap<'o> {
    /// An empty mapping.
    pub(super) fn new(other: &'o SavedProfile) -> Remap<'o> {
        Remap {
            other,
            texts: Memo::new(other.texts().count()),
            mappings: Memo::new(other.mappings().len()),
            functions: Memo::new(other.functions().len()),
            frames: Memo::new(other.frames().len()),
            roots: Memo::new(other.roots().len()),
            labels: HashMap::new(),
        }
    }

    /// Copies all tables in order, including unused items.
    pub(super) fn all(mut self, into: &mut SavedBuilder) -> Result<Tables, Full> {
        let other = self.other;
        for text in 0..other.texts().count() as u32 {
            self.text(into, TextId(text))?;
        }
        for mapping in 0..other.mappings().len() as u32 {
            self.mapping(into, mapping)?;
        }
        for function in 0..other.functions().len() as u32 {
            self.function(into, function)?;
        }
        let frames = (0..other.frames().len() as u32).map(|frame| self.frame(into, frame));
        let frames = frames.collect::<Result<_, Full>>()?;
        let roots = (0..other.roots().len() as u32).map(|root| self.root(into, root));
        Ok(Tables { frames, roots: roots.collect::<Result<_, Full>>()? })
    }

    /// Copies a frame.
    pub(super) fn frame(&mut self, into: &mut SavedBuilder, frame: u32) -> Result<u32, Full> {
        if let Some(known) = self.frames.get(frame as usize) {
            return Ok(known);
        }
        let taken = self.frame_part(into, frame, 0..)?;
        Ok(self.frames.put(frame as usize, taken))
    }

    /// Copies a frame with a part of its functions, counted from the outermost. The caller caches it.
    pub(super) fn frame_part(
        &mut self,
        into: &mut SavedBuilder,
        frame: u32,
        functions: impl SliceIndex<[Line], Output = [Line]>,
    ) -> Result<u32, Full> {
        let other = self.other;
        let Some(frame) = other.frames().get(frame as usize) else { return into.frame(0, None, &[]) };
        let mut lines = Vec::new();
        for line in other.lines_of(frame).get(functions).unwrap_or_default() {
            lines.push(Line { function: self.function(into, line.function)?, line: line.line });
        }
        let mapping = match frame.mapping {
            Some(mapping) => self.mapping(into, mapping)?,
            None => None,
        };
        into.frame(frame.address, mapping, &lines)
    }

    /// Copies a root.
    pub(super) fn root(&mut self, into: &mut SavedBuilder, root: u32) -> Result<u32, Full> {
        if let Some(known) = self.roots.get(root as usize) {
            return Ok(known);
        }
        let Some(found) = self.other.roots().get(root as usize) else { return Ok(u32::MAX) };
        let taken = self.root_like(into, found)?;
        Ok(self.roots.put(root as usize, taken))
    }

    /// Copies a root built from texts of the profile. The caller caches it.
    pub(super) fn root_like(&mut self, into: &mut SavedBuilder, root: &StackRoot) -> Result<u32, Full> {
        let process = self.text(into, root.process)?;
        let thread = match root.thread {
            Some((name, id)) => Some((self.text(into, name)?, id)),
            None => None,
        };
        let labels = self.labels(into, root.labels)?;
        into.root(StackRoot { process, thread, labels, ..*root })
    }

    /// Copies a set of labels; beyond the limit of the copy's sets, none.
    pub(super) fn labels(&mut self, into: &mut SavedBuilder, labels: LabelsId) -> Result<LabelsId, Full> {
        if let Some(known) = self.labels.get(&labels) {
            return Ok(*known);
        }
        let mut copied = Vec::new();
        for label in self.other.labels(labels) {
            let value = match label.value {
                LabelValue::Text(text) => LabelValue::Text(self.text(into, text)?),
                LabelValue::Number(number, unit) => LabelValue::Number(number, self.text(into, unit)?),
            };
            copied.push(Label { key: self.text(into, label.key)?, value });
        }
        let taken = into.labels(&mut copied).unwrap_or_default();
        self.labels.insert(labels, taken);
        Ok(taken)
    }

    fn text(&mut self, into: &mut SavedBuilder, text: TextId) -> Result<TextId, Full> {
        if let Some(known) = self.texts.get(text.0 as usize) {
            return Ok(known);
        }
        let taken = into.text(self.other.text(text))?;
        Ok(self.texts.put(text.0 as usize, taken))
    }

    fn function(&mut self, into: &mut SavedBuilder, function: u32) -> Result<u32, Full> {
        if let Some(known) = self.functions.get(function as usize) {
            return Ok(known);
        }
        let found = self.other.function(function);
        let name = self.text(into, found.name)?;
        let system_name = self.text(into, found.system_name)?;
        let file = self.text(into, found.file)?;
        let taken = into.function(Function { name, system_name, file, start_line: found.start_line })?;
        Ok(self.functions.put(function as usize, taken))
    }

    fn mapping(&mut self, into: &mut SavedBuilder, mapping: u32) -> Result<Option<u32>, Full> {
        if let Some(known) = self.mappings.get(mapping as usize) {
            return Ok(Some(known));
        }
        let Some(found) = self.other.mappings().get(mapping as usize) else { return Ok(None) };
        let (path, build_id) = (self.text(into, found.path)?, self.text(into, found.build_id)?);
        let taken = into.mapping(Mapping { path, build_id, ..*found })?;
        Ok(Some(self.mappings.put(mapping as usize, taken)))
    }
}
