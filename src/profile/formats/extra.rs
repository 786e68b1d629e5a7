//! What the JSON formats of viewers have no place for: the recording, in a key of our own.
//!
//! It stands at the top of the file as `stackprof`, which other readers skip. Without it a file does
//! not tell how long it recorded or what it lost, and comparisons would take it for a whole one.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::profile::about::About;

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
    idle: Option<bool>,
    /// Threads have lanes of their own, and one root by process.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    merged_threads: bool,
    /// Times of samples are those at which they were taken.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    times: bool,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    lost: BTreeMap<String, u64>,
}

impl<'a> Extra<'a> {
    /// Of a profile that is written.
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
            idle: about.idle,
            merged_threads: false,
            times: false,
            lost: about.lost.clone(),
        }
    }

    /// Of a profile that is written with its times, thread by thread, whether threads have one root by process or not.
    pub(super) fn with_times(self, merged_threads: bool) -> Extra<'a> {
        Extra { times: true, merged_threads, ..self }
    }

    /// Whether times of samples are those at which they were taken.
    pub(super) fn has_times(&self) -> bool {
        self.times
    }

    /// Whether threads have one root by process, though they are written one by one.
    pub(super) fn has_merged_threads(&self) -> bool {
        self.merged_threads
    }

    /// Of one that is read.
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
            idle: self.idle,
            lost: self.lost.clone(),
            ..About::default()
        }
    }
}
