//! A pprof message except its samples: fields, and the tables that samples refer to.

use std::borrow::Cow;
use std::ops::Range;

use prost::bytes::Buf;
use prost::encoding::decode_varint;

use super::proto::{self, field};
use crate::profile::about::COMMENTS_MAX;
use crate::profile::formats::protobuf::{self, Value, limit, message};
use crate::profile::formats::{Malformed, encoding};

/// Most bytes of one sample: a message takes up to sixteen times its size in memory.
pub(super) const SAMPLE_BYTES_MAX: usize = 4 << 20;

/// Most bytes of one location with its inlined functions.
pub(super) const LOCATION_BYTES_MAX: usize = 1 << 20;

/// Longest period that can be a rate: one sample a second.
pub(in crate::profile::formats) const PERIOD_NS_MAX: i64 = 1_000_000_000;

/// Calls `visit` with each field of the outermost message.
pub(super) fn for_each_field<'a>(
    bytes: &'a [u8],
    visit: impl FnMut(u32, Value<'a>) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    protobuf::for_each_field(bytes, &"the unpacked profile", visit)
}

/// Everything except the samples, as in the file.
#[derive(Default)]
pub(super) struct Tables<'a> {
    pub(super) strings: Vec<Cow<'a, str>>,
    pub(super) sample_types: Vec<proto::ValueType>,
    pub(super) mappings: Vec<proto::Mapping>,
    pub(super) functions: Vec<proto::Function>,
    pub(super) locations: Vec<Range<u32>>,
    /// The bytes of all locations, sliced by `locations`.
    pub(super) location_bytes: &'a [u8],
    pub(super) comments: Vec<u64>,
    pub(super) time_ns: u64,
    pub(super) duration_ns: u64,
    pub(super) period_type: proto::ValueType,
    pub(super) period: i64,
    pub(super) default_type: u64,
    pub(super) drop_frames: u64,
    pub(super) keep_frames: u64,
    pub(super) samples: u64,
}

impl<'a> Tables<'a> {
    pub(super) fn read(bytes: &'a [u8]) -> Result<Tables<'a>, Malformed> {
        if u32::try_from(bytes.len()).is_err() {
            return Err("larger than 4 GiB".to_owned().into());
        }
        let mut tables = Tables { location_bytes: bytes, ..Tables::default() };
        for_each_field(bytes, |number, value| {
            match (number, value) {
                (field::STRING_TABLE, Value::Bytes(text)) => {
                    let index = tables.strings.len();
                    limit(index, crate::profile::texts::TEXTS_MAX, "strings")?;
                    // Names of files and symbols can be any bytes.
                    tables.strings.push(encoding::text(text));
                }
                (field::SAMPLE_TYPE, Value::Bytes(bytes)) => {
                    limit(tables.sample_types.len(), 64, "sample types")?;
                    tables.sample_types.push(message(bytes, "sample type", tables.sample_types.len())?);
                }
                (field::MAPPING, Value::Bytes(bytes)) => {
                    limit(tables.mappings.len(), crate::profile::builder::MAPPINGS_MAX, "mappings")?;
                    tables.mappings.push(message(bytes, "mapping", tables.mappings.len())?);
                }
                (field::FUNCTION, Value::Bytes(bytes)) => {
                    limit(tables.functions.len(), crate::profile::builder::FUNCTIONS_MAX, "functions")?;
                    tables.functions.push(message(bytes, "function", tables.functions.len())?);
                }
                (field::LOCATION, Value::Bytes(location)) => {
                    limit(tables.locations.len(), crate::trie::FRAMES_MAX, "locations")?;
                    if location.len() > LOCATION_BYTES_MAX {
                        return Err(format!("location {} is too long", tables.locations.len()).into());
                    }
                    // A slice of `bytes`, so its offset fits in 32 bits.
                    let start = location.as_ptr().addr().wrapping_sub(bytes.as_ptr().addr()) as u32;
                    tables.locations.push(start..start.wrapping_add(location.len() as u32));
                }
                (field::PERIOD_TYPE, Value::Bytes(bytes)) => {
                    tables.period_type = message(bytes, "period type", 0)?;
                }
                (field::SAMPLE, Value::Bytes(_)) => tables.samples += 1,
                (field::TIME_NANOS, Value::Number(value)) => tables.time_ns = value,
                (field::DURATION_NANOS, Value::Number(value)) => tables.duration_ns = value,
                (field::PERIOD, Value::Number(value)) => tables.period = value.cast_signed(),
                (field::DEFAULT_SAMPLE_TYPE, Value::Number(value)) => tables.default_type = value,
                (field::DROP_FRAMES, Value::Number(value)) => tables.drop_frames = value,
                (field::KEEP_FRAMES, Value::Number(value)) => tables.keep_frames = value,
                (field::COMMENT, Value::Number(value)) => {
                    limit(tables.comments.len(), COMMENTS_MAX, "comments")?;
                    tables.comments.push(value);
                }
                (field::COMMENT, Value::Bytes(mut packed)) => {
                    while packed.has_remaining() {
                        limit(tables.comments.len(), COMMENTS_MAX, "comments")?;
                        let value = decode_varint(&mut packed);
                        tables.comments.push(value.map_err(|error| {
                            Malformed::caused_by(format!("the comments are broken: {error}"), error)
                        })?);
                    }
                }
                _ => {}
            }
            Ok(())
        })?;
        if tables.strings.first().is_some_and(|first| !first.is_empty()) {
            return Err("string 0 is not empty; this is not a pprof profile".to_owned().into());
        }
        if tables.sample_types.is_empty() {
            return Err("no sample type; this is not a pprof profile".to_owned().into());
        }
        Ok(tables)
    }

    /// The comments.
    pub(super) fn comments(&self) -> impl Iterator<Item = &str> {
        let known = |index: &u64| self.strings.get(usize::try_from(*index).ok()?);
        self.comments.iter().filter_map(known).map(|text| &**text)
    }

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
