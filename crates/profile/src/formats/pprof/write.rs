//! Writes a saved profile as pprof.
//!
//! `write` writes counts by stack, `write_timed` the samples of a timeline, one by one.
//!
//! The fields of the message are written as they are created, so that memory does not grow with the size of
//! the file. Only data that a stack refers to is written.

use std::collections::HashMap;
use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;

use super::{Function, Label, Line, Location, Mapping, Sample, ValueType, field, label};
use crate::about::SAMPLES;
use crate::formats::pprof;
use crate::formats::protobuf::{put_bytes, put_message, put_number};
use crate::formats::samples::{weight_ns, without_timeline};
use crate::saved::{Frame, LabelValue, SavedProfile, StackRoot, StackValues};
use crate::texts::TextId;
use crate::timeline::Timeline;
use crate::trie::NodeId;

/// Bytes of messages collected before compression.
const BUFFER_BYTES: usize = 1 << 16;

/// Writes `saved` as gzipped pprof.
///
/// # Errors
/// Errors of the writer, and [`io::ErrorKind::InvalidData`] for a count beyond the format's 63 bits.
pub fn write(saved: &SavedProfile, out: &mut dyn Write) -> io::Result<()> {
    write_with(saved, None, out)
}

/// Writes `saved` as gzipped pprof, with each sample of its timeline separate and labelled with its time.
///
/// # Errors
/// Errors of the writer, and [`io::ErrorKind::InvalidData`] for a count beyond the format's 63 bits.
pub fn write_timed(saved: &SavedProfile, out: &mut dyn Write) -> io::Result<()> {
    write_with(saved, saved.timeline(), out)
}

fn write_with(saved: &SavedProfile, timeline: Option<&Timeline>, out: &mut dyn Write) -> io::Result<()> {
    // The header has no time and no name: same profile, same bytes.
    let mut writer = Writer {
        saved,
        timeline,
        strings: Strings { ids: vec![None; saved.texts().count()], ..Strings::default() },
        buffer: Vec::with_capacity(BUFFER_BYTES),
        out: GzEncoder::new(out, Compression::default()),
    };
    writer.profile()?;
    writer.flush()?;
    writer.out.finish()?.flush()
}

pub(super) struct Writer<'s, 'o> {
    pub(super) saved: &'s SavedProfile,
    /// Set if its samples are written separately.
    timeline: Option<&'s Timeline>,
    pub(super) strings: Strings,
    buffer: Vec<u8>,
    out: GzEncoder<&'o mut dyn Write>,
}

/// The table of strings, in the order of first use; index 0 is the empty one.
#[derive(Default)]
pub(super) struct Strings {
    /// By text of the profile.
    ids: Vec<Option<u32>>,
    used: Vec<StringSource>,
}

enum StringSource {
    Text(TextId),
    Own(String),
}

impl Strings {
    pub(super) fn text(&mut self, text: TextId) -> i64 {
        if text == TextId::EMPTY {
            return 0;
        }
        let Some(id) = self.ids.get_mut(text.0 as usize) else { return 0 };
        let used = &mut self.used;
        i64::from(*id.get_or_insert_with(|| {
            used.push(StringSource::Text(text));
            used.len() as u32
        }))
    }

    /// Adds a string that is not one of the profile's; must be called once for each.
    pub(super) fn own(&mut self, text: &str) -> i64 {
        self.used.push(StringSource::Own(text.to_owned()));
        self.used.len() as i64
    }
}

/// Indices of label strings.
pub(super) struct Keys {
    process: i64,
    pub(super) thread: i64,
    pub(super) tid: i64,
    state: i64,
    waiting: i64,
    running: i64,
    incomplete: i64,
    yes: i64,
}

impl Writer<'_, '_> {
    fn profile(&mut self) -> io::Result<()> {
        let saved = self.saved;
        let about = &saved.about;
        let period_ns = about.period_ns();
        self.sample_types()?;
        if period_ns.is_some() {
            let cpu = ValueType { kind: self.strings.own("cpu"), unit: self.strings.own("nanoseconds") };
            self.message(field::SAMPLE_TYPE, &cpu)?;
            self.message(field::PERIOD_TYPE, &cpu)?;
            self.number(field::PERIOD, period_ns.map_or(0, |ns| ns.round() as u64))?;
            self.number(field::DEFAULT_SAMPLE_TYPE, cpu.kind.unsigned_abs())?;
        }
        self.number(field::TIME_NANOS, about.time_unix_ns.unwrap_or(0))?;
        self.number(field::DURATION_NANOS, about.duration_ns.unwrap_or(0))?;
        for comment in pprof::to_comments(about) {
            let comment = self.strings.own(&comment);
            self.number(field::COMMENT, comment.unsigned_abs())?;
        }
        if self.timeline.is_some() && saved.roots().iter().all(|root| root.thread.is_none()) {
            let comment = self.strings.own(pprof::MERGED_THREADS);
            self.number(field::COMMENT, comment.unsigned_abs())?;
        }
        let used = self.samples(period_ns)?;
        self.locations(&used)?;
        self.table()
    }

