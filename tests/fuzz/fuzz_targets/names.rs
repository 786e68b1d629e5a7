//! Mangled names, and readable ones made short.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stackprof::symbol::demangle;

fuzz_target!(|data: &[u8]| {
    let _ = demangle::shorten(&demangle::demangle(data));
    let _ = demangle::shorten(&String::from_utf8_lossy(data));
});
