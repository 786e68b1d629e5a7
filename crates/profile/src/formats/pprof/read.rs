//! Converts pprof, of any program, to a saved profile.
//!
//! `Tables` has all but the samples, `CountedValue` the value that is counted, `DroppedFrames` the frames to drop.
//!
//! Input: the unpacked message, hostile. Output: [`SavedProfile`], or an error with its position. Two passes: first
//! the tables, then the samples, which may precede what they refer to.
//!
//! Of several values of a sample the profile's default type is used, else the last, as in `go tool pprof`;
//! times become samples if they are whole periods of that time, or if the profile counts samples. Frames that
//! the profile says to drop are dropped. The process is named by the labels that stackprof
//! writes, else by the first mapping, which is the program.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

use prost::Message;
use prost::bytes::Buf;
use prost::encoding::decode_varint;
use regex_lite::{Regex, RegexBuilder};

use super::{field, label};
use crate::DEPTH_MAX;
use crate::about::{About, COMMENTS_MAX, SAMPLES};
use crate::builder::SavedBuilder;
use crate::escape::file_name;
use crate::formats::protobuf::{self, Value, limit, message, string_at};
use crate::formats::samples::{SampleIdentity, Samples, is_multiple};
use crate::formats::tally::Tally;
use crate::formats::{Malformed, encoding, pprof};
use crate::saved::{Function, Label, LabelValue, Line, Mapping, SavedProfile};
use crate::table::Memo;
use crate::texts::TextId;

/// Linux appends this to the path of a mapped file that was deleted.
const DELETED: &str = " (deleted)";

/// Reads an unpacked profile.
///
/// # Errors
/// The error and its position, as a line for people.
pub fn read(bytes: &[u8]) -> Result<SavedProfile, Malformed> {
    Tally::judged(|tally| read_samples(bytes, tally))
}

/// Reads an unpacked profile, and counts invalid samples.
///
/// # Errors
/// The error and its position, as a line for people without the name of the file.
pub(crate) fn read_samples(bytes: &[u8], tally: &mut Tally) -> Result<SavedProfile, Malformed> {
    let tables = Tables::read(bytes)?;
    let (chosen, unit) = chosen(&tables, bytes, tally)?;
    let mut about = about(&tables, unit.clone())?;
    if let Some(wanted) = tally.value_type() {
        // The profile describes its default type.
        (about.value_type, about.unit) = (Some(wanted.to_owned()), unit);
    }
    let mut reader = Reader {
        tables: &tables,
        samples: Samples::new(
            about.time_unix_ns.unwrap_or(0),
            about.period_ns().unwrap_or(0.0),
            chosen.divisor,
            tables.comments().any(|comment| comment == pprof::MERGED_THREADS),
        ),
        builder: SavedBuilder::new(about),
        texts: Memo::new(tables.strings.len()),
        labels: Vec::new(),
    };
    let prune = Prune::new(&tables, tally)?;
    let known = reader.known(prune)?;
    reader.samples(bytes, &known, chosen.index, tally)?;
    let Reader { mut builder, samples, .. } = reader;
    samples.finish(&mut builder, tally);
    Ok(builder.finish())
}

fn about(tables: &Tables<'_>, unit: String) -> Result<About, Malformed> {
    let known = |value: u64| Some(value).filter(|value| *value > 0 && i64::try_from(*value).is_ok());
    let mut about = About {
        time_unix_ns: known(tables.time_ns),
        duration_ns: known(tables.duration_ns),
        unit,
        ..About::default()
    };
    let unit = tables.string(tables.period_type.unit, "the period type")?;
    let is_rate = unit == "nanoseconds" && (1..=PERIOD_NS_MAX).contains(&tables.period);
    if is_rate && about.unit == SAMPLES {
        about.hz = Some((1e9 / tables.period as f64).round() as u32);
    }
    // One string can be referenced any number of times.
    let mut known = HashSet::new();
    for comment in tables.comments.iter().filter(|comment| known.insert(**comment)) {
        let comment = tables.string(comment.cast_signed(), "a comment")?;
        if comment != pprof::MERGED_THREADS {
            pprof::take_comment(&mut about, comment);
        }
    }
    Ok(about)
}

