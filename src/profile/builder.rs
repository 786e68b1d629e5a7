//! Puts a saved profile together: tables without duplicates, stacks in the trie.
//!
//! Input: texts, mappings, functions, frames, roots and stacks, in any order in which
//! each refers to what came before. Output: [`Saved`]. Everything has a named limit, and
//! [`Full`] says which was reached; what was added before stays. Numbers that were never
//! given out are the caller's fault and are refused by the table they are for.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};
use std::ops::Range;

use hashbrown::{DefaultHashBuilder, HashTable};

use super::StackFrame;
use super::about::{About, Different};
use super::remap::{Remap, Tables};
use super::saved::{Frame, Full, Function, Line, Mapping, Saved, StackRoot};
use super::texts::TextId;
use super::timeline::Timeline;
use crate::trie::{MAX_FRAMES, NodeId};

/// Most mappings.
pub const MAX_MAPPINGS: usize = 1 << 20;
/// Most functions.
pub const MAX_FUNCTIONS: usize = MAX_FRAMES;
/// Most functions of all frames together.
pub const MAX_LINES: usize = 1 << 24;
/// Most roots: threads of all processes.
pub const MAX_ROOTS: usize = 1 << 20;

/// Makes a [`Saved`].
#[derive(Default)]
pub struct SavedBuilder {
    saved: Saved,
    hasher: DefaultHashBuilder,
    frames: HashTable<u32>,
    functions: HashMap<Function, u32>,
    mappings: HashMap<Mapping, u32>,
    roots: HashMap<StackRoot, u32>,
    /// By text: the frame that is only this name, plus one.
    named: Vec<u32>,
    /// The stack at hand, leaf first; keeps its allocation.
    leaf_first: Vec<u64>,
}

/// Why a profile was not merged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// A table is full.
    Full(Full),
    /// Counts of the two must not be added.
    Different(Different),
}

impl From<Full> for Refused {
    fn from(full: Full) -> Refused {
        Refused::Full(full)
    }
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refused::Full(full) => full.fmt(f),
            Refused::Different(why) => why.fmt(f),
        }
    }
}

impl std::error::Error for Refused {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Refused::Full(full) => Some(full),
            Refused::Different(why) => Some(why),
        }
    }
}

impl SavedBuilder {
    /// An empty profile of a recording.
    #[must_use]
    pub fn new(about: About) -> SavedBuilder {
        SavedBuilder { saved: Saved { about, ..Saved::default() }, ..SavedBuilder::default() }
    }

    /// What the profile tells of the recording; may be changed until the end.
    pub fn about(&mut self) -> &mut About {
        &mut self.saved.about
    }

    /// The profile so far.
    #[must_use]
    pub fn so_far(&self) -> &Saved {
        &self.saved
    }

