//! Times of samples: for each thread with samples, their times, stacks and counts.
//!
//! `Timeline` has them; the file also derives starts and ends of threads (`Marks`), extracts a time range, and
//! splits merged threads.
//!
//! Part of a [`SavedProfile`]; its nodes are those of the profile's trie. For each stack,
//! the counts over time add up to the count in the trie, so that the whole time range shows the
//! same as the profile without times. Waits are samples, too: they represent the time before them.

#[cfg(test)]
mod time_range_tests;

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use super::builder::{Remap, SavedBuilder};
use super::saved::{Full, SavedProfile, StackRoot};
use super::texts::TextId;
use crate::StackFrame;
use crate::trie::{NodeId, Trie};

/// A sample with a time, or several merged samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedSample {
    /// Time of the sample, or of the last merged one: nanoseconds since the recording began.
    pub at_ns: u64,
    /// Time that it represents, nanoseconds before `at_ns`.
    pub weight_ns: u64,
    /// Node of its stack in the profile's trie; `None` if the stack was not kept.
    pub node: Option<NodeId>,
    /// Its counts: 0 for a part of a period that is counted elsewhere.
    pub count: u64,
    /// The CPU it was taken on; `None` if not known.
    pub cpu: Option<u32>,
}

impl TimedSample {
    /// Its start, nanoseconds since the recording began.
    #[must_use]
    pub fn since_ns(&self) -> u64 {
        self.at_ns.saturating_sub(self.weight_ns)
    }

    /// Its counts in parts of `each`, with their times: equally spaced, the last one at `at_ns`.
    pub fn parts(&self, each: u64) -> impl Iterator<Item = (u64, u64)> {
        let each = each.max(1);
        (0..self.count.div_ceil(each)).map(move |part| {
            let before = part * each;
            let until = before.saturating_add(each).min(self.count);
            (self.count_time(self.count - until), until - before)
        })
    }

    /// Time of the count that `after` others follow.
    fn count_time(&self, after: u64) -> u64 {
        let back_ns = u128::from(after) * u128::from(self.weight_ns) / u128::from(self.count.max(1));
        self.at_ns.saturating_sub(back_ns as u64)
    }

    /// Number of its counts before a time.
    fn counts_before(&self, time_ns: u64) -> u64 {
        // The first ones may have been clamped to the beginning of the recording.
        if time_ns == 0 {
            return 0;
        }
        let Some(back_ns) = self.at_ns.checked_sub(time_ns) else { return self.count };
        if self.weight_ns == 0 {
            return 0;
        }
        let counts_of_back = (u128::from(back_ns) + 1).saturating_mul(self.count.into());
        let after = u64::try_from(counts_of_back.div_ceil(self.weight_ns.into())).unwrap_or(u64::MAX);
        self.count.saturating_sub(after)
    }

    /// The part inside a range; `None` if empty. The parts of adjacent ranges add up to the whole.
    fn in_time_range(&self, range: &Range<u64>) -> Option<TimedSample> {
        if self.count == 0 {
            // Time without a stack can be split anywhere.
            let (since_ns, at_ns) = (self.since_ns().max(range.start), self.at_ns.min(range.end));
            return (since_ns < at_ns).then(|| TimedSample { at_ns, weight_ns: at_ns - since_ns, ..*self });
        }
        let (first, limit) = (self.counts_before(range.start), self.counts_before(range.end));
        if first >= limit {
            return None;
        }
        let weight_ns =
            |counts: u64| (u128::from(self.weight_ns) * u128::from(counts) / u128::from(self.count)) as u64;
        Some(TimedSample {
            at_ns: self.count_time(self.count - limit),
            weight_ns: weight_ns(limit) - weight_ns(first),
            count: limit - first,
            ..*self
        })
    }
}

/// A thread over time, while it ran one program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadTimeline {
    /// Process name that its stacks are shown under.
    pub process: TextId,
    /// Process id, if known.
    pub pid: Option<u32>,
    /// Its name; empty if it had none.
    pub name: TextId,
    /// Thread id.
    pub id: u64,
    /// When it was first seen, nanoseconds since the recording began.
    pub begun_ns: u64,
    /// End time; `None` if it outlived the recording.
    pub ended_ns: Option<u64>,
    /// Its samples by time.
    pub samples: Vec<TimedSample>,
}