struct Reader<'t, 'a> {
    tables: &'t Tables<'a>,
    builder: SavedBuilder,
    samples: Samples,
    /// By string of the file.
    texts: Memo<TextId>,
    /// The labels of a sample; reused to avoid allocations.
    labels: Vec<Label>,
}

/// The labels of a sample.
struct Labelled {
    identity: SampleIdentity,
    /// Its time, nanoseconds since 1970.
    time_ns: Option<u64>,
    weight_ns: Option<u64>,
}

/// Tables for samples.
struct SampleTables {
    /// By id of a location: the frame, and its dropped part.
    frames: HashMap<u64, (u32, DroppedFrames)>,
    /// Process name for samples without one.
    process: TextId,
}

impl Reader<'_, '_> {
    fn text(&mut self, index: i64, of: &str) -> Result<TextId, Malformed> {
        let slot = usize::try_from(index).unwrap_or(usize::MAX);
        if let Some(known) = self.texts.get(slot) {
            return Ok(known);
        }
        let text = self.builder.text(self.tables.string(index, of)?)?;
        Ok(self.texts.put(slot, text))
    }

    /// Reads mappings, functions and locations.
    fn known(&mut self, prune: Prune) -> Result<SampleTables, Malformed> {
        let tables = self.tables;
        let mut mappings = HashMap::with_capacity(tables.mappings.len());
        for mapping in &tables.mappings {
            let of = format!("mapping {}", mapping.id);
            let path = without_deleted(tables.string(mapping.filename, &of)?);
            let (path, build_id) = (self.builder.text(path)?, self.text(mapping.build_id, &of)?);
            let taken = self.builder.mapping(Mapping {
                start: mapping.memory_start,
                limit: mapping.memory_limit,
                file_offset: mapping.file_offset,
                path,
                build_id,
            });
            define(&mut mappings, mapping.id, taken?, "mapping")?;
        }
        let mut functions = HashMap::with_capacity(tables.functions.len());
        for function in &tables.functions {
            let of = format!("function {}", function.id);
            let taken = Function {
                name: self.text(function.name, &of)?,
                system_name: self.text(function.system_name, &of)?,
                file: self.text(function.filename, &of)?,
                start_line: line_number(function.start_line),
            };
            let taken = self.builder.function(taken)?;
            define(&mut functions, function.id, taken, "function")?;
        }
        let frames = self.locations(&mappings, &functions, prune)?;
        let main =
            tables.mappings.first().map_or(Ok(""), |main| tables.string(main.filename, "a mapping"))?;
        let process = file_name(without_deleted(main));
        let process = self.builder.text(process)?;
        Ok(SampleTables { frames, process })
    }

    fn locations(
        &mut self,
        mappings: &HashMap<u64, u32>,
        functions: &HashMap<u64, u32>,
        mut prune: Prune,
    ) -> Result<HashMap<u64, (u32, DroppedFrames)>, Malformed> {
        let tables = self.tables;
        let mut frames = HashMap::with_capacity(tables.locations.len());
        let mut lines = Vec::new();
        for (index, span) in tables.locations.iter().enumerate() {
            let bytes = tables.location_bytes.get(span.start as usize..span.end as usize).unwrap_or_default();
            let location: pprof::Location = message(bytes, "location", index)?;
            let id = location.id;
            lines.clear();
            // The file has the innermost function first.
            for line in location.line.iter().rev() {
                let function = functions.get(&line.function_id).copied().ok_or_else(|| {
                    format!("location {id} names function {}, which is not there", line.function_id)
                })?;
                lines.push(Line { function, line: line_number(line.line) });
            }
            let name = |line: &Line| self.builder.so_far().function(line.function).name;
            let cut = prune.cut(lines.iter().map(|line| {
                let name = name(line);
                (name, self.builder.so_far().text(name))
            }));
            if let DroppedFrames::Inner(kept) = cut {
                lines.truncate(kept);
            }
            // A missing mapping is treated as none, as in `go tool pprof`: only the module is lost.
            let mapping = mappings.get(&location.mapping_id).copied();
            let frame = self.builder.frame(location.address, mapping, &lines);
            define(&mut frames, id, (frame?, cut), "location")?;
        }
        Ok(frames)
    }

