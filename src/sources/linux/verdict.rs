//! What anonymous mappings of a process stand for.

use hashbrown::HashMap;

use crate::binary::Mapping;

/// What was found out of anonymous mappings, by their bounds.
pub(super) type Verdicts = HashMap<(u64, u64), Verdict>;

/// What an anonymous mapping is.
#[derive(Debug)]
pub(super) enum Verdict {
    /// The parts of a file.
    Moved(Vec<Mapping>),
    /// Nothing that is known, after so many tries.
    Unknown(u32),
}
