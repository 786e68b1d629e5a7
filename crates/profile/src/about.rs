//! Metadata of the recording in a saved profile.
//!
//! `None` and empty mean "unknown": folded text has no metadata, pprof nearly all. Merging keeps
//! what is true of both.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::ops::Range;

use crate::escape::{escape_line, escape_lines};

/// Reason for lost allocation samples.
pub const RING_FULL: &str = "the ring was full";

/// Unit of the counts in profiles of stackprof.
pub const SAMPLES: &str = "samples";

/// Most comment lines, also of merged profiles together.
pub const COMMENTS_MAX: usize = 100_000;

/// Why counts of two profiles cannot be added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetadataMismatch {
    /// Different units: those of the two.
    Units(String, String),
    /// Different rates: those of the two, in Hz.
    Rates(u32, u32),
    /// Together they have more than [`COMMENTS_MAX`].
    TooManyComments,
}

impl fmt::Display for MetadataMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MetadataMismatch::Units(one, other) => write!(f, "one counts {one}, the other {other}"),
            MetadataMismatch::Rates(one, other) => {
                write!(f, "one was recorded at {one} Hz, the other at {other} Hz")
            }
            MetadataMismatch::TooManyComments => {
                write!(f, "together they have more than {COMMENTS_MAX} comments")
            }
        }
    }
}

impl std::error::Error for MetadataMismatch {}

/// Metadata of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// Requested ticks per second: one count is 1/hz seconds.
    pub hz: Option<u32>,
    /// Start of the recording, nanoseconds since 1970 (UTC).
    pub time_unix_ns: Option<u64>,
    /// From the first tick to the end, nanoseconds. For merged profiles, the sum.
    pub duration_ns: Option<u64>,
    /// Process id.
    pub pid: Option<u32>,
    /// Instruction set.
    pub arch: Option<String>,
    /// Command line.
    pub command: Option<String>,
    /// Whether the whole run of a command was recorded: launched for the recording, and to its end.
    pub launched: Option<bool>,
    /// How that command ended: `status 0`, `signal 6 (SIGABRT)`.
    pub exit: Option<String>,
    /// Whether waiting threads were recorded too (`--idle`), so that counts are wall-clock time.
    pub idle: Option<bool>,
    /// Whether this is only a time range of a recording.
    pub is_time_range: bool,
    /// Unit of the counts: [`SAMPLES`]; another one in profiles of other programs (`bytes`).
    pub unit: String,
    /// The value type of the counts, if stacks have several: `inuse_space`.
    pub value_type: Option<String>,
    /// For a heap profile, bytes per sample on average.
    pub sampled_every: Option<u64>,
    /// Whether what is in use is that of the peak, not of the end.
    pub is_peak: bool,
    /// Counts missing from the profile, by reason.
    pub lost: BTreeMap<String, u64>,
    /// Counts of stacks that were not walked to their thread's root, by reason.
    pub incomplete: BTreeMap<String, u64>,
    /// Ticks that happened.
    pub ticks: Option<u64>,
    /// Comments that another program wrote into the profile.
    pub comments: Vec<String>,
    /// Version of stackprof that recorded it.
    pub version: Option<String>,
}

impl Default for About {
    fn default() -> About {
        About {
            hz: None,
            time_unix_ns: None,
            duration_ns: None,
            pid: None,
            arch: None,
            command: None,
            launched: None,
            exit: None,
            idle: None,
            is_time_range: false,
            unit: SAMPLES.to_owned(),
            value_type: None,
            sampled_every: None,
            is_peak: false,
            lost: BTreeMap::new(),
            incomplete: BTreeMap::new(),
            ticks: None,
            comments: Vec::new(),
            version: None,
        }
    }
}

impl About {
    /// Whether it counts allocations.
    #[must_use]
    pub fn is_heap(&self) -> bool {
        self.sampled_every.is_some()
    }

    /// Type and unit of the counts, as pprof and OTLP have them.
    pub(super) fn counted_type(&self) -> (&str, &str) {
        match &self.value_type {
            Some(kind) if *kind != self.unit => (kind, &self.unit),
            _ => (&self.unit, "count"),
        }
    }

    /// Length of one count, nanoseconds; `None` if the rate is unknown.
    #[must_use]
    pub fn period_ns(&self) -> Option<f64> {
        self.hz.filter(|hz| *hz > 0).map(|hz| 1e9 / f64::from(hz))
    }

