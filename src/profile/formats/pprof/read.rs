//! Converts pprof, of any program, to a saved profile.
//!
//! Input: the unpacked message, hostile. Output: [`SavedProfile`], or an error with its position. Two passes: first
//! the tables, then the samples, which may precede what they refer to.
//!
//! Of several values of a sample the profile's default type is used, else the last, as in `go tool pprof`;
//! times become samples if they are whole periods of that time, or if the profile counts samples. Frames that
//! the profile says to drop are dropped (`prune.rs`). The process is named by the labels that stackprof
//! writes, else by the first mapping, which is the program.

use std::collections::{HashMap, HashSet};

use prost::Message;

use super::proto::{self, field};
use super::prune::{DroppedFrames, Prune};
use super::tables::{PERIOD_NS_MAX, SAMPLE_BYTES_MAX, Tables, for_each_field};
use super::values::{CountedValue, chosen};
use super::{label, metadata};
use crate::escape::file_name;
use crate::profile::DEPTH_MAX;
use crate::profile::about::{About, SAMPLES};
use crate::profile::builder::SavedBuilder;
use crate::profile::formats::Malformed;
use crate::profile::formats::protobuf::{Value, message};
use crate::profile::formats::tally::Tally;
use crate::profile::formats::thread_times::{ThreadTimes, weight_ns};
use crate::profile::labels::{Label, LabelValue};
use crate::profile::saved::{Function, Line, Mapping, SavedProfile, StackRoot};
use crate::profile::texts::TextId;
use crate::profile::timeline::TimedSample;

/// Linux appends this to the path of a mapped file that was deleted.
const DELETED: &str = " (deleted)";

/// Reads an unpacked profile.
///
/// # Errors
/// The error and its position, as a line for people.
pub fn read(bytes: &[u8]) -> Result<SavedProfile, Malformed> {
    let mut tally = Tally::new("profile");
    let saved = read_samples(bytes, &mut tally)?;
    tally.judge(false).map(|_| saved).map_err(|why| Malformed::from(why.to_string()))
}

/// Reads an unpacked profile, and counts invalid samples.
///
/// # Errors
/// The error and its position, as a line for people without the name of the file.
pub(in crate::profile::formats) fn read_samples(
    bytes: &[u8],
    tally: &mut Tally,
) -> Result<SavedProfile, Malformed> {
    let tables = Tables::read(bytes)?;
    let (chosen, unit) = chosen(&tables, bytes, tally)?;
    let mut about = about(&tables, unit.clone())?;
    if let Some(wanted) = tally.value_type() {
        // The profile describes its default type.
        (about.value_type, about.unit) = (Some(wanted.to_owned()), unit);
    }
    let mut reader = Reader {
        tables: &tables,
        begin_ns: about.time_unix_ns.unwrap_or(0),
        period_ns: about.period_ns().unwrap_or(0.0),
        has_merged_threads: tables.comments().any(|comment| comment == metadata::MERGED_THREADS),
        builder: SavedBuilder::new(about),
        texts: vec![None; tables.strings.len()],
        times: ThreadTimes::default(),
        labels: Vec::new(),
        without_labels: 0,
    };
    let prune = Prune::new(&tables, tally)?;
    let known = reader.known(prune)?;
    reader.samples(bytes, &known, chosen, tally)?;
    let Reader { mut builder, times, without_labels, .. } = reader;
    tally.remark_labels(without_labels);
    times.finish(&mut builder);
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
        if comment != metadata::MERGED_THREADS {
            metadata::take_comment(&mut about, comment);
        }
    }
    Ok(about)
}

struct Reader<'t, 'a> {
    tables: &'t Tables<'a>,
    builder: SavedBuilder,
    begin_ns: u64,
    period_ns: f64,
    /// Samples are by thread, but roots by process.
    has_merged_threads: bool,
    /// By string of the file.
    texts: Vec<Option<TextId>>,
    times: ThreadTimes,
    /// The labels of a sample; reused to avoid allocations.
    labels: Vec<Label>,
    /// Samples whose labels are left out.
    without_labels: u64,
}

