//! Attributes of an OTLP file being read: key and value, and their meaning in a profile.
//!
//! Input: encoded attributes, hostile. Output: values as slices of the file, so that nested ones cost no
//! memory.

use std::borrow::Cow;

use super::key;
use super::proto::field;
use super::tables::Tables;
use crate::profile::formats::protobuf::{Value, for_each_field};
use crate::profile::formats::{Malformed, encoding};

/// A value of an attribute.
#[derive(Clone, Copy, Default)]
pub(super) enum Any<'a> {
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
    pub(super) fn for_each_text(
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
pub(super) fn of_dictionary<'t, 'a>(
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
pub(super) struct Resource<'a> {
    /// Its name, from the most specific attribute.
    pub(super) process: Any<'a>,
    /// The name is a path.
    pub(super) is_path: bool,
    pub(super) pid: Option<u32>,
}

impl<'a> Resource<'a> {
    /// Reads the encoded message.
    pub(super) fn read(bytes: &'a [u8], tables: &Tables<'a>) -> Result<Resource<'a>, Malformed> {
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
