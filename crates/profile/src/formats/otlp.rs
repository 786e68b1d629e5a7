//! OTLP profiles, read and written: the OpenTelemetry protocol's signal for profiles, which is experimental.
//!
//! Format: `opentelemetry/proto/profiles/v1development/profiles.proto` of
//! <https://github.com/open-telemetry/opentelemetry-proto>, version 1.11. A file is one `ProfilesData`
//! message, which has the same fields as the request of a collector. Samples have values, and timestamps if
//! the profile has a timeline. Threads, processes and build ids are attributes, named by the semantic
//! conventions; anything without a name there has a custom one (`stackprof.…`), which other readers skip.

mod proto;
pub mod read;
pub mod write;

use super::protobuf::{Value, for_each_field};
use super::tally::Malformed;
use proto::field;

/// Keys of attributes.
pub(super) mod key {
    pub(super) const PROCESS: &str = "process.executable.name";
    pub(super) const PROCESS_PATH: &str = "process.executable.path";
    pub(super) const PID: &str = "process.pid";
    pub(super) const SERVICE: &str = "service.name";
    pub(super) const THREAD: &str = "thread.name";
    pub(super) const TID: &str = "thread.id";
    /// The CPU that samples were taken on.
    pub(super) const CPU: &str = "cpu.logical_number";
    pub(super) const COMMAND: &str = "process.command_line";
    pub(super) const FRAME_TYPE: &str = "profile.frame.type";
    pub(super) const COMMENTS: &str = "pprof.profile.comment";
    /// Build ids of ELF files, as hexadecimal digits.
    pub(super) const BUILD_ID: &str = "process.executable.build_id.gnu";
    /// Other build ids; the first known one counts.
    pub(super) const BUILD_IDS: [&str; 3] =
        [BUILD_ID, "process.executable.build_id.go", "process.executable.build_id.htlhash"];
    /// Facts about the recording: lines `stackprof.KEY: VALUE`, as in pprof.
    pub(super) const RECORDING: &str = "stackprof.recording";
    /// Whether a thread waits or runs, if waiting threads were recorded.
    pub(super) const STATE: &str = "stackprof.state";
    pub(super) const INCOMPLETE: &str = "stackprof.incomplete";
    /// Weight of each observation of a sample in nanoseconds, as packed numbers.
    pub(super) const WEIGHTS: &str = "stackprof.weights_ns";
    /// JSON of a timeline's data other than samples.
    pub(super) const TIMES: &str = "stackprof.times";
}

/// Name of the instrumentation scope of profiles written by stackprof.
const SCOPE: &str = "stackprof";
/// Most observations of a sample in a file.
const OBSERVATIONS_MAX: usize = 1 << 22;

/// Whether a message that may be pprof is OTLP. Both have messages in fields 1 and 2. In pprof those of field
/// 1 have only numbers, in OTLP only messages and texts. Field 2 of pprof is a sample, with fields up to 3;
/// that of OTLP is the dictionary, which always has strings, field 5.
pub(super) fn is_otlp(bytes: &[u8]) -> bool {
    let mut answer = None;
    let stop = || Err(Malformed::from(""));
    let _ = for_each_field(bytes, &"", |number, value| match (number, value) {
        (field::RESOURCE_PROFILES, Value::Bytes(inner)) => for_each_field(inner, &"", |_, value| {
            answer = Some(matches!(value, Value::Bytes(_)));
            stop()
        }),
        (field::DICTIONARY, Value::Bytes(inner)) => for_each_field(inner, &"", |number, value| {
            if number == field::STRING_TABLE && matches!(value, Value::Bytes(_)) {
                answer = Some(true);
                return stop();
            }
            Ok(())
        }),
        _ => Ok(()),
    });
    answer == Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pprof_and_otlp_are_distinguished_in_any_field_order() {
        let resource = [0x0a, 0x02, 0x12, 0x00];
        // Tables with their empty items, and strings last.
        let dictionary = [0x12, 0x06, 0x0a, 0x00, 0x12, 0x00, 0x2a, 0x00];
        assert!(is_otlp(&[&resource[..], &dictionary].concat()));
        assert!(is_otlp(&[&dictionary[..], &resource].concat()));
        assert!(is_otlp(&dictionary));
        assert!(is_otlp(&[&[0x0a, 0x00][..], &dictionary].concat()), "a resource of nothing");
        // A sample type, a sample with all its fields, strings.
        let sample_type = [0x0a, 0x04, 0x08, 0x01, 0x10, 0x02];
        let sample = [0x12, 0x08, 0x0a, 0x01, 0x01, 0x12, 0x01, 0x05, 0x1a, 0x00];
        let strings = [0x32, 0x00, 0x32, 0x01, b'a'];
        assert!(!is_otlp(&[&sample_type[..], &sample, &strings].concat()));
        assert!(!is_otlp(&[&sample[..], &strings, &sample_type].concat()));
        assert!(!is_otlp(&[&strings[..], &sample, &sample_type].concat()));
        assert!(!is_otlp(&[0x0a, 0x00]));
        assert!(!is_otlp(&[]));
    }
}
