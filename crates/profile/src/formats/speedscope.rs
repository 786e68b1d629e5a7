//! speedscope's JSON: sampled profiles, one for each thread, read and written.
//!
//! Format: <https://www.speedscope.app/file-format-schema.json>. Stacks are written one by one, so that memory does
//! not grow with the size of the file. If times are known, the samples of a thread are in their order. The format
//! has neither addresses nor the rate; other data is in a custom key (`json.rs`), which the schema allows.
//! `speedscope/read.rs` reads sampled and evented profiles.

mod read;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

use serde::{Deserialize, Deserializer, Serialize};

use super::json::{Extra, Index, NO_INDEX};
use super::samples::without_timeline;
use crate::StackFrame;
use crate::escape::{escape_json, escape_line};
use crate::saved::INCOMPLETE;
use crate::saved::{SavedProfile, StackRoot, UNKNOWN};
use crate::table::{Lists, Numbered};
use crate::timeline::{ThreadTimeline, TimedSample, Timeline};
use crate::trie::NodeId;
use crate::views::by_name::{ByThread, OneThread};

pub(super) use read::{OneProfile, read};

const SCHEMA: &str = "https://www.speedscope.app/file-format-schema.json";

/// Writes `saved` as speedscope JSON; with `None`, the title is derived from the profile.
///
/// # Errors
/// Errors of the writer.
pub fn write(saved: &SavedProfile, title: Option<&str>, out: &mut dyn Write) -> io::Result<()> {
    let saved = &saved.without_addresses().map_err(io::Error::other)?;
    let frames = Frames::of(saved);
    let timeline = saved.timeline().filter(|timeline| fits(saved, timeline, &frames));
    let about = &saved.about;
    let title = title.map_or_else(|| saved.processes().join(", ").into(), escape_line);
    write!(out, "{{\"$schema\":{},\"name\":{}", json(SCHEMA)?, json(&title)?)?;
    write!(out, ",\"exporter\":{}", json(concat!("stackprof ", env!("CARGO_PKG_VERSION")))?)?;
    let extra = Extra::of(about, saved, timeline);
    write!(out, ",\"stackprof\":{},\"shared\":{{\"frames\":[", json(&extra)?)?;
    for (index, frame) in frames.table.items().iter().enumerate() {
        write!(out, "{}{}", if index > 0 { ",\n" } else { "" }, json(frame)?)?;
    }
    write!(out, "]}},\"profiles\":[")?;
    let mut totals = Vec::new();
    if let Some(timeline) = timeline {
        let total = |thread: &ThreadTimeline| thread.samples.iter().map(|sample| sample.count).sum::<u64>();
        totals.extend(timeline.threads.iter().map(total));
        write_timed(saved, timeline, &frames, out)?;
    }
    if let Some(saved) = without_timeline(saved, timeline)? {
        let saved = &*saved;
        let by_thread = ByThread::of(saved);
        for (index, thread) in by_thread.threads().iter().enumerate() {
            if index > 0 || timeline.is_some_and(|timeline| !timeline.threads.is_empty()) {
                writeln!(out, ",")?;
            }
            totals.push(one(saved, &by_thread, thread, &frames, out)?);
        }
    }
    // Viewers show one profile first: the heaviest thread, not one of a shell that started the program.
    let heaviest = (0..totals.len()).rev().max_by_key(|index| totals.get(*index)).unwrap_or(0);
    writeln!(out, "],\"activeProfileIndex\":{heaviest}}}")
}

/// Writes the profile of a thread. Returns its total.
fn one(
    saved: &SavedProfile,
    by_thread: &ByThread<'_>,
    thread: &OneThread,
    frames: &Frames<'_>,
    out: &mut dyn Write,
) -> io::Result<u64> {
    let name = thread.thread.map(|(name, id)| (saved.text(name), id));
    begin(ExtraThread::of(saved.text(thread.process), name), out)?;
    // The format requires all stacks before the first weight.
    let mut weights: Vec<(u64, bool)> = Vec::new();
    let mut written = Ok(());
    let mut line = String::new();
    by_thread.for_each_stack(thread, &mut |root, stack, count| {
        line.clear();
        line.push_str(if weights.is_empty() { "[" } else { ",\n[" });
        frames.push_stack(root, stack.iter().copied(), &mut line);
        line.push(']');
        weights.push((count, root.waiting));
        if written.is_ok() {
            written = out.write_all(line.as_bytes());
        }
    });
    written?;
    let total = weights.iter().fold(0u64, |total, (count, _)| total.saturating_add(*count));
    // Milliseconds if the rate is known, so that viewers show times.
    let (unit, scale) = match saved.about.period_ns() {
        Some(period_ns) => ("milliseconds", Some(period_ns / 1e6)),
        None if saved.about.unit == "bytes" => ("bytes", None),
        None => ("none", None),
    };
    let weight = |count: u64| match scale {
        Some(scale) => json(&(count as f64 * scale)),
        None => Ok(count.to_string()),
    };
    write!(out, "],\n\"weights\":[")?;
    for (index, (count, _)) in weights.iter().enumerate() {
        write!(out, "{}{}", if index > 0 { "," } else { "" }, weight(*count)?)?;
    }
    write!(out, "],\n\"unit\":\"{unit}\",\"startValue\":0,\"endValue\":{}}}", weight(total)?)?;
    Ok(total)
}