    /// The finished profile.
    #[must_use]
    pub fn finish(mut self) -> Saved {
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

    /// The index of a mapping.
    ///
    /// # Errors
    /// [`Full`] beyond [`MAX_MAPPINGS`].
    pub fn mapping(&mut self, mapping: Mapping) -> Result<u32, Full> {
        let limit = Full { what: "mappings", limit: MAX_MAPPINGS };
        numbered(&mut self.mappings, &mut self.saved.mappings, mapping, limit)
    }

    /// The index of a function.
    ///
    /// # Errors
    /// [`Full`] beyond [`MAX_FUNCTIONS`].
    pub fn function(&mut self, function: Function) -> Result<u32, Full> {
        let limit = Full { what: "functions", limit: MAX_FUNCTIONS };
        numbered(&mut self.functions, &mut self.saved.functions, function, limit)
    }

    /// The index of a root.
    ///
    /// # Errors
    /// [`Full`] beyond [`MAX_ROOTS`].
    pub fn root(&mut self, root: StackRoot) -> Result<u32, Full> {
        let limit = Full { what: "threads", limit: MAX_ROOTS };
        numbered(&mut self.roots, &mut self.saved.roots, root, limit)
    }

    /// The index of a frame: where it is, and its functions, outermost first.
    ///
    /// # Errors
    /// [`Full`] beyond [`MAX_FRAMES`] or [`MAX_LINES`].
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
        if saved.frames.len() >= MAX_FRAMES {
            return Err(Full { what: "distinct frames", limit: MAX_FRAMES });
        }
        if lines.len() > MAX_LINES - saved.lines.len() {
            return Err(Full { what: "functions of frames", limit: MAX_LINES });
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

    /// The index of a frame of which only the name is known. One look-up for a known name.
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

    /// Counts a stack: its root and its frames, outermost first.
    ///
    /// # Errors
    /// [`Full`] if it is new and does not fit.
    pub fn add(&mut self, root: u32, frames: &[u32], count: u64) -> Result<NodeId, Full> {
        self.check_total(count)?;
        self.leaf_first.clear();
        self.leaf_first.extend(frames.iter().rev().map(|frame| u64::from(*frame)));
        Ok(self.saved.trie.insert(root, &self.leaf_first, count)?)
    }

    /// The node of a root, for readers that build stacks from their common beginnings.
    ///
    /// # Errors
    /// [`Full`] if it is new and does not fit.
    pub fn root_node(&mut self, root: u32) -> Result<NodeId, Full> {
        Ok(self.saved.trie.descend(NodeId(0), StackFrame::Root(root))?)
    }

    /// The node of a frame below another one.
    ///
    /// # Errors
    /// [`Full`] if it is new and does not fit.
    pub fn child_node(&mut self, parent: NodeId, frame: u32) -> Result<NodeId, Full> {
        Ok(self.saved.trie.descend(parent, StackFrame::Frame(frame))?)
    }

    /// Counts on a node that [`root_node`](Self::root_node) or [`child_node`](Self::child_node) gave.
    ///
    /// # Errors
    /// [`Full`] if the counts of all stacks no longer fit in 64 bits.
    pub fn count(&mut self, node: NodeId, count: u64) -> Result<(), Full> {
        self.check_total(count)?;
        self.saved.trie.add(node, count);
        Ok(())
    }

    /// Whether more counts fit: the trie would hold on at the largest number and say nothing.
    fn check_total(&self, more: u64) -> Result<(), Full> {
        let sum = self.saved.trie.total().checked_add(more);
        sum.map(drop).ok_or(Full { what: "counts of all stacks together", limit: usize::MAX })
    }

    /// Adds another profile: its stacks, and what it tells of its recording.
    ///
    /// # Errors
    /// [`Refused`] if the counts must not be added, or a table is full.
    pub fn merge(&mut self, other: &Saved) -> Result<(), Refused> {
        self.saved.about.merge(&other.about).map_err(Refused::Different)?;
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

    /// The times of samples, for readers of files that have them.
    pub fn times(&mut self) -> &mut Timeline {
        self.saved.timeline.get_or_insert_default()
    }

    /// When samples were taken. Its samples get the counts that the profile has of their stacks.
    pub fn set_timeline(&mut self, mut timeline: Timeline) {
        timeline.count_samples(|node| self.saved.trie.count(node));
        self.saved.timeline = Some(timeline);
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

    /// The counts that have no time: of threads that found no room in the timeline. All tables are those of the profile,
    /// in their order; `None` if there are no such counts, or no timeline.
    ///
    /// # Errors
    /// [`Full`] if it does not fit.
    pub fn without_times(&self) -> Result<Option<Saved>, Full> {
        let Some(timeline) = &self.timeline else { return Ok(None) };
        let timed = timeline.counts();
        if timed.values().sum::<u64>() >= self.total() {
            return Ok(None);
        }
        let mut builder = SavedBuilder::new(self.about.clone());
        let tables = Remap::new(self).all(&mut builder)?;
        let count =
            |node: NodeId| self.trie.count(node).saturating_sub(timed.get(&node).copied().unwrap_or(0));
        builder.add_remapped(self, &tables, count)?;
        Ok(Some(builder.finish()))
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

/// The index of an item in its table, which has it from now on.
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