    fn samples(
        &mut self,
        bytes: &[u8],
        known: &SampleTables,
        chosen: usize,
        tally: &mut Tally,
    ) -> Result<(), Malformed> {
        let mut number = 0u64;
        let mut stack = Vec::new();
        for_each_field(bytes, |field, value| {
            let (field::SAMPLE, Value::Bytes(bytes)) = (field, value) else { return Ok(()) };
            number += 1;
            let of = || format!("sample {number}");
            if bytes.len() > SAMPLE_BYTES_MAX {
                return Err(format!("{} is longer than {SAMPLE_BYTES_MAX} bytes", of()).into());
            }
            let sample = match pprof::Sample::decode(bytes) {
                Ok(sample) => sample,
                Err(error) => {
                    tally.skip_sample(|| format!("{} is broken: {error}", of()));
                    return Ok(());
                }
            };
            let types = self.tables.sample_types.len();
            if sample.value.len() != types {
                tally.skip_sample(|| format!("{} has {} values, expected {types}", of(), sample.value.len()));
                return Ok(());
            }
            let count = self.samples.counts(sample.value.get(chosen).copied().unwrap_or(0), of)?;
            stack.clear();
            let (mut depth, mut has_user) = (0, false);
            for id in sample.location_id.iter().rev() {
                let Some((frame, cut)) = known.frames.get(id).copied() else {
                    tally.skip_sample(|| format!("{} names location {id}, which is not there", of()));
                    return Ok(());
                };
                // Dropping before the first kept frame would drop the whole stack.
                if has_user && cut == DroppedFrames::All {
                    break;
                }
                has_user |= cut == DroppedFrames::Nothing;
                depth += self.builder.depth_of(frame);
                if depth > DEPTH_MAX {
                    return Err(format!("{} has more than {DEPTH_MAX} functions (DEPTH_MAX)", of()).into());
                }
                stack.push(frame);
                if has_user && cut != DroppedFrames::Nothing {
                    break;
                }
            }
            let labelled = self.labelled(&sample, known, &of)?;
            let root = self.builder.root(labelled.identity.root)?;
            let node = self
                .builder
                .add(root, &stack, count)
                .map_err(|full| Malformed::caused_by(format!("{}: {full}", of()), full))?;
            tally.understand();
            let Some(time_ns) = labelled.time_ns else { return Ok(()) };
            // A stack that was not recorded has no counts.
            let node = Some(node).filter(|_| count > 0 || !stack.is_empty());
            let observation = (time_ns, labelled.weight_ns, node, count);
            self.samples.add_times(&labelled.identity, std::iter::once(observation))
        })
    }

    /// The root of a sample, and its time.
    fn labelled(
        &mut self,
        sample: &pprof::Sample,
        known: &SampleTables,
        of: &dyn Fn() -> String,
    ) -> Result<Labelled, Malformed> {
        let mut identity = SampleIdentity::of(known.process, None);
        let (mut time_ns, mut weight_ns) = (None, None);
        let mut others = std::mem::take(&mut self.labels);
        others.clear();
        for found in &sample.label {
            let tables = self.tables;
            let key = tables.string(found.key, "a label")?;
            let text = tables.string(found.str, "a label")?;
            match key {
                label::PROCESS => identity.root.process = self.text(found.str, &of())?,
                label::THREAD => identity.thread = self.text(found.str, &of())?,
                // Others write it as text of unknown meaning.
                label::TID if found.str == 0 => identity.tid = Some(found.num.cast_unsigned()),
                label::PID if found.str == 0 => identity.pid = u32::try_from(found.num).ok(),
                label::CPU if found.str == 0 => identity.cpu = u32::try_from(found.num).ok(),
                label::TIME if found.str == 0 => time_ns = u64::try_from(found.num).ok(),
                label::WEIGHT if found.str == 0 => weight_ns = u64::try_from(found.num).ok(),
                label::STATE if text == label::WAITING || text == label::RUNNING => {
                    identity.root.waiting = text == label::WAITING;
                    self.builder.about().idle.get_or_insert(true);
                }
                label::INCOMPLETE if text == label::YES => identity.root.complete = false,
                _ => {
                    let value = match found.str {
                        0 => LabelValue::Number(found.num, self.text(found.num_unit, &of())?),
                        text => LabelValue::Text(self.text(text, &of())?),
                    };
                    others.push(Label { key: self.text(found.key, &of())?, value });
                }
            }
        }
        if identity.tid.is_none() && identity.thread != TextId::EMPTY {
            let value = LabelValue::Text(identity.thread);
            others.push(Label { key: self.builder.text(label::THREAD)?, value });
        }
        self.samples.complete_root(&mut identity, &mut others, &mut self.builder);
        self.labels = others;
        Ok(Labelled { identity, time_ns, weight_ns })
    }
}

