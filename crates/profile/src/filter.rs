//! Filters a profile: stacks of some threads, stacks through some functions, stacks from some
//! function on.
//!
//! `Filter` has the conditions, `FilterMatch` their verdict for each frame and root, `RemainingCounts` what is
//! left.
//!
//! Input: a [`SavedProfile`] and conditions on names. Output: a [`SavedProfile`] with the remaining stacks, and
//! the counts left after each condition. Names are those of folded text; each is tested once,
//! however many stacks have it. Not for: the syntax of the conditions.

use std::collections::{BTreeMap, HashMap};

use super::builder::{Remap, SavedBuilder};
use super::saved::thread_name;
use super::saved::{Full, Line, SavedProfile, StackRoot};
use super::table::Memo;
use super::texts::{TEXT_BYTES_MAX, TextId};
use super::{INCOMPLETE, shown};
use crate::trie::NodeId;

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
        whole_roots: Memo::new(saved.roots().len()),
        cut_frames: Memo::new(saved.frames().len()),
        stack: Vec::new(),
    };
    let mut left = RemainingCounts::default();
    let mut incomplete = Incomplete::default();
    let mut full = Ok(());
    let mut nodes: Memo<NodeId> = Memo::new(saved.trie().node_count());
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
            Ok(here) => drop(nodes.put(node.0 as usize, here)),
            Err(why) => full = Err(why),
        }
    });
    full?;
    if let Some(timeline) = saved.timeline() {
        part.builder.add_times(saved, timeline.of_nodes(|node| nodes.get(node.0 as usize)))?;
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
    whole_roots: Memo<u32>,
    /// By frame: the frame that starts a stack.
    cut_frames: Memo<u32>,
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
        if let Some(known) = self.cut_frames.get(frame as usize) {
            return Ok(known);
        }
        let cut = self.remap.frame_part(&mut self.builder, frame, functions as usize..)?;
        Ok(self.cut_frames.put(frame as usize, cut))
    }

    fn whole_root(&mut self, root: u32) -> Result<u32, Full> {
        if let Some(known) = self.whole_roots.get(root as usize) {
            return Ok(known);
        }
        let Some(found) = self.saved.roots().get(root as usize) else { return Ok(u32::MAX) };
        let whole = self.remap.root_like(&mut self.builder, &StackRoot { complete: true, ..*found })?;
        Ok(self.whole_roots.put(root as usize, whole))
    }
}

// ---- Conditions on names: which stacks of a profile are kept.

/// Whether a name matches.
pub type Condition<'f> = &'f dyn Fn(&str) -> bool;

/// What to keep. Conditions are applied in this order.
#[derive(Clone, Copy, Default)]
pub struct Filter<'f> {
    /// Threads by `name` or `name (id)`; stacks of merged threads are not kept.
    pub thread: Option<Condition<'f>>,
    /// Stacks with a matching frame; the process, the thread and `[incomplete]` count as frames.
    pub include: Option<Condition<'f>>,
    /// Stacks without a matching frame.
    pub exclude: Option<Condition<'f>>,
    /// Stacks with a matching function, without the callers of the outermost match. The process and
    /// the thread stay. The resulting stacks are complete.
    pub root: Option<Condition<'f>>,
}

// ---- Evaluates the conditions of a filter for every frame and every root of a profile.
//
// A condition costs the length of a name, and a small file can have a long name in many places: each text is tested
// once, and composed names are limited like a table of names.

/// Results of the conditions for a name.
#[derive(Clone, Copy, Default)]
struct FilterMatch {
    included: bool,
    excluded: bool,
    root: bool,
}

impl FilterMatch {
    fn or(self, other: FilterMatch) -> FilterMatch {
        FilterMatch {
            included: self.included || other.included,
            excluded: self.excluded || other.excluded,
            root: self.root || other.root,
        }
    }
}

/// Results for a frame.
#[derive(Clone, Copy, Default)]
struct FrameMatch {
    matched: FilterMatch,
    /// The outermost function that becomes a new root.
    begin: Option<u32>,
}

/// Results for a root.
#[derive(Clone, Copy, Default)]
struct RootMatch {
    matched: FilterMatch,
    /// Its thread is kept.
    thread: bool,
    /// Its stacks were walked to their thread's root.
    complete: bool,
}

