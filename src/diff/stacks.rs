//! Stacks of several profiles in one tree of names, so that they can be compared.
//!
//! Input: saved profiles. Output: for each of them the counts at the tree's nodes, and what is
//! known of the recording. A node is a path of names, as [`normalize`] leaves them, so it is
//! the same place in each profile whatever the addresses were. Above the code stand the
//! process, the thread by its name (its number differs from run to run) and `[incomplete]`;
//! they are places of the tree, but no functions.

use std::collections::BTreeMap;

use super::normalize::normalize;
use crate::profile::{About, Full, INCOMPLETE, Saved, StackRoot, TextId, Texts, shown};
use crate::trie::{Frame, NodeId, Trie};

/// What two profiles are matched by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matching {
    /// Names without what compilers number anew, see [`normalize`].
    pub normalize: bool,
    /// A place for each inlined function. Without, their time is that of the function whose
    /// code they became part of.
    pub inlines: bool,
    /// Also the stacks of waiting threads.
    pub waiting: bool,
}

impl Default for Matching {
    fn default() -> Matching {
        Matching { normalize: true, inlines: true, waiting: false }
    }
}

/// One profile among those that are compared.
#[derive(Clone, Debug)]
pub struct Run {
    /// Where it came from, for people: a path.
    pub source: String,
    /// The recording.
    pub about: About,
    /// Names of its processes, sorted.
    pub processes: Vec<String>,
    /// All counts that are compared.
    pub total: u64,
    /// Of these, counts of stacks that were not walked to their thread's root.
    pub incomplete: u64,
    /// Counts of waiting threads that were left out.
    pub waiting_left_out: u64,
    /// By node: counts of the stacks that end there. Nodes without counts are missing.
    own: Vec<(NodeId, u64)>,
}

impl Run {
    /// Counts of the stacks that end at each node; nodes without are missing.
    pub fn own(&self) -> impl Iterator<Item = (NodeId, u64)> {
        self.own.iter().copied()
    }
}

/// Stacks of several profiles.
#[derive(Clone, Debug)]
pub struct Stacks {
    matching: Matching,
    texts: Texts,
    /// All paths, without counts. `Frame::Root` is a text, the process; the space of
    /// `Frame::Code` is one of [`CODE`], [`THREAD`], [`PART`], its address a text.
    trie: Trie,
    runs: Vec<Run>,
}

/// A function.
const CODE: u32 = 0;
/// A thread.
const THREAD: u32 = 1;
/// `[incomplete]`.
const PART: u32 = 2;

impl Stacks {
    /// Without profiles.
    #[must_use]
    pub fn new(matching: Matching) -> Stacks {
        Stacks { matching, texts: Texts::new(), trie: Trie::new(), runs: Vec::new() }
    }

    /// Adds a profile; `source` is its name for people. With `process`, its processes are
    /// called that, so that stacks of programs with different names can be matched.
    ///
    /// # Errors
    /// [`Full`] if there are more names or places than fit.
    pub fn add(&mut self, source: &str, saved: &Saved, process: Option<&str>) -> Result<(), Full> {
        let names = self.names_of_frames(saved)?;
        // Nodes there are numbered parents first; each has its place here, if it counts.
        let trie = saved.trie();
        let mut places: Vec<Option<Place>> = Vec::with_capacity(trie.node_count());
        places.push(None);
        let mut own: BTreeMap<NodeId, u64> = BTreeMap::new();
        let mut run = Run {
            source: source.to_owned(),
            about: saved.about.clone(),
            processes: saved.processes().into_iter().map(str::to_owned).collect(),
            total: 0,
            incomplete: 0,
            waiting_left_out: 0,
            own: Vec::new(),
        };
        for id in 1..trie.node_count() {
            let there = NodeId(id as u32);
            let parent =
                trie.parent(there).and_then(|parent| places.get(parent.0 as usize)).copied().flatten();
            let place = match (trie.frame_of(there).map(|frame| trie.frame(frame)), parent) {
                (Some(Frame::Root(root)), _) => match saved.roots().get(root as usize) {
                    Some(root) => Some(self.root(saved, root, process)?),
                    None => None,
                },
                (Some(Frame::Code { address, .. }), Some(parent)) => {
                    let names = usize::try_from(address).ok().and_then(|frame| names.get(frame));
                    Some(self.below(parent, names.map_or(&[][..], Vec::as_slice))?)
                }
                _ => None,
            };
            places.push(place);
            let count = trie.count(there);
            let Some(place) = place.filter(|_| count > 0) else { continue };
            if place.waiting && !self.matching.waiting {
                run.waiting_left_out = run.waiting_left_out.saturating_add(count);
                continue;
            }
            run.total = run.total.saturating_add(count);
            run.incomplete = run.incomplete.saturating_add(if place.complete { 0 } else { count });
            let sum = own.entry(place.node).or_default();
            *sum = sum.saturating_add(count);
        }
        run.own = own.into_iter().collect();
        self.runs.push(run);
        Ok(())
    }

