//! The stacks of a profile as names: `ByName` for folded text, flame graphs and comparisons, `ByThread` for formats
//! that separate threads.
//!
//! Input: a [`SavedProfile`]. Output: a tree of names that merges stacks with equal names. Its order is that of the
//! bytes of the folded lines (`LC_ALL=C sort`), so that folded text is written line by line without building a
//! string per stack.

use std::collections::HashMap;
use std::convert::Infallible;

use crate::StackFrame;
use crate::saved::RootNames;
use crate::saved::{Full, SavedProfile, StackRoot};
use crate::table::Lists;
use crate::texts::{TextId, Texts};
use crate::trie::{Children, NodeId, Trie};

/// The complete stack of a fiber starts with this frame.
pub const FIBER: &str = "[fiber]";

/// A tree of names.
#[derive(Clone, Debug, Default)]
pub struct ByName {
    texts: Texts,
    trie: Trie<TextId>,
}

/// A node of the tree, as [`ByName::for_each_node`] visits it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameNode {
    /// Distance from the first frame of a stack, which has depth 0.
    pub depth: usize,
    /// The name.
    pub name: TextId,
    /// Self count: the stack that ends here.
    pub own: u64,
}

impl ByName {
    /// Names the stacks of a profile: process, `thread (id)` unless threads are merged,
    /// `[incomplete]`, then the frames. With `lines`, `function (file:line)`.
    ///
    /// # Errors
    /// [`Full`] if inlined functions make more nodes than fit.
    pub fn of(saved: &SavedProfile, lines: bool) -> Result<ByName, Full> {
        let mut by_name = ByName::default();
        let mut names = Lists::default();
        for frame in 0..saved.frames().len() {
            saved.add_names(frame as u32, lines, &mut by_name.texts, &mut names)?;
            names.end();
        }
        let mut roots = RootNames::default();
        saved.trie().try_map_nodes(NodeId(0), |there, frame, caller| {
            let mut node = *caller;
            match frame {
                StackFrame::Root(root) => {
                    if let Some(root) = saved.roots().get(root as usize) {
                        node = by_name.root(saved, root, &mut roots)?;
                    }
                }
                StackFrame::Frame(frame) => {
                    for name in names.get(frame as usize) {
                        node = by_name.trie.descend(node, *name)?;
                    }
                }
            }
            by_name.trie.add(node, saved.trie().count(there));
            Ok::<NodeId, Full>(node)
        })?;
        Ok(by_name)
    }

    fn root(
        &mut self,
        saved: &SavedProfile,
        root: &StackRoot,
        names: &mut RootNames,
    ) -> Result<NodeId, Full> {
        let trie = &mut self.trie;
        let mut node = NodeId(0);
        names.of(saved, root, &mut self.texts, |name| {
            node = trie.descend(node, name)?;
            Ok(())
        })?;
        Ok(node)
    }

    /// A name.
    #[must_use]
    pub fn text(&self, name: TextId) -> &str {
        self.texts.get(name)
    }

    /// All names; some may be unused.
    #[must_use]
    pub fn texts(&self) -> &Texts {
        &self.texts
    }

    /// Counts of all stacks.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.trie.total()
    }

    /// Number of distinct stacks with a count.
    #[must_use]
    pub fn distinct_stacks(&self) -> usize {
        self.trie.distinct_stacks()
    }

    /// Visits every node, callers before callees, siblings sorted by the bytes of their names.
    /// Includes nodes with a total of zero.
    pub fn for_each_node(&self, mut visit: impl FnMut(NameNode)) {
        let Ok(()) = walk_lines(self, &self.trie.children(), |depth, node, is_line| {
            if !is_line {
                visit(NameNode { depth, name: self.name_of(node), own: self.trie.count(NodeId(node)) });
            }
            Ok::<(), Infallible>(())
        });
    }

    /// Visits each stack with a count, in the order of the bytes of its folded line: its names,
    /// outermost first, and the count.
    pub fn for_each_stack(&self, mut visit: impl FnMut(&[TextId], u64)) {
        let mut path: Vec<TextId> = Vec::new();
        let Ok(()) = walk_lines(self, &self.trie.children(), |depth, node, is_line| {
            path.truncate(depth);
            path.push(self.name_of(node));
            if is_line {
                visit(&path, self.trie.count(NodeId(node)));
            }
            Ok::<(), Infallible>(())
        });
    }

    fn name_of(&self, node: u32) -> TextId {
        self.trie.key(NodeId(node)).unwrap_or(TextId::EMPTY)
    }
}

impl LineTree for ByName {
    fn name(&self, node: u32) -> &str {
        self.text(self.name_of(node))
    }

    fn has_line(&self, node: u32) -> bool {
        self.trie.count(NodeId(node)) > 0
    }

