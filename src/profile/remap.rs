//! Copies parts of a profile into another one: each once, and only the requested ones, or all.
//!
//! Input: a [`SavedProfile`], and indexes of its frames and roots. Output: indexes in a [`SavedBuilder`],
//! which gets only the texts, functions and mappings that these need: so a filtered profile does
//! not keep names of dropped stacks.

use std::collections::HashMap;
use std::slice::SliceIndex;

use super::builder::SavedBuilder;
use super::full::Full;
use super::labels::{Label, LabelValue, LabelsId};
use super::saved::{Function, Line, Mapping, SavedProfile, StackRoot};
use super::texts::TextId;

/// Maps indexes of a profile to those in its copy.
pub(super) struct Remap<'o> {
    other: &'o SavedProfile,
    texts: Vec<Option<TextId>>,
    mappings: Vec<Option<u32>>,
    functions: Vec<Option<u32>>,
    frames: Vec<Option<u32>>,
    roots: Vec<Option<u32>>,
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
            texts: vec![None; other.texts().count()],
            mappings: vec![None; other.mappings().len()],
            functions: vec![None; other.functions().len()],
            frames: vec![None; other.frames().len()],
            roots: vec![None; other.roots().len()],
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
        if let Some(Some(known)) = self.frames.get(frame as usize) {
            return Ok(*known);
        }
        let taken = self.frame_part(into, frame, 0..)?;
        note(&mut self.frames, frame, taken);
        Ok(taken)
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
        if let Some(Some(known)) = self.roots.get(root as usize) {
            return Ok(*known);
        }
        let Some(found) = self.other.roots().get(root as usize) else { return Ok(u32::MAX) };
        let taken = self.root_like(into, found)?;
        note(&mut self.roots, root, taken);
        Ok(taken)
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
        if let Some(Some(known)) = self.texts.get(text.0 as usize) {
            return Ok(*known);
        }
        let taken = into.text(self.other.text(text))?;
        note(&mut self.texts, text.0, taken);
        Ok(taken)
    }

    fn function(&mut self, into: &mut SavedBuilder, function: u32) -> Result<u32, Full> {
        if let Some(Some(known)) = self.functions.get(function as usize) {
            return Ok(*known);
        }
        let found = self.other.function(function);
        let name = self.text(into, found.name)?;
        let system_name = self.text(into, found.system_name)?;
        let file = self.text(into, found.file)?;
        let taken = into.function(Function { name, system_name, file, start_line: found.start_line })?;
        note(&mut self.functions, function, taken);
        Ok(taken)
    }

    fn mapping(&mut self, into: &mut SavedBuilder, mapping: u32) -> Result<Option<u32>, Full> {
        if let Some(Some(known)) = self.mappings.get(mapping as usize) {
            return Ok(Some(*known));
        }
        let Some(found) = self.other.mappings().get(mapping as usize) else { return Ok(None) };
        let (path, build_id) = (self.text(into, found.path)?, self.text(into, found.build_id)?);
        let taken = into.mapping(Mapping { path, build_id, ..*found })?;
        note(&mut self.mappings, mapping, taken);
        Ok(Some(taken))
    }
}

fn note<T>(places: &mut [Option<T>], index: u32, taken: T) {
    if let Some(place) = places.get_mut(index as usize) {
        *place = Some(taken);
    }
}
