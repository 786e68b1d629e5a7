//! Converts the Firefox Profiler's processed format to a saved profile.
//!
//! `Meta`, `Thread` and `Samples` are the file; `to_json` turns JsonSlabs, JSON with binary columns, into plain
//! JSON.
//!
//! Input: `meta`, `threads`, `shared` and `libs` of a file, and stackprof's key. Output: [`SavedProfile`], or an
//! error with its position; an invalid sample is skipped and counted. Tables belong to threads or to the file
//! (`tables.rs`). Code without names is identified by library and address.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashMap;

use serde::Deserialize;

use super::super::tally::Tally;
use super::tables::{FrameTable, FuncTable, Library, ResourceTable, Stack, StackTable, Stacks, Tables};
use super::{PRODUCT_COUNTS, PRODUCT_NO_RATE};
use crate::DEPTH_MAX;
use crate::about::{About, SAMPLES};
use crate::builder::SavedBuilder;
use crate::formats::json::{Extra, Index};
use crate::formats::tally::Malformed;
use crate::saved::{Full, SavedProfile, StackRoot};
use crate::timeline::{ThreadTimeline, TimedSample};
use crate::trie::NodeId;

/// `meta` of a file.
#[derive(Deserialize)]
pub(crate) struct Meta<'a> {
    #[serde(borrow, default)]
    product: Cow<'a, str>,
    interval: f64,
    #[serde(rename = "startTime", default)]
    start_time_ms: f64,
    #[serde(borrow, rename = "sampleUnits", default)]
    sample_units: Option<SampleUnits<'a>>,
}

/// Units of the columns of samples.
#[derive(Deserialize)]
struct SampleUnits<'a> {
    #[serde(borrow, rename = "threadCPUDelta", default)]
    cpu_delta: Cow<'a, str>,
}

impl Meta<'_> {
    /// Nanoseconds of a CPU delta of 1, if it is a time.
    fn cpu_unit_ns(&self) -> Option<f64> {
        match &*self.sample_units.as_ref()?.cpu_delta {
            "ns" => Some(1.0),
            "µs" => Some(1e3),
            _ => None,
        }
    }
}

/// One of `threads` of a file.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Thread<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    process_name: Cow<'a, str>,
    #[serde(default)]
    is_main_thread: bool,
    #[serde(default)]
    pid: Number<'a>,
    #[serde(default)]
    tid: Number<'a>,
    #[serde(default)]
    register_time: Option<f64>,
    #[serde(default)]
    unregister_time: Option<f64>,
    #[serde(borrow)]
    samples: Samples<'a>,
    #[serde(default)]
    native_allocations: Option<serde::de::IgnoredAny>,
    #[serde(default)]
    stack_table: Option<StackTable>,
    #[serde(default)]
    frame_table: Option<FrameTable>,
    #[serde(default)]
    func_table: Option<FuncTable>,
    #[serde(default)]
    resource_table: Option<ResourceTable>,
    #[serde(borrow, default)]
    string_array: Option<Vec<Cow<'a, str>>>,
}

impl Thread<'_> {
    /// Whether it has only allocations, as heap profiles that the Firefox Profiler imported.
    fn has_only_allocations(&self) -> bool {
        self.native_allocations.is_some() && self.samples.stack.is_empty()
    }

    fn tables(&self) -> Tables<'_> {
        Tables {
            stacks: self.stack_table.as_ref(),
            frames: self.frame_table.as_ref(),
            functions: self.func_table.as_ref(),
            resources: self.resource_table.as_ref(),
            names: self.string_array.as_deref(),
        }
    }
}

/// A process or thread id: text in new versions of the format, a number in old ones.
#[derive(Deserialize)]
#[serde(untagged)]
enum Number<'a> {
    Number(u64),
    #[serde(borrow)]
    Text(Cow<'a, str>),
}

impl Default for Number<'_> {
    fn default() -> Self {
        Number::Number(0)
    }
}

