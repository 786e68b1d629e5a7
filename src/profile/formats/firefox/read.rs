//! The Firefox Profiler's processed format as a saved profile.
//!
//! Input: `meta`, `threads` and `libs` of a file, and what it has of ours. Output: [`Saved`], or
//! what is wrong and where; a sample that makes no sense is skipped and counted. Only the versions
//! in which each thread has tables of its own. Code without names is told by library and address.

use std::borrow::Cow;

use serde::Deserialize;

use super::super::extra::Extra;
use super::super::lists::Index;
use super::super::malformed::Malformed;
use super::super::tally::Tally;
use super::{PRODUCT_COUNTS, PRODUCT_NO_RATE};
use crate::profile::about::{About, SAMPLES};
use crate::profile::builder::SavedBuilder;
use crate::profile::saved::{Full, Mapping, Saved, StackRoot};
use crate::profile::{INCOMPLETE, MAX_DEPTH};
use crate::trie::NodeId;

/// `meta` of a file.
#[derive(Deserialize)]
pub(in crate::profile) struct Meta<'a> {
    #[serde(borrow, default)]
    product: Cow<'a, str>,
    interval: f64,
    #[serde(rename = "startTime", default)]
    start_time_ms: f64,
}

/// One of `threads` of a file.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::profile) struct Thread<'a> {
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
    #[serde(borrow)]
    samples: Samples<'a>,
    stack_table: StackTable,
    frame_table: FrameTable,
    func_table: FuncTable,
    #[serde(default)]
    resource_table: ResourceTable,
    #[serde(borrow)]
    string_array: Vec<Cow<'a, str>>,
}

/// One of `libs` of a file.
#[derive(Deserialize)]
pub(in crate::profile) struct Library<'a> {
    #[serde(borrow, default)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    path: Cow<'a, str>,
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
    /// The number; what makes equal ones distinct (`17.1`) is left out.
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
    stack: Vec<Option<u32>>,
    #[serde(default)]
    weight: Option<Vec<f64>>,
    #[serde(borrow, default)]
    weight_type: Option<Cow<'a, str>>,
    #[serde(default, rename = "threadCPUDelta")]
    cpu_delta: Option<Vec<Option<f64>>>,
}

#[derive(Deserialize)]
struct StackTable {
    prefix: Vec<Option<u32>>,
    frame: Vec<u32>,
}

#[derive(Deserialize)]
struct FrameTable {
    func: Vec<u32>,
}

#[derive(Deserialize)]
struct FuncTable {
    name: Vec<u32>,
    /// -1 for none.
    #[serde(default)]
    resource: Vec<Index>,
}

/// Where functions come from; by resource: the library.
#[derive(Default, Deserialize)]
struct ResourceTable {
    #[serde(default)]
    lib: Vec<Index>,
}

/// Puts together what a file has.
///
/// # Errors
/// What is wrong, and where, as a line for people without the name of the file.
pub(in crate::profile) fn read(
    meta: &Meta<'_>,
    threads: &[Thread<'_>],
    libraries: &[Library<'_>],
    extra: Option<&Extra<'_>>,
    tally: &mut Tally,
) -> Result<Saved, Malformed> {
    let unit = unit(meta, threads)?;
    let told = extra.map_or_else(About::default, Extra::about);
    // What the format has a place for is what its other readers go by.
    let mut about = About { unit: unit.name.to_owned(), hz: None, ..told };
    let rate = 1000.0 / meta.interval;
    if meta.product != PRODUCT_NO_RATE && unit.name == SAMPLES && (1.0..=1e9).contains(&rate) {
        about.hz = Some(rate.round() as u32);
    }
    let start_ns = meta.start_time_ms * 1e6;
    // Milliseconds of the format are no exact time, and it has no place for none.
    if extra.is_none() {
        about.time_unix_ns = (1.0..9e18).contains(&start_ns).then_some(start_ns as u64);
    }
    let pids: Vec<u64> = threads.iter().filter_map(|thread| thread.pid.get()).collect();
    if let Some(pid) = pids.first().filter(|pid| **pid > 0 && pids.iter().all(|other| other == *pid)) {
        about.pid = u32::try_from(*pid).ok();
    }
    let mut builder = SavedBuilder::new(about);
    for (number, thread) in (1..).zip(threads) {
        read_thread(&mut builder, (number, thread), libraries, unit.factor, tally)
            .map_err(|why| why.at(format_args!("thread {number}")))?;
    }
    Ok(builder.finish())
}

/// What the weights of a file are.
#[derive(Clone, Copy, PartialEq)]
struct Unit<'a> {
    name: &'a str,
    /// Counts of a weight of 1.
    factor: f64,
}

/// What all threads count; those without samples count nothing.
fn unit<'a>(meta: &'a Meta<'_>, threads: &[Thread<'_>]) -> Result<Unit<'a>, Malformed> {
    let mut found: Option<Unit<'a>> = None;
    for (number, thread) in (1..).zip(threads).filter(|(_, thread)| !thread.samples.stack.is_empty()) {
        let named = thread.samples.weight_type.as_deref().unwrap_or("samples");
        let unit = match named {
            "samples" => Unit { name: SAMPLES, factor: 1.0 },
            "bytes" => Unit { name: "bytes", factor: 1.0 },
            // Durations, which may have a fraction.
            "tracing-ms" => Unit { name: "nanoseconds", factor: 1e6 },
            _ => return Err(format!("thread {number} has weights of an unknown type, {named}").into()),
        };
        if let Some(before) = found.filter(|before| *before != unit) {
            let before = before.name;
            return Err(format!("thread {number} counts {}, the one before it {before}", unit.name).into());
        }
        found = Some(unit);
    }
    let found = found.unwrap_or(Unit { name: SAMPLES, factor: 1.0 });
    let ours = meta.product.strip_prefix(PRODUCT_COUNTS).and_then(|name| name.strip_suffix(')'));
    Ok(ours.filter(|_| found.name == SAMPLES).map_or(found, |name| Unit { name, factor: 1.0 }))
}

