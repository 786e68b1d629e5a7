//! The Firefox Profiler's processed format, written through `fxprof-processed-profile` and
//! read back.
//!
//! Format: <https://github.com/firefox-devtools/profiler/blob/main/docs-developer/processed-profile-format.md>.
//! Where the times of samples are known, each thread has its own (`firefox/timed.rs`), and events and losses are
//! markers (`firefox/markers.rs`). Of other profiles each count is a
//! sample, one period after the one before it of its thread: trees, totals and CPU time are those of the recording,
//! the order is not. Beyond `SAMPLES_MAX` a sample stands for several counts and takes as many
//! periods; without a rate there is no time, and a sample for each distinct stack. Frames are names; the crate has no place for files and lines. Nor has the format one for how
//! long was recorded and of what, which stands in a key of our own (`extra.rs`).
//! Reading goes as far as these files need: stacks, names, threads, weights (`firefox/read.rs`), also
//! where columns are binary (`firefox/slabs.rs`).

pub mod libraries;
mod markers;
mod product;
mod read;
pub(super) mod slabs;
mod tables;
mod timed;

use std::collections::HashMap;
use std::io::{self, Write};
use std::time::Duration;

use fxprof_processed_profile as fxprof;
use fxprof_processed_profile::{
    CategoryColor, CategoryHandle, CpuDelta, Frame, FrameFlags, FrameInfo, Profile, ReferenceTimestamp,
    SamplingInterval, Timestamp, WeightType,
};

use serde::Serialize;

use super::extra::Extra;
use crate::profile::about::SAMPLES;
use crate::profile::root_names::INCOMPLETE;
use crate::profile::saved::Saved;
use crate::profile::texts::TextId;
use crate::profile::views::threads::ByThread;
use libraries::{Libraries, Placed};
use product::{PRODUCT_COUNTS, PRODUCT_NO_RATE};
pub(super) use read::{Meta, Thread, read};
pub(super) use tables::{FrameTable, FuncTable, Library, ResourceTable, StackTable, Tables};

const PRODUCT: &str = "stackprof";
/// Interval of those without a rate.
const INTERVAL_NS: f64 = 1e6;
/// Largest weight of a sample in the format; larger ones become several samples.
const WEIGHT_MAX: u64 = i32::MAX as u64;
/// Samples of a file: 10 minutes at 997 Hz of 7 threads, some 90 MB.
const SAMPLES_MAX: u64 = 1 << 22;
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
    write_frames(&saved.without_addresses().map_err(io::Error::other)?, None, out)
}

/// Writes `saved` with addresses instead of names where its frames are in libraries: the viewer asks a symbol server
/// for what is there.
///
/// # Errors
/// Those of [`write`].
pub fn write_addresses(saved: &Saved, libraries: &Libraries, out: &mut dyn Write) -> io::Result<()> {
    write_frames(saved, Some(libraries), out)
}

fn write_frames(saved: &Saved, libraries: Option<&Libraries>, out: &mut dyn Write) -> io::Result<()> {
    let about = &saved.about;
    let counts_samples = about.unit == SAMPLES;
    let period_ns = about.period_ns().filter(|_| counts_samples).unwrap_or(INTERVAL_NS);
    let start = Duration::from_nanos(about.time_unix_ns.unwrap_or(0));
    let has_time = counts_samples && about.period_ns().is_some();
    let weight_max = match has_time {
        true => saved.total().div_ceil(SAMPLES_MAX).clamp(1, WEIGHT_MAX),
        false => WEIGHT_MAX,
    };
    let product = match (counts_samples, about.hz) {
        (true, Some(_)) => PRODUCT.to_owned(),
        (true, None) => PRODUCT_NO_RATE.to_owned(),
        (false, _) => format!("{PRODUCT_COUNTS}{})", about.unit),
    };
    let weights = if about.unit == "bytes" { WeightType::Bytes } else { WeightType::Samples };
    let mut profile = Profile::new(
        &product,
        ReferenceTimestamp::from_duration_since_unix_epoch(start),
        SamplingInterval::from_nanos(period_ns.round() as u64),
    );
    profile.set_symbolicated(libraries.is_none());
    let code = profile.add_category("Code", CategoryColor::Blue);
    let placed = libraries.map(|libraries| Placed::new(&mut profile, libraries));
    let mut labels = Labels { saved, code, placed, frames: vec![None; saved.frames().len()] };
    let pace = Pace { period_ns, weight_max, has_time };
    let mut extra = Extra::of(about);
    match saved.timeline().filter(|_| has_time) {
        Some(timeline) => {
            let threads = timed::write(&mut profile, saved, timeline, &mut labels, &weights);
            markers::write(&mut profile, saved, timeline, &threads);
            extra = extra.with_times(saved, timeline);
            if let Some(rest) = saved.without_times().map_err(io::Error::other)? {
                let placed = labels.placed.take();
                let mut labels = Labels { saved: &rest, code, placed, frames: vec![None; rest.frames().len()] };
                write_counts(&mut profile, &rest, &mut labels, &weights, pace)?;
            }
        }
        None => write_counts(&mut profile, saved, &mut labels, &weights, pace)?,
    }
    let file = WithExtra { profile: &profile, stackprof: extra };
    serde_json::to_writer(out, &file).map_err(io::Error::from)
}

