//! Frames of a file, and stackprof's data next to them.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize};

use super::super::lists::{Index, NO_INDEX};

/// First frame of waiting threads' stacks; speedscope has no place for it outside of the stack.
pub(super) const WAITING: &str = "[waiting]";

/// A frame in the file's layout.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(in crate::profile::formats) struct FileFrame<'a> {
    #[serde(borrow)]
    pub(in crate::profile::formats) name: Cow<'a, str>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub(in crate::profile::formats) file: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "line_number")]
    pub(in crate::profile::formats) line: Option<u32>,
}

/// Data of a thread that the format has no place for.
#[derive(Serialize, Deserialize)]
pub(super) struct ExtraThread<'a> {
    #[serde(borrow)]
    pub(super) process: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) thread: Option<(Cow<'a, str>, u64)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) pid: Option<u32>,
    /// By sample: time, weight, counts. Empty if times are unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) at_ns: Vec<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) weight_ns: Vec<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) counts: Vec<u64>,
}

impl<'a> ExtraThread<'a> {
    pub(super) fn of(process: &'a str, thread: Option<(&'a str, u64)>) -> ExtraThread<'a> {
        let thread = thread.map(|(name, id)| (Cow::Borrowed(name), id));
        let process = Cow::Borrowed(process);
        ExtraThread { process, thread, pid: None, at_ns: vec![], weight_ns: vec![], counts: vec![] }
    }

    /// Time, weight and counts of sample `index`, if there are as many entries as `samples`.
    pub(super) fn timed(&self, index: usize, samples: usize) -> Option<(u64, u64, u64)> {
        let columns = [&self.at_ns, &self.weight_ns, &self.counts];
        let are_whole = columns.iter().all(|column| column.len() == samples);
        let [at_ns, weight_ns, count] = columns.map(|column| column.get(index).copied());
        Some((at_ns?, weight_ns?, count?)).filter(|_| are_whole)
    }
}

/// A line number: the schema has numbers, with -1, 0 and `null` meaning none.
fn line_number<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    let line = Option::<Index>::deserialize(from)?.map(|Index(line)| line);
    Ok(line.filter(|line| !matches!(*line, 0 | NO_INDEX)))
}
