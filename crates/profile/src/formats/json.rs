//! What formats share: the recording in a custom key (`Extra`, also of OTLP), and lists of numbers in JSON (`Index`).
//!
//! The key of the recording is at the top of the file as `stackprof`, which other readers skip. Without it the duration and losses
//! of the recording are lost, and comparisons would assume a whole recording.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::about::About;
use crate::builder::SavedBuilder;
use crate::saved::{Full, SavedProfile};
use crate::table::Lists;
use crate::texts::TextId;
use crate::timeline::{Event, EventKind, Loss, Timeline};

/// The recording, as the viewers' formats have no place for it.
#[derive(Serialize, Deserialize)]
pub(super) struct Extra<'a> {
    hz: Option<u32>,
    #[serde(borrow)]
    unit: Cow<'a, str>,
    time_unix_ns: Option<u64>,
    duration_ns: Option<u64>,
    pid: Option<u32>,
    #[serde(borrow)]
    arch: Option<Cow<'a, str>>,
    #[serde(borrow)]
    command: Option<Cow<'a, str>>,
    launched: Option<bool>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    exit: Option<Cow<'a, str>>,
    idle: Option<bool>,
    /// It is a part of a recording's time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    cut: bool,
    /// Threads have separate tracks, but one root per process.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    merged_threads: bool,
    /// Times of samples are real.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    times: bool,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    lost: BTreeMap<String, u64>,
    /// Timed data other than samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    timeline: Option<Times>,
}

/// Data of a timeline other than the samples of threads.
#[derive(Clone, Default, Serialize, Deserialize)]
struct Times {
    /// Resolution of times, nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    step_ns: Option<u64>,
    /// Threads of the file from this one on have samples without times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    timed_threads: Option<usize>,
    /// Interval (after, before), amount in nanoseconds, and cause.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    losses: Vec<(u64, u64, u64, String)>,
    /// Time, kind, process by name and number, thread, text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    events: Vec<(u64, String, String, u32, u64, String)>,
}

impl<'a> Extra<'a> {
    /// Returns the key for a profile to be written; with `timeline` if it is written thread by thread, first the
    /// samples with times.
    pub(super) fn of(about: &'a About, saved: &SavedProfile, timeline: Option<&Timeline>) -> Extra<'a> {
        let key = Extra {
            hz: about.hz,
            unit: Cow::Borrowed(&about.unit),
            time_unix_ns: about.time_unix_ns,
            duration_ns: about.duration_ns,
            pid: about.pid,
            arch: about.arch.as_deref().map(Cow::Borrowed),
            command: about.command.as_deref().map(Cow::Borrowed),
            launched: about.launched,
            exit: about.exit.as_deref().map(Cow::Borrowed),
            idle: about.idle,
            cut: about.is_time_range,
            merged_threads: false,
            times: false,
            lost: about.lost.clone(),
            timeline: None,
        };
        let Some(timeline) = timeline else { return key };
        let text = |id: TextId| saved.text(id).to_owned();
        let losses = timeline.losses.iter();
        let losses = losses.map(|loss| (loss.since_ns, loss.at_ns, loss.lost_ns, text(loss.reason)));
        let events = timeline.events.iter().map(|event| {
            let (kind, process) = (event.kind.words().to_owned(), text(event.process));
            (event.at_ns, kind, process, event.pid, event.thread, text(event.text))
        });
        let times = Times {
            step_ns: timeline.step_ns,
            timed_threads: Some(timeline.threads.len()),
            losses: losses.collect(),
            events: events.collect(),
        };
        let merged_threads = saved.roots().iter().all(|root| root.thread.is_none());
        Extra { times: true, merged_threads, timeline: Some(times), ..key }
    }

    /// Number of leading threads with timed samples; `None` if all have them.
    pub(super) fn timed_threads(&self) -> Option<usize> {
        self.timeline.as_ref()?.timed_threads
    }

    /// Adds timed data other than samples to a profile with times.
    ///
    /// # Errors
    /// [`Full`] if it does not fit.
    pub(super) fn put_times(&self, into: &mut SavedBuilder) -> Result<(), Full> {
        let Some(times) = &self.timeline else { return Ok(()) };
        let (mut losses, mut events) = (Vec::new(), Vec::new());
        for (since_ns, at_ns, lost_ns, reason) in &times.losses {
            let (since_ns, at_ns, lost_ns) = (*since_ns, *at_ns, *lost_ns);
            if since_ns <= at_ns {
                losses.push(Loss { since_ns, at_ns, lost_ns, reason: into.text(reason)? });
            }
        }
        for (at_ns, kind, process, pid, thread, text) in &times.events {
            let Some(kind) = EventKind::of(kind) else { continue };
            let (process, text) = (into.text(process)?, into.text(text)?);
            events.push(Event { at_ns: *at_ns, kind, process, pid: *pid, thread: *thread, text });
        }
        let timeline = into.times();
        (timeline.step_ns, timeline.losses, timeline.events) = (times.step_ns, losses, events);
        timeline.set_lifetimes();
        Ok(())
    }

    /// Whether times of samples are real.
    pub(super) fn has_times(&self) -> bool {
        self.times
    }

    /// Whether threads have one root per process, though they are written separately.
    pub(super) fn has_merged_threads(&self) -> bool {
        self.merged_threads
    }

    /// The recording of a profile that was read.
    pub(super) fn about(&self) -> About {
        let owned = |text: &Option<Cow<'_, str>>| text.as_ref().map(|text| text.clone().into_owned());
        About {
            hz: self.hz.filter(|hz| *hz > 0),
            unit: self.unit.clone().into_owned(),
            time_unix_ns: self.time_unix_ns,
            duration_ns: self.duration_ns,
            pid: self.pid,
            arch: owned(&self.arch),
            command: owned(&self.command),
            launched: self.launched,
            exit: owned(&self.exit),
            idle: self.idle,
            is_time_range: self.cut,
            lost: self.lost.clone(),
            ..About::default()
        }
    }
}

// ---- Lists of numbers from a JSON file, concatenated.
//
// A number that is not an index (-1, 1.5, null) becomes [`NO_INDEX`], so that it costs one list and not the file.

/// Placeholder for a number that is not an index.
pub(super) const NO_INDEX: u32 = u32::MAX;

impl<'de> Deserialize<'de> for Lists<u32> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Lists<u32>, D::Error> {
        from.deserialize_seq(ListsVisitor)
    }
}

