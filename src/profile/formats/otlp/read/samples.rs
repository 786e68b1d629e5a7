//! The samples of OTLP profiles.
//!
//! Input: encoded samples, which refer to the dictionary. Output: stacks, counts and times in a
//! [`SavedBuilder`]. A stack is converted once per thread. Many stacks in each of many threads need as many
//! nodes of the trie, and these are limited: so the cost is never quadratic in the size of a file.

use std::collections::HashMap;

use super::super::attributes::{self, Any};
use super::super::proto::{self, field};
use super::super::tables::Tables;
use super::super::{OBSERVATIONS_MAX, key};
use super::profiles::{Profile, for_each_time};
use crate::escape::file_name;
use crate::profile::DEPTH_MAX;
use crate::profile::about::{About, SAMPLES};
use crate::profile::builder::SavedBuilder;
use crate::profile::formats::pprof::label;
use crate::profile::formats::protobuf::{for_each_field, for_each_number, limit, message};
use crate::profile::formats::tally::Tally;
use crate::profile::formats::thread_times::{ThreadTimes, weight_ns};
use crate::profile::formats::{Malformed, encoding};
use crate::profile::saved::{Function, Line, Mapping, StackRoot};
use crate::profile::texts::TextId;
use crate::profile::timeline::TimedSample;
use crate::trie::NodeId;
use prost::encoding::decode_varint;

/// Most attributes of a sample.
const ATTRIBUTES_MAX: usize = 1 << 10;

/// Meaning of a sample's attribute.
#[derive(Clone, Copy)]
enum Attribute<'a> {
    Other,
    Process(TextId),
    Pid(u32),
    Thread(TextId),
    Tid(u64),
    Cpu(u32),
    Waiting(bool),
    Incomplete,
    Weights(&'a [u8]),
    /// A build id, and the rank of its key.
    BuildId(TextId, usize),
}

/// Identity of a sample from its attributes.
struct Identity<'a> {
    root: StackRoot,
    pid: Option<u32>,
    thread: TextId,
    tid: Option<u64>,
    cpu: Option<u32>,
    weights: &'a [u8],
}

/// A decoded sample.
#[derive(Default)]
struct Sample {
    stack: u64,
    attributes: Vec<u64>,
    values: Vec<u64>,
    times: Vec<u64>,
}

impl Sample {
    /// Decodes a sample, reusing allocations.
    fn read(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        self.stack = 0;
        self.attributes.clear();
        self.values.clear();
        self.times.clear();
        let more = |numbers: &mut Vec<u64>, number: u64, max: usize| {
            // One more than allowed shows that there are too many.
            if numbers.len() <= max {
                numbers.push(number);
            }
        };
        for_each_field(bytes, &"it", |number, value| match number {
            field::STACK_INDEX => for_each_number(value, &"it", |index| {
                self.stack = index;
                Ok(())
            }),
            field::SAMPLE_ATTRIBUTES => for_each_number(value, &"it", |index| {
                more(&mut self.attributes, index, ATTRIBUTES_MAX);
                Ok(())
            }),
            field::VALUES => for_each_number(value, &"it", |value| {
                more(&mut self.values, value, OBSERVATIONS_MAX);
                Ok(())
            }),
            field::TIMESTAMPS => {
                for_each_time(value, |time| more(&mut self.times, time, OBSERVATIONS_MAX));
                Ok(())
            }
            _ => Ok(()),
        })
    }

    /// Why it is invalid.
    fn fault(&self) -> Option<String> {
        match (self.values.len(), self.times.len()) {
            (0, 0) => Some("has neither values nor timestamps".to_owned()),
            (values, times) if values > 0 && times > 0 && values != times => {
                Some(format!("has {values} values and {times} timestamps"))
            }
            _ => None,
        }
    }
}

