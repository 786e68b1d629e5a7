//! The fields of a protocol buffer: read as slices of its bytes, and written.
//!
//! Input: the bytes of a message, hostile. Output: numbers and values of its fields. Reading allocates nothing, so
//! that a file's size is not multiplied in memory.

use std::borrow::Cow;
use std::{fmt, io};

use prost::Message;
use prost::encoding::{
    DecodeContext, WireType, decode_key, decode_varint, encode_key, encode_varint, skip_field,
};

use super::tally::Malformed;
use crate::saved::Full;

/// The value of a field.
#[derive(Clone, Copy)]
pub(super) enum Value<'a> {
    /// A text, a message, or packed numbers.
    Bytes(&'a [u8]),
    /// A number of variable length.
    Number(u64),
    /// A number of 64 bits.
    Fixed(u64),
}

/// A text of a table of strings by its index; `of` names the item with the index.
pub(super) fn string_at<'s>(strings: &'s [Cow<'_, str>], index: i64, of: &str) -> Result<&'s str, Malformed> {
    match usize::try_from(index).ok().and_then(|index| strings.get(index)) {
        Some(text) => Ok(text),
        // A profile without strings has no names.
        None if index == 0 => Ok(""),
        None => Err(format!("{of} names string {index}, and there are {}", strings.len()).into()),
    }
}

/// Calls `visit` with each field of a message that contains bytes or a number. `of` names the message.
pub(super) fn for_each_field<'a>(
    bytes: &'a [u8],
    of: &dyn fmt::Display,
    mut visit: impl FnMut(u32, Value<'a>) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let at = bytes.len() - rest.len();
        let broken = |what: &dyn fmt::Display| format!("broken at byte {at} of {of}: {what}");
        let undecoded = |error: prost::DecodeError| Malformed::caused_by(broken(&error), error);
        let (number, wire) = decode_key(&mut rest).map_err(undecoded)?;
        match wire {
            WireType::LengthDelimited => {
                let len = decode_varint(&mut rest).map_err(undecoded)?;
                let len = usize::try_from(len).ok().filter(|len| *len <= rest.len());
                let len = len.ok_or_else(|| broken(&"it ends early"))?;
                let (value, after) = rest.split_at(len);
                rest = after;
                visit(number, Value::Bytes(value))?;
            }
            WireType::Varint => {
                let value = decode_varint(&mut rest).map_err(undecoded)?;
                visit(number, Value::Number(value))?;
            }
            WireType::SixtyFourBit => {
                let (value, after) = rest.split_first_chunk().ok_or_else(|| broken(&"it ends early"))?;
                rest = after;
                visit(number, Value::Fixed(u64::from_le_bytes(*value)))?;
            }
            _ => skip_field(wire, number, &mut rest, DecodeContext::default()).map_err(undecoded)?,
        }
    }
    Ok(())
}

/// Calls `visit` with each number of a repeated field, packed or not.
pub(super) fn for_each_number(
    value: Value<'_>,
    of: &dyn fmt::Display,
    mut visit: impl FnMut(u64) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    match value {
        Value::Number(number) | Value::Fixed(number) => visit(number),
        Value::Bytes(mut packed) => {
            while !packed.is_empty() {
                let number = decode_varint(&mut packed)
                    .map_err(|error| Malformed::caused_by(format!("{of} is broken: {error}"), error))?;
                visit(number)?;
            }
            Ok(())
        }
    }
}

/// Checks that one more item is within the limit.
pub(super) fn limit(count: usize, limit: usize, what: &'static str) -> Result<(), Malformed> {
    if count < limit { Ok(()) } else { Err(Full { what, limit }.into()) }
}

/// Decodes a message; `what` and `index` name it in errors.
pub(super) fn message<M: Message + Default>(bytes: &[u8], what: &str, index: usize) -> Result<M, Malformed> {
    M::decode(bytes)
        .map_err(|error| Malformed::caused_by(format!("{what} {index} is broken: {error}"), error))
}

/// Appends the beginning of a field of bytes.
pub(super) fn put_head(number: u32, len: usize, into: &mut Vec<u8>) {
    encode_key(number, WireType::LengthDelimited, into);
    encode_varint(len as u64, into);
}

/// Appends a field of bytes: a text, or an encoded message.
pub(super) fn put_bytes(number: u32, bytes: &[u8], into: &mut Vec<u8>) {
    put_head(number, bytes.len(), into);
    into.extend_from_slice(bytes);
}

/// Appends a message.
pub(super) fn put_message(number: u32, message: &impl Message, into: &mut Vec<u8>) -> io::Result<()> {
    encode_key(number, WireType::LengthDelimited, into);
    message.encode_length_delimited(into).map_err(io::Error::other)
}

/// Appends a number, except 0, the default.
pub(super) fn put_number(number: u32, value: u64, into: &mut Vec<u8>) {
    if value > 0 {
        encode_key(number, WireType::Varint, into);
        encode_varint(value, into);
    }
}
