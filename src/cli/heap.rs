//! Texts of a heap recording: titles, the closing summary, the table of leaks, or why nothing was recorded.
//!
//! Input: heap statistics and counters. Output: text for people. `stackprof heap` is a recording (`record.rs`) with
//! a source that reports allocations.

use std::ffi::OsStr;

use super::args::{Heap, Pattern};
use super::stats::HeapFigures;
use super::system;
use super::text::{bytes, causes, duration, grouped, percent, plural, shortened};
use crate::conversion::lost_bytes;
use crate::error::{Error, ErrorKind};
use crate::escape::escape_line;
use crate::heap::{Counters, Estimate, HeapValues, Moment, ValueKind};
use crate::profile::{Caller, Leak, RING_FULL, SavedProfile, UNKNOWN};
use crate::recording::Recording;
use crate::sources::ExitStatus;
use crate::sources::pushed::AllocationLosses;

/// Separates a function from its caller.
const BETWEEN: &str = " < ";
/// Names are not shortened below this.
const NAME_CHARS_MIN: usize = 20;
/// Rows of the table of leaks.
const LEAKS_SHOWN: usize = 10;
/// Allocators shown in the line `not seen`.
const UNSEEN_SHOWN: usize = 4;
/// Sampling errors above this are shown as both ends of the interval.
const ERROR_MAX_PERCENT: f64 = 25.0;

/// The statistics of a recording.
pub(super) fn figures(recording: &Recording, values: &HeapValues) -> HeapFigures {
    let losses = recording.heap.as_ref().map(|heap| heap.losses.clone()).unwrap_or_default();
    let total = |kind| values.total(kind);
    let error = |estimate: Estimate| (estimate.standard_error() * 1000.0).round() / 1000.0;
    let interval = |estimate: Estimate| {
        let (low, high) = estimate.interval();
        [low.floor() as u64, high.ceil() as u64]
    };
    let Counters { allocations, frees, frees_unknown, frees_missing, untracked, .. } = values.counters;
    HeapFigures {
        every_bytes: values.rate.every_bytes(),
        moment: if values.moment == Moment::Peak { "peak" } else { "end" },
        samples: allocations,
        inuse_space: total(ValueKind::InuseSpace),
        inuse_space_error: error(values.inuse.0),
        inuse_space_interval: interval(values.inuse.0),
        inuse_objects: total(ValueKind::InuseObjects),
        inuse_objects_error: error(values.inuse.1),
        inuse_objects_interval: interval(values.inuse.1),
        alloc_space: total(ValueKind::AllocSpace),
        alloc_space_error: error(values.allocated.0),
        alloc_space_interval: interval(values.allocated.0),
        alloc_objects: total(ValueKind::AllocObjects),
        alloc_objects_error: error(values.allocated.1),
        alloc_objects_interval: interval(values.allocated.1),
        churn_space: total(ValueKind::ChurnSpace),
        churn_objects: total(ValueKind::ChurnObjects),
        peak_space: values.peak_bytes,
        frees,
        frees_unknown,
        frees_missing,
        frees_lost: losses.frees,
        samples_lost: losses.allocation_count(),
        samples_lost_bytes: lost_bytes(recording, values).map_or(0, |(_, bytes)| bytes),
        samples_early: losses.lost_before_ring,
        samples_untracked: untracked,
        records_malformed: losses.malformed_rings,
    }
}

/// The quantity in pictures, for their headings: `12.3 MB in use at the end`.
pub(super) fn counted(heap: &Heap, values: &HeapValues, processes: u64) -> String {
    quantity(heap.shown(), values.total(heap.shown()), &format!(" {}", moment(heap, processes)))
}

/// The quantity of a saved heap profile; `None` of another one.
pub(super) fn counted_in(saved: &SavedProfile, total: u64) -> Option<String> {
    let kind = ValueKind::from_name(saved.about.value_type.as_deref()?)?;
    Some(quantity(kind, total, if saved.about.is_peak { " at the peak" } else { "" }))
}

/// `moment`: when it is in use, after a blank.
fn quantity(kind: ValueKind, total: u64, moment: &str) -> String {
    match kind {
        ValueKind::InuseSpace => format!("{} in use{moment}", bytes(total)),
        ValueKind::InuseObjects => format!("{} in use{moment}", plural(total, "allocation")),
        ValueKind::AllocSpace => format!("{} allocated in all", bytes(total)),
        ValueKind::AllocObjects => plural(total, "allocation"),
        ValueKind::ChurnSpace => format!("{} freed within 1 ms", bytes(total)),
        ValueKind::ChurnObjects => format!("{} freed within 1 ms", plural(total, "allocation")),
    }
}