    /// Writes the types of values, except CPU time; for allocations also the size represented by one sample.
    fn sample_types(&mut self) -> io::Result<()> {
        let about = &self.saved.about;
        let mut own =
            |kind: &str, unit: &str| ValueType { kind: self.strings.own(kind), unit: self.strings.own(unit) };
        let types = match self.saved.values() {
            Some(values) => values.types().iter().map(|of| own(&of.kind, &of.unit)).collect(),
            None => vec![own(about.counted_type().0, about.counted_type().1)],
        };
        for of in &types {
            self.message(field::SAMPLE_TYPE, of)?;
        }
        if let Some(every) = about.sampled_every {
            let space = ValueType { kind: self.strings.own("space"), unit: self.strings.own("bytes") };
            self.message(field::PERIOD_TYPE, &space)?;
            self.number(field::PERIOD, every)?;
        }
        if let (Some(values), Some(kind)) = (self.saved.values(), &about.value_type)
            && let Some(shown) = values.index(kind).and_then(|index| types.get(index))
        {
            self.number(field::DEFAULT_SAMPLE_TYPE, shown.kind.unsigned_abs())?;
        }
        Ok(())
    }

    /// Writes a sample for each stack with all its values.
    fn all_values(&mut self, values: &StackValues, keys: &Keys, used: &mut [bool]) -> io::Result<()> {
        let saved = self.saved;
        let (mut sample, mut frames) = (Sample::default(), Vec::new());
        for (node, row) in values.rows() {
            frames.clear();
            let Some(root) = saved.path_of(node, &mut frames) else { continue };
            set_stack(&mut sample, &frames, used);
            self.labels(&root, keys, &mut sample.label);
            let values = row.iter().map(|value| i64::try_from(*value).map_err(|_| too_large(*value)));
            sample.value = values.collect::<io::Result<_>>()?;
            self.message(field::SAMPLE, &sample)?;
        }
        Ok(())
    }

    /// Writes the samples; returns which frames they use.
    fn samples(&mut self, period_ns: Option<f64>) -> io::Result<Vec<bool>> {
        let saved = self.saved;
        let mut own = |text: &str| self.strings.own(text);
        let keys = Keys {
            process: own(label::PROCESS),
            thread: own(label::THREAD),
            tid: own(label::TID),
            state: own(label::STATE),
            waiting: own(label::WAITING),
            running: own(label::RUNNING),
            incomplete: own(label::INCOMPLETE),
            yes: own(label::YES),
        };
        let mut used = vec![false; saved.frames().len()];
        if let Some(values) = saved.values() {
            self.all_values(values, &keys, &mut used)?;
            return Ok(used);
        }
        if let Some(timeline) = self.timeline {
            self.timed_samples(timeline, &keys, &mut used, period_ns)?;
        }
        let Some(counted) = without_timeline(saved, self.timeline)? else { return Ok(used) };
        let mut written = Ok(());
        let mut sample = Sample::default();
        counted.for_each_stack(|root, frames, count| {
            if written.is_err() {
                return;
            }
            set_stack(&mut sample, frames, &mut used);
            self.labels(root, &keys, &mut sample.label);
            written = set_values(&mut sample, count, root.waiting, period_ns)
                .and_then(|()| self.message(field::SAMPLE, &sample));
        });
        written.map(|()| used)
    }

    pub(super) fn labels(&mut self, root: &StackRoot, keys: &Keys, labels: &mut Vec<Label>) {
        let text = |key, str| Label { key, str, ..Label::default() };
        labels.push(text(keys.process, self.strings.text(root.process)));
        if let Some((name, id)) = root.thread {
            labels.push(text(keys.thread, self.strings.text(name)));
            // Bit for bit: numbers beyond 63 bits round-trip.
            labels.push(Label { key: keys.tid, num: id.cast_signed(), ..Label::default() });
        }
        if root.waiting {
            labels.push(text(keys.state, keys.waiting));
        } else if self.saved.about.idle == Some(true) {
            labels.push(text(keys.state, keys.running));
        }
        if !root.complete {
            labels.push(text(keys.incomplete, keys.yes));
        }
        for label in self.saved.labels(root.labels) {
            let key = self.strings.text(label.key);
            labels.push(match label.value {
                LabelValue::Text(value) => text(key, self.strings.text(value)),
                LabelValue::Number(num, unit) => {
                    Label { key, num, num_unit: self.strings.text(unit), ..Label::default() }
                }
            });
        }
    }