/// The labels of a sample.
struct Labelled {
    root: StackRoot,
    pid: Option<u32>,
    thread: TextId,
    tid: Option<u64>,
    cpu: Option<u32>,
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
        if let Some(Some(known)) = self.texts.get(slot) {
            return Ok(*known);
        }
        let text = self.tables.string(index, of)?;
        let text = self.builder.text(text)?;
        if let Some(slot) = self.texts.get_mut(slot) {
            *slot = Some(text);
        }
        Ok(text)
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
            let location: proto::Location = message(bytes, "location", index)?;
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
        chosen: CountedValue,
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
            let sample = match proto::Sample::decode(bytes) {
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
            let value = sample.value.get(chosen.index).copied().unwrap_or(0);
            // Without its negative half a difference would be meaningless.
            let count = u64::try_from(value)
                .map_err(|_| format!("{} counts {value}; a difference of profiles is no profile", of()))?;
            // Rounded: the times of a profile are whole periods, up to the precision of a clock.
            let count = count / chosen.divisor + u64::from(count % chosen.divisor > chosen.divisor / 2);
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
                let lines = self.builder.so_far().frames().get(frame as usize).map_or(0, |at| at.lines.len());
                depth += lines.max(1);
                if depth > DEPTH_MAX {
                    return Err(format!("{} has more than {DEPTH_MAX} functions (DEPTH_MAX)", of()).into());
                }
                stack.push(frame);
                if has_user && cut != DroppedFrames::Nothing {
                    break;
                }
            }
            let labelled = self.labelled(&sample, known, &of)?;
            let root = self.builder.root(labelled.root)?;
            let node = self
                .builder
                .add(root, &stack, count)
                .map_err(|full| Malformed::caused_by(format!("{}: {full}", of()), full))?;
            tally.understand();
            let Some(time_ns) = labelled.time_ns else { return Ok(()) };
            let sample = TimedSample {
                at_ns: time_ns.saturating_sub(self.begin_ns),
                weight_ns: labelled.weight_ns.unwrap_or_else(|| weight_ns(count, self.period_ns)),
                // A stack that was not recorded has no counts.
                node: Some(node).filter(|_| count > 0 || !stack.is_empty()),
                count,
                cpu: labelled.cpu,
            };
            let key = (labelled.root.process, labelled.pid, labelled.thread, labelled.tid.unwrap_or(0));
            self.times.add(key, [sample].into_iter())
        })
    }

    /// The root of a sample, and its time.
    fn labelled(
        &mut self,
        sample: &proto::Sample,
        known: &SampleTables,
        of: &dyn Fn() -> String,
    ) -> Result<Labelled, Malformed> {
        let mut root = StackRoot::of(known.process);
        let (mut thread, mut tid) = (TextId::EMPTY, None);
        let (mut pid, mut cpu, mut time_ns, mut weight_ns) = (None, None, None, None);
        let mut others = std::mem::take(&mut self.labels);
        others.clear();
        for found in &sample.label {
            let tables = self.tables;
            let key = tables.string(found.key, "a label")?;
            let text = tables.string(found.str, "a label")?;
            match key {
                label::PROCESS => root.process = self.text(found.str, &of())?,
                label::THREAD => thread = self.text(found.str, &of())?,
                // Others write it as text of unknown meaning.
                label::TID if found.str == 0 => tid = Some(found.num.cast_unsigned()),
                label::PID if found.str == 0 => pid = u32::try_from(found.num).ok(),
                label::CPU if found.str == 0 => cpu = u32::try_from(found.num).ok(),
                label::TIME if found.str == 0 => time_ns = u64::try_from(found.num).ok(),
                label::WEIGHT if found.str == 0 => weight_ns = u64::try_from(found.num).ok(),
                label::STATE if text == label::WAITING || text == label::RUNNING => {
                    root.waiting = text == label::WAITING;
                    self.builder.about().idle.get_or_insert(true);
                }
                label::INCOMPLETE if text == label::YES => root.complete = false,
                _ => {
                    let value = match found.str {
                        0 => LabelValue::Number(found.num, self.text(found.num_unit, &of())?),
                        text => LabelValue::Text(self.text(text, &of())?),
                    };
                    others.push(Label { key: self.text(found.key, &of())?, value });
                }
            }
        }
        if tid.is_none() && thread != TextId::EMPTY {
            others.push(Label { key: self.builder.text(label::THREAD)?, value: LabelValue::Text(thread) });
        }
        match self.builder.labels(&mut others) {
            Some(labels) => root.labels = labels,
            None => self.without_labels += 1,
        }
        self.labels = others;
        root.thread = tid.filter(|_| !self.has_merged_threads).map(|tid| (thread, tid));
        Ok(Labelled { root, pid, thread, tid, cpu, time_ns, weight_ns })
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
