//! Profiles made of others: several as one, one without addresses, the part of a time.
//!
//! Input: [`Saved`] profiles. Output: a [`Saved`], by way of a [`SavedBuilder`].

use std::ops::Range;

use super::builder::{MergeError, SavedBuilder};
use super::full::Full;
use super::remap::{Remap, Tables};
use super::saved::Saved;
use super::stack_frame::StackFrame;
use super::timeline::Timeline;
use crate::trie::NodeId;

impl SavedBuilder {
    /// Adds another profile: its stacks, and what it tells of its recording.
    ///
    /// # Errors
    /// [`MergeError`] if the counts must not be added, or a table is full.
    pub fn merge(&mut self, other: &Saved) -> Result<(), MergeError> {
        self.saved.about.merge(&other.about).map_err(MergeError::Different)?;
        Ok(self.add_stacks(other)?)
    }

    /// Adds the stacks of another profile.
    ///
    /// # Errors
    /// [`Full`] if they do not all fit.
    pub fn add_stacks(&mut self, other: &Saved) -> Result<(), Full> {
        let tables = Remap::new(other).all(self)?;
        self.add_remapped(other, &tables, |node| other.trie.count(node)).map(drop)
    }

    /// Adds the stacks of another profile, with frames and roots that are known already and the counts that
    /// `count` says. Gives the nodes that theirs are here.
    fn add_remapped(
        &mut self,
        other: &Saved,
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

    /// Takes the times of samples over from another profile, whose nodes are `nodes` here.
    fn add_timeline(&mut self, other: &Saved, timeline: &Timeline, nodes: &[NodeId]) -> Result<(), Full> {
        let here = |node: NodeId| nodes.get(node.0 as usize).copied();
        self.saved.timeline = Some(timeline.remap(here, |text| self.saved.texts.intern(other.text(text)))?);
        Ok(())
    }
}

impl Saved {
    /// The profile without addresses: stacks of one function at one line become one.
    /// For formats that keep names only, whose files would repeat them.
    ///
    /// # Errors
    /// [`Full`] if they do not all fit.
    pub fn without_addresses(&self) -> Result<Saved, Full> {
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

    /// The part of the profile that was sampled in a range of time, nanoseconds since the recording began; `None`
    /// for a profile that does not know when it was.
    ///
    /// # Errors
    /// [`Full`] if it does not fit.
    pub fn within(&self, range: &Range<u64>) -> Result<Option<Saved>, Full> {
        let Some(timeline) = &self.timeline else { return Ok(None) };
        let part = timeline.within(range);
        let counts = part.counts();
        let mut about = self.about.clone();
        about.cut_to(range, part.losses.iter().map(|loss| (self.text(loss.reason), loss.lost_ns)));
        let mut builder = SavedBuilder::new(about);
        let tables = Remap::new(self).all(&mut builder)?;
        let count = |node: NodeId| counts.get(&node).copied().unwrap_or(0);
        let nodes = builder.add_remapped(self, &tables, count)?;
        builder.add_timeline(self, &part, &nodes)?;
        let mut cut = builder.finish();
        let incomplete = cut.incomplete_count();
        if incomplete > 0 {
            cut.about.incomplete.insert("in this part of the time".to_owned(), incomplete);
        }
        Ok(Some(cut))
    }

    /// Counts of stacks that were not walked to their thread's root.
    fn incomplete_count(&self) -> u64 {
        let mut incomplete: u64 = 0;
        self.for_each_stack(|root, _, count| {
            incomplete = incomplete.saturating_add(if root.complete { 0 } else { count });
        });
        incomplete
    }
}