    /// Writes locations with their functions and mappings.
    fn locations(&mut self, used: &[bool]) -> io::Result<()> {
        let saved = self.saved;
        let mut functions = vec![false; saved.functions().len()];
        let mut mappings = vec![Kinds::default(); saved.mappings().len()];
        for (index, frame) in saved.frames().iter().enumerate() {
            if used.get(index) != Some(&true) {
                continue;
            }
            let lines = saved.lines_of(frame);
            for line in lines {
                if let Some(function) = functions.get_mut(line.function as usize) {
                    *function = true;
                }
            }
            if let Some(kinds) = frame.mapping.and_then(|mapping| mappings.get_mut(mapping as usize)) {
                kinds.add(saved, frame);
            }
            let line = |line: &crate::Line| Line {
                function_id: u64::from(line.function) + 1,
                line: i64::from(line.line),
            };
            let location = Location {
                id: index as u64 + 1,
                mapping_id: frame.mapping.map_or(0, |mapping| u64::from(mapping) + 1),
                address: frame.address,
                line: lines.iter().rev().map(line).collect(),
            };
            self.message(field::LOCATION, &location)?;
        }
        for (index, function) in saved.functions().iter().enumerate() {
            if functions.get(index) == Some(&true) {
                let function = Function {
                    id: index as u64 + 1,
                    name: self.strings.text(function.name),
                    system_name: self.strings.text(function.system_name),
                    filename: self.strings.text(function.file),
                    start_line: i64::from(function.start_line),
                };
                self.message(field::FUNCTION, &function)?;
            }
        }
        for index in main_first(saved) {
            let (Some(mapping), Some(kinds)) = (saved.mappings().get(index), mappings.get(index)) else {
                continue;
            };
            if kinds.used {
                let mapping = Mapping {
                    id: index as u64 + 1,
                    memory_start: mapping.start,
                    memory_limit: mapping.limit,
                    file_offset: mapping.file_offset,
                    filename: self.strings.text(mapping.path),
                    build_id: self.strings.text(mapping.build_id),
                    has_functions: kinds.functions,
                    has_filenames: kinds.files,
                    has_line_numbers: kinds.lines,
                    has_inline_frames: kinds.inlines,
                };
                self.message(field::MAPPING, &mapping)?;
            }
        }
        Ok(())
    }

    /// Writes the table of strings; no string can be added after that.
    fn table(&mut self) -> io::Result<()> {
        let used = std::mem::take(&mut self.strings.used);
        self.bytes(field::STRING_TABLE, b"")?;
        for text in &used {
            let text = match text {
                StringSource::Text(text) => self.saved.text(*text),
                StringSource::Own(text) => text,
            };
            self.bytes(field::STRING_TABLE, text.as_bytes())?;
        }
        Ok(())
    }

    pub(super) fn message(&mut self, field: u32, message: &impl Message) -> io::Result<()> {
        put_message(field, message, &mut self.buffer)?;
        self.flush_if_full()
    }

    fn bytes(&mut self, field: u32, bytes: &[u8]) -> io::Result<()> {
        put_bytes(field, bytes, &mut self.buffer);
        self.flush_if_full()
    }

    /// Writes a number, except 0, the default.
    fn number(&mut self, field: u32, value: u64) -> io::Result<()> {
        put_number(field, value, &mut self.buffer);
        self.flush_if_full()
    }

