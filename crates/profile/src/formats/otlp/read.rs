//! Converts OTLP, of any program, to a saved profile.
//!
//! `Profile` is one profile of the file, `CountUnit` the unit of its counts, `Reader` reads its samples.
//!
//! Input: the unpacked message, hostile. Output: [`SavedProfile`], or an error with its position. Separate passes
//! read the dictionary, the types of its profiles, and the samples. A file can have many profiles: those of the
//! requested type are read, by default those with the type of the first, which viewers show. If times are of
//! another clock than the recording's, they are relative to the earliest.

mod converter;

use std::collections::HashSet;

use prost::encoding::decode_varint;

use super::proto::{self, field};
use super::{OBSERVATIONS_MAX, key};
use crate::about::{About, COMMENTS_MAX, SAMPLES};
use crate::formats::json::Extra;
use crate::formats::pprof::read::{PERIOD_NS_MAX, PERIOD_NS_MIN};
use crate::formats::protobuf::{Value, for_each_field, for_each_number, limit, message};
use crate::formats::samples::{SampleIdentity, Samples, is_multiple};
use crate::formats::tally::Tally;
use crate::formats::{Malformed, pprof};
use crate::saved::SavedProfile;
use crate::texts::TextId;
use converter::{Any, Attribute, Converter, Resource, Tables};

/// Most kinds of values that are named where one is missing.
const KINDS_NAMED: usize = 20;

/// Reads an unpacked profile.
///
/// # Errors
/// The error and its position, as a line for people.
pub fn read(bytes: &[u8]) -> Result<SavedProfile, Malformed> {
    Tally::judged(|tally| read_samples(bytes, tally))
}

/// Reads an unpacked profile, and counts invalid samples.
///
/// # Errors
/// The error and its position, as a line for people without the name of the file.
pub(crate) fn read_samples(bytes: &[u8], tally: &mut Tally) -> Result<SavedProfile, Malformed> {
    let tables = Tables::read(bytes)?;
    let all = profiles(bytes, &tables)?;
    let Some(first) = all.iter().find(|profile| profile.samples > 0 || profile.is_of_heap()).or(all.first())
    else {
        return Err("no profile in this OTLP file".into());
    };
    let kind = match tally.value_type() {
        Some(wanted) => {
            all.iter().map(|profile| profile.kind).find(|kind| kind.0 == wanted).ok_or_else(|| {
                let mut kinds: Vec<&str> = all.iter().map(|profile| profile.kind.0).collect();
                kinds.sort_unstable();
                kinds.dedup();
                kinds.truncate(KINDS_NAMED);
                format!("it has no values of type `{wanted}`; it has {}", kinds.join(", "))
            })?
        }
        None => first.kind,
    };
    let read: Vec<&Profile<'_, '_>> = all.iter().filter(|profile| profile.kind == kind).collect();
    let others = all.iter().filter(|profile| profile.kind != kind && profile.samples > 0).count();
    let count_unit = CountUnit::of(&read);
    let mut header = Header::of(&read, &tables, &count_unit)?;
    if let Some(wanted) = tally.value_type() {
        header.about.value_type = Some(wanted.to_owned());
    } else if others > 0 && !(header.is_ours && header.about.value_type.is_some()) {
        // Of stackprof's own it is known, and meant.
        tally.remark(&format!("left out: {others} of {} profiles, which do not count {}", all.len(), kind.0));
    }
    let begin_ns = begin_ns(&read, &header);
    let extra: Option<Extra<'_>> = serde_json::from_str(&header.times).ok();
    let has_merged_threads = extra.as_ref().is_some_and(Extra::has_merged_threads);
    let period_ns = match (header.about.period_ns(), &*header.about.unit) {
        (Some(period_ns), SAMPLES) => period_ns,
        // Times are counted directly.
        (_, "nanoseconds") => 1.0,
        _ => 0.0,
    };
    let mut reader = Reader {
        converter: Converter::new(&tables, header.about),
        samples: Samples::new(begin_ns, period_ns, count_unit.divisor, has_merged_threads),
        number: 0,
        sample: Sample::default(),
    };
    for profile in &read {
        reader.profile(profile, tally)?;
    }
    let Reader { converter: Converter { mut builder, .. }, samples, .. } = reader;
    samples.finish(&mut builder, tally);
    if let Some(extra) = extra.filter(|_| builder.so_far().timeline().is_some()) {
        extra.put_times(&mut builder)?;
    }
    Ok(builder.finish())
}

