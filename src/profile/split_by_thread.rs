//! Splits a profile with merged threads by thread, using the times of samples.
//!
//! Input: a [`SavedProfile`] with times. Output: the same counts, each stack under its thread. Counts without a time stay
//! under their process.

use std::collections::HashMap;

use super::builder::SavedBuilder;
use super::full::Full;
use super::remap::Remap;
use super::saved::{SavedProfile, StackRoot};
use crate::trie::NodeId;

impl SavedProfile {
    /// Whether the stacks are of merged threads, and samples with times name their threads.
    #[must_use]
    pub fn has_merged_threads(&self) -> bool {
        self.timeline.is_some() && self.roots.iter().all(|root| root.thread.is_none())
    }

    /// Splits the profile by thread; unchanged unless it [has merged
    /// threads](SavedProfile::has_merged_threads).
    ///
    /// # Errors
    /// [`Full`] if it does not fit.
    pub fn split_by_thread(&self) -> Result<SavedProfile, Full> {
        let Some(timeline) = self.timeline.as_ref().filter(|_| self.has_merged_threads()) else {
            return Ok(self.clone());
        };
        let mut builder = SavedBuilder::new(self.about.clone());
        let tables = Remap::new(self).all(&mut builder)?;
        let timed = timeline.counts();
        let rest =
            |node: NodeId| self.trie.count(node).saturating_sub(timed.get(&node).copied().unwrap_or(0));
        builder.add_remapped(self, &tables, rest)?;
        let mut split = timeline.clone();
        let mut remap = Remap::new(self);
        let mut stack = Vec::new();
        for thread in &mut split.threads {
            let name = builder.text(self.text(thread.name))?;
            let mut nodes: HashMap<NodeId, NodeId> = HashMap::new();
            for sample in &mut thread.samples {
                let Some(merged) = sample.node else { continue };
                let node = match nodes.get(&merged) {
                    Some(known) => *known,
                    None => {
                        stack.clear();
                        let Some(root) = self.path_of(merged, &mut stack) else { continue };
                        let process = builder.text(self.text(root.process))?;
                        let labels = remap.labels(&mut builder, root.labels)?;
                        let thread = Some((name, thread.id));
                        let root = StackRoot { process, thread, labels, ..root };
                        let root = builder.root(root)?;
                        let here =
                            |frame: u32| tables.frames.get(frame as usize).copied().unwrap_or(u32::MAX);
                        stack.iter_mut().for_each(|frame| *frame = here(*frame));
                        *nodes.entry(merged).or_insert(builder.add(root, &stack, 0)?)
                    }
                };
                builder.count(node, sample.count)?;
                sample.node = Some(node);
            }
        }
        builder.add_times(self, split)?;
        Ok(builder.finish())
    }
}
