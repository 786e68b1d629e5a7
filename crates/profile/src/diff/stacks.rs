//! Stacks of several profiles in one tree of names, for comparison.
//!
//! `Stacks` is that tree, `Matching` says which names are one; `nodes` is the tree of two profiles in pre-order,
//! for a differential flame graph.
//!
//! Input: saved profiles. Output: for each of them the counts at the tree's nodes, and facts about the
//! recording. A node is a path of names after [`normalize`], so it is the same place in each profile whatever
//! the addresses. Above the code are the process, the thread by its name (its number differs from run to run)
//! and `[incomplete]`: nodes of the tree, but not functions.

#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;

use super::compare::{Comparison, Measure};
use super::normalize::{Builds, normalize};
use crate::module_offset::ModuleOffset;
use crate::trie::{Children, FrameWords, Key, NodeId, Trie};
use crate::{About, Full, INCOMPLETE, SavedProfile, StackFrame, StackRoot, TextId, Texts, shown};

/// Options for matching two profiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matching {
    /// Match names without compiler-generated numbers, see [`normalize`].
    pub normalize: bool,
    /// A node for each inlined function. Without it, their time counts for the function that they were
    /// inlined into.
    pub inlines: bool,
    /// Include stacks of waiting threads.
    pub waiting: bool,
}

impl Default for Matching {
    fn default() -> Matching {
        Matching { normalize: true, inlines: true, waiting: false }
    }
}

/// One of the compared profiles.
#[derive(Clone, Debug)]
pub struct Run {
    /// Its origin, for people: a path.
    pub source: String,
    /// The recording.
    pub about: About,
    /// Names of its processes, sorted.
    pub processes: Vec<String>,
    /// All compared counts.
    pub total: u64,
    /// Counts of stacks that were not walked to their thread's root.
    pub incomplete: u64,
    /// Excluded counts of waiting threads.
    pub waiting_left_out: u64,
    /// By node: counts of the stacks that end there. Nodes without counts are missing.
    own: Vec<(NodeId, u64)>,
    /// By node and name in the profile: counts of stacks that end in a function without a symbol.
    nameless: Vec<(NodeId, TextId, u64)>,
}

impl Run {
    /// Counts of the stacks that end at each node, without nodes that have none.
    pub fn own(&self) -> impl Iterator<Item = (NodeId, u64)> {
        self.own.iter().copied()
    }

    /// Counts of the stacks that end in functions without a name: the node, which is the whole module if the
    /// profiles are of several builds, the function's name in this profile, and the count.
    pub fn nameless(&self) -> impl Iterator<Item = (NodeId, TextId, u64)> {
        self.nameless.iter().copied()
    }
}

/// Stacks of several profiles.
#[derive(Clone, Debug)]
pub struct Stacks {
    matching: Matching,
    texts: Texts,
    /// All paths, without counts.
    trie: Trie<PathElement>,
    runs: Vec<Run>,
    builds: Builds,
}

/// A component of a path, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PathElement {
    Process(TextId),
    Function(TextId),
    Thread(TextId),
    /// `[incomplete]`.
    Incomplete(TextId),
}

impl PathElement {
    fn name(self) -> TextId {
        match self {
            PathElement::Process(name)
            | PathElement::Function(name)
            | PathElement::Thread(name)
            | PathElement::Incomplete(name) => name,
        }
    }
}

impl Key for PathElement {
    fn words(self) -> FrameWords {
        let kind = match self {
            PathElement::Process(_) => 0,
            PathElement::Function(_) => 1,
            PathElement::Thread(_) => 2,
            PathElement::Incomplete(_) => 3,
        };
        (kind, self.name().0.into())
    }

    fn from_words((kind, name): FrameWords) -> PathElement {
        let name = TextId(name as u32);
        match kind {
            0 => PathElement::Process(name),
            1 => PathElement::Function(name),
            2 => PathElement::Thread(name),
            _ => PathElement::Incomplete(name),
        }
    }
}

impl Stacks {
    /// Returns an empty tree.
    #[must_use]
    pub fn new(matching: Matching) -> Stacks {
        let builds = Builds::default();
        Stacks { matching, texts: Texts::new(), trie: Trie::new(), runs: Vec::new(), builds }
    }