/// Records the position of the item with an id.
fn define<T>(ids: &mut HashMap<u64, T>, id: u64, index: T, what: &str) -> Result<(), Malformed> {
    if id == 0 {
        return Err(format!("a {what} has id 0, which stands for none").into());
    }
    if ids.insert(id, index).is_some() {
        return Err(format!("{what} {id} is there twice").into());
    }
    Ok(())
}

/// The path of a mapped file without the mark of a deleted one.
fn without_deleted(path: &str) -> &str {
    path.strip_suffix(DELETED).unwrap_or(path)
}

fn line_number(line: i64) -> u32 {
    u32::try_from(line).unwrap_or(0)
}

// ---- A pprof message except its samples: fields, and the tables that samples refer to.

/// Most bytes of one sample: a message takes up to sixteen times its size in memory.
pub(super) const SAMPLE_BYTES_MAX: usize = 4 << 20;

/// Most bytes of one location with its inlined functions.
pub(super) const LOCATION_BYTES_MAX: usize = 1 << 20;

/// Longest period that can be a rate: one sample a second.
pub(crate) const PERIOD_NS_MAX: i64 = 1_000_000_000;

/// Calls `visit` with each field of the outermost message.
pub(super) fn for_each_field<'a>(
    bytes: &'a [u8],
    visit: impl FnMut(u32, Value<'a>) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    protobuf::for_each_field(bytes, &"the unpacked profile", visit)
}

/// Everything except the samples, as in the file.
#[derive(Default)]
pub(super) struct Tables<'a> {
    pub(super) strings: Vec<Cow<'a, str>>,
    pub(super) sample_types: Vec<pprof::ValueType>,
    pub(super) mappings: Vec<pprof::Mapping>,
    pub(super) functions: Vec<pprof::Function>,
    pub(super) locations: Vec<Range<u32>>,
    /// The bytes of all locations, sliced by `locations`.
    pub(super) location_bytes: &'a [u8],
    pub(super) comments: Vec<u64>,
    pub(super) time_ns: u64,
    pub(super) duration_ns: u64,
    pub(super) period_type: pprof::ValueType,
    pub(super) period: i64,
    pub(super) default_type: u64,
    pub(super) drop_frames: u64,
    pub(super) keep_frames: u64,
    pub(super) samples: u64,
}