/// Origin of the profile's clock, nanoseconds since 1970.
fn begin_ns(profiles: &[&Profile<'_, '_>], header: &Header) -> u64 {
    let begin_ns = header.about.time_unix_ns.unwrap_or(0);
    if header.is_ours {
        return begin_ns;
    }
    let first_ns = profiles.iter().filter_map(|profile| profile.first_ns()).min();
    match first_ns {
        // Without a start, or with one of another clock.
        Some(first_ns) if begin_ns == 0 || begin_ns > first_ns => first_ns,
        _ => begin_ns,
    }
}

/// Data of profiles other than samples.
#[derive(Default)]
struct Header {
    about: About,
    is_ours: bool,
    /// JSON of a timeline's data other than samples.
    times: String,
}

impl Header {
    fn of(
        profiles: &[&Profile<'_, '_>],
        tables: &Tables<'_>,
        count_unit: &CountUnit,
    ) -> Result<Header, Malformed> {
        let mut header = Header {
            about: About { unit: count_unit.unit.clone(), hz: count_unit.hz, ..About::default() },
            ..Header::default()
        };
        let known = |value: u64| Some(value).filter(|value| *value > 0 && i64::try_from(*value).is_ok());
        let begins = || profiles.iter().filter_map(|profile| known(profile.time_unix_ns));
        header.about.time_unix_ns = begins().min();
        let end_ns = |profile: &&Profile<'_, '_>| {
            let begin_ns = known(profile.time_unix_ns).or(header.about.time_unix_ns).unwrap_or(0);
            known(profile.duration_ns).map(|ns| begin_ns.saturating_add(ns))
        };
        let begin_ns = header.about.time_unix_ns.unwrap_or(0);
        let duration_ns =
            profiles.iter().filter_map(end_ns).max().map(|end_ns| end_ns.saturating_sub(begin_ns));
        header.about.duration_ns = duration_ns;
        let pids: HashSet<Option<u32>> = profiles.iter().map(|profile| profile.resource.pid).collect();
        if let [Some(pid)] = pids.iter().collect::<Vec<_>>().as_slice() {
            header.about.pid = Some(*pid);
        }
        // One attribute can be referenced any number of times.
        let mut known = HashSet::new();
        let mut comments = 0;
        for index in profiles.iter().flat_map(|profile| &profile.attributes) {
            if known.insert(*index) {
                header.attribute(*index, tables, &mut comments)?;
            }
        }
        // The rate is one of samples.
        header.about.hz = header.about.hz.filter(|_| header.about.unit == SAMPLES);
        Ok(header)
    }

    fn attribute(&mut self, index: u64, tables: &Tables<'_>, comments: &mut usize) -> Result<(), Malformed> {
        let bytes = usize::try_from(index).ok().and_then(|index| tables.attributes.get(index));
        let bytes = bytes.ok_or_else(|| format!("a profile names attribute {index}, which is not there"))?;
        let (key, value, _) = converter::of_dictionary(bytes, tables)?;
        match (key, value) {
            (key::RECORDING | key::COMMENTS, _) => {
                self.is_ours |= key == key::RECORDING;
                value.for_each_text(|comment| {
                    limit(*comments, COMMENTS_MAX, "comments")?;
                    *comments += 1;
                    pprof::take_comment(&mut self.about, comment);
                    Ok(())
                })?;
            }
            (key::TIMES, Any::Text(times)) => self.times = String::from_utf8_lossy(times).into_owned(),
            _ => {}
        }
        Ok(())
    }
}

// ---- The profiles of an OTLP file: type and start of each, and which of them are read.

/// Most profiles of a file.
const PROFILES_MAX: usize = 1 << 16;
/// Most attributes of a profile.
const ATTRIBUTES_MAX: usize = 1 << 10;
/// Most bytes of a value's type and unit: these are compared for all profiles.
const KIND_BYTES_MAX: usize = 256;

/// A profile of the file.
struct Profile<'t, 'a> {
    /// The message.
    bytes: &'a [u8],
    resource: Resource<'a>,
    /// Index of its resource in the file.
    resource_number: usize,
    /// Type and unit of its values.
    kind: (&'t str, &'t str),
    period_kind: (&'t str, &'t str),
    period: i64,
    time_unix_ns: u64,
    duration_ns: u64,
    /// Indexes of its attributes.
    attributes: Vec<u64>,
    samples: u64,
}