    /// Adds a profile; `source` is its name for people. With `process`, its processes get that name, so that
    /// stacks of programs with different names can be matched.
    ///
    /// # Errors
    /// [`Full`] if there are too many names or nodes.
    pub fn add(&mut self, source: &str, saved: &SavedProfile, process: Option<&str>) -> Result<(), Full> {
        let parted = self.note_builds(saved);
        let names = self.names_of_frames(saved)?;
        // Maps each node of `saved` to its position in the common tree.
        let trie = saved.trie();
        let mut own: BTreeMap<NodeId, u64> = BTreeMap::new();
        let mut nameless: BTreeMap<(NodeId, TextId), u64> = BTreeMap::new();
        let mut run = Run {
            source: source.to_owned(),
            about: saved.about.clone(),
            processes: saved.processes().into_iter().map(str::to_owned).collect(),
            total: 0,
            incomplete: 0,
            waiting_left_out: 0,
            own: Vec::new(),
            nameless: Vec::new(),
        };
        trie.try_map_nodes(None, |there, frame, caller: &Option<Position>| {
            let mut function = None;
            let position = match (frame, caller) {
                (StackFrame::Root(root), _) => match saved.roots().get(root as usize) {
                    Some(root) => Some(self.root(saved, root, process)?),
                    None => None,
                },
                (StackFrame::Frame(frame), Some(caller)) => {
                    let frame = names.get(frame as usize);
                    function = frame.and_then(|frame| frame.nameless);
                    Some(self.below(*caller, frame.map_or(&[][..], |frame| &frame.names))?)
                }
                (StackFrame::Frame(_), None) => None,
            };
            let count = trie.count(there);
            let Some(counted) = position.filter(|_| count > 0) else { return Ok::<_, Full>(position) };
            if counted.waiting && !self.matching.waiting {
                run.waiting_left_out = run.waiting_left_out.saturating_add(count);
                return Ok(position);
            }
            run.total = run.total.saturating_add(count);
            run.incomplete = run.incomplete.saturating_add(if counted.complete { 0 } else { count });
            add(&mut own, counted.node, count);
            if let Some(function) = function {
                add(&mut nameless, (counted.node, function), count);
            }
            Ok(position)
        })?;
        run.own = own.into_iter().collect();
        run.nameless =
            nameless.into_iter().map(|((node, function), count)| (node, function, count)).collect();
        self.runs.push(run);
        if parted { self.join_parted() } else { Ok(()) }
    }

    /// Records the builds of a profile's functions without names. Returns whether functions that were matched
    /// so far no longer can be.
    fn note_builds(&mut self, saved: &SavedProfile) -> bool {
        let mut parted = false;
        for (index, frame) in saved.frames().iter().enumerate() {
            let mapping = frame.mapping.and_then(|mapping| saved.mappings().get(mapping as usize));
            let id = mapping.map_or("", |mapping| saved.text(mapping.build_id));
            saved.names_of(index as u32, false, &mut |name| {
                if let Some(ModuleOffset::Function { module, .. }) = ModuleOffset::parse(name) {
                    parted |= self.builds.note(module, id);
                }
            });
        }
        parted && self.matching.normalize
    }

    /// Merges the functions of modules with more than one build, now that this is known.
    fn join_parted(&mut self) -> Result<(), Full> {
        let mut joined = BTreeMap::new();
        for text in (0..self.texts.count() as u32).map(TextId) {
            let text_of = self.texts.get(text);
            if let Some(ModuleOffset::Function { module, .. }) = ModuleOffset::parse(text_of)
                && !self.builds.is_one(module)
            {
                let module = normalize(text_of).into_owned();
                joined.insert(text, self.texts.intern(&module)?);
            }
        }
        let mut trie = Trie::new();
        let moved = self.trie.try_map_nodes(NodeId(0), |_, part, caller| {
            trie.descend(
                *caller,
                match part {
                    PathElement::Function(name) => {
                        PathElement::Function(joined.get(&name).copied().unwrap_or(name))
                    }
                    other => other,
                },
            )
        })?;
        let moved = |node: NodeId| moved.get(node.0 as usize).copied().unwrap_or(NodeId(0));
        for run in &mut self.runs {
            let mut own = BTreeMap::new();
            for (node, count) in &run.own {
                add(&mut own, moved(*node), *count);
            }
            run.own = own.into_iter().collect();
            for (node, ..) in &mut run.nameless {
                *node = moved(*node);
            }
        }
        self.trie = trie;
        Ok(())
    }

