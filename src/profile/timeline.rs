//! When samples were taken: of each thread that has any, times, stacks and counts.
//!
//! Part of a [`Saved`](super::Saved); its nodes are those of the profile's trie. Of each stack the
//! counts over time add up to the count that the trie has, so that all of the time shows what the
//! profile without times does. Waits are samples, too: of the time before them that they stand for.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use super::texts::TextId;
use crate::trie::NodeId;

/// A sample at a time, or several that were joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedSample {
    /// When it was taken, or the last of them was: nanoseconds since the recording began.
    pub at_ns: u64,
    /// What it stands for, nanoseconds before that time.
    pub weight_ns: u64,
    /// Node of its stack in the profile's trie; `None` for one whose stack was not kept.
    pub node: Option<NodeId>,
    /// Counts of it: 0 for a part of a period that others are counted for.
    pub count: u64,
    /// The CPU that it was taken on; `None` where that is not known.
    pub cpu: Option<u32>,
}

impl TimedSample {
    /// When it began, nanoseconds since the recording did.
    #[must_use]
    pub fn since_ns(&self) -> u64 {
        self.at_ns.saturating_sub(self.weight_ns)
    }

    /// Its counts in parts of `each`, with their times: they end at equal distances, the last of them at `at_ns`.
    pub fn parts(&self, each: u64) -> impl Iterator<Item = (u64, u64)> {
        let each = each.max(1);
        (0..self.count.div_ceil(each)).map(move |part| {
            let before = part * each;
            let until = before.saturating_add(each).min(self.count);
            (self.count_time(self.count - until), until - before)
        })
    }

    /// The time of the count after which so many come.
    fn count_time(&self, after: u64) -> u64 {
        let back_ns = u128::from(after) * u128::from(self.weight_ns) / u128::from(self.count.max(1));
        self.at_ns.saturating_sub(back_ns as u64)
    }

    /// How many of its counts have times before this one.
    fn counts_before(&self, time_ns: u64) -> u64 {
        // The first ones may have been pushed against the beginning of the recording.
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

    /// The part of it that lies in a range; `None` for none. Parts of ranges that make a whole make a whole.
    fn in_time_range(&self, range: &Range<u64>) -> Option<TimedSample> {
        if self.count == 0 {
            // Of a time without a stack each moment is like another.
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
    /// What its stacks are shown under.
    pub process: TextId,
    /// The process, where it is known.
    pub pid: Option<u32>,
    /// Its name; empty if it had none.
    pub name: TextId,
    /// The system's number.
    pub id: u64,
    /// When it was first seen, nanoseconds since the recording began.
    pub begun_ns: u64,
    /// When it ended; `None` for one that ran on.
    pub ended_ns: Option<u64>,
    /// Its samples by time.
    pub samples: Vec<TimedSample>,
}

/// Time that was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// It lies after this time, nanoseconds since the recording began.
    pub since_ns: u64,
    /// It lies before this time, at which it was known.
    pub at_ns: u64,
    /// How much, nanoseconds.
    pub lost_ns: u64,
    /// Why.
    pub reason: TextId,
}

impl Loss {
    /// How much of it lies before a time, nanoseconds: it is spread evenly.
    fn before_ns(&self, time_ns: u64) -> u64 {
        let all_ns = self.at_ns.saturating_sub(self.since_ns);
        let passed_ns = time_ns.saturating_sub(self.since_ns).min(all_ns);
        match (u128::from(self.lost_ns) * u128::from(passed_ns)).checked_div(u128::from(all_ns)) {
            Some(before_ns) => before_ns as u64,
            None if self.at_ns < time_ns => self.lost_ns,
            None => 0,
        }
    }

    /// The part of it that lies in a range, whose beginning its times count from.
    fn in_time_range(&self, range: &Range<u64>) -> Option<Loss> {
        let lost_ns = self.before_ns(range.end) - self.before_ns(range.start);
        let since_ns = self.since_ns.max(range.start) - range.start;
        let at_ns = self.at_ns.min(range.end).saturating_sub(range.start);
        (lost_ns > 0).then_some(Loss { since_ns, at_ns, lost_ns, reason: self.reason })
    }

    /// How much, in samples of a period.
    pub(super) fn words(&self, period_ns: f64) -> String {
        match (self.lost_ns as f64 / period_ns).round() {
            ..=1.0 => "1 sample".to_owned(),
            samples => format!("{samples} samples"),
        }
    }

    /// Whether it is a gap: most of a CPU's time between its ends was lost.
    #[must_use]
    pub fn is_gap(&self) -> bool {
        self.lost_ns.saturating_mul(2) >= self.at_ns.saturating_sub(self.since_ns)
    }
}

/// As many of `count` as `part` is of `whole`, rounded.
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

/// What happened to a process or a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EventKind {
    /// A process started.
    ProcessStart,
    /// A thread started, which is not the first of its process.
    ThreadStart,
    /// A process began to run another program.
    Exec,
    /// A process mapped an image, which was seen at that time.
    ImageLoad,
    /// Such a thread ended.
    ThreadEnd,
    /// A process ended.
    ProcessEnd,
}

impl EventKind {
    /// All, in their order.
    const ALL: [EventKind; 6] = [
        EventKind::ProcessStart,
        EventKind::ThreadStart,
        EventKind::Exec,
        EventKind::ImageLoad,
        EventKind::ThreadEnd,
        EventKind::ProcessEnd,
    ];