/// The profiles of a file, in its order.
fn profiles<'t, 'a>(bytes: &'a [u8], tables: &'t Tables<'a>) -> Result<Vec<Profile<'t, 'a>>, Malformed> {
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
    fn is_of_heap(&self) -> bool {
        self.period_kind == ("space", "bytes")
    }

    /// Calls `visit` with each sample.
    fn for_each_sample(
        &self,
        mut visit: impl FnMut(&'a [u8]) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        for_each_field(self.bytes, &"a profile", |number, value| match (number, value) {
            (field::SAMPLES, Value::Bytes(sample)) => visit(sample),
            _ => Ok(()),
        })
    }

    /// The earliest timestamp.
    fn first_ns(&self) -> Option<u64> {
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

    /// Whether all values are whole periods.
    fn are_multiples(&self, period: u64) -> bool {
        self.for_each_sample(|sample| {
            for_each_field(sample, &"a sample", |number, value| match number {
                field::VALUES => {
                    for_each_number(value, &"a sample", |value| match is_multiple(value, period) {
                        true => Ok(()),
                        false => Err("no whole period".into()),
                    })
                }
                _ => Ok(()),
            })
        })
        .is_ok()
    }
}

/// Calls `visit` with each timestamp of a field: packed, or a single one.
fn for_each_time(value: Value<'_>, mut visit: impl FnMut(u64)) {
    match value {
        Value::Fixed(time) => visit(time),
        Value::Bytes(packed) => {
            packed.as_chunks::<8>().0.iter().for_each(|time| visit(u64::from_le_bytes(*time)));
        }
        Value::Number(_) => {}
    }
}

/// Unit of counts of the profiles to be read.
struct CountUnit {
    unit: String,
    hz: Option<u32>,
    /// The value of one count.
    divisor: u64,
}

