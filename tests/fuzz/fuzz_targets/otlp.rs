//! The reader of OTLP profiles, unpacked.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stackprof::profile::formats::otlp;

fuzz_target!(|data: &[u8]| {
    let _ = otlp::read::read(data);
});
