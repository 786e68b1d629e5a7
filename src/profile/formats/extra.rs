//! The recording, in a custom key, since the viewers' JSON formats have no place for it.
//!
//! It is at the top of the file as `stackprof`, which other readers skip. Without it the duration and losses
//! of the recording are lost, and comparisons would assume a whole recording.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::profile::about::About;
use crate::profile::builder::SavedBuilder;
use crate::profile::full::Full;
use crate::profile::saved::SavedProfile;
use crate::profile::texts::TextId;
use crate::profile::timeline::{Event, EventKind, Loss, Timeline};

/// The recording.
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
    /// Returns the key for a profile to be written.
    pub(super) fn of(about: &'a About) -> Extra<'a> {
        Extra {
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
        }
    }

    /// Adds times to the key, for a profile written thread by thread: first the samples with times.
    pub(super) fn with_times(self, saved: &SavedProfile, timeline: &Timeline) -> Extra<'a> {
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
        Extra { times: true, merged_threads, timeline: Some(times), ..self }
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