/// How counts without times are laid out.
#[derive(Clone, Copy)]
struct Pace {
    period_ns: f64,
    /// Most counts of a sample.
    weight_max: u64,
    /// Counts stand for periods.
    has_time: bool,
}

/// Writes counts one after the other.
fn write_counts(
    profile: &mut Profile,
    saved: &Saved,
    labels: &mut Labels<'_>,
    weights: &WeightType,
    Pace { period_ns, weight_max, has_time }: Pace,
) -> io::Result<()> {
    let about = &saved.about;
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
        profile.set_thread_samples_weight_type(handle, weights.clone());
        let mut clock = SampleClock { period_ns, counts: 0, now_us: 0 };
        // Viewers take the CPU time of a sample since the one before it, which the first has not.
        if has_time {
            profile.add_sample(handle, zero, None, CpuDelta::ZERO, 0);
        }
        let mut refused = None;
        by_thread.for_each_stack(thread, &mut |root, stack, count| {
            let mark = (!root.complete).then(|| labels.mark(profile, INCOMPLETE));
            let frames: Vec<FrameInfo> = mark.into_iter().chain(labels.of(profile, stack)).collect();
            let handle_of_stack = profile.intern_stack_frames(handle, frames.into_iter());
            let mut left = count;
            if count > WEIGHT_MAX * SPLIT_MAX {
                refused = Some(count);
                left = 0;
            }
            while left > 0 {
                let weight = left.min(weight_max);
                left -= weight;
                let (at, cpu) = clock.advance(weight);
                // No CPU time means that the thread waited.
                let cpu = if root.waiting { CpuDelta::ZERO } else { cpu };
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
    Ok(())
}

/// The time of a thread's samples.
struct SampleClock {
    period_ns: f64,
    /// Counts so far.
    counts: u64,
    now_us: u64,
}

impl SampleClock {
    /// Where a sample of some counts ends, and its CPU time. The format has whole microseconds of
    /// that, so the difference of two sums is told: it does not drift.
    fn advance(&mut self, counts: u64) -> (Timestamp, CpuDelta) {
        self.counts = self.counts.saturating_add(counts);
        let now_ns = self.counts as f64 * self.period_ns;
        let before_us = self.now_us;
        // None of a sample would mean that the thread waited.
        self.now_us = ((now_ns / 1e3) as u64).max(before_us + 1);
        let cpu = CpuDelta::from_nanos((self.now_us - before_us).saturating_mul(1000));
        (Timestamp::from_nanos_since_reference(now_ns as u64), cpu)
    }
}

/// The file: the keys of the format, and ours.
#[derive(Serialize)]
struct WithExtra<'a> {
    #[serde(flatten)]
    profile: &'a Profile,
    stackprof: Extra<'a>,
}

/// The labels that stand for frames.
struct Labels<'s> {
    saved: &'s Saved,
    code: CategoryHandle,
    /// Where frames are, if addresses are written.
    placed: Option<Placed<'s>>,
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
            match self.placed.as_ref().and_then(|placed| placed.of(*frame)) {
                Some(frame) => {
                    new.push(FrameInfo { frame, category_pair: self.code.into(), flags: FrameFlags::empty() })
                }
                None => saved.names_of(*frame, false, &mut |name| new.push(self.mark(profile, name))),
            }
            labels.extend(new.iter().cloned());
            if let Some(slot) = self.frames.get_mut(*frame as usize) {
                *slot = Some(new);
            }
        }
        labels
    }
}
