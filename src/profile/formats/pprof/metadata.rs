//! Facts about a recording, as comment lines of a pprof file: `stackprof.KEY: VALUE`.
//!
//! Lines of other programs are kept unchanged. `go tool pprof -comments` shows them all.

use crate::profile::about::{About, SAMPLES};

const PREFIX: &str = "stackprof.";
/// The comment of a profile with samples of waiting threads.
pub(super) const WITH_WAITS: &str = "stackprof.idle: true";
/// The comment of a profile with samples by thread, but one root per process.
pub(super) const MERGED_THREADS: &str = "stackprof.merged_threads: true";
/// The comment of a profile with several values: the one that is shown.
pub(super) const TYPE: &str = "stackprof.type: ";
const LOST: &str = "lost ";
const INCOMPLETE: &str = "incomplete ";

/// The comments of a profile.
pub(in crate::profile::formats) fn to_comments(about: &About) -> Vec<String> {
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
pub(in crate::profile::formats) fn take_comment(about: &mut About, comment: &str) {
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

#[cfg(test)]
mod tests {
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