    /// The texts of each frame of a profile.
    fn names_of_frames(&mut self, saved: &SavedProfile) -> Result<Vec<FrameNames>, Full> {
        let mut full = Ok(());
        let mut names = Vec::with_capacity(saved.frames().len());
        for frame in 0..saved.frames().len() {
            let mut here = FrameNames::default();
            saved.names_of(frame as u32, false, &mut |name| {
                // The outermost is the function that the others were inlined into.
                if !self.matching.inlines && !here.names.is_empty() {
                    return;
                }
                let name = shown(name);
                let nameless = match ModuleOffset::parse(&name) {
                    Some(ModuleOffset::Function { module, .. }) => Some(self.builds.is_one(module)),
                    _ => None,
                };
                let as_it_is = !self.matching.normalize || nameless == Some(true);
                let matched = if as_it_is { name.clone() } else { normalize(&name) };
                let mut intern = |text: &str| self.texts.intern(text).map_err(|why| full = Err(why)).ok();
                here.names.extend(intern(&matched));
                here.nameless = nameless.and_then(|_| intern(&name));
            });
            names.push(here);
        }
        full.map(|()| names)
    }

    /// The name by which a function of any profile is matched. It may change when a profile is added.
    #[must_use]
    pub fn matched_name(&self, name: &str) -> String {
        let name = shown(name);
        let is_nameless_of_one = match ModuleOffset::parse(&name) {
            Some(ModuleOffset::Function { module, .. }) => self.builds.is_one(module),
            _ => false,
        };
        if !self.matching.normalize || is_nameless_of_one {
            name.into_owned()
        } else {
            normalize(&name).into_owned()
        }
    }

    fn root(
        &mut self,
        saved: &SavedProfile,
        root: &StackRoot,
        process: Option<&str>,
    ) -> Result<Position, Full> {
        let name = process.unwrap_or_else(|| saved.text(root.process));
        let name = self.texts.intern(&shown(name))?;
        let node = self.trie.descend(NodeId(0), PathElement::Process(name))?;
        let mut position = Position { node, complete: true, waiting: root.waiting, head: true };
        if let Some((name, _)) = root.thread {
            let name = self.texts.intern(&shown(saved.text(name)))?;
            position.node = self.trie.descend(node, PathElement::Thread(name))?;
        }
        if !root.complete {
            let name = self.texts.intern(INCOMPLETE)?;
            position = Position {
                node: self.trie.descend(position.node, PathElement::Incomplete(name))?,
                complete: false,
                ..position
            };
        }
        Ok(position)
    }

    /// The node of a path of names. Folded text has threads and `[incomplete]` as frames before the code,
    /// which are recognised by their form.
    fn below(&mut self, mut position: Position, names: &[TextId]) -> Result<Position, Full> {
        for &name in names {
            let text = self.texts.get(name);
            let part = if position.head && text == INCOMPLETE {
                position.complete = false;
                PathElement::Incomplete(name)
            } else if position.head
                && let Some(thread) = thread_name(text)
            {
                let thread = thread.to_owned();
                PathElement::Thread(self.texts.intern(&shown(&thread))?)
            } else {
                position.head = false;
                PathElement::Function(name)
            };
            position.node = self.trie.descend(position.node, part)?;
        }
        Ok(position)
    }

    /// The profiles, in the order of addition.
    #[must_use]
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Number of nodes; ids are below it, callers before callees.
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.trie.node_count()
    }

    /// A node's caller; `None` for the root, which is above the processes.
    #[must_use]
    pub fn parent(&self, node: NodeId) -> Option<NodeId> {
        self.trie.parent(node)
    }

    /// The children of each node.
    #[must_use]
    pub fn children(&self) -> Children {
        self.trie.children()
    }

    /// A node's name; empty for the root.
    #[must_use]
    pub fn name(&self, node: NodeId) -> &str {
        self.texts.get(self.trie.key(node).map_or(TextId::EMPTY, PathElement::name))
    }

    /// The text of a name.
    #[must_use]
    pub fn text(&self, name: TextId) -> &str {
        self.texts.get(name)
    }

    /// Number of texts; ids are below it.
    #[must_use]
    pub fn text_count(&self) -> usize {
        self.texts.count()
    }

    /// The name of a function node; `None` for processes, threads, `[incomplete]`.
    #[must_use]
    pub fn function(&self, node: NodeId) -> Option<TextId> {
        match self.trie.key(node)? {
            PathElement::Function(name) => Some(name),
            _ => None,
        }
    }

    /// Names from the process to a node.
    #[must_use]
    pub fn path(&self, node: NodeId) -> Vec<&str> {
        let mut path = Vec::new();
        let mut at = node;
        while let Some(parent) = self.parent(at) {
            path.push(self.name(at));
            at = parent;
        }
        path.reverse();
        path
    }
}

fn add<K: Ord>(sums: &mut BTreeMap<K, u64>, key: K, count: u64) {
    let sum = sums.entry(key).or_default();
    *sum = sum.saturating_add(count);
}