/// Lost time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Start of the interval with the loss, nanoseconds since the recording began.
    pub since_ns: u64,
    /// End of that interval, when the loss was noticed.
    pub at_ns: u64,
    /// Amount, nanoseconds.
    pub lost_ns: u64,
    /// Reason.
    pub reason: TextId,
}

impl Loss {
    /// The amount before a time, nanoseconds, assuming an even distribution.
    fn before_ns(&self, time_ns: u64) -> u64 {
        let all_ns = self.at_ns.saturating_sub(self.since_ns);
        let passed_ns = time_ns.saturating_sub(self.since_ns).min(all_ns);
        match (u128::from(self.lost_ns) * u128::from(passed_ns)).checked_div(u128::from(all_ns)) {
            Some(before_ns) => before_ns as u64,
            None if self.at_ns < time_ns => self.lost_ns,
            None => 0,
        }
    }

    /// The part inside a range, with times relative to its start.
    fn in_time_range(&self, range: &Range<u64>) -> Option<Loss> {
        let lost_ns = self.before_ns(range.end) - self.before_ns(range.start);
        let since_ns = self.since_ns.max(range.start) - range.start;
        let at_ns = self.at_ns.min(range.end).saturating_sub(range.start);
        (lost_ns > 0).then_some(Loss { since_ns, at_ns, lost_ns, reason: self.reason })
    }

    /// The amount in samples of a period, as text.
    pub(super) fn words(&self, period_ns: f64) -> String {
        match (self.lost_ns as f64 / period_ns).round() {
            ..=1.0 => "1 sample".to_owned(),
            samples => format!("{samples} samples"),
        }
    }

    /// Whether it is a gap: most of a CPU's time in the interval was lost.
    #[must_use]
    pub fn is_gap(&self) -> bool {
        self.lost_ns.saturating_mul(2) >= self.at_ns.saturating_sub(self.since_ns)
    }
}

/// `count * part / whole`, rounded.
pub(super) fn share(count: u64, part: u64, whole: u64) -> u64 {
    let whole = whole.max(1);
    match count.checked_mul(part).and_then(|product| product.checked_add(whole / 2)) {
        Some(product) => product / whole,
        None => {
            let whole = u128::from(whole);
            let shared = (u128::from(count) * u128::from(part) + whole / 2) / whole;
            u64::try_from(shared).unwrap_or(u64::MAX)
        }
    }
}

/// Kind of a process or thread event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EventKind {
    /// A process started.
    ProcessStart,
    /// A thread other than the main thread started.
    ThreadStart,
    /// A process executed another program.
    Exec,
    /// A process mapped an image; the time is that of the first observation.
    ImageLoad,
    /// A thread other than the main thread ended.
    ThreadEnd,
    /// A process ended.
    ProcessEnd,
}

impl EventKind {
    /// All kinds, in order.
    const ALL: [EventKind; 6] = [
        EventKind::ProcessStart,
        EventKind::ThreadStart,
        EventKind::Exec,
        EventKind::ImageLoad,
        EventKind::ThreadEnd,
        EventKind::ProcessEnd,
    ];

    /// The kind with this text.
    pub(super) fn of(words: &str) -> Option<EventKind> {
        EventKind::ALL.into_iter().find(|kind| kind.words() == words)
    }

    /// The text of the event kind.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            EventKind::ProcessStart => "process start",
            EventKind::ThreadStart => "thread start",
            EventKind::Exec => "exec",
            EventKind::ImageLoad => "image load",
            EventKind::ThreadEnd => "thread end",
            EventKind::ProcessEnd => "process end",
        }
    }
}

/// A process or thread event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Time, nanoseconds since the recording began.
    pub at_ns: u64,
    /// Kind.
    pub kind: EventKind,
    /// Process name that its stacks are shown under; empty if it has none.
    pub process: TextId,
    /// Process id.
    pub pid: u32,
    /// Thread id; the process id if the event is not about another thread.
    pub thread: u64,
    /// The name of the thread, the program or the path of the image; empty if there is none.
    pub text: TextId,
}

impl Event {
    /// What it is about, with its number: a thread, a process, an image.
    pub(super) fn subject(&self, saved: &SavedProfile) -> String {
        let text = saved.text(self.text);
        // A process without samples is named after its first thread.
        let process = Some(saved.text(self.process)).filter(|name| !name.is_empty()).unwrap_or(text);
        match self.kind {
            EventKind::ThreadStart | EventKind::ThreadEnd => format!("{text} ({})", self.thread),
            EventKind::Exec => format!("{text} ({})", self.pid),
            EventKind::ImageLoad => text.to_owned(),
            EventKind::ProcessStart | EventKind::ProcessEnd => format!("{process} ({})", self.pid),
        }
    }
}