    /// The texts of each frame of a profile, outermost first.
    fn names_of_frames(&mut self, saved: &Saved) -> Result<Vec<Vec<TextId>>, Full> {
        let mut full = Ok(());
        let mut names = Vec::with_capacity(saved.frames().len());
        for frame in 0..saved.frames().len() {
            let mut here = Vec::new();
            saved.names_of(frame as u32, false, &mut |name| {
                // The outermost is the function whose code the others became part of.
                if !self.matching.inlines && !here.is_empty() {
                    return;
                }
                let name = shown(name);
                let matched = if self.matching.normalize { normalize(&name) } else { name.clone() };
                match self.texts.intern(&matched) {
                    Ok(name) => here.push(name),
                    Err(why) => full = Err(why),
                }
            });
            names.push(here);
        }
        full.map(|()| names)
    }

    fn root(&mut self, saved: &Saved, root: &StackRoot, process: Option<&str>) -> Result<Place, Full> {
        let name = process.unwrap_or_else(|| saved.text(root.process));
        let name = self.texts.intern(&shown(name))?;
        let node = self.trie.descend(NodeId(0), Frame::Root(name.0))?;
        let mut place = Place { node, complete: true, waiting: root.waiting, head: true };
        if let Some((name, _)) = root.thread {
            let name = self.texts.intern(&shown(saved.text(name)))?;
            place.node = self.child(node, THREAD, name)?;
        }
        if !root.complete {
            let name = self.texts.intern(INCOMPLETE)?;
            place = Place { node: self.child(place.node, PART, name)?, complete: false, ..place };
        }
        Ok(place)
    }

    /// The place that names lead to. Folded text has threads and `[incomplete]` as frames in
    /// front of the code; they are told by their form.
    fn below(&mut self, mut place: Place, names: &[TextId]) -> Result<Place, Full> {
        for &name in names {
            let text = self.texts.get(name);
            let (space, name) = if place.head && text == INCOMPLETE {
                place.complete = false;
                (PART, name)
            } else if place.head
                && let Some(thread) = thread_name(text)
            {
                let thread = thread.to_owned();
                (THREAD, self.texts.intern(&shown(&thread))?)
            } else {
                place.head = false;
                (CODE, name)
            };
            place.node = self.child(place.node, space, name)?;
        }
        Ok(place)
    }

    fn child(&mut self, parent: NodeId, space: u32, name: TextId) -> Result<NodeId, Full> {
        Ok(self.trie.descend(parent, Frame::Code { space, address: u64::from(name.0) })?)
    }

    /// The profiles, in the order in which they were added.
    #[must_use]
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Number of nodes; their ids are the numbers below it, callers before callees.
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.trie.node_count()
    }

    /// A node's caller; `None` for the top, which is above the processes.
    #[must_use]
    pub fn parent(&self, node: NodeId) -> Option<NodeId> {
        self.trie.parent(node)
    }

    /// A node's name; empty for the top.
    #[must_use]
    pub fn name(&self, node: NodeId) -> &str {
        self.texts.get(self.place(node).1)
    }

    /// The text of a name.
    #[must_use]
    pub fn text(&self, name: TextId) -> &str {
        self.texts.get(name)
    }

    /// Number of texts; their ids are the numbers below it.
    #[must_use]
    pub fn text_count(&self) -> usize {
        self.texts.count()
    }

    /// The name of a node that is a function; `None` for processes, threads, `[incomplete]`.
    #[must_use]
    pub fn function(&self, node: NodeId) -> Option<TextId> {
        let (space, name) = self.place(node);
        (space == Some(CODE)).then_some(name)
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

    fn place(&self, node: NodeId) -> (Option<u32>, TextId) {
        match self.trie.frame_of(node).map(|frame| self.trie.frame(frame)) {
            Some(Frame::Root(name)) => (None, TextId(name)),
            Some(Frame::Code { space, address }) => {
                (Some(space), TextId(u32::try_from(address).unwrap_or(0)))
            }
            None => (None, TextId::EMPTY),
        }
    }
}

/// Where a node of a profile is in the common tree.
#[derive(Clone, Copy, Debug)]
struct Place {
    node: NodeId,
    complete: bool,
    waiting: bool,
    /// No code stands above.
    head: bool,
}