/// The profile under construction.
pub(super) struct Reader<'t, 'a> {
    tables: &'t Tables<'a>,
    builder: SavedBuilder,
    begin_ns: u64,
    has_merged_threads: bool,
    divisor: u64,
    period_ns: f64,
    /// By index in the dictionary.
    texts: Vec<Option<TextId>>,
    mappings: Vec<Option<u32>>,
    functions: Vec<Option<u32>>,
    frames: Vec<Option<u32>>,
    attributes: Vec<Option<Attribute<'a>>>,
    /// By index of the resource.
    processes: HashMap<usize, TextId>,
    /// By path.
    file_names: HashMap<TextId, TextId>,
    /// By root of the profile and stack of the dictionary.
    nodes: HashMap<(u32, u64), NodeId>,
    times: ThreadTimes,
    samples: u64,
    sample: Sample,
}

impl<'t, 'a> Reader<'t, 'a> {
    /// Returns a reader without samples.
    pub(super) fn new(
        tables: &'t Tables<'a>,
        about: About,
        begin_ns: u64,
        has_merged_threads: bool,
        divisor: u64,
    ) -> Reader<'t, 'a> {
        let period_ns = match (about.period_ns(), &*about.unit) {
            (Some(period_ns), SAMPLES) => period_ns,
            // Times are counted directly.
            (_, "nanoseconds") => 1.0,
            _ => 0.0,
        };
        Reader {
            tables,
            builder: SavedBuilder::new(about),
            begin_ns,
            has_merged_threads,
            divisor,
            period_ns,
            texts: vec![None; tables.strings.len()],
            mappings: vec![None; tables.mappings.len()],
            functions: vec![None; tables.functions.len()],
            frames: vec![None; tables.locations.len()],
            attributes: vec![None; tables.attributes.len()],
            processes: HashMap::new(),
            file_names: HashMap::new(),
            nodes: HashMap::new(),
            times: ThreadTimes::default(),
            samples: 0,
            sample: Sample::default(),
        }
    }

    /// The resulting profile.
    pub(super) fn finish(mut self) -> SavedBuilder {
        self.times.finish(&mut self.builder);
        self.builder
    }

    /// Reads the samples of a profile.
    pub(super) fn profile(&mut self, profile: &Profile<'_, 'a>, tally: &mut Tally) -> Result<(), Malformed> {
        let process = self.process(profile)?;
        profile.for_each_sample(|bytes| {
            self.samples += 1;
            let number = self.samples;
            let mut sample = std::mem::take(&mut self.sample);
            let read = match sample.read(bytes) {
                Ok(()) => self.add(&sample, (process, profile.resource.pid), number, tally),
                Err(why) => {
                    tally.skip_sample(|| format!("sample {number} is broken: {why}"));
                    Ok(())
                }
            };
            self.sample = sample;
            read
        })
    }

    /// The process name for samples without one.
    fn process(&mut self, profile: &Profile<'_, 'a>) -> Result<TextId, Malformed> {
        if let Some(known) = self.processes.get(&profile.resource_number) {
            return Ok(*known);
        }
        let process = match (self.text_of(profile.resource.process)?, self.tables.mappings.get(1)) {
            (Some(path), _) if profile.resource.is_path => self.name_of_path(path)?,
            (Some(name), _) => name,
            // The first mapping other than the empty item.
            (None, Some(main)) => {
                let path = self.text(main.filename, "a mapping")?;
                self.name_of_path(path)?
            }
            (None, None) => TextId::EMPTY,
        };
        self.processes.insert(profile.resource_number, process);
        Ok(process)
    }

    /// The file name of a path.
    fn name_of_path(&mut self, path: TextId) -> Result<TextId, Malformed> {
        if let Some(known) = self.file_names.get(&path) {
            return Ok(*known);
        }
        let name = file_name(self.builder.so_far().text(path)).to_owned();
        let name = self.builder.text(&name)?;
        self.file_names.insert(path, name);
        Ok(name)
    }

    /// The text of an attribute, if it is one.
    fn text_of(&mut self, value: Any<'_>) -> Result<Option<TextId>, Malformed> {
        match value {
            // Names can be any bytes.
            Any::Text(bytes) => Ok(Some(self.builder.text(&encoding::text(bytes))?)),
            Any::StringIndex(index) => {
                let index = i32::try_from(index).map_err(|_| format!("an attribute names string {index}"))?;
                self.text(index, "an attribute").map(Some)
            }
            _ => Ok(None),
        }
    }

