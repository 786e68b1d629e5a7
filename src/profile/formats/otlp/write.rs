//! Writes a saved profile as OTLP.
//!
//! One profile of samples; of a recording of allocations one for each value, the shown one first. With a
//! timeline: for each thread and stack its times and the counts at them, with their weights unless these are
//! whole periods; counts without a time follow as samples without timestamps.
//! Without a timeline: for each stack its count.

use std::collections::BTreeMap;
use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};

use super::dictionary::Dictionary;
use super::proto::{self, Any, AnyValue, field};
use super::{OBSERVATIONS_MAX, SCOPE, key};
use crate::profile::StackFrame;
use crate::profile::about::About;
use crate::profile::formats::extra::Extra;
use crate::profile::formats::pprof::{label, metadata};
use crate::profile::formats::thread_times::weight_ns;
use crate::profile::labels::LabelValue;
use crate::profile::saved::{SavedProfile, StackRoot};
use crate::profile::timeline::{ThreadTimeline, TimedSample, Timeline};
use crate::profile::values::{StackValues, ValueType};
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
    put(field::SCOPE, &scope.encode_to_vec(), &mut profiles);
    messages.iter().for_each(|profile| put(field::PROFILES, profile, &mut profiles));
    drop(messages);
    let mut resource_profiles = Vec::new();
    put(field::RESOURCE, &resource(saved).encode_to_vec(), &mut resource_profiles);
    put(field::SCOPE_PROFILES, &profiles, &mut resource_profiles);
    drop(profiles);
    head(field::RESOURCE_PROFILES, resource_profiles.len(), out)?;
    out.write_all(&resource_profiles)?;
    drop(resource_profiles);
    let tables = dictionary.finish()?;
    head(field::DICTIONARY, tables.iter().map(Vec::len).sum(), out)?;
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

/// Appends a field of bytes.
fn put(number: u32, bytes: &[u8], into: &mut Vec<u8>) {
    encode_key(number, WireType::LengthDelimited, into);
    encode_varint(bytes.len() as u64, into);
    into.extend_from_slice(bytes);
}

/// Writes the header of a field of bytes.
fn head(number: u32, len: usize, out: &mut dyn Write) -> io::Result<()> {
    let mut head = Vec::new();
    encode_key(number, WireType::LengthDelimited, &mut head);
    encode_varint(len as u64, &mut head);
    out.write_all(&head)
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
        let (kind, unit) = match &about.value_type {
            Some(kind) if *kind != about.unit => (kind.clone(), about.unit.clone()),
            _ => (about.unit.clone(), "count".to_owned()),
        };
        let kind = proto::ValueType { kind: self.dictionary.text(kind)?, unit: self.dictionary.text(unit)? };
        put(field::SAMPLE_TYPE, &kind.encode_to_vec(), &mut self.profile);
        if let Some(time_unix_ns) = about.time_unix_ns {
            encode_key(field::TIME_UNIX_NANO, WireType::SixtyFourBit, &mut self.profile);
            self.profile.extend_from_slice(&time_unix_ns.to_le_bytes());
        }
        self.number(field::DURATION_NANO, about.duration_ns.unwrap_or(0));
        if let Some(period_ns) = about.period_ns() {
            let cpu = proto::ValueType {
                kind: self.dictionary.text("cpu")?,
                unit: self.dictionary.text("nanoseconds")?,
            };
            put(field::PERIOD_TYPE, &cpu.encode_to_vec(), &mut self.profile);
            self.number(field::PERIOD, period_ns.round() as u64);
        }
        if let Some(every) = about.sampled_every {
            let space = proto::ValueType {
                kind: self.dictionary.text("space")?,
                unit: self.dictionary.text("bytes")?,
            };
            put(field::PERIOD_TYPE, &space.encode_to_vec(), &mut self.profile);
            self.number(field::PERIOD, every);
        }
        let mut attributes = Vec::new();
        let recording = metadata::to_comments(about);
        let recording = recording.get(..recording.len() - about.comments.len()).unwrap_or_default().to_vec();
        attributes.push(self.dictionary.attribute(key::RECORDING, Any::texts(recording))?);
        if !about.comments.is_empty() {
            let comments = Any::texts(about.comments.clone());
            attributes.push(self.dictionary.attribute(key::COMMENTS, comments)?);
        }
        if let Some(timeline) = saved.timeline() {
            let times = serde_json::to_string(&Extra::of(about).with_times(saved, timeline))?;
            attributes.push(self.dictionary.attribute(key::TIMES, Any::Text(times))?);
        }
        let mut packed = Vec::new();
        attributes.iter().for_each(|index| encode_varint(u64::from(index.unsigned_abs()), &mut packed));
        put(field::PROFILE_ATTRIBUTES, &packed, &mut self.profile);
        Ok(())
    }

    fn number(&mut self, number: u32, value: u64) {
        if value > 0 {
            encode_key(number, WireType::Varint, &mut self.profile);
            encode_varint(value, &mut self.profile);
        }
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
                self.sample(&proto::Sample { stack, attributes, values, timestamps_unix_ns: Vec::new() })?;
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
        let over_time = timeline.counts();
        self.counts(|node| {
            saved.trie().count(node).saturating_sub(over_time.get(&node).copied().unwrap_or(0))
        })
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
        self.sample(&proto::Sample { stack, attributes, values, timestamps_unix_ns: times.collect() })
    }

    fn sample(&mut self, sample: &proto::Sample) -> io::Result<()> {
        encode_key(field::SAMPLES, WireType::LengthDelimited, &mut self.profile);
        sample.encode_length_delimited(&mut self.profile).map_err(io::Error::other)
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
