//! The reader of what `perf script` prints.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stackprof::profile::formats::perf_script;

fuzz_target!(|data: &[u8]| {
    let _ = perf_script::read(data, "fuzz");
});