impl<'a> Tables<'a> {
    pub(super) fn read(bytes: &'a [u8]) -> Result<Tables<'a>, Malformed> {
        if u32::try_from(bytes.len()).is_err() {
            return Err("larger than 4 GiB".to_owned().into());
        }
        let mut tables = Tables { location_bytes: bytes, ..Tables::default() };
        for_each_field(bytes, |number, value| {
            match (number, value) {
                (field::STRING_TABLE, Value::Bytes(text)) => {
                    let index = tables.strings.len();
                    limit(index, crate::texts::TEXTS_MAX, "strings")?;
                    // Names of files and symbols can be any bytes.
                    tables.strings.push(encoding::text(text));
                }
                (field::SAMPLE_TYPE, Value::Bytes(bytes)) => {
                    limit(tables.sample_types.len(), 64, "sample types")?;
                    tables.sample_types.push(message(bytes, "sample type", tables.sample_types.len())?);
                }
                (field::MAPPING, Value::Bytes(bytes)) => {
                    limit(tables.mappings.len(), crate::builder::MAPPINGS_MAX, "mappings")?;
                    tables.mappings.push(message(bytes, "mapping", tables.mappings.len())?);
                }
                (field::FUNCTION, Value::Bytes(bytes)) => {
                    limit(tables.functions.len(), crate::builder::FUNCTIONS_MAX, "functions")?;
                    tables.functions.push(message(bytes, "function", tables.functions.len())?);
                }
                (field::LOCATION, Value::Bytes(location)) => {
                    limit(tables.locations.len(), crate::trie::FRAMES_MAX, "locations")?;
                    if location.len() > LOCATION_BYTES_MAX {
                        return Err(format!("location {} is too long", tables.locations.len()).into());
                    }
                    // A slice of `bytes`, so its offset fits in 32 bits.
                    let start = location.as_ptr().addr().wrapping_sub(bytes.as_ptr().addr()) as u32;
                    tables.locations.push(start..start.wrapping_add(location.len() as u32));
                }
                (field::PERIOD_TYPE, Value::Bytes(bytes)) => {
                    tables.period_type = message(bytes, "period type", 0)?;
                }
                (field::SAMPLE, Value::Bytes(_)) => tables.samples += 1,
                (field::TIME_NANOS, Value::Number(value)) => tables.time_ns = value,
                (field::DURATION_NANOS, Value::Number(value)) => tables.duration_ns = value,
                (field::PERIOD, Value::Number(value)) => tables.period = value.cast_signed(),
                (field::DEFAULT_SAMPLE_TYPE, Value::Number(value)) => tables.default_type = value,
                (field::DROP_FRAMES, Value::Number(value)) => tables.drop_frames = value,
                (field::KEEP_FRAMES, Value::Number(value)) => tables.keep_frames = value,
                (field::COMMENT, Value::Number(value)) => {
                    limit(tables.comments.len(), COMMENTS_MAX, "comments")?;
                    tables.comments.push(value);
                }
                (field::COMMENT, Value::Bytes(mut packed)) => {
                    while packed.has_remaining() {
                        limit(tables.comments.len(), COMMENTS_MAX, "comments")?;
                        let value = decode_varint(&mut packed);
                        tables.comments.push(value.map_err(|error| {
                            Malformed::caused_by(format!("the comments are broken: {error}"), error)
                        })?);
                    }
                }
                _ => {}
            }
            Ok(())
        })?;
        if tables.strings.first().is_some_and(|first| !first.is_empty()) {
            return Err("string 0 is not empty; this is not a pprof profile".to_owned().into());
        }
        if tables.sample_types.is_empty() {
            return Err("no sample type; this is not a pprof profile".to_owned().into());
        }
        Ok(tables)
    }

    /// The comments.
    pub(super) fn comments(&self) -> impl Iterator<Item = &str> {
        let known = |index: &u64| self.strings.get(usize::try_from(*index).ok()?);
        self.comments.iter().filter_map(known).map(|text| &**text)
    }

    pub(super) fn string(&self, index: i64, of: &str) -> Result<&str, Malformed> {
        string_at(&self.strings, index, of)
    }
}

// ---- Chooses the value of a pprof sample to count, and the unit of counts.
//
// Times become samples only if the conversion is lossless.

/// Shortest period for converting times to samples: no profiler samples every microsecond, and a period of 1
/// means that time itself is counted.
pub(crate) const PERIOD_NS_MIN: i64 = 1_000;

/// The value of a sample to count.
#[derive(Clone, Copy)]
pub(super) struct CountedValue {
    pub(super) index: usize,
    /// The value of one count.
    pub(super) divisor: u64,
}

/// Chooses the value, and its unit. `bytes` is the whole message.
pub(super) fn chosen(
    tables: &Tables<'_>,
    bytes: &[u8],
    tally: &mut Tally,
) -> Result<(CountedValue, String), Malformed> {
    let mut types = Vec::new();
    for (index, value) in tables.sample_types.iter().enumerate() {
        let of = format!("sample type {index}");
        types.push((tables.string(value.kind, &of)?, tables.string(value.unit, &of)?));
    }
    if let Some(wanted) = tally.value_type() {
        let index = types.iter().position(|(kind, _)| *kind == wanted).ok_or_else(|| {
            let kinds: Vec<&str> = types.iter().map(|(kind, _)| *kind).collect();
            format!("it has no values of type `{wanted}`; it has {}", kinds.join(", "))
        })?;
        let (kind, unit) = types.get(index).copied().unwrap_or_default();
        let unit = if matches!(unit, "count" | "") { kind } else { unit };
        return Ok((CountedValue { index, divisor: 1 }, unit.to_owned()));
    }
    let default = tables.string(tables.default_type.cast_signed(), "the default sample type")?;
    let named = |name: &str| types.iter().position(|(kind, _)| !name.is_empty() && *kind == name);
    // As `go tool pprof`; proportional counts of samples are preferred, as they are shorter.
    let shown = named(default).unwrap_or(types.len() - 1);
    let has_waits = tables.comments().any(|comment| comment == pprof::WITH_WAITS);
    let samples = named(SAMPLES).filter(|samples| are_proportional(bytes, *samples, shown, has_waits));
    let index = samples.unwrap_or(shown);
    let (kind, unit) = types.get(index).copied().unwrap_or_default();
    let one = CountedValue { index, divisor: 1 };
    let period = (
        tables.string(tables.period_type.kind, "the period type")?,
        tables.string(tables.period_type.unit, "the period type")?,
    );
    let is_sampled = period == (kind, unit) && (PERIOD_NS_MIN..=PERIOD_NS_MAX).contains(&tables.period);
    let found = match unit {
        "nanoseconds"
            if kind != SAMPLES && is_sampled && are_multiples(bytes, index, tables.period.unsigned_abs()) =>
        {
            (CountedValue { index, divisor: tables.period.unsigned_abs() }, SAMPLES.to_owned())
        }
        "count" | "" => (one, if kind.is_empty() { SAMPLES.to_owned() } else { kind.to_owned() }),
        unit if kind == SAMPLES => (one, if unit == SAMPLES { SAMPLES } else { unit }.to_owned()),
        unit => (one, unit.to_owned()),
    };
    // In stackprof's own files it is intended.
    let is_own = tables.comments().any(|comment| comment.strip_prefix(pprof::TYPE) == Some(kind));
    if types.len() > 1 && found.1 != SAMPLES && !is_own {
        tally.remark(&format!("1 of {} values is read: {kind}", types.len()));
    }
    Ok(found)
}

/// Whether a value of all samples is whole periods.
fn are_multiples(bytes: &[u8], index: usize, period: u64) -> bool {
    each_sample(bytes, |value| is_multiple(value(index).unsigned_abs(), period)).is_ok()
}

/// Whether one value of all samples is a constant multiple of another, up to rounding. Samples of waiting
/// threads, in profiles with these, have no CPU time.
fn are_proportional(bytes: &[u8], of: usize, value: usize, has_waits: bool) -> bool {
    // The largest is the most precise.
    let mut largest = (0, 0);
    let _ = each_sample(bytes, |sample| {
        if !has_waits || sample(value) != 0 {
            largest = largest.max((sample(of), sample(value)));
        }
        true
    });
    let ratio = largest.1 as f64 / largest.0 as f64;
    let fits = |count: i64, value: i64| {
        has_waits && value == 0 || (value as f64 - count as f64 * ratio).abs() <= 1.0 + ratio.abs() / 100.0
    };
    (largest.0 > 0 || has_waits) && each_sample(bytes, |sample| fits(sample(of), sample(value))).is_ok()
}

/// Calls `visit` with the values of each sample until it returns false.
fn each_sample(bytes: &[u8], mut visit: impl FnMut(&dyn Fn(usize) -> i64) -> bool) -> Result<(), Malformed> {
    for_each_field(bytes, |field, value: Value<'_>| match (field, value) {
        (field::SAMPLE, Value::Bytes(bytes)) if bytes.len() <= SAMPLE_BYTES_MAX => {
            // Errors are reported when the samples are read.
            let Ok(sample) = pprof::Sample::decode(bytes) else { return Ok(()) };
            let goes_on = visit(&|index| sample.value.get(index).copied().unwrap_or(0));
            if goes_on { Ok(()) } else { Err(String::new().into()) }
        }
        _ => Ok(()),
    })
}