/// Names of a frame of a profile.
#[derive(Clone, Debug, Default)]
struct FrameNames {
    /// The names to match it by, outermost first.
    names: Vec<TextId>,
    /// The profile's placeholder name of the innermost function, if that has no symbol.
    nameless: Option<TextId>,
}

/// The position of a profile's node in the common tree.
#[derive(Clone, Copy, Debug)]
struct Position {
    node: NodeId,
    complete: bool,
    waiting: bool,
    /// There is no code above.
    head: bool,
}

/// Extracts the name from `name (4242)`.
fn thread_name(frame: &str) -> Option<&str> {
    let (name, id) = frame.strip_suffix(')')?.rsplit_once('(')?;
    let is_thread = !id.is_empty() && id.bytes().all(|b| b.is_ascii_digit());
    (is_thread && (name.is_empty() || name.ends_with(' '))).then(|| name.trim_end())
}

// ---- The common tree of two profiles in pre-order, for a differential flame graph.
//
// Includes nodes of one side only.

/// A node of both profiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node<'a> {
    /// Depth below the process, which has depth 0.
    pub depth: u32,
    /// Name.
    pub name: &'a str,
    /// Inclusive counts of base. If counts are compared, not shares, both sides are scaled by
    /// [`Comparison::scales`].
    pub base: u64,
    /// Inclusive counts of new, scaled likewise.
    pub new: u64,
}

/// The tree of the two profiles.
#[must_use]
pub fn nodes<'a>(stacks: &'a Stacks, comparison: &Comparison) -> Vec<Node<'a>> {
    let mut inclusive = vec![(0u64, 0u64); stacks.node_count()];
    for (side, run) in stacks.runs().iter().take(2).enumerate() {
        for (node, own) in run.own() {
            let Some(at) = inclusive.get_mut(node.0 as usize) else { continue };
            let sum = if side == 0 { &mut at.0 } else { &mut at.1 };
            *sum = sum.saturating_add(own);
        }
    }
    stacks.trie.add_to_callers(&mut inclusive, |above, here| {
        *above = (above.0.saturating_add(here.0), above.1.saturating_add(here.1));
    });
    let scales = match comparison.measure {
        // The picture uses shares of the sides' own totals.
        Measure::Share => (1.0, 1.0),
        Measure::Seconds | Measure::Samples => comparison.scales(),
    };
    let scaled = |count: u64, scale: f64| (count as f64 * scale).round() as u64;
    let mut out = Vec::new();
    let mut pending: Vec<(u32, u32)> = Vec::new();
    let children = stacks.children();
    let push_children = |of: u32, depth: u32, pending: &mut Vec<(u32, u32)>| {
        let start = pending.len();
        pending.extend(children.below(of).iter().map(|child| (*child, depth)));
        if let Some(children) = pending.get_mut(start..) {
            children.sort_by(|a, b| stacks.name(NodeId(b.0)).cmp(stacks.name(NodeId(a.0))));
        }
    };
    push_children(0, 0, &mut pending);
    while let Some((id, depth)) = pending.pop() {
        let (base, new) = inclusive.get(id as usize).copied().unwrap_or_default();
        if base == 0 && new == 0 {
            continue;
        }
        let (base, new) = (scaled(base, scales.0), scaled(new, scales.1));
        out.push(Node { depth, name: stacks.name(NodeId(id)), base, new });
        push_children(id, depth.saturating_add(1), &mut pending);
    }
    out
}

#[cfg(test)]
mod tree_tests {
    use super::super::compare::MeasureChoice;
    use super::Matching;
    use super::tests::saved;
    use super::*;
    use crate::About;

    #[test]
    fn both_sides_are_in_one_tree() {
        let mut stacks = Stacks::new(Matching::default());
        let base = saved(About::default(), "work", &[("main;b;x", 4), ("main;gone", 6)]);
        let new = saved(About::default(), "work", &[("main;b", 10), ("main;a", 10)]);
        stacks.add("base", &base, None).expect("fits");
        stacks.add("new", &new, None).expect("fits");
        let rows = |choice| -> Vec<(u32, &str, u64, u64)> {
            let comparison = Comparison::of(&stacks, choice).expect("both have samples");
            nodes(&stacks, &comparison)
                .iter()
                .map(|node| (node.depth, node.name, node.base, node.new))
                .collect()
        };
        assert_eq!(
            rows(MeasureChoice::Absolute),
            [
                (0, "work", 10, 20),
                (1, "main", 10, 20),
                (2, "a", 0, 10),
                (2, "b", 4, 10),
                (3, "x", 4, 0),
                (2, "gone", 6, 0)
            ]
        );
        assert_eq!(rows(MeasureChoice::Share)[1], (1, "main", 10, 20), "the picture takes the shares");
    }
}
