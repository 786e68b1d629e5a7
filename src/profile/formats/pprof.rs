//! pprof: gzipped protocol buffers, read and written without loss.
//!
//! Format: <https://github.com/google/pprof/blob/main/proto/profile.proto>. Data without a field is where
//! other tools show it: the root of a stack in labels (`process`, `thread` and `tid`, `state`, `incomplete`),
//! facts about the recording in comments (`stackprof.command: ./work`). Profiles of other programs are read
//! too, even uncompressed; see [`read`] for which of several values is used.

pub(super) mod metadata;
mod proto;
mod prune;
pub mod read;
pub(super) mod tables;
mod timed_samples;
pub(super) mod values;
pub mod write;

use prost::encoding::{WireType, decode_key, decode_varint};

/// Number of leading fields that must be those of a profile.
const FIELDS_LOOKED_AT: usize = 8;

/// Whether bytes begin like the message: numbers and types of the first fields match profile.proto.
/// `head_is_all`: nothing follows.
pub(super) fn is_pprof(head: &[u8], head_is_all: bool) -> bool {
    let mut rest = head;
    for index in 0..FIELDS_LOOKED_AT {
        if rest.is_empty() {
            return index > 0;
        }
        let Ok((number, wire)) = decode_key(&mut rest) else { return false };
        let fits = match number {
            1..=6 | 11 => wire == WireType::LengthDelimited,
            7..=10 | 12 | 14 | 15 => wire == WireType::Varint,
            // Comments are repeated numbers: packed or not.
            13 => matches!(wire, WireType::LengthDelimited | WireType::Varint),
            _ => false,
        };
        if !fits {
            return false;
        }
        let Ok(value) = decode_varint(&mut rest) else { return index > 0 || !head_is_all };
        if wire == WireType::LengthDelimited {
            let after = usize::try_from(value).ok().and_then(|len| rest.get(len..));
            let Some(after) = after else { return index > 0 || !head_is_all };
            rest = after;
        }
    }
    true
}

/// Keys of labels.
pub(super) mod label {
    pub(in super::super) const PROCESS: &str = "process";
    pub(in super::super) const THREAD: &str = "thread";
    pub(in super::super) const TID: &str = "tid";
    pub(in super::super) const STATE: &str = "state";
    pub(in super::super) const WAITING: &str = "waiting";
    pub(in super::super) const RUNNING: &str = "running";
    pub(in super::super) const INCOMPLETE: &str = "incomplete";
    pub(in super::super) const YES: &str = "yes";
    /// Time of a sample, nanoseconds since 1970, in the convention of Datadog's profilers.
    pub(in super::super) const TIME: &str = "end_timestamp_ns";
    /// Weight in nanoseconds, unless it is whole periods.
    pub(in super::super) const WEIGHT: &str = "weight_ns";
    pub(in super::super) const PID: &str = "pid";
    /// The CPU that a sample was taken on.
    pub(in super::super) const CPU: &str = "cpu";
    pub(in super::super) const NANOSECONDS: &str = "nanoseconds";
}
