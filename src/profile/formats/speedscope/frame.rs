//! Frames of a file, and what of ours stands beside them.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize};

use super::super::lists::{Index, NO_INDEX};

/// What waiting threads' stacks begin with; speedscope has no place for it beside the stack.
pub(super) const WAITING: &str = "[waiting]";

/// A frame as the file has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(in crate::profile::formats) struct FileFrame<'a> {
    #[serde(borrow)]
    pub(in crate::profile::formats) name: Cow<'a, str>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub(in crate::profile::formats) file: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "line_number")]
    pub(in crate::profile::formats) line: Option<u32>,
}

/// What the format has no place for, of a thread.
#[derive(Serialize, Deserialize)]
pub(super) struct ExtraThread<'a> {
    #[serde(borrow)]
    pub(super) process: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) thread: Option<(Cow<'a, str>, u64)>,
}

/// A line of a file: the schema has numbers, of which -1, 0 and `null` are no line.
fn line_number<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    let line = Option::<Index>::deserialize(from)?.map(|Index(line)| line);
    Ok(line.filter(|line| !matches!(*line, 0 | NO_INDEX)))
}
