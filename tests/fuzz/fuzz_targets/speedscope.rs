//! The reader of speedscope's JSON; other JSON is refused.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stackprof::profile::formats::detect;

fuzz_target!(|data: &[u8]| {
    let file = [b"{\"shared\":", data].concat();
    let _ = detect::read(file.as_slice(), "fuzz", 0);
});
