//! The items of an OTLP dictionary as those of a saved profile: names, frames, stacks, meanings of attributes.
//!
//! Input: indexes into the dictionary, hostile. Output: ids in a [`SavedBuilder`]. An item is converted once; a
//! stack once per thread. Many stacks in each of many threads need as many nodes of the trie, and these are
//! limited: so the cost is never quadratic in the size of a file.

use std::collections::HashMap;

use super::super::attributes::{self, Any};
use super::super::key;
use super::super::proto::{self, field};
use super::super::tables::Tables;
use super::profiles::Profile;
use crate::escape::file_name;
use crate::profile::DEPTH_MAX;
use crate::profile::about::About;
use crate::profile::builder::SavedBuilder;
use crate::profile::formats::pprof::label;
use crate::profile::formats::protobuf::{for_each_field, for_each_number, limit, message};
use crate::profile::formats::{Malformed, encoding};
use crate::profile::labels::{Label, LabelValue, LabelsId};
use crate::profile::saved::{Function, Line, Mapping, StackRoot};
use crate::profile::texts::TextId;
use crate::trie::NodeId;

/// Meaning of a sample's attribute.
#[derive(Clone, Copy)]
pub(super) enum Attribute<'a> {
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
    /// Any other text or number.
    Label(Label),
}

/// What the items of a table were converted to, by index.
struct Memo<T>(Vec<Option<T>>);

impl<T: Copy> Memo<T> {
    fn new(items: usize) -> Memo<T> {
        Memo(vec![None; items])
    }

    fn get(&self, index: usize) -> Option<T> {
        self.0.get(index).copied().flatten()
    }

    fn put(&mut self, index: usize, converted: T) {
        if let Some(slot) = self.0.get_mut(index) {
            *slot = Some(converted);
        }
    }
}

/// The profile under construction, with what was converted so far.
pub(super) struct Converter<'t, 'a> {
    tables: &'t Tables<'a>,
    builder: SavedBuilder,
    texts: Memo<TextId>,
    mappings: Memo<u32>,
    functions: Memo<u32>,
    frames: Memo<u32>,
    attributes: Memo<Attribute<'a>>,
    /// By index of the resource.
    processes: HashMap<usize, TextId>,
    /// By path.
    file_names: HashMap<TextId, TextId>,
    /// By root of the profile and stack of the dictionary.
    nodes: HashMap<(u32, u64), NodeId>,
    /// A location that a stack names and the file does not have, by stack.
    missing_locations: HashMap<u64, u64>,
}

impl<'t, 'a> Converter<'t, 'a> {
    /// Returns a converter to a profile without stacks.
    pub(super) fn new(tables: &'t Tables<'a>, about: About) -> Converter<'t, 'a> {
        Converter {
            tables,
            builder: SavedBuilder::new(about),
            texts: Memo::new(tables.strings.len()),
            mappings: Memo::new(tables.mappings.len()),
            functions: Memo::new(tables.functions.len()),
            frames: Memo::new(tables.locations.len()),
            attributes: Memo::new(tables.attributes.len()),
            processes: HashMap::new(),
            file_names: HashMap::new(),
            nodes: HashMap::new(),
            missing_locations: HashMap::new(),
        }
    }

    /// The resulting profile.
    pub(super) fn finish(self) -> SavedBuilder {
        self.builder
    }

    /// Notes that threads were recorded while they waited.
    pub(super) fn note_waits(&mut self) {
        self.builder.about().idle.get_or_insert(true);
    }

    pub(super) fn root(&mut self, root: StackRoot) -> Result<u32, Malformed> {
        Ok(self.builder.root(root)?)
    }

    /// The number of a set of labels; `None` if there are too many sets.
    pub(super) fn labels(&mut self, labels: &mut Vec<Label>) -> Option<LabelsId> {
        self.builder.labels(labels)
    }

    pub(super) fn count(&mut self, node: NodeId, count: u64) -> Result<(), Malformed> {
        Ok(self.builder.count(node, count)?)
    }

    pub(super) fn has_attribute(&self, index: u64) -> bool {
        usize::try_from(index).is_ok_and(|index| index < self.tables.attributes.len())
    }

    /// The process name for samples without one.
    pub(super) fn process(&mut self, profile: &Profile<'_, 'a>) -> Result<TextId, Malformed> {
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

    /// The meaning of an attribute of the dictionary. Converted files have pprof's label keys.
    pub(super) fn attribute(&mut self, index: u64) -> Result<Attribute<'a>, Malformed> {
        let tables = self.tables;
        let slot = usize::try_from(index).unwrap_or(usize::MAX);
        if let Some(known) = self.attributes.get(slot) {
            return Ok(known);
        }
        let Some(bytes) = tables.attributes.get(slot) else { return Ok(Attribute::Other) };
        let (key, value, unit) = attributes::of_dictionary(bytes, tables)
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
            (_, Any::Int(number)) if build_id.is_none() => {
                let value = LabelValue::Number(number.cast_signed(), self.builder.text(unit)?);
                Attribute::Label(Label { key: self.builder.text(key)?, value })
            }
            _ => match (build_id, self.text_of(value)?) {
                (Some(place), Some(text)) => Attribute::BuildId(text, place),
                (None, Some(text)) if !key.is_empty() => {
                    Attribute::Label(Label { key: self.builder.text(key)?, value: LabelValue::Text(text) })
                }
                _ => Attribute::Other,
            },
        };
        self.attributes.put(slot, found);
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
    pub(super) fn node(&mut self, root: u32, stack: u64) -> Result<Result<NodeId, String>, Malformed> {
        if let Some(known) = self.nodes.get(&(root, stack)) {
            return Ok(Ok(*known));
        }
        // Many samples may name one long stack.
        if let Some(location) = self.missing_locations.get(&stack) {
            return Ok(Err(format!("location {location}")));
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
            let Some(frame) = self.frame(*location)? else {
                self.missing_locations.insert(stack, *location);
                return Ok(Err(format!("location {location}")));
            };
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
        if let Some(known) = self.frames.get(slot) {
            return Ok(Some(known));
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
        self.frames.put(slot, frame);
        Ok(Some(frame))
    }

    fn function(&mut self, index: i32) -> Result<Option<u32>, Malformed> {
        let slot = usize::try_from(index).unwrap_or(usize::MAX);
        if let Some(known) = self.functions.get(slot) {
            return Ok(Some(known));
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
        self.functions.put(slot, taken);
        Ok(Some(taken))
    }

    fn mapping(&mut self, index: i32) -> Result<Option<u32>, Malformed> {
        let tables = self.tables;
        let slot = usize::try_from(index).unwrap_or(usize::MAX);
        if let Some(known) = self.mappings.get(slot) {
            return Ok(Some(known));
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
        self.mappings.put(slot, taken);
        Ok(Some(taken))
    }

    fn text(&mut self, index: i32, of: &str) -> Result<TextId, Malformed> {
        let slot = usize::try_from(index).unwrap_or(usize::MAX);
        if let Some(known) = self.texts.get(slot) {
            return Ok(known);
        }
        let text = self.builder.text(self.tables.string(index.into(), of)?)?;
        self.texts.put(slot, text);
        Ok(text)
    }
}
