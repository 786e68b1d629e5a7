//! The reader of pprof, unpacked.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stackprof::profile::formats::pprof;

fuzz_target!(|data: &[u8]| {
    let _ = pprof::read::read(data);
});