    /// Escapes invisible characters in its texts, as in those of stacks. Command lines and comments
    /// may have newlines.
    pub(super) fn escape(&mut self) {
        let reescape = |text: &mut String, escape: fn(&str) -> Cow<'_, str>| {
            if let Cow::Owned(escaped) = escape(text) {
                *text = escaped;
            }
        };
        reescape(&mut self.unit, escape_line);
        self.arch
            .iter_mut()
            .chain(&mut self.version)
            .chain(&mut self.exit)
            .chain(&mut self.value_type)
            .for_each(|text| reescape(text, escape_line));
        self.command.iter_mut().chain(&mut self.comments).for_each(|text| reescape(text, escape_lines));
        for counts in [&mut self.lost, &mut self.incomplete] {
            let invisible: Vec<String> =
                counts.keys().filter(|why| matches!(escape_line(why), Cow::Owned(_))).cloned().collect();
            for why in invisible {
                let count = counts.remove(&why).unwrap_or_default();
                let sum = counts.entry(escape_line(&why).into_owned()).or_default();
                *sum = sum.saturating_add(count);
            }
        }
    }

    /// Restricts the metadata to a time range, nanoseconds since the recording began, with these losses.
    pub(super) fn limit_to(&mut self, range: &Range<u64>, lost: BTreeMap<String, u64>) {
        self.is_time_range = true;
        self.duration_ns = Some(range.end.saturating_sub(range.start));
        self.time_unix_ns = self.time_unix_ns.map(|began_ns| began_ns.saturating_add(range.start));
        // No longer the whole run of a command.
        self.launched = self.launched.map(|_| false);
        self.exit = None;
        self.ticks = None;
        self.incomplete.clear();
        self.lost = lost;
    }

    /// Merges the metadata of another profile, so that this describes both.
    ///
    /// # Errors
    /// The counts of the two cannot be added.
    pub fn merge(&mut self, other: &About) -> Result<(), MetadataMismatch> {
        if self.unit != other.unit {
            return Err(MetadataMismatch::Units(self.unit.clone(), other.unit.clone()));
        }
        if let (Some(ours), Some(theirs)) = (&self.value_type, &other.value_type)
            && ours != theirs
        {
            return Err(MetadataMismatch::Units(ours.clone(), theirs.clone()));
        }
        if let (Some(ours), Some(theirs)) = (self.hz, other.hz)
            && ours != theirs
        {
            return Err(MetadataMismatch::Rates(ours, theirs));
        }
        let known: HashSet<&str> = self.comments.iter().map(String::as_str).collect();
        let new = other.comments.iter().filter(|comment| !known.contains(comment.as_str()));
        let new: Vec<String> = new.cloned().collect();
        if self.comments.len() + new.len() > COMMENTS_MAX {
            return Err(MetadataMismatch::TooManyComments);
        }
        self.comments.extend(new);
        keep_equal(&mut self.hz, &other.hz);
        keep_equal(&mut self.pid, &other.pid);
        keep_equal(&mut self.arch, &other.arch);
        keep_equal(&mut self.command, &other.command);
        keep_equal(&mut self.launched, &other.launched);
        keep_equal(&mut self.exit, &other.exit);
        keep_equal(&mut self.idle, &other.idle);
        keep_equal(&mut self.version, &other.version);
        keep_equal(&mut self.value_type, &other.value_type);
        keep_equal(&mut self.sampled_every, &other.sampled_every);
        self.is_peak |= other.is_peak;
        self.is_time_range |= other.is_time_range;
        self.time_unix_ns = both(self.time_unix_ns, other.time_unix_ns, u64::min);
        self.duration_ns = both(self.duration_ns, other.duration_ns, u64::saturating_add);
        self.ticks = both(self.ticks, other.ticks, u64::saturating_add);
        add_counts(&mut self.lost, &other.lost);
        add_counts(&mut self.incomplete, &other.incomplete);
        Ok(())
    }
}

fn keep_equal<T: PartialEq>(ours: &mut Option<T>, theirs: &Option<T>) {
    if ours != theirs {
        *ours = None;
    }
}

fn both(ours: Option<u64>, theirs: Option<u64>, join: fn(u64, u64) -> u64) -> Option<u64> {
    ours.zip(theirs).map(|(ours, theirs)| join(ours, theirs))
}

fn add_counts(ours: &mut BTreeMap<String, u64>, theirs: &BTreeMap<String, u64>) {
    for (reason, count) in theirs {
        let sum = ours.entry(reason.clone()).or_default();
        *sum = sum.saturating_add(*count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merging_keeps_what_is_true_of_both() {
        let mut about = About {
            hz: Some(997),
            pid: Some(1),
            duration_ns: Some(5),
            time_unix_ns: Some(9),
            lost: BTreeMap::from([("thread ended".into(), 2)]),
            ..About::default()
        };
        let other = About { pid: Some(2), time_unix_ns: Some(7), ..about.clone() };
        about.merge(&other).expect("same rate");
        assert_eq!((about.hz, about.pid), (Some(997), None));
        assert_eq!((about.duration_ns, about.time_unix_ns), (Some(10), Some(7)));
        assert_eq!(about.lost["thread ended"], 4);
        about.merge(&About::default()).expect("a rate that is not told is no other rate");
        assert_eq!((about.hz, about.duration_ns), (None, None));
    }

    #[test]
    fn comments_are_merged_without_duplicates_up_to_a_limit() {
        let of = |numbers: std::ops::Range<usize>| About {
            comments: numbers.map(|number| number.to_string()).collect(),
            ..About::default()
        };
        let mut about = of(0..60_000);
        about.merge(&of(30_000..90_000)).expect("fit");
        assert_eq!(about.comments, of(0..90_000).comments);
        let refused = about.merge(&of(90_000..100_001)).expect_err("too many");
        assert_eq!(refused.to_string(), "together they have more than 100000 comments");
    }

    #[test]
    fn counts_of_different_length_are_not_added() {
        let at = |hz| About { hz: Some(hz), ..About::default() };
        let refused = at(997).merge(&at(99)).expect_err("refused");
        assert_eq!(refused.to_string(), "one was recorded at 997 Hz, the other at 99 Hz");
        let bytes = About { unit: "bytes".into(), ..About::default() };
        let refused = About::default().merge(&bytes).expect_err("refused");
        assert_eq!(refused.to_string(), "one counts samples, the other bytes");
    }
}