impl Number<'_> {
    /// The number, without the suffix that makes equal ones distinct (`17.1`).
    fn get(&self) -> Option<u64> {
        match self {
            Number::Number(number) => Some(*number),
            Number::Text(text) => text.split('.').next().and_then(|text| text.parse().ok()),
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Samples<'a> {
    stack: Vec<Option<Index>>,
    #[serde(default)]
    weight: Option<Vec<f64>>,
    #[serde(borrow, default)]
    weight_type: Option<Cow<'a, str>>,
    #[serde(default, rename = "threadCPUDelta")]
    cpu_delta: Option<Vec<Option<f64>>>,
    /// Milliseconds since the start.
    #[serde(default)]
    time: Option<Vec<f64>>,
    /// Milliseconds since the previous sample.
    #[serde(default)]
    time_deltas: Option<Vec<f64>>,
}

impl Samples<'_> {
    /// Times of the samples, nanoseconds since the start; `None` for a file without times.
    fn times_ns(&self) -> Option<Vec<u64>> {
        let times: Vec<u64> = match (&self.time, &self.time_deltas) {
            (Some(times), _) => times.iter().map(|ms| (ms * 1e6).round() as u64).collect(),
            (None, Some(deltas)) => {
                let sums = deltas.iter().scan(0.0, |at_ms, delta| {
                    *at_ms += delta;
                    Some((*at_ms * 1e6).round() as u64)
                });
                sums.collect()
            }
            (None, None) => return None,
        };
        (times.len() == self.stack.len()).then_some(times)
    }
}

/// Meaning of sample times in a file.
#[derive(Clone, Copy)]
struct Times {
    /// The times are real.
    are_real: bool,
    period_ns: f64,
    /// Nanoseconds of a CPU delta of 1, if it is a time.
    cpu_unit_ns: Option<f64>,
}

