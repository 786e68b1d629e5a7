//! The JSON part of a page's data: facts about the recordings, the strings, the list of columns.

use std::collections::BTreeMap;

use serde::Serialize;

use super::super::super::saved::SavedProfile;
use super::inuse::InuseHeader;
use crate::escape::escape_line;

/// The whole header.
#[derive(Serialize)]
pub(super) struct Header<'a> {
    pub(super) form: u32,
    pub(super) title: &'a str,
    pub(super) unit: &'a str,
    pub(super) sides: &'a [Side],
    pub(super) compare: Option<&'a Compare>,
    pub(super) strings: Vec<&'a str>,
    pub(super) libraries: Vec<Library<'a>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) sources: &'a BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) inuse: Option<&'a InuseHeader>,
    pub(super) columns: &'a [(&'static str, &'static str, usize, usize)],
}

/// An executable or a library.
#[derive(Serialize)]
pub(super) struct Library<'a> {
    pub(super) name: &'a str,
    pub(super) path: &'a str,
    pub(super) build_id: &'a str,
}

/// Measure of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Measure {
    /// CPU seconds.
    Seconds,
    /// Counts.
    Samples,
    /// Fractions of each profile.
    Shares,
}

/// The kind of comparison.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compare {
    /// The measure.
    pub measure: Measure,
    /// Factors for counts of base and new that make equal numbers equal work.
    pub scales: (f64, f64),
    /// The measure, and the change of the total, in words.
    pub words: String,
}

/// One recording.
#[derive(Serialize)]
pub(super) struct Side {
    name: String,
    hz: Option<u32>,
    time_unix_ns: Option<u64>,
    duration_ns: Option<u64>,
    pid: Option<u32>,
    arch: Option<String>,
    command: Option<String>,
    launched: Option<bool>,
    idle: Option<bool>,
    version: Option<String>,
    source: Option<String>,
    /// Its stacks are by thread.
    by_thread: bool,
    total: u64,
    lost: BTreeMap<String, u64>,
    incomplete: BTreeMap<String, u64>,
}

impl Side {
    /// Describes a profile; `total` is its part in the page.
    pub(super) fn of(saved: &SavedProfile, name: &str, total: u64, source: Option<&str>) -> Side {
        let about = &saved.about;
        Side {
            name: escape_line(name).into_owned(),
            hz: about.hz,
            time_unix_ns: about.time_unix_ns,
            duration_ns: about.duration_ns,
            pid: about.pid,
            arch: about.arch.clone(),
            command: about.command.clone(),
            launched: about.launched,
            idle: about.idle,
            version: about.version.clone(),
            source: source.map(|source| escape_line(source).into_owned()),
            by_thread: saved.roots().iter().any(|root| root.thread.is_some()),
            total,
            lost: about.lost.clone(),
            incomplete: about.incomplete.clone(),
        }
    }
}
