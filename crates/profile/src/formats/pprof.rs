//! pprof: gzipped protocol buffers, read and written without loss.
//!
//! The facts are converted here (`to_comments`, `take_comment`), and the messages of profile.proto are defined.
//!
//! Format: <https://github.com/google/pprof/blob/main/proto/profile.proto>. Data without a field is where
//! other tools show it: the root of a stack in labels (`process`, `thread` and `tid`, `state`, `incomplete`),
//! facts about the recording in comments (`stackprof.command: ./work`). Profiles of other programs are read
//! too, even uncompressed; see [`read`] for which of several values is used.

pub mod read;
pub mod write;

use prost::encoding::{WireType, decode_key, decode_varint};

use crate::about::{About, SAMPLES};

/// Number of leading fields that must be those of a profile.
const FIELDS_LOOKED_AT: usize = 8;

/// Whether bytes begin like the message: numbers and types of the first fields match profile.proto.
/// `head_is_all`: nothing follows.
pub(super) fn is_pprof(head: &[u8], head_is_all: bool) -> bool {
    let mut rest = head;
    for index in 0..FIELDS_LOOKED_AT {
        if rest.is_empty() {
            return index > 0;
        }
        let Ok((number, wire)) = decode_key(&mut rest) else { return false };
        let fits = match number {
            1..=6 | 11 => wire == WireType::LengthDelimited,
            7..=10 | 12 | 14 | 15 => wire == WireType::Varint,
            // Comments are repeated numbers: packed or not.
            13 => matches!(wire, WireType::LengthDelimited | WireType::Varint),
            _ => false,
        };
        if !fits {
            return false;
        }
        let Ok(value) = decode_varint(&mut rest) else { return index > 0 || !head_is_all };
        if wire == WireType::LengthDelimited {
            let after = usize::try_from(value).ok().and_then(|len| rest.get(len..));
            let Some(after) = after else { return index > 0 || !head_is_all };
            rest = after;
        }
    }
    true
}

/// Keys of labels.
pub(super) mod label {
    pub(crate) const PROCESS: &str = "process";
    pub(crate) const THREAD: &str = "thread";
    pub(crate) const TID: &str = "tid";
    pub(crate) const STATE: &str = "state";
    pub(crate) const WAITING: &str = "waiting";
    pub(crate) const RUNNING: &str = "running";
    pub(crate) const INCOMPLETE: &str = "incomplete";
    pub(crate) const YES: &str = "yes";
    /// Time of a sample, nanoseconds since 1970, in the convention of Datadog's profilers.
    pub(crate) const TIME: &str = "end_timestamp_ns";
    /// Weight in nanoseconds, unless it is whole periods.
    pub(crate) const WEIGHT: &str = "weight_ns";
    pub(crate) const PID: &str = "pid";
    /// The CPU that a sample was taken on.
    pub(crate) const CPU: &str = "cpu";
    pub(crate) const NANOSECONDS: &str = "nanoseconds";
}

// ---- Facts about a recording, as comment lines of a pprof file: `stackprof.KEY: VALUE`.
//
// Lines of other programs are kept unchanged. `go tool pprof -comments` shows them all.

const PREFIX: &str = "stackprof.";
/// The comment of a profile with samples of waiting threads.
const WITH_WAITS: &str = "stackprof.idle: true";
/// The comment of a profile with samples by thread, but one root per process.
const MERGED_THREADS: &str = "stackprof.merged_threads: true";
/// The comment of a profile with several values: the one that is shown.
const TYPE: &str = "stackprof.type: ";
const LOST: &str = "lost ";
const INCOMPLETE: &str = "incomplete ";

