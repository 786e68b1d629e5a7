//! The profiles of an OTLP file: type and start of each, and which of them are read.
//!
//! Input: the message and its dictionary. Output: a [`Profile`] for each, with encoded samples, and the unit
//! of counts of those to be read.

use super::super::attributes::Resource;
use super::super::proto::{self, field};
use super::super::tables::Tables;
use crate::profile::about::SAMPLES;
use crate::profile::formats::Malformed;
use crate::profile::formats::pprof::tables::PERIOD_NS_MAX;
use crate::profile::formats::pprof::values::PERIOD_NS_MIN;
use crate::profile::formats::protobuf::{Value, for_each_field, for_each_number, limit, message};

/// Most profiles of a file.
const PROFILES_MAX: usize = 1 << 16;
/// Most attributes of a profile.
const ATTRIBUTES_MAX: usize = 1 << 10;
/// Most bytes of a value's type and unit: these are compared for all profiles.
const KIND_BYTES_MAX: usize = 256;

/// A profile of the file.
pub(super) struct Profile<'t, 'a> {
    /// The message.
    pub(super) bytes: &'a [u8],
    pub(super) resource: Resource<'a>,
    /// Index of its resource in the file.
    pub(super) resource_number: usize,
    /// Type and unit of its values.
    pub(super) kind: (&'t str, &'t str),
    period_kind: (&'t str, &'t str),
    period: i64,
    pub(super) time_unix_ns: u64,
    pub(super) duration_ns: u64,
    /// Indexes of its attributes.
    pub(super) attributes: Vec<u64>,
    pub(super) samples: u64,
}

/// The profiles of a file, in its order.
pub(super) fn profiles<'t, 'a>(
    bytes: &'a [u8],
    tables: &'t Tables<'a>,
) -> Result<Vec<Profile<'t, 'a>>, Malformed> {
    let mut profiles = Vec::new();
    let mut resource_number = 0;
    for_each_field(bytes, &"the unpacked profile", |number, value| {
        let (field::RESOURCE_PROFILES, Value::Bytes(of_resource)) = (number, value) else { return Ok(()) };
        let mut resource = Resource::default();
        resource_number += 1;
        for_each_field(of_resource, &"the profiles of a resource", |number, value| {
            if let (field::RESOURCE, Value::Bytes(bytes)) = (number, value) {
                resource = Resource::read(bytes, tables)?;
            }
            Ok(())
        })?;
        for_each_field(of_resource, &"the profiles of a resource", |number, value| {
            let (field::SCOPE_PROFILES, Value::Bytes(of_scope)) = (number, value) else { return Ok(()) };
            for_each_field(of_scope, &"the profiles of a scope", |number, value| {
                if let (field::PROFILES, Value::Bytes(bytes)) = (number, value) {
                    limit(profiles.len(), PROFILES_MAX, "profiles")?;
                    profiles.push(Profile::read(bytes, (resource, resource_number), tables)?);
                }
                Ok(())
            })
        })
    })?;
    Ok(profiles)
}

impl<'t, 'a> Profile<'t, 'a> {
    fn read(
        bytes: &'a [u8],
        (resource, resource_number): (Resource<'a>, usize),
        tables: &'t Tables<'a>,
    ) -> Result<Profile<'t, 'a>, Malformed> {
        let mut profile = Profile {
            bytes,
            resource,
            resource_number,
            kind: ("", ""),
            period_kind: ("", ""),
            period: 0,
            time_unix_ns: 0,
            duration_ns: 0,
            attributes: Vec::new(),
            samples: 0,
        };
        let kind = |bytes: &[u8], of: &str| -> Result<(&'t str, &'t str), Malformed> {
            let kind: proto::ValueType = message(bytes, of, 0)?;
            let kind = (tables.string(kind.kind.into(), of)?, tables.string(kind.unit.into(), of)?);
            if kind.0.len().max(kind.1.len()) > KIND_BYTES_MAX {
                return Err(format!("{of} is longer than {KIND_BYTES_MAX} bytes").into());
            }
            Ok(kind)
        };
        for_each_field(bytes, &"a profile", |number, value| {
            match (number, value) {
                (field::SAMPLE_TYPE, Value::Bytes(bytes)) => profile.kind = kind(bytes, "a sample type")?,
                (field::PERIOD_TYPE, Value::Bytes(bytes)) => {
                    profile.period_kind = kind(bytes, "a period type")?;
                }
                (field::PERIOD, Value::Number(period)) => profile.period = period.cast_signed(),
                (field::TIME_UNIX_NANO, Value::Fixed(time)) => profile.time_unix_ns = time,
                (field::DURATION_NANO, Value::Number(duration)) => profile.duration_ns = duration,
                (field::SAMPLES, Value::Bytes(_)) => profile.samples += 1,
                (field::PROFILE_ATTRIBUTES, _) => {
                    for_each_number(value, &"the list of attributes of a profile", |index| {
                        limit(profile.attributes.len(), ATTRIBUTES_MAX, "attributes of a profile")?;
                        profile.attributes.push(index);
                        Ok(())
                    })?;
                }
                _ => {}
            }
            Ok(())
        })?;
        Ok(profile)
    }

    /// Whether it says that allocations were sampled by their bytes: of these nothing may be in use.
    pub(super) fn is_of_heap(&self) -> bool {
        self.period_kind == ("space", "bytes")
    }

    /// Calls `visit` with each sample.
    pub(super) fn for_each_sample(
        &self,
        mut visit: impl FnMut(&'a [u8]) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        for_each_field(self.bytes, &"a profile", |number, value| match (number, value) {
            (field::SAMPLES, Value::Bytes(sample)) => visit(sample),
            _ => Ok(()),
        })
    }

