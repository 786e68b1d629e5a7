//! A profile as a tree of names, from the root or from the leaves, without nodes below a threshold.
//!
//! Input: a [`SavedProfile`]. Output: nodes in pre-order with their total counts. A picture of a profile
//! with millions of nodes shows some thousands, so only those are created: frames of the trie with
//! the same names are grouped level by level, and groups below the threshold are not expanded.
//! Omitted counts stay in the totals of their callers.

use crate::StackFrame;
use crate::saved::RootNames;
use crate::saved::{Full, SavedProfile};
use crate::table::Lists;
use crate::texts::{TextId, Texts};
use crate::trie::NodeId;

/// The direction of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the process to the leaf functions: callers before callees.
    FromRoot,
    /// From the leaf functions to their callers.
    FromLeaf,
}

/// A node of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallNode {
    /// Distance from the root of the tree, which has 0.
    pub depth: u32,
    /// The name, a text of the tree.
    pub name: TextId,
    /// Counts of all stacks through it.
    pub total: u64,
}

/// A tree of names in pre-order, siblings sorted by the bytes of their names.
#[derive(Clone, Debug, Default)]
pub struct CallTree {
    texts: Texts,
    nodes: Vec<CallNode>,
}

impl CallTree {
    /// Builds a tree of the nodes with at least `least_share` (0 to 1) of all counts. With `lines`,
    /// `function (file:line)`.
    ///
    /// # Errors
    /// [`Full`] if there are more names than fit.
    pub fn of(
        saved: &SavedProfile,
        lines: bool,
        direction: Direction,
        least_share: f64,
    ) -> Result<CallTree, Full> {
        let names = NameTable::of(saved, lines)?;
        let least = ((least_share * saved.total() as f64).ceil() as u64).max(1);
        let nodes = match direction {
            Direction::FromRoot => {
                let below = CallTotals::of(&names, least);
                let mut begin = Vec::new();
                below.add_called_by(0, &mut begin);
                names.grow(begin, least, |frame, next| below.step(&names, frame, next))
            }
            Direction::FromLeaf => {
                let begin = names.leaves();
                names.grow(begin, least, |frame, next| next.extend(names.caller(frame)))
            }
        };
        Ok(CallTree { texts: names.texts, nodes })
    }

    /// The nodes.
    #[must_use]
    pub fn nodes(&self) -> &[CallNode] {
        &self.nodes
    }

    /// A name.
    #[must_use]
    pub fn text(&self, name: TextId) -> &str {
        self.texts.get(name)
    }
}

/// A function at a node of the trie, of which there are several with inlining, and its counts.
#[derive(Clone, Copy)]
struct InlineFrame {
    node: u32,
    /// Index among the names of its frame.
    name: u32,
    count: u64,
}

/// Frames with the same name.
struct Group {
    depth: u32,
    name: TextId,
    total: u64,
    frames: Vec<InlineFrame>,
}

/// Names of the frames of a profile.
struct NameTable<'a> {
    saved: &'a SavedProfile,
    texts: Texts,
    /// By frame of the trie, outermost first.
    names: Lists<TextId>,
    /// Each frame has one name, and all names differ: then no two children of a node have the same
    /// name.
    distinct: bool,
}