/// Finds the thread of an event among those with samples.
pub(super) struct ThreadIndex<'t> {
    timeline: &'t Timeline,
    /// Threads by thread id, in their order.
    by_id: HashMap<u64, Vec<usize>>,
    /// The first thread of each process.
    by_pid: HashMap<u32, usize>,
}

impl<'t> ThreadIndex<'t> {
    pub(super) fn new(timeline: &'t Timeline) -> ThreadIndex<'t> {
        let mut by_id: HashMap<u64, Vec<usize>> = HashMap::new();
        let mut by_pid = HashMap::new();
        for (index, thread) in timeline.threads.iter().enumerate() {
            by_id.entry(thread.id).or_default().push(index);
            if let Some(pid) = thread.pid {
                by_pid.entry(pid).or_insert(index);
            }
        }
        ThreadIndex { timeline, by_id, by_pid }
    }

    /// The thread that had the event's thread id at its time.
    pub(super) fn own(&self, event: &Event) -> Option<usize> {
        let own = self.by_id.get(&event.thread)?;
        let is_begun = |index: &usize| {
            self.timeline.threads.get(*index).is_some_and(|thread| thread.begun_ns <= event.at_ns)
        };
        own.iter().rev().copied().find(is_begun).or(own.first().copied())
    }

    /// That thread, or another one of its process.
    pub(super) fn of_process(&self, event: &Event) -> Option<usize> {
        self.own(event).or_else(|| self.by_pid.get(&event.pid).copied())
    }
}

/// The samples of a profile over time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// Resolution of the times, nanoseconds; `None` if each sample has its own time.
    pub step_ns: Option<u64>,
    /// The threads with samples.
    pub threads: Vec<ThreadTimeline>,
    /// Losses, by time.
    pub losses: Vec<Loss>,
    /// Other events, by time.
    pub events: Vec<Event>,
}

impl Timeline {
    /// Distributes the counts of each stack over its samples; `count` returns a node's total. Nodes are
    /// below `node_count`.
    pub(super) fn count_samples(&mut self, node_count: usize, count: impl Fn(NodeId) -> u64) {
        // Total weight of its samples, weight so far, and counts given for that.
        let mut nodes: Vec<(u64, u64, u64)> = vec![(0, 0, 0); node_count];
        for sample in self.threads.iter().flat_map(|thread| &thread.samples) {
            if let Some((all_ns, ..)) = sample.node.and_then(|node| nodes.get_mut(node.0 as usize)) {
                *all_ns = all_ns.saturating_add(sample.weight_ns);
            }
        }
        let all = self.threads.iter_mut().flat_map(|thread| &mut thread.samples);
        for sample in all {
            sample.count = 0;
            let Some(node) = sample.node else { continue };
            let Some((all_ns, passed_ns, given)) = nodes.get_mut(node.0 as usize) else { continue };
            *passed_ns = passed_ns.saturating_add(sample.weight_ns);
            let up_to = share(count(node), *passed_ns, *all_ns);
            sample.count = up_to - std::mem::replace(given, up_to);
        }
    }

    /// The timeline with nodes mapped to another trie.
    pub(super) fn with_nodes(&self, mut node: impl FnMut(NodeId) -> Option<NodeId>) -> Timeline {
        let mut other = self.clone();
        for sample in other.threads.iter_mut().flat_map(|thread| &mut thread.samples) {
            sample.node = sample.node.and_then(&mut node);
        }
        other
    }

    /// The samples whose nodes map to another trie.
    pub(super) fn of_nodes(&self, node: impl FnMut(NodeId) -> Option<NodeId>) -> Timeline {
        let mut part = self.with_nodes(node);
        part.threads.iter_mut().for_each(|thread| thread.samples.retain(|sample| sample.node.is_some()));
        part.threads.retain(|thread| !thread.samples.is_empty());
        part
    }

    /// The timeline with text ids mapped to another table.
    pub(super) fn with_texts<E>(
        mut self,
        mut text: impl FnMut(TextId) -> Result<TextId, E>,
    ) -> Result<Timeline, E> {
        for thread in &mut self.threads {
            (thread.process, thread.name) = (text(thread.process)?, text(thread.name)?);
        }
        for loss in &mut self.losses {
            loss.reason = text(loss.reason)?;
        }
        for event in &mut self.events {
            (event.process, event.text) = (text(event.process)?, text(event.text)?);
        }
        Ok(self)
    }

