//! The Firefox Profiler's processed format, version 55, written and read back.
//!
//! Format: <https://github.com/firefox-devtools/profiler/blob/main/docs-developer/processed-profile-format.md>.
//! Threads are written one by one (`firefox/thread.rs`), so that the tables of only one are in memory. If the times
//! of samples are known, each thread of the recording is a thread of the file. In other profiles each count is a
//! sample, one period after the previous one of its thread: trees, totals and CPU time are those of the recording,
//! the order is not. Beyond `SAMPLES_MAX` a sample represents several counts and takes as many periods; without a
//! rate there is no time, and a sample for each distinct stack. The format has no place for the duration and target
//! of the recording, which have a custom key (`json.rs`). `firefox/read.rs` reads what these files need: stacks,
//! names, threads, weights, also with binary columns.

pub mod libraries;
pub(super) mod read;
mod tables;
mod thread;

use std::collections::HashMap;
use std::io::{self, Write};

use serde_json::{Value, json};

use super::json::Extra;
use super::samples::without_timeline;
use crate::about::SAMPLES;
use crate::saved::SavedProfile;
use crate::texts::TextId;
use crate::views::by_name::{ByThread, OneThread};
use libraries::Libraries;
use tables::CATEGORIES;
use thread::{Code, Identity};

pub(super) use read::{Meta, Thread, read};
pub(super) use tables::{FrameTable, FuncTable, Library, ResourceTable, StackTable, Tables};

/// Version of the format.
const VERSION: u32 = 55;

const PRODUCT: &str = "stackprof";
/// Interval of profiles without a rate.
const INTERVAL_NS: f64 = 1e6;
/// Largest weight of a sample in the format; larger ones are split into several samples.
const WEIGHT_MAX: u64 = i32::MAX as u64;
/// Most samples of a file: 10 minutes at 997 Hz of 7 threads, some 90 MB.
const SAMPLES_MAX: u64 = 1 << 22;
/// Most samples of one stack: a count beyond 2^41 is refused.
const SPLIT_MAX: u64 = 1024;
/// Number of the unnamed thread that represents merged threads.
const MERGED_TID: u32 = 0;

/// Writes `saved`.
///
/// # Errors
/// Errors of the writer, and [`io::ErrorKind::InvalidData`] for a stack with more than 2^41 samples.
pub fn write(saved: &SavedProfile, out: &mut dyn Write) -> io::Result<()> {
    write_addresses(saved, &Libraries::of(saved), out)
}

/// Writes `saved` with the addresses of its frames in `libraries`.
///
/// # Errors
/// Those of [`write()`].
pub fn write_addresses(saved: &SavedProfile, libraries: &Libraries, out: &mut dyn Write) -> io::Result<()> {
    let about = &saved.about;
    let counts_samples = about.unit == SAMPLES;
    let period_ns = about.period_ns().filter(|_| counts_samples).unwrap_or(INTERVAL_NS);
    let has_time = counts_samples && about.period_ns().is_some();
    let timeline = saved.timeline().filter(|_| has_time);
    let weight_max = match has_time {
        true => saved.total().div_ceil(SAMPLES_MAX).clamp(1, WEIGHT_MAX),
        false => WEIGHT_MAX,
    };
    let extra = Extra::of(about, saved, timeline);
    let code = Code::of(saved, libraries);
    write!(out, "{{\"meta\":{},\"libs\":{}", meta(saved, period_ns), file_libraries(libraries))?;
    write!(out, ",\"stackprof\":")?;
    serde_json::to_writer(&mut *out, &extra)?;
    write!(out, ",\"pages\":[],\"profilerOverhead\":[],\"counters\":[],\"threads\":[")?;
    let weight_type = if about.unit == "bytes" { "bytes" } else { "samples" };
    let mut threads = Threads { out, weight_type, written: 0 };
    let spacing = SampleSpacing { period_ns, weight_max, has_time };
    if let Some(timeline) = timeline {
        thread::write(&code, timeline, &mut threads)?;
    }
    // Its frame numbers equal those of the profile.
    if let Some(counted) = without_timeline(saved, timeline)? {
        write_counts(&counted, &code, spacing, &mut threads)?;
    }
    threads.out.write_all(b"]}")
}

/// The threads of a file.
struct Threads<'o> {
    out: &'o mut dyn Write,
    weight_type: &'static str,
    written: usize,
}

impl Threads<'_> {
    fn add(&mut self, thread: thread::Thread<'_, '_>) -> io::Result<()> {
        if self.written > 0 {
            self.out.write_all(b",\n")?;
        }
        self.written += 1;
        thread.write(self.weight_type, self.out)
    }
}