/// When memory is in use, and which; `processes`: how many were recorded.
fn moment(heap: &Heap, processes: u64) -> String {
    // The sum of what each process had at its exit may exceed the peak, which is of one moment.
    let of_each = if processes > 1 { " of each process" } else { "" };
    match (heap.moment(), heap.older_than_ns()) {
        (Moment::Peak, _) => "at the peak".to_owned(),
        (Moment::End, None) => format!("at the end{of_each}"),
        (Moment::End, Some(ns)) => format!("at the end{of_each}, older than {}", duration(ns)),
    }
}

/// Lines of the closing summary about memory: label and text.
pub(super) fn lines(recording: &Recording, heap: &Heap, values: &HeapValues) -> Vec<(&'static str, String)> {
    let total = |kind| values.total(kind);
    let moment = moment(heap, recording.stats.processes_seen);
    let (space, objects) = (total(ValueKind::AllocSpace), total(ValueKind::AllocObjects));
    // The interval covers the sampling error only.
    let unseen = match lost_bytes(recording, values) {
        Some((_, lost)) => format!(", without about {} that were lost", bytes(lost)),
        None => String::new(),
    };
    let mut lines = vec![
        (
            "in use",
            format!(
                "{}{} in {} {moment}{unseen}",
                bytes(total(ValueKind::InuseSpace)),
                error(&values.inuse.0, bytes),
                plural(total(ValueKind::InuseObjects), "block") + &error(&values.inuse.1, grouped),
            ),
        ),
        (
            "allocated",
            format!(
                "{}{} in {}{}{unseen}",
                bytes(space),
                error(&values.allocated.0, bytes),
                plural(objects, "block"),
                error(&values.allocated.1, grouped)
            ),
        ),
        ("peak", format!("{}{}{unseen}", bytes(values.peak_bytes), peak_at(recording, values))),
    ];
    if total(ValueKind::ChurnSpace) > 0 {
        let churn = total(ValueKind::ChurnSpace);
        lines.push(("churn", format!("{} ({}) freed within 1 ms", bytes(churn), percent(churn, space))));
    }
    let losses = recording.heap.as_ref().map(|heap| heap.losses.clone()).unwrap_or_default();
    lines.extend(missing(recording, values, &losses).map(|line| ("missing", line)));
    lines.extend(not_seen(&losses, total(ValueKind::InuseSpace)).map(|line| ("not seen", line)));
    let paths = recording.images.images().iter().map(|image| image.path.as_str());
    let is_set = std::env::var_os("PYTHONMALLOC").is_some();
    lines.extend(python_hint(paths, heap.mmap || is_set).map(|line| ("hint", line)));
    lines
}

/// Where small objects of CPython are: in arenas of its own. `is_shown`: by the options of the recording.
fn python_hint<'a>(mut paths: impl Iterator<Item = &'a str>, is_shown: bool) -> Option<String> {
    let is_python = |path: &str| {
        let name = path.rsplit('/').next().unwrap_or_default();
        name.starts_with("libpython") || name.starts_with("python3")
    };
    let hint = "Python keeps small objects in arenas of its own: PYTHONMALLOC=malloc shows each of them, --mmap the arenas";
    (!is_shown && paths.any(is_python)).then(|| hint.to_owned())
}

/// Allocators that are not seen, and how much memory is resident, a part of which they have, beside the `seen_bytes`.
fn not_seen(losses: &AllocationLosses, seen_bytes: u64) -> Option<String> {
    let mut parts: Vec<String> = losses
        .unseen
        .iter()
        .take(UNSEEN_SHOWN)
        .map(|unseen| format!("{} ({})", unseen.functions, unseen.next))
        .collect();
    if parts.is_empty() {
        return None;
    }
    if losses.unseen.len() > UNSEEN_SHOWN {
        parts.push(format!("{} others", losses.unseen.len() - UNSEEN_SHOWN));
    }
    // What is in use need not be resident.
    let most = losses.resident_bytes.map_or_else(String::new, |resident| {
        format!("; {} resident beside {} in use that are seen", bytes(resident), bytes(seen_bytes))
    });
    Some(parts.join("; ") + &most)
}