/// Writes the beginning of a profile, up to its samples.
fn begin(extra: ExtraThread<'_>, out: &mut dyn Write) -> io::Result<()> {
    let process = &extra.process;
    let title = match &extra.thread {
        Some((name, id)) => format!("{process}: {name} ({id})"),
        None => process.clone().into_owned(),
    };
    write!(out, "{{\"type\":\"sampled\",\"name\":{},\"stackprof\":{}", json(&title)?, json(&extra)?)?;
    write!(out, ",\"samples\":[")
}

fn json(value: &(impl Serialize + ?Sized)) -> io::Result<String> {
    serde_json::to_string(value).map(|text| escape_json(&text).into_owned()).map_err(io::Error::other)
}

/// The frames of the file: one for each name with its file and line.
struct Frames<'s> {
    table: Numbered<FileFrame<'s>>,
    /// By frame of the profile.
    lists: Lists<u32>,
    incomplete: u32,
    waiting: u32,
}

impl<'s> Frames<'s> {
    fn of(saved: &'s SavedProfile) -> Frames<'s> {
        let (table, lists) = (Numbered::default(), Lists::default());
        let mut frames = Frames { table, lists, incomplete: 0, waiting: 0 };
        let mark = |name| FileFrame { name: Cow::Borrowed(name), file: None, line: None };
        if saved.roots().iter().any(|root| !root.complete) {
            frames.incomplete = frames.table.number(mark(INCOMPLETE));
        }
        if saved.roots().iter().any(|root| root.waiting) {
            frames.waiting = frames.table.number(mark(WAITING));
        }
        for frame in saved.frames() {
            let lines = saved.lines_of(frame);
            if lines.is_empty() {
                let name = Cow::Owned(saved.place_of(frame));
                frames.lists.push(frames.table.number(FileFrame { name, file: None, line: None }));
            }
            for line in lines {
                let function = saved.function(line.function);
                let name = [function.name, function.system_name].map(|name| saved.text(name));
                let name = name.into_iter().find(|name| !name.is_empty()).unwrap_or(UNKNOWN);
                let frame = FileFrame {
                    name: Cow::Borrowed(name),
                    file: Some(saved.text(function.file)).filter(|file| !file.is_empty()).map(Cow::Borrowed),
                    line: Some(line.line).filter(|line| *line > 0),
                };
                frames.lists.push(frames.table.number(frame));
            }
            frames.lists.end();
        }
        frames
    }

    /// Appends the numbers of a stack's frames, outermost first.
    fn push_stack(&self, root: &StackRoot, stack: impl Iterator<Item = u32>, line: &mut String) {
        let marks = [root.waiting.then_some(self.waiting), (!root.complete).then_some(self.incomplete)];
        let marks = marks.into_iter().flatten();
        let code = stack.flat_map(|frame| self.of_frame(frame)).copied();
        for (index, frame) in marks.chain(code).enumerate() {
            use std::fmt::Write as _;
            // Writing to a String cannot fail.
            let _ = write!(line, "{}{frame}", if index > 0 { "," } else { "" });
        }
    }

    fn of_frame(&self, frame: u32) -> &[u32] {
        self.lists.get(frame as usize)
    }
}

// ---- Frames of a file, and stackprof's data next to them.

/// First frame of waiting threads' stacks; speedscope has no place for it outside of the stack.
const WAITING: &str = "[waiting]";

/// A frame in the file's layout.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct FileFrame<'a> {
    #[serde(borrow)]
    pub(crate) name: Cow<'a, str>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub(crate) file: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "line_number")]
    pub(crate) line: Option<u32>,
}

/// Data of a thread that the format has no place for.
#[derive(Serialize, Deserialize)]
struct ExtraThread<'a> {
    #[serde(borrow)]
    process: Cow<'a, str>,
    #[serde(borrow)]
    thread: Option<(Cow<'a, str>, u64)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    /// By sample: time, weight, counts. Empty if times are unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    at_ns: Vec<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    weight_ns: Vec<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    counts: Vec<u64>,
}

