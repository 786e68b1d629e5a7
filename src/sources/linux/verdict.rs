//! Which files the anonymous mappings of a process are copies of, and the number of attempts to find out.

use hashbrown::HashMap;

use crate::binary::Mapping;

/// Verdicts on anonymous mappings, by their bounds.
pub(super) type Verdicts = HashMap<(u64, u64), Verdict>;

/// Origin of an anonymous mapping.
#[derive(Debug)]
pub(super) enum Verdict {
    /// The parts of a file.
    Moved(Vec<Mapping>),
    /// Unknown, after this many attempts.
    Unknown(u32),
}
