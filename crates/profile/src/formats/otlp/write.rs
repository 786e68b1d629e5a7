//! Writes a saved profile as OTLP.
//!
//! `Writer` writes samples, `Dictionary` has every text, mapping, function, location, stack and attribute once.
//!
//! One profile of samples; of a recording of allocations one for each value, the shown one first. With a
//! timeline: for each thread and stack its times and the counts at them, with their weights unless these are
//! whole periods; counts without a time follow as samples without timestamps.
//! Without a timeline: for each stack its count.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};

use super::proto::{self, Any, AnyValue, field};
use super::{OBSERVATIONS_MAX, SCOPE, key};
use crate::StackFrame;
use crate::about::About;
use crate::formats::json::Extra;
use crate::formats::pprof::{self, label};
use crate::formats::protobuf::{put_bytes, put_head, put_message, put_number};
use crate::formats::samples::weight_ns;
use crate::saved::{LabelValue, SavedProfile, StackRoot, StackValues, ValueType};
use crate::table::Memo;
use crate::texts::TextId;
use crate::timeline::{ThreadTimeline, TimedSample, Timeline};
use crate::trie::NodeId;

/// Writes `saved`, gzipped or not.
///
/// # Errors
/// Errors of the writer, and [`io::ErrorKind::InvalidData`] for a count beyond the format's 63 bits.
pub fn write(saved: &SavedProfile, gzip: bool, out: &mut dyn Write) -> io::Result<()> {
    if gzip {
        // The header has no time and no name: same profile, same bytes.
        let mut packed = GzEncoder::new(out, Compression::default());
        write_message(saved, &mut packed)?;
        packed.finish()?.flush()
    } else {
        write_message(saved, out)?;
        out.flush()
    }
}

fn write_message(saved: &SavedProfile, out: &mut dyn Write) -> io::Result<()> {
    let dictionary = Dictionary::new(saved)?;
    let mut writer = Writer { saved, dictionary, profile: Vec::new() };
    let mut messages = Vec::new();
    if let Some(values) = saved.values() {
        for (index, about) in about_each(saved, values) {
            writer.header(&about)?;
            writer.counts(|node| values.of(node).and_then(|row| row.get(index)).copied().unwrap_or(0))?;
            messages.push(std::mem::take(&mut writer.profile));
        }
    } else {
        writer.header(&saved.about)?;
        match saved.timeline() {
            Some(timeline) => writer.timed_samples(timeline)?,
            None => writer.counts(|node| saved.trie().count(node))?,
        }
        messages.push(std::mem::take(&mut writer.profile));
    }
    let Writer { dictionary, .. } = writer;
    let scope = proto::Scope { name: SCOPE.to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() };
    let mut profiles = Vec::new();
    put_message(field::SCOPE, &scope, &mut profiles)?;
    messages.iter().for_each(|profile| put_bytes(field::PROFILES, profile, &mut profiles));
    drop(messages);
    let mut resource_profiles = Vec::new();
    put_message(field::RESOURCE, &resource(saved), &mut resource_profiles)?;
    put_bytes(field::SCOPE_PROFILES, &profiles, &mut resource_profiles);
    drop(profiles);
    let mut head = Vec::new();
    put_head(field::RESOURCE_PROFILES, resource_profiles.len(), &mut head);
    out.write_all(&head)?;
    out.write_all(&resource_profiles)?;
    drop(resource_profiles);
    let tables = dictionary.finish()?;
    head.clear();
    put_head(field::DICTIONARY, tables.iter().map(Vec::len).sum(), &mut head);
    out.write_all(&head)?;
    tables.iter().try_for_each(|table| out.write_all(table))
}

/// The properties of the recording for each of its values, with the value's index: the shown value first.
fn about_each(saved: &SavedProfile, values: &StackValues) -> Vec<(usize, About)> {
    let shown = saved.about.value_type.as_deref();
    let about = |(index, of): (usize, &ValueType)| {
        let unit = of.counted_unit().to_owned();
        let lost = if unit == saved.about.unit { saved.about.lost.clone() } else { BTreeMap::new() };
        (index, About { value_type: Some(of.kind.clone()), unit, lost, ..saved.about.clone() })
    };
    let mut each: Vec<(usize, About)> = values.types().iter().enumerate().map(about).collect();
    each.sort_by_key(|(_, about)| about.value_type.as_deref() != shown);
    each
}