/// Builds the profile from the parts of a file.
///
/// # Errors
/// The error and its position, as a line for people without the name of the file.
pub(crate) fn read(
    meta: &Meta<'_>,
    threads: &[Thread<'_>],
    shared: Tables<'_>,
    libraries: &[Library<'_>],
    extra: Option<&Extra<'_>>,
    tally: &mut Tally,
) -> Result<SavedProfile, Malformed> {
    if threads.iter().any(Thread::has_only_allocations)
        && threads.iter().all(|thread| thread.samples.stack.is_empty())
    {
        return Err("it has native allocations and no samples; open it at profiler.firefox.com, or record: \
                    stackprof heap -- PROGRAM"
            .into());
    }
    let (units, counted) = units(threads)?;
    let is_other =
        |(thread, unit): &(&Thread<'_>, &Unit<'_>)| **unit != counted && !thread.samples.stack.is_empty();
    let others = threads.iter().zip(&units).filter(is_other).count();
    if others > 0 {
        let (all, name) = (threads.len(), counted.name);
        tally.remark(&format!("left out: {others} of {all} threads, which do not count {name}"));
    }
    let ours = meta.product.strip_prefix(PRODUCT_COUNTS).and_then(|name| name.strip_suffix(')'));
    let unit = ours.filter(|_| counted.name == SAMPLES).map_or(counted, |name| Unit { name, factor: 1.0 });
    let metadata = extra.map_or_else(About::default, Extra::about);
    // Standard fields take precedence, as in other readers.
    let mut about = About { unit: unit.name.to_owned(), hz: None, ..metadata };
    let rate = 1000.0 / meta.interval;
    if meta.product != PRODUCT_NO_RATE && unit.name == SAMPLES && (1.0..=1e9).contains(&rate) {
        about.hz = Some(rate.round() as u32);
    }
    let start_ns = meta.start_time_ms * 1e6;
    // The format's milliseconds are inexact, and it cannot omit the time.
    if extra.is_none() {
        about.time_unix_ns = (1.0..9e18).contains(&start_ns).then_some(start_ns as u64);
    }
    let pids: Vec<u64> = threads.iter().filter_map(|thread| thread.pid.get()).collect();
    if let Some(pid) = pids.first().filter(|pid| **pid > 0 && pids.iter().all(|other| other == *pid)) {
        about.pid = u32::try_from(*pid).ok();
    }
    let mut builder = SavedBuilder::new(about);
    let times = Times {
        // Versions without a timeline wrote multiples of periods.
        are_real: counted.name == SAMPLES && extra.is_none_or(Extra::has_times),
        period_ns: meta.interval * 1e6,
        cpu_unit_ns: meta.cpu_unit_ns(),
    };
    let timed_threads = extra.and_then(Extra::timed_threads);
    // Files with times have a track for each thread.
    let tracks = if extra.is_some_and(Extra::has_merged_threads) {
        Tracks::Merged
    } else if extra.is_some_and(Extra::has_times) {
        Tracks::Threads
    } else {
        Tracks::Unknown
    };
    // For threads that use the file's tables.
    let mut of_file: Option<NodeCache> = None;
    for (number, (thread, own_unit)) in (1..).zip(threads.iter().zip(&units)) {
        if *own_unit != counted {
            continue;
        }
        let own = thread.tables();
        let mut read = || {
            let mut of_thread = None;
            let cache = if own.is_empty() { &mut of_file } else { &mut of_thread };
            let cache = match cache {
                Some(cache) => cache,
                None => cache.insert(NodeCache::new(Stacks::new(&mut builder, own.or(shared), libraries)?)),
            };
            let are_real = times.are_real && timed_threads.is_none_or(|threads| number <= threads);
            let times = Times { are_real, ..times };
            read_thread(&mut builder, (number, thread), tracks, times, unit.factor, cache, tally)
        };
        read().map_err(|why| why.at(format_args!("thread {number}")))?;
    }
    if let Some(extra) = extra.filter(|_| builder.so_far().timeline().is_some()) {
        extra.put_times(&mut builder)?;
    }
    Ok(builder.finish())
}

/// Unit of the weights of a file.
#[derive(Clone, Copy, PartialEq)]
struct Unit<'a> {
    name: &'a str,
    /// Number of counts of a weight of 1.
    factor: f64,
}

/// The unit of a thread.
fn unit_of(thread: &Thread<'_>, number: usize) -> Result<Unit<'static>, Malformed> {
    match thread.samples.weight_type.as_deref().unwrap_or("samples") {
        "samples" => Ok(Unit { name: SAMPLES, factor: 1.0 }),
        "bytes" => Ok(Unit { name: "bytes", factor: 1.0 }),
        // Durations, possibly fractional.
        "tracing-ms" => Ok(Unit { name: "nanoseconds", factor: 1e6 }),
        named => Err(format!("thread {number} has weights of an unknown type, {named}").into()),
    }
}

/// The unit of each thread, and that of most samples: others cannot be added to them.
fn units(threads: &[Thread<'_>]) -> Result<(Vec<Unit<'static>>, Unit<'static>), Malformed> {
    let mut sums: Vec<(Unit<'static>, usize)> = Vec::new();
    let mut units = Vec::with_capacity(threads.len());
    for (number, thread) in (1..).zip(threads) {
        let unit = unit_of(thread, number)?;
        let samples = thread.samples.stack.len();
        match sums.iter_mut().find(|(known, _)| *known == unit) {
            Some((_, sum)) => *sum += samples,
            None => sums.push((unit, samples)),
        }
        units.push(unit);
    }
    let most = sums.iter().rev().max_by_key(|(_, sum)| *sum);
    Ok((units, most.map_or(Unit { name: SAMPLES, factor: 1.0 }, |(unit, _)| *unit)))
}

/// Converts a weight to counts; refuses fractions, except of times.
fn count(weight: f64, factor: f64) -> Option<u64> {
    let count = weight * factor;
    let whole = count.fract() == 0.0 || factor > 1.0;
    // 2^64 is the first value that does not fit.
    (whole && (0.0..18_446_744_073_709_551_616.0).contains(&count)).then(|| count.round() as u64)
}

/// What the tracks of a file stand for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tracks {
    /// A thread each.
    Threads,
    /// All threads of a process or of one name.
    Merged,
    /// The file does not say.
    Unknown,
}

fn read_thread(
    builder: &mut SavedBuilder,
    (number, thread): (usize, &Thread<'_>),
    tracks: Tracks,
    times: Times,
    factor: f64,
    cache: &mut NodeCache,
    tally: &mut Tally,
) -> Result<(), Malformed> {
    let process = if thread.process_name.is_empty() { &thread.name } else { &thread.process_name };
    let process = builder.text(process)?;
    let named = match (thread.is_main_thread, thread.tid.get()) {
        // A main thread named like its process represents all threads merged.
        _ if tracks == Tracks::Merged => None,
        (true, _) if thread.name == thread.process_name && tracks == Tracks::Unknown => None,
        (_, Some(tid)) => Some((builder.text(&thread.name)?, tid)),
        (_, None) => None,
    };
    let root =
        StackRoot { process, thread: named, complete: true, waiting: false, labels: crate::LabelsId::NONE };
    let samples = read_samples(builder, (number, thread), times, factor, (root, cache), tally)?;
    if !samples.is_empty() {
        let (name, id) = (builder.text(&thread.name)?, thread.tid.get().unwrap_or(0));
        let pid = thread.pid.get().and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 0);
        let ns =
            |ms: f64| Some((ms * 1e6).round()).filter(|ns| (0.0..9.2e18).contains(ns)).map(|ns| ns as u64);
        let first_ns = samples.first().map_or(0, TimedSample::since_ns);
        let begun_ns = thread.register_time.and_then(ns).unwrap_or(first_ns).min(first_ns);
        let ended_ns = thread.unregister_time.and_then(ns);
        builder.times().threads.push(ThreadTimeline { process, pid, name, id, begun_ns, ended_ns, samples });
    }
    Ok(())
}

fn read_samples(
    builder: &mut SavedBuilder,
    (number, thread): (usize, &Thread<'_>),
    times: Times,
    factor: f64,
    (root, cache): (StackRoot, &mut NodeCache),
    tally: &mut Tally,
) -> Result<Vec<TimedSample>, Malformed> {
    let samples = &thread.samples;
    let at_ns = if times.are_real { samples.times_ns() } else { None };
    let mut timed = Vec::new();
    if samples.weight.as_ref().is_some_and(|weight| weight.len() != samples.stack.len()) {
        return Err("it has more or fewer weights than samples".into());
    }
    for (index, stack) in samples.stack.iter().enumerate() {
        let weight = samples.weight.as_ref().map_or(Some(&1.0), |weight| weight.get(index));
        let weight = weight.copied().unwrap_or(0.0);
        let Some(count) = count(weight, factor) else {
            tally.skip_sample(|| format!("thread {number}: sample {index} weighs {weight:?}"));
            continue;
        };
        let cpu = samples.cpu_delta.as_ref().and_then(|deltas| deltas.get(index)).copied().flatten();
        let root = StackRoot { waiting: cpu == Some(0.0) && count > 0, ..root };
        let node = match stack {
            Some(Index(stack)) => {
                let Some(found) = cache.stacks.get(*stack) else {
                    tally.skip_sample(|| {
                        format!("thread {number}: sample {index} has stack {stack}, which is not there")
                    });
                    continue;
                };
                if found.depth as usize > DEPTH_MAX {
                    return Err(
                        format!("sample {index} has more than {DEPTH_MAX} functions (DEPTH_MAX)").into()
                    );
                }
                cache.node(builder, root, *stack)
            }
            None => root_node(builder, root),
        };
        let node = node?;
        let at_sample = |full: Full| Malformed::from(full).at(format_args!("sample {index}"));
        builder.count(node, count).map_err(at_sample)?;
        tally.understand();
        if let Some(at_ns) = at_ns.as_ref().and_then(|times| times.get(index)) {
            let by_cpu =
                cpu.filter(|cpu| *cpu > 0.0).zip(times.cpu_unit_ns).map(|(cpu, unit_ns)| cpu * unit_ns);
            let weight_ns = by_cpu.unwrap_or(count as f64 * times.period_ns) as u64;
            if weight_ns > 0 {
                timed.push(TimedSample {
                    at_ns: *at_ns,
                    weight_ns,
                    node: stack.is_some().then_some(node),
                    count,
                    cpu: None,
                });
            }
        }
    }
    timed.sort_by_key(|sample| sample.at_ns);
    Ok(timed)
}

fn root_node(builder: &mut SavedBuilder, root: StackRoot) -> Result<NodeId, Full> {
    let root = builder.root(root)?;
    builder.root_node(root)
}

/// Nodes of stacks in the profile. Stacks extend one another, so each is converted once per root: converting
/// it for every sample or thread would be quadratic in the size of a small file.
struct NodeCache {
    stacks: Stacks,
    /// Nodes by root and stack.
    nodes: HashMap<StackRoot, HashMap<u32, NodeId>>,
    path: Vec<(u32, Stack)>,
}

impl NodeCache {
    fn new(stacks: Stacks) -> NodeCache {
        NodeCache { stacks, nodes: HashMap::new(), path: Vec::new() }
    }

    fn node(&mut self, builder: &mut SavedBuilder, root: StackRoot, stack: u32) -> Result<NodeId, Full> {
        let nodes = self.nodes.entry(root).or_default();
        self.path.clear();
        let (mut node, mut next) = (None, Some(stack));
        while let Some(stack) = next {
            node = nodes.get(&stack).copied();
            let Some(found) = self.stacks.get(stack).filter(|_| node.is_none()) else { break };
            self.path.push((stack, found));
            next = found.caller;
        }
        while let Some((stack, found)) = self.path.pop() {
            let here = match node {
                None if found.is_mark => root_node(builder, StackRoot { complete: false, ..root })?,
                None => {
                    let root = root_node(builder, root)?;
                    builder.child_node(root, found.frame)?
                }
                Some(caller) => builder.child_node(caller, found.frame)?,
            };
            nodes.insert(stack, here);
            node = Some(here);
        }
        match node {
            Some(node) => Ok(node),
            None => root_node(builder, root),
        }
    }
}

// ---- JsonSlabs: JSON of the Firefox Profiler with columns as binary arrays next to it.
//
// Numbers are little-endian. A slab of JSON may refer to others, so depth and size are bounded.

/// Magic bytes of a container.
pub(crate) const MAGIC: [u8; 8] = [0xdc, 0xdf, b'J', b'S', b'L', b'B', 1, 0];
/// The only version.
const VERSION: u32 = 1;
/// Bytes of the header, and of a table entry.
const HEADER_BYTES: usize = 20;
const ENTRY_BYTES: usize = 12;
/// Deepest nesting of JSON slabs.
const JSON_DEPTH_MAX: usize = 8;
/// Least cost of a reference to a slab, so that empty ones are bounded, too.
const PLACE_BYTES: usize = 64;

/// The JSON of a container, up to a size.
///
/// # Errors
/// The error, as a line for people without the name of the file.
pub(crate) fn to_json(container: &[u8], bytes_max: usize) -> Result<Vec<u8>, Malformed> {
    let slabs = Slabs { container, bytes_max, spent: Cell::new(0) };
    let version = slabs.number(8)?;
    if version != VERSION {
        return Err(format!("version {version} of JsonSlabs is not read, only {VERSION}").into());
    }
    let mut out = Vec::new();
    slabs.write(slabs.number(16)?, 0, &mut out)?;
    Ok(out)
}

struct Slabs<'c> {
    container: &'c [u8],
    bytes_max: usize,
    /// Bytes processed.
    spent: Cell<usize>,
}

impl Slabs<'_> {
    fn number(&self, at: usize) -> Result<u32, Malformed> {
        let bytes = self.container.get(at..).and_then(|rest| rest.first_chunk());
        bytes.map(|bytes| u32::from_le_bytes(*bytes)).ok_or_else(|| "it ends in its table of slabs".into())
    }

    /// Writes a slab as JSON.
    fn write(&self, slab: u32, depth: usize, out: &mut Vec<u8>) -> Result<(), Malformed> {
        let count = self.number(12)?;
        if slab >= count {
            return Err(format!("it names slab {slab}, and there are {count}").into());
        }
        let entry = HEADER_BYTES + slab as usize * ENTRY_BYTES;
        let (kind, start, length) = (self.number(entry)?, self.number(entry + 4)?, self.number(entry + 8)?);
        let (start, length) = (start as usize, length as usize);
        let bytes = start.checked_add(length).and_then(|end| self.container.get(start..end));
        let bytes = bytes.ok_or_else(|| format!("slab {slab} goes beyond the end of the file"))?;
        self.spent.set(self.spent.get().saturating_add(length.max(PLACE_BYTES)));
        self.room(self.spent.get())?;
        match kind {
            0 => self.array(bytes, out, |[byte]| byte.cast_signed()),
            1 => self.array(bytes, out, |[byte]| byte),
            2 => self.array(bytes, out, i16::from_le_bytes),
            3 => self.array(bytes, out, u16::from_le_bytes),
            4 => self.array(bytes, out, i32::from_le_bytes),
            5 => self.array(bytes, out, u32::from_le_bytes),
            6 => self.array(bytes, out, f32::from_le_bytes),
            7 => self.array(bytes, out, f64::from_le_bytes),
            8 => self.array(bytes, out, i64::from_le_bytes),
            9 => self.array(bytes, out, u64::from_le_bytes),
            10 if depth < JSON_DEPTH_MAX => self.json(bytes, depth, out),
            10 => Err(format!("slabs of JSON name one another more than {JSON_DEPTH_MAX} deep").into()),
            _ => Err(format!("slab {slab} is of an unknown kind, {kind}").into()),
        }
    }

    fn room(&self, length: usize) -> Result<(), Malformed> {
        if length <= self.bytes_max {
            return Ok(());
        }
        Err(format!("as JSON it is larger than {} MiB (JSON_BYTES_MAX)", self.bytes_max >> 20).into())
    }

    fn array<const N: usize, T: serde::Serialize>(
        &self,
        bytes: &[u8],
        out: &mut Vec<u8>,
        number: impl Fn([u8; N]) -> T,
    ) -> Result<(), Malformed> {
        out.push(b'[');
        for (index, item) in bytes.as_chunks().0.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            // Non-finite numbers become null.
            serde_json::to_writer(&mut *out, &number(*item))
                .map_err(|error| Malformed::caused_by(format!("number {index} of a slab: {error}"), error))?;
            self.room(out.len())?;
        }
        out.push(b']');
        Ok(())
    }

    /// Writes JSON with its references to slabs replaced.
    fn json(&self, text: &[u8], depth: usize, out: &mut Vec<u8>) -> Result<(), Malformed> {
        let mut rest = text;
        let mut in_string = false;
        while let Some((byte, after)) = rest.split_first() {
            match byte {
                b'\\' if in_string => {
                    let pair = rest.get(..2).unwrap_or(rest);
                    out.extend_from_slice(pair);
                    rest = rest.get(pair.len()..).unwrap_or_default();
                    continue;
                }
                b'"' => in_string = !in_string,
                b'{' if !in_string => {
                    if let Some((slab, after)) = placeholder(after) {
                        self.write(slab, depth + 1, out)?;
                        self.room(out.len())?;
                        rest = after;
                        continue;
                    }
                }
                _ => {}
            }
            out.push(*byte);
            rest = after;
        }
        self.room(out.len())
    }
}

/// The number in `"$s":7}`, and the text after it.
fn placeholder(text: &[u8]) -> Option<(u32, &[u8])> {
    let rest = text.trim_ascii_start().strip_prefix(b"\"$s\"")?.trim_ascii_start();
    let rest = rest.strip_prefix(b":")?.trim_ascii_start();
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (number, rest) = rest.split_at_checked(digits)?;
    let number = std::str::from_utf8(number).ok()?.parse().ok()?;
    Some((number, rest.trim_ascii_start().strip_prefix(b"}")?))
}

#[cfg(test)]
mod slabs_tests {
    use super::*;

    /// A container of slabs, with the root first.
    fn container(slabs: &[(u32, &[u8])]) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        let mut word = |number: u32| out.extend_from_slice(&number.to_le_bytes());
        word(VERSION);
        word(slabs.len() as u32);
        word(0);
        let mut start = (HEADER_BYTES + ENTRY_BYTES * slabs.len()) as u32;
        for (kind, bytes) in slabs {
            word(*kind);
            word(start);
            word(bytes.len() as u32);
            start += bytes.len() as u32;
        }
        slabs.iter().for_each(|(_, bytes)| out.extend_from_slice(bytes));
        out
    }

    fn json(slabs: &[(u32, &[u8])]) -> String {
        to_json(&container(slabs), 1 << 20)
            .map_or_else(|why| why.to_string(), |json| String::from_utf8(json).expect("UTF-8"))
    }

    #[test]
    fn references_are_replaced_by_slabs() {
        let text = br#"{"a":{"$s":1},"b":[{"$s" : 2}],"\"{\"$s\":1}":{"$s":3},"c":{"$s":1,"d":2}}"#;
        let nested = br#"["\\",{"$s":4}]"#;
        assert_eq!(
            json(&[
                (10, text),
                (4, &[1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]),
                (1, &[0, 255]),
                (10, nested),
                (7, &[0, 0, 0, 0, 0, 0, 0xf8, 0x3f]),
            ]),
            r#"{"a":[1,-1],"b":[[0,255]],"\"{\"$s\":1}":["\\",[1.5]],"c":{"$s":1,"d":2}}"#
        );
        assert_eq!(json(&[(10, b"{\"$s\":1}"), (5, b"")]), "[]");
    }

    #[test]
    fn hostile_containers_are_refused() {
        assert_eq!(json(&[(10, b"{\"$s\":0}")]), "slabs of JSON name one another more than 8 deep");
        assert_eq!(json(&[(10, b"{\"$s\":7}")]), "it names slab 7, and there are 1");
        assert_eq!(json(&[(11, b"")]), "slab 0 is of an unknown kind, 11");
        let many =
            b"[{\"$s\":1},{\"$s\":1},{\"$s\":1},{\"$s\":1},{\"$s\":1},{\"$s\":1},{\"$s\":1},{\"$s\":1}]";
        let ten = |next: u32| String::from_utf8_lossy(many).replace('1', &next.to_string()).into_bytes();
        let levels: Vec<Vec<u8>> = (1..8).map(ten).collect();
        let mut slabs: Vec<(u32, &[u8])> = levels.iter().map(|level| (10, level.as_slice())).collect();
        for last in [&[7; 4096][..], &[]] {
            slabs.push((1, last));
            assert_eq!(json(&slabs), "as JSON it is larger than 1 MiB (JSON_BYTES_MAX)");
            slabs.pop();
        }
        let whole = container(&[(10, b"[{\"$s\":1}]"), (3, &[1, 0])]);
        for length in 0..whole.len() {
            assert!(to_json(&whole[..length], 1000).is_err(), "{length}");
        }
        assert_eq!(to_json(&whole, 1000).expect("whole"), b"[[1]]");
    }
}