// ---- Frames dropped by a pprof profile: `drop_frames` and `keep_frames`.
//
// A function with a fully matching name is dropped with all its callees, unless it is to be kept, as in `go tool
// pprof`. Names are matched without arguments.

/// Most bytes of a compiled expression: matching a byte costs up to its size.
const PATTERN_BYTES_MAX: usize = 1 << 16;
/// Parentheses in names that do not start arguments.
const IN_NAMES: [&str; 2] = ["(anonymous namespace)", "operator()"];

/// Dropped part of a location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DroppedFrames {
    Nothing,
    /// Its inner functions and their callees; this many outer ones are kept.
    Inner(usize),
    /// The location and its callees.
    All,
}

/// The two expressions, and the names that they drop.
#[derive(Default)]
pub(super) struct Prune {
    drop: Option<Regex>,
    keep: Option<Regex>,
    known: HashMap<TextId, bool>,
}

impl Prune {
    /// Compiles the expressions of a file; an invalid one drops nothing, which is reported.
    pub(super) fn new(tables: &Tables<'_>, tally: &mut Tally) -> Result<Prune, Malformed> {
        let mut is_sound = true;
        let mut pattern = |index: u64, of: &str| -> Result<Option<Regex>, Malformed> {
            let text = tables.string(index.cast_signed(), of)?;
            if text.is_empty() {
                return Ok(None);
            }
            let whole = RegexBuilder::new(&format!("^({text})$")).size_limit(PATTERN_BYTES_MAX).build();
            if whole.is_err() {
                tally.remark(&format!(
                    "{of} is no regular expression that can be used; no frames are dropped"
                ));
                is_sound = false;
            }
            Ok(whole.ok())
        };
        let drop = pattern(tables.drop_frames, "drop_frames")?;
        let keep = pattern(tables.keep_frames, "keep_frames")?;
        Ok(Prune { drop: drop.filter(|_| is_sound), keep, known: HashMap::new() })
    }