    /// The earliest timestamp.
    pub(super) fn first_ns(&self) -> Option<u64> {
        let mut first_ns = None;
        // Errors are reported when the samples are read.
        let _ = self.for_each_sample(|sample| {
            let _ = for_each_field(sample, &"a sample", |number, value| {
                if number == field::TIMESTAMPS {
                    for_each_time(value, |time| {
                        first_ns = Some(first_ns.map_or(time, |first: u64| first.min(time)));
                    });
                }
                Ok(())
            });
            Ok(())
        });
        first_ns
    }

    /// Whether all values are whole periods. Dividing measured times would lose the remainder.
    fn are_multiples(&self, period: u64) -> bool {
        let is_whole = |value: u64| {
            let over = value % period;
            over.min(period - over) <= period / 100 + value / 1_000_000
        };
        self.for_each_sample(|sample| {
            for_each_field(sample, &"a sample", |number, value| match number {
                field::VALUES => for_each_number(value, &"a sample", |value| match is_whole(value) {
                    true => Ok(()),
                    false => Err("no whole period".into()),
                }),
                _ => Ok(()),
            })
        })
        .is_ok()
    }
}

/// Calls `visit` with each timestamp of a field: packed, or a single one.
pub(super) fn for_each_time(value: Value<'_>, mut visit: impl FnMut(u64)) {
    match value {
        Value::Fixed(time) => visit(time),
        Value::Bytes(packed) => {
            packed.as_chunks::<8>().0.iter().for_each(|time| visit(u64::from_le_bytes(*time)));
        }
        Value::Number(_) => {}
    }
}

/// Unit of counts of the profiles to be read.
pub(super) struct CountUnit {
    pub(super) unit: String,
    pub(super) hz: Option<u32>,
    /// The value of one count.
    pub(super) divisor: u64,
}

impl CountUnit {
    /// Derives it from at least one profile, all of one type.
    pub(super) fn of(profiles: &[&Profile<'_, '_>]) -> CountUnit {
        let Some(first) = profiles.first() else {
            return CountUnit { unit: SAMPLES.to_owned(), hz: None, divisor: 1 };
        };
        let (kind, unit) = first.kind;
        let has_period =
            |other: &&Profile<'_, '_>| (other.period, other.period_kind) == (first.period, first.period_kind);
        let has_period = profiles.iter().all(has_period) && first.period_kind.1 == "nanoseconds";
        let period = Some(first.period).filter(|_| has_period).filter(|ns| (1..=PERIOD_NS_MAX).contains(ns));
        let hz = period.map(|ns| (1e9 / ns as f64).round() as u32);
        let whole = period.filter(|ns| {
            unit == "nanoseconds"
                && first.period_kind.0 == kind
                && *ns >= PERIOD_NS_MIN
                && profiles.iter().all(|profile| profile.are_multiples(ns.unsigned_abs()))
        });
        if let Some(period) = whole {
            return CountUnit { unit: SAMPLES.to_owned(), hz, divisor: period.unsigned_abs() };
        }
        let unit = match unit {
            "count" | "" if kind.is_empty() => SAMPLES,
            "count" | "" => kind,
            unit => unit,
        };
        CountUnit { unit: unit.to_owned(), hz, divisor: 1 }
    }
}