    /// Time of its last item, nanoseconds since the recording began.
    #[must_use]
    pub fn end_ns(&self) -> u64 {
        let samples =
            self.threads.iter().filter_map(|thread| thread.samples.last()).map(|sample| sample.at_ns);
        let losses = self.losses.iter().map(|loss| loss.at_ns);
        samples.chain(losses).max().unwrap_or(0)
    }

    /// The part inside a time range, nanoseconds since the recording began. Its times are relative to the start
    /// of the range.
    #[must_use]
    pub(super) fn in_time_range(&self, range: &Range<u64>) -> Timeline {
        let from = |at_ns: u64| at_ns.saturating_sub(range.start);
        let mut selected = self.clone();
        for thread in &mut selected.threads {
            let kept = thread.samples.iter().filter_map(|sample| sample.in_time_range(range));
            thread.samples = kept.map(|sample| TimedSample { at_ns: from(sample.at_ns), ..sample }).collect();
            thread.begun_ns = from(thread.begun_ns);
            thread.ended_ns = thread.ended_ns.filter(|ended_ns| *ended_ns < range.end).map(from);
        }
        selected.threads.retain(|thread| !thread.samples.is_empty());
        selected.losses = self.losses.iter().filter_map(|loss| loss.in_time_range(range)).collect();
        selected.events.retain(|event| range.contains(&event.at_ns));
        selected.events.iter_mut().for_each(|event| event.at_ns = from(event.at_ns));
        selected
    }

    /// By reason: the lost time before a time, and all lost time, nanoseconds.
    pub(super) fn lost_before_ns(&self, time_ns: u64) -> BTreeMap<TextId, (u64, u64)> {
        let mut lost: BTreeMap<TextId, (u64, u64)> = BTreeMap::new();
        for loss in &self.losses {
            let (before_ns, all_ns) = lost.entry(loss.reason).or_default();
            *before_ns = before_ns.saturating_add(loss.before_ns(time_ns));
            *all_ns = all_ns.saturating_add(loss.lost_ns);
        }
        lost
    }

    /// By node of `trie`, of which these are the times: the counts without a time.
    pub(super) fn untimed(&self, trie: &Trie<StackFrame>) -> impl Fn(NodeId) -> u64 {
        let timed = self.counts();
        move |node| trie.count(node).saturating_sub(timed.get(&node).copied().unwrap_or(0))
    }

    /// Counts by node.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<NodeId, u64> {
        let mut counts = BTreeMap::new();
        for sample in self.threads.iter().flat_map(|thread| &thread.samples) {
            if let Some(node) = sample.node {
                *counts.entry(node).or_default() += sample.count;
            }
        }
        counts
    }
}

// ---- Derives the start and end of a timeline's threads from its events.
//
// Files store starts and ends only as events. A thread without a start existed when the recording began, even if it
// was sampled later; one without an end outlived the recording. A thread that ran several programs in sequence has a
// part for each.

/// Starts and ends by time, for one id.
#[derive(Default)]
struct Marks {
    starts_ns: Vec<u64>,
    ends_ns: Vec<u64>,
}