impl<'a> ExtraThread<'a> {
    fn of(process: &'a str, thread: Option<(&'a str, u64)>) -> ExtraThread<'a> {
        let thread = thread.map(|(name, id)| (Cow::Borrowed(name), id));
        let process = Cow::Borrowed(process);
        ExtraThread { process, thread, pid: None, at_ns: vec![], weight_ns: vec![], counts: vec![] }
    }

    /// Time, weight and counts of sample `index`, if there are as many entries as `samples`.
    fn timed(&self, index: usize, samples: usize) -> Option<(u64, u64, u64)> {
        let columns = [&self.at_ns, &self.weight_ns, &self.counts];
        let are_whole = columns.iter().all(|column| column.len() == samples);
        let [at_ns, weight_ns, count] = columns.map(|column| column.get(index).copied());
        Some((at_ns?, weight_ns?, count?)).filter(|_| are_whole)
    }
}

/// A line number: the schema has numbers, with -1, 0 and `null` meaning none.
fn line_number<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    let line = Option::<Index>::deserialize(from)?.map(|Index(line)| line);
    Ok(line.filter(|line| !matches!(*line, 0 | NO_INDEX)))
}

// ---- Samples in the order of their times, for speedscope: a profile for each thread.
//
// A weight is the duration of a sample. The weights of a stack add up to its counts, as those of the whole
// profile do, so a weight is that duration up to the rounding of the stack's counts. Viewers place a sample
// at the sum of the previous weights: one that would end after its time is shortened, and its stack gets the
// rest in small gaps before later samples of it, or in a separate profile after all threads ([`ROUNDING`]).
// So differences do not accumulate. A pause is a sample without a stack. The exact times and counts are in a
// custom key.

/// Shorter pauses are ignored: samples of a running thread are not exactly a period apart.
const PAUSE_PERIODS: f64 = 0.5;
/// Tolerated end of a sample after its time: weights are not exactly the time since the previous one.
const LATE_PERIODS: f64 = 0.25;
/// Name of the profile with the remaining rounding differences.
const ROUNDING: &str = "[rounding]";
/// Most frames of all samples together, each written separately: 100 MB. Larger profiles are written without
/// times.
const FRAMES_MAX: u64 = 1 << 24;

/// Whether viewers can open a file with the times, and weights are times.
fn fits(saved: &SavedProfile, timeline: &Timeline, frames: &Frames<'_>) -> bool {
    let depths = saved.trie().map_nodes(0u64, |_, frame, caller| match frame {
        StackFrame::Root(_) => 2,
        StackFrame::Frame(frame) => caller + frames.of_frame(frame).len() as u64,
    });
    let samples = timeline.threads.iter().flat_map(|thread| &thread.samples);
    let depth = |sample: &TimedSample| {
        sample.node.map_or(1, |node| depths.get(node.0 as usize).copied().unwrap_or(1))
    };
    saved.about.period_ns().is_some() && samples.map(depth).fold(0, u64::saturating_add) <= FRAMES_MAX
}

/// Writes the threads of a timeline.
fn write_timed(
    saved: &SavedProfile,
    timeline: &Timeline,
    frames: &Frames<'_>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let period_ns = saved.about.period_ns().unwrap_or(0.0);
    // By node: the sums that convert times to weights.
    let mut sums: BTreeMap<NodeId, (u64, u64)> = BTreeMap::new();
    for sample in timeline.threads.iter().flat_map(|thread| &thread.samples) {
        if let Some(node) = sample.node {
            let (weight_ns, count) = sums.entry(node).or_default();
            *weight_ns = weight_ns.saturating_add(sample.weight_ns);
            *count = count.saturating_add(sample.count);
        }
    }
    let factor = |(node, (weight_ns, count)): (NodeId, (u64, u64))| {
        (node, if weight_ns > 0 { count as f64 * period_ns / weight_ns as f64 } else { 0.0 })
    };
    let factors = sums.into_iter().map(factor).collect();
    let rests_ns = BTreeMap::new();
    let mut writer = Writer { saved, frames, period_ns, factors, rests_ns, stacks: HashMap::new() };
    for (index, thread) in timeline.threads.iter().enumerate() {
        if index > 0 {
            writeln!(out, ",")?;
        }
        writer.thread(thread, out)?;
    }
    writer.rounding(out)
}

struct Writer<'s> {
    saved: &'s SavedProfile,
    frames: &'s Frames<'s>,
    period_ns: f64,
    factors: HashMap<NodeId, f64>,
    /// By node: the shortened part of its samples that was not restored.
    rests_ns: BTreeMap<NodeId, f64>,
    /// By node: its serialized stack.
    stacks: HashMap<NodeId, String>,
}