/// The comments of a profile.
pub(crate) fn to_comments(about: &About) -> Vec<String> {
    let mut comments = Vec::new();
    let mut tell = |key: &str, value: Option<String>| {
        if let Some(value) = value {
            comments.push(format!("{PREFIX}{key}: {value}"));
        }
    };
    tell("version", about.version.clone());
    tell("hz", about.hz.map(|hz| hz.to_string()));
    tell("pid", about.pid.map(|pid| pid.to_string()));
    tell("arch", about.arch.clone());
    tell("command", about.command.clone());
    tell("launched", about.launched.map(|yes| yes.to_string()));
    tell("exit", about.exit.clone());
    tell("idle", about.idle.map(|yes| yes.to_string()));
    tell("cut", about.is_time_range.then(|| true.to_string()));
    tell("ticks", about.ticks.map(|ticks| ticks.to_string()));
    tell("unit", Some(about.unit.clone()).filter(|unit| unit != SAMPLES));
    tell("type", about.value_type.clone());
    tell("every", about.sampled_every.map(|bytes| bytes.to_string()));
    tell("peak", about.is_peak.then(|| true.to_string()));
    for (reason, count) in &about.lost {
        tell(&format!("{LOST}{reason}"), Some(count.to_string()));
    }
    for (reason, count) in &about.incomplete {
        tell(&format!("{INCOMPLETE}{reason}"), Some(count.to_string()));
    }
    comments.extend(about.comments.iter().cloned());
    comments
}

/// Parses a comment; an unknown one is kept.
pub(crate) fn take_comment(about: &mut About, comment: &str) {
    let known = comment.strip_prefix(PREFIX).and_then(|line| line.split_once(": "));
    let taken = known.is_some_and(|(key, value)| take(about, key, value));
    if !taken && !comment.is_empty() {
        about.comments.push(comment.to_owned());
    }
}

fn take(about: &mut About, key: &str, value: &str) -> bool {
    fn put<T: std::str::FromStr>(into: &mut Option<T>, value: &str) -> bool {
        let Ok(value) = value.parse() else { return false };
        *into = Some(value);
        true
    }
    fn set(into: &mut bool, value: &str) -> bool {
        value.parse().map(|value| *into = value).is_ok()
    }
    match key {
        "version" => put(&mut about.version, value),
        // A rate of 0 is none.
        "hz" => value.parse() != Ok(0) && put(&mut about.hz, value),
        "pid" => put(&mut about.pid, value),
        "arch" => put(&mut about.arch, value),
        "command" => put(&mut about.command, value),
        "launched" => put(&mut about.launched, value),
        "exit" => put(&mut about.exit, value),
        "idle" => put(&mut about.idle, value),
        "cut" => set(&mut about.is_time_range, value),
        "peak" => set(&mut about.is_peak, value),
        "ticks" => put(&mut about.ticks, value),
        "type" => put(&mut about.value_type, value),
        "every" => put(&mut about.sampled_every, value),
        "unit" => {
            value.clone_into(&mut about.unit);
            true
        }
        _ => {
            let (counts, reason) = match (key.strip_prefix(LOST), key.strip_prefix(INCOMPLETE)) {
                (Some(reason), _) => (&mut about.lost, reason),
                (None, Some(reason)) => (&mut about.incomplete, reason),
                (None, None) => return false,
            };
            let Ok(count) = value.parse() else { return false };
            counts.insert(reason.to_owned(), count);
            true
        }
    }
}

// ---- The messages of profile.proto, field by field, with its numbers.
//
// Only those that are read or written as a whole; the outermost message, `Profile`, is read one field at a
// time, so that a file's size is not multiplied in memory.

/// Field numbers of `Profile`.
mod field {
    pub(crate) const SAMPLE_TYPE: u32 = 1;
    pub(crate) const SAMPLE: u32 = 2;
    pub(crate) const MAPPING: u32 = 3;
    pub(crate) const LOCATION: u32 = 4;
    pub(crate) const FUNCTION: u32 = 5;
    pub(crate) const STRING_TABLE: u32 = 6;
    pub(crate) const DROP_FRAMES: u32 = 7;
    pub(crate) const KEEP_FRAMES: u32 = 8;
    pub(crate) const TIME_NANOS: u32 = 9;
    pub(crate) const DURATION_NANOS: u32 = 10;
    pub(crate) const PERIOD_TYPE: u32 = 11;
    pub(crate) const PERIOD: u32 = 12;
    pub(crate) const COMMENT: u32 = 13;
    pub(crate) const DEFAULT_SAMPLE_TYPE: u32 = 14;
}

