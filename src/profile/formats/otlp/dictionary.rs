//! The dictionary of an OTLP file being written: each text, mapping, function, location, stack and attribute
//! once.
//!
//! Input: parts of a [`SavedProfile`], as samples need them. Output: their indexes, and the encoded tables. Parts
//! without samples are not written. Index 0 of each table is its empty item.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io;

use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};

use super::key;
use super::proto::{self, Any, AnyValue, field};
use crate::profile::StackFrame;
use crate::profile::saved::SavedProfile;
use crate::profile::texts::TextId;
use crate::trie::NodeId;

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
        encode_key(self.field, WireType::LengthDelimited, &mut self.bytes);
        item.encode_length_delimited(&mut self.bytes).map_err(io::Error::other)?;
        self.next()
    }

    /// Appends a text; returns its index.
    fn push_text(&mut self, text: &str) -> io::Result<i32> {
        encode_key(self.field, WireType::LengthDelimited, &mut self.bytes);
        encode_varint(text.len() as u64, &mut self.bytes);
        self.bytes.extend_from_slice(text.as_bytes());
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
    /// By index in the profile; 0 for unused ones.
    locations: Vec<i32>,
    functions: Vec<i32>,
    mappings: Vec<i32>,
    /// By node of the trie: its path of frames, independent of the root.
    paths: Vec<u32>,
    /// By path.
    stacks: Vec<i32>,
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
            locations: vec![0; saved.frames().len()],
            functions: vec![0; saved.functions().len()],
            mappings: vec![0; saved.mappings().len()],
            paths,
            stacks: vec![0; path_count],
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
        dictionary.stack_table.push(&proto::Stack::default())?;
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
        match self.stacks.get(path) {
            // The empty path is the empty stack.
            Some(0) if path > 0 => {}
            known => return Ok(known.copied().unwrap_or(0)),
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
        if let Some(slot) = self.stacks.get_mut(path) {
            *slot = index;
        }
        Ok(index)
    }

    fn location(&mut self, frame: u32) -> io::Result<i32> {
        let saved = self.saved;
        let known = self.locations.get(frame as usize).copied().unwrap_or(0);
        let Some(found) = saved.frames().get(frame as usize).filter(|_| known == 0) else { return Ok(known) };
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
        if let Some(slot) = self.locations.get_mut(frame as usize) {
            *slot = index;
        }
        Ok(index)
    }

    fn function(&mut self, function: u32) -> io::Result<i32> {
        match self.functions.get(function as usize) {
            Some(0) => {}
            known => return Ok(known.copied().unwrap_or(0)),
        }
        let found = self.saved.function(function);
        let written = proto::Function {
            name: self.text_of(found.name)?,
            system_name: self.text_of(found.system_name)?,
            filename: self.text_of(found.file)?,
            start_line: found.start_line.into(),
        };
        let index = self.function_table.push(&written)?;
        if let Some(slot) = self.functions.get_mut(function as usize) {
            *slot = index;
        }
        Ok(index)
    }

    fn mapping(&mut self, mapping: u32) -> io::Result<i32> {
        let saved = self.saved;
        let known = self.mappings.get(mapping as usize).copied().unwrap_or(0);
        let Some(found) = saved.mappings().get(mapping as usize).filter(|_| known == 0) else {
            return Ok(known);
        };
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
        if let Some(slot) = self.mappings.get_mut(mapping as usize) {
            *slot = index;
        }
        Ok(index)
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
