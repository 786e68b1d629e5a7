//! The stacks of a profile as names: `ByName` for folded text, flame graphs and comparisons, `ByThread` for formats
//! that separate threads.
//!
//! Input: a [`SavedProfile`]. Output: a tree of names that merges stacks with equal names. Its order is that of the
//! bytes of the folded lines (`LC_ALL=C sort`), so that folded text is written line by line without building a
//! string per stack.

use std::cmp::Ordering;
use std::collections::HashMap;

use crate::StackFrame;
use crate::saved::{Full, SavedProfile, StackRoot};
use crate::saved::{RootNames, shown};
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
        let mut full = Ok(());
        // The names of each frame, as a range of `names`.
        let mut spans = Vec::with_capacity(saved.frames().len());
        let mut names: Vec<TextId> = Vec::with_capacity(saved.frames().len());
        for frame in 0..saved.frames().len() {
            let start = names.len();
            saved.names_of(frame as u32, lines, &mut |name| match by_name.texts.intern(&shown(name)) {
                Ok(name) => names.push(name),
                Err(why) => full = Err(why),
            });
            spans.push(start..names.len());
        }
        full?;
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
                    let span = spans.get(frame as usize).cloned();
                    for name in span.and_then(|span| names.get(span)).unwrap_or_default() {
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
        self.walk(&mut |event, depth| {
            if !event.line {
                let own = self.trie.count(NodeId(event.node));
                visit(NameNode { depth, name: self.name(event.node), own });
            }
        });
    }

    /// Visits each stack with a count, in the order of the bytes of its folded line: its names,
    /// outermost first, and the count.
    pub fn for_each_stack(&self, mut visit: impl FnMut(&[TextId], u64)) {
        let mut path: Vec<TextId> = Vec::new();
        self.walk(&mut |event, depth| {
            path.truncate(depth);
            path.push(self.name(event.node));
            if event.line {
                visit(&path, self.trie.count(NodeId(event.node)));
            }
        });
    }

    fn name(&self, node: u32) -> TextId {
        self.trie.key(NodeId(node)).unwrap_or(TextId::EMPTY)
    }

    /// Reports each counted line and each node before its descendants, in order.
    fn walk(&self, tell: &mut dyn FnMut(Event, usize)) {
        let children = self.trie.children();
        let mut open = vec![self.events(children.below(0))];
        while let Some(events) = open.last_mut() {
            let Some(event) = events.pop() else {
                open.pop();
                continue;
            };
            tell(event, open.len() - 1);
            if !event.line {
                open.push(self.events(children.below(event.node)));
            }
        }
    }

    /// The lines and subtrees of siblings, last first.
    fn events(&self, siblings: &[u32]) -> Vec<Event> {
        let mut events = Vec::with_capacity(siblings.len());
        for &node in siblings {
            events.push(Event { node, line: false });
            if self.trie.count(NodeId(node)) > 0 {
                events.push(Event { node, line: true });
            }
        }
        events.sort_unstable_by(|a, b| {
            let (a_name, b_name) = (self.text(self.name(a.node)), self.text(self.name(b.node)));
            let beginnings = || (self.beginning(*a), self.beginning(*b));
            by_folded_line(a_name, b_name, beginnings).reverse()
        });
        events
    }

    fn beginning(&self, event: Event) -> String {
        let name = self.text(self.name(event.node));
        if event.line {
            format!("{name} {}", self.trie.count(NodeId(event.node)))
        } else {
            format!("{name};")
        }
    }
}

/// An event of the walk: a node with its subtree, or the line of a stack.
#[derive(Clone, Copy)]
struct Event {
    node: u32,
    line: bool,
}

/// The order of two siblings by the bytes of their folded lines. All lines below a node begin with
/// its name and `;`, and its own line continues with a space and its counts; names contain no `;`.
/// So these prefixes decide the order, and none is a prefix of another. `beginnings` builds both,
/// which is needed only if one name is a prefix of the other.
pub(crate) fn by_folded_line(
    a_name: &str,
    b_name: &str,
    beginnings: impl FnOnce() -> (String, String),
) -> Ordering {
    if a_name.starts_with(b_name) || b_name.starts_with(a_name) {
        let (a, b) = beginnings();
        a.cmp(&b)
    } else {
        a_name.cmp(b_name)
    }
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