/// Facts about the process.
fn resource(saved: &SavedProfile) -> proto::Resource {
    let about = &saved.about;
    let attributes = [
        about.pid.map(|pid| (key::PID, Any::Int(pid.into()))),
        about.command.clone().map(|command| (key::COMMAND, Any::Text(command))),
    ];
    let attribute = |(key, value): (&str, Any)| proto::KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
    };
    proto::Resource { attributes: attributes.into_iter().flatten().map(attribute).collect() }
}

struct Writer<'s> {
    saved: &'s SavedProfile,
    dictionary: Dictionary<'s>,
    /// The `Profile` message so far.
    profile: Vec<u8>,
}

impl Writer<'_> {
    /// Writes everything except the samples.
    fn header(&mut self, about: &About) -> io::Result<()> {
        let saved = self.saved;
        self.value_type(field::SAMPLE_TYPE, about.counted_type())?;
        if let Some(time_unix_ns) = about.time_unix_ns {
            encode_key(field::TIME_UNIX_NANO, WireType::SixtyFourBit, &mut self.profile);
            self.profile.extend_from_slice(&time_unix_ns.to_le_bytes());
        }
        put_number(field::DURATION_NANO, about.duration_ns.unwrap_or(0), &mut self.profile);
        if let Some(period_ns) = about.period_ns() {
            self.value_type(field::PERIOD_TYPE, ("cpu", "nanoseconds"))?;
            put_number(field::PERIOD, period_ns.round() as u64, &mut self.profile);
        }
        if let Some(every) = about.sampled_every {
            self.value_type(field::PERIOD_TYPE, ("space", "bytes"))?;
            put_number(field::PERIOD, every, &mut self.profile);
        }
        let mut attributes = Vec::new();
        let recording = pprof::to_comments(about);
        let recording = recording.get(..recording.len() - about.comments.len()).unwrap_or_default().to_vec();
        attributes.push(self.dictionary.attribute(key::RECORDING, Any::texts(recording))?);
        if !about.comments.is_empty() {
            let comments = Any::texts(about.comments.clone());
            attributes.push(self.dictionary.attribute(key::COMMENTS, comments)?);
        }
        if let Some(timeline) = saved.timeline() {
            let times = serde_json::to_string(&Extra::of(about, saved, Some(timeline)))?;
            attributes.push(self.dictionary.attribute(key::TIMES, Any::Text(times))?);
        }
        let mut packed = Vec::new();
        attributes.iter().for_each(|index| encode_varint(u64::from(index.unsigned_abs()), &mut packed));
        put_bytes(field::PROFILE_ATTRIBUTES, &packed, &mut self.profile);
        Ok(())
    }

    fn value_type(&mut self, number: u32, (kind, unit): (&str, &str)) -> io::Result<()> {
        let mut text = |text: &str| self.dictionary.text(text.to_owned());
        let kind = proto::ValueType { kind: text(kind)?, unit: text(unit)? };
        put_message(number, &kind, &mut self.profile)
    }

    /// Writes a sample for each stack with a count.
    fn counts(&mut self, count: impl Fn(NodeId) -> u64) -> io::Result<()> {
        let saved = self.saved;
        let roots = roots(saved);
        for (node, root) in (0..).map(NodeId).zip(&roots) {
            let (Some(root), count) = (root, count(node)) else { continue };
            if count > 0 {
                let mut attributes = self.thread(root, None)?;
                attributes.extend(self.state(root)?);
                let stack = self.dictionary.stack(node)?;
                let values = vec![value(count)?];
                let sample = proto::Sample { stack, attributes, values, timestamps_unix_ns: Vec::new() };
                put_message(field::SAMPLES, &sample, &mut self.profile)?;
            }
        }
        Ok(())
    }

    /// Writes the samples of a timeline, and those that did not fit in it.
    fn timed_samples(&mut self, timeline: &Timeline) -> io::Result<()> {
        let saved = self.saved;
        let roots = roots(saved);
        for thread in &timeline.threads {
            let mut by_node: BTreeMap<(Option<NodeId>, Option<u32>), Vec<&TimedSample>> = BTreeMap::new();
            for sample in &thread.samples {
                by_node.entry((sample.node, sample.cpu)).or_default().push(sample);
            }
            for ((node, cpu), samples) in by_node {
                let root = node.and_then(|node| roots.get(node.0 as usize).copied().flatten());
                let stack = node.map_or(Ok(0), |node| self.dictionary.stack(node))?;
                let none = StackRoot::of(thread.process);
                let mut attributes = self.thread(root.unwrap_or(&none), Some(thread))?;
                if let Some(root) = root {
                    attributes.extend(self.state(root)?);
                }
                if let Some(cpu) = cpu {
                    attributes.push(self.dictionary.attribute(key::CPU, Any::Int(cpu.into()))?);
                }
                for samples in samples.chunks(OBSERVATIONS_MAX) {
                    self.observations(stack, attributes.clone(), samples)?;
                }
            }
        }
        self.counts(timeline.untimed(saved.trie()))
    }

    /// Writes a stack with its times.
    fn observations(
        &mut self,
        stack: i32,
        mut attributes: Vec<i32>,
        samples: &[&TimedSample],
    ) -> io::Result<()> {
        let about = &self.saved.about;
        let period_ns = about.period_ns().unwrap_or(0.0);
        if samples.iter().any(|sample| sample.weight_ns != weight_ns(sample.count, period_ns)) {
            let mut weights = Vec::new();
            samples.iter().for_each(|sample| encode_varint(sample.weight_ns, &mut weights));
            attributes.push(self.dictionary.attribute(key::WEIGHTS, Any::Bytes(weights))?);
        }
        let begin_ns = about.time_unix_ns.unwrap_or(0);
        let values = samples.iter().map(|sample| value(sample.count)).collect::<io::Result<_>>()?;
        let times = samples.iter().map(|sample| begin_ns.saturating_add(sample.at_ns));
        let sample = proto::Sample { stack, attributes, values, timestamps_unix_ns: times.collect() };
        put_message(field::SAMPLES, &sample, &mut self.profile)
    }

    /// Attributes for the identity of a sample. A thread of the profile always has its own name; that of the
    /// timeline is for threads that are merged.
    fn thread(&mut self, root: &StackRoot, timeline: Option<&ThreadTimeline>) -> io::Result<Vec<i32>> {
        let saved = self.saved;
        let text = |id| Any::Text(saved.text(id).to_owned());
        let mut attributes = vec![self.dictionary.attribute(key::PROCESS, text(root.process))?];
        if let Some(pid) = timeline.and_then(|thread| thread.pid) {
            attributes.push(self.dictionary.attribute(key::PID, Any::Int(pid.into()))?);
        }
        if let Some((name, id)) = root.thread.or(timeline.map(|thread| (thread.name, thread.id))) {
            attributes.push(self.dictionary.attribute(key::THREAD, text(name))?);
            // Bit for bit: numbers beyond 63 bits round-trip.
            attributes.push(self.dictionary.attribute(key::TID, Any::Int(id.cast_signed()))?);
        }
        Ok(attributes)
    }

    /// Attributes for how a stack was sampled.
    fn state(&mut self, root: &StackRoot) -> io::Result<Vec<i32>> {
        let mut attributes = Vec::new();
        let state = match (root.waiting, self.saved.about.idle) {
            (true, _) => Some(label::WAITING),
            (false, Some(true)) => Some(label::RUNNING),
            (false, _) => None,
        };
        if let Some(state) = state {
            attributes.push(self.dictionary.attribute(key::STATE, Any::Text(state.to_owned()))?);
        }
        if !root.complete {
            attributes.push(self.dictionary.attribute(key::INCOMPLETE, Any::Bool(true))?);
        }
        let saved = self.saved;
        for found in saved.labels(root.labels) {
            let key = saved.text(found.key);
            attributes.push(match found.value {
                LabelValue::Text(text) => {
                    self.dictionary.attribute(key, Any::Text(saved.text(text).to_owned()))?
                }
                LabelValue::Number(number, unit) => {
                    self.dictionary.attribute_in(key, Any::Int(number), saved.text(unit))?
                }
            });
        }
        Ok(attributes)
    }
}

