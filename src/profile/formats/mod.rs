//! File formats of profiles: writing, reading, and detection.

pub mod detect;
mod encoding;
mod extra;
mod failure;
pub mod firefox;
pub mod folded;
pub mod folded_read;
mod foreign;
mod fractions;
mod gzip;
pub mod html;
mod lists;
mod malformed;
pub mod otlp;
pub mod perf_script;
pub mod pprof;
mod protobuf;
pub mod speedscope;
mod tally;
mod thread_times;

pub use malformed::Malformed;