/// Evaluates the conditions.
struct Judge<'j, 'f> {
    saved: &'j SavedProfile,
    filter: &'j Filter<'f>,
    lines: bool,
    texts: Memo<FilterMatch>,
    with_lines: HashMap<Line, FilterMatch>,
    /// Remaining bytes for composed names.
    left: usize,
}

impl<'j, 'f> Judge<'j, 'f> {
    fn new(saved: &'j SavedProfile, filter: &'j Filter<'f>, lines: bool) -> Judge<'j, 'f> {
        let texts = Memo::new(saved.texts().count());
        Judge { saved, filter, lines, texts, with_lines: HashMap::new(), left: TEXT_BYTES_MAX }
    }

    /// Results by frame.
    fn frames(&mut self) -> Result<Vec<FrameMatch>, Full> {
        let saved = self.saved;
        let mut verdicts = Vec::with_capacity(saved.frames().len());
        for frame in saved.frames() {
            let mut verdict = FrameMatch::default();
            let mut take = |at: usize, matched: FilterMatch| {
                verdict.matched = verdict.matched.or(matched);
                if matched.root && verdict.begin.is_none() {
                    verdict.begin = Some(at as u32);
                }
            };
            let lines = saved.lines_of(frame);
            for (at, line) in lines.iter().enumerate() {
                take(at, self.line(line)?);
            }
            if lines.is_empty() {
                take(0, self.match_generated_name(&saved.place_of(frame))?);
            }
            verdicts.push(verdict);
        }
        Ok(verdicts)
    }

    /// Results by root.
    fn roots(&mut self) -> Result<Vec<RootMatch>, Full> {
        let saved = self.saved;
        let incomplete = self.name(INCOMPLETE);
        let mut threads: HashMap<TextId, bool> = HashMap::new();
        let mut verdicts = Vec::with_capacity(saved.roots().len());
        for root in saved.roots() {
            let mut verdict =
                RootMatch { matched: self.text(root.process), thread: false, complete: root.complete };
            if let Some((name, id)) = root.thread {
                let text = saved.text(name);
                let numbered = thread_name(text, id);
                verdict.matched = verdict.matched.or(self.match_generated_name(&numbered)?);
                if let Some(meant) = self.filter.thread {
                    let by_name = *threads.entry(name).or_insert_with(|| meant(text));
                    verdict.thread = by_name || meant(&numbered);
                }
            }
            if !root.complete {
                verdict.matched = verdict.matched.or(incomplete);
            }
            verdicts.push(verdict);
        }
        Ok(verdicts)
    }

    fn line(&mut self, line: &Line) -> Result<FilterMatch, Full> {
        let plain = self.text(self.saved.function(line.function).shown_name());
        if !self.lines {
            return Ok(plain);
        }
        if let Some(known) = self.with_lines.get(line) {
            return Ok(*known);
        }
        let matched = plain.or(self.match_generated_name(&self.saved.name_of_line(line, true))?);
        self.with_lines.insert(*line, matched);
        Ok(matched)
    }

    fn text(&mut self, text: TextId) -> FilterMatch {
        if let Some(known) = self.texts.get(text.0 as usize) {
            return known;
        }
        let matched = self.name(self.saved.text(text));
        self.texts.put(text.0 as usize, matched)
    }

    /// Results for a name that is not a text of the profile.
    fn match_generated_name(&mut self, name: &str) -> Result<FilterMatch, Full> {
        let left = self.left.checked_sub(name.len());
        self.left = left.ok_or(Full { what: "bytes of names", limit: TEXT_BYTES_MAX })?;
        Ok(self.name(name))
    }

    fn name(&self, name: &str) -> FilterMatch {
        let name = &shown(name);
        let matches = |condition: Option<Condition<'_>>| condition.is_some_and(|condition| condition(name));
        FilterMatch {
            included: matches(self.filter.include),
            excluded: matches(self.filter.exclude),
            root: matches(self.filter.root),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::folded;
    use crate::{ByName, Function, Line, TextId};

    const TEXT: &str = "\
p;io (7);[incomplete];read;copy 1
p;io (7);main;read;copy 2
p;io (8);main;work 4
p;main;read;main;copy 8
";

    fn kept(filter: &Filter<'_>) -> (String, RemainingCounts) {
        let saved = folded::read(TEXT.as_bytes(), "a").expect("reads");
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
        let mut saved = folded::read(text.as_bytes(), "a").expect("reads");
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
                labels: crate::LabelsId::NONE,
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