/// The name in `name (4242)`.
fn thread_name(frame: &str) -> Option<&str> {
    let (name, id) = frame.strip_suffix(')')?.rsplit_once('(')?;
    let is_thread = !id.is_empty() && id.bytes().all(|b| b.is_ascii_digit());
    (is_thread && (name.is_empty() || name.ends_with(' '))).then(|| name.trim_end())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::profile::SavedBuilder;

    /// A profile of one process from `frame;frame` texts and counts.
    pub(crate) fn saved(about: About, process: &str, stacks: &[(&str, u64)]) -> Saved {
        let mut builder = SavedBuilder::new(about);
        let process = builder.text(process).expect("fits");
        let root = StackRoot { process, thread: None, complete: true, waiting: false };
        let root = builder.root(root).expect("fits");
        for (stack, count) in stacks {
            let frames: Vec<u32> =
                stack.split(';').map(|name| builder.named_frame(name).expect("fits")).collect();
            builder.add(root, &frames, *count).expect("fits");
        }
        builder.finish()
    }

    fn lines(stacks: &Stacks, run: usize) -> Vec<String> {
        let run = &stacks.runs()[run];
        run.own().map(|(node, count)| format!("{} {count}", stacks.path(node).join(";"))).collect()
    }

    #[test]
    fn runs_meet_at_the_same_places_whatever_was_numbered_anew() {
        let mut stacks = Stacks::new(Matching::default());
        let base = saved(About::default(), "work", &[("main;run::{closure#1}", 5), ("main;[a.so+0x10]", 1)]);
        let new = saved(About::default(), "work", &[("main;run::{closure#2}", 7), ("main;[a.so+0x20]", 2)]);
        stacks.add("base", &base, None).expect("fits");
        stacks.add("new", &new, None).expect("fits");
        assert_eq!(lines(&stacks, 0), ["work;main;run::{closure} 5", "work;main;[a.so] 1"]);
        assert_eq!(lines(&stacks, 1), ["work;main;run::{closure} 7", "work;main;[a.so] 2"]);
        assert_eq!(stacks.node_count(), 5);
        let mut exact = Stacks::new(Matching { normalize: false, ..Matching::default() });
        exact.add("base", &base, None).expect("fits");
        exact.add("new", &new, Some("other")).expect("fits");
        assert_eq!(lines(&exact, 1), ["other;main;run::{closure#2} 7", "other;main;[a.so+0x20] 2"]);
        assert_eq!(exact.runs()[1].processes, ["work"]);
    }

    #[test]
    fn closures_of_one_profile_become_one_and_nothing_is_lost() {
        let mut stacks = Stacks::new(Matching::default());
        let base = saved(About::default(), "work", &[("f::{closure#1}", 5), ("f::{closure#2}", 6)]);
        stacks.add("base", &base, None).expect("fits");
        assert_eq!(lines(&stacks, 0), ["work;f::{closure} 11"]);
        assert_eq!(stacks.runs()[0].total, 11);
    }

    #[test]
    fn threads_are_told_by_name_and_are_no_functions() {
        let folded =
            saved(About::default(), "work", &[("io (17);[incomplete];read", 2), ("io (18);read;x (3)", 1)]);
        let mut builder = SavedBuilder::new(About::default());
        let (process, io) = (builder.text("work").expect("fits"), builder.text("io").expect("fits"));
        let read = builder.named_frame("read").expect("fits");
        for (id, complete, waiting, count) in [(5, false, false, 2), (6, true, false, 1), (6, true, true, 9)]
        {
            let root = StackRoot { process, thread: Some((io, id)), complete, waiting };
            let root = builder.root(root).expect("fits");
            builder.add(root, &[read], count).expect("fits");
        }
        let binary = builder.finish();
        let mut stacks = Stacks::new(Matching::default());
        stacks.add("a", &folded, None).expect("fits");
        stacks.add("b", &binary, None).expect("fits");
        assert_eq!(lines(&stacks, 0), ["work;io;[incomplete];read 2", "work;io;read;x (3) 1"]);
        assert_eq!(lines(&stacks, 1), ["work;io;[incomplete];read 2", "work;io;read 1"]);
        let functions: Vec<&str> = (0..stacks.node_count() as u32)
            .filter_map(|node| stacks.function(NodeId(node)))
            .map(|name| stacks.text(name))
            .collect();
        assert_eq!(functions, ["read", "read", "x (3)"]);
        let run = &stacks.runs()[1];
        assert_eq!((run.total, run.incomplete, run.waiting_left_out), (3, 2, 9));
    }

    #[test]
    fn without_inlines_their_time_is_the_outer_functions() {
        let mut builder = SavedBuilder::new(About::default());
        let process = builder.text("work").expect("fits");
        let root = StackRoot { process, thread: None, complete: true, waiting: false };
        let root = builder.root(root).expect("fits");
        let lines_of: Vec<crate::profile::Line> = ["outer", "inner"]
            .iter()
            .map(|name| {
                let name = builder.text(name).expect("fits");
                let function = crate::profile::Function { name, ..Default::default() };
                crate::profile::Line { function: builder.function(function).expect("fits"), line: 1 }
            })
            .collect();
        let frame = builder.frame(0x10, None, &lines_of).expect("fits");
        builder.add(root, &[frame], 4).expect("fits");
        let saved = builder.finish();
        for (inlines, expected) in [(true, "work;outer;inner 4"), (false, "work;outer 4")] {
            let mut stacks = Stacks::new(Matching { inlines, ..Matching::default() });
            stacks.add("a", &saved, None).expect("fits");
            assert_eq!(lines(&stacks, 0), [expected]);
        }
    }
}
