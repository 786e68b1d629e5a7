//! The items of an OTLP dictionary as those of a saved profile: names, frames, stacks, meanings of attributes.
//!
//! `Converter` converts, `Tables` is the encoded dictionary, `Attribute` and `Any` are the meaning and the value of
//! an attribute.
//!
//! Input: indexes into the dictionary, hostile. Output: ids in a [`SavedBuilder`]. An item is converted once; a
//! stack once per thread. Many stacks in each of many threads need as many nodes of the trie, and these are
//! limited: so the cost is never quadratic in the size of a file.

use std::borrow::Cow;
use std::collections::HashMap;

use super::super::key;
use super::super::proto::{self, field};
use super::Profile;
use crate::DEPTH_MAX;
use crate::about::About;
use crate::builder::{FUNCTIONS_MAX, MAPPINGS_MAX, SavedBuilder};
use crate::escape::file_name;
use crate::formats::pprof::label;
use crate::formats::protobuf::{Value, for_each_field, for_each_number, limit, message, string_at};
use crate::formats::{Malformed, encoding};
use crate::saved::{Function, Label, LabelValue, Line, Mapping};
use crate::table::Memo;
use crate::texts::{TEXTS_MAX, TextId};
use crate::trie::{FRAMES_MAX, NODES_MAX, NodeId};

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

/// The profile under construction, with what was converted so far.
pub(super) struct Converter<'t, 'a> {
    tables: &'t Tables<'a>,
    pub(super) builder: SavedBuilder,
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
        let (key, value, unit) =
            of_dictionary(bytes, tables).map_err(|why| why.at(format_args!("attribute {index}")))?;
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
        Ok(self.attributes.put(slot, found))
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
            depth += self.builder.depth_of(frame);
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
        Ok(Some(self.frames.put(slot, frame)))
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
        Ok(Some(self.functions.put(slot, taken)))
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
        Ok(Some(self.mappings.put(slot, taken)))
    }

    fn text(&mut self, index: i32, of: &str) -> Result<TextId, Malformed> {
        let slot = usize::try_from(index).unwrap_or(usize::MAX);
        if let Some(known) = self.texts.get(slot) {
            return Ok(known);
        }
        let text = self.builder.text(self.tables.string(index.into(), of)?)?;
        Ok(self.texts.put(slot, text))
    }
}

// ---- Attributes of an OTLP file being read: key and value, and their meaning in a profile.

/// A value of an attribute.
#[derive(Clone, Copy, Default)]
pub(crate) enum Any<'a> {
    /// No value, or one of an unsupported kind.
    #[default]
    Other,
    Text(&'a [u8]),
    /// Index of a text.
    StringIndex(u64),
    Bool(bool),
    Int(u64),
    /// The encoded list.
    Array(&'a [u8]),
    Bytes(&'a [u8]),
}

impl<'a> Any<'a> {
    fn read(bytes: &'a [u8]) -> Result<Any<'a>, Malformed> {
        let mut parsed = Any::Other;
        for_each_field(bytes, &"an attribute", |number, value| {
            match (number, value) {
                (field::TEXT, Value::Bytes(text)) => parsed = Any::Text(text),
                (field::TEXT_INDEX, Value::Number(index)) => parsed = Any::StringIndex(index),
                (field::BOOL, Value::Number(number)) => parsed = Any::Bool(number > 0),
                (field::INT, Value::Number(number)) => parsed = Any::Int(number),
                (field::ARRAY, Value::Bytes(array)) => parsed = Any::Array(array),
                (field::BYTES, Value::Bytes(bytes)) => parsed = Any::Bytes(bytes),
                _ => {}
            }
            Ok(())
        })?;
        Ok(parsed)
    }

    /// Calls `visit` with each text in a list, except those of the dictionary: a small list can refer to a
    /// large text any number of times.
    pub(crate) fn for_each_text(
        self,
        mut visit: impl FnMut(&str) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        let Any::Array(array) = self else { return Ok(()) };
        for_each_field(array, &"an attribute", |number, value| {
            let (field::ARRAY_VALUES, Value::Bytes(item)) = (number, value) else { return Ok(()) };
            match Any::read(item)? {
                Any::Text(text) => visit(&encoding::text(text)),
                _ => Ok(()),
            }
        })
    }
}

/// Key, value and unit of an attribute of the dictionary.
pub(crate) fn of_dictionary<'t, 'a>(
    bytes: &'a [u8],
    tables: &'t Tables<'a>,
) -> Result<(&'t str, Any<'a>, &'t str), Malformed> {
    let (mut key, mut parsed, mut unit) = ("", Any::Other, "");
    for_each_field(bytes, &"an attribute", |number, value| {
        match (number, value) {
            (field::KEY, Value::Number(index)) => key = tables.string(index.cast_signed(), "an attribute")?,
            (field::VALUE, Value::Bytes(value)) => parsed = Any::read(value)?,
            (field::UNIT, Value::Number(index)) => {
                unit = tables.string(index.cast_signed(), "an attribute")?
            }
            _ => {}
        }
        Ok(())
    })?;
    Ok((key, parsed, unit))
}

/// Key and value of an attribute of a resource.
fn of_resource<'k, 'a: 'k>(
    bytes: &'a [u8],
    tables: &'k Tables<'a>,
) -> Result<(Cow<'k, str>, Any<'a>), Malformed> {
    let (mut key, mut parsed) = (Cow::Borrowed(""), Any::Other);
    for_each_field(bytes, &"an attribute", |number, value| {
        match (number, value) {
            (field::KEY, Value::Bytes(text)) => key = encoding::text(text),
            (field::KEY_INDEX, Value::Number(index)) => {
                key = Cow::Borrowed(tables.string(index.cast_signed(), "an attribute")?);
            }
            (field::VALUE, Value::Bytes(value)) => parsed = Any::read(value)?,
            _ => {}
        }
        Ok(())
    })?;
    Ok((key, parsed))
}

/// Facts about the process of a resource.
#[derive(Clone, Copy, Default)]
pub(crate) struct Resource<'a> {
    /// Its name, from the most specific attribute.
    pub(crate) process: Any<'a>,
    /// The name is a path.
    pub(crate) is_path: bool,
    pub(crate) pid: Option<u32>,
}

impl<'a> Resource<'a> {
    /// Reads the encoded message.
    pub(crate) fn read(bytes: &'a [u8], tables: &Tables<'a>) -> Result<Resource<'a>, Malformed> {
        let mut resource = Resource::default();
        // The rank of the best key so far.
        let mut rank = 0;
        for_each_field(bytes, &"a resource", |number, value| {
            let (field::RESOURCE_ATTRIBUTES, Value::Bytes(attribute)) = (number, value) else {
                return Ok(());
            };
            let (key, value) = of_resource(attribute, tables)?;
            let own_rank = match (&*key, value) {
                (key::PID, Any::Int(pid)) => {
                    resource.pid = u32::try_from(pid).ok();
                    0
                }
                (key::PROCESS, _) => 3,
                (key::PROCESS_PATH, _) => 2,
                (key::SERVICE, _) => 1,
                _ => 0,
            };
            if own_rank > rank {
                rank = own_rank;
                (resource.process, resource.is_path) = (value, own_rank == 2);
            }
            Ok(())
        })?;
        Ok(resource)
    }
}