/// By node: the root of its stack.
fn roots(saved: &SavedProfile) -> Vec<Option<&StackRoot>> {
    saved.trie().map_nodes(None, |_, frame, caller| match frame {
        StackFrame::Root(root) => saved.roots().get(root as usize),
        StackFrame::Frame(_) => *caller,
    })
}

fn value(count: u64) -> io::Result<i64> {
    i64::try_from(count).map_err(|_| {
        let text = format!("a stack has {count} samples, more than OTLP can hold; write folded instead");
        io::Error::new(io::ErrorKind::InvalidData, text)
    })
}

// ---- The dictionary of an OTLP file being written: each text, mapping, function, location, stack and attribute
// once.
//
// Parts without samples are not written. Index 0 of each table is its empty item.

/// Suffix of kernel functions' names.
const KERNEL_MARK: &str = "_[k]";

/// A table: its encoded items and their number.
struct Table {
    field: u32,
    bytes: Vec<u8>,
    count: i32,
}

impl Table {
    fn new(field: u32) -> Table {
        Table { field, bytes: Vec::new(), count: 0 }
    }

    /// Appends an item; returns its index.
    fn push(&mut self, item: &impl Message) -> io::Result<i32> {
        put_message(self.field, item, &mut self.bytes)?;
        self.next()
    }