impl CountUnit {
    /// Derives it from at least one profile, all of one type.
    fn of(profiles: &[&Profile<'_, '_>]) -> CountUnit {
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

// ---- The samples of OTLP profiles.

/// Most attributes of a sample.
const SAMPLE_ATTRIBUTES_MAX: usize = 1 << 10;

/// A decoded sample.
#[derive(Default)]
struct Sample {
    stack: u64,
    attributes: Vec<u64>,
    values: Vec<u64>,
    times: Vec<u64>,
}

impl Sample {
    /// Decodes a sample, reusing allocations.
    fn read(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        self.stack = 0;
        self.attributes.clear();
        self.values.clear();
        self.times.clear();
        let more = |numbers: &mut Vec<u64>, number: u64, max: usize| {
            // One more than allowed shows that there are too many.
            if numbers.len() <= max {
                numbers.push(number);
            }
        };
        for_each_field(bytes, &"it", |number, value| match number {
            field::STACK_INDEX => for_each_number(value, &"it", |index| {
                self.stack = index;
                Ok(())
            }),
            field::SAMPLE_ATTRIBUTES => for_each_number(value, &"it", |index| {
                more(&mut self.attributes, index, SAMPLE_ATTRIBUTES_MAX);
                Ok(())
            }),
            field::VALUES => for_each_number(value, &"it", |value| {
                more(&mut self.values, value, OBSERVATIONS_MAX);
                Ok(())
            }),
            field::TIMESTAMPS => {
                for_each_time(value, |time| more(&mut self.times, time, OBSERVATIONS_MAX));
                Ok(())
            }
            _ => Ok(()),
        })
    }

    /// Why it is invalid.
    fn fault(&self) -> Option<String> {
        match (self.values.len(), self.times.len()) {
            (0, 0) => Some("has neither values nor timestamps".to_owned()),
            (values, times) if values > 0 && times > 0 && values != times => {
                Some(format!("has {values} values and {times} timestamps"))
            }
            _ => None,
        }
    }
}

/// Reads samples into a profile.
struct Reader<'t, 'a> {
    converter: Converter<'t, 'a>,
    samples: Samples,
    /// Samples so far, and the buffers of the last one.
    number: u64,
    sample: Sample,
}

impl<'a> Reader<'_, 'a> {
    /// Reads the samples of a profile.
    fn profile(&mut self, profile: &Profile<'_, 'a>, tally: &mut Tally) -> Result<(), Malformed> {
        let process = self.converter.process(profile)?;
        profile.for_each_sample(|bytes| {
            self.number += 1;
            let number = self.number;
            let mut sample = std::mem::take(&mut self.sample);
            let read = match sample.read(bytes) {
                Ok(()) => self.add(&sample, (process, profile.resource.pid), number, tally),
                Err(why) => {
                    tally.skip_sample(|| format!("sample {number} is broken: {why}"));
                    Ok(())
                }
            };
            self.sample = sample;
            read
        })
    }

    fn add(
        &mut self,
        sample: &Sample,
        (process, pid): (TextId, Option<u32>),
        number: u64,
        tally: &mut Tally,
    ) -> Result<(), Malformed> {
        let of = || format!("sample {number}");
        let observations = sample.values.len().max(sample.times.len());
        limit(observations, OBSERVATIONS_MAX + 1, "observations of a sample")?;
        limit(sample.attributes.len(), SAMPLE_ATTRIBUTES_MAX + 1, "attributes of a sample")?;
        let missing = |index: &&u64| !self.converter.has_attribute(**index);
        let fault = sample.fault().or_else(|| {
            sample
                .attributes
                .iter()
                .find(missing)
                .map(|index| format!("names attribute {index}, which is not there"))
        });
        if let Some(fault) = fault {
            tally.skip_sample(|| format!("{} {fault}", of()));
            return Ok(());
        }
        let (identity, weights) = self.identity(sample, process, pid)?;
        let root = self.converter.builder.root(identity.root)?;
        let node = match self.converter.node(root, sample.stack).map_err(|why| why.at(of()))? {
            Ok(node) => node,
            Err(what) => {
                tally.skip_sample(|| format!("{} names {what}, which is not there", of()));
                return Ok(());
            }
        };
        let weights = unpacked(weights, observations);
        let mut timed = Vec::with_capacity(sample.times.len());
        for index in 0..observations {
            let value = sample.values.get(index).map_or(1, |value| value.cast_signed());
            let count = self.samples.counts(value, of)?;
            self.converter.builder.count(node, count).map_err(|full| Malformed::from(full).at(of()))?;
            if let Some(time) = sample.times.get(index) {
                // A stack that was not recorded has no counts.
                let node = Some(node).filter(|_| sample.stack > 0 || count > 0);
                timed.push((*time, weights.get(index).copied(), node, count));
            }
        }
        tally.understand();
        self.samples.add_times(&identity, timed.into_iter())
    }

    /// Determines the identity of a sample, and its encoded weights.
    fn identity(
        &mut self,
        sample: &Sample,
        process: TextId,
        pid: Option<u32>,
    ) -> Result<(SampleIdentity, &'a [u8]), Malformed> {
        let (mut identity, mut weights): (_, &[u8]) = (SampleIdentity::of(process, pid), &[]);
        let mut labels = Vec::new();
        for index in &sample.attributes {
            match self.converter.attribute(*index)? {
                Attribute::Other | Attribute::BuildId(..) => {}
                Attribute::Label(label) => labels.push(label),
                Attribute::Process(process) => identity.root.process = process,
                Attribute::Pid(pid) => identity.pid = Some(pid),
                Attribute::Thread(name) => identity.thread = name,
                Attribute::Tid(tid) => identity.tid = Some(tid),
                Attribute::Cpu(cpu) => identity.cpu = Some(cpu),
                Attribute::Waiting(waiting) => {
                    identity.root.waiting = waiting;
                    self.converter.builder.about().idle.get_or_insert(true);
                }
                Attribute::Incomplete => identity.root.complete = false,
                Attribute::Weights(packed) => weights = packed,
            }
        }
        self.samples.complete_root(&mut identity, &mut labels, &mut self.converter.builder);
        Ok((identity, weights))
    }
}

/// The weight of each observation; empty unless there is one for each.
fn unpacked(mut packed: &[u8], observations: usize) -> Vec<u64> {
    let mut weights = Vec::new();
    while !packed.is_empty() && weights.len() <= observations {
        let Ok(weight) = decode_varint(&mut packed) else { return Vec::new() };
        weights.push(weight);
    }
    if weights.len() == observations { weights } else { Vec::new() }
}
