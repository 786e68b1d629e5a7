//! The Firefox Profiler's processed format, written through `fxprof-processed-profile` and
//! read back.
//!
//! Format: <https://github.com/firefox-devtools/profiler/blob/main/docs-developer/processed-profile-format.md>.
//! A recording keeps no times of single samples, so each distinct stack is one sample of its
//! weight, one after the other: trees and totals are those of the recording, its timeline is
//! not. Frames are names; the crate has no place for files and lines.
//! Reading goes as far as these files need: stacks, names, threads, weights.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{self, Write};
use std::time::Duration;

use fxprof_processed_profile as fxprof;
use fxprof_processed_profile::{
    CategoryColor, CategoryHandle, CpuDelta, Frame, FrameFlags, FrameInfo, Profile, ReferenceTimestamp,
    SamplingInterval, Timestamp,
};
use serde::Deserialize;

use super::about::About;
use super::builder::SavedBuilder;
use super::by_name::INCOMPLETE;
use super::saved::{Saved, StackRoot};
use super::texts::TextId;
use super::threads::ByThread;

const PRODUCT: &str = "stackprof";
/// The product of profiles that do not tell their rate; their interval means nothing.
const PRODUCT_NO_RATE: &str = "stackprof (no rate)";
/// Interval of those.
const INTERVAL_NS: f64 = 1e6;
/// Largest weight of a sample in the format; larger ones become several samples.
const WEIGHT_MAX: u64 = i32::MAX as u64;
/// Most samples of one stack: a count beyond 2^41 is refused.
const SPLIT_MAX: u64 = 1024;
/// What an unnamed thread of merged threads is called by its number.
const MERGED_TID: u32 = 0;

/// Writes `saved`.
///
/// # Errors
/// What the writer reports, and [`io::ErrorKind::InvalidData`] for a stack with more than
/// 2^41 samples.
pub fn write(saved: &Saved, out: &mut dyn Write) -> io::Result<()> {
    let saved = &saved.without_addresses().map_err(io::Error::other)?;
    let about = &saved.about;
    let period_ns = about.period_ns().unwrap_or(INTERVAL_NS);
    let start = Duration::from_nanos(about.time_unix_ns.unwrap_or(0));
    let product = if about.hz.is_some() { PRODUCT } else { PRODUCT_NO_RATE };
    let mut profile = Profile::new(
        product,
        ReferenceTimestamp::from_duration_since_unix_epoch(start),
        SamplingInterval::from_nanos(period_ns.round() as u64),
    );
    profile.set_symbolicated(true);
    let code = profile.add_category("Code", CategoryColor::Blue);
    let mut labels = Labels { saved, code, frames: vec![None; saved.frames().len()] };
    let by_thread = ByThread::of(saved);
    let mut processes: HashMap<TextId, fxprof::ProcessHandle> = HashMap::new();
    for thread in by_thread.threads() {
        let zero = Timestamp::from_nanos_since_reference(0);
        let process = *processes
            .entry(thread.process)
            .or_insert_with(|| profile.add_process(saved.text(thread.process), about.pid.unwrap_or(0), zero));
        let handle = match thread.thread {
            Some((name, id)) => {
                let handle = profile.add_thread(process, u32::try_from(id).unwrap_or(u32::MAX), zero, false);
                profile.set_thread_name(handle, saved.text(name));
                handle
            }
            None => profile.add_thread(process, about.pid.unwrap_or(MERGED_TID), zero, true),
        };
        let mut now_ns = 0.0;
        let mut refused = None;
        by_thread.for_each_stack(thread, &mut |root, stack, count| {
            let mark = (!root.complete).then(|| labels.mark(&mut profile, INCOMPLETE));
            let frames: Vec<FrameInfo> = mark.into_iter().chain(labels.of(&mut profile, stack)).collect();
            let handle_of_stack = profile.intern_stack_frames(handle, frames.into_iter());
            let mut left = count;
            if count > WEIGHT_MAX * SPLIT_MAX {
                refused = Some(count);
                left = 0;
            }
            while left > 0 {
                let weight = left.min(WEIGHT_MAX);
                left -= weight;
                let ns = weight as f64 * period_ns;
                now_ns += ns;
                let cpu = if root.waiting { CpuDelta::ZERO } else { CpuDelta::from_nanos(ns as u64) };
                let at = Timestamp::from_nanos_since_reference(now_ns as u64);
                profile.add_sample(
                    handle,
                    at,
                    handle_of_stack,
                    cpu,
                    i32::try_from(weight).unwrap_or(i32::MAX),
                );
            }
        });
        if let Some(count) = refused {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!(
                    "a stack has {count} samples, more than the Firefox format can hold; write folded instead"
                ),
            ));
        }
    }
    serde_json::to_writer(out, &profile).map_err(io::Error::from)
}

/// The labels that stand for frames.
struct Labels<'s> {
    saved: &'s Saved,
    code: CategoryHandle,
    /// By frame: its labels, once they were needed.
    frames: Vec<Option<Vec<FrameInfo>>>,
}

impl Labels<'_> {
    fn mark(&self, profile: &mut Profile, text: &str) -> FrameInfo {
        FrameInfo {
            frame: Frame::Label(profile.intern_string(text)),
            category_pair: self.code.into(),
            flags: FrameFlags::empty(),
        }
    }

    fn of(&mut self, profile: &mut Profile, stack: &[u32]) -> Vec<FrameInfo> {
        let mut labels = Vec::new();
        for frame in stack {
            let known = self.frames.get(*frame as usize).and_then(Option::as_ref);
            if let Some(known) = known {
                labels.extend(known.iter().cloned());
                continue;
            }
            let mut new = Vec::new();
            let saved = self.saved;
            saved.names_of(*frame, false, &mut |name| new.push(self.mark(profile, name)));
            labels.extend(new.iter().cloned());
            if let Some(slot) = self.frames.get_mut(*frame as usize) {
                *slot = Some(new);
            }
        }
        labels
    }
}

