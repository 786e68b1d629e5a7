//! speedscope's JSON: sampled profiles, one for each thread, read and written.
//!
//! Format: <https://www.speedscope.app/file-format-schema.json>. Stacks are written one by one, so that
//! memory does not grow with the size of the file. If times are known, the samples of a thread are in their
//! order (`speedscope/timed_samples.rs`). The format has neither addresses nor the rate; other data is in a custom
//! key (`extra.rs`), which the schema allows. `speedscope/read.rs` reads sampled profiles,
//! `speedscope/evented.rs` evented ones.

mod evented;
mod frame;
mod read;
mod reader;
mod timed_samples;

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{self, Write};

use serde::Serialize;

use super::extra::Extra;
use crate::escape::{escape_json, escape_line};
use crate::profile::root_names::INCOMPLETE;
use crate::profile::saved::{SavedProfile, StackRoot, UNKNOWN};
use crate::profile::timeline::ThreadTimeline;
use crate::profile::views::threads::{ByThread, OneThread};
pub(super) use frame::FileFrame;
use frame::{ExtraThread, WAITING};
pub(super) use read::{OneProfile, read};

const SCHEMA: &str = "https://www.speedscope.app/file-format-schema.json";

/// Writes `saved` as speedscope JSON; with `None`, the title is derived from the profile.
///
/// # Errors
/// Errors of the writer.
pub fn write(saved: &SavedProfile, title: Option<&str>, out: &mut dyn Write) -> io::Result<()> {
    let saved = &saved.without_addresses().map_err(io::Error::other)?;
    let frames = Frames::of(saved);
    let timeline = saved.timeline().filter(|timeline| timed_samples::fits(saved, timeline, &frames));
    let about = &saved.about;
    let title = title.map_or_else(|| saved.processes().join(", ").into(), escape_line);
    write!(out, "{{\"$schema\":{},\"name\":{}", json(SCHEMA)?, json(&title)?)?;
    write!(out, ",\"exporter\":{}", json(concat!("stackprof ", env!("CARGO_PKG_VERSION")))?)?;
    let extra = match timeline {
        Some(timeline) => Extra::of(about).with_times(saved, timeline),
        None => Extra::of(about),
    };
    write!(out, ",\"stackprof\":{},\"shared\":{{\"frames\":[", json(&extra)?)?;
    for (index, frame) in frames.table.iter().enumerate() {
        write!(out, "{}{}", if index > 0 { ",\n" } else { "" }, json(frame)?)?;
    }
    write!(out, "]}},\"profiles\":[")?;
    let mut totals = Vec::new();
    let rest = match timeline {
        Some(timeline) => {
            let total =
                |thread: &ThreadTimeline| thread.samples.iter().map(|sample| sample.count).sum::<u64>();
            totals.extend(timeline.threads.iter().map(total));
            timed_samples::write(saved, timeline, &frames, out)?;
            saved.without_times().map_err(io::Error::other)?
        }
        None => None,
    };
    let counted = if timeline.is_some() { rest.as_ref() } else { Some(saved) };
    if let Some(saved) = counted {
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
    table: Vec<FileFrame<'s>>,
    /// By frame of the profile: a range in `lists`.
    spans: Vec<std::ops::Range<usize>>,
    lists: Vec<u32>,
    incomplete: u32,
    waiting: u32,
}

impl<'s> Frames<'s> {
    fn of(saved: &'s SavedProfile) -> Frames<'s> {
        let mut known: HashMap<FileFrame<'s>, u32> = HashMap::new();
        let mut frames =
            Frames { table: Vec::new(), spans: Vec::new(), lists: Vec::new(), incomplete: 0, waiting: 0 };
        let mut number = |table: &mut Vec<FileFrame<'s>>, frame: FileFrame<'s>| {
            *known.entry(frame).or_insert_with_key(|frame| {
                table.push(frame.clone());
                table.len() as u32 - 1
            })
        };
        let mark = |name| FileFrame { name: Cow::Borrowed(name), file: None, line: None };
        if saved.roots().iter().any(|root| !root.complete) {
            frames.incomplete = number(&mut frames.table, mark(INCOMPLETE));
        }
        if saved.roots().iter().any(|root| root.waiting) {
            frames.waiting = number(&mut frames.table, mark(WAITING));
        }
        for (index, frame) in saved.frames().iter().enumerate() {
            let start = frames.lists.len();
            let lines = saved.lines_of(frame);
            if lines.is_empty() {
                saved.names_of(index as u32, false, &mut |name| {
                    let frame = FileFrame { name: Cow::Owned(name.to_owned()), file: None, line: None };
                    frames.lists.push(number(&mut frames.table, frame));
                });
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
                frames.lists.push(number(&mut frames.table, frame));
            }
            frames.spans.push(start..frames.lists.len());
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
        let span = self.spans.get(frame as usize).cloned();
        span.and_then(|span| self.lists.get(span)).unwrap_or_default()
    }
}