    /// Appends a text; returns its index.
    fn push_text(&mut self, text: &str) -> io::Result<i32> {
        put_bytes(self.field, text.as_bytes(), &mut self.bytes);
        self.next()
    }

    fn next(&mut self) -> io::Result<i32> {
        let index = self.count;
        self.count = index.checked_add(1).ok_or_else(|| io::Error::other("more items than OTLP can hold"))?;
        Ok(index)
    }
}

/// The tables, built on demand.
pub(super) struct Dictionary<'s> {
    saved: &'s SavedProfile,
    texts: HashMap<Cow<'s, str>, i32>,
    /// By encoded attribute.
    attributes: HashMap<Vec<u8>, i32>,
    /// By index in the profile.
    locations: Memo<i32>,
    functions: Memo<i32>,
    mappings: Memo<i32>,
    /// By node of the trie: its path of frames, independent of the root.
    paths: Vec<u32>,
    /// By path.
    stacks: Memo<i32>,
    string_table: Table,
    attribute_table: Table,
    location_table: Table,
    function_table: Table,
    mapping_table: Table,
    stack_table: Table,
}

impl<'s> Dictionary<'s> {
    /// Returns tables with only their empty items.
    pub(super) fn new(saved: &'s SavedProfile) -> io::Result<Dictionary<'s>> {
        let (paths, path_count) = paths(saved);
        let mut dictionary = Dictionary {
            saved,
            texts: HashMap::from([(Cow::Borrowed(""), 0)]),
            attributes: HashMap::new(),
            locations: Memo::new(saved.frames().len()),
            functions: Memo::new(saved.functions().len()),
            mappings: Memo::new(saved.mappings().len()),
            paths,
            stacks: Memo::new(path_count),
            string_table: Table::new(field::STRING_TABLE),
            attribute_table: Table::new(field::ATTRIBUTE_TABLE),
            location_table: Table::new(field::LOCATION_TABLE),
            function_table: Table::new(field::FUNCTION_TABLE),
            mapping_table: Table::new(field::MAPPING_TABLE),
            stack_table: Table::new(field::STACK_TABLE),
        };
        dictionary.string_table.push_text("")?;
        dictionary.attribute_table.push(&proto::KeyValueAndUnit::default())?;
        dictionary.location_table.push(&proto::Location::default())?;
        dictionary.function_table.push(&proto::Function::default())?;
        dictionary.mapping_table.push(&proto::Mapping::default())?;
        // The empty path is the empty stack.
        let empty = dictionary.stack_table.push(&proto::Stack::default())?;
        dictionary.stacks.put(0, empty);
        Ok(dictionary)
    }

    /// The encoded tables in order.
    pub(super) fn finish(self) -> io::Result<Vec<Vec<u8>>> {
        let mut link_table = Table::new(field::LINK_TABLE);
        // profiles.proto: the zero value, without ids.
        link_table.push(&proto::Link::default())?;
        let tables = [
            self.mapping_table,
            self.location_table,
            self.function_table,
            link_table,
            self.string_table,
            self.attribute_table,
            self.stack_table,
        ];
        Ok(tables.into_iter().map(|table| table.bytes).collect())
    }

    /// The index of a text.
    pub(super) fn text(&mut self, text: impl Into<Cow<'s, str>>) -> io::Result<i32> {
        let text = text.into();
        if let Some(known) = self.texts.get(&text) {
            return Ok(*known);
        }
        let index = self.string_table.push_text(&text)?;
        self.texts.insert(text, index);
        Ok(index)
    }

    /// The index of a text of the profile.
    fn text_of(&mut self, text: TextId) -> io::Result<i32> {
        let saved = self.saved;
        self.text(saved.text(text))
    }

    /// The index of an attribute.
    pub(super) fn attribute(&mut self, key: &'s str, value: Any) -> io::Result<i32> {
        self.attribute_in(key, value, "")
    }

    /// The index of an attribute with a unit, which may be empty.
    pub(super) fn attribute_in(&mut self, key: &'s str, value: Any, unit: &'s str) -> io::Result<i32> {
        let (key, unit) = (self.text(key)?, self.text(unit)?);
        let attribute = proto::KeyValueAndUnit { key, value: Some(AnyValue { value: Some(value) }), unit };
        let encoded = attribute.encode_to_vec();
        if let Some(known) = self.attributes.get(&encoded) {
            return Ok(*known);
        }
        let index = self.attribute_table.push(&attribute)?;
        self.attributes.insert(encoded, index);
        Ok(index)
    }

    /// The index of a node's stack, without its root.
    pub(super) fn stack(&mut self, node: NodeId) -> io::Result<i32> {
        let path = self.paths.get(node.0 as usize).copied().unwrap_or(0) as usize;
        if let Some(known) = self.stacks.get(path) {
            return Ok(known);
        }
        let saved = self.saved;
        let mut locations = Vec::new();
        let mut at = Some(node);
        while let Some(here) = at {
            if let Some(StackFrame::Frame(frame)) = saved.trie().key(here) {
                locations.push(self.location(frame)?);
            }
            at = saved.trie().parent(here);
        }
        let index = self.stack_table.push(&proto::Stack { locations })?;
        Ok(self.stacks.put(path, index))
    }

    fn location(&mut self, frame: u32) -> io::Result<i32> {
        let saved = self.saved;
        if let Some(known) = self.locations.get(frame as usize) {
            return Ok(known);
        }
        let Some(found) = saved.frames().get(frame as usize) else { return Ok(0) };
        let mut lines = Vec::new();
        // The file has the innermost function first.
        for line in saved.lines_of(found).iter().rev() {
            lines.push(proto::Line { function: self.function(line.function)?, line: line.line.into() });
        }
        let mapping = found.mapping.map_or(Ok(0), |mapping| self.mapping(mapping))?;
        let is_kernel = saved
            .lines_of(found)
            .iter()
            .any(|line| saved.text(saved.function(line.function).shown_name()).ends_with(KERNEL_MARK));
        let kind = match (is_kernel, mapping) {
            (true, _) => Some("kernel"),
            (false, 0) => None,
            (false, _) => Some("native"),
        };
        let mut attributes = Vec::new();
        if let Some(kind) = kind {
            attributes.push(self.attribute(key::FRAME_TYPE, Any::Text(kind.to_owned()))?);
        }
        let location = proto::Location { mapping, address: found.address, lines, attributes };
        let index = self.location_table.push(&location)?;
        Ok(self.locations.put(frame as usize, index))
    }

    fn function(&mut self, function: u32) -> io::Result<i32> {
        if let Some(known) = self.functions.get(function as usize) {
            return Ok(known);
        }
        let Some(found) = self.saved.functions().get(function as usize) else { return Ok(0) };
        let written = proto::Function {
            name: self.text_of(found.name)?,
            system_name: self.text_of(found.system_name)?,
            filename: self.text_of(found.file)?,
            start_line: found.start_line.into(),
        };
        let index = self.function_table.push(&written)?;
        Ok(self.functions.put(function as usize, index))
    }

    fn mapping(&mut self, mapping: u32) -> io::Result<i32> {
        let saved = self.saved;
        if let Some(known) = self.mappings.get(mapping as usize) {
            return Ok(known);
        }
        let Some(found) = saved.mappings().get(mapping as usize) else { return Ok(0) };
        let mut attributes = Vec::new();
        if found.build_id != TextId::EMPTY {
            let build_id = Any::Text(saved.text(found.build_id).to_owned());
            attributes.push(self.attribute(key::BUILD_ID, build_id)?);
        }
        let written = proto::Mapping {
            memory_start: found.start,
            memory_limit: found.limit,
            file_offset: found.file_offset,
            filename: self.text_of(found.path)?,
            attributes,
        };
        let index = self.mapping_table.push(&written)?;
        Ok(self.mappings.put(mapping as usize, index))
    }
}

/// By node: the number of its path of frames, equal below each root; and the number of paths.
fn paths(saved: &SavedProfile) -> (Vec<u32>, usize) {
    let mut known: HashMap<(u32, u32), u32> = HashMap::new();
    let mut count = 1u32;
    let paths = saved.trie().map_nodes(0, |_, frame, caller| match frame {
        StackFrame::Root(_) => 0,
        StackFrame::Frame(frame) => *known.entry((*caller, frame)).or_insert_with(|| {
            count += 1;
            count - 1
        }),
    });
    (paths, count as usize)
}