impl Timeline {
    /// Sets the start and end of each thread.
    pub(super) fn set_lifetimes(&mut self) {
        let mut by_thread: HashMap<u64, Marks> = HashMap::new();
        let mut by_process: HashMap<u32, Marks> = HashMap::new();
        for event in &self.events {
            let marks = by_thread.entry(event.thread).or_default();
            match event.kind {
                EventKind::ProcessStart | EventKind::ThreadStart => marks.starts_ns.push(event.at_ns),
                EventKind::ThreadEnd => marks.ends_ns.push(event.at_ns),
                EventKind::ProcessEnd => {
                    by_process.entry(event.pid).or_default().ends_ns.push(event.at_ns);
                }
                EventKind::Exec | EventKind::ImageLoad => {}
            }
        }
        let mut parts: HashMap<u64, Vec<usize>> = HashMap::new();
        for (index, thread) in self.threads.iter().enumerate() {
            parts.entry(thread.id).or_default().push(index);
        }
        let none = Marks::default();
        for (id, mut parts) in parts {
            parts.sort_by_key(|index| self.threads.get(*index).map(first_ns));
            let own = by_thread.get(&id).unwrap_or(&none);
            let mut before: Option<usize> = None;
            for index in parts {
                let Some((sampled_ns, until_ns, pid)) =
                    self.threads.get(index).map(|thread| (first_ns(thread), last_ns(thread), thread.pid))
                else {
                    continue;
                };
                let before_ns = before.and_then(|before| self.threads.get(before)).map_or(0, last_ns);
                let started = |at_ns: &&u64| (before_ns..=sampled_ns).contains(*at_ns);
                let begun_ns =
                    own.starts_ns.iter().rfind(started).copied().unwrap_or(before_ns).min(sampled_ns);
                if let Some(before) = before.and_then(|before| self.threads.get_mut(before)) {
                    before.ended_ns = Some(before.ended_ns.unwrap_or(begun_ns).min(begun_ns).max(before_ns));
                }
                let of_process = pid.and_then(|pid| by_process.get(&pid)).unwrap_or(&none);
                let ended = |marks: &Marks| marks.ends_ns.iter().find(|at_ns| **at_ns >= sampled_ns).copied();
                let ended_ns = ended(own).into_iter().chain(ended(of_process)).min();
                if let Some(thread) = self.threads.get_mut(index) {
                    thread.begun_ns = begun_ns;
                    thread.ended_ns = ended_ns.map(|ended_ns| ended_ns.max(until_ns));
                }
                before = Some(index);
            }
        }
    }
}

/// Time of its first sample: the period of that sample may have begun before the thread.
fn first_ns(thread: &ThreadTimeline) -> u64 {
    thread.samples.first().map_or(0, |sample| sample.at_ns)
}

/// Time of its last sample.
fn last_ns(thread: &ThreadTimeline) -> u64 {
    thread.samples.last().map_or(0, |sample| sample.at_ns)
}

// ---- A time range of a profile.
//
// The counts of adjacent ranges add up to the profile's, stack by stack and loss by loss.

/// Loss reason for counts of a range whose times were not kept.
const WITHOUT_TIME: &str = "without a time: more --timeline-memory keeps it";

/// Reason for incomplete stacks of a range: the times of the original reasons are unknown.
const IN_RANGE: &str = "in this part of the time";

impl SavedProfile {
    /// Length of the recording by its times, nanoseconds; `None` for a profile without times.
    #[must_use]
    pub fn time_ns(&self) -> Option<u64> {
        let timeline = self.timeline.as_ref()?;
        Some(self.about.duration_ns.unwrap_or(0).max(timeline.end_ns().saturating_add(1)))
    }

    /// The samples in a time range, nanoseconds since the recording began; `None` for a profile
    /// without times.
    ///
    /// # Errors
    /// [`Full`] if it does not fit.
    pub fn in_time_range(&self, range: &Range<u64>) -> Result<Option<SavedProfile>, Full> {
        let (Some(timeline), Some(all_ns)) = (&self.timeline, self.time_ns()) else { return Ok(None) };
        let range = range.start..range.end.min(all_ns);
        let selected = timeline.in_time_range(&range);
        let counts = selected.counts();
        let mut about = self.about.clone();
        about.limit_to(&range, self.lost_within(timeline, &range, all_ns));
        let count = |node| counts.get(&node).copied().unwrap_or(0);
        let (mut builder, _, nodes) = SavedBuilder::copied(self, about, count)?;
        builder.add_timeline(self, &selected, &nodes)?;
        let mut saved = builder.finish();
        let incomplete = saved.incomplete_count();
        if incomplete > 0 {
            saved.about.incomplete.insert(IN_RANGE.to_owned(), incomplete);
        }
        Ok(Some(saved))
    }

    /// The part of the profile with untimed samples; `None` if all have times.
    ///
    /// # Errors
    /// [`Full`] if it does not fit.
    pub fn without_times(&self) -> Result<Option<SavedProfile>, Full> {
        let Some(timeline) = &self.timeline else { return Ok(None) };
        if timeline.counts().values().sum::<u64>() >= self.total() {
            return Ok(None);
        }
        let (builder, ..) = SavedBuilder::copied(self, self.about.clone(), timeline.untimed(&self.trie))?;
        Ok(Some(builder.finish()))
    }