    fn counts(&self, node: u32) -> String {
        self.trie.count(NodeId(node)).to_string()
    }
}

// ---- Trees of names in the order of folded lines.

/// A tree of which each node where stacks end is a folded line: the names of the stack, a space, its counts.
pub(crate) trait LineTree {
    /// The name of a node.
    fn name(&self, node: u32) -> &str;

    /// Whether stacks end at a node.
    fn has_line(&self, node: u32) -> bool;

    /// The counts of these stacks.
    fn counts(&self, node: u32) -> String;
}

/// Visits each node before its descendants, and the line of each, in the order of the bytes of the lines. `visit`
/// gets the depth, the node, and whether it is the line.
pub(crate) fn walk_lines<E>(
    tree: &impl LineTree,
    children: &Children,
    mut visit: impl FnMut(usize, u32, bool) -> Result<(), E>,
) -> Result<(), E> {
    let mut open = vec![lines_and_nodes(tree, children.below(0))];
    while let Some(siblings) = open.last_mut() {
        let Some((node, is_line)) = siblings.pop() else {
            open.pop();
            continue;
        };
        visit(open.len() - 1, node, is_line)?;
        if !is_line {
            open.push(lines_and_nodes(tree, children.below(node)));
        }
    }
    Ok(())
}

/// Siblings with their subtrees, and their lines, last first.
fn lines_and_nodes(tree: &impl LineTree, siblings: &[u32]) -> Vec<(u32, bool)> {
    let mut all = Vec::with_capacity(siblings.len());
    for &node in siblings {
        all.push((node, false));
        if tree.has_line(node) {
            all.push((node, true));
        }
    }
    // All lines below a node begin with its name and `;`, and its own line continues with a space and its counts;
    // names contain no `;`. So these prefixes decide the order, and none is a prefix of another. They are needed
    // only if one name is a prefix of the other.
    let beginning = |(node, is_line): (u32, bool)| match is_line {
        true => format!("{} {}", tree.name(node), tree.counts(node)),
        false => format!("{};", tree.name(node)),
    };
    all.sort_by(|a, b| {
        let (a_name, b_name) = (tree.name(a.0), tree.name(b.0));
        let order = if a_name.starts_with(b_name) || b_name.starts_with(a_name) {
            beginning(*a).cmp(&beginning(*b))
        } else {
            a_name.cmp(b_name)
        };
        order.reverse()
    });
    all
}

// ---- The stacks of a saved profile by thread, for formats that separate threads.
//
// If threads were merged, a process is one thread.

/// A thread of a process, or a whole process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OneThread {
    /// Name of the process.
    pub process: TextId,
    /// Name and thread id; `None` if the threads of the process were merged.
    pub thread: Option<(TextId, u64)>,
    /// Its roots, nodes of the trie.
    roots: Vec<u32>,
}

/// The threads of a profile.
pub struct ByThread<'s> {
    saved: &'s SavedProfile,
    children: Children,
    threads: Vec<OneThread>,
}