    /// The dropped part of a location, by the names of its functions, outermost first.
    pub(super) fn cut<'t>(&mut self, names: impl Iterator<Item = (TextId, &'t str)>) -> DroppedFrames {
        let Some(pattern) = &self.drop else { return DroppedFrames::Nothing };
        for (kept, (id, name)) in names.enumerate() {
            let is_dropped = *self.known.entry(id).or_insert_with(|| {
                let name = without_arguments(name);
                let is_kept = || self.keep.as_ref().is_some_and(|keep| keep.is_match(name));
                !name.is_empty() && pattern.is_match(name) && !is_kept()
            });
            match kept {
                _ if !is_dropped => {}
                0 => return DroppedFrames::All,
                kept => return DroppedFrames::Inner(kept),
            }
        }
        DroppedFrames::Nothing
    }
}

/// A function's name without arguments, and without PowerPC's leading dot.
fn without_arguments(name: &str) -> &str {
    let name = name.strip_prefix('.').unwrap_or(name);
    let mut from = 0;
    while let Some(rest) = name.get(from..) {
        let Some(at) = rest.find(['(', 'o']) else { break };
        let found = rest.get(at..).unwrap_or_default();
        from += at
            + match IN_NAMES.iter().find(|part| found.starts_with(**part)) {
                Some(part) => part.len(),
                None if found.starts_with('(') => return name.get(..from + at).unwrap_or(name),
                None => 1,
            };
    }
    name
}

#[cfg(test)]
mod prune_tests {
    use super::*;

    #[test]
    fn arguments_are_not_part_of_a_name() {
        for (name, expected) in [
            ("malloc", "malloc"),
            (".malloc", "malloc"),
            ("a::f(int, void (*)(int))", "a::f"),
            ("(anonymous namespace)::f(int)", "(anonymous namespace)::f"),
            ("A::operator()(int) const", "A::operator()"),
            ("foo::o(", "foo::o"),
            ("main.(*T).run", "main."),
            ("", ""),
        ] {
            assert_eq!(without_arguments(name), expected);
        }
    }

    #[test]
    fn inlined_functions_are_cut_off() {
        let names = ["main", "inner", "malloc"];
        let cut = |drop: &str, keep: &str| {
            let compile = |text: &str| (!text.is_empty()).then(|| Regex::new(text).expect("compiles"));
            let mut prune = Prune { drop: compile(drop), keep: compile(keep), known: HashMap::new() };
            prune.cut((1..).map(TextId).zip(names))
        };
        assert_eq!(cut("^(malloc)$", ""), DroppedFrames::Inner(2));
        assert_eq!(cut("^(main|malloc)$", ""), DroppedFrames::All);
        assert_eq!(cut("^(main|malloc)$", "^main$"), DroppedFrames::Inner(2));
        assert_eq!(cut("^(m)$", ""), DroppedFrames::Nothing);
        assert_eq!(cut("", "^main$"), DroppedFrames::Nothing);
    }
}
