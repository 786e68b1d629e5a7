//! File formats of profiles: writing, reading, and detection.

pub mod detect;
mod encoding;
pub mod firefox;
pub mod folded;
pub mod html;
mod json;
pub mod otlp;
pub mod perf_script;
pub mod pprof;
mod protobuf;
mod samples;
pub mod speedscope;
mod tally;

pub use tally::Malformed;