/// Counts of a weight; a fraction of one is refused, except of times.
fn count(weight: f64, factor: f64) -> Option<u64> {
    let count = weight * factor;
    let whole = count.fract() == 0.0 || factor > 1.0;
    // 2^64 is the first that does not fit.
    (whole && (0.0..18_446_744_073_709_551_616.0).contains(&count)).then(|| count.round() as u64)
}

/// The frame of a name; an address in place of one is that of its library.
fn frame_of(
    builder: &mut SavedBuilder,
    thread: &Thread<'_>,
    libraries: &[Library<'_>],
    function: u32,
    name: &str,
) -> Result<u32, Full> {
    let address = name.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
    let resource = thread.func_table.resource.get(function as usize);
    let library = resource.and_then(|Index(resource)| thread.resource_table.lib.get(*resource as usize));
    let library = library.and_then(|Index(library)| libraries.get(*library as usize));
    let path = library.map(|library| if library.path.is_empty() { &library.name } else { &library.path });
    let (Some(address), Some(path)) = (address, path.filter(|path| !path.is_empty())) else {
        return builder.named_frame(name);
    };
    // Addresses of the format are relative to their library.
    let (path, build_id) = (builder.text(path)?, builder.text("")?);
    let mapping = builder.mapping(Mapping { start: 0, limit: 0, file_offset: 0, path, build_id })?;
    builder.frame(address, Some(mapping), &[])
}

fn read_thread(
    builder: &mut SavedBuilder,
    (number, thread): (usize, &Thread<'_>),
    libraries: &[Library<'_>],
    factor: f64,
    tally: &mut Tally,
) -> Result<(), Malformed> {
    let process = if thread.process_name.is_empty() { &thread.name } else { &thread.process_name };
    let process = builder.text(process)?;
    let named = match (thread.is_main_thread, thread.tid.get()) {
        // The crate calls main threads as their process; they are all threads merged.
        (true, _) if thread.name == thread.process_name => None,
        (_, Some(tid)) => Some((builder.text(&thread.name)?, tid)),
        (_, None) => None,
    };
    // Names, then functions, frames and stacks, each by what it refers to.
    let mut frames = Vec::with_capacity(thread.frame_table.func.len());
    for (index, function) in thread.frame_table.func.iter().enumerate() {
        let name = thread.func_table.name.get(*function as usize);
        let name =
            name.ok_or_else(|| format!("frame {index} names function {function}, which is not there"))?;
        let name = thread.string_array.get(*name as usize);
        let name = name.ok_or_else(|| format!("function {function} has a name that is not there"))?;
        frames.push((frame_of(builder, thread, libraries, *function, name)?, *name == INCOMPLETE));
    }
    if thread.stack_table.prefix.len() != thread.stack_table.frame.len() {
        return Err("the columns of its stack table differ in length".into());
    }
    for (index, (prefix, frame)) in
        thread.stack_table.prefix.iter().zip(&thread.stack_table.frame).enumerate()
    {
        // A stack comes after the one that it goes on from: so there is no circle.
        if prefix.is_some_and(|prefix| prefix as usize >= index) {
            return Err(format!("stack {index} goes on from one that does not come before it").into());
        }
        if *frame as usize >= frames.len() {
            return Err(format!("stack {index} names frame {frame}, which is not there").into());
        }
    }
    let root = StackRoot { process, thread: named, complete: true, waiting: false };
    read_samples(builder, (number, thread), factor, root, &frames, tally)
}

fn read_samples(
    builder: &mut SavedBuilder,
    (number, thread): (usize, &Thread<'_>),
    factor: f64,
    root: StackRoot,
    frames: &[(u32, bool)],
    tally: &mut Tally,
) -> Result<(), Malformed> {
    let samples = &thread.samples;
    if samples.weight.as_ref().is_some_and(|weight| weight.len() != samples.stack.len()) {
        return Err("it has more or fewer weights than samples".into());
    }
    let mut running = Places::new(&thread.stack_table, frames, root);
    let mut waiting = Places::new(&thread.stack_table, frames, StackRoot { waiting: true, ..root });
    let depths = depths(&thread.stack_table, frames);
    for (index, stack) in samples.stack.iter().enumerate() {
        let weight = samples.weight.as_ref().map_or(Some(&1.0), |weight| weight.get(index));
        let weight = weight.copied().unwrap_or(0.0);
        let Some(count) = count(weight, factor) else {
            tally.skip_sample(|| format!("thread {number}: sample {index} weighs {weight}"));
            continue;
        };
        let cpu = samples.cpu_delta.as_ref().and_then(|deltas| deltas.get(index)).copied().flatten();
        let places = if cpu == Some(0.0) && count > 0 { &mut waiting } else { &mut running };
        let node = match stack {
            Some(stack) => {
                let Some(depth) = depths.get(*stack as usize).copied() else {
                    tally.skip_sample(|| {
                        format!("thread {number}: sample {index} has stack {stack}, which is not there")
                    });
                    continue;
                };
                if depth as usize > MAX_DEPTH {
                    return Err(
                        format!("sample {index} has more than {MAX_DEPTH} functions (MAX_DEPTH)").into()
                    );
                }
                places.node(builder, *stack)
            }
            None => places.root(builder, true),
        };
        let node = node?;
        let at_sample = |full: Full| Malformed::from(full).at(format_args!("sample {index}"));
        builder.count(node, count).map_err(at_sample)?;
        tally.understand();
    }
    Ok(())
}

/// By stack: how many functions it has. The table is sound: each comes after the one that it
/// goes on from.
fn depths(table: &StackTable, frames: &[(u32, bool)]) -> Vec<u32> {
    let mut depths: Vec<u32> = Vec::with_capacity(table.prefix.len());
    for (prefix, frame) in table.prefix.iter().zip(&table.frame) {
        let below = prefix.and_then(|prefix| depths.get(prefix as usize).copied());
        let is_mark = prefix.is_none() && frames.get(*frame as usize).is_some_and(|(_, mark)| *mark);
        depths.push(below.unwrap_or(0) + u32::from(!is_mark));
    }
    depths
}

/// Where the stacks of a table are in the profile. Stacks go on from one another, so each is
/// looked for once: walked anew for every sample, a small file would cost its square.
struct Places<'t> {
    table: &'t StackTable,
    /// By frame of the file: the frame, and whether it is the mark of incomplete stacks.
    frames: &'t [(u32, bool)],
    root: StackRoot,
    /// By stack; empty before the first is asked for.
    nodes: Vec<Option<NodeId>>,
    path: Vec<u32>,
}

impl<'t> Places<'t> {
    fn new(table: &'t StackTable, frames: &'t [(u32, bool)], root: StackRoot) -> Places<'t> {
        Places { table, frames, root, nodes: Vec::new(), path: Vec::new() }
    }

    fn root(&self, builder: &mut SavedBuilder, complete: bool) -> Result<NodeId, Full> {
        let root = builder.root(StackRoot { complete, ..self.root })?;
        builder.root_node(root)
    }

    fn node(&mut self, builder: &mut SavedBuilder, stack: u32) -> Result<NodeId, Full> {
        if self.nodes.is_empty() {
            self.nodes = vec![None; self.table.prefix.len()];
        }
        self.path.clear();
        let (mut node, mut next) = (None, Some(stack));
        while let Some(stack) = next {
            node = self.nodes.get(stack as usize).copied().flatten();
            if node.is_some() {
                break;
            }
            self.path.push(stack);
            next = self.table.prefix.get(stack as usize).copied().flatten();
        }
        while let Some(stack) = self.path.pop() {
            let frame =
                self.table.frame.get(stack as usize).and_then(|frame| self.frames.get(*frame as usize));
            let (frame, is_mark) = frame.copied().unwrap_or((u32::MAX, false));
            let here = match node {
                None if is_mark => self.root(builder, false)?,
                None => {
                    let root = self.root(builder, true)?;
                    builder.child_node(root, frame)?
                }
                Some(below) => builder.child_node(below, frame)?,
            };
            if let Some(slot) = self.nodes.get_mut(stack as usize) {
                *slot = Some(here);
            }
            node = Some(here);
        }
        match node {
            Some(node) => Ok(node),
            None => self.root(builder, true),
        }
    }
}