/// Time of the peak since the recording began, if there is a peak.
fn peak_at(recording: &Recording, values: &HeapValues) -> String {
    match values.peak_at_ns.saturating_sub(recording.stats.begun_ns) {
        _ if values.peak_bytes == 0 => String::new(),
        // A command may allocate before the clock of the recording begins.
        0 => " at the start".to_owned(),
        ns => format!(" at {}", duration(ns)),
    }
}

/// The sampling error with 95 % probability: ` ±8%`, or ` (40.0 KiB–1.1 MiB)` if the interval is asymmetric or wide.
/// `write` formats a value.
fn error(estimate: &Estimate, write: fn(u64) -> String) -> String {
    let (low, high) = estimate.interval();
    let (value, high) = (estimate.value, high.ceil());
    if value <= 0.0 {
        return if high > 0.0 { format!(" (up to {})", write(high as u64)) } else { String::new() };
    }
    // Rounded up, so as not to claim less error.
    let percent = 100.0 * (high - value).max(value - low) / value;
    match percent {
        0.0..0.05 => String::new(),
        0.05..10.0 => format!(" ±{:.1}%", (percent * 10.0).ceil() / 10.0),
        10.0..ERROR_MAX_PERCENT => format!(" ±{:.0}%", percent.ceil()),
        _ => format!(" ({}–{})", write(low as u64), write(high as u64)),
    }
}

