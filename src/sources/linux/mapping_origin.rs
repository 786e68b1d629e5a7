//! Which files the anonymous mappings of a process are copies of, and the number of attempts to find out.

use hashbrown::HashMap;

use crate::binary::Mapping;

/// Origins of anonymous mappings, by their bounds.
pub(super) type MappingOrigins = HashMap<(u64, u64), MappingOrigin>;

/// Origin of an anonymous mapping.
#[derive(Debug)]
pub(super) enum MappingOrigin {
    /// The parts of a file.
    Moved(Vec<Mapping>),
    /// Unknown, after this many attempts.
    Unknown(u32),
}