impl<'s> ByThread<'s> {
    /// Groups the stacks by thread, in the order of first use.
    #[must_use]
    pub fn of(saved: &'s SavedProfile) -> ByThread<'s> {
        let children = saved.trie().children();
        let mut threads: Vec<OneThread> = Vec::new();
        let mut known: HashMap<(TextId, Option<(TextId, u64)>), usize> = HashMap::new();
        for &node in children.below(0) {
            let Some(root) = root_of(saved, node) else { continue };
            let index = *known.entry((root.process, root.thread)).or_insert_with(|| {
                threads.push(OneThread { process: root.process, thread: root.thread, roots: Vec::new() });
                threads.len() - 1
            });
            if let Some(thread) = threads.get_mut(index) {
                thread.roots.push(node);
            }
        }
        ByThread { saved, children, threads }
    }

    /// The threads.
    #[must_use]
    pub fn threads(&self) -> &[OneThread] {
        &self.threads
    }

    /// Visits the stacks of a thread with a count: the root, the frames (indexes into
    /// [`SavedProfile::frames`], outermost first) and the count.
    pub fn for_each_stack(&self, thread: &OneThread, visit: &mut dyn FnMut(&StackRoot, &[u32], u64)) {
        for &node in &thread.roots {
            let Some(root) = root_of(self.saved, node) else { continue };
            let mut frames: Vec<u32> = Vec::new();
            self.children.walk(node, &mut |node, depth| {
                if depth > 0 {
                    frames.truncate(depth - 1);
                    frames.push(frame_of(self.saved, node));
                }
                let count = self.saved.trie().count(NodeId(node));
                if count > 0 {
                    visit(root, &frames, count);
                }
            });
        }
    }
}

fn root_of(saved: &SavedProfile, node: u32) -> Option<&StackRoot> {
    match saved.trie().key(NodeId(node))? {
        StackFrame::Root(root) => saved.roots().get(root as usize),
        StackFrame::Frame(_) => None,
    }
}

/// The frame of a node below a root; an invalid index if there is none.
fn frame_of(saved: &SavedProfile, node: u32) -> u32 {
    match saved.trie().key(NodeId(node)) {
        Some(StackFrame::Frame(frame)) => frame,
        _ => u32::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{About, SavedBuilder};

    fn root(builder: &mut SavedBuilder, process: &str) -> u32 {
        let process = builder.text(process).expect("fits");
        let root = StackRoot::of(process);
        builder.root(root).expect("fits")
    }

    fn lines(by_name: &ByName) -> Vec<String> {
        let mut lines = Vec::new();
        by_name.for_each_stack(|path, count| {
            let names: Vec<&str> = path.iter().map(|name| by_name.text(*name)).collect();
            lines.push(format!("{} {count}", names.join(";")));
        });
        lines
    }

    #[test]
    fn lines_are_sorted_by_their_bytes() {
        let mut builder = SavedBuilder::new(About::default());
        let names = ["a", "a 1", "a 10", "a!", "a::b", "a-b", "a<T>", "é", "a 5"];
        for process in names {
            let root = root(&mut builder, process);
            builder.add(root, &[], 5).expect("fits");
            for inner in names {
                let frame = builder.named_frame(inner).expect("fits");
                builder.add(root, &[frame], 12).expect("fits");
                builder.add(root, &[frame, frame], 1).expect("fits");
            }
        }
        let by_name = ByName::of(&builder.finish(), false).expect("fits");
        let lines = lines(&by_name);
        let mut sorted = lines.clone();
        sorted.sort_unstable();
        assert_eq!(lines, sorted);
        assert_eq!(lines.len(), by_name.distinct_stacks());
        let mut own = 0;
        let mut nodes = 0;
        by_name.for_each_node(|node| {
            own += node.own;
            nodes += 1;
        });
        assert_eq!((own, nodes), (by_name.total(), names.len() * (1 + 2 * names.len())));
    }

    #[test]
    fn stacks_with_equal_names_are_merged() {
        let mut builder = SavedBuilder::new(About::default());
        let work = root(&mut builder, "work");
        let main = builder.named_frame("main").expect("fits");
        let name = builder.text("main").expect("fits");
        let function = crate::Function { name, ..Default::default() };
        let function = builder.function(function).expect("fits");
        let there = builder.frame(0x10, None, &[crate::Line { function, line: 7 }]).expect("fits");
        let nowhere = builder.frame(0x20, None, &[]).expect("fits");
        builder.add(work, &[main, nowhere], 2).expect("fits");
        builder.add(work, &[there, nowhere], 3).expect("fits");
        let by_name = ByName::of(&builder.finish(), false).expect("fits");
        assert_eq!(lines(&by_name), ["work;main;[unknown] 5"]);
    }

    #[test]
    fn thread_and_incomplete_precede_the_code() {
        let mut builder = SavedBuilder::new(About::default());
        let process = builder.text("work").expect("fits");
        let io = builder.text("io").expect("fits");
        let read = builder.named_frame("read").expect("fits");
        for (count, (thread, complete, waiting)) in (1..).zip([
            (Some((io, 17)), true, false),
            (Some((io, 17)), false, false),
            (Some((TextId::EMPTY, 18)), false, true),
            (None, false, false),
            (None, false, true),
        ]) {
            let root = builder
                .root(StackRoot { process, thread, complete, waiting, labels: crate::LabelsId::NONE })
                .expect("fits");
            builder.add(root, &[read], count).expect("fits");
        }
        let by_name = ByName::of(&builder.finish(), false).expect("fits");
        assert_eq!(
            lines(&by_name),
            [
                "work;(18);[incomplete];read 3",
                "work;[incomplete];read 9",
                "work;io (17);[incomplete];read 2",
                "work;io (17);read 1"
            ]
        );
    }

    #[test]
    fn names_cannot_break_the_format() {
        let mut builder = SavedBuilder::new(About::default());
        let root = root(&mut builder, "p\nq");
        for name in ["a;b", "c\nd\r\te\0f", "", "  ", "\u{2028}x", "[u8: 4]", "\u{202e}x"] {
            let frame = builder.named_frame(name).expect("fits");
            builder.add(root, &[frame], 1).expect("fits");
        }
        let by_name = ByName::of(&builder.finish(), false).expect("fits");
        let expected = [
            "[u8: 4] 1",
            "[unknown] 2",
            "\\u{2028}x 1",
            "\\u{202e}x 1",
            "a:b 1",
            "c\\u{a}d\\u{d}\\u{9}e\\u{0}f 1",
        ];
        assert_eq!(lines(&by_name), expected.map(|line| format!("p\\u{{a}}q;{line}")));
    }
}