    fn add(
        &mut self,
        sample: &Sample,
        (process, pid): (TextId, Option<u32>),
        number: u64,
        tally: &mut Tally,
    ) -> Result<(), Malformed> {
        let of = || format!("sample {number}");
        let observations = sample.values.len().max(sample.times.len());
        limit(observations, OBSERVATIONS_MAX + 1, "observations of a sample")?;
        limit(sample.attributes.len(), ATTRIBUTES_MAX + 1, "attributes of a sample")?;
        let missing =
            |index: &&u64| usize::try_from(**index).map_or(true, |index| index >= self.attributes.len());
        let fault = sample.fault().or_else(|| {
            sample
                .attributes
                .iter()
                .find(missing)
                .map(|index| format!("names attribute {index}, which is not there"))
        });
        if let Some(fault) = fault {
            tally.skip_sample(|| format!("{} {fault}", of()));
            return Ok(());
        }
        let identity = self.identity(sample, process, pid)?;
        let root = self.builder.root(identity.root)?;
        let node = match self.node(root, sample.stack).map_err(|why| why.at(of()))? {
            Ok(node) => node,
            Err(what) => {
                tally.skip_sample(|| format!("{} names {what}, which is not there", of()));
                return Ok(());
            }
        };
        let weights = weights(identity.weights, observations);
        let mut timed = Vec::with_capacity(sample.times.len());
        for index in 0..observations {
            let value = sample.values.get(index).map_or(1, |value| value.cast_signed());
            // Without its negative half a difference would be meaningless.
            let count = u64::try_from(value)
                .map_err(|_| format!("{} counts {value}; a difference of profiles is no profile", of()))?;
            let count = count / self.divisor + u64::from(count % self.divisor > self.divisor / 2);
            self.builder.count(node, count).map_err(|full| Malformed::from(full).at(of()))?;
            if let Some(time) = sample.times.get(index) {
                let by_count = || weight_ns(count, self.period_ns);
                timed.push(TimedSample {
                    at_ns: time.saturating_sub(self.begin_ns),
                    weight_ns: weights.get(index).copied().unwrap_or_else(by_count),
                    // A stack that was not recorded has no counts.
                    node: Some(node).filter(|_| sample.stack > 0 || count > 0),
                    count,
                    cpu: identity.cpu,
                });
            }
        }
        tally.understand();
        let key = (identity.root.process, identity.pid, identity.thread, identity.tid.unwrap_or(0));
        self.times.add(key, timed.into_iter())
    }