struct ListsVisitor;

impl<'de> Visitor<'de> for ListsVisitor {
    type Value = Lists<u32>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of lists of numbers")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Lists<u32>, A::Error> {
        let mut lists = Lists::default();
        while from.next_element_seed(NumbersVisitor(&mut lists))?.is_some() {
            if !lists.end() {
                return Err(A::Error::custom("too many numbers"));
            }
        }
        Ok(lists)
    }
}

/// Adds one list.
struct NumbersVisitor<'l>(&'l mut Lists<u32>);

impl<'de> DeserializeSeed<'de> for NumbersVisitor<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for NumbersVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of numbers")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<(), A::Error> {
        while let Some(Index(item)) = from.next_element()? {
            self.0.push(item);
        }
        Ok(())
    }
}

/// An index in JSON: `3` or `3.0`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Index(pub(super) u32);

impl<'de> Deserialize<'de> for Index {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Index, D::Error> {
        from.deserialize_any(IndexVisitor)
    }
}

struct IndexVisitor;

impl Visitor<'_> for IndexVisitor {
    type Value = Index;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Index, E> {
        Ok(Index(u32::try_from(number).unwrap_or(NO_INDEX)))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Index, E> {
        Ok(Index(u32::try_from(number).unwrap_or(NO_INDEX)))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Index, E> {
        let is_index = number.fract() == 0.0 && (0.0..f64::from(NO_INDEX)).contains(&number);
        Ok(Index(if is_index { number as u32 } else { NO_INDEX }))
    }

    fn visit_unit<E: Error>(self) -> Result<Index, E> {
        Ok(Index(NO_INDEX))
    }
}

#[cfg(test)]
mod lists_tests {
    use super::*;

    #[test]
    fn lists_of_any_length_are_read() {
        for text in ["[]", "[[]]", "[[1,2],[],[4294967295]]", "[[],[7],[]]"] {
            let lists: Lists<u32> = serde_json::from_str(text).expect("reads");
            let plain: Vec<Vec<u32>> = serde_json::from_str(text).expect("reads");
            assert_eq!(lists.iter().collect::<Vec<_>>(), plain, "{text}");
            assert_eq!(lists.len(), plain.len());
        }
        let odd: Lists<u32> =
            serde_json::from_str("[[-1],[1.5,2.0],[4294967296,null,1e300,-0.0]]").expect("reads");
        let none = NO_INDEX;
        assert_eq!(odd.iter().collect::<Vec<_>>(), [&[none][..], &[none, 2], &[none, none, none, 0]]);
        for text in ["[1]", "[[\"1\"]]", "[[1]", "{}"] {
            assert!(serde_json::from_str::<Lists<u32>>(text).is_err(), "{text}");
        }
    }
}