/// Kind (`cpu`) and unit (`nanoseconds`) of a value; both are strings of the table.
#[derive(Clone, Copy, PartialEq, prost::Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    pub kind: i64,
    #[prost(int64, tag = "2")]
    pub unit: i64,
}

/// A stack, leaf first, with one value for each sample type.
#[derive(Clone, PartialEq, prost::Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    pub location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    pub value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    pub label: Vec<Label>,
}

/// A label of a sample: a string of the table, or a number.
#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Label {
    #[prost(int64, tag = "1")]
    pub key: i64,
    #[prost(int64, tag = "2")]
    pub str: i64,
    #[prost(int64, tag = "3")]
    pub num: i64,
    #[prost(int64, tag = "4")]
    pub num_unit: i64,
}

/// A part of a file mapped as code.
#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Mapping {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(uint64, tag = "2")]
    pub memory_start: u64,
    #[prost(uint64, tag = "3")]
    pub memory_limit: u64,
    #[prost(uint64, tag = "4")]
    pub file_offset: u64,
    #[prost(int64, tag = "5")]
    pub filename: i64,
    #[prost(int64, tag = "6")]
    pub build_id: i64,
    #[prost(bool, tag = "7")]
    pub has_functions: bool,
    #[prost(bool, tag = "8")]
    pub has_filenames: bool,
    #[prost(bool, tag = "9")]
    pub has_line_numbers: bool,
    #[prost(bool, tag = "10")]
    pub has_inline_frames: bool,
}

/// An address with the functions there, innermost first.
#[derive(Clone, PartialEq, prost::Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(uint64, tag = "2")]
    pub mapping_id: u64,
    #[prost(uint64, tag = "3")]
    pub address: u64,
    #[prost(message, repeated, tag = "4")]
    pub line: Vec<Line>,
}

/// A function, and the line in it.
#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    pub function_id: u64,
    #[prost(int64, tag = "2")]
    pub line: i64,
}

/// A function; the names are strings of the table.
#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(int64, tag = "2")]
    pub name: i64,
    #[prost(int64, tag = "3")]
    pub system_name: i64,
    #[prost(int64, tag = "4")]
    pub filename: i64,
    #[prost(int64, tag = "5")]
    pub start_line: i64,
}

#[cfg(test)]
mod metadata_tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn all_facts_round_trip() {
        let about = About {
            hz: Some(997),
            pid: Some(4242),
            arch: Some("x86_64".into()),
            command: Some("./work: --all".into()),
            launched: Some(true),
            exit: Some("signal 6 (SIGABRT)".into()),
            idle: Some(false),
            is_time_range: true,
            unit: "bytes".into(),
            ticks: Some(12),
            value_type: Some("inuse_space".into()),
            sampled_every: Some(524_288),
            is_peak: true,
            lost: BTreeMap::from([("thread ended".into(), 3)]),
            incomplete: BTreeMap::from([("broken frame chain".into(), 4)]),
            comments: vec!["of another: program".into()],
            version: Some("0.1.0".into()),
            ..About::default()
        };
        let mut back = About::default();
        to_comments(&about).iter().for_each(|comment| take_comment(&mut back, comment));
        assert_eq!(back, about);
    }

    #[test]
    fn unknown_comments_are_kept() {
        // The rate is known from the period.
        let mut about = About { hz: Some(100), ..About::default() };
        let comments =
            ["stackprof.hz: many", "stackprof.hz: 0", "stackprof.new: 1", "stackprof.lost x: -1", "hz: 5"];
        for comment in comments {
            take_comment(&mut about, comment);
        }
        assert_eq!(about.comments, comments);
        assert_eq!((about.hz, about.lost.len()), (Some(100), 0));
    }
}