/// `meta` of a file.
#[derive(Deserialize)]
pub(super) struct Meta<'a> {
    #[serde(borrow, default)]
    product: Cow<'a, str>,
    interval: f64,
    #[serde(rename = "startTime", default)]
    start_time_ms: f64,
}

/// One of `threads` of a file.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Thread<'a> {
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
    samples: Samples,
    stack_table: StackTable,
    frame_table: FrameTable,
    func_table: FuncTable,
    #[serde(borrow)]
    string_array: Vec<Cow<'a, str>>,
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
struct Samples {
    stack: Vec<Option<u32>>,
    #[serde(default)]
    weight: Option<Vec<i64>>,
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
}

/// Puts together what a file has.
///
/// # Errors
/// What is wrong, and where, as a line for people without the name of the file.
pub(super) fn read(meta: &Meta<'_>, threads: &[Thread<'_>]) -> Result<Saved, String> {
    let mut about = About::default();
    let rate = 1000.0 / meta.interval;
    if meta.product != PRODUCT_NO_RATE && (1.0..=1e9).contains(&rate) {
        about.hz = Some(rate.round() as u32);
    }
    let start_ns = meta.start_time_ms * 1e6;
    about.time_unix_ns = (1.0..9e18).contains(&start_ns).then_some(start_ns as u64);
    let pids: Vec<u64> = threads.iter().filter_map(|thread| thread.pid.get()).collect();
    if let Some(pid) = pids.first().filter(|pid| **pid > 0 && pids.iter().all(|other| other == *pid)) {
        about.pid = u32::try_from(*pid).ok();
    }
    let mut builder = SavedBuilder::new(about);
    for (number, thread) in (1..).zip(threads) {
        read_thread(&mut builder, thread).map_err(|what| format!("thread {number}: {what}"))?;
    }
    Ok(builder.finish())
}

fn read_thread(builder: &mut SavedBuilder, thread: &Thread<'_>) -> Result<(), String> {
    let full = |full: super::Full| full.to_string();
    let process = if thread.process_name.is_empty() { &thread.name } else { &thread.process_name };
    let process = builder.text(process).map_err(full)?;
    let named = match (thread.is_main_thread, thread.tid.get()) {
        // The crate calls main threads as their process; they are all threads merged.
        (true, _) if thread.name == thread.process_name => None,
        (_, Some(tid)) => Some((builder.text(&thread.name).map_err(full)?, tid)),
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
        frames.push((builder.named_frame(name).map_err(full)?, *name == INCOMPLETE));
    }
    if thread.stack_table.prefix.len() != thread.stack_table.frame.len() {
        return Err("the columns of its stack table differ in length".to_owned());
    }
    for (index, (prefix, frame)) in
        thread.stack_table.prefix.iter().zip(&thread.stack_table.frame).enumerate()
    {
        // A stack comes after the one that it goes on from: so there is no circle.
        if prefix.is_some_and(|prefix| prefix as usize >= index) {
            return Err(format!("stack {index} goes on from one that does not come before it"));
        }
        if *frame as usize >= frames.len() {
            return Err(format!("stack {index} names frame {frame}, which is not there"));
        }
    }
    read_samples(
        builder,
        thread,
        StackRoot { process, thread: named, complete: true, waiting: false },
        &frames,
    )
}

/// Most frames of a stack, as in a recording.
const MAX_DEPTH: usize = 65_536;

fn read_samples(
    builder: &mut SavedBuilder,
    thread: &Thread<'_>,
    root: StackRoot,
    frames: &[(u32, bool)],
) -> Result<(), String> {
    let samples = &thread.samples;
    let table = &thread.stack_table;
    if samples.weight.as_ref().is_some_and(|weight| weight.len() != samples.stack.len()) {
        return Err("it has more or fewer weights than samples".to_owned());
    }
    let mut leaf_first = Vec::new();
    for (index, stack) in samples.stack.iter().enumerate() {
        let weight = samples.weight.as_ref().map_or(Some(&1), |weight| weight.get(index));
        let weight = weight.copied().unwrap_or(0);
        let count = u64::try_from(weight).map_err(|_| format!("sample {index} weighs {weight}"))?;
        leaf_first.clear();
        let mut next = *stack;
        while let Some(stack) = next {
            let frame = table.frame.get(stack as usize).and_then(|frame| frames.get(*frame as usize));
            let frame =
                frame.ok_or_else(|| format!("sample {index} has stack {stack}, which is not there"))?;
            if leaf_first.len() >= MAX_DEPTH {
                return Err(format!("sample {index} has more than {MAX_DEPTH} frames"));
            }
            leaf_first.push(*frame);
            next = table.prefix.get(stack as usize).copied().flatten();
        }
        let mut root = root;
        if leaf_first.last().is_some_and(|(_, incomplete)| *incomplete) {
            root.complete = false;
            leaf_first.pop();
        }
        let cpu = samples.cpu_delta.as_ref().and_then(|deltas| deltas.get(index)).copied().flatten();
        root.waiting = cpu == Some(0.0) && count > 0;
        let root = builder.root(root).map_err(|full| full.to_string())?;
        let stack: Vec<u32> = leaf_first.iter().rev().map(|(frame, _)| *frame).collect();
        builder.add(root, &stack, count).map_err(|full| format!("sample {index}: {full}"))?;
    }
    Ok(())
}
