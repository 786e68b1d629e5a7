//! The samples of OTLP profiles.
//!
//! Input: encoded samples, which refer to the dictionary. Output: stacks, counts and times in a
//! [`SavedBuilder`].

use super::super::OBSERVATIONS_MAX;
use super::super::proto::field;
use super::super::tables::Tables;
use super::converter::{Attribute, Converter};
use super::profiles::{Profile, for_each_time};
use crate::profile::about::{About, SAMPLES};
use crate::profile::builder::SavedBuilder;
use crate::profile::formats::Malformed;
use crate::profile::formats::protobuf::{for_each_field, for_each_number, limit};
use crate::profile::formats::tally::Tally;
use crate::profile::formats::thread_times::{ThreadTimes, weight_ns};
use crate::profile::saved::StackRoot;
use crate::profile::texts::TextId;
use crate::profile::timeline::TimedSample;
use prost::encoding::decode_varint;

/// Most attributes of a sample.
const ATTRIBUTES_MAX: usize = 1 << 10;

/// Identity of a sample from its attributes.
struct Identity<'a> {
    root: StackRoot,
    pid: Option<u32>,
    thread: TextId,
    tid: Option<u64>,
    cpu: Option<u32>,
    weights: &'a [u8],
}

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
                more(&mut self.attributes, index, ATTRIBUTES_MAX);
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
pub(super) struct Reader<'t, 'a> {
    converter: Converter<'t, 'a>,
    times: ThreadTimes,
    begin_ns: u64,
    has_merged_threads: bool,
    divisor: u64,
    period_ns: f64,
    /// Samples whose labels are left out.
    without_labels: u64,
    /// Samples so far, and the buffers of the last one.
    samples: u64,
    sample: Sample,
}

impl<'t, 'a> Reader<'t, 'a> {
    /// Returns a reader without samples.
    pub(super) fn new(
        tables: &'t Tables<'a>,
        about: About,
        begin_ns: u64,
        has_merged_threads: bool,
        divisor: u64,
    ) -> Reader<'t, 'a> {
        let period_ns = match (about.period_ns(), &*about.unit) {
            (Some(period_ns), SAMPLES) => period_ns,
            // Times are counted directly.
            (_, "nanoseconds") => 1.0,
            _ => 0.0,
        };
        Reader {
            converter: Converter::new(tables, about),
            times: ThreadTimes::default(),
            begin_ns,
            has_merged_threads,
            divisor,
            period_ns,
            without_labels: 0,
            samples: 0,
            sample: Sample::default(),
        }
    }

    /// The resulting profile.
    pub(super) fn finish(self, tally: &mut Tally) -> SavedBuilder {
        tally.remark_labels(self.without_labels);
        let mut builder = self.converter.finish();
        self.times.finish(&mut builder);
        builder
    }

    /// Reads the samples of a profile.
    pub(super) fn profile(&mut self, profile: &Profile<'_, 'a>, tally: &mut Tally) -> Result<(), Malformed> {
        let process = self.converter.process(profile)?;
        profile.for_each_sample(|bytes| {
            self.samples += 1;
            let number = self.samples;
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
        limit(sample.attributes.len(), ATTRIBUTES_MAX + 1, "attributes of a sample")?;
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
        let identity = self.identity(sample, process, pid)?;
        let root = self.converter.root(identity.root)?;
        let node = match self.converter.node(root, sample.stack).map_err(|why| why.at(of()))? {
            Ok(node) => node,
            Err(what) => {
                tally.skip_sample(|| format!("{} names {what}, which is not there", of()));
                return Ok(());
            }
        };
        let weights = weights(identity.weights, observations);
        let mut timed = Vec::with_capacity(sample.times.len());
        for index in 0..observations {
            let value = sample.values.get(index).map_or(1, |value| value.cast_signed());
            // Without its negative half a difference would be meaningless.
            let count = u64::try_from(value)
                .map_err(|_| format!("{} counts {value}; a difference of profiles is no profile", of()))?;
            let count = count / self.divisor + u64::from(count % self.divisor > self.divisor / 2);
            self.converter.count(node, count).map_err(|full| full.at(of()))?;
            if let Some(time) = sample.times.get(index) {
                let by_count = || weight_ns(count, self.period_ns);
                timed.push(TimedSample {
                    at_ns: time.saturating_sub(self.begin_ns),
                    weight_ns: weights.get(index).copied().unwrap_or_else(by_count),
                    // A stack that was not recorded has no counts.
                    node: Some(node).filter(|_| sample.stack > 0 || count > 0),
                    count,
                    cpu: identity.cpu,
                });
            }
        }
        tally.understand();
        let key = (identity.root.process, identity.pid, identity.thread, identity.tid.unwrap_or(0));
        self.times.add(key, timed.into_iter())
    }

    /// Determines the identity of a sample.
    fn identity(
        &mut self,
        sample: &Sample,
        process: TextId,
        pid: Option<u32>,
    ) -> Result<Identity<'a>, Malformed> {
        let root = StackRoot::of(process);
        let mut identity = Identity { root, pid, thread: TextId::EMPTY, tid: None, cpu: None, weights: &[] };
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
                    self.converter.note_waits();
                }
                Attribute::Incomplete => identity.root.complete = false,
                Attribute::Weights(weights) => identity.weights = weights,
            }
        }
        match self.converter.labels(&mut labels) {
            Some(labels) => identity.root.labels = labels,
            None => self.without_labels += 1,
        }
        if !self.has_merged_threads {
            identity.root.thread = identity.tid.map(|tid| (identity.thread, tid));
        }
        Ok(identity)
    }
}

/// The weight of each observation; empty unless there is one for each.
fn weights(mut packed: &[u8], observations: usize) -> Vec<u64> {
    let mut weights = Vec::new();
    while !packed.is_empty() && weights.len() <= observations {
        let Ok(weight) = decode_varint(&mut packed) else { return Vec::new() };
        weights.push(weight);
    }
    if weights.len() == observations { weights } else { Vec::new() }
}