    fn flush_if_full(&mut self) -> io::Result<()> {
        if self.buffer.len() >= BUFFER_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.write_all(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }
}

/// Facts about the code of a mapping.
#[derive(Clone, Copy, Default)]
struct Kinds {
    used: bool,
    functions: bool,
    files: bool,
    lines: bool,
    inlines: bool,
}

impl Kinds {
    fn add(&mut self, saved: &SavedProfile, frame: &Frame) {
        let lines = saved.lines_of(frame);
        self.used = true;
        self.functions |= !lines.is_empty();
        self.inlines |= lines.len() > 1;
        self.lines |= lines.iter().any(|line| line.line > 0);
        self.files |= lines.iter().any(|line| saved.function(line.function).file != TextId::EMPTY);
    }
}

/// Mappings in the order of writing: tools assume that the first is the program.
fn main_first(saved: &SavedProfile) -> Vec<usize> {
    let process = saved.roots().first().map_or("", |root| saved.text(root.process));
    let is_main = |index: &usize| {
        let path = saved.mappings().get(*index).map_or("", |mapping| saved.text(mapping.path));
        // The kernel truncates process names.
        !process.is_empty() && path.rsplit('/').next().is_some_and(|name| name.starts_with(process))
    };
    let mut order: Vec<usize> = (0..saved.mappings().len()).collect();
    order.sort_by_key(|index| !is_main(index));
    order
}

/// Sets the stack of a sample without labels, and marks its frames, outermost first, as used.
fn set_stack(sample: &mut Sample, frames: &[u32], used: &mut [bool]) {
    sample.location_id.clear();
    sample.label.clear();
    for frame in frames.iter().rev() {
        sample.location_id.push(u64::from(*frame) + 1);
        if let Some(used) = used.get_mut(*frame as usize) {
            *used = true;
        }
    }
}

/// Sets the values of a sample: its count, and the corresponding CPU time.
pub(super) fn set_values(
    sample: &mut Sample,
    count: u64,
    waiting: bool,
    period_ns: Option<f64>,
) -> io::Result<()> {
    sample.value.clear();
    sample.value.push(i64::try_from(count).map_err(|_| too_large(count))?);
    if let Some(period_ns) = period_ns {
        // A waiting thread uses no CPU.
        let cpu_ns = if waiting { 0.0 } else { count as f64 * period_ns.round() };
        if cpu_ns >= FIRST_TOO_LARGE {
            return Err(too_large(count));
        }
        sample.value.push(cpu_ns as i64);
    }
    Ok(())
}

/// 2^63.
const FIRST_TOO_LARGE: f64 = 9_223_372_036_854_775_808.0;

fn too_large(count: u64) -> io::Error {
    let unit = SAMPLES;
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!(
            "a stack has {count} {unit}, more than pprof can hold with their CPU time; write folded instead"
        ),
    )
}

// ---- Samples of a timeline in pprof: separate ones, with labels for time and thread.

impl Writer<'_, '_> {
    /// Writes the samples; marks their frames in `used`.
    pub(super) fn timed_samples(
        &mut self,
        timeline: &Timeline,
        keys: &Keys,
        used: &mut [bool],
        period_ns: Option<f64>,
    ) -> io::Result<()> {
        let saved = self.saved;
        let [pid, cpu_key, time, weight, unit] =
            [label::PID, label::CPU, label::TIME, label::WEIGHT, label::NANOSECONDS]
                .map(|text| self.strings.own(text));
        let number =
            |key, num: u64| Label { key, num: num.cast_signed(), num_unit: unit, ..Label::default() };
        let begin_ns = saved.about.time_unix_ns.unwrap_or(0);
        // By node: its root, and its frames.
        let mut stacks: HashMap<NodeId, (Option<StackRoot>, Vec<u32>)> = HashMap::new();
        let mut sample = Sample::default();
        for thread in &timeline.threads {
            let lost = StackRoot::of(thread.process);
            for timed in &thread.samples {
                let stack = timed.node.map(|node| {
                    &*stacks.entry(node).or_insert_with(|| {
                        let mut frames = Vec::new();
                        (saved.path_of(node, &mut frames), frames)
                    })
                });
                let root = stack.and_then(|(root, _)| root.as_ref()).unwrap_or(&lost);
                set_stack(&mut sample, stack.map_or(&[], |(_, frames)| frames), used);
                self.labels(root, keys, &mut sample.label);
                if root.thread.is_none() {
                    let (str, num) = (self.strings.text(thread.name), thread.id.cast_signed());
                    sample.label.push(Label { key: keys.thread, str, ..Label::default() });
                    sample.label.push(Label { key: keys.tid, num, ..Label::default() });
                }
                if let Some(id) = thread.pid {
                    sample.label.push(Label { key: pid, num: id.into(), ..Label::default() });
                }
                if let Some(cpu) = timed.cpu {
                    sample.label.push(Label { key: cpu_key, num: cpu.into(), ..Label::default() });
                }
                sample.label.push(number(time, begin_ns.saturating_add(timed.at_ns)));
                if timed.weight_ns != weight_ns(timed.count, period_ns.unwrap_or(0.0)) {
                    sample.label.push(number(weight, timed.weight_ns));
                }
                set_values(&mut sample, timed.count, root.waiting, period_ns)?;
                self.message(field::SAMPLE, &sample)?;
            }
        }
        Ok(())
    }
}