    /// Counts lost in a range, by reason. Untimed losses are distributed evenly over all time.
    fn lost_within(&self, timeline: &Timeline, range: &Range<u64>, all_ns: u64) -> BTreeMap<String, u64> {
        let before = |time_ns: u64| {
            let by_reason = timeline.lost_before_ns(time_ns);
            let of_reason = |reason: &str, count: u64| {
                let known = self.texts.find(reason).and_then(|reason| by_reason.get(&reason)).copied();
                let (elapsed, whole) = known.unwrap_or((time_ns, all_ns));
                share(count, elapsed, whole)
            };
            let mut lost: BTreeMap<String, u64> = self
                .about
                .lost
                .iter()
                .map(|(reason, count)| (reason.clone(), of_reason(reason, *count)))
                .collect();
            let timed: u64 = timeline.counts().values().sum();
            let untimed = share(self.total().saturating_sub(timed), time_ns, all_ns);
            *lost.entry(WITHOUT_TIME.to_owned()).or_default() += untimed;
            lost
        };
        let (until_start, mut until_end) = (before(range.start), before(range.end));
        for (reason, count) in &mut until_end {
            *count -= until_start.get(reason).copied().unwrap_or(0).min(*count);
        }
        until_end.retain(|_, count| *count > 0);
        until_end
    }

    /// Counts of incomplete stacks.
    fn incomplete_count(&self) -> u64 {
        let mut incomplete: u64 = 0;
        self.for_each_stack(|root, _, count| {
            incomplete = incomplete.saturating_add(if root.complete { 0 } else { count });
        });
        incomplete
    }
}

// ---- Splits a profile with merged threads by thread, using the times of samples.
//
// Counts without a time stay under their process.

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
        let (mut builder, tables, _) =
            SavedBuilder::copied(self, self.about.clone(), timeline.untimed(&self.trie))?;
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

#[cfg(test)]
mod lifetimes_tests {
    use super::super::TextId;
    use super::*;
    use super::{Event, TimedSample};

    const MS: u64 = 1_000_000;

    fn thread(pid: u32, id: u64, samples_ms: &[u64]) -> ThreadTimeline {
        let sample =
            |ms: &u64| TimedSample { at_ns: ms * MS, weight_ns: MS, node: None, count: 1, cpu: None };
        ThreadTimeline {
            process: TextId::EMPTY,
            pid: Some(pid),
            name: TextId::EMPTY,
            id,
            begun_ns: 99 * MS,
            ended_ns: None,
            samples: samples_ms.iter().map(sample).collect(),
        }
    }

    fn event(ms: u64, kind: EventKind, pid: u32, thread: u64) -> Event {
        Event { at_ns: ms * MS, kind, process: TextId::EMPTY, pid, thread, text: TextId::EMPTY }
    }

    #[test]
    fn missing_starts_and_ends_extend_to_the_recording() {
        let mut timeline = Timeline {
            threads: vec![thread(7, 7, &[50, 60]), thread(7, 8, &[20, 21]), thread(9, 9, &[70])],
            events: vec![
                event(20, EventKind::ThreadStart, 7, 8),
                event(25, EventKind::ThreadEnd, 7, 8),
                event(30, EventKind::ProcessStart, 9, 9),
                event(80, EventKind::ProcessEnd, 9, 9),
            ],
            ..Timeline::default()
        };
        timeline.set_lifetimes();
        let of = |thread: &ThreadTimeline| (thread.begun_ns / MS, thread.ended_ns.map(|ns| ns / MS));
        let lives: Vec<_> = timeline.threads.iter().map(of).collect();
        assert_eq!(lives, [(0, None), (20, Some(25)), (30, Some(80))]);
    }

    #[test]
    fn programs_of_one_thread_follow_each_other() {
        // A fork and exec, and later another process with the same id.
        let mut timeline = Timeline {
            threads: vec![thread(5, 5, &[12, 14]), thread(5, 5, &[16, 20]), thread(5, 5, &[60])],
            events: vec![
                event(11, EventKind::ProcessStart, 5, 5),
                event(22, EventKind::ProcessEnd, 5, 5),
                event(55, EventKind::ProcessStart, 5, 5),
            ],
            ..Timeline::default()
        };
        timeline.set_lifetimes();
        let of = |thread: &ThreadTimeline| (thread.begun_ns / MS, thread.ended_ns.map(|ns| ns / MS));
        let lives: Vec<_> = timeline.threads.iter().map(of).collect();
        assert_eq!(lives, [(11, Some(14)), (14, Some(22)), (55, None)]);
    }
}