impl<'a> NameTable<'a> {
    fn of(saved: &'a SavedProfile, lines: bool) -> Result<NameTable<'a>, Full> {
        let mut found = NameTable { saved, texts: Texts::new(), names: Lists::default(), distinct: true };
        let mut roots = RootNames::default();
        for frame in saved.trie().frames() {
            match frame {
                StackFrame::Root(root) => found.add_root(root, &mut roots)?,
                StackFrame::Frame(index) => {
                    saved.add_names(index, lines, &mut found.texts, &mut found.names)?;
                }
            }
            found.names.end();
        }
        found.distinct = found.are_distinct();
        Ok(found)
    }

    fn add_root(&mut self, root: u32, roots: &mut RootNames) -> Result<(), Full> {
        let Some(root) = self.saved.roots().get(root as usize) else {
            self.names.push(self.texts.intern(crate::UNKNOWN)?);
            return Ok(());
        };
        let names = &mut self.names;
        roots.of(self.saved, root, &mut self.texts, |name| {
            names.push(name);
            Ok(())
        })
    }

    fn are_distinct(&self) -> bool {
        let mut taken = vec![false; self.texts.count()];
        let mut take = |name: &TextId| {
            taken.get_mut(name.0 as usize).is_some_and(|taken| !std::mem::replace(taken, true))
        };
        let frames = || self.saved.trie().frames().enumerate();
        for (frame, _) in frames().filter(|(_, frame)| matches!(frame, StackFrame::Root(_))) {
            // Roots share the names of processes and threads.
            self.names.get(frame).iter().for_each(|name| {
                take(name);
            });
        }
        let mut code = frames().filter(|(_, frame)| matches!(frame, StackFrame::Frame(_)));
        code.all(|(frame, _)| matches!(self.names.get(frame), [name] if take(name)))
    }

    fn of_node(&self, node: u32) -> &[TextId] {
        let frame = self.saved.trie().frame_of(NodeId(node));
        frame.map_or(&[], |frame| self.names.get(frame.0 as usize))
    }

    fn name(&self, frame: &InlineFrame) -> TextId {
        self.of_node(frame.node).get(frame.name as usize).copied().unwrap_or_default()
    }

    /// The leaves of all stacks.
    fn leaves(&self) -> Vec<InlineFrame> {
        let trie = self.saved.trie();
        let counts = (1..trie.node_count() as u32).map(|node| (node, trie.count(NodeId(node))));
        counts.filter(|(_, count)| *count > 0).filter_map(|(node, count)| self.last(node, count)).collect()
    }

    fn last(&self, node: u32, count: u64) -> Option<InlineFrame> {
        let name = self.of_node(node).len().checked_sub(1)? as u32;
        Some(InlineFrame { node, name, count })
    }

    /// The caller of a frame, with the counts of the frame.
    fn caller(&self, frame: &InlineFrame) -> Option<InlineFrame> {
        match frame.name.checked_sub(1) {
            Some(name) => Some(InlineFrame { name, ..*frame }),
            None => self.last(self.saved.trie().parent(NodeId(frame.node))?.0, frame.count),
        }
    }

    /// Builds the tree from the starting frames; `step` adds the next frames after one.
    fn grow(
        &self,
        begin: Vec<InlineFrame>,
        least: u64,
        step: impl Fn(&InlineFrame, &mut Vec<InlineFrame>),
    ) -> Vec<CallNode> {
        let mut nodes = Vec::new();
        let mut open = Vec::new();
        self.gather(begin, 0, least, &mut open);
        while let Some(Group { depth, name, total, frames }) = open.pop() {
            nodes.push(CallNode { depth, name, total });
            let mut next = Vec::new();
            frames.iter().for_each(|frame| step(frame, &mut next));
            drop(frames);
            self.gather(next, depth + 1, least, &mut open);
        }
        nodes
    }

    /// Groups frames by name and adds those above the threshold, the first one last.
    fn gather(&self, mut frames: Vec<InlineFrame>, depth: u32, least: u64, open: &mut Vec<Group>) {
        let first = open.len();
        frames.sort_by_key(|frame| self.name(frame));
        for frames in frames.chunk_by(|a, b| self.name(a) == self.name(b)) {
            let total = frames.iter().fold(0u64, |total, frame| total.saturating_add(frame.count));
            if let Some(frame) = frames.first().filter(|_| total >= least) {
                open.push(Group { depth, name: self.name(frame), total, frames: frames.to_vec() });
            }
        }
        if let Some(added) = open.get_mut(first..) {
            added.sort_unstable_by(|a, b| self.texts.get(b.name).cmp(self.texts.get(a.name)));
        }
    }
}

/// The callees of the trie's nodes, with their total counts.
struct CallTotals {
    /// By node.
    totals: Vec<u64>,
    /// (caller, callee), sorted.
    calls: Vec<(u32, u32)>,
}

impl CallTotals {
    fn of(names: &NameTable<'_>, least: u64) -> CallTotals {
        let trie = names.saved.trie();
        let count = trie.node_count() as u32;
        let mut totals: Vec<u64> = (0..count).map(|node| trie.count(NodeId(node))).collect();
        trie.add_to_callers(&mut totals, |sum, count| *sum = sum.saturating_add(count));
        let mut calls = Vec::new();
        for (node, total) in (0..count).zip(&totals) {
            let (Some(NodeId(parent)), total) = (trie.parent(NodeId(node)), *total) else { continue };
            // A node below the threshold matters only if nodes with the same name can form a group
            // above it.
            if total >= least || (total > 0 && (parent == 0 || !names.distinct)) {
                calls.push((parent, node));
            }
        }
        calls.sort_unstable();
        CallTotals { totals, calls }
    }