    /// Determines the identity of a sample.
    fn identity(
        &mut self,
        sample: &Sample,
        process: TextId,
        pid: Option<u32>,
    ) -> Result<Identity<'a>, Malformed> {
        let root = StackRoot { process, thread: None, complete: true, waiting: false };
        let mut identity = Identity { root, pid, thread: TextId::EMPTY, tid: None, cpu: None, weights: &[] };
        for index in &sample.attributes {
            match self.attribute(*index)? {
                Attribute::Other | Attribute::BuildId(..) => {}
                Attribute::Process(process) => identity.root.process = process,
                Attribute::Pid(pid) => identity.pid = Some(pid),
                Attribute::Thread(name) => identity.thread = name,
                Attribute::Tid(tid) => identity.tid = Some(tid),
                Attribute::Cpu(cpu) => identity.cpu = Some(cpu),
                Attribute::Waiting(waiting) => {
                    identity.root.waiting = waiting;
                    self.builder.about().idle.get_or_insert(true);
                }
                Attribute::Incomplete => identity.root.complete = false,
                Attribute::Weights(weights) => identity.weights = weights,
            }
        }
        if !self.has_merged_threads {
            identity.root.thread = identity.tid.map(|tid| (identity.thread, tid));
        }
        Ok(identity)
    }

    /// The meaning of an attribute of the dictionary. Converted files have pprof's label keys.
    fn attribute(&mut self, index: u64) -> Result<Attribute<'a>, Malformed> {
        let tables = self.tables;
        let slot = usize::try_from(index).unwrap_or(usize::MAX);
        if let Some(Some(known)) = self.attributes.get(slot) {
            return Ok(*known);
        }
        let Some(bytes) = tables.attributes.get(slot) else { return Ok(Attribute::Other) };
        let (key, value) = attributes::of_dictionary(bytes, tables)
            .map_err(|why| why.at(format_args!("attribute {index}")))?;
        let build_id = key::BUILD_IDS.iter().position(|known| *known == key);
        let found = match (key, value) {
            (key::TID | label::TID, Any::Int(tid)) => Attribute::Tid(tid),
            (key::PID, Any::Int(pid)) => u32::try_from(pid).map_or(Attribute::Other, Attribute::Pid),
            (key::CPU, Any::Int(cpu)) => u32::try_from(cpu).map_or(Attribute::Other, Attribute::Cpu),
            (key::INCOMPLETE, Any::Bool(true)) => Attribute::Incomplete,
            (key::WEIGHTS, Any::Bytes(weights)) => Attribute::Weights(weights),
            (
                key::PROCESS
                | label::PROCESS
                | key::PROCESS_PATH
                | key::THREAD
                | label::THREAD
                | key::STATE
                | label::STATE
                | label::INCOMPLETE,
                _,
            ) => match self.text_of(value)? {
                Some(text) => self.text_attribute(key, text)?,
                None => Attribute::Other,
            },
            _ => match (build_id, build_id.map_or(Ok(None), |_| self.text_of(value))?) {
                (Some(place), Some(text)) => Attribute::BuildId(text, place),
                _ => Attribute::Other,
            },
        };
        if let Some(slot) = self.attributes.get_mut(slot) {
            *slot = Some(found);
        }
        Ok(found)
    }

    /// The meaning of an attribute with a text.
    fn text_attribute(&mut self, key: &str, text: TextId) -> Result<Attribute<'a>, Malformed> {
        let shown = self.builder.so_far().text(text);
        Ok(match (key, shown) {
            (key::PROCESS | label::PROCESS, _) => Attribute::Process(text),
            (key::PROCESS_PATH, _) => Attribute::Process(self.name_of_path(text)?),
            (key::THREAD | label::THREAD, _) => Attribute::Thread(text),
            (key::STATE | label::STATE, label::WAITING) => Attribute::Waiting(true),
            (key::STATE | label::STATE, label::RUNNING) => Attribute::Waiting(false),
            (label::INCOMPLETE, label::YES) => Attribute::Incomplete,
            _ => Attribute::Other,
        })
    }

    /// The node of a stack, or what it refers to that does not exist.
    fn node(&mut self, root: u32, stack: u64) -> Result<Result<NodeId, String>, Malformed> {
        if let Some(known) = self.nodes.get(&(root, stack)) {
            return Ok(Ok(*known));
        }
        let bytes = usize::try_from(stack).ok().and_then(|index| self.tables.stacks.get(index));
        // A missing stack is the empty one.
        let bytes = match bytes {
            Some(bytes) => bytes,
            None if stack == 0 => &[][..],
            None => return Ok(Err(format!("stack {stack}"))),
        };
        let mut locations = Vec::new();
        for_each_field(bytes, &"its stack", |number, value| {
            if number != field::LOCATION_INDICES {
                return Ok(());
            }
            for_each_number(value, &"its stack", |location| {
                limit(locations.len(), DEPTH_MAX, "frames of a stack (DEPTH_MAX)")?;
                locations.push(location);
                Ok(())
            })
        })?;
        let (mut frames, mut depth) = (Vec::with_capacity(locations.len()), 0);
        // The file has the leaf first.
        for location in locations.iter().rev() {
            let Some(frame) = self.frame(*location)? else { return Ok(Err(format!("location {location}"))) };
            let lines = self.builder.so_far().frames().get(frame as usize).map_or(0, |at| at.lines.len());
            depth += lines.max(1);
            if depth > DEPTH_MAX {
                return Err(format!("more than {DEPTH_MAX} functions (DEPTH_MAX)").into());
            }
            frames.push(frame);
        }
        let node = self.builder.add(root, &frames, 0)?;
        self.nodes.insert((root, stack), node);
        Ok(Ok(node))
    }

    /// The frame of a location, if it exists.
    fn frame(&mut self, location: u64) -> Result<Option<u32>, Malformed> {
        let slot = usize::try_from(location).unwrap_or(usize::MAX);
        if let Some(Some(known)) = self.frames.get(slot) {
            return Ok(Some(*known));
        }
        let Some(bytes) = self.tables.locations.get(slot) else { return Ok(None) };
        let found: proto::Location = message(bytes, "location", slot)?;
        let mut lines = Vec::with_capacity(found.lines.len());
        // The file has the innermost function first.
        for line in found.lines.iter().rev() {
            let function = self.function(line.function)?.ok_or_else(|| {
                format!("location {location} names function {}, which is not there", line.function)
            })?;
            lines.push(Line { function, line: u32::try_from(line.line).unwrap_or(0) });
        }
        // A missing mapping is treated as none: only the module is lost.
        let mapping = if found.mapping == 0 { None } else { self.mapping(found.mapping)? };
        let frame = self.builder.frame(found.address, mapping, &lines)?;
        if let Some(slot) = self.frames.get_mut(slot) {
            *slot = Some(frame);
        }
        Ok(Some(frame))
    }

    fn function(&mut self, index: i32) -> Result<Option<u32>, Malformed> {
        let slot = usize::try_from(index).unwrap_or(usize::MAX);
        if let Some(Some(known)) = self.functions.get(slot) {
            return Ok(Some(*known));
        }
        let Some(found) = self.tables.functions.get(slot) else { return Ok(None) };
        let of = format!("function {index}");
        let function = Function {
            name: self.text(found.name, &of)?,
            system_name: self.text(found.system_name, &of)?,
            file: self.text(found.filename, &of)?,
            start_line: u32::try_from(found.start_line).unwrap_or(0),
        };
        let taken = self.builder.function(function)?;
        if let Some(slot) = self.functions.get_mut(slot) {
            *slot = Some(taken);
        }
        Ok(Some(taken))
    }

    fn mapping(&mut self, index: i32) -> Result<Option<u32>, Malformed> {
        let tables = self.tables;
        let slot = usize::try_from(index).unwrap_or(usize::MAX);
        if let Some(Some(known)) = self.mappings.get(slot) {
            return Ok(Some(*known));
        }
        let Some(found) = tables.mappings.get(slot) else { return Ok(None) };
        let of = format!("mapping {index}");
        // The best so far.
        let (mut build_id, mut place) = (TextId::EMPTY, usize::MAX);
        for attribute in &found.attributes {
            let index = u64::try_from(*attribute).unwrap_or(u64::MAX);
            if let Attribute::BuildId(text, own_place) = self.attribute(index)?
                && own_place < place
            {
                (build_id, place) = (text, own_place);
            }
        }
        let path = self.text(found.filename, &of)?;
        let taken = self.builder.mapping(Mapping {
            start: found.memory_start,
            limit: found.memory_limit,
            file_offset: found.file_offset,
            path,
            build_id,
        })?;
        if let Some(slot) = self.mappings.get_mut(slot) {
            *slot = Some(taken);
        }
        Ok(Some(taken))
    }

    fn text(&mut self, index: i32, of: &str) -> Result<TextId, Malformed> {
        let slot = usize::try_from(index).unwrap_or(usize::MAX);
        if let Some(Some(known)) = self.texts.get(slot) {
            return Ok(*known);
        }
        let text = self.builder.text(self.tables.string(index.into(), of)?)?;
        if let Some(slot) = self.texts.get_mut(slot) {
            *slot = Some(text);
        }
        Ok(text)
    }
}

/// The weight of each observation; empty unless there is one for each.
fn weights(mut packed: &[u8], observations: usize) -> Vec<u64> {
    let mut weights = Vec::new();
    while !packed.is_empty() && weights.len() <= observations {
        let Ok(weight) = decode_varint(&mut packed) else { return Vec::new() };
        weights.push(weight);
    }
    if weights.len() == observations { weights } else { Vec::new() }
}
