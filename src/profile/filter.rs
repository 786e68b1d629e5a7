//! Filters a profile: stacks of some threads, stacks through some functions, stacks from some
//! function on.
//!
//! Input: a [`SavedProfile`] and conditions on names. Output: a [`SavedProfile`] with the remaining stacks, and
//! the counts left after each condition. Names are those of folded text; each is tested once,
//! however many stacks have it (`filter/judge.rs`). Not for: the syntax of the conditions.

mod condition;
mod judge;

use std::collections::BTreeMap;

use super::builder::SavedBuilder;
use super::full::Full;
use super::remap::Remap;
use super::saved::{SavedProfile, StackRoot};
use crate::trie::NodeId;
pub use condition::{Condition, Filter};
use judge::Judge;

/// Counts left after each condition of a [`Filter`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemainingCounts {
    /// After `thread`.
    pub thread: u64,
    /// After `include`.
    pub include: u64,
    /// After `exclude`.
    pub exclude: u64,
    /// After `root`: the counts of the result.
    pub root: u64,
}

/// Applies `filter`. A function matches by its name and, if `lines`, also by `function
/// (file:line)`, so that showing lines does not change what is kept.
///
/// # Errors
/// [`Full`] if a table is full.
pub fn apply(
    saved: &SavedProfile,
    filter: &Filter<'_>,
    lines: bool,
) -> Result<(SavedProfile, RemainingCounts), Full> {
    let mut judge = Judge::new(saved, filter, lines);
    let frames = judge.frames()?;
    let roots = judge.roots()?;
    let mut part = Part {
        saved,
        builder: SavedBuilder::new(saved.about.clone()),
        remap: Remap::new(saved),
        whole_roots: vec![None; saved.roots().len()],
        cut_frames: vec![None; saved.frames().len()],
        stack: Vec::new(),
    };
    let mut left = RemainingCounts::default();
    let mut incomplete = Incomplete::default();
    let mut full = Ok(());
    let mut nodes: Vec<Option<NodeId>> = vec![None; saved.trie().node_count()];
    saved.for_each_leaf(|node, root, stack, count| {
        let of_root = roots.get(root as usize).copied().unwrap_or_default();
        incomplete.before = incomplete.before.saturating_add(if of_root.complete { 0 } else { count });
        if full.is_err() || !(filter.thread.is_none() || of_root.thread) {
            return;
        }
        left.thread = left.thread.saturating_add(count);
        let of = |frame: &u32| frames.get(*frame as usize).copied().unwrap_or_default();
        let included = filter.include.is_none()
            || of_root.matched.included
            || stack.iter().any(|frame| of(frame).matched.included);
        if !included {
            return;
        }
        left.include = left.include.saturating_add(count);
        if of_root.matched.excluded || stack.iter().any(|frame| of(frame).matched.excluded) {
            return;
        }
        left.exclude = left.exclude.saturating_add(count);
        let begin = stack.iter().enumerate().find_map(|(at, frame)| Some((at, of(frame).begin?)));
        if filter.root.is_some() && begin.is_none() {
            return;
        }
        left.root = left.root.saturating_add(count);
        if begin.is_none() && !of_root.complete {
            incomplete.after = incomplete.after.saturating_add(count);
        }
        match part.add(root, stack, begin, count) {
            Ok(here) => {
                if let Some(place) = nodes.get_mut(node.0 as usize) {
                    *place = Some(here);
                }
            }
            Err(why) => full = Err(why),
        }
    });
    full?;
    if let Some(timeline) = saved.timeline() {
        let here = |node: NodeId| nodes.get(node.0 as usize).copied().flatten();
        part.builder.add_times(saved, timeline.of_nodes(here))?;
    }
    let mut kept = part.builder.finish();
    scale(&mut kept.about.lost, left.root, saved.total());
    match incomplete.before {
        0 => scale(&mut kept.about.incomplete, left.root, saved.total()),
        before => scale(&mut kept.about.incomplete, incomplete.after, before),
    }
    Ok((kept, left))
}

/// Counts of incomplete stacks.
#[derive(Default)]
struct Incomplete {
    before: u64,
    after: u64,
}

/// Losses have no stacks, so the share that the conditions would have kept is unknown: it is
/// assumed to be that of the other counts. Keeping all losses beside a few stacks would look like a
/// recording that missed most.
fn scale(counts: &mut BTreeMap<String, u64>, after: u64, before: u64) {
    for count in counts.values_mut() {
        let (share, half) = (u128::from(*count) * u128::from(after), u128::from(before) / 2);
        *count = u64::try_from((share + half) / u128::from(before.max(1))).unwrap_or(u64::MAX);
    }
    counts.retain(|_, count| *count > 0);
}

/// The part that has been kept so far.
struct Part<'s> {
    saved: &'s SavedProfile,
    builder: SavedBuilder,
    remap: Remap<'s>,
    /// By root: the builder's root for its complete stacks.
    whole_roots: Vec<Option<u32>>,
    /// By frame: the frame that starts a stack.
    cut_frames: Vec<Option<u32>>,
    /// The current stack; reused to avoid allocations.
    stack: Vec<u32>,
}