    fn add_called_by(&self, caller: u32, next: &mut Vec<InlineFrame>) {
        let first = self.calls.partition_point(|(other, _)| *other < caller);
        let calls = self.calls.iter().skip(first).take_while(|(other, _)| *other == caller);
        next.extend(calls.map(|&(_, node)| {
            let count = self.totals.get(node as usize).copied().unwrap_or(0);
            InlineFrame { node, name: 0, count }
        }));
    }

    fn step(&self, names: &NameTable<'_>, frame: &InlineFrame, next: &mut Vec<InlineFrame>) {
        if frame.name as usize + 1 < names.of_node(frame.node).len() {
            next.push(InlineFrame { name: frame.name + 1, ..*frame });
        } else {
            self.add_called_by(frame.node, next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::folded;
    use crate::{About, Function, Line, SavedBuilder, StackRoot};

    fn saved(text: &str) -> SavedProfile {
        folded::read(text.as_bytes(), "a").expect("reads")
    }

    /// `depth name total` of each node.
    fn tree(saved: &SavedProfile, direction: Direction, least_share: f64) -> Vec<String> {
        let tree = CallTree::of(saved, false, direction, least_share).expect("fits");
        let nodes = tree.nodes().iter();
        nodes.map(|node| format!("{} {} {}", node.depth, tree.text(node.name), node.total)).collect()
    }

    const TEXT: &str = "p;main;a;c 3\np;main;a 1\np;main;a::b 2\np;[incomplete];c 4\n";

    #[test]
    fn from_the_root_callers_come_before_callees() {
        assert_eq!(
            tree(&saved(TEXT), Direction::FromRoot, 0.0),
            ["0 p 10", "1 [incomplete] 4", "2 c 4", "1 main 6", "2 a 4", "3 c 3", "2 a::b 2"]
        );
    }

    #[test]
    fn from_the_leaves_callers_come_after() {
        assert_eq!(
            tree(&saved(TEXT), Direction::FromLeaf, 0.0),
            [
                "0 a 1",
                "1 main 1",
                "2 p 1",
                "0 a::b 2",
                "1 main 2",
                "2 p 2",
                "0 c 7",
                "1 [incomplete] 4",
                "2 p 4",
                "1 a 3",
                "2 main 3",
                "3 p 3"
            ]
        );
    }

    #[test]
    fn light_nodes_are_omitted_and_stay_counted() {
        assert_eq!(tree(&saved(TEXT), Direction::FromRoot, 0.45), ["0 p 10", "1 main 6"]);
        // A light root counts for its process.
        assert_eq!(
            tree(&saved("p;[incomplete];c 1\np;main 9\n"), Direction::FromRoot, 0.5),
            ["0 p 10", "1 main 9"]
        );
        assert_eq!(tree(&saved(TEXT), Direction::FromLeaf, 0.45), ["0 c 7"]);
        assert!(tree(&saved(""), Direction::FromRoot, 0.0).is_empty());
    }

    #[test]
    fn light_addresses_of_one_function_form_one_node() {
        let mut builder = SavedBuilder::new(About::default());
        let process = builder.text("p").expect("fits");
        let root = StackRoot::of(process);
        let root = builder.root(root).expect("fits");
        let mut function = |name: &str| {
            let name = builder.text(name).expect("fits");
            builder.function(Function { name, ..Function::default() }).expect("fits")
        };
        let (outer, inner, leaf) = (function("outer"), function("inner"), function("leaf"));
        for address in 0..100 {
            // `inner` is inlined into `outer` at half of the addresses.
            let lines = [Line { function: outer, line: 1 }, Line { function: inner, line: 2 }];
            let lines = if address % 2 == 0 { &lines[..] } else { &lines[..1] };
            let caller = builder.frame(address, None, lines).expect("fits");
            let leaf =
                builder.frame(1000 + address, None, &[Line { function: leaf, line: 3 }]).expect("fits");
            builder.add(root, &[caller, leaf], 1).expect("fits");
        }
        let saved = builder.finish();
        assert_eq!(
            tree(&saved, Direction::FromRoot, 0.1),
            ["0 p 100", "1 outer 100", "2 inner 50", "3 leaf 50", "2 leaf 50"]
        );
        assert_eq!(
            tree(&saved, Direction::FromLeaf, 0.1),
            ["0 leaf 100", "1 inner 50", "2 outer 50", "3 p 50", "1 outer 50", "2 p 50"]
        );
    }
}