/// Metadata of the file.
fn meta(saved: &SavedProfile, period_ns: f64) -> Value {
    let about = &saved.about;
    let product = match (about.unit == SAMPLES, about.hz) {
        (true, Some(_)) => PRODUCT.to_owned(),
        (true, None) => PRODUCT_NO_RATE.to_owned(),
        (false, _) => format!("{PRODUCT_COUNTS}{})", about.unit),
    };
    let category =
        |(name, color): (&str, &str)| json!({ "name": name, "color": color, "subcategories": ["Other"] });
    json!({
        "preprocessedProfileVersion": VERSION,
        // Readers of this format ignore it.
        "version": 24,
        "product": product,
        "interval": period_ns.round() / 1e6,
        "startTime": about.time_unix_ns.unwrap_or(0) as f64 / 1e6,
        "processType": 0,
        "categories": CATEGORIES.map(category),
        "markerSchema": [thread::schema()],
        "sampleUnits": { "time": "ms", "eventDelay": "ms", "threadCPUDelta": "µs" },
        "extensions": { "length": 0, "baseURL": [], "id": [], "name": [] },
        "debug": false,
        "symbolicated": true,
        "pausedRanges": [],
        "usesOnlyOneStackType": true,
        "sourceCodeIsNotOnSearchfox": true,
    })
}

fn file_libraries(libraries: &Libraries) -> Value {
    let library = |library: &libraries::Library| {
        json!({
            "name": library.name,
            "path": library.path,
            "debugName": library.name,
            "debugPath": library.path,
            "breakpadId": library.debug_id(),
            "codeId": Some(&library.build_id).filter(|id| !id.is_empty()),
            "arch": null,
        })
    };
    libraries.list.iter().map(library).collect()
}

/// Layout of counts without times.
#[derive(Clone, Copy)]
struct SampleSpacing {
    period_ns: f64,
    /// Most counts per sample.
    weight_max: u64,
    /// Counts represent periods.
    has_time: bool,
}

/// Writes counts as consecutive samples.
fn write_counts(
    saved: &SavedProfile,
    code: &Code<'_>,
    SampleSpacing { period_ns, weight_max, has_time }: SampleSpacing,
    threads: &mut Threads<'_>,
) -> io::Result<()> {
    let by_thread = ByThread::of(saved);
    let mut processes: HashMap<TextId, String> = HashMap::new();
    for of in by_thread.threads() {
        let others = processes.len();
        let pid = processes.entry(of.process).or_insert_with(|| unique_pid(saved.about.pid, others)).clone();
        let mut thread = thread::Thread::new(code, identity(saved, code, of, pid));
        let mut clock = SampleClock { period_ns, counts: 0, now_ns: 0 };
        // Viewers take the CPU time of a sample since the previous one, which the first lacks.
        if has_time {
            thread.add_sample(0, None, 0, 0);
        }
        let mut refused = None;
        by_thread.for_each_stack(of, &mut |root, frames, count| {
            let stack = thread.stack(root.complete, frames.iter().copied());
            let mut left = count;
            if count > WEIGHT_MAX * SPLIT_MAX {
                refused = Some(count);
                left = 0;
            }
            while left > 0 {
                let weight = left.min(weight_max);
                left -= weight;
                let (at_ns, cpu_ns) = clock.advance(weight);
                // Zero CPU time means that the thread waited.
                thread.add_sample(at_ns, stack, if root.waiting { 0 } else { cpu_ns }, weight);
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
        threads.add(thread)?;
    }
    Ok(())
}

/// A thread of a profile without times.
fn identity<'s>(saved: &SavedProfile, code: &Code<'s>, of: &OneThread, pid: String) -> Identity<'s> {
    // The texts of the remaining counts are those of the profile.
    let process = code.saved.text(of.process);
    let (name, tid, is_main) = match of.thread {
        Some((name, id)) => (code.saved.text(name), id, false),
        None => (process, u64::from(saved.about.pid.unwrap_or(MERGED_TID)), true),
    };
    Identity { process, pid, name, tid, is_main, begun_ns: 0, ended_ns: None }
}

/// The process number as the format requires it: unique.
fn unique_pid(pid: Option<u32>, others: usize) -> String {
    match (pid.unwrap_or(0), others) {
        (pid, 0) => pid.to_string(),
        (pid, others) => format!("{pid}.{others}"),
    }
}

/// Assigns times to a thread's samples.
struct SampleClock {
    period_ns: f64,
    /// Counts so far.
    counts: u64,
    now_ns: u64,
}

impl SampleClock {
    /// The end time of a sample with this number of counts, and its CPU time, nanoseconds: the difference of
    /// two sums, which does not drift.
    fn advance(&mut self, counts: u64) -> (u64, u64) {
        self.counts = self.counts.saturating_add(counts);
        let now_ns = self.counts as f64 * self.period_ns;
        let before_ns = self.now_ns;
        // Zero would mean that the thread waited.
        self.now_ns = (now_ns as u64).max(before_ns + 1);
        (self.now_ns, self.now_ns - before_ns)
    }
}

// ---- Product names of profiles with counts other than samples at a rate.

/// Product of profiles without a rate; their interval is meaningless.
const PRODUCT_NO_RATE: &str = "stackprof (no rate)";

/// Product of profiles with other counts, followed by the unit and a parenthesis: the format has weight types
/// for samples and bytes only.
const PRODUCT_COUNTS: &str = "stackprof (counts ";