impl Part<'_> {
    /// Adds a stack; with `begin`, only from this frame on, and without that many of its outermost
    /// functions.
    fn add(
        &mut self,
        root: u32,
        frames: &[u32],
        begin: Option<(usize, u32)>,
        count: u64,
    ) -> Result<NodeId, Full> {
        self.stack.clear();
        let mut rest = frames;
        let root = match begin {
            None => self.remap.root(&mut self.builder, root)?,
            Some((at, functions)) => {
                if let Some((first, inner)) = frames.get(at..).and_then(<[u32]>::split_first) {
                    rest = inner;
                    let frame = self.cut(*first, functions)?;
                    self.stack.push(frame);
                }
                self.whole_root(root)?
            }
        };
        for frame in rest {
            self.stack.push(self.remap.frame(&mut self.builder, *frame)?);
        }
        self.builder.add(root, &self.stack, count)
    }

    /// The frame without its outermost functions; their number is always the same for a frame.
    fn cut(&mut self, frame: u32, functions: u32) -> Result<u32, Full> {
        if functions == 0 {
            return self.remap.frame(&mut self.builder, frame);
        }
        if let Some(Some(known)) = self.cut_frames.get(frame as usize) {
            return Ok(*known);
        }
        let cut = self.remap.frame_part(&mut self.builder, frame, functions as usize..)?;
        if let Some(slot) = self.cut_frames.get_mut(frame as usize) {
            *slot = Some(cut);
        }
        Ok(cut)
    }

    fn whole_root(&mut self, root: u32) -> Result<u32, Full> {
        if let Some(Some(known)) = self.whole_roots.get(root as usize) {
            return Ok(*known);
        }
        let Some(found) = self.saved.roots().get(root as usize) else { return Ok(u32::MAX) };
        let whole = self.remap.root_like(&mut self.builder, &StackRoot { complete: true, ..*found })?;
        if let Some(slot) = self.whole_roots.get_mut(root as usize) {
            *slot = Some(whole);
        }
        Ok(whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::formats::{folded, folded_read};
    use crate::profile::{ByName, Function, Line, TextId};

    const TEXT: &str = "\
p;io (7);[incomplete];read;copy 1
p;io (7);main;read;copy 2
p;io (8);main;work 4
p;main;read;main;copy 8
";

    fn kept(filter: &Filter<'_>) -> (String, RemainingCounts) {
        let saved = folded_read::read(TEXT.as_bytes(), "a").expect("reads");
        let (saved, left) = apply(&saved, filter, false).expect("fits");
        let mut out = Vec::new();
        folded::write(&ByName::of(&saved, false).expect("fits"), &mut out).expect("a Vec takes everything");
        (String::from_utf8(out).expect("UTF-8"), left)
    }

    #[test]
    fn each_condition_filters() {
        assert_eq!(kept(&Filter::default()).0, TEXT);
        let name = |name: &'static str| move |found: &str| found == name;
        let thread = Filter { thread: Some(&name("io (8)")), ..Filter::default() };
        assert_eq!(kept(&thread).0, "p;io (8);main;work 4\n");
        let threads = Filter { thread: Some(&name("io")), ..Filter::default() };
        assert_eq!(kept(&threads).1.root, 7);
        let include = Filter { include: Some(&name("work")), ..Filter::default() };
        assert_eq!(kept(&include).0, "p;io (8);main;work 4\n");
        let incomplete = Filter { include: Some(&name("[incomplete]")), ..Filter::default() };
        assert_eq!(kept(&incomplete).1.root, 1);
        let exclude = Filter { exclude: Some(&name("read")), ..Filter::default() };
        assert_eq!(kept(&exclude).0, "p;io (8);main;work 4\n");
    }

    #[test]
    fn the_outermost_match_becomes_the_root() {
        let read = |name: &str| name == "read";
        let root = Filter { root: Some(&read), ..Filter::default() };
        assert_eq!(kept(&root).0, "p;io (7);read;copy 3\np;read;main;copy 8\n");
        let main = |name: &str| name == "main";
        let root = Filter { root: Some(&main), ..Filter::default() };
        assert_eq!(
            kept(&root).0,
            "p;io (7);main;read;copy 2\np;io (8);main;work 4\np;main;read;main;copy 8\n"
        );
    }

    #[test]
    fn counts_left_by_each_condition_are_reported() {
        let (io, copy, none) =
            (|name: &str| name == "io", |name: &str| name == "copy", |name: &str| name == "nobody");
        let filter = Filter { thread: Some(&io), include: Some(&copy), exclude: None, root: Some(&none) };
        let (text, left) = kept(&filter);
        assert_eq!(
            (text.as_str(), left),
            ("", RemainingCounts { thread: 7, include: 3, exclude: 3, root: 0 })
        );
    }

    #[test]
    fn a_part_has_no_names_of_dropped_stacks() {
        let text = "aaa;io (7);[incomplete];x 6\nbbb;[incomplete];y 3\nbbb;main;y 9\n";
        let mut saved = folded_read::read(text.as_bytes(), "a").expect("reads");
        saved.about.lost.insert("thread ended".into(), 9);
        saved.about.lost.insert("seldom".into(), 1);
        saved.about.incomplete.insert("broken frame chain".into(), 9);
        let y = |name: &str| name == "y";
        let include = Filter { include: Some(&y), ..Filter::default() };
        let (part, _) = apply(&saved, &include, false).expect("fits");
        assert_eq!(part.processes(), ["bbb"]);
        assert_eq!((part.roots().len(), part.frames().len(), part.functions().len()), (2, 2, 2));
        assert!(["aaa", "io", "x"].iter().all(|gone| part.texts().find(gone).is_none()));
        // 12 of 18 counts, and 3 of the 9 of incomplete stacks.
        assert_eq!(part.about.lost, BTreeMap::from([("thread ended".into(), 6), ("seldom".into(), 1)]));
        assert_eq!(part.about.incomplete, BTreeMap::from([("broken frame chain".into(), 3)]));
        // From their new root on, stacks are complete.
        let root = Filter { root: Some(&y), ..Filter::default() };
        let (part, _) = apply(&saved, &root, false).expect("fits");
        assert!(part.about.incomplete.is_empty());
        assert_eq!(part.roots().len(), 1);
    }

    #[test]
    fn showing_lines_does_not_change_what_is_kept() {
        let mut builder = SavedBuilder::new(super::super::About::default());
        let process = builder.text("p").expect("fits");
        let root = StackRoot::of(process);
        let root = builder.root(root).expect("fits");
        let (name, file) = (builder.text("main").expect("fits"), builder.text("/s/burn.c").expect("fits"));
        let function = builder.function(Function { name, file, ..Function::default() }).expect("fits");
        let frame = builder.frame(0x10, None, &[Line { function, line: 5 }]).expect("fits");
        builder.add(root, &[frame], 5).expect("fits");
        let saved = builder.finish();
        for (name, lines, left) in [
            ("main", false, 5),
            ("main", true, 5),
            ("main (burn.c:5)", true, 5),
            ("main (burn.c:5)", false, 0),
        ] {
            let meant = |found: &str| found == name;
            let filter = Filter { root: Some(&meant), ..Filter::default() };
            assert_eq!(apply(&saved, &filter, lines).expect("fits").1.root, left, "{name} {lines}");
        }
    }

    #[test]
    fn a_long_name_is_tested_once() {
        let mut builder = SavedBuilder::new(super::super::About::default());
        let process = builder.text(&"p".repeat(1 << 20)).expect("fits");
        for thread in 0..500 {
            let root = StackRoot {
                process,
                thread: Some((TextId::EMPTY, thread)),
                complete: true,
                waiting: false,
                labels: crate::profile::LabelsId::NONE,
            };
            let root = builder.root(root).expect("fits");
            for frame in ["a", "b"] {
                let frame = builder.named_frame(frame).expect("fits");
                builder.add(root, &[frame], 1).expect("fits");
            }
        }
        let saved = builder.finish();
        let seen = std::cell::Cell::new(0);
        let none = |name: &str| {
            seen.set(seen.get() + name.len());
            false
        };
        let filter = Filter { exclude: Some(&none), ..Filter::default() };
        assert_eq!(apply(&saved, &filter, false).expect("fits").1.root, 1000);
        assert!(seen.get() < 2 << 20, "{} bytes", seen.get());
    }

    #[test]
    fn an_inlined_function_can_be_the_root() {
        let mut builder = SavedBuilder::new(super::super::About::default());
        let process = builder.text("p").expect("fits");
        let root = StackRoot::of(process);
        let root = builder.root(root).expect("fits");
        let line = |builder: &mut SavedBuilder, name: &str| {
            let name = builder.text(name).expect("fits");
            Line {
                function: builder.function(Function { name, ..Function::default() }).expect("fits"),
                line: 1,
            }
        };
        let lines = ["outer", "inner", "innermost"].map(|name| line(&mut builder, name));
        let frame = builder.frame(0x10, None, &lines).expect("fits");
        builder.add(root, &[frame], 5).expect("fits");
        let inner = |name: &str| name.starts_with("inner (") || name == "inner";
        let filter = Filter { root: Some(&inner), ..Filter::default() };
        let (saved, _) = apply(&builder.finish(), &filter, false).expect("fits");
        let by_name = ByName::of(&saved, false).expect("fits");
        let mut out = Vec::new();
        folded::write(&by_name, &mut out).expect("a Vec takes everything");
        assert_eq!(out, b"p;inner;innermost 5\n");
        assert_eq!(saved.frames().last().map(|frame| frame.address), Some(0x10));
    }
}