/// What the figures lack, and what may be wrong.
fn missing(recording: &Recording, values: &HeapValues, losses: &AllocationLosses) -> Option<String> {
    let counters = values.counters;
    let lost = losses.allocation_count();
    let mut parts = Vec::new();
    if lost > 0 {
        let about = lost_bytes(recording, values).map_or(0, |(_, bytes)| bytes);
        parts.push(format!("{} of about {}: {RING_FULL}", plural(lost, "sample"), bytes(about)));
    }
    if losses.frees > 0 {
        parts.push(format!("{} lost: their blocks count as in use", plural(losses.frees, "free")));
    }
    if losses.no_space > 0 {
        parts.push(format!(
            "of these samples and frees, {} by a full file system: set XDG_RUNTIME_DIR to a directory with more space",
            losses.no_space
        ));
    }
    let counted = causes([
        ("untracked, so never called in use", counters.untracked),
        ("without a stack", counters.stacks_lost),
    ]);
    if !counted.is_empty() {
        parts.push(format!("samples: {counted}"));
    }
    let counted = causes([("unknown", counters.frees_unknown), ("not seen", counters.frees_missing)]);
    if !counted.is_empty() {
        parts.push(format!("frees: {counted}"));
    }
    if losses.malformed_rings > 0 {
        parts
            .push(format!("{} unreadable: the program overwrote it", plural(losses.malformed_rings, "ring")));
    }
    parts.extend(losses.ended_early.iter().map(|why| format!("nothing recorded after this: {why}")));
    let refused = causes(losses.refused.iter().copied());
    if !refused.is_empty() {
        parts.push(format!("processes that could not report: {refused}"));
    }
    parts.extend(unseen_libraries(losses.unseen_libraries));
    let unrecorded = causes(losses.without_shim.iter().copied());
    if !unrecorded.is_empty() {
        let count = losses.without_shim.iter().fold(0, |sum: u64, (_, count)| sum.saturating_add(*count));
        let processes = if count == 1 { "1 process" } else { &format!("{count} processes") };
        parts.push(format!("at least {processes} without the heap shim: {unrecorded}"));
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// Libraries whose calls are not seen, and how much that can be.
fn unseen_libraries((count, peak_bytes): (u64, Option<u64>)) -> Option<String> {
    let libraries = match count {
        0 => return None,
        1 => "1 library was".to_owned(),
        _ => format!("{count} libraries were"),
    };
    let limit =
        peak_bytes.map(|bytes| format!(" (the process had {} of memory at most)", self::bytes(bytes)));
    Some(format!(
        "{libraries} loaded with RTLD_DEEPBIND or dlmopen: what they allocate is not seen{}, and blocks that they free count as \
         in use",
        limit.unwrap_or_default()
    ))
}

/// The table of memory in use, by callers of the allocator; empty if none is in use. `has_ended`: no recorded process
/// runs on. Names are shortened so that rows fit into `width` characters.
pub(super) fn leak_table(saved: &SavedProfile, heap: &Heap, has_ended: bool, width: usize) -> String {
    let leaks = saved.leaks(heap.callers, &|name| Pattern::any_matches(&heap.skip, name));
    let Some(widths) = leaks.first().map(|_| Widths::of(&leaks)) else { return String::new() };
    // A program that runs on may still free its blocks.
    let is_leaked = heap.moment() == Moment::End && (has_ended || heap.older_than.is_some());
    let head = if is_leaked { "leaked" } else { "in use" };
    let mut out =
        format!("  {head:<9} {:>1$}  {2:>3$}  who\n", "bytes", widths.bytes, "blocks", widths.blocks);
    for leak in leaks.iter().take(LEAKS_SHOWN) {
        let who = widths.callers(&leak.callers, width);
        let (space, blocks) = cells(leak);
        out += &format!(
            "  {:<9} {space:>1$}  {blocks:>2$}  {3}\n",
            "",
            widths.bytes,
            widths.blocks,
            escape_line(&who)
        );
    }
    if leaks.len() > LEAKS_SHOWN {
        let rest: f64 = leaks.iter().skip(LEAKS_SHOWN).map(|leak| leak.bytes.value).sum();
        let more = plural((leaks.len() - LEAKS_SHOWN) as u64, "other");
        out += &format!(
            "  {:<9} {:>2$}  {3:>4$}  {more}\n",
            "",
            bytes(rest as u64),
            widths.bytes,
            "",
            widths.blocks
        );
    }
    out
}

/// Column widths.
struct Widths {
    bytes: usize,
    blocks: usize,
}

impl Widths {
    fn of(leaks: &[Leak]) -> Widths {
        let mut widths = Widths { bytes: "bytes".len(), blocks: "blocks".len() };
        for leak in leaks.iter().take(LEAKS_SHOWN) {
            let (space, blocks) = cells(leak);
            widths.bytes = widths.bytes.max(space.chars().count());
            widths.blocks = widths.blocks.max(blocks.chars().count());
        }
        widths
    }

    /// Callers of a row, with names shortened to fit into a line of `width` characters.
    fn callers(&self, callers: &[Caller], width: usize) -> String {
        if callers.is_empty() {
            return UNKNOWN.to_owned();
        }
        // Label, columns and the blanks between them.
        let left = width.saturating_sub(2 + 9 + 1 + self.bytes + 2 + self.blocks + 2);
        let each = (left / callers.len()).saturating_sub(BETWEEN.len()).max(NAME_CHARS_MIN);
        let shown = |Caller { name, place }: &Caller| {
            if place.is_empty() {
                return shortened(name, each);
            }
            let of_name = each.saturating_sub(place.chars().count() + 1).max(NAME_CHARS_MIN);
            format!("{} {place}", shortened(name, of_name))
        };
        callers.iter().map(shown).collect::<Vec<String>>().join(BETWEEN)
    }
}

/// Bytes and blocks of a row. Exact values are written out.
fn cells(leak: &Leak) -> (String, String) {
    let is_exact = leak.bytes.variance <= 0.0 && leak.bytes.interval().1 <= leak.bytes.value;
    let space = leak.bytes.value.round() as u64;
    let space = if is_exact { grouped(space) } else { bytes(space) + &error(&leak.bytes, bytes) };
    (space, grouped(leak.blocks.value.round() as u64) + &error(&leak.blocks, grouped))
}

/// Why a recording has no allocations. `program`: the launched command, if any.
pub(super) fn nothing_recorded(recording: &Recording, program: Option<&OsStr>, heap: &Heap) -> Error {
    let process = super::text::process(&recording.process.name, recording.process.pid);
    let losses = recording.heap.as_ref().map(|heap| heap.losses.clone()).unwrap_or_default();
    let why = match program {
        Some(_)
            if losses.programs == 0 && matches!(recording.stats.exit_status, Some(ExitStatus::Signal(_))) =>
        {
            "it had not loaded the heap shim yet".to_owned()
        }
        Some(program) => system::why_no_allocations(program, &losses, heap.every_bytes()),
        None if heap.every_bytes() == 1 => "it allocated nothing meanwhile".to_owned(),
        None => "it allocated nothing that was sampled; --every 1 takes each allocation".to_owned(),
    };
    let ended = match recording.stats.exit_status {
        Some(status @ (ExitStatus::Signal(_) | ExitStatus::Code(1..))) => {
            super::text::exit_clause(status) + "; "
        }
        _ => String::new(),
    };
    Error::new(ErrorKind::NoData, format!("no allocation was recorded of {process}: {ended}{why}"))
}

#[cfg(test)]
mod tests;