// ---- The dictionary of an OTLP file being read.

/// Most bytes of a mapping, function or location: a message takes several times its size in memory.
pub(crate) const ITEM_BYTES_MAX: usize = 1 << 20;

/// The tables.
#[derive(Default)]
pub(crate) struct Tables<'a> {
    pub(crate) strings: Vec<Cow<'a, str>>,
    pub(crate) mappings: Vec<proto::Mapping>,
    pub(crate) functions: Vec<proto::Function>,
    pub(crate) locations: Vec<&'a [u8]>,
    pub(crate) stacks: Vec<&'a [u8]>,
    pub(crate) attributes: Vec<&'a [u8]>,
}

impl<'a> Tables<'a> {
    /// Reads the tables of a file.
    pub(crate) fn read(bytes: &'a [u8]) -> Result<Tables<'a>, Malformed> {
        let mut tables = Tables::default();
        let mut is_there = false;
        for_each_field(bytes, &"the unpacked profile", |number, value| {
            let (field::DICTIONARY, Value::Bytes(dictionary)) = (number, value) else { return Ok(()) };
            is_there = true;
            for_each_field(dictionary, &"the dictionary", |number, value| match value {
                Value::Bytes(item) => tables.add(number, item),
                _ => Ok(()),
            })
        })?;
        if !is_there {
            return Err("no dictionary; this is not an OTLP profile".into());
        }
        if tables.strings.first().is_some_and(|first| !first.is_empty()) {
            return Err("string 0 is not empty; this is not an OTLP profile".into());
        }
        Ok(tables)
    }

    fn add(&mut self, table: u32, item: &'a [u8]) -> Result<(), Malformed> {
        let small = |what: &str, index: usize| match item.len() {
            0..=ITEM_BYTES_MAX => Ok(()),
            _ => Err(Malformed::from(format!("{what} {index} is too long"))),
        };
        match table {
            field::STRING_TABLE => {
                limit(self.strings.len(), TEXTS_MAX, "strings")?;
                // Names of files and symbols can be any bytes.
                self.strings.push(encoding::text(item));
            }
            field::MAPPING_TABLE => {
                let index = self.mappings.len();
                limit(index, MAPPINGS_MAX, "mappings")?;
                small("mapping", index)?;
                self.mappings.push(message(item, "mapping", index)?);
            }
            field::FUNCTION_TABLE => {
                let index = self.functions.len();
                limit(index, FUNCTIONS_MAX, "functions")?;
                self.functions.push(message(item, "function", index)?);
            }
            field::LOCATION_TABLE => {
                limit(self.locations.len(), FRAMES_MAX, "locations")?;
                small("location", self.locations.len())?;
                self.locations.push(item);
            }
            field::STACK_TABLE => {
                limit(self.stacks.len(), NODES_MAX, "stacks")?;
                self.stacks.push(item);
            }
            field::ATTRIBUTE_TABLE => {
                limit(self.attributes.len(), NODES_MAX, "attributes")?;
                self.attributes.push(item);
            }
            _ => {}
        }
        Ok(())
    }

    /// A text by its index; `of` names the item with the index.
    pub(crate) fn string(&self, index: i64, of: &str) -> Result<&str, Malformed> {
        string_at(&self.strings, index, of)
    }
}