    /// The kind that has these words.
    pub(super) fn of(words: &str) -> Option<EventKind> {
        EventKind::ALL.into_iter().find(|kind| kind.words() == words)
    }

    /// The words of the event.
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

/// An event of a process or a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// When, nanoseconds since the recording began.
    pub at_ns: u64,
    /// What.
    pub kind: EventKind,
    /// What the stacks of the process are shown under; empty if it has none.
    pub process: TextId,
    /// The system's number of the process.
    pub pid: u32,
    /// The system's number of the thread; that of the process where it is of no other one.
    pub thread: u64,
    /// The name of the thread, the program or the path of the image; empty where there is none.
    pub text: TextId,
}

/// Finds the thread of an event among those that have samples.
pub(super) struct ThreadIndex<'t> {
    timeline: &'t Timeline,
    /// Threads by the system's number, in their order.
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

    /// The thread that had the number of an event at its time.
    pub(super) fn own(&self, event: &Event) -> Option<usize> {
        let own = self.by_id.get(&event.thread)?;
        let is_begun = |index: &usize| {
            self.timeline.threads.get(*index).is_some_and(|thread| thread.begun_ns <= event.at_ns)
        };
        own.iter().rev().copied().find(is_begun).or(own.first().copied())
    }

    /// That thread, or one of the process.
    pub(super) fn of_process(&self, event: &Event) -> Option<usize> {
        self.own(event).or_else(|| self.by_pid.get(&event.pid).copied())
    }
}

/// The samples of a profile over time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// Steps that times are kept in, nanoseconds; `None` where each sample has its own.
    pub step_ns: Option<u64>,
    /// The threads that have samples.
    pub threads: Vec<ThreadTimeline>,
    /// What was lost, by time.
    pub losses: Vec<Loss>,
    /// What happened besides, by time.
    pub events: Vec<Event>,
}

impl Timeline {
    /// Gives each sample its counts: as many over time of each stack as `count` says of its node in all.
    /// Nodes are below `node_count`.
    pub(super) fn count_samples(&mut self, node_count: usize, count: impl Fn(NodeId) -> u64) {
        // What its samples weigh in all, weigh so far, and the counts given for that.
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

    /// It with the nodes of another trie.
    pub(super) fn with_nodes(&self, mut node: impl FnMut(NodeId) -> Option<NodeId>) -> Timeline {
        let mut other = self.clone();
        for sample in other.threads.iter_mut().flat_map(|thread| &mut thread.samples) {
            sample.node = sample.node.and_then(&mut node);
        }
        other
    }

    /// What of it has a node in another trie.
    pub(super) fn of_nodes(&self, node: impl FnMut(NodeId) -> Option<NodeId>) -> Timeline {
        let mut part = self.with_nodes(node);
        part.threads.iter_mut().for_each(|thread| thread.samples.retain(|sample| sample.node.is_some()));
        part.threads.retain(|thread| !thread.samples.is_empty());
        part
    }

    /// It with the numbers that texts have in another table.
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

    /// When the last of it was, nanoseconds since the recording began.
    #[must_use]
    pub fn end_ns(&self) -> u64 {
        let samples =
            self.threads.iter().filter_map(|thread| thread.samples.last()).map(|sample| sample.at_ns);
        let losses = self.losses.iter().map(|loss| loss.at_ns);
        samples.chain(losses).max().unwrap_or(0)
    }

    /// What is in a time range, nanoseconds since the recording began. Its times count from the beginning of the
    /// range.
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

    /// By reason: how much of what was lost lies before a time, and how much there is in all, nanoseconds.
    pub(super) fn lost_before_ns(&self, time_ns: u64) -> BTreeMap<TextId, (u64, u64)> {
        let mut lost: BTreeMap<TextId, (u64, u64)> = BTreeMap::new();
        for loss in &self.losses {
            let (before_ns, all_ns) = lost.entry(loss.reason).or_default();
            *before_ns = before_ns.saturating_add(loss.before_ns(time_ns));
            *all_ns = all_ns.saturating_add(loss.lost_ns);
        }
        lost
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
