//! Merges several profiles, or removes addresses or labels from one.
//!
//! Input: [`SavedProfile`] profiles. Output: a [`SavedProfile`], by way of a [`SavedBuilder`].

use super::builder::{MergeError, SavedBuilder};
use super::full::Full;
use super::labels::LabelsId;
use super::remap::{Remap, Tables};
use super::saved::{SavedProfile, StackRoot};
use super::stack_frame::StackFrame;
use super::timeline::Timeline;
use crate::trie::NodeId;

impl SavedBuilder {
    /// Adds another profile: its stacks and its metadata.
    ///
    /// # Errors
    /// [`MergeError`] if the counts cannot be added, or a table is full.
    pub fn merge(&mut self, other: &SavedProfile) -> Result<(), MergeError> {
        self.saved.about.merge(&other.about).map_err(MergeError::Metadata)?;
        Ok(self.add_stacks(other)?)
    }

    /// Adds the stacks of another profile.
    ///
    /// # Errors
    /// [`Full`] if they do not all fit.
    pub fn add_stacks(&mut self, other: &SavedProfile) -> Result<(), Full> {
        let tables = Remap::new(other).all(self)?;
        self.add_remapped(other, &tables, |node| other.trie.count(node)).map(drop)
    }

    /// Adds the stacks of another profile, with already mapped frames and roots and the counts from
    /// `count`. Returns the mapping of its nodes.
    pub(super) fn add_remapped(
        &mut self,
        other: &SavedProfile,
        tables: &Tables,
        count: impl Fn(NodeId) -> u64,
    ) -> Result<Vec<NodeId>, Full> {
        other.trie.try_map_nodes(NodeId(0), |there, frame, caller| {
            let here = |table: &[u32], index: u32| table.get(index as usize).copied().unwrap_or(u32::MAX);
            let node = match frame {
                StackFrame::Root(root) => self.root_node(here(&tables.roots, root))?,
                StackFrame::Frame(frame) => self.child_node(*caller, here(&tables.frames, frame))?,
            };
            self.count(node, count(there))?;
            Ok::<NodeId, Full>(node)
        })
    }

    /// Copies the times of samples from another profile; `nodes` maps its nodes.
    pub(super) fn add_timeline(
        &mut self,
        other: &SavedProfile,
        timeline: &Timeline,
        nodes: &[NodeId],
    ) -> Result<(), Full> {
        self.add_times(other, timeline.with_nodes(|node| nodes.get(node.0 as usize).copied()))
    }

    /// Copies times of samples with mapped nodes and the texts of another profile.
    pub(super) fn add_times(&mut self, other: &SavedProfile, timeline: Timeline) -> Result<(), Full> {
        self.saved.timeline = Some(timeline.with_texts(|text| self.saved.texts.intern(other.text(text)))?);
        Ok(())
    }
}

impl SavedProfile {
    /// The profile without addresses: merges stacks with the same functions and lines. For formats
    /// with names only, which would repeat them.
    ///
    /// # Errors
    /// [`Full`] if they do not all fit.
    pub fn without_addresses(&self) -> Result<SavedProfile, Full> {
        let mut builder = SavedBuilder::new(self.about.clone());
        let mut tables = Remap::new(self).all(&mut builder)?;
        for (index, frame) in self.frames.iter().enumerate() {
            let lines = builder.so_far().frames.get(tables.frames.get(index).copied().unwrap_or(0) as usize);
            let lines = lines.map(|frame| builder.so_far().lines_of(frame).to_vec()).unwrap_or_default();
            let bare = if frame.lines.is_empty() {
                let mut place = String::new();
                self.names_of(index as u32, false, &mut |name| name.clone_into(&mut place));
                builder.named_frame(&place)?
            } else {
                builder.frame(0, None, &lines)?
            };
            if let Some(slot) = tables.frames.get_mut(index) {
                *slot = bare;
            }
        }
        let nodes = builder.add_remapped(self, &tables, |node| self.trie.count(node))?;
        if let Some(timeline) = &self.timeline {
            builder.add_timeline(self, timeline, &nodes)?;
        }
        Ok(builder.finish())
    }

    /// The profile without labels: stacks that differ in them only are merged.
    ///
    /// # Errors
    /// [`Full`] if the counts do not fit.
    pub fn without_labels(&self) -> Result<SavedProfile, Full> {
        let mut bare = self.clone();
        for root in &mut bare.roots {
            *root = StackRoot { labels: LabelsId::NONE, ..*root };
        }
        bare.labels.clear();
        let mut builder = SavedBuilder::new(bare.about.clone());
        let tables = Remap::new(&bare).all(&mut builder)?;
        let nodes = builder.add_remapped(&bare, &tables, |node| bare.trie.count(node))?;
        if let Some(timeline) = &bare.timeline {
            builder.add_timeline(&bare, timeline, &nodes)?;
        }
        Ok(builder.finish())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::profile::about::About;
    use crate::profile::labels::{LABEL_SETS_MAX, Label, LabelValue};

    #[test]
    fn sets_are_equal_in_any_order_and_bounded() {
        let mut builder = SavedBuilder::new(About::default());
        let [a, b] = ["a", "b"].map(|text| builder.text(text).unwrap());
        let number = |value| Label { key: a, value: LabelValue::Number(value, b) };
        let text = Label { key: b, value: LabelValue::Text(a) };
        assert_eq!(builder.labels(&mut Vec::new()), Some(LabelsId::NONE));
        assert_eq!(builder.labels(&mut vec![text, number(1)]), Some(LabelsId(1)));
        assert_eq!(builder.labels(&mut vec![number(1), text, text]), Some(LabelsId(1)));
        for value in 2..=LABEL_SETS_MAX as i64 {
            assert!(builder.labels(&mut vec![number(value)]).is_some());
        }
        assert_eq!(builder.labels(&mut vec![number(0)]), None);
        assert_eq!(builder.labels(&mut vec![number(7)]), Some(LabelsId(7)));
    }
}
