//! Mangled names, and readable ones made short.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stackprof::symbol::{demangle, short_name};

fuzz_target!(|data: &[u8]| {
    let _ = short_name::shorten(&demangle::demangle(data));
    let _ = short_name::shorten(&String::from_utf8_lossy(data));
});
