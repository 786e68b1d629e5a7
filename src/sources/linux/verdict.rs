//! What the anonymous mappings of a process are copies of, and how often that was tried.

use hashbrown::HashMap;

use crate::binary::Mapping;

/// What was found out of anonymous mappings, by their bounds.
pub(super) type Verdicts = HashMap<(u64, u64), Verdict>;

/// What an anonymous mapping is.
#[derive(Debug)]
pub(super) enum Verdict {
    /// The parts of a file.
    Moved(Vec<Mapping>),
    /// Unknown, after this many tries.
    Unknown(u32),
}
