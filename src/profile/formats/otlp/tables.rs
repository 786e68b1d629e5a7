//! The dictionary of an OTLP file being read.
//!
//! Input: the message, hostile. Output: its tables, by index; locations, stacks and attributes as slices of
//! the file until a sample needs them.

use std::borrow::Cow;

use super::proto::{self, field};
use crate::profile::builder::{FUNCTIONS_MAX, MAPPINGS_MAX};
use crate::profile::formats::protobuf::{Value, for_each_field, limit, message};
use crate::profile::formats::{Malformed, encoding};
use crate::profile::texts::TEXTS_MAX;
use crate::trie::{FRAMES_MAX, NODES_MAX};

/// Most bytes of a mapping, function or location: a message takes several times its size in memory.
pub(super) const ITEM_BYTES_MAX: usize = 1 << 20;

/// The tables.
#[derive(Default)]
pub(super) struct Tables<'a> {
    pub(super) strings: Vec<Cow<'a, str>>,
    pub(super) mappings: Vec<proto::Mapping>,
    pub(super) functions: Vec<proto::Function>,
    pub(super) locations: Vec<&'a [u8]>,
    pub(super) stacks: Vec<&'a [u8]>,
    pub(super) attributes: Vec<&'a [u8]>,
}

impl<'a> Tables<'a> {
    /// Reads the tables of a file.
    pub(super) fn read(bytes: &'a [u8]) -> Result<Tables<'a>, Malformed> {
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
    pub(super) fn string(&self, index: i64, of: &str) -> Result<&str, Malformed> {
        let text = usize::try_from(index).ok().and_then(|index| self.strings.get(index));
        match text {
            Some(text) => Ok(text),
            // A profile without strings has no names.
            None if index == 0 => Ok(""),
            None => Err(format!("{of} names string {index}, and there are {}", self.strings.len()).into()),
        }
    }
}