impl Writer<'_> {
    fn thread(&mut self, thread: &ThreadTimeline, out: &mut dyn Write) -> io::Result<()> {
        let saved = self.saved;
        let mut extra =
            ExtraThread::of(saved.text(thread.process), Some((saved.text(thread.name), thread.id)));
        extra.pid = thread.pid;
        // Entries: node and weight.
        let mut entries: Vec<(Option<NodeId>, f64)> = Vec::new();
        let mut now_ns = 0.0;
        // By node: the shortened part of its samples.
        let mut rests_ns: BTreeMap<NodeId, f64> = BTreeMap::new();
        for sample in &thread.samples {
            let factor = sample.node.map_or(1.0, |node| self.factors.get(&node).copied().unwrap_or(1.0));
            // Without times to distribute, counts are the weights.
            let weight_ns = match sample.weight_ns {
                0 => sample.count as f64 * self.period_ns,
                weight_ns => weight_ns as f64 * factor,
            };
            let weight_ns = match sample.node {
                Some(node) => {
                    let rest_ns = rests_ns.remove(&node).unwrap_or(0.0);
                    let wanted_ns = weight_ns + rest_ns.min(self.period_ns * PAUSE_PERIODS);
                    let taken_ns = wanted_ns
                        .min((sample.at_ns as f64 + self.period_ns * LATE_PERIODS - now_ns).max(0.0));
                    let left_ns = weight_ns + rest_ns - taken_ns;
                    if left_ns > 0.0 {
                        rests_ns.insert(node, left_ns);
                    }
                    taken_ns
                }
                None => weight_ns,
            };
            let pause_ns = sample.at_ns as f64 - weight_ns - now_ns;
            if pause_ns > self.period_ns * PAUSE_PERIODS {
                entries.push((None, pause_ns));
                extra.at_ns.push(sample.at_ns);
                extra.weight_ns.push(0);
                extra.counts.push(0);
                now_ns += pause_ns;
            }
            entries.push((sample.node, weight_ns));
            extra.at_ns.push(sample.at_ns);
            extra.weight_ns.push(sample.weight_ns);
            extra.counts.push(sample.count);
            now_ns += weight_ns;
        }
        for (node, rest_ns) in rests_ns {
            *self.rests_ns.entry(node).or_default() += rest_ns;
        }
        self.profile(extra, &entries, out)
    }

    /// Writes the remaining differences of all threads, without times.
    fn rounding(&mut self, out: &mut dyn Write) -> io::Result<()> {
        let rests_ns = std::mem::take(&mut self.rests_ns);
        if rests_ns.values().sum::<f64>() < self.period_ns * LATE_PERIODS {
            return Ok(());
        }
        let mut extra = ExtraThread::of(ROUNDING, None);
        let none = vec![0; rests_ns.len()];
        (extra.at_ns, extra.weight_ns, extra.counts) = (none.clone(), none.clone(), none);
        let entries: Vec<_> = rests_ns.into_iter().map(|(node, rest_ns)| (Some(node), rest_ns)).collect();
        writeln!(out, ",")?;
        self.profile(extra, &entries, out)
    }

    /// Writes a profile of samples, each with its node and its weight.
    fn profile(
        &mut self,
        extra: ExtraThread<'_>,
        entries: &[(Option<NodeId>, f64)],
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let total_ns: f64 = entries.iter().map(|(_, weight_ns)| weight_ns).sum();
        begin(extra, out)?;
        for (index, (node, _)) in entries.iter().enumerate() {
            let stack = match node {
                Some(node) => self.stack(*node),
                None => "",
            };
            write!(out, "{}[{stack}]", if index > 0 { ",\n" } else { "" })?;
        }
        write!(out, "],\n\"weights\":[")?;
        for (index, (_, weight_ns)) in entries.iter().enumerate() {
            write!(out, "{}{}", if index > 0 { "," } else { "" }, json(&(weight_ns / 1e6))?)?;
        }
        write!(
            out,
            "],\n\"unit\":\"milliseconds\",\"startValue\":0,\"endValue\":{}}}",
            json(&(total_ns / 1e6))?
        )
    }

    fn stack(&mut self, node: NodeId) -> &str {
        let (saved, frames) = (self.saved, self.frames);
        self.stacks.entry(node).or_insert_with(|| {
            let trie = saved.trie();
            let none = StackRoot::of(crate::TextId::EMPTY);
            let (mut root, mut stack) = (&none, Vec::new());
            let mut at = Some(node);
            while let Some(here) = at {
                match trie.key(here) {
                    Some(StackFrame::Root(index)) => {
                        root = saved.roots().get(index as usize).unwrap_or(&none)
                    }
                    Some(StackFrame::Frame(frame)) => stack.push(frame),
                    None => {}
                }
                at = trie.parent(here);
            }
            let mut line = String::new();
            frames.push_stack(root, stack.into_iter().rev(), &mut line);
            line
        })
    }
}
